"""What functions of the language compute, run on tile IR against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aotc.verify.interpreter import run
from tests.frontend.conftest import Sources

DTYPES = {
    "i8": np.int8,
    "i32": np.int32,
    "u8": np.uint8,
    "u32": np.uint32,
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp32": np.float32,
    "fp64": np.float64,
}
RNG = np.random.default_rng(7)
X = RNG.standard_normal((4, 8)).astype(np.float32)
I = RNG.integers(-9, 9, (4, 8)).astype(np.int32)  # noqa: E741 - for integers


def evaluate(
    sources: Sources,
    expression: str,
    x: np.ndarray,
    out_type: str,
    shape: tuple[int, ...],
    prelude: str = "",
) -> np.ndarray:
    """Run `expression` of the (4, 8) tile `x`; return the result, of `shape`."""
    names = {np.dtype(value): name for name, value in DTYPES.items()}
    index = " + ".join(
        f"tl.arange(0, {extent}){_axis(axis, len(shape))} * {int(np.prod(shape[axis + 1 :]))}"
        for axis, extent in enumerate(shape)
    )
    text = f"""
{prelude}
@triton.jit
def k(x_ptr, out):
    x = tl.load(x_ptr + tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)[None, :])
    r = {expression}
    tl.store(out + ({index or "0"}), r)
"""
    signature = {"x_ptr": f"*{names[x.dtype]}", "out": f"*{out_type}"}
    made = sources.translate(text, signature)
    result = np.zeros(shape, DTYPES[out_type])
    run(made.kernel, (1,), [np.ascontiguousarray(x).reshape(-1).copy(), flat := result.reshape(-1)])
    return flat.reshape(shape)


def _axis(axis: int, rank: int) -> str:
    if rank == 1:
        return ""
    return "[" + ", ".join(":" if one == axis else "None" for one in range(rank)) + "]"


SHAPES = [
    ("tl.trans(x)", X.T),
    ("x.T", X.T),
    ("x.reshape(8, 4)", X.reshape(8, 4)),
    ("tl.ravel(x)", X.reshape(-1)),
    ("tl.view(x, (2, 16))", X.reshape(2, 16)),
    ("x.reshape(2, 2, 8).permute(2, 0, 1)", X.reshape(2, 2, 8).transpose(2, 0, 1)),
    ("tl.trans(x.reshape(2, 2, 8), 1, 0, 2)", X.reshape(2, 2, 8).transpose(1, 0, 2)),
    ("tl.join(x, x * 2)", np.stack([X, X * 2], -1)),
    ("tl.split(x.reshape(4, 4, 2))[1]", X.reshape(4, 4, 2)[..., 1]),
    ("tl.interleave(x, -x)", np.stack([X, -X], -1).reshape(4, 16)),
    ("tl.cat(x, -x)", np.concatenate([X, -X], 0)),
    ("tl.cat(x, -x, dim=1)", np.concatenate([X, -X], 1)),
    ("tl.cat(x, -x, can_reorder=True, dim=-1)", np.concatenate([X, -X], 1)),
    ("tl.flip(x)", X[:, ::-1]),
    ("tl.flip(x, 0)", X[::-1]),
    ("tl.expand_dims(x, (0, 3))", X[None, :, :, None]),
    ("x[:, None, :]", X[:, None, :]),
    ("tl.broadcast_to(x[:, None, :], 4, 2, 8)", np.broadcast_to(X[:, None], (4, 2, 8))),
    ("tl.broadcast_to(3.5, (4, 2))", np.full((4, 2), 3.5)),
    ("tl.zeros_like(x) + tl.full((8,), 2, tl.float32)", np.full((4, 8), 2.0)),
    ("tl.squeeze(x[None], 0)", X),
    ("tl.unsqueeze(x, -1)", X[..., None]),
    ("tl.sum(x, 1)[:, None] + x", X.sum(1, keepdims=True) + X),
]


@pytest.mark.parametrize(("expression", "expected"), SHAPES, ids=[one for one, _ in SHAPES])
def test_shapes(sources: Sources, expression: str, expected: np.ndarray) -> None:
    got = evaluate(sources, expression, X, "fp32", expected.shape)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    power = np.exp(x - x.max(axis, keepdims=True))
    return power / power.sum(axis, keepdims=True)


REDUCTIONS = [
    ("tl.sum(x, 0)", X, X.sum(0)),
    ("tl.sum(x, 1, keep_dims=True)", X, X.sum(1, keepdims=True)),
    ("tl.sum(x)", X, X.sum()),
    ("tl.sum(x, keep_dims=True)", X, X.sum(keepdims=True)),
    ("tl.max(x, -1)", X, X.max(1)),
    ("tl.min(x, 0)", I, I.min(0)),
    ("x.max()", X, X.max()),
    ("tl.argmax(x, 1)", X, X.argmax(1)),
    ("tl.argmin(x, axis=0)", X, X.argmin(0)),
    ("tl.argmax(x * 0, 1)", I, np.zeros(4)),
    ("tl.argmax(x, 1, keep_dims=True)", X, X.argmax(1)[:, None]),
    ("tl.argmax(x, None)", X, X.argmax()),
    ("tl.max(x, 1, return_indices=True)[1]", X, X.argmax(1)),
    ("tl.min(x, 1, return_indices=True)[0]", X, X.min(1)),
    ("tl.xor_sum(x, 0)", I, np.bitwise_xor.reduce(I, 0)),
    ("tl.reduce_or(x, 1)", I, np.bitwise_or.reduce(I, 1)),
    ("tl.sum(x, 1)", I.astype(np.int8), I.sum(1)),
    ("tl.sum(x > 0, 1)", I, (I > 0).sum(1)),
    ("tl.reduce(x, 1, larger)", X, X.max(1)),
    ("tl.reduce(x, None, larger)", X, X.max()),
    ("tl.reduce((x, -x), 0, both)[1]", X, (-X).max(0)),
    ("tl.cumsum(x, 1)", I, I.cumsum(1)),
    ("tl.cumsum(x, 0)", I.astype(np.int8), I.cumsum(0)),
    ("tl.cumsum(x, 1, reverse=True)", I, I[:, ::-1].cumsum(1)[:, ::-1]),
    ("tl.cumprod(x, 0)", X, X.cumprod(0)),
    ("tl.associative_scan(x, 1, larger)", X, np.maximum.accumulate(X, 1)),
    ("tl.associative_scan((x, x), 0, both)[0]", X, np.minimum.accumulate(X, 0)),
    ("tl.associative_scan(x, 0, larger, reverse=True)", X, np.maximum.accumulate(X[::-1], 0)[::-1]),
    ("tl.softmax(x)", X, softmax(X, 0)),
    ("tl.softmax(x, 1, ieee_rounding=True)", X, softmax(X, 1)),
]
COMBINES = """
@triton.jit
def larger(a, b):
    return tl.maximum(a, b)

@triton.jit
def both(a, b, c, d):
    return tl.minimum(a, c), tl.where(b > d, b, d)
"""


@pytest.mark.parametrize(
    ("expression", "x", "expected"),
    REDUCTIONS,
    ids=[f"{one}-{index}" for index, (one, _, _) in enumerate(REDUCTIONS)],
)
def test_reductions_and_scans(
    sources: Sources, expression: str, x: np.ndarray, expected: np.ndarray
) -> None:
    out_type = "fp64" if x.dtype.kind == "f" else "i32"
    shape = np.shape(expected)
    got = evaluate(sources, expression, x, out_type, shape, COMBINES)
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-6)


POSITIVE = np.abs(X) + 0.25
ELEMENTWISE = [
    ("tl.exp(x)", X, np.exp(X)),
    ("tl.exp2(x)", X, np.exp2(X)),
    ("tl.log(x)", POSITIVE, np.log(POSITIVE)),
    ("tl.math.log2(x)", POSITIVE, np.log2(POSITIVE)),
    ("tl.sqrt(x) + tl.sqrt_rn(x)", POSITIVE, 2 * np.sqrt(POSITIVE)),
    ("x.rsqrt()", POSITIVE, 1 / np.sqrt(POSITIVE)),
    ("tl.sin(x) * tl.cos(x)", X, np.sin(X) * np.cos(X)),
    ("tl.abs(x)", X, np.abs(X)),
    ("tl.floor(x) + 2 * tl.ceil(x)", X, np.floor(X) + 2 * np.ceil(X)),
    ("tl.sigmoid(x)", X, 1 / (1 + np.exp(-X))),
    ("tl.clamp(x, -0.5, 0.5)", X, np.clip(X, -0.5, 0.5)),
    ("tl.minimum(x, 0) + tl.maximum(0.25, x)", X, np.minimum(X, 0) + np.maximum(X, 0.25)),
    ("min(x, 0.5, 0.25)", X, np.minimum(X, 0.25)),
    ("tl.fma(x, x, 1.0)", X, X * X + 1),
    ("tl.div_rn(1.0, x) + tl.fdiv(x, 2)", POSITIVE, 1 / POSITIVE + POSITIVE / 2),
    ("tl.where(x > 0, x, -1.0)", X, np.where(X > 0, X, -1)),
    ("tl.where(x > 0, 1, 0).to(tl.float32)", X, (X > 0)),
    ("x // 3", I, np.trunc(I / 3)),
    ("x % 3", I, np.fmod(I, 3)),
    ("x / 3", I, I / 3),
    ("x >> 1", I, I >> 1),
    ("x.to(tl.uint32) >> 1", I, I.astype(np.uint32) >> 1),
    ("(x << 2) ^ (x & 3) | 8", I, (I << 2) ^ (I & 3) | 8),
    ("~x", I, ~I),
    ("-x", I, -I),
    ("tl.cdiv(x.to(tl.uint32) & 15, 4)", I, ((I & 15) + 3) // 4),
    (
        "tl.umulhi(x.to(tl.uint32), 3000000000)",
        I,
        (I.astype(np.uint32).astype(np.uint64) * 3000000000) >> 32,
    ),
    ("x.to(tl.float32).to(tl.int32, bitcast=True)", I, I.astype(np.float32).view(np.int32)),
    ("x.to(tl.float16)", X, X.astype(np.float16)),
    ("x.to(tl.float8e5).to(tl.float32)", X, X.astype(ml_dtypes.float8_e5m2).astype(np.float32)),
    ("(x * 3).to(tl.int8)", X, np.trunc(X * 3)),
    ("x.to(tl.int1)", I, I != 0),
    ("(x > 0) & (x < 1)", X, (X > 0) & (X < 1)),
    ("not (tl.sum(x) > 1e9)", X, True),
    ("tl.extra.libdevice.tanh(x)", X, np.tanh(X)),
    ("0 < x.to(tl.int32) + 1", X, np.trunc(X) + 1 > 0),
]


@pytest.mark.parametrize(
    ("expression", "x", "expected"), ELEMENTWISE, ids=[one for one, _, _ in ELEMENTWISE]
)
def test_elementwise(
    sources: Sources, expression: str, x: np.ndarray, expected: np.ndarray
) -> None:
    got = evaluate(sources, expression, x, "fp64", np.shape(expected))
    np.testing.assert_allclose(got, np.asarray(expected, np.float64), rtol=3e-6, atol=1e-6)


def test_rounding_towards_zero(sources: Sources) -> None:
    near = evaluate(sources, "x.to(tl.bfloat16)", X, "fp32", (4, 8))
    down = evaluate(sources, "x.to(tl.bfloat16, fp_downcast_rounding='rtz')", X, "fp32", (4, 8))
    np.testing.assert_array_equal(near, X.astype(ml_dtypes.bfloat16).astype(np.float32))
    assert (np.abs(down) <= np.abs(X)).all()
    assert (near != down).any()


def test_nan(sources: Sources) -> None:
    x = X.copy()
    x[0, 0] = np.nan
    kept = evaluate(
        sources, "tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)", x, "fp32", (4, 8)
    )
    dropped = evaluate(sources, "tl.maximum(x, 0.0)", x, "fp32", (4, 8))
    assert np.isnan(kept[0, 0])
    assert dropped[0, 0] == 0
    assert evaluate(sources, "tl.extra.libdevice.isnan(x)", x, "i32", (4, 8)).sum() == 1


# ---- memory -----------------------------------------------------------------------------------


def test_masked_load_and_store(sources: Sources) -> None:
    made = sources.translate(
        """
        @triton.jit
        def k(x, out, n, BLOCK: tl.constexpr):
            offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            value = tl.load(x + offs, mask=offs < n, other=-1, cache_modifier=".cg", volatile=True)
            tl.store(out + offs, value * 2, mask=offs < n + 2, eviction_policy="evict_first")
        """,
        {"x": "*fp16", "out": "*fp32", "n": "i32"},
        {"BLOCK": 8},
    )
    x = np.arange(11, dtype=np.float16)
    out = np.zeros(16, np.float32)
    run(made.kernel, (2,), [x, out, 11])
    np.testing.assert_array_equal(out, [*(2.0 * x), -2, -2, 0, 0, 0])


def test_truth_values_in_memory(sources: Sources) -> None:
    made = sources.translate(
        """
        @triton.jit
        def k(flags, out, n):
            offs = tl.arange(0, 8)
            flag = tl.load(flags + offs, mask=offs < n, other=True)
            tl.store(out + offs, flag)
            tl.store(flags + offs, 3 * (offs % 2))
        """,
        {"flags": "*i1", "out": "*i32", "n": "i32"},
    )
    flags = np.array([0, 1, 0, 1, 0, 0, 0, 0], np.int8).view(np.bool_)
    out = np.zeros(8, np.int32)
    run(made.kernel, (1,), [flags, out, 6])
    assert out.tolist() == [0, 1, 0, 1, 0, 0, 1, 1]
    assert flags.view(np.int8).tolist() == [0, 1] * 4


def test_scalar_memory(sources: Sources) -> None:
    made = sources.translate(
        """
        @triton.jit
        def k(x, out, n):
            i = tl.program_id(0)
            value = tl.load(x + i, mask=i < n, other=7)
            tl.store(out + i, value + tl.num_programs(0))
        """,
        {"x": "*i32", "out": "*i64", "n": "i32"},
    )
    out = np.zeros(3, np.int64)
    run(made.kernel, (3,), [np.array([5, 6], np.int32), out, 2])
    assert out.tolist() == [8, 9, 10]


def test_pointer_tricks(sources: Sources) -> None:
    made = sources.translate(
        """
        @triton.jit
        def k(x, out):
            address = x.to(tl.int64) + 4
            again = address.to(tl.pointer_type(tl.int32))
            tl.store(out, tl.load(again))
            ahead = tl.load(x.to(tl.pointer_type(tl.uint8), bitcast=True) + 8)
            tl.store(out + 1, ahead)
        """,
        {"x": "*i32", "out": "*i32"},
    )
    out = np.zeros(2, np.int32)
    run(made.kernel, (1,), [np.array([1, 20, 300], np.int32), out])
    assert out.tolist() == [20, 300 % 256]
