"""Tiles carried to the next mainloop: loops certain to run, and waits on maps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aotc.ir.dialects import scf
from aotc.ir.text import parse_kernel
from aotc.schedule.epilogue.delayed_stores import runs_surely
from tests.support.descriptors import lowered

LOOP = """\
kernel @k(%a: i32, %b: i32, %c: i32) {num_warps = 1} {
  %less = arith.compare(%a, %b) {predicate = "PREDICATE"} : i1
  scf.if(%less) () {
    THEN
    scf.yield()
  } () {
    ELSE
    scf.yield()
  }
  scf.return
}
"""
RUN = """scf.for(LOWER, %b, %c) (%i: i32) {
      scf.yield()
    }"""


@pytest.mark.parametrize(
    ("predicate", "arm", "lower", "expected"),
    [
        ("lt", "THEN", "%a", True),
        ("le", "THEN", "%a", False),
        ("lt", "ELSE", "%a", False),
        ("lt", "THEN", "%c", False),
    ],
)
def test_a_branch_may_say_that_a_loop_runs(
    predicate: str, arm: str, lower: str, expected: bool
) -> None:
    text = LOOP.replace("PREDICATE", predicate).replace(arm, RUN.replace("LOWER", lower))
    kernel = parse_kernel(re.sub("THEN|ELSE", "", text))
    (loop,) = [op for op in kernel.walk() if isinstance(op, scf.For)]
    assert runs_surely(loop) is expected


GROUPS = """def k(a, b, pointers, rows, groups, tiles, K):
    for group in range(groups):
        if CONDITION:
            c_ptr = tl.load(pointers + group).to(tl.pointer_type(tl.bfloat16))
            c = tl.make_tensor_descriptor(c_ptr, [tl.load(rows + group), 128], [128, 1], [64, 128])
            for tile in range(0, tiles):
                total = tl.zeros((64, 128), tl.float32)
                for k in range(0, K, 64):
                    total = tl.dot(a.load([tile * 64, k]), b.load([group * 128, k]).T, total)
                c.store([tile * 64, 0], total.to(tl.bfloat16))
"""
SIGNATURE = {
    "a": "tensordesc<fp16[64,64]>",
    "b": "tensordesc<fp16[128,64]>",
    "pointers": "*i64",
    "rows": "*i32",
    "groups": "i32",
    "tiles": "i32",
    "K": "i32",
}


@pytest.mark.parametrize(("condition", "num_maps"), [("0 < tiles", 3), ("K != 7", 4)])
def test_the_map_of_a_tile_is_carried_and_acquired_with_its_first_slice(
    tmp_path: Path, condition: str, num_maps: int
) -> None:
    """In the mainloop, after it, and after all; a group may have no tile of its own.

    Then the previous group's tile is stored, and its map is released next.
    """
    source = GROUPS.replace("CONDITION", condition)
    text, remarks = lowered(tmp_path, source, SIGNATURE, num_warps=4, map_pointers=True)
    assert "the epilogue of a tile overlaps" in remarks
    consumers = text[text.index("gpu.specialize") : text.index("gpu.beside")]
    assert consumers.count("gpu.made_tensor_map") == num_maps
    assert consumers.count("gpu.acquired_tensor_map") == num_maps
    assert consumers.count("gpu.tma_store(") == 2 * num_maps
