"""Functions: elementwise ones, reductions, scans, shapes, sorting, dots, memory, control flow."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.oracle.cases import Case, scalar, tile
from tests.oracle.values import (
    FP8,
    INTEGERS,
    NUMPY,
    TYPES,
    WIDE,
    Array,
    is_float,
    large,
    plain,
    special,
)

# ---- elementwise ------------------------------------------------------------------------------

_ROUNDED = ("floor", "ceil", "sqrt", "sqrt_rn")
_APPROXIMATE = ("exp", "exp2", "log", "log2", "cos", "sin", "rsqrt", "erf", "sigmoid")


def _elementwise() -> Iterator[Case]:
    for name in TYPES:
        for function in (*_ROUNDED, *_APPROXIMATE):
            values = special(name)
            if function in ("cos", "sin"):
                values = plain(name, 16)
            steps = 0.0 if function in _ROUNDED else 8.0
            body = f"r = tl.{function}(a)"
            yield Case(f"function/{function},{name}", body, (tile(name, values),), steps=steps)
        pair = (tile(name, np.tile(special(name), 4)), tile(name, np.repeat(special(name), 4)))
        for function in ("fdiv", "div_rn", "umulhi"):
            yield Case(f"function/{function},{name}", f"r = tl.{function}(a, b)", pair)
        body = "r = tl.fdiv(a, b, ieee_rounding=True)"
        yield Case(f"function/fdiv ieee,{name}", body, pair)
        triple = (*pair, tile(name, np.roll(np.tile(special(name), 4), 5)))
        yield Case(f"function/fma,{name}", "r = tl.fma(a, b, c)", triple)
        yield Case(f"clamp/{name}", "r = tl.clamp(a, b, c)", triple)
        for how in ("NONE", "ALL"):
            body = f"r = tl.clamp(a, b, c, propagate_nan=tl.PropagateNan.{how})"
            yield Case(f"clamp/{name},{how}", body, triple)
        yield Case(f"clamp/{name},literals", "r = tl.clamp(a, 1, 3)", triple[:1])
        yield Case(f"clamp/{name},floats", "r = tl.clamp(a, 0.5, 3.0)", triple[:1])
        small = np.resize(np.arange(1, 17), 16).astype(NUMPY[name])
        tiles = (tile(name, plain(name, 16)), tile(name, small))
        yield Case(f"function/cdiv,{name}", "r = tl.cdiv(a, b)", tiles)
    for first, second, third in (
        ("int8", "int32", "float16"),
        ("bfloat16", "float16", "int32"),
        ("bfloat16", "bfloat16", "float32"),
        ("uint32", "int32", "int64"),
        ("int64", "uint64", "int8"),
    ):
        mixed = tuple(
            tile(name, plain(name, 16, seed)) for seed, name in enumerate((first, second, third))
        )
        name = f"{first},{second},{third}"
        yield Case(f"mixed/clamp,{name}", "r = tl.clamp(a, b, c)", mixed)
        yield Case(f"mixed/fma,{name}", "r = tl.fma(a, b, c)", mixed)
        yield Case(f"mixed/where,{name}", "r = tl.where(a != 0, b, c)", mixed)
        yield Case(f"mixed/where condition,{name}", "r = tl.where(a, b, c)", mixed)
    for first, second in (("float16", "float32"), ("bfloat16", "float32"), ("int32", "uint64")):
        pair = (tile(first, plain(first, 16)), tile(second, plain(second, 16, 1)))
        yield Case(f"mixed/fma literal,{first},{second}", "r = tl.fma(a, b, 0.1)", pair)
        yield Case(f"mixed/clamp literal,{first},{second}", "r = tl.clamp(a, b, 3)", pair)
        yield Case(f"mixed/clamp first,{first},{second}", "r = tl.clamp(2, a, b)", pair)


# ---- reductions and scans ---------------------------------------------------------------------

_COMBINES = """@triton.jit
def affine(m, x, n, y):
    return n * m, n * x + y


@triton.jit
def last(x, y):
    return y


@triton.jit
def most(x, i, y, j):
    keep = (x > y) | ((x == y) & (i > j))
    return tl.where(keep, x, y), tl.where(keep, i, j)


"""


def _distinct(name: str, count: int) -> Array:
    """Return distinct numbers, shuffled."""
    values = np.random.default_rng(count).permutation(count)
    offset = 0 if name.startswith("uint") or name in FP8 else count // 2
    return (values - offset).astype(np.float32 if is_float(name) else np.int64).astype(NUMPY[name])


def _numbers(name: str) -> Array:
    """Return 32 special values without NaN, such as the extremes of a type and both zeros."""
    values = special(name)
    return np.resize(values[~np.isnan(values.astype(np.float64))], 32)


def _reductions() -> Iterator[Case]:
    for name in TYPES:
        sums = tile(name, plain(name, 32), 4, 8)
        if name in INTEGERS:
            sums = tile(name, large(name, 32), 4, 8)
        orders, ties = tile(name, _numbers(name), 4, 8), tile(name, plain(name, 32), 4, 8)
        for axis in ("None", "0", "1", "-1"):
            if name not in FP8:  # sums of fp8 depend on their order
                yield Case(f"reduce/sum,{name},{axis}", f"r = tl.sum(a, {axis})", (sums,))
            body = f"r = tl.max(a, {axis})\ns = tl.min(a, {axis})"
            yield Case(f"reduce/extremes,{name},{axis}", body, (orders,), 2)
            body = f"r = tl.xor_sum(a, {axis})\ns = tl.reduce_or(a, {axis})"
            yield Case(f"reduce/bits,{name},{axis}", body, (sums,), 2)
            if axis == "None":
                continue
            body = f"r = tl.argmax(a, {axis})\ns = tl.argmin(a, {axis})"
            yield Case(f"reduce/places,{name},{axis}", body, (ties,), 2)
            for function in ("max", "min"):
                body = f"r, s = tl.{function}(a, {axis}, return_indices=True)"
                yield Case(f"reduce/{function} indices,{name},{axis}", body, (ties,), 2)
                body = (
                    f"r, s = tl.{function}(a, {axis}, return_indices=True,"
                    " return_indices_tie_break_left=False, keep_dims=True)"
                )
                distinct = tile(name, _distinct(name, 8), 1, 8)
                if name != "int1":
                    where = f"reduce/{function} fast,{name},{axis}"
                    if axis != "0":
                        yield Case(where, body, (distinct,), 2)
        for body in ("r = tl.min(a, 1, keep_dims=True)", "r = tl.max(a, None, keep_dims=True)"):
            yield Case(f"reduce/{body[7:10]} keeps,{name}", body, (orders,))
        for dtype in ("int64", "float32", "int16", "uint32"):
            counts = tile(name, np.abs(ties.values), 4, 8)  # a float below 0 is no uint32
            body = f"r = tl.sum(a, 1, dtype=tl.{dtype})"
            yield Case(f"reduce/sum to {dtype},{name}", body, (counts,))
            body = f"r = tl.cumsum(a, 1, dtype=tl.{dtype})"
            yield Case(f"scan/cumsum to {dtype},{name}", body, (counts,))
        yield Case(
            f"scan/last,{name}", "r = tl.associative_scan(a, 1, last)", (sums,), 1, _COMBINES
        )
        yield Case(f"reduce/last,{name}", "r = tl.reduce(a, 1, last)", (sums,), 1, _COMBINES)
        pair = (tile(name, plain(name, 8)), tile(name, plain(name, 8, 1)))
        for function in ("reduce", "associative_scan"):
            body = f"r, s = tl.{function}((a, tl.arange(0, 8)), 0, most)"
            yield Case(f"combine/{function} most,{name}", body, pair[:1], 2, _COMBINES)
        if name in FP8:
            continue
        # A reduction may exchange operands, a scan may not.
        body = "r, s = tl.associative_scan((a, b), 0, affine)"
        yield Case(f"combine/affine,{name}", body, pair, 2, _COMBINES)
        for arguments in ("0", "1", "-1", "1, reverse=True"):
            yield Case(f"scan/cumsum,{name},{arguments}", f"r = tl.cumsum(a, {arguments})", (sums,))
        factors = tile(name, plain(name, 8), 8)
        yield Case(f"scan/cumprod,{name}", "r = tl.cumprod(a, 0)", (factors,))
        yield Case(f"scan/cumprod back,{name}", "r = tl.cumprod(a, 0, reverse=True)", (factors,))
    for name in ("float16", "bfloat16", *WIDE):
        values = tile(name, plain(name, 32), 4, 8)
        yield Case(f"softmax/{name}", "r = tl.softmax(a, 1)", (values,), steps=16.0)
        yield Case(f"softmax/{name},0", "r = tl.softmax(a)", (values,), steps=16.0)


# ---- shapes, sorting, places ------------------------------------------------------------------

_SHAPES = {
    "trans": "r = tl.trans(a)",
    "permute": "r = tl.permute(tl.reshape(a, [2, 4, 4]), 2, 0, 1)",
    "permute method": "r = a.reshape(2, 4, 4).permute((1, 2, 0))",
    "T": "r = a.T",
    "ravel": "r = tl.ravel(a)",
    "view": "r = a.view(8, 4)",
    "expand": "r = tl.expand_dims(a, 1)\ns = a[:, None, :]\nt = a[None, :, :, None]",
    "expand last": "r = tl.expand_dims(a, -1)\ns = tl.expand_dims(a, (0, 2))",
    "squeeze": "r = tl.squeeze(a[:, None, :], 1)\ns = tl.unsqueeze(a, -1)",
    "broadcast": "r = tl.broadcast_to(a[:, None, :], (4, 2, 8))",
    "broadcast pair": "r, s = tl.broadcast(a[:, None, :], tl.zeros((1, 4, 1), tl.int32))",
    "join": "r = tl.join(a, tl.flip(a))",
    "split": "r, s = tl.split(tl.reshape(a, [4, 4, 2]))",
    "interleave": "r = tl.interleave(a, tl.flip(a))",
    "cat": "r = tl.cat(tl.ravel(a), tl.ravel(tl.flip(a)), can_reorder=True)",
    "flip": "r = tl.flip(a)\ns = tl.flip(a, 0)\nt = tl.flip(a, -1)",
    "sort": "r = tl.sort(a)\ns = tl.sort(a, descending=True)",
    "topk": "r = tl.topk(a, 2)\ns = tl.topk(a, 8)\nt = tl.topk(a, 4, descending=False)",
    "topk one": "r = tl.topk(a, 1)",
    "gather": "r = tl.gather(a, tl.arange(0, 32).reshape(4, 8) % 4, 0)",
    "gather last": "r = tl.gather(a, 7 - tl.arange(0, 32).reshape(4, 8) % 8, 1)",
    "full": "r = tl.full((2, 4), 3, a.dtype)\ns = tl.zeros_like(a)\nt = tl.zeros([4], a.dtype)",
    "full fraction": "r = tl.full((4,), 2.5, a.dtype)",
    "full minus": "r = tl.full((4,), -1, a.dtype)",
}


def _shapes() -> Iterator[Case]:
    for name in TYPES:
        for label, body in _SHAPES.items():
            values = tile(name, _numbers(name), 4, 8)
            if label.startswith(("sort", "topk")):
                # Triton sorts -0 and 0 as equal, in unspecified order.
                values = tile(
                    name, np.where(values.values == 0, 1, values.values).reshape(-1), 4, 8
                )
                values = tile(name, values.values.astype(NUMPY[name]), 4, 8)
            count = sum(f"{result} =" in body or f"{result}, " in body for result in "rst")
            if "r, s =" in body:
                count = 2
            yield Case(f"shape/{label},{name}", body, (values,), count)
        numbers = np.concatenate([np.sort(plain(name, 8)), np.sort(plain(name, 8, 1))[::-1]])
        for order in ("", ", descending=True"):
            body = f"r = tl.bitonic_merge(a{order})"
            yield Case(f"shape/bitonic{order},{name}", body, (tile(name, numbers),))
        counted = (tile(name, np.abs(plain(name, 32)), 32), tile("int1", plain("int1", 32)))
        yield Case(f"histogram/{name}", "r = tl.histogram(a, 4)", counted[:1])
        yield Case(f"histogram/mask,{name}", "r = tl.histogram(a, 8, mask=b)", counted)
    indices = tile("int32", np.arange(8, dtype=np.int32)[::-1].copy())
    for name in ("int8", "int32", "int64", "uint8"):
        inputs = (tile("float32", plain("float32", 8)), tile(name, indices.values.astype(name)))
        yield Case(f"gather/{name}", "r = tl.gather(a, b, 0)", inputs)
    pair = (tile("int32", np.arange(16, dtype=np.int32)), tile("int32", plain("int32", 16)))
    body = "r, s = tl.swizzle2d(a // 4, a % 4, 4, 4, 2)"
    yield Case("function/swizzle2d", body, pair[:1], 2)
    yield Case("shape/arange", "r = tl.arange(4, 8)\ns = tl.arange(0, 4) * 2 + a[:4]", pair, 2)
    yield Case("shape/different", "r = a[:, None] + b[None, :]", pair)


# ---- dots ----------------------------------------------------------------------------------------


def _dots() -> Iterator[Case]:
    for name in TYPES:
        left, right = tile(name, plain(name, 256), 16, 16), tile(name, plain(name, 256, 1), 16, 16)
        yield Case(f"dot/{name}", "r = tl.dot(a, b)", (left, right))
        for out in ("float16", "float32", "int32" if name == "int8" else "bfloat16"):
            body = f"r = tl.dot(a, b, out_dtype=tl.{out})"
            yield Case(f"dot/{name} to {out}", body, (left, right))
            acc = tile(out, plain(out, 256, 2), 16, 16)
            body = "r = tl.dot(a, b, c)"
            yield Case(f"dot/{name} on {out}", body, (left, right, acc))
            body = f"r = tl.dot(a, b, acc=c, out_dtype=tl.{out})"
            yield Case(f"dot/{name} on {out}, said", body, (left, right, acc))
    left = tile("float16", plain("float16", 512), 2, 16, 16)
    right = tile("float16", plain("float16", 512, 1), 2, 16, 16)
    yield Case("dot/batch", "r = tl.dot(a, b)", (left, right))
    for left_format, right_format in (
        ("float16", "bfloat16"),
        ("float8e4nv", "float8e5"),
        ("int8", "uint8"),
    ):
        pair = (
            tile(left_format, plain(left_format, 256), 16, 16),
            tile(right_format, plain(right_format, 256, 1), 16, 16),
        )
        yield Case(f"dot/{left_format},{right_format}", "r = tl.dot(a, b)", pair)
    half = (
        tile("float32", plain("float32", 256), 16, 16),
        tile("float32", plain("float32", 256, 1), 16, 16),
    )
    for precision in ("ieee", "tf32", "tf32x3"):
        yield Case(f"dot/{precision}", f'r = tl.dot(a, b, input_precision="{precision}")', half)


# ---- memory -----------------------------------------------------------------------------------

_ATOMICS = ("add", "max", "min", "and", "or", "xor", "xchg")


def _memory() -> Iterator[Case]:
    for name in TYPES:
        values = tile(name, special(name))
        index = "tl.arange(0, 16)"
        for text in ("0", "-1", "1.5", *(['float("inf")'] if is_float(name) else ["True"])):
            if text == "-1" and name.startswith("uint"):
                continue
            body = f"r = tl.load(a_ptr + {index}, mask={index} < 9, other={text})"
            yield Case(f"load/{name},other {text}", body, (values,))
        for kind in ("int32", "float32", "bfloat16"):
            other = tile(kind, np.abs(plain(kind, 16)))
            body = f"r = tl.load(a_ptr + {index}, mask={index} < 9, other=b)"
            yield Case(f"load/{name},other {kind}", body, (values, other))
        for kind in TYPES:
            # A store casts its value to the pointee.
            stored = tile(kind, np.abs(plain(kind, 16)) if kind != "int1" else plain(kind, 16))
            body = f"tl.store(a_ptr + {index}, b)\nr = tl.load(a_ptr + {index})"
            yield Case(f"store/{name},{kind}", body, (values, stored))
        body = f"tl.store(a_ptr + {index}, 3)\nr = tl.load(a_ptr + {index})"
        yield Case(f"store/{name},literal", body, (values,))
        for kind in _ATOMICS:
            operand = tile(name, plain(name, 16))
            body = f"r = tl.atomic_{kind}(a_ptr + {index}, b, mask={index} >= 0)\n"
            body += f"s = tl.load(a_ptr + {index})"
            numbers = plain(name, 16, 3) if kind == "add" else _numbers(name)[:16]
            yield Case(f"atomic/{kind},{name}", body, (tile(name, numbers), operand), 2)
        body = f"r = tl.atomic_cas(a_ptr + {index}, b, a)\ns = tl.load(a_ptr + {index})"
        pair = (tile(name, plain(name, 16)), tile(name, plain(name, 16, 1)))
        yield Case(f"atomic/cas,{name}", body, pair, 2)


# ---- control flow -----------------------------------------------------------------------------

_CONTROL = {
    "decay": "x = 3\nr = a + x",
    "decay float": "x = 0.5\nr = a * x",
    "constexpr": "x: tl.constexpr = 3\nr = a + x",
    "constexpr float": "x: tl.constexpr = 0.5\nr = a * x",
    "loop": "r = a + tl.full((1,), 0, tl.int32)\nfor i in range(3):\n    r += i\n",
    "loop back": "r = a * 1.0\nfor i in range(6, 0, -2):\n    r = r - i.to(r.dtype)\n",
    "static loop": "r = a\nfor i in tl.static_range(3):\n    r = r + i\n",
    "index": "r = 3 + (a + tl.program_id(0))\nfor i in range(3):\n    r = i + a\n",
    "while": "n = 0\nr = a + 0\nwhile n < 3:\n    r = r + 2\n    n += 1\n",
    "branch": "if b > 0:\n    r = a\nelse:\n    r = -a\n",
    "conditional": "r = a if b > 0 else -a",
    "chain": "r = tl.where((0 < a) & (a <= 3), a, -a)",
    "python max": "r = max(a, -a)\ns = min(a, 1)",
    "augmented": "r = a\nr += 1\nr *= 2\nr -= a\n",
    "min of constants": "r = a + max(2, 5) - min(7, 3)",
    "floor of constants": "r = a + (-7 // 2) + (-7 % 3)",
    "scalar chain": "r = b + b * 2 - 1",
    "scalar compare": "r = (b > 0) & (b < 3)",
}


def _control() -> Iterator[Case]:
    for name in ("int8", "int32", "uint8", "uint32", "int64", "float16", "bfloat16", "float32"):
        inputs = (tile(name, plain(name, 16)), scalar(name, plain(name, 2, 5)))
        for label, body in _CONTROL.items():
            count = 2 if "\ns =" in body else 1
            yield Case(f"control/{label},{name}", body, inputs, count)


# ---- random numbers, scaled dots --------------------------------------------------------------


def _others() -> Iterator[Case]:
    operands = (
        tile("int32", np.arange(16, dtype=np.int32) * 7919),
        scalar("int32", np.array([42], np.int32)),
    )
    wide = (tile("int64", np.arange(16, dtype=np.int64) << 33), scalar("int64", np.array([42])))
    for label, inputs in (("", operands), (" wide", wide)):
        yield Case(f"random/rand{label}", "r = tl.rand(b, a)\ns = tl.randint(b, a)", inputs, 2)
        yield Case(f"random/randn{label}", "r = tl.randn(b, a)", inputs, steps=64.0)
        yield Case(f"random/four{label}", "r, s, t, u = tl.randint4x(b, a)", inputs, 4)
        yield Case(f"random/rand4x{label}", "r, s, t, u = tl.rand4x(b, a)", inputs, 4)
    scales = tile("uint8", np.random.default_rng(3).integers(126, 129, 64).astype(np.uint8), 32, 2)
    formats = {"e4m3": "float8e4nv", "e5m2": "float8e5", "bf16": "bfloat16", "fp16": "float16"}
    for left, left_format in formats.items():
        for right, right_format in formats.items():
            a = tile(left_format, plain(left_format, 2048), 32, 64)
            b = tile(right_format, plain(right_format, 2048, 1), 64, 32)
            fp8 = [
                "tl.uint8, bitcast=True" if kind in FP8 else ""
                for kind in (left_format, right_format)
            ]
            x, y = (
                f"{name}.to({kind})" if kind else name for name, kind in zip("ab", fp8, strict=True)
            )
            body = f'r = tl.dot_scaled({x}, c, "{left}", {y}, c, "{right}")'
            yield Case(f"scaled/{left},{right}", body, (a, b, scales))
    packed = np.random.default_rng(4).integers(0, 256, 1024).astype(np.uint8)
    fp4 = (tile("uint8", packed, 32, 32), tile("uint8", packed, 32, 32), scales)
    yield Case("scaled/e2m1", 'r = tl.dot_scaled(a, c, "e2m1", b, c, "e2m1")', fp4)
    mixed = (
        tile("uint8", packed, 32, 32),
        tile("bfloat16", plain("bfloat16", 2048), 64, 32),
        scales,
    )
    yield Case("scaled/e2m1,bf16", 'r = tl.dot_scaled(a, c, "e2m1", b, None, "bf16")', mixed)


def functions() -> Iterator[Case]:
    """Yield the cases of functions."""
    yield from _others()
    yield from _elementwise()
    yield from _reductions()
    yield from _shapes()
    yield from _dots()
    yield from _memory()
    yield from _control()
