"""Indices are loaded in their addresses' layouts, unless also used as data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotc
import aotc.schedule.layout.index_loads as index_loads_module
from aotc.compiler import translate_request
from aotc.ir.core import Value
from aotc.ir.text import parse_kernel
from aotc.schedule.layout.assign_layouts import assign_layouts
from aotc.schedule.layout.index_loads import index_loads
from aotc.schedule.layout.plan_conversions import plan_conversions
from tests.support.descriptors import compiled, launch, lowered
from tests.support.pass_case import applied, assert_same_meaning
from tests.support.repeated_kernels import repeated

# 64 rows of 128 columns, wherever the indices say.
GATHER = """\
kernel @k(%x: *fp32 {divisibility = 16}, %rows: *i32 {divisibility = 16}, %out: *fp32 {divisibility = 16}, %n: i32) {num_warps = 4} {
  %at = tile.arange {start = 0, end = 64} : tile<64xi32>
  %columns = tile.arange {start = 0, end = 128} : tile<128xi32>
  %width = arith.constant {value = 128, type = tile<64x1xi32>} : tile<64x1xi32>
  %none = arith.constant {value = 0, type = tile<64xi32>} : tile<64xi32>
  %bound = tile.splat(%n) {shape = [64]} : tile<64xi32>
  %seen = arith.compare(%at, %bound) {predicate = "lt"} : tile<64xi1>
  %base = tile.splat(%rows) {shape = [64]} : tile<64x*i32>
  %pointers = arith.addptr(%base, %at) : tile<64x*i32>
  %index = tile.load(%pointers, %seen, %none) {volatile = false} : tile<64xi32>
  %row = tile.expand_dims(%index) {axis = 1} : tile<64x1xi32>
  %start = arith.mul(%row, %width) : tile<64x1xi32>
  %starts = tile.broadcast(%start) {shape = [64, 128]} : tile<64x128xi32>
  %column = tile.expand_dims(%columns) {axis = 0} : tile<1x128xi32>
  %offsets = tile.broadcast(%column) {shape = [64, 128]} : tile<64x128xi32>
  %places = arith.add(%starts, %offsets) : tile<64x128xi32>
  %xs = tile.splat(%x) {shape = [64, 128]} : tile<64x128x*fp32>
  %from = arith.addptr(%xs, %places) : tile<64x128x*fp32>
  %value = tile.load(%from, _, _) : tile<64x128xfp32>
  %line = tile.expand_dims(%at) {axis = 1} : tile<64x1xi32>
  %first = arith.mul(%line, %width) : tile<64x1xi32>
  %firsts = tile.broadcast(%first) {shape = [64, 128]} : tile<64x128xi32>
  %targets = arith.add(%firsts, %offsets) : tile<64x128xi32>
  %outs = tile.splat(%out) {shape = [64, 128]} : tile<64x128x*fp32>
  %to = arith.addptr(%outs, %targets) : tile<64x128x*fp32>
  tile.store(%to, %value, _)
  scf.return
}
"""
STORE = "  tile.store(%to, %value, _)\n"
CHECKS = """\
// CHECK-NOT: gpu.shared_alloc
// CHECK-NOT: gpu.shuffle_convert
// CHECK: %index = gpu.load(%pointers, %seen, %none) : tile<64xi32, #
// CHECK-NEXT: tile.expand_dims(%index)
// CHECK-NOT: gpu.shared_alloc
// CHECK-NOT: gpu.shuffle_convert
// CHECK: gpu.load({{.*}}) {vector = 4
// CHECK-NOT: gpu.load(
"""


def _args() -> list[np.ndarray | int]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 128)).astype(np.float32)
    rows = rng.integers(0, 7, 64).astype(np.int32)
    return [x, rows, np.zeros((64, 128), np.float32), 61]


def test_an_index_is_loaded_where_the_address_needs_it() -> None:
    kernel = applied(CHECKS + GATHER, assign_layouts, plan_conversions)
    assert_same_meaning(GATHER, kernel, _args())


HALVES = """\
  %few = tile.arange {start = 0, end = 64} : tile<64xi32>
  %half = tile.expand_dims(%few) {axis = 0} : tile<1x64xi32>
  %halves = tile.broadcast(%half) {shape = [64, 64]} : tile<64x64xi32>
  %starts2 = tile.broadcast(%start) {shape = [64, 64]} : tile<64x64xi32>
  %places2 = arith.add(%starts2, %halves) : tile<64x64xi32>
  %xs2 = tile.splat(%x) {shape = [64, 64]} : tile<64x64x*fp32>
  %from2 = arith.addptr(%xs2, %places2) : tile<64x64x*fp32>
  %value2 = tile.load(%from2, _, _) : tile<64x64xfp32>
  %firsts2 = tile.broadcast(%first) {shape = [64, 64]} : tile<64x64xi32>
  %targets2 = arith.add(%firsts2, %halves) : tile<64x64xi32>
  %outs2 = tile.splat(%out) {shape = [64, 64]} : tile<64x64x*fp32>
  %to2 = arith.addptr(%outs2, %targets2) : tile<64x64x*fp32>
  %twice = arith.add(%value2, %value2) : tile<64x64xfp32>
  tile.store(%to2, %twice, _)
"""


def test_an_index_of_two_layouts_is_loaded_in_each() -> None:
    checks = """\
// CHECK-NOT: gpu.shared_alloc
// CHECK: [[INDEX:%[a-z_0-9]+]] = gpu.load(%pointers{{.*}})
// CHECK-NEXT: [[OTHER:%[a-z_0-9]+]] = gpu.load(%pointers{{.*}})
// CHECK-DAG: tile.expand_dims([[INDEX]]) {axis = 1}
// CHECK-DAG: tile.expand_dims([[OTHER]]) {axis = 1}
// CHECK-NOT: gpu.shared_alloc
"""
    text = GATHER.replace(STORE, STORE + HALVES)
    kernel = applied(checks + text, assign_layouts, plan_conversions)
    assert_same_meaning(text, kernel, _args())


# Each thread needs all indices, as columns.
COLUMNS = """\
  %gap = arith.constant {value = 7, type = tile<1x64xi32>} : tile<1x64xi32>
  %other = tile.expand_dims(%index) {axis = 0} : tile<1x64xi32>
  %skip = arith.mul(%other, %gap) : tile<1x64xi32>
  %skips = tile.broadcast(%skip) {shape = [128, 64]} : tile<128x64xi32>
  %down = tile.expand_dims(%columns) {axis = 1} : tile<128x1xi32>
  %downs = tile.broadcast(%down) {shape = [128, 64]} : tile<128x64xi32>
  %cells = arith.add(%skips, %downs) : tile<128x64xi32>
  %xs2 = tile.splat(%x) {shape = [128, 64]} : tile<128x64x*fp32>
  %from2 = arith.addptr(%xs2, %cells) : tile<128x64x*fp32>
  %value2 = tile.load(%from2, _, _) : tile<128x64xfp32>
  %back = tile.trans(%value2) {order = [1, 0]} : tile<64x128xfp32>
  %sum = arith.add(%value, %back) : tile<64x128xfp32>
"""


def test_an_index_that_would_fill_the_registers_is_loaded_once() -> None:
    text = GATHER.replace(STORE, COLUMNS + STORE.replace("%value", "%sum"))
    checks = """\
// CHECK: %index = gpu.load(%pointers, %seen, %none)
// CHECK: %start = arith.mul(
// CHECK-NEXT: gpu.convert(%start)
// CHECK: gpu.load({{.*}}) {vector = 4
// CHECK: tile.expand_dims(%index) {axis = 0}
// CHECK: gpu.load(%from2,
// CHECK-NOT: gpu.load(
"""
    assert_same_meaning(text, applied(checks + text, assign_layouts), _args())


def test_an_index_of_indices_is_one() -> None:
    chain = """\
  %again = arith.addptr(%base, %index) : tile<64x*i32>
  %second = tile.load(%again, %seen, %none) {volatile = false} : tile<64xi32>
"""
    text = GATHER.replace(
        "  %row = tile.expand_dims(%index)", chain + "  %row = tile.expand_dims(%second)"
    )
    assert "%second)" in text
    assert len(index_loads(parse_kernel(text))) == 2
    checks = "// CHECK: %second = gpu.load(%again,\n// CHECK-NOT: gpu.shared_alloc\n"
    kernel = applied(checks + text, assign_layouts, plan_conversions)
    assert_same_meaning(text, kernel, _args())


WRITTEN = "  tile.store(%pointers, %none, %seen)\n"
STORE_INDEX = """\
  %copies = tile.splat(%out) {shape = [64]} : tile<64x*fp32>
  %copy = arith.addptr(%copies, %at) : tile<64x*fp32>
  %number = arith.cast(%index) {dtype = fp32} : tile<64xfp32>
  tile.store(%copy, %number, _)
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%none) {volatile = false}", "%none) {volatile = true}"),
        (STORE, STORE + WRITTEN),
        (STORE, STORE_INDEX + STORE),
    ],
    ids=["volatile", "written", "stored"],
)
def test_what_is_loaded_once(old: str, new: str) -> None:
    assert len(index_loads(parse_kernel(GATHER))) == 1
    text = GATHER.replace(old, new)
    assert text != GATHER
    assert not index_loads(parse_kernel(text))


PAGED = """def k(table, keys, weights, out, n):
    rows, columns = tl.arange(0, 16), tl.arange(0, 64)
    left = tl.load(weights + rows[:, None] * 32 + tl.arange(0, 32)[None, :])
    total = tl.zeros((16, 64), tl.float32)
    for start in range(0, n, 32):
        token = start + tl.arange(0, 32)
        page = tl.load(table + token, mask=token < n, other=0)
        key = tl.load(keys + page[:, None] * 64 + columns[None, :])
        total = tl.dot(left, key, total)
    tl.store(out + rows[:, None] * 64 + columns[None, :], total)
"""


@pytest.mark.emulated
def test_a_loop_issues_a_gather_ahead(tmp_path: Path) -> None:
    signature = {"table": "*i32", "keys": "*fp16:16", "weights": "*fp16:16", "out": "*fp32:16"}
    signature |= {"n": "i32"}
    text, remarks = lowered(tmp_path, PAGED, signature, 4, num_stages=3)
    assert "pipelined over 3 stages through shared memory: keys" in remarks
    assert "pipelined over 4 stages through registers: table" in remarks
    assert "gpu.async_copy" in text
    kernel = compiled(tmp_path, PAGED, signature, num_stages=3)
    rng = np.random.default_rng(1)
    keys, weights = (
        np.sign(rng.standard_normal(shape)).astype(np.float16) for shape in ((9, 64), (16, 32))
    )
    for n in (0, 32, 64, 160):
        table = rng.integers(0, 9, max(n, 1)).astype(np.int32)
        out = np.full((16, 64), 77, np.float32)
        launch(kernel, (1,), {"table": table, "keys": keys, "weights": weights, "out": out, "n": n})
        picked = keys[table[:n]].reshape(-1, 32, 64).astype(np.float32).sum(0)
        np.testing.assert_array_equal(out, weights.astype(np.float32) @ picked)


SCALED = """
def k(a_ptr, b_ptr, scale_ptr, rows_ptr, out_ptr, n, STEP: tl.constexpr):
    i, j = tl.arange(0, 128), tl.arange(0, 64)
    rows = tl.load(rows_ptr + i)
    a_ptrs = a_ptr + rows[:, None] * 64 + j[None, :]
    b = tl.load(b_ptr + j[:, None] * 64 + j[None, :])
    acc = tl.zeros((128, 64), tl.float32)
    for step in range(n):
        scale = tl.load(scale_ptr + step * 128 + i)
        acc += tl.dot(tl.load(a_ptrs), b) * (scale * 2)[:, None]
        a_ptrs += STEP
    tl.store(out_ptr + rows[:, None] * 64 + j[None, :], acc)
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_scales_and_rows_of_a_loop_with_dots_are_loaded_where_they_are_needed(
    tmp_path: Path, target: str
) -> None:
    """A thread has the scales of its few rows, and pointers advanced by a loop come from its rows."""
    pointers = {"a_ptr": "*bf16:16", "b_ptr": "*bf16:16", "scale_ptr": "*fp32:16"}
    signature = {**pointers, "rows_ptr": "*i32:16", "out_ptr": "*fp32:16", "n": "i32"}
    folder = tmp_path / "k.py"
    folder.write_text(f"import triton\nimport triton.language as tl\n\n\n@triton.jit{SCALED}")
    compiled_kernel = aotc.compile(
        f"{folder}:k", signature=signature, constants={"STEP": 8192}, target=target
    )
    of_rows = [
        text
        for text in compiled_kernel.metadata.remarks
        if "a tile of 128 " in text or "128x1 " in text
    ]
    assert not [text for text in of_rows if "exchanged" in text]
    ahead = [text for text in compiled_kernel.metadata.remarks if "through registers" in text]
    assert ahead
    assert "scale_ptr" in ahead[0]


def test_what_sums_of_loads_become_is_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 40
    queries: list[Value] = []
    is_data = index_loads_module._is_data  # pyright: ignore[reportPrivateUsage]

    def counting(value: Value) -> bool:
        queries.append(value)
        return is_data(value)

    monkeypatch.setattr(index_loads_module, "_is_data", counting)
    kernel = translate_request(repeated("row loops", count, "sm_80")).kernel
    assert index_loads_module.index_loads(kernel) == {}
    assert count <= len(queries) <= 12 * count
