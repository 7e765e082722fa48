"""Operands: as wide as asked for, special values in every combination, the same each time."""

import numpy as np
import pytest

from benchmarks.calibration.inputs import COUNT, draw, float_specials, int_specials, width_of

NUMPY = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        ("b8", 8),
        ("u16", 16),
        ("bf16", 16),
        ("f16x2", 32),
        ("s64", 64),
        ("amount", 32),
        ("pred", 32),
    ],
)
def test_widths(kind, bits):
    assert width_of(kind) == bits


@pytest.mark.parametrize("kind", NUMPY)
def test_special_floats(kind):
    values = float_specials(kind).view(NUMPY[kind])
    info = np.finfo(NUMPY[kind])
    for number in (0.0, 1.0, -1.0, info.max, info.tiny, info.smallest_subnormal, np.inf, -np.inf):
        assert number in values
    assert np.isnan(values).sum() >= 6
    assert len(set(float_specials(kind).tolist())) == values.size


def test_special_integers():
    assert {0, 1, 0x7FFF, 0x8000, 0xFFFF} <= set(int_specials(16).tolist())


def test_pairs_of_special_values_are_all_there():
    special = float_specials("f32")
    a, b = draw(("f32", "f32"), np.random.default_rng(0))
    pairs = set(zip(a.tolist(), b.tolist(), strict=True))
    assert all((int(x), int(y)) in pairs for x in special for y in special)


def test_one_narrow_operand_is_every_word():
    for kind in ("f16", "bf16", "b16"):
        (words,) = draw((kind,), np.random.default_rng(0))
        assert (words == np.arange(COUNT)).all()


@pytest.mark.parametrize("kinds", [("f32",) * 3, ("b64", "amount"), ("f16x2", "pred"), ("angle",)])
def test_operands_depend_on_the_seed_alone(kinds):
    first, again = (draw(kinds, np.random.default_rng(5), 1000) for _ in range(2))
    other = draw(kinds, np.random.default_rng(6), 1000)
    for kind, operand, same, different in zip(kinds, first, again, other, strict=True):
        assert operand.shape == (1000,)
        assert 8 * operand.dtype.itemsize == width_of(kind)
        assert (operand == same).all()
        assert (operand != different).any()


def test_exponents_are_all_hit():
    (words,) = draw(("f32",), np.random.default_rng(0))
    assert len(set((words >> np.uint32(23) & np.uint32(255)).tolist())) == 256
