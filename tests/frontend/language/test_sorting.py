"""Sorting and the greatest elements, run on tile IR against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aotc.verify.interpreter.run import run
from tests.frontend.conftest import Sources

DTYPES: dict[str, type] = {
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp32": np.float32,
    "fp64": np.float64,
}
RNG = np.random.default_rng(11)


def of_expression(
    sources: Sources, expression: str, x: np.ndarray, shape: tuple[int, ...], out_type: str = ""
) -> np.ndarray:
    """Run `expression` of the tile `x` of two axes; return the result, of `shape`."""
    names = {np.dtype(value): name for name, value in DTYPES.items()}
    name = names[x.dtype]
    text = f"""
@triton.jit
def k(x_ptr, out):
    x = tl.load(x_ptr + tl.arange(0, {x.shape[0]})[:, None] * {x.shape[1]}
                + tl.arange(0, {x.shape[1]})[None, :])
    r = {expression}
    tl.store(out + tl.arange(0, {shape[0]})[:, None] * {shape[1]}
             + tl.arange(0, {shape[1]})[None, :], r)
"""
    translation = sources.translate(text, {"x_ptr": f"*{name}", "out": f"*{out_type or name}"})
    out = np.zeros(shape[0] * shape[1], DTYPES[out_type or name])
    run(translation.kernel, (1,), [x.reshape(-1).copy(), out])
    return out.reshape(shape)


def numbers(name: str, shape: tuple[int, int]) -> np.ndarray:
    """Return numbers of all magnitudes, some of them equal, with infinities."""
    kind = np.dtype(DTYPES[name])
    if kind.kind in "iu":
        info = np.iinfo(kind)
        x = RNG.integers(info.min, info.max, shape, kind, endpoint=True)
        x.flat[:: max(3, x.size // 7)] = info.min
        x.flat[1 :: max(3, x.size // 5)] = info.max
        return x
    with np.errstate(over="ignore"):
        x = (RNG.standard_normal(shape) * 2.0 ** RNG.integers(-4, 5, shape)).astype(kind)
    x.flat[:: max(3, x.size // 7)] = 1.5
    x.flat[1 :: max(3, x.size // 5)] = -np.inf
    x.flat[2 :: max(3, x.size // 6)] = np.inf
    return x


SHAPES = [(1, 1), (8, 1), (1, 2), (16, 2), (1, 8), (4, 8), (1, 1024), (2, 64)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["fp32", "i32"])
def test_sorts_upwards_and_downwards(sources: Sources, name: str, shape: tuple[int, int]) -> None:
    x = numbers(name, shape)
    np.testing.assert_array_equal(of_expression(sources, "tl.sort(x)", x, shape), np.sort(x))
    down = of_expression(sources, "x.sort(dim=1, descending=True)", x, shape)
    np.testing.assert_array_equal(down, np.sort(x)[:, ::-1])


@pytest.mark.parametrize("name", DTYPES)
def test_sorts_every_type(sources: Sources, name: str) -> None:
    x = numbers(name, (4, 32))
    np.testing.assert_array_equal(of_expression(sources, "tl.sort(x)", x, x.shape), np.sort(x))


def test_sorts_truth_values(sources: Sources) -> None:
    x = RNG.integers(-3, 3, (4, 16)).astype(np.int32)
    sorted_ = of_expression(sources, "tl.sort(x > 0, -1)", x, x.shape)
    np.testing.assert_array_equal(sorted_, np.sort(x > 0))


def test_floats_have_a_total_order(sources: Sources) -> None:
    x = np.array([[0.0, np.nan, -0.0, -np.nan, np.inf, 1.0, -np.inf, -1.0]], np.float32)
    actual = of_expression(sources, "tl.sort(x)", x, x.shape)[0]
    np.testing.assert_array_equal(actual, [np.nan, -np.inf, -1, -0.0, 0.0, 1, np.inf, np.nan])
    assert list(np.signbit(actual)) == [True] * 4 + [False] * 4


@pytest.mark.parametrize("k", [1, 2, 8, 64])
@pytest.mark.parametrize("name", ["fp32", "u64", "i64", "fp64"])
def test_the_greatest_and_the_least(sources: Sources, name: str, k: int) -> None:
    x = numbers(name, (2, 64))
    most = of_expression(sources, f"tl.topk(x, {k})", x, (2, k))
    np.testing.assert_array_equal(most, np.sort(x)[:, ::-1][:, :k])
    least = of_expression(sources, f"x.topk({k}, dim=-1, descending=False)", x, (2, k))
    np.testing.assert_array_equal(least, np.sort(x)[:, :k])


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("extent", [2, 4, 32])
def test_the_greatest_of_distinct_numbers(sources: Sources, extent: int, k: int) -> None:
    x = RNG.permuted(np.tile(np.arange(extent, dtype=np.int32), (4, 1)), axis=1)
    k = min(k, extent)
    most = of_expression(sources, f"tl.topk(x, {k})", x, (4, k))
    np.testing.assert_array_equal(most, np.sort(x)[:, ::-1][:, :k])


@pytest.mark.parametrize(("name", "wide"), [("fp16", "fp32"), ("bf16", "fp32"), ("u8", "i32")])
def test_the_greatest_of_narrow_types_are_widened(sources: Sources, name: str, wide: str) -> None:
    x = numbers(name, (2, 16))
    # A product tells: in the narrow type it would be rounded, or wrap.
    actual = of_expression(sources, "tl.topk(x, 4) * tl.topk(x, 4)", x, (2, 4), wide)
    most = np.sort(x)[:, ::-1][:, :4].astype(DTYPES[wide])
    np.testing.assert_array_equal(actual, most * most)


@pytest.mark.parametrize("extent", [1, 2, 64])
@pytest.mark.parametrize("descending", [False, True])
def test_merges(sources: Sources, extent: int, descending: bool) -> None:
    x = np.sort(numbers("fp32", (4, extent)))
    half = extent // 2
    x[1, half:] = x[1, half:][::-1].copy()
    x[2, :half] = x[2, :half][::-1].copy()
    actual = of_expression(sources, f"tl.bitonic_merge(x, descending={descending})", x, x.shape)
    want = np.sort(x)[:, ::-1] if descending else np.sort(x)
    np.testing.assert_array_equal(actual, want)


def test_tiles_of_one_and_three_axes(sources: Sources) -> None:
    x = numbers("fp32", (8, 8))
    wide = of_expression(sources, "x.reshape(4, 2, 8).sort().reshape(8, 8)", x, x.shape)
    np.testing.assert_array_equal(wide, np.sort(x))
    flat = of_expression(sources, "tl.sort(x.ravel()).reshape(8, 8)", x, x.shape)
    np.testing.assert_array_equal(flat.reshape(-1), np.sort(x.reshape(-1)))
    most = of_expression(sources, "tl.topk(x.ravel(), 4)[None, :]", x, (1, 4))
    np.testing.assert_array_equal(most[0], np.sort(x.reshape(-1))[::-1][:4])


@pytest.mark.parametrize(
    ("call", "message", "remedy"),
    [
        ("tl.sort(x, 0)", "last axis, 1 of", "tl.permute"),
        ("tl.sort(x, 2)", "dim must be from -2 to 1, got 2", ""),
        ("tl.sort(1.5)", "takes a tile of numbers", ""),
        ("tl.sort(p + tl.arange(0, 4))", "takes a tile of numbers", ""),
        ("tl.sort(x, descending=tl.program_id(0))", "known at compile time", ""),
        ("tl.topk(x, 3)", "power of two from 1 to 8, the last extent", "mask"),
        ("tl.topk(x, 16)", "from 1 to 8, the last extent of", "mask"),
        ("tl.topk(x, 0)", "got 0", ""),
        ("tl.topk(x, tl.program_id(0))", "k must be known at compile time", "tl.constexpr"),
        ("tl.topk(x, 2.0)", "k must be an integer", ""),
        ("tl.topk(x, 2, 0)", "tl.topk goes along the last axis", ""),
        ("tl.bitonic_merge(x, 0)", "tl.bitonic_merge goes along the last axis", ""),
    ],
)
def test_mistakes(sources: Sources, call: str, message: str, remedy: str) -> None:
    error = sources.body_error(
        f"x = tl.zeros((4, 8), tl.float32)\ny = {call}", {"p": "*fp32"}, params="p"
    )
    assert message in str(error)
    assert remedy in str(error)
