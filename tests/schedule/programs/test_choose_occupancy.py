"""CTAs per SM, chosen by the registers live while threads wait for each other."""

from __future__ import annotations

import pytest

from aotc.config import Config
from aotc.ir.text import parse_kernel
from aotc.schedule.context import Schedule
from aotc.schedule.programs.choose_occupancy import choose_occupancy
from aotc.target import TARGETS
from tests.support.pass_case import applied

_LAYOUTS = """\
#0 = #ll<register=[REGISTERS] lane=[[1],[2],[4],[8],[16]] warp=[[32],[64]] : [SIZE]>
#1 = #ll<offset=[OFFSETS] : [SIZE]>
"""
_BODY = """\
kernel @k(%x: *fp32, %n: i32) {num_warps = 4} {
  %i = tile.arange {start = 0, end = SIZE, layout = #0} : tile<SIZExi32, #0>
  %xs = tile.splat(%x) {shape = [SIZE], layout = #0} : tile<SIZEx*fp32, #0>
  %p = arith.addptr(%xs, %i) : tile<SIZEx*fp32, #0>
  %row = gpu.load(%p, _, _) : tile<SIZExfp32, #0>
  %buffer = gpu.shared_alloc {element = fp32, shape = [SIZE], layout = #1} : shared<SIZExfp32, #1>
  gpu.shared_store(%row, %buffer)
  gpu.barrier
  %again = OPAQUE
  gpu.store(%p, %again, _)
  scf.return
}
"""
_OPAQUE = "gpu.opaque(%row, _) : tile<SIZExfp32, #0>"
_KEPT = "arith.add(%row, %row) : tile<SIZExfp32, #0>"
TEXT = "// CHECK: {num_warps = 4, min_ctas_per_sm = 4}\n"


def _text(elems: int, again: str = _OPAQUE) -> str:
    """Return a kernel with `elems` fp32 elements of a thread live across an exchange."""
    bits = elems.bit_length() - 1
    registers = ",".join(f"[{128 << bit}]" for bit in range(bits))
    offsets = ",".join(f"[{1 << bit}]" for bit in range(bits + 7))
    layouts = _LAYOUTS.replace("REGISTERS", registers).replace("OFFSETS", offsets)
    return (layouts + _BODY.replace("OPAQUE", again)).replace("SIZE", str(128 * elems))


def _count(text: str, **config: int) -> int:
    kernel = parse_kernel(text)
    kernel.maxnreg = config.get("maxnreg", 0)
    choose_occupancy(kernel, Schedule(TARGETS["sm_90a"], Config(4, **config)))  # type: ignore[arg-type]
    return kernel.min_ctas_per_sm


def test_the_count_stands_in_the_kernel() -> None:
    kernel = applied(TEXT + _text(64), choose_occupancy)
    assert kernel.min_ctas_per_sm == 4


@pytest.mark.parametrize("elems", [1, 2, 8, 32, 64, 128])
def test_what_is_kept_and_a_reserve_fit(elems: int) -> None:
    count = _count(_text(elems))
    registers = TARGETS["sm_90a"].registers_per_sm
    if count:
        assert count * 128 * elems <= registers
    assert count <= _count(_text(1))


def test_a_kernel_that_hides_nothing_is_left_to_ptxas() -> None:
    assert _count(_text(64, _KEPT)) == 0


def test_a_bound_of_the_config_counts() -> None:
    assert _count(_text(64), maxnreg=96) == 0


def test_one_cta_is_no_bound() -> None:
    assert _count(_text(256)) == 0
