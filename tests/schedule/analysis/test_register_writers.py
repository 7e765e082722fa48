"""Computing ops write registers; renaming ops do not."""

from __future__ import annotations

import pytest

from aotc.ir.core import Block
from aotc.ir.dialects import arith, gpu, scf
from aotc.ir.text import parse_kernel
from aotc.schedule.analysis.register_writers import register_writers

KERNEL = """\
#0 = #ll<register=[[0,1],[8,0],[0,8],[0,16],[0,32]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0]] : [64,64]>
#1 = #ll<register=[[0,1],[8,0],[0,8],[0,16]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0]] : [64,32]>
kernel @k(%n: i32) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %init = arith.constant {value = 0.0, type = tile<64x64xfp32, #0>} : tile<64x64xfp32, #0>
  %made = scf.for(%zero, %n, %one, %init) (%i: i32, %x: tile<64x64xfp32, #0>) {
    %sum = arith.add(%x, %x) : tile<64x64xfp32, #0>
    %narrow = arith.cast(%sum) {dtype = bf16} : tile<64x64xbf16, #0>
    %bits = arith.bitcast(%narrow) {dtype = i16} : tile<64x64xi16, #0>
    %same = arith.cast(%bits) {dtype = u16} : tile<64x64xu16, #0>
    %part = gpu.extract(%same) {start = [0, 32], shape = [64, 32]} : tile<64x32xu16, #1>
    %is_one = arith.compare(%i, %one) {predicate = "eq"} : i1
    %picked = scf.if(%is_one) () {
      scf.yield(%sum)
    } () {
      %other = arith.mul(%sum, %x) : tile<64x64xfp32, #0>
      scf.yield(%other)
    } : tile<64x64xfp32, #0>
    scf.yield(%picked)
  } : tile<64x64xfp32, #0>
  scf.return
}
"""


@pytest.mark.parametrize(
    ("opcode", "writers"),
    [
        (gpu.Extract, ["arith.cast"]),
        (arith.Add, ["arith.add"]),
        (scf.If, ["arith.add", "arith.mul", "scf.if"]),
        (scf.For, ["arith.constant", "scf.for"]),
    ],
)
def test_what_renames_writes_nothing(opcode: type, writers: list[str]) -> None:
    (op,) = [op for op in parse_kernel(KERNEL).walk() if type(op) is opcode]
    writing_ops = register_writers(op.results[0])
    assert sorted(op.opcode for op in writing_ops if not isinstance(op, Block)) == writers


def test_an_argument_is_written_as_its_block_begins() -> None:
    (loop,) = [op for op in parse_kernel(KERNEL).walk() if isinstance(op, scf.For)]
    assert list(register_writers(loop.carried[0])) == [loop.body]
