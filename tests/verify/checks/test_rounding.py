"""Casts of inexact operands within a kernel: a flipped rounding is in bounds, more is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from aotc.ir.core import Kernel
from aotc.ir.dialects import arith, tile
from aotc.verify.arrays import Array
from aotc.verify.checks.compare import Mismatch, compare
from aotc.verify.checks.dataflow import roles_of
from aotc.verify.checks.inputs import Inputs
from aotc.verify.checks.launch import Launch
from aotc.verify.checks.noise import is_inexact
from aotc.verify.checks.reference import Reference, interpret
from aotc.verify.checks.rounding import NUM_SETS, inner_roundings, sets_of_runs
from aotc.verify.interpreter.numerics import dtype_of
from aotc.verify.interpreter.program import Program, Rule, Rules
from aotc.verify.interpreter.run import RULES, Interpreter
from tests.support.verify_subjects import kernel_of

_KERNEL = kernel_of("attend", 64)


def _reference(seed: int) -> Reference:
    roles = roles_of(_KERNEL, {}, is_inexact)
    launch = Launch("over", {}, (1,), seed, 4, misaligned=False)
    return interpret(_KERNEL, roles, launch, Inputs())


def _off_by(relative: float, seed: int) -> Rule:
    """Return a rule of hardware with an `exp` off by this much."""
    rng = np.random.default_rng(seed)
    base = RULES[arith.Exp]

    def rule(program: Program, op: arith.Exp, value: Array) -> Array:
        out = np.asarray(base(program, op, value))
        return (out * (1 + rng.uniform(-relative, relative, out.shape))).astype(out.dtype)

    return rule


def _verdict(reference: Reference, relative: float, seed: int) -> Mismatch | None:
    return _verdict_of(_KERNEL, reference, {**RULES, arith.Exp: _off_by(relative, seed)})


def _verdict_of(kernel: Kernel, reference: Reference, rules: Rules) -> Mismatch | None:
    """Return the verdict on hardware with these rules."""
    contents = {name: buffer.initial.copy() for name, buffer in reference.buffers.items()}
    args = [
        contents[name][reference.buffers[name].start_bytes :].view(
            dtype_of(reference.buffers[name].pointee)
        )
        for name in reference.order
    ]
    Interpreter(kernel, args, rules=rules).run((1,))
    return compare(reference.buffers["out_ptr"], contents["out_ptr"])


@pytest.mark.parametrize("seed", range(8))
def test_a_rounding_flipped_by_noise_is_in_bounds(seed: int) -> None:
    assert _verdict(_reference(seed), 2.0**-22, seed) is None


@pytest.mark.parametrize(
    ("seed", "hardware"), [(55, 1), (73, 1), (89, 0), (95, 0), (125, 1), (1143, 0), (1263, 1)]
)
def test_one_of_several_roundings_whose_moves_cancel_is_in_bounds(seed: int, hardware: int) -> None:
    """With all of them flipped at once, the sum stays where it was."""
    assert _verdict(_reference(seed), 2.0**-22, 1000 * seed + hardware) is None


@pytest.mark.parametrize("seed", range(4))
def test_weights_that_are_wrong_are_not(seed: int) -> None:
    assert _verdict(_reference(seed), 2.0**-9, seed) is not None


def test_exact_and_stored_casts_are_not_flipped() -> None:
    ((cast, _),) = inner_roundings(_KERNEL, is_inexact)
    assert isinstance(cast, arith.Cast)
    assert cast.dtype.name == "fp16"
    assert inner_roundings(_KERNEL, lambda _: False) == []
    assert inner_roundings(kernel_of("sum_rows"), is_inexact) == []


def _chained_verdict(seed: int, relative: float) -> Mismatch | None:
    """Return the verdict on hardware with first dots off by this much of their magnitudes."""
    kernel = kernel_of("chained_dots", 64)
    launch = Launch("over", {}, (1,), seed, 4, misaligned=False)
    reference = interpret(kernel, roles_of(kernel, {}, is_inexact), launch, Inputs())
    rng = np.random.default_rng(seed)
    base = RULES[tile.Dot]

    def rule(program: Program, op: tile.Dot, a: Array, b: Array, acc: Array) -> Array:
        out = np.asarray(base(program, op, a, b, acc))
        off = relative * rng.uniform(-1, 1, out.shape) * np.matmul(np.abs(a), np.abs(b))
        return (out + off).astype(np.float32)

    return _verdict_of(kernel, reference, {**RULES, tile.Dot: rule})


@pytest.mark.parametrize("seed", range(6))
def test_a_tf32_operand_truncated_to_the_next_number_is_in_bounds(seed: int) -> None:
    """A sum of 64 products has so small an error in any order."""
    assert _chained_verdict(seed, 2.0**-23) is None


@pytest.mark.parametrize("seed", range(3))
def test_a_dot_off_by_more_than_an_order_of_its_sum_is_not(seed: int) -> None:
    assert _chained_verdict(seed, 2.0**-12) is not None


def test_operands_of_exact_tf32_dots_are_not_flipped() -> None:
    kernel = kernel_of("chained_dots", 64)
    first, second = (op for op in kernel.walk() if isinstance(op, tile.Dot))
    assert inner_roundings(kernel, is_inexact) == [(second, 0)]
    assert first.input_precision == "tf32"


@given(st.integers(0, 2**31), arrays(bool, (2, 16, 16)), st.integers(1, 3))
def test_casts_summed_by_a_product_flip_in_different_runs(
    seed: int, may_flip: Array, most: int
) -> None:
    """Of a row, and of a column, of one cast and of another: few enough can each be alone."""
    product_index = np.zeros((NUM_SETS, 16), np.int32)
    columns: list[list[int]] = [[] for _ in range(16)]
    for number, candidates in enumerate(may_flip):
        few = candidates & (np.cumsum(candidates, axis=0) <= most)
        flips = few & (np.cumsum(few, axis=1) <= most)
        sets = sets_of_runs(flips, product_index, seed=(seed, number))
        assert ((sets > 0) & (sets <= NUM_SETS)).all()
        for line, numbers in zip(flips, sets, strict=True):
            assert len(set(numbers[line].tolist())) == np.count_nonzero(line)
        for column, line, numbers in zip(columns, flips.T, sets.T, strict=True):
            column.extend(numbers[line].tolist())
    assert all(len(set(column)) == len(column) for column in columns)
