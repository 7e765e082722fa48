"""Numbers of the next program: where they are computed, and what every CTA makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc.ir.text import parse_kernel, print_kernel
from aotc.schedule.context import Schedule
from aotc.schedule.programs.advance_programs import advance_programs
from aotc.target import TARGETS
from tests.support.checks import without_checks
from tests.support.descriptors import compiled, is_persistent, launch, like, tensor
from tests.support.pass_case import applied

# A program's row and column are needed by its mainloop, and after it; the stage is the ring's.
TEXT = """\
// CHECK: gpu.specialize
// CHECK: [[FIRST:%.*]] = tile.program_id
// CHECK: [[ROW:%.*]] = arith.div([[FIRST]], %n)
// CHECK: [[COLUMN:%.*]] = arith.rem([[FIRST]], %n)
// CHECK: scf.for([[FIRST]], %m, [[STEP:%.*]], %n, [[ROW]], [[COLUMN]]) ([[P:%.*]]: i32, [[STAGE:%.*]]: i32, [[R:%.*]]: i32, [[C:%.*]]: i32) {
// CHECK-NOT: arith.div
// CHECK: scf.for([[ZERO:%.*]], [[R]], [[ONE:%.*]], {{.*}}) {
// CHECK: tile.dot
// CHECK: [[LEFT:%.*]] = arith.sub(%m, [[P]])
// CHECK: [[MORE:%.*]] = arith.compare([[LEFT]], [[STEP]]) {predicate = "gt"}
// CHECK: [[NEXT:%.*]] = arith.add([[P]], [[STEP]])
// CHECK: [[THERE:%.*]] = arith.select([[MORE]], [[NEXT]], [[P]])
// CHECK: [[NEXTROW:%.*]] = arith.div([[THERE]], %n)
// CHECK: [[NEXTCOLUMN:%.*]] = arith.rem([[THERE]], %n)
// CHECK: arith.add([[R]], [[C]])
// CHECK: scf.yield({{%.*}}, [[NEXTROW]], [[NEXTCOLUMN]])
kernel @k(%n: i32, %m: i32, %out: *fp32) {num_warps = 4, producer_warps = 4, is_persistent = true} {
  gpu.specialize () {
    %zero = arith.constant {value = 0, type = i32} : i32
    %one = arith.constant {value = 1, type = i32} : i32
    %first = tile.program_id {axis = 0} : i32
    %step = tile.num_programs {axis = 0} : i32
    %a = arith.constant {value = 1.0, type = tile<64x64xfp16>} : tile<64x64xfp16>
    %none = arith.constant {value = 0.0, type = tile<64x64xfp32>} : tile<64x64xfp32>
    %end = scf.for(%first, %m, %step, %n) (%program: i32, %stage: i32) {
      %row = arith.div(%program, %n) : i32
      %column = arith.rem(%program, %n) : i32
      %other = arith.add(%stage, %one) : i32
      %total = scf.for(%zero, %row, %one, %none) (%k: i32, %acc: tile<64x64xfp32>) {
        %sum = tile.dot(%a, %a, %acc) : tile<64x64xfp32>
        scf.yield(%sum)
      } : tile<64x64xfp32>
      %place = arith.add(%row, %column) : i32
      %here = arith.addptr(%out, %place) : *fp32
      %word = arith.constant {value = 1.0, type = fp32} : fp32
      tile.store(%here, %word, _)
      scf.yield(%other)
    } : i32
    scf.yield()
  } () {
    scf.yield()
  }
  scf.return
}
"""


def test_a_program_is_known_before_its_iteration_begins() -> None:
    applied(TEXT, advance_programs)


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace(", is_persistent = true", ""),
        TEXT.replace("%row = arith.div", "%row = arith.add").replace("= arith.rem", "= arith.sub"),
        TEXT.replace(
            "scf.for(%zero, %row, %one, %none)", "scf.for(%zero, %n, %one, %none)"
        ).replace(
            "      %place = ",
            "      %again = tile.dot(%a, %a, %total) : tile<64x64xfp32>\n      %place = ",
        ),
    ],
    ids=["not persistent", "nothing takes long", "a dot outside of mainloops"],
)
def test_other_loops_stay_as_they_are(text: str) -> None:
    kernel = parse_kernel(without_checks(text))
    before = print_kernel(kernel)
    advance_programs(kernel, Schedule(TARGETS["sm_90a"]))
    assert print_kernel(kernel) == before


SOURCE = """def k(a, b, c, n, K):
    row, column = tl.program_id(0) // n, tl.program_id(0) % n
    total = tl.zeros((64, 64), tl.float32)
    for key in range(0, K - row * 64, 64):
        score = tl.dot(a.load([row * 64, key]), b.load([column * 64, key]).T)
        total += tl.maximum(score, 0.0)
    c.store([row * 64, column * 64], total)
"""
SIGNATURE = dict.fromkeys("ab", "tensordesc<fp16[64,64]>") | {
    "c": "tensordesc<fp32[64,64]>",
    "n": "i32",
    "K": "i32",
}


@pytest.mark.emulated
@pytest.mark.parametrize("num_ctas", [1, 2, 5, 6])
def test_results(tmp_path: Path, num_ctas: int) -> None:
    kernel = compiled(tmp_path, SOURCE, SIGNATURE, map_pointers=True, persistent=True)
    assert is_persistent(kernel)
    rng = np.random.default_rng(num_ctas)
    a, b = (rng.normal(size=(rows, 192)).astype(np.float16) for rows in (128, 192))
    c = like(tensor((128, 192), "fp32"))
    launch(kernel, (6,), {"a": a, "b": b, "c": c, "n": 3, "K": 192}, num_ctas=num_ctas)
    expected = np.zeros((128, 192))
    for row in range(2):
        mine = slice(64 * row, 64 * row + 64)
        for key in range(0, 192 - 64 * row, 64):
            part = a[mine, key : key + 64].astype(float) @ b[:, key : key + 64].astype(float).T
            expected[mine] += np.maximum(part, 0.0)
    assert np.abs(c - expected).max() <= 1e-3 * np.abs(expected).max()
