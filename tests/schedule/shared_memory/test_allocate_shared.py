"""Buffers live at different times share bytes; those live together do not."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.core import Kernel
from aotc.ir.dialects import gpu
from aotc.ir.text import parse_kernel
from aotc.ir.types import SharedType
from aotc.schedule.context import Schedule
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.target import TARGETS
from tests.support.pass_case import applied, assert_same_meaning

_LAYOUTS = """\
#0 = #ll<register=[[1],[2]] lane=[[4],[8],[16],[32],[64]] warp=[[128],[256]] : [512]>
#1 = #ll<offset=[[1],[2],[4],[8],[16],[32],[64],[128],[256]] : [512]>
"""
_ALLOC = "gpu.shared_alloc {element = fp32, shape = [512], layout = #1} : shared<512xfp32, #1>"
TEXT = f"""\
// CHECK: shared_bytes = 4096
// CHECK: %a = gpu.shared_alloc {{{{.*}}}}offset_bytes = 0}}
// CHECK: %b = gpu.shared_alloc {{{{.*}}}}offset_bytes = 2048}}
// CHECK: %c = gpu.shared_alloc {{{{.*}}}}offset_bytes = 0}}
{_LAYOUTS}kernel @k(%x: *fp32, %out: *fp32) {{num_warps = 4}} {{
  %i = tile.arange {{start = 0, end = 512, layout = #0}} : tile<512xi32, #0>
  %xs = tile.splat(%x) {{shape = [512], layout = #0}} : tile<512x*fp32, #0>
  %p = arith.addptr(%xs, %i) : tile<512x*fp32, #0>
  %v = gpu.load(%p, _, _) : tile<512xfp32, #0>
  %a = {_ALLOC}
  gpu.shared_store(%v, %a)
  %b = {_ALLOC}
  %w = gpu.shared_load(%a) {{layout = #0, element = fp32}} : tile<512xfp32, #0>
  gpu.shared_store(%w, %b)
  %c = {_ALLOC}
  %u = gpu.shared_load(%b) {{layout = #0, element = fp32}} : tile<512xfp32, #0>
  gpu.shared_store(%u, %c)
  %t = gpu.shared_load(%c) {{layout = #0, element = fp32}} : tile<512xfp32, #0>
  %os = tile.splat(%out) {{shape = [512], layout = #0}} : tile<512x*fp32, #0>
  %q = arith.addptr(%os, %i) : tile<512x*fp32, #0>
  gpu.store(%q, %t, _)
  scf.return
}}
"""


def test_the_bytes_of_a_buffer_are_used_again_after_its_last_read() -> None:
    kernel = applied(TEXT, allocate_shared, insert_barriers)
    x = np.random.default_rng(4).normal(size=512).astype(np.float32)
    assert_same_meaning(TEXT, kernel, [x, np.full(512, 777, np.float32)])


def _kernel(uses: list[tuple[int, int, int]]) -> Kernel:
    """Return a kernel of buffers (log2 of elements, first, last): stores at the first op to loads."""
    layouts: list[str] = []
    lines: list[tuple[int, str]] = []
    for index, (bits, first, last) in enumerate(uses):
        columns = ",".join(f"[{1 << bit}]" for bit in range(bits))
        size, buffer, placed = 1 << bits, 2 * index, 2 * index + 1
        threads = "lane=[[0],[0],[0],[0],[0]] warp=[[0],[0]]"
        layouts.append(f"#{buffer} = #ll<register=[{columns}] {threads} : [{size}]>\n")
        layouts.append(f"#{placed} = #ll<offset=[{columns}] : [{size}]>\n")
        kind, memory = f"tile<{size}xfp32, #{buffer}>", f"shared<{size}xfp32, #{placed}>"
        alloc = f"gpu.shared_alloc {{element = fp32, shape = [{size}], layout = #{placed}}}"
        load = f"gpu.shared_load(%b{index}) {{layout = #{buffer}, element = fp32}}"
        lines += [
            (first, f"%z{index} = arith.constant {{value = 1.0, type = {kind}}} : {kind}"),
            (first, f"%b{index} = {alloc} : {memory}"),
            (first, f"gpu.shared_store(%z{index}, %b{index})"),
            (last, f"%w{index} = {load} : {kind}"),
        ]
    body = "\n".join(line for _, line in sorted(lines, key=lambda numbered_line: numbered_line[0]))
    head = "kernel @k(%out: *fp32) {num_warps = 4} {\n"
    return parse_kernel(f"{''.join(layouts)}{head}{body}\nscf.return\n}}\n")


@given(
    st.lists(
        st.tuples(st.integers(8, 12), st.integers(0, 20), st.integers(0, 9)),
        min_size=1,
        max_size=8,
    )
)
def test_buffers_that_are_live_together_have_bytes_of_their_own(
    drawn: list[tuple[int, int, int]],
) -> None:
    kernel = _kernel([(bits, first, first + more) for bits, first, more in drawn])
    allocate_shared(kernel, Schedule(TARGETS["sm_90a"]))
    numbers = {op: number for number, op in enumerate(kernel.body)}
    spans: list[tuple[int, int, int, int]] = []
    for op in kernel.body:
        if isinstance(op, gpu.SharedAlloc):
            assert isinstance(op.out.type, SharedType)
            assert op.offset_bytes % op.alignment_bytes == 0
            end = op.offset_bytes + op.out.type.size_bytes
            assert end <= kernel.shared_bytes
            last = max(numbers[user] for user in op.out.users)
            spans.append((numbers[op], last, op.offset_bytes, end))
    for span, other in itertools.combinations(spans, 2):
        live_together = span[0] <= other[1] and other[0] <= span[1]
        share_bytes = span[2] < other[3] and other[2] < span[3]
        assert not (live_together and share_bytes)
    assert kernel.shared_bytes <= sum(end - start for _, _, start, end in spans)
