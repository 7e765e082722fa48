"""Branches of loads become masks, with all loads in flight before the first use."""

from __future__ import annotations

import re

import numpy as np
import pytest

from aotc.backend import assemble, disassemble
from aotc.schedule.cleanup.predicate_branches import predicate_branches
from tests.support.pass_case import applied, assert_same_meaning
from tests.support.pipelined import Args, Case

HALO = {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16", "size": "i32"}


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 256, 300])
def test_a_halo_reads_what_exists(size: int) -> None:
    case = Case("halo", HALO, {"BLOCK": 128})

    def make() -> Args:
        x = np.random.default_rng(size).integers(-3, 4, max(1, size)).astype(np.float32)
        return [x, np.full(max(1, size), 77, np.float32), size]

    case.check_each_pass(make, (-(-size // 128),))


def test_the_loads_of_a_halo_come_before_what_uses_them() -> None:
    case = Case("halo", HALO, {"BLOCK": 128})
    assert "scf.if" not in case.gpu_ir
    assert case.gpu_ir.rindex("gpu.load") < case.gpu_ir.index("arith.exp")
    # Masked off, one load gives the other arm's value; the other load may give anything.
    assert case.gpu_ir.count("arith.select") == 1


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_the_machine_has_them_in_flight_together(target: str) -> None:
    case = Case("halo", HALO, {"BLOCK": 128}, target=target)
    sass = disassemble(assemble(case.ptx, case.target).cubin)
    code = re.findall(r"\b(LDG|MUFU|BRA)\b", sass)
    assert code.count("LDG") == 4 + 4 + 1
    assert "LDG" not in code[code.index("MUFU") :]


@pytest.mark.parametrize("take", [0, 1])
def test_a_batch_in_one_arm(take: int) -> None:
    """Nothing beyond the arm taken is read: the other's memory does not exist."""
    case = Case("batch", {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16", "take": "i32"}, {"BLOCK": 64})
    assert "scf.if" not in case.gpu_ir
    blocks = 3 if take else 4

    def make() -> Args:
        x = np.random.default_rng(take).integers(-9, 10, 64 * blocks).astype(np.float32)
        return [x, np.full(64, 77, np.float32), take]

    case.check_each_pass(make)


TEXT = """\
// CHECK-NOT: scf.if
// CHECK: [[LOADED:%.*]] = tile.load(%p, %c, _)
// CHECK-NEXT: arith.select(%c, [[LOADED]], %rest)
kernel @k(%x: *fp32, %out: *fp32, %n: i32) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %c = arith.compare(%n, %zero) {predicate = "gt"} : i1
  %rest = arith.constant {value = -1.0, type = fp32} : fp32
  %v = scf.if(%c) () {
    %one = arith.constant {value = 1, type = i32} : i32
    %last = arith.sub(%n, %one) : i32
    %p = arith.addptr(%x, %last) : *fp32
    %l = tile.load(%p, _, _) : fp32
    scf.yield(%l)
  } () {
    scf.yield(%rest)
  } : fp32
  tile.store(%out, %v, _)
  scf.return
}
"""


def test_a_load_in_an_arm_is_masked_by_the_condition() -> None:
    kernel = applied(TEXT, predicate_branches)
    x = np.arange(1, 6, dtype=np.float32)
    for n in (-1, 0, 1, 5):
        assert_same_meaning(TEXT, kernel, [x, np.full(1, 77, np.float32), n])


def test_a_store_in_an_arm_keeps_the_branch() -> None:
    lines = TEXT.replace("// CHECK-NOT: scf.if\n", "// CHECK: scf.if(%c)\n").splitlines()
    lines_left = [line for line in lines if "// CHECK" not in line or "scf.if" in line]
    load_index = next(number for number, line in enumerate(lines_left) if "%l = tile.load" in line)
    lines_left.insert(load_index + 1, "    tile.store(%out, %l, _)")
    applied("\n".join(lines_left) + "\n", predicate_branches)
