"""Element formats against ml_dtypes and NumPy, over all their bit patterns."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aotc.verify.emulator.mma.formats import FORMATS, encode

PATTERNS = {8: np.arange(256, dtype=np.uint8), 16: np.arange(65536, dtype=np.uint16)}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("e4m3", ml_dtypes.float8_e4m3fn),
        ("e5m2", ml_dtypes.float8_e5m2),
        ("f16", np.float16),
        ("bf16", ml_dtypes.bfloat16),
        ("s8", np.int8),
        ("u8", np.uint8),
    ],
)
def test_decode_is_exact(name: str, dtype: type) -> None:
    format_ = FORMATS[name]
    bits = PATTERNS[format_.bits]
    with np.errstate(invalid="ignore"):  # signalling NaNs
        expected = bits.view(dtype).astype(np.float32).astype(np.float64)
    np.testing.assert_array_equal(format_.decode(bits), expected)


def test_four_bit_integers() -> None:
    nibbles = np.arange(16, dtype=np.uint8)
    assert FORMATS["u4"].decode(nibbles).tolist() == list(range(16))
    assert FORMATS["s4"].decode(nibbles).tolist() == [*range(8), *range(-8, 0)]


def test_tf32_does_not_look_at_the_low_bits() -> None:
    rng = np.random.default_rng(1)
    value = rng.standard_normal(100).astype(np.float32).view(np.uint32)
    decoded = FORMATS["tf32"].decode(value)
    np.testing.assert_array_equal(decoded, FORMATS["tf32"].decode(value | 0x1FFF))
    np.testing.assert_array_equal(decoded.astype(np.float32).view(np.uint32), value & 0xFFFFE000)


def test_results_round_once_to_nearest_even() -> None:
    # Between two fp16 values and above their middle by less than fp32 can say.
    value = np.array([1.0 + 2.0**-11 + 2.0**-40, 1.0 + 2.0**-11, 65520.0, 65519.0])
    assert encode("f16", value).tolist() == [0x3C01, 0x3C00, 0x7C00, 0x7BFF]
    assert encode("f32", np.array([1e40, -0.0])).tolist() == [0x7F800000, 0x80000000]


def test_nan_is_the_tensor_cores() -> None:
    nan = np.array([-np.nan])
    assert encode("f32", nan).tolist() == [0x7FFFFFFF]
    assert encode("f16", nan).tolist() == [0x7FFF]


def test_integers_wrap_or_saturate() -> None:
    value = np.array([2.0**31, -(2.0**31) - 1, 5.0, -1.0])
    assert encode("s32", value).tolist() == [0x80000000, 0x7FFFFFFF, 5, 0xFFFFFFFF]
    saturated = encode("s32", value, saturate=True)
    assert saturated.tolist() == [0x7FFFFFFF, 0x80000000, 5, 0xFFFFFFFF]
