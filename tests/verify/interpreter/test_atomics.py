"""Atomics of the interpreter: every kind, shared addresses, masks, float order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aotc.ir.core import Kernel
from aotc.ir.dialects.tile import AtomicKind, supports_atomic
from aotc.ir.text import parse_kernel
from aotc.ir.types import BF16, FP16, FP32, FP64, I32, I64, SCALARS, U32, U64, ScalarType
from aotc.verify.arrays import Array
from aotc.verify.interpreter.atomics import combine_rule, swap, update, update_box
from aotc.verify.interpreter.memory import Address, Box, Memory, TensorAddress
from aotc.verify.interpreter.numerics import dtype_of
from aotc.verify.interpreter.run import InterpretError, run

KINDS: tuple[AtomicKind, ...] = get_args(AtomicKind)
SCALAR_LOOPS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, new: old + new,
    "max": max,
    "min": min,
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
    "xchg": lambda _, new: new,
}


def _addresses(base: int, index: Array, scalar: ScalarType) -> Array:
    return base + index.astype(np.int64) * scalar.size_bytes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scalar", [I32, U32, I64, U64])
def test_integers_take_turns_in_order(kind: AtomicKind, scalar: ScalarType) -> None:
    rng = np.random.default_rng(1)
    dtype = dtype_of(scalar)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    cells = rng.integers(low, high, 5, dtype, endpoint=True)
    value = rng.integers(low, high, 64, dtype, endpoint=True)
    index = rng.integers(0, 5, 64)
    expected, before = [int(cell) for cell in cells], []
    for element, new in zip(index.tolist(), value.tolist(), strict=True):
        before.append(expected[element])
        result = SCALAR_LOOPS[kind](expected[element], new)
        expected[element] = int(
            np.array(result & (2**scalar.bits - 1), f"u{dtype.itemsize}").view(dtype)
        )
    memory = Memory()
    base = memory.add("cells", cells)
    address = _addresses(base, index, scalar)
    actual = update(memory, address, scalar, value, combine_rule(kind, scalar))
    assert cells.tolist() == expected
    assert actual.tolist() == before


@pytest.mark.parametrize("scalar", [FP16, BF16, FP32, FP64])
def test_float_sums_round_at_each_turn(scalar: ScalarType) -> None:
    dtype = dtype_of(scalar)
    cells = np.array([1.0, 0.0]).astype(dtype)
    tiny = 2.0 ** -(scalar.mantissa_bits + 1)  # half of the last place of 1: a tie, to even
    memory = Memory()
    base = memory.add("cells", cells)
    value = np.full(8, tiny).astype(dtype)
    address = _addresses(base, np.arange(8) % 2, scalar)
    update(memory, address, scalar, value, combine_rule("add", scalar))
    assert cells.astype(np.float64).tolist() == [1.0, 4 * tiny]


@given(hnp.arrays(np.float32, 2, elements=st.floats(width=32, allow_nan=True)))
def test_floats_are_ordered_by_sign_and_magnitude(pair: Array) -> None:
    old, new = pair[:1], pair[1:]

    def place(value: Array) -> tuple[bool, int]:
        bits = int(value.view(np.uint32)[0])
        magnitude = bits & 0x7FFFFFFF
        return (True, magnitude) if bits < 2**31 else (False, -magnitude)

    picks: dict[AtomicKind, Any] = {"max": max, "min": min}
    for kind, pick in picks.items():
        actual = combine_rule(kind, FP32)(old, new)
        assert actual.tobytes() == pick(old, new, key=place).tobytes()


def test_compare_and_swap_takes_turns_and_compares_bits() -> None:
    cells = np.array([-0.0, 0.0, np.nan], np.float32)
    memory = Memory()
    base = memory.add("cells", cells)
    index = np.array([0, 1, 2, 1])
    compare = np.array([0.0, 0.0, np.nan, 5.0], np.float32)
    value = np.array([1.0, 5.0, 7.0, 9.0], np.float32)
    before = swap(memory, _addresses(base, index, FP32), FP32, compare, value)
    assert cells.tolist() == [0.0, 9.0, 7.0]
    assert np.signbit(cells[0])
    assert before[[0, 1, 3]].tolist() == [0.0, 0.0, 5.0]
    assert np.isnan(before[2])


@pytest.mark.parametrize("strides", [(8, 1), (4, 1), (0, 1)])  # rows apart, dense, one and the same
def test_a_box_is_updated_as_its_elements_are(strides: tuple[int, int]) -> None:
    cells = {name: np.arange(64, dtype=np.float32) for name in ("box", "elements")}
    memory = Memory()
    starts = {name: memory.add(name, array) for name, array in cells.items()}
    rule = combine_rule("add", FP32)
    value = np.arange(20, dtype=np.float32).reshape(5, 4) / 3
    tensor = TensorAddress(Address(starts["box"]), (4, 6), strides)
    update_box(memory, Box(tensor, (1, 3), (5, 4)), FP32, value, rule)
    rows, columns = np.mgrid[1:4, 3:6]
    address = starts["elements"] + 4 * (rows * strides[0] + columns).ravel()
    update(memory, address, FP32, value[:3, :3].ravel(), rule)
    assert cells["box"].tobytes() == cells["elements"].tobytes()
    assert (cells["box"] != np.arange(64)).any()


def test_supported_atomics() -> None:
    supported = {
        (kind, name) for name, scalar in SCALARS.items() for kind in KINDS
        if supports_atomic(kind, scalar)
    }  # fmt: skip
    words = {"i32", "u32", "i64", "u64"}
    floats = {"fp32", "fp64"}
    assert supported == {
        *((kind, name) for kind in KINDS for name in words),
        *((kind, name) for kind in ("add", "max", "min", "xchg") for name in floats),
        *((kind, name) for kind in ("add", "max", "min") for name in ("fp16", "bf16")),
    }


KERNEL = """
kernel @k(%p: *fp32, %old: *fp32, %limit: i32) {num_warps = 4} {
  %index = tile.arange {start = 0, end = 4} : tile<4xi32>
  %at = tile.splat(%p) {shape = [4]} : tile<4x*fp32>
  %out = tile.splat(%old) {shape = [4]} : tile<4x*fp32>
  %outs = arith.addptr(%out, %index) : tile<4x*fp32>
  %end = tile.splat(%limit) {shape = [4]} : tile<4xi32>
  %mask = arith.compare(%index, %end) {predicate = "lt"} : tile<4xi1>
  %one = arith.constant {value = 1.0, type = tile<4xfp32>} : tile<4xfp32>
  %was = tile.atomic_rmw(%at, %one, %mask) {kind = "add"} : tile<4xfp32>
  tile.store(%outs, %was)
  scf.return
}
"""


def _kernel() -> Kernel:
    return parse_kernel(KERNEL)


def test_masked_elements_do_not_take_part() -> None:
    cell, old = np.array([5.0], np.float32), np.zeros(4, np.float32)
    run(_kernel(), (1,), [cell, old, 3])
    assert cell.tolist() == [8.0]
    assert old[:3].tolist() == [5.0, 6.0, 7.0]
    assert np.isnan(old[3])
    run(_kernel(), (1,), [cell, old, 0])
    assert cell.tolist() == [8.0]
    assert np.isnan(old).all()


def test_an_atomic_out_of_bounds_is_an_error() -> None:
    with pytest.raises(InterpretError, match=r"tile.atomic_rmw accesses byte 0 of p \(0 bytes\)"):
        run(_kernel(), (1,), [np.zeros(0, np.float32), np.zeros(4, np.float32), 1])


def test_scalars() -> None:
    kernel = parse_kernel("""
kernel @k(%lock: *i32, %p: *i32, %m: i1) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %nine = arith.constant {value = 9, type = i32} : i32
  %was = tile.atomic_cas(%lock, %zero, %nine) {sem = "acquire"} : i32
  %last = tile.atomic_rmw(%p, %was, %m) {kind = "xchg", scope = "sys"} : i32
  scf.return
}
""")
    lock, out = np.array([0], np.int32), np.array([3], np.int32)
    run(kernel, (1,), [lock, out, False])
    assert (lock.item(), out.item()) == (9, 3)
    run(kernel, (1,), [lock, out, True])
    assert (lock.item(), out.item()) == (9, 9)
