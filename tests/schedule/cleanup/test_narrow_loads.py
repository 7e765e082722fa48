"""Dot operands repeated along an axis are loaded once, wherever their addresses come from."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.core import Kernel
from aotc.ir.text import parse_kernel
from aotc.ir.verify import verify
from aotc.schedule.cleanup.narrow_loads import narrow_loads
from aotc.schedule.context import Schedule
from aotc.target import TARGETS
from tests.support.checks import without_checks
from tests.support.pass_case import applied, assert_same_meaning

# Eight numbers of K are a word; a loop carries the addresses, and stops in the midst of its last block.
CARRIED = """\
// CHECK: [[WORDS:%.*]] = tile.arange {start = 0, end = 4}
// CHECK-NOT: tile.arange {start = 0, end = 32} : tile<32x*
// CHECK: scf.for({{.*}}tile<32x16x*i32>, [[SLICE:%.*]]: tile<4x16x*i32>)
// CHECK: [[NARROW:%.*]] = tile.load([[SLICE]], {{.*}}) : tile<4x16xi32>
// CHECK: [[APART:%.*]] = tile.expand_dims([[NARROW]]) {axis = 1} : tile<4x1x16xi32>
// CHECK: [[WHOLE:%.*]] = tile.broadcast([[APART]]) {shape = [4, 8, 16]} : tile<4x8x16xi32>
// CHECK: tile.reshape([[WHOLE]]) {shape = [32, 16]}
// CHECK: tile.dot(
kernel @k(%x: *fp32, %w: *i32, %out: *fp32, %k: i32 {divisibility = 16}) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %step = arith.constant {value = 32, type = i32} : i32
  %rows = tile.arange {start = 0, end = 16} : tile<16xi32>
  %ks = tile.arange {start = 0, end = 32} : tile<32xi32>
  %eight = arith.constant {value = 8, type = tile<32xi32>} : tile<32xi32>
  %word = arith.div(%ks, %eight) : tile<32xi32>
  %rest = arith.rem(%ks, %eight) : tile<32xi32>
  %words = tile.expand_dims(%word) {axis = 1} : tile<32x1xi32>
  %sixteen = arith.constant {value = 16, type = tile<32x1xi32>} : tile<32x1xi32>
  %down = arith.mul(%words, %sixteen) : tile<32x1xi32>
  %across = tile.expand_dims(%rows) {axis = 0} : tile<1x16xi32>
  %d = tile.broadcast(%down) {shape = [32, 16]} : tile<32x16xi32>
  %a = tile.broadcast(%across) {shape = [32, 16]} : tile<32x16xi32>
  %offset = arith.add(%d, %a) : tile<32x16xi32>
  %base = tile.splat(%w) {shape = [32, 16]} : tile<32x16x*i32>
  %ptrs = arith.addptr(%base, %offset) : tile<32x16x*i32>
  %r2 = tile.expand_dims(%rows) {axis = 1} : tile<16x1xi32>
  %pitch = tile.splat(%k) {shape = [16, 1]} : tile<16x1xi32>
  %xr = arith.mul(%r2, %pitch) : tile<16x1xi32>
  %xrow = tile.broadcast(%xr) {shape = [16, 32]} : tile<16x32xi32>
  %kcol = tile.expand_dims(%ks) {axis = 0} : tile<1x32xi32>
  %shift1 = tile.expand_dims(%rest) {axis = 1} : tile<32x1xi32>
  %shift = tile.broadcast(%shift1) {shape = [32, 16]} : tile<32x16xi32>
  %next = arith.constant {value = 64, type = tile<32x16xi32>} : tile<32x16xi32>
  %one = arith.constant {value = 1, type = tile<32x16xi32>} : tile<32x16xi32>
  %none = arith.constant {value = 0, type = tile<32x16xi32>} : tile<32x16xi32>
  %nothing = arith.constant {value = 0.0, type = tile<16x32xfp32>} : tile<16x32xfp32>
  %init = arith.constant {value = 0.0, type = tile<16x16xfp32>} : tile<16x16xfp32>
  %acc, %last = scf.for(%zero, %k, %step, %init, %ptrs) (%i: i32, %sum: tile<16x16xfp32>, %p: tile<32x16x*i32>) {
    %left = arith.sub(%k, %i) : i32
    %lefts = tile.splat(%left) {shape = [32]} : tile<32xi32>
    %valid = arith.compare(%ks, %lefts) {predicate = "lt"} : tile<32xi1>
    %valid2 = tile.expand_dims(%valid) {axis = 1} : tile<32x1xi1>
    %mask = tile.broadcast(%valid2) {shape = [32, 16]} : tile<32x16xi1>
    %word2 = tile.load(%p, %mask, %none) : tile<32x16xi32>
    %bits = arith.shr(%word2, %shift) : tile<32x16xi32>
    %bit = arith.and(%bits, %one) : tile<32x16xi32>
    %b = arith.cast(%bit) {dtype = fp32} : tile<32x16xfp32>
    %is = tile.splat(%i) {shape = [1, 32]} : tile<1x32xi32>
    %kk = arith.add(%kcol, %is) : tile<1x32xi32>
    %kks = tile.broadcast(%kk) {shape = [16, 32]} : tile<16x32xi32>
    %xoff = arith.add(%xrow, %kks) : tile<16x32xi32>
    %xbase = tile.splat(%x) {shape = [16, 32]} : tile<16x32x*fp32>
    %xp = arith.addptr(%xbase, %xoff) : tile<16x32x*fp32>
    %valid3 = tile.expand_dims(%valid) {axis = 0} : tile<1x32xi1>
    %xmask = tile.broadcast(%valid3) {shape = [16, 32]} : tile<16x32xi1>
    %xs = tile.load(%xp, %xmask, %nothing) : tile<16x32xfp32>
    %dot = tile.dot(%xs, %b, %sum) {input_precision = "ieee"} : tile<16x16xfp32>
    %q = arith.addptr(%p, %next) : tile<32x16x*i32>
    scf.yield(%dot, %q)
  } : tile<16x16xfp32>, tile<32x16x*i32>
  %o1 = arith.constant {value = 16, type = tile<16x1xi32>} : tile<16x1xi32>
  %o2 = arith.mul(%r2, %o1) : tile<16x1xi32>
  %o3 = tile.broadcast(%o2) {shape = [16, 16]} : tile<16x16xi32>
  %o4 = tile.broadcast(%across) {shape = [16, 16]} : tile<16x16xi32>
  %o5 = arith.add(%o3, %o4) : tile<16x16xi32>
  %o6 = tile.splat(%out) {shape = [16, 16]} : tile<16x16x*fp32>
  %o7 = arith.addptr(%o6, %o5) : tile<16x16x*fp32>
  tile.store(%o7, %acc, _)
  scf.return
}
"""


def _assert_same_meaning(text: str, kernel: Kernel, k: int) -> None:
    rng = np.random.default_rng(k)
    x = rng.normal(size=16 * max(k, 1)).astype(np.float32)
    w = rng.integers(-(1 << 31), 1 << 31, 1024, dtype=np.int64).astype(np.int32)
    assert_same_meaning(text, kernel, [x, w, np.full(256, np.nan, np.float32), k])


@pytest.mark.parametrize("k", [0, 16, 32, 80])
def test_words_are_loaded_once_though_a_loop_carries_their_addresses(k: int) -> None:
    _assert_same_meaning(CARRIED, applied(CARRIED, narrow_loads), k)


@pytest.mark.parametrize(
    ("old", "new", "every"),
    [
        ("", "", 8),
        ("value = 8,", "value = 12,", 4),
        ("value = 8,", "value = 7,", 1),
        ("start = 0, end = 32", "start = 4, end = 36", 4),
        ("start = 0, end = 32", "start = 1, end = 33", 1),
        ("{divisibility = 16}", "{divisibility = 2}", 2),  # of masks
        (" {divisibility = 16}", "", 1),
        ("%b = arith.cast(%bit)", "%b = arith.cast(%one)", 1),  # for no dot
        ("%down = arith.mul(%words, %sixteen)", "%down = arith.mul(%words, %words)", 8),
    ],
)
def test_only_what_repeats_for_every_launch_is(old: str, new: str, every: int) -> None:
    text = without_checks(CARRIED.replace(old, new) if old else CARRIED)
    assert (text != without_checks(CARRIED)) == bool(old)
    schedule, kernel = Schedule(TARGETS["sm_90a"]), parse_kernel(text)
    narrow_loads(kernel, schedule)
    verify(kernel)
    remarks = [remark for remark in schedule.remarks if "is loaded once" in remark]
    assert len(remarks) == (every > 1)
    assert all(f"{every} elements in a row" in remark for remark in remarks)
    _assert_same_meaning(text, kernel, 32)
