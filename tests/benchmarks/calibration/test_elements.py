"""Elements of matrices: exact sums, signs taken off and turned round."""

import numpy as np
import pytest

from aotc.verify.emulator.mma.formats import FORMATS
from benchmarks.calibration import elements

FLOATS = ["f16", "bf16", "tf32", "f32", "f64", "e4m3", "e5m2"]


def values(kind, bits):
    return FORMATS[kind].decode(bits.view(f"u{elements.BITS[kind] // 8}"))


@pytest.mark.parametrize("kind", FLOATS)
def test_small_integers(kind):
    bits = elements.exact(kind, 500, np.random.default_rng(0))
    assert set(values(kind, bits).tolist()) == {-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0}


@pytest.mark.parametrize("kind", FLOATS)
def test_signs_of_packed_elements(kind):
    bits = elements.normal(kind, 512, np.random.default_rng(1))
    words = bits.view(np.uint64 if kind == "f64" else np.uint32)
    size = elements.magnitude(kind, words)
    assert size.dtype == words.dtype
    np.testing.assert_array_equal(values(kind, size), np.abs(values(kind, bits)))
    np.testing.assert_array_equal(values(kind, elements.negative(kind, words)), -values(kind, bits))


@pytest.mark.parametrize(("kind", "size_bytes"), [("s8", 64), ("u4", 32), ("b1", 8), ("s32", 256)])
def test_integers_are_any_bits(kind, size_bytes):
    assert elements.exact(kind, 64, np.random.default_rng(0)).nbytes == size_bytes


def test_special_elements():
    numbers = values("f32", elements.special("f32", 5000, np.random.default_rng(0)))
    assert np.isnan(numbers).any()
    assert np.isinf(numbers).any()
    assert (numbers == 0).any()
