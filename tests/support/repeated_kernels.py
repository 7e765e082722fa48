"""Kernels with one construct repeated N times, to check for compile time linear in N."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aotc.compiler import CompileRequest, compile_request

SIGNATURE = {"x": "*fp32:16", "y": "*fp32:16", "out": "*fp32:16", "n": "i32:16"}

HEAD = """\
import triton
import triton.language as tl


@triton.jit
def step(v, k):
    return v * 0.5 + k


@triton.jit
def pair(a, b):
    return a * b


@triton.jit
def kernel(x, y, out, n, N: tl.constexpr, BLOCK: tl.constexpr):
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = c < n
"""

TAIL = "    tl.store(out + c, v, mask=m)\n"


def _unrolled(*body: str, before: str = "v = tl.load(x + c, mask=m)", tail: str = TAIL) -> str:
    lines = [before, "for i in tl.static_range(N):", *(f"    {line}" for line in body)]
    return HEAD + "".join(f"    {line}\n" for line in lines) + tail


def _repeated(line: str, n: int, before: str = "v = tl.load(x + c, mask=m)") -> str:
    lines = [before, *(line.replace("@", str(i)) for i in range(n))]
    return HEAD + "".join(f"    {row}\n" for row in lines) + TAIL


def _in_rows(line: str, before: str = "v = c * 1.0") -> str:
    lines = [before, "for r in range(n):", "    for i in tl.static_range(N):", f"        {line}"]
    return HEAD + "".join(f"    {row}\n" for row in lines) + TAIL


def _nested(outer: str, inner: str, last: str, n: int) -> str:
    """Return a nest of loops, with statements in each before and after the next, and in the innermost."""
    depth = min(n, 18)
    lines = ["    v = tl.load(x + c, mask=m)\n"]
    for i in range(depth):
        lines += [f"{'    ' * (i + 1)}for i{i} in range(n):\n"]
        lines += [f"{'    ' * (i + 2)}{outer}\n"] * bool(outer)
    lines += [f"{'    ' * (depth + 1)}{inner}\n" for _ in range(max(1, n // depth))]
    lines += [f"{'    ' * (i + 2)}{last}\n" for i in reversed(range(depth)) if last]
    return HEAD + "".join(lines) + TAIL


def _carried(n: int) -> str:
    lines = [f"    v{i} = tl.load(x + c + {i})\n" for i in range(n)]
    lines += ["    for j in range(n):\n", *(f"        v{i} = v{i} * 0.5 + j\n" for i in range(n))]
    lines += [f"    tl.store(out + {i} * n + c, v{i}, mask=m)\n" for i in range(n)]
    return HEAD + "".join(lines)


NESTS = {
    "nested loops": ("", "v = v * 0.5 + i0", ""),
    "nested stores": ("", "tl.store(out + c, tl.load(out + c + 1) + v)", ""),
    "nested loads": ("v += tl.load(out + i0 + c)", "tl.store(out + c * 3, v)", ""),
    "nested copies": ("v += tl.load(out + c + i0)", "v += 1.0", "tl.store(out + c * 5, v)"),
    "nested sums": ("v = v / tl.sum(v, axis=0)", "v += 1.0", "v = v * tl.max(v, axis=0)"),
    "innermost sums": ("", "v = v / tl.sum(v, axis=0)", ""),
    "nested atomics": ("v += tl.load(out + c + i0)", "tl.atomic_add(out + c, v)", ""),
}
"""Statements of each loop of a nest, of the innermost, and of each loop after the next."""

KERNELS: dict[str, Callable[[int], str]] = {
    "elementwise": lambda _: _unrolled("v = v * 0.5 + i"),
    "statements": lambda n: _repeated("v = v * 0.5 + @", n),
    "remainders": lambda _: _unrolled(
        "k = (k * 3 + i) % n",
        before="k = tl.load(x + c, mask=m).to(tl.int32)",
        tail="    v = k.to(tl.float32)\n" + TAIL,
    ),
    "loads": lambda _: _unrolled("v += tl.load(x + i * n + c, mask=m)"),
    "stores": lambda _: _unrolled("tl.store(out + i * n + c, v + i, mask=m)"),
    "copies": lambda _: _unrolled(
        "tl.store(out + i * n + c, tl.load(x + i * n + c, mask=m), mask=m)"
    ),
    "kept loads": lambda n: (
        _repeated("v@ = tl.load(x + @ * n + c, mask=m)", n)[: -len(TAIL)]
        + "".join(f"    tl.store(out + {i} * n + c, v{i}, mask=m)\n" for i in range(n))
    ),
    "sums": lambda _: _unrolled("v = v + tl.sum(v, axis=0)"),
    "scans": lambda _: _unrolled("v = tl.cumsum(v, axis=0)"),
    "reductions": lambda _: _unrolled("v = v + tl.reduce(v, 0, pair)"),
    "dots": lambda _: _unrolled(
        "v = tl.dot(v.to(tl.float16), w)",
        before="q = tl.arange(0, 64)\n    w = tl.load(y + q[:, None] * 64 + q).to(tl.float16)\n"
        "    v = tl.load(x + q[:, None] * 64 + q)",
        tail="    tl.store(out + q[:, None] * 64 + q, v)\n",
    ),
    "branches": lambda _: _unrolled("if n > i:", "    tl.store(out + i * n + c, v)"),
    "merges": lambda _: _unrolled("if n > i:", "    v = v * 0.5 + i"),
    "loops": lambda _: _unrolled("for j in range(n):", "    v = v * 0.5 + j"),
    "row loops": lambda _: _unrolled(
        "for j in range(n):", "    v += tl.load(x + j * n + i + c, mask=m)"
    ),
    "calls": lambda _: _unrolled("v = step(v, i)"),
    "gathers": lambda _: _unrolled(
        "k = tl.load(p + k)",
        before="p = x.to(tl.pointer_type(tl.int32))\n    k = tl.load(p + c, mask=m)",
        tail="    v = k.to(tl.float32)\n" + TAIL,
    ),
    "atomics": lambda _: _unrolled("tl.atomic_add(out + i * n + c, v, mask=m)"),
    "where": lambda _: _unrolled("v = tl.where(v > i, v - i, v + i)"),
    "reshapes": lambda _: _unrolled("v = tl.trans(v.reshape([32, BLOCK // 32])).reshape([BLOCK])"),
    "carried": _carried,
    "scalars": lambda _: _unrolled(
        "s = (s * 3 + i) % (n + 1)", before="s = n", tail="    v = c * s\n" + TAIL
    ),
    "scalar loads": lambda _: _unrolled(
        "s += tl.load(x + i)", before="s = 0.0", tail="    v = c * s\n" + TAIL
    ),
    "returns": lambda n: (
        HEAD
        + "    v = tl.load(x + c, mask=m)\n"
        + "".join(f"    if n == {i}:\n        return\n" for i in range(n))
        + TAIL
    ),
    "arms": lambda n: (
        HEAD
        + "    v = tl.load(x + c, mask=m)\n    if n == 0:\n        v = v + 1\n"
        + "".join(f"    elif n == {i + 1}:\n        v = v + {i}\n" for i in range(n))
        + TAIL
    ),
    **{name: partial(_nested, *statements) for name, statements in NESTS.items()},
    "indices": lambda _: _unrolled(
        "c = tl.where(c > n, c - i, c ^ n)",
        before="v = 0.0",
        tail="    v = tl.load(x + c * n, mask=c < n)\n" + TAIL,
    ),
    "index sums": lambda _: _unrolled(
        "c = c + (c ^ (n + i))",
        before="v = 0.0",
        tail="    v = tl.load(x + c, mask=c < n)\n" + TAIL,
    ),
    "trip counts": lambda _: _unrolled(
        "s = tl.minimum(s * 3, n + i)",
        before="v = tl.load(x + c, mask=m)\n    s = tl.program_id(0)",
        tail="    for j in range(s):\n        v = v * 0.5 + tl.load(y + s * n + c, mask=m)\n"
        + TAIL,
    ),
    "conditions": lambda _: _unrolled(
        "g = g & (tl.load(x + i) > 0)",
        before="v = tl.load(x + c, mask=m)\n    g = n > 0",
        tail="    if g:\n        tl.store(out + c, v, mask=m)\n",
    ),
    "masks": lambda _: _unrolled(
        "m = m & (c < n - i * i)", before="v = 1.0", tail="    v = tl.load(x + c, mask=m)\n" + TAIL
    ),
    "loads in a loop": lambda _: _in_rows(
        "v += tl.load(x + (r * N + i) * n + c, mask=m)", before="v = tl.load(y + c, mask=m)"
    ),
    "row sums": lambda _: _in_rows("v = v / (1.0 + tl.sum(v * v, axis=0))"),
}

MANY_LIVE = ("kept loads", "carried")
"""All N tiles are live at once."""


def repeated(name: str, size: int, target: str = "sm_90a", num_warps: int = 4) -> CompileRequest:
    """Return the request for a kernel with `size` repetitions."""
    return compile_request(
        "kernel",
        source=KERNELS[name](size),
        signature=SIGNATURE,
        constants={"N": size, "BLOCK": 128 if name in MANY_LIVE else 512},
        target=target,
        config={"num_warps": num_warps},
    )
