"""Products in microscaling formats, run on tile IR against the formats' own values."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from aotc.ir.diagnostics import CompileError
from aotc.verify.interpreter.run import run
from tests.frontend.conftest import Sources

SOURCE = """
@triton.jit
def k(a_ptr, sa_ptr, b_ptr, sb_ptr, c_ptr, A: tl.constexpr, SA: tl.constexpr, B: tl.constexpr,
      SB: tl.constexpr, C: tl.constexpr, AF: tl.constexpr, BF: tl.constexpr,
      AK: tl.constexpr, BK: tl.constexpr, START: tl.constexpr):
    a = tl.load(a_ptr + tl.arange(0, A[0] * A[1])).reshape(A)
    b = tl.load(b_ptr + tl.arange(0, B[0] * B[1])).reshape(B)
    sa = None if SA is None else tl.load(sa_ptr + tl.arange(0, SA[0] * SA[1])).reshape(SA)
    sb = None if SB is None else tl.load(sb_ptr + tl.arange(0, SB[0] * SB[1])).reshape(SB)
    c = tl.full(C, START, tl.float32)
    c = tl.dot_scaled(a, sa, AF, b, sb, BF, c, lhs_k_pack=AK, rhs_k_pack=BK)
    tl.store(c_ptr + tl.arange(0, C[0] * C[1]), c.reshape(C[0] * C[1]))
"""

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
FORMATS = {
    "e2m1": ("u8", np.uint8),
    "e4m3": ("fp8e4nv", ml_dtypes.float8_e4m3fn),
    "e5m2": ("fp8e5", ml_dtypes.float8_e5m2),
    "bf16": ("bf16", ml_dtypes.bfloat16),
    "fp16": ("fp16", np.float16),
}
M, N, K = 16, 8, 64


def _elements(
    rng: np.random.Generator, name: str, shape: tuple[int, int], packed_axis: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return stored elements and their values."""
    if name != "e2m1":
        elements = rng.standard_normal(shape).astype(FORMATS[name][1])
        return elements, elements.astype(np.float64)
    codes = rng.integers(0, 16, shape).astype(np.uint8)
    low, high = (
        np.take(codes, range(start, shape[packed_axis], 2), packed_axis) for start in (0, 1)
    )
    return low | high << 4, FP4[codes]


def _run(
    sources: Sources,
    formats: tuple[str, str],
    operands: tuple[np.ndarray, np.ndarray],
    scales: tuple[np.ndarray | None, np.ndarray | None],
    along_k: tuple[bool, bool] = (True, True),
    start: float = 1.0,
) -> np.ndarray:
    passed = [scale if scale is not None else np.zeros(1, np.uint8) for scale in scales]
    kinds = ["fp8e4nv" if scale.dtype == ml_dtypes.float8_e4m3fn else "u8" for scale in passed]
    signature = {
        "a_ptr": f"*{FORMATS[formats[0]][0]}",
        "sa_ptr": f"*{kinds[0]}",
        "b_ptr": f"*{FORMATS[formats[1]][0]}",
        "sb_ptr": f"*{kinds[1]}",
        "c_ptr": "*fp32",
    }
    shapes = [None if scale is None else scale.shape for scale in scales]
    constants = {
        "A": operands[0].shape,
        "SA": shapes[0],
        "B": operands[1].shape,
        "SB": shapes[1],
        "C": (M, N),
        "AF": formats[0],
        "BF": formats[1],
        "AK": along_k[0],
        "BK": along_k[1],
        "START": start,
    }
    out = np.zeros(M * N, np.float32)
    buffers = (operands[0], passed[0], operands[1], passed[1])
    kernel = sources.translate(SOURCE, signature, constants).kernel
    run(kernel, (1,), [*(np.ascontiguousarray(scale).reshape(-1) for scale in buffers), out])
    return out.reshape(M, N)


def _expected(
    a: np.ndarray,
    sa: np.ndarray | None,
    b: np.ndarray,
    sb: np.ndarray | None,
    start: float = 1.0,
) -> np.ndarray:
    if sa is not None:
        a = a * np.repeat(sa, K // sa.shape[1], 1)
    if sb is not None:
        b = b * np.repeat(sb, K // sb.shape[1], 1).T
    return start + a @ b


PACKINGS = [
    (pair, along_k)
    for pair in itertools.product(FORMATS, FORMATS)
    for along_k in itertools.product((True, False), (True, False))
    if all(along or name == "e2m1" for along, name in zip(along_k, pair, strict=True))
]


@pytest.mark.parametrize(("formats", "along_k"), PACKINGS)
def test_products_are_those_of_the_formats(
    sources: Sources, formats: tuple[str, str], along_k: tuple[bool, bool]
) -> None:
    rng = np.random.default_rng(len(formats[0]) + 7 * along_k[0])
    a, a_values = _elements(rng, formats[0], (M, K), 1 if along_k[0] else 0)
    b, b_values = _elements(rng, formats[1], (K, N), 0 if along_k[1] else 1)
    sa, sb = (rng.integers(120, 132, (rows, K // 32)).astype(np.uint8) for rows in (M, N))
    actual = _run(sources, formats, (a, b), (sa, sb), along_k)
    factors = [2.0 ** (scale.astype(np.float64) - 127) for scale in (sa, sb)]
    expected = _expected(a_values, factors[0], b_values, factors[1])
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("is_scaled", [(True, False), (False, True), (False, False)])
def test_an_operand_may_have_no_scales(sources: Sources, is_scaled: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(3)
    (a, a_values), (b, b_values) = (
        _elements(rng, "e4m3", (M, K), 1),
        _elements(rng, "e2m1", (K, N), 0),
    )
    sa = np.full((M, 2), 129, np.uint8) if is_scaled[0] else None
    sb = np.full((N, 2), 125, np.uint8) if is_scaled[1] else None
    actual = _run(sources, ("e4m3", "e2m1"), (a, b), (sa, sb))
    factors = [
        None if scale is None else 2.0 ** (scale.astype(np.float64) - 127) for scale in (sa, sb)
    ]
    expected = _expected(a_values, factors[0], b_values, factors[1])
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-5)


def test_groups_of_sixteen_with_scales_of_eight_bits(sources: Sources) -> None:
    rng = np.random.default_rng(4)
    a, a_values = _elements(rng, "e2m1", (M, K), 1)
    b, b_values = _elements(rng, "e2m1", (K, N), 0)
    sa, sb = (
        np.abs(rng.standard_normal((rows, K // 16))).astype(ml_dtypes.float8_e4m3fn)
        for rows in (M, N)
    )
    actual = _run(sources, ("e2m1", "e2m1"), (a, b), (sa, sb))
    wide = [operand.astype(np.float64) for operand in (sa, sb)]
    expected = _expected(a_values, wide[0], b_values, wide[1])
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("other", ["bf16", "fp16"])
def test_the_least_scale_and_the_one_that_is_no_number(sources: Sources, other: str) -> None:
    """2^-127 is subnormal in bf16, and underflows fp16."""
    a = np.full((M, K // 2), 0x77, np.uint8)  # 6.0
    b = np.ones((K, N), FORMATS[other][1])
    sa = np.full((M, 2), 127, np.uint8)
    sa[0], sa[1, 1] = 0, 255
    # Accumulates from zero: added to 1, a product of 2^-127 vanishes with any scale.
    actual = _run(sources, ("e2m1", other), (a, b), (sa, None), start=0.0)
    assert (actual[0] == (K * 6 * 2.0**-127 if other == "bf16" else 0)).all()
    assert np.isnan(actual[1]).all()
    assert (actual[2:] == K * 6).all()


@pytest.mark.parametrize("code", [0, 1, 2, 126, 128, 253, 254])
@pytest.mark.parametrize("fmt", ["e2m1", "e4m3", "e5m2"])
def test_every_scale_is_its_power_of_two(sources: Sources, fmt: str, code: int) -> None:
    """With scales on one operand, and on both, where exponents may move between them."""
    rng = np.random.default_rng(code)
    a, a_values = _elements(rng, fmt, (M, K), 1)
    if fmt != "e2m1":
        a_values = np.clip(np.rint(a_values), -1, 1)  # finite beside 2^127
        a = a_values.astype(FORMATS[fmt][1])
    else:
        a, a_values = np.full((M, K // 2), 0x21, np.uint8), np.tile([0.5, 1.0], (M, K // 2))
    b = np.zeros((K, N), ml_dtypes.bfloat16)
    b[np.arange(N), np.arange(N)] = 1.0
    sa = np.full((M, 2), code, np.uint8)
    expected = (a_values[:, :N] * 2.0 ** (code - 127)).astype(np.float32)
    actual = _run(sources, (fmt, "bf16"), (a, b), (sa, None), start=0.0)
    np.testing.assert_array_equal(actual, expected)
    sb = np.full((N, 2), 127, np.uint8)
    actual = _run(sources, (fmt, "e4m3"), (a, b.astype(FORMATS["e4m3"][1])), (sa, sb), start=0.0)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("formats", [*itertools.product(("e2m1", "e4m3", "e5m2"), repeat=2)])
@pytest.mark.parametrize(
    "codes", [(254, 10), (10, 254), (254, 0), (0, 254), (240, 40), (2, 230), (254, 127), (1, 127)]
)
def test_what_is_finite_and_exact_stays_so(
    sources: Sources, formats: tuple[str, str], codes: tuple[int, int]
) -> None:
    """Large elements with large scales overflow bf16, their products need not."""
    rng = np.random.default_rng(sum(codes))
    largest = {"e2m1": 6.0, "e4m3": 448.0, "e5m2": 57344.0}
    operands: list[np.ndarray] = []
    values: list[np.ndarray] = []
    for fmt, shape, axis in zip(formats, ((M, K), (K, N)), (1, 0), strict=True):
        elements, wide = _elements(rng, fmt, shape, axis)
        if fmt != "e2m1":
            size = rng.choice([1.0, 0.25, largest[fmt] / 2.0, 2.0**-6], shape)
            wide = np.copysign(size, wide)
            elements = wide.astype(FORMATS[fmt][1])
        operands.append(elements)
        values.append(wide)
    sa, sb = (np.full((rows, 2), code, np.uint8) for rows, code in zip((M, N), codes, strict=True))
    sa[1, 0], sb[2, 1] = max(codes[0] - 20, 0), max(codes[1] - 9, 0)
    actual = _run(sources, formats, (operands[0], operands[1]), (sa, sb), start=0.0)
    scales = [2.0 ** (scale.astype(np.float64) - 127) for scale in (sa, sb)]
    exact = _expected(values[0], scales[0], values[1], scales[1], start=0.0)
    size = _expected(np.abs(values[0]), scales[0], np.abs(values[1]), scales[1], start=0.0)
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(size.astype(np.float32))
    assert is_finite.any() or sum(codes) > 360
    off = np.abs(actual.astype(np.float64) - exact)[is_finite]
    assert (off <= np.maximum(2.0**-23 * size[is_finite], 2.0**-149)).all()


def test_bytes_may_be_read_as_a_format(sources: Sources) -> None:
    text = """
    @triton.jit
    def k(a_ptr, out):
        a = tl.load(a_ptr + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :])
        c = tl.dot_scaled(a, None, "e5m2", a, None, "e4m3")
        tl.store(out + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :], c)
    """
    body = sources.text(text, {"a_ptr": "*u8", "out": "*fp32"})
    assert "fp8e5" in body
    assert "fp8e4nv" in body


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("x, s, 'e3m2', y, s", "lhs_format must be 'e2m1' or 'e4m3'"),
        ("x.to(tl.float32), s, 'e4m3', y, s", "lhs in e4m3 must be float8e4nv or uint8, got"),
        ("x.to(tl.float16), s, 'e2m1', y, s", "lhs in e2m1 must be uint8, got"),
        ("1.0, s, 'e4m3', y, s", "lhs of tl.dot_scaled must be a tile of 2 or 3 axes"),
        ("x, s.to(tl.int32), 'e4m3', y, s", "lhs_scale must be uint8 or float8e4nv of shape (32"),
        (
            "x, tl.trans(s), 'e4m3', y, s",
            "lhs_scale must be uint8 or float8e4nv of shape (32, 32 /",
        ),
        ("x, s, 'e2m1', y, s", "tl.dot takes (M, K) and (K, N)"),
    ],
)
def test_mistakes(sources: Sources, call: str, message: str) -> None:
    text = f"""
    @triton.jit
    def k(a_ptr):
        x = tl.load(a_ptr + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :])
        y = x
        s = tl.full((32, 2), 127, tl.uint8)
        tl.dot_scaled({call}, "e4m3")
    """
    with pytest.raises(CompileError) as caught:
        sources.translate(text, {"a_ptr": "*u8"})
    assert message in caught.value.render()


def test_more_mistakes(sources: Sources) -> None:
    for options, message in (
        ("lhs_k_pack=False", "lhs_k_pack is for e2m1 alone, got e4m3"),
        ("out_dtype=tl.float16", "tl.dot_scaled accumulates in float32"),
    ):
        text = f"""
        @triton.jit
        def k(a_ptr):
            x = tl.load(a_ptr + tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :])
            tl.dot_scaled(x, None, "e4m3", x, None, "e4m3", {options})
        """
        with pytest.raises(CompileError) as caught:
            sources.translate(text, {"a_ptr": "*u8"})
        assert message in caught.value.render()
