"""Reductions, scans, matrix products, atomics, and data movement within a tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.oracle.ptx_cases_elementwise import DTYPES, drawn, is_float
from tests.oracle.triton_ptx import Arrays, Case

_TILE = "r = tl.arange(0, M)[:, None]\nc = tl.arange(0, N)[None, :]\nv = tl.load(x + r * N + c)\n"


def _wide(x: Any) -> Any:
    return x.astype(np.float64) if x.dtype.kind not in "iub" else x


def tile_case(
    name: str,
    kind: str,
    body: str,
    compute: Callable[[Any], Any],
    out: str = "",
    shape: tuple[int, int] = (32, 64),
    **options: Any,
) -> Case:
    """Make a case: load a tile `v` of x, run the body, compare its output with `compute`."""
    out = out or kind

    def inputs(rng: np.random.Generator) -> dict[str, Any]:
        x = drawn(rng, kind, shape[0] * shape[1]).reshape(shape)
        size = np.asarray(compute(_wide(x))).size
        return {"x": x, "out": np.zeros(size, DTYPES[out])}

    def expected(arrays: Arrays) -> dict[str, Any]:
        result = np.asarray(compute(_wide(arrays["x"]))).reshape(-1)
        return {"out": result.astype(DTYPES[out])}

    types = {"x": f"*{kind}", "out": f"*{out}"}
    rtol = {"fp16": 5e-3, "bf16": 3e-2, "fp32": 1e-5, "fp64": 1e-12}.get(out, 0.0)
    consts = {"M": shape[0], "N": shape[1]}
    grid = options.pop("grid", (1,))
    arch, before = options.pop("arch", 90), options.pop("before", "")
    return Case(
        name, _TILE + body, types, inputs, expected, consts, rtol, arch, grid, options, before
    )


_ROWS = "tl.store(out + tl.arange(0, M), {})"
_COLUMNS = "tl.store(out + tl.arange(0, N), {})"
TILE_STORE = "tl.store(out + r * N + c, {})"
_REDUCTIONS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "sum": ("tl.sum(v, {})", np.sum),
    "max": ("tl.max(v, {})", np.max),
    "min": ("tl.min(v, {})", np.min),
}


def _reductions() -> list[Case]:
    cases: list[Case] = []
    for name, (text, compute) in _REDUCTIONS.items():
        for kind in ("i8", "i32", "i64", "u32", "fp16", "bf16", "fp32", "fp64"):
            for axis, store in ((1, _ROWS), (0, _COLUMNS)):
                cases.append(
                    tile_case(
                        f"{name}{axis}-{kind}",
                        kind,
                        store.format(text.format(axis)),
                        lambda x, f=compute, a=axis: f(x, axis=a),
                    )
                )
    for kind in ("i32", "fp32", "fp16"):
        for name, compute in (("argmax", np.argmax), ("argmin", np.argmin)):
            for axis, store in ((1, _ROWS), (0, _COLUMNS)):
                body = store.format(f"tl.{name}(v, {axis})")
                cases.append(
                    tile_case(
                        f"{name}{axis}-{kind}", kind, body,
                        lambda x, f=compute, a=axis: f(x, axis=a), "i32",
                    )
                )  # fmt: skip
    cases.append(
        tile_case("xor_sum-i32", "i32", _ROWS.format("tl.xor_sum(v, 1)"),
                   lambda x: np.bitwise_xor.reduce(x, axis=1))
    )  # fmt: skip
    total = "tl.store(out, tl.sum(tl.sum(v, 1), 0))"
    cases += [
        tile_case(f"sum-all-warps{warps}", "fp32", total, np.sum, num_warps=warps)
        for warps in (1, 2, 8)
    ]
    return cases


def _scans() -> list[Case]:
    cases: list[Case] = []
    for kind in ("i32", "i64", "fp32", "fp16", "bf16"):
        for axis in (0, 1):
            out = "fp32" if is_float(kind) else kind
            value = "v.to(tl.float32)" if is_float(kind) else "v"
            cases.append(
                tile_case(f"cumsum{axis}-{kind}", kind, TILE_STORE.format(f"tl.cumsum({value}, {axis})"),
                           lambda x, a=axis: np.cumsum(x, axis=a), out)
            )  # fmt: skip
    cases.append(
        tile_case("cumsum-reverse", "i32", TILE_STORE.format("tl.cumsum(v, 1, reverse=True)"),
                   lambda x: np.cumsum(x[:, ::-1], axis=1)[:, ::-1])
    )  # fmt: skip
    cases.append(
        tile_case("cumprod", "fp32", TILE_STORE.format("tl.cumprod(1 + v * 0.001, 1)"),
                   lambda x: np.cumprod(1 + x * 0.001, axis=1))
    )  # fmt: skip
    return cases


def _moves() -> list[Case]:
    turned = "tl.store(out + tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :], {})"
    flat = "tl.store(out + tl.arange(0, M * N), {})"
    cases: list[tuple[str, str, Callable[[Any], Any]]] = [
        ("trans", turned.format("tl.trans(v)"), lambda x: x.T),
        ("reshape", flat.format("tl.reshape(v, (M * N,))"), lambda x: x),
        ("flip", TILE_STORE.format("tl.flip(v, 1)"), lambda x: x[:, ::-1]),
        ("sort", TILE_STORE.format("tl.sort(v, 1)"), lambda x: np.sort(x, axis=1)),
        ("sort-down", TILE_STORE.format("tl.sort(v, 1, descending=True)"), lambda x: -np.sort(-x, axis=1)),
        ("topk", "tl.store(out + r * 8 + tl.arange(0, 8)[None, :], tl.topk(v, 8, 1))",
         lambda x: -np.sort(-x, axis=1)[:, :8]),
        ("interleave", flat.format("tl.reshape(tl.permute(v, (1, 0)), (M * N,))"), lambda x: x.T),
        ("split", ("a, b = tl.split(tl.reshape(v, (M * N // 2, 2)))\ni = tl.arange(0, M * N // 2)\n"
         "tl.store(out + i, a)\ntl.store(out + M * N // 2 + i, b)"),
         lambda x: np.concatenate([x.reshape(-1)[::2], x.reshape(-1)[1::2]])),
        ("join", ("i = tl.arange(0, M * N * 2)\nw = tl.reshape(v, (M * N,))\n"
         "tl.store(out + i, tl.reshape(tl.join(w, w + 1), (2 * M * N,)))"),
         lambda x: np.stack([x.reshape(-1), x.reshape(-1) + 1], axis=-1)),
        ("gather", TILE_STORE.format("tl.gather(v, (c + r) % N + r * 0, 1)"),
         lambda x: np.stack([np.roll(row, -shift) for shift, row in enumerate(x)])),
        ("broadcast", TILE_STORE.format("v + tl.sum(v, 1)[:, None] * 0 + r"),
         lambda x: x + np.arange(x.shape[0])[:, None]),
    ]  # fmt: skip
    tile_cases = [
        tile_case(f"{name}-{kind}", kind, body, compute)
        for name, body, compute in cases
        for kind in ("i32", "fp32", "i8", "i64")
        if not (kind == "i8" and name in ("join", "broadcast"))
    ]
    tile_cases += [
        tile_case(f"{name}-fp16", "fp16", body, compute)
        for name, body, compute in cases
        if name not in ("join", "broadcast")
    ]
    return tile_cases


def _dots() -> list[Case]:
    cases: list[Case] = []
    for arch in (80, 90):
        for kind, out in (("fp16", "fp32"), ("bf16", "fp32"), ("i8", "i32"), ("fp32", "fp32"),
                          ("fp8e4nv", "fp32"), ("fp8e5", "fp32"), ("fp64", "fp64")):  # fmt: skip
            if arch == 80 and kind.startswith("fp8"):
                continue
            for m, n, k, trans in ((64, 64, 64, 0), (16, 32, 32, 0), (128, 64, 32, 1)):
                if kind == "fp64" and m > 16:
                    continue
                cases.append(_dot(kind, out, m, n, k, bool(trans), arch))
    return cases


def _dot(kind: str, out: str, m: int, n: int, k: int, trans: bool, arch: int) -> Case:
    right = "tl.trans(tl.load(y + tl.arange(0, N)[:, None] * K + tl.arange(0, K)[None, :]))"
    plain = "tl.load(y + tl.arange(0, K)[:, None] * N + tl.arange(0, N)[None, :])"
    body = (
        "r = tl.arange(0, M)[:, None]\n"
        "a = tl.load(x + r * K + tl.arange(0, K)[None, :])\n"
        f"b = {right if trans else plain}\n"
        f"d = tl.dot(a, b, out_dtype=tl.{ {'i32': 'int32', 'fp32': 'float32', 'fp64': 'float64'}[out] })\n"
        "tl.store(out + r * N + tl.arange(0, N)[None, :], d)"
    )

    def inputs(rng: np.random.Generator) -> dict[str, Any]:
        x, y = (rng.integers(-4, 5, size).astype(np.float32) for size in (m * k, k * n))
        return {
            "x": x.astype(DTYPES[kind]),
            "y": y.astype(DTYPES[kind]),
            "out": np.zeros(m * n, DTYPES[out]),
        }

    def expected(arrays: Arrays) -> dict[str, Any]:
        x = arrays["x"].astype(np.float64).reshape(m, k)
        y = arrays["y"].astype(np.float64).reshape((n, k) if trans else (k, n))
        return {"out": (x @ (y.T if trans else y)).astype(DTYPES[out])}

    types = {"x": f"*{kind}", "y": f"*{kind}", "out": f"*{out}"}
    consts = {"M": m, "N": n, "K": k}
    return Case(
        f"dot-{kind}-{m}x{n}x{k}-sm{arch}", body, types, inputs, expected, consts, arch=arch
    )


def _atomics() -> list[Case]:
    cases: list[Case] = []
    computes: dict[str, Callable[[Any], Any]] = {
        "add": lambda x: x.sum(axis=0),
        "max": lambda x: np.maximum(x.max(axis=0), 0),
        "min": lambda x: np.minimum(x.min(axis=0), 0),
        "and": lambda x: np.zeros(x.shape[1], x.dtype),
        "or": lambda x: np.bitwise_or.reduce(x, axis=0),
        "xor": lambda x: np.bitwise_xor.reduce(x, axis=0),
    }
    for name, compute in computes.items():
        for kind in ("i32", "u32", "i64", "fp32", "fp16", "fp64", "bf16"):
            is_compared = kind == "fp32" and name in ("max", "min")
            if is_float(kind) and name != "add" and not is_compared:
                continue
            for sem in ("relaxed", "acq_rel"):
                body = f"tl.atomic_{name}(out + c + r * 0, v, sem='{sem}')"
                cases.append(
                    tile_case(f"atomic_{name}-{kind}-{sem}", kind, body, compute, shape=(4, 128))
                )
    body = "tl.atomic_xchg(out + r * N + c, v)"
    cases.append(tile_case("atomic_xchg", "i32", body, lambda x: x))
    body = "tl.atomic_cas(out + r * N + c, tl.zeros_like(v), v)"
    cases += [tile_case(f"atomic_cas-{kind}", kind, body, lambda x: x) for kind in ("i32", "i64")]
    return cases


def _memory() -> list[Case]:
    cases: list[Case] = []
    for modifier in ("", ".ca", ".cg", ".cv"):
        for policy in ("", "evict_first", "evict_last") if not modifier else ("",):
            options = f"cache_modifier='{modifier}', eviction_policy='{policy}'"
            body = f"w = tl.load(x + r * N + c, {options})\n" + TILE_STORE.format("w")
            cases.append(tile_case(f"load{modifier}-{policy}", "fp32", body, lambda x: x))
    for modifier in ("", ".wb", ".cg", ".cs", ".wt"):
        for kind in ("fp32", "i8", "fp16", "i64"):
            body = f"tl.store(out + r * N + c, v, cache_modifier='{modifier}')"
            cases.append(tile_case(f"store{modifier}-{kind}", kind, body, lambda x: x))
    body = "w = tl.load(x + r * N + c, volatile=True)\n" + TILE_STORE.format("w")
    cases.append(tile_case("load-volatile", "fp32", body, lambda x: x))
    for kind in ("i8", "i16", "fp16", "fp32", "i64"):
        body = "w = tl.load(x + r * N + c, mask=c < 41, other=3)\ntl.store(out + r * N + c, w, mask=c < 57)"

        def masked(x: Any) -> Any:
            wide = np.where(np.arange(x.shape[1]) < 41, x, 3)
            return np.where(np.arange(x.shape[1]) < 57, wide, 0)

        cases.append(tile_case(f"masked-{kind}", kind, body, masked))
    return cases


def _control() -> list[Case]:
    loop = (
        "a = tl.zeros((M, N), tl.float32)\nfor k in tl.range(0, 4, num_stages={}):\n"
        "    a += tl.load(x + r * N + (c + k) % N)\n" + TILE_STORE.format("a")
    )

    def rolled(x: Any) -> Any:
        return sum(np.roll(x, -k, axis=1) for k in range(4))

    cases = [
        tile_case(f"loop-stages{stages}-sm{arch}", "fp32", loop.format(stages), rolled, arch=arch)
        for stages in (1, 3)
        for arch in (80, 90)
    ]
    body = (
        "t = tl.sum(tl.sum(v, 1), 0) * 0 + 5\nwhile t > 2:\n    v += t\n    t -= 1\n"
        + TILE_STORE.format("v")
    )
    cases.append(tile_case("while", "i32", body, lambda x: x + 12))
    body = (
        "if tl.sum(tl.sum(v, 1), 0) > -(1 << 30):\n    v = v * 2\nelse:\n    v = v - 1\n"
        + TILE_STORE.format("v")
    )
    cases.append(tile_case("if", "i32", body, lambda x: x * 2))
    body = "p = tl.program_id(0) + tl.num_programs(0) * tl.program_id(1)\ntl.atomic_add(out + r * N + c, v * 0 + p)"
    cases.append(tile_case("programs", "i32", body, lambda x: x * 0 + 15, grid=(3, 2)))
    asm = (
        "w = tl.inline_asm_elementwise('shf.l.wrap.b32 $0, $1, $1, 7;', '=r,r', [v], "
        "dtype=tl.int32, is_pure=True, pack=1)\n" + TILE_STORE.format("w")
    )

    def rotated(x: Any) -> Any:
        bits = x.astype(np.uint32)
        return ((bits << np.uint32(7)) | (bits >> np.uint32(25))).view(np.int32)

    cases.append(tile_case("assembly", "i32", asm, rotated))
    for bins in (16, 64, 256):
        body = f"h = tl.histogram(tl.reshape(tl.abs(v), (M * N,)), {bins})\ntl.store(out + tl.arange(0, {bins}), h)"
        cases.append(
            tile_case(f"histogram-{bins}", "i32", body,
                       lambda x, b=bins: np.histogram(np.abs(x), b, (0, b))[0]
                       if b > 60 else np.histogram(np.abs(x)[np.abs(x) < b], b, (0, b))[0])
        )  # fmt: skip
    described = (
        "d = tl.make_tensor_descriptor(x, [M, N], [N, 1], [M, N])\n"
        "o = tl.make_tensor_descriptor(out, [M, N], [N, 1], [M, N])\n"
        "o.store([0, 0], d.load([0, 0]) + 1)"
    )
    cases += [
        tile_case(f"descriptor-{k}", k, described, lambda x: x + 1) for k in ("fp32", "fp16", "i8")
    ]
    return cases


TILES = [*_reductions(), *_scans(), *_moves(), *_dots(), *_atomics(), *_memory(), *_control()]
