"""Wavefronts of known access patterns."""

import numpy as np
import pytest

from aotc.verify.emulator.memory.bank_conflicts import BankConflicts
from aotc.verify.emulator.syntax import Instruction
from tests.support.ptx_kernel import run

LOAD = Instruction("ld", ("shared", "b32"), (), None, 5, "ld.shared.b32")
LANE = np.arange(32)


@pytest.mark.parametrize(
    ("address", "size", "phases", "excess"),
    [
        (4 * LANE, 4, 1, 0),
        (0 * LANE, 4, 1, 0),  # a broadcast
        (8 * LANE, 4, 1, 1),
        (128 * LANE, 4, 1, 31),
        (132 * LANE, 4, 1, 0),  # padded rows
        (2 * LANE, 2, 1, 0),
        (128 * LANE, 1, 1, 31),
        (8 * LANE, 8, 2, 0),
        (128 * LANE, 8, 2, 30),
        (16 * LANE, 16, 4, 0),
        (128 * LANE, 16, 4, 28),
        (128 * LANE + 16 * (LANE % 8), 16, 4, 0),  # swizzled rows
    ],
)
def test_pattern(address, size, phases, excess):
    conflicts = BankConflicts(64)
    conflicts.count(slice(0, 32), address, size, LOAD)
    count = conflicts.lines[5]
    assert (count.phases, count.excess) == (phases, excess)


def test_first_block_stands_for_all_and_counts_add_up():
    conflicts = BankConflicts(32)
    address = np.tile(8 * LANE, 3)
    conflicts.count(slice(0, 96), address, 4, LOAD)
    conflicts.count(np.array([3, 40]), np.array([0, 4]), 4, LOAD)
    conflicts.count(slice(32, 64), 128 * LANE, 4, LOAD)
    assert conflicts.excess == 1
    assert conflicts.lines[5].phases == 2


@pytest.mark.parametrize(("row_bytes", "excess"), [(128, 31), (132, 0)])
def test_counted_by_line_as_a_program_runs(row_bytes, excess):
    body = f"mad.lo.u32 %r3, %r0, {row_bytes}, %r1;\nst.shared.b32 [%r3], 0;\n"
    body += "ld.shared.b32 %r2, [%r3];"
    statistics = run(body, shared=32 * row_bytes, grid=3, count_conflicts=True)
    store, load = sorted(statistics.conflicts)
    assert load == store + 1
    for line in (store, load):
        assert statistics.conflicts[line].phases == 1
        assert statistics.conflicts[line].excess == excess
