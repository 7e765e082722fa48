"""Tiles between two tensor copies: selection for a new layout, and equal results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc import frontend
from aotc.config import Config
from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import gpu, tma
from aotc.ir.passes import Observer
from aotc.schedule.context import Schedule
from aotc.schedule.epilogue.pipeline_tma_stores import pipeline_tma_stores
from aotc.schedule.layout.fit_copies import fit_copies
from aotc.schedule.pipeline import schedule_kernel
from aotc.schedule.pipelining.expand_tensor_loads import expand_tensor_loads
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run
from tests.support.descriptors import PRELUDE, compiled, launch, like, tensor
from tests.support.pass_case import applied, assert_same_meaning

BLOCK = "tensordesc<bf16[64,64]>"

COPIES = {
    "transposed": "x.load([0, 0]).T",
    "scaled": "(x.load([0, 0]) * 2.0).to(tl.bfloat16).T",
    "squared": "(block.T * block.T).to(tl.bfloat16)",
    "by a scalar": "(x.load([0, 0]).T.to(tl.float32) * n).to(tl.bfloat16)",
    "turned twice": "tl.reshape(tl.permute(tl.reshape(x.load([0, 0]), (8, 8, 64)), (2, 1, 0)), "
    "(64, 64))",
}
NO_COPIES = {
    "a sum of two": "x.load([0, 0]).T + x.load([0, 8])",
    "looked at elsewhere": "block.T + tl.max(block.to(tl.float32)).to(tl.bfloat16)",
    "of threads' own": "tl.zeros((64, 64), tl.bfloat16) + n",
}


def scheduled(folder: Path, expression: str) -> tuple[Kernel, bool]:
    """Schedule a kernel storing an expression; return whether `fit_copies` changed it."""
    before = "    block = x.load([0, 0])\n" if "block" in expression else ""
    path = folder / "kernel.py"
    source = f"{PRELUDE}def k(x, y, n):\n{before}    y.store([0, 0], {expression})\n"
    path.write_text(source, encoding="utf-8")
    translation = frontend.translate(str(path), "k", {"x": BLOCK, "y": BLOCK, "n": "i32"}, {})
    reads: dict[str, list[Op]] = {}

    def note(name: str, kernel: Kernel) -> None:
        reads[name] = [op for op in kernel.walk() if isinstance(op, gpu.SharedLoad)]

    schedule = Schedule(TARGETS["sm_90a"], Config(4))
    kernel = schedule_kernel(translation.kernel, schedule, Observer(verify_each=True, on_pass=note))
    return kernel, reads["fit_copies"] != reads["hoist_conversions"]


@pytest.mark.parametrize("expression", COPIES.values(), ids=COPIES)
def test_a_copy_is_laid_out_anew(tmp_path: Path, expression: str) -> None:
    kernel, changed = scheduled(tmp_path, expression)
    assert changed
    ops = list(kernel.walk())
    assert sum(isinstance(op, gpu.SharedLoad) for op in ops) == 1
    assert sum(isinstance(op, gpu.SharedStore) for op in ops) == 1
    assert not any(isinstance(op, gpu.Convert | gpu.ShuffleConvert) for op in ops)
    assert any(isinstance(op, tma.TmaStore) for op in ops)


@pytest.mark.parametrize("expression", NO_COPIES.values(), ids=NO_COPIES)
def test_what_others_look_at_stays(tmp_path: Path, expression: str) -> None:
    _, changed = scheduled(tmp_path, expression)
    assert not changed


@pytest.mark.emulated
@pytest.mark.parametrize("name", COPIES)
def test_it_stores_what_it_stored(tmp_path: Path, name: str) -> None:
    expression = COPIES[name]
    before = "    block = x.load([0, 0])\n" if "block" in expression else ""
    source = f"def k(x, y, n):\n{before}    y.store([0, 0], {expression})\n"
    kernel = compiled(tmp_path, source, {"x": BLOCK, "y": BLOCK, "n": "i32"})
    x = tensor((64, 64), "bf16", padding=1)
    y = like(x)
    launch(kernel, (1,), {"x": x, "y": y, "n": 3}, seed=1)
    turned = x.T.astype(np.float32)
    expected = {
        "transposed": turned,
        "scaled": 2 * turned,
        "squared": turned * turned,
        "by a scalar": 3 * turned,
        "turned twice": x.astype(np.float32).reshape(8, 8, 64).transpose(2, 1, 0).reshape(64, 64),
    }[name]
    np.testing.assert_array_equal(y.astype(np.float32), expected.astype(y.dtype).astype(np.float32))


def test_the_interpreter_agrees(tmp_path: Path) -> None:
    kernel, _ = scheduled(tmp_path, COPIES["scaled"])
    x = tensor((64, 64), "bf16")
    y = like(x)
    run(kernel, (1,), [x, y, 3])
    np.testing.assert_array_equal(y.astype(np.float32), 2 * x.T.astype(np.float32))


TEXT = """\
// CHECK: [[READ:%.*]] = gpu.shared_load(%from) {{{.*}}vector = 8, matrix = "b16"}
// CHECK: %t = tile.trans([[READ]]) {order = [1, 0]}
// CHECK-NEXT: gpu.staged_tma_store(%y, %t, %to, %zero, %zero)
// CHECK-NOT: gpu.convert
#0 = #ll<offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[0,32],[1,8],[2,16],[4,32],[8,0],[16,0],[32,0]] : [64,64]>
#1 = #ll<register=[[0,1],[0,2],[0,4],[16,0],[32,0]] lane=[[0,8],[0,16],[0,32],[1,0],[2,0]] warp=[[4,0],[8,0]] : [64,64]>
#2 = #ll<register=[[0,1],[0,2],[0,4],[16,0],[32,0]] lane=[[0,9],[0,18],[0,36],[1,0],[2,0]] warp=[[4,0],[8,0]] : [64,64]>
#3 = #ll<register=[[1,0],[2,0],[4,0],[0,16],[0,32]] lane=[[9,0],[18,0],[36,0],[0,1],[0,2]] warp=[[0,4],[0,8]] : [64,64]>
kernel @k(%x: map<64x64xbf16, 128>, %y: map<64x64xbf16, 128>) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %from = gpu.shared_alloc {element = bf16, shape = [64, 64], layout = #0, alignment_bytes = 1024} : shared<64x64xbf16, #0>
  gpu.sync_tma_load(%x, %from, %zero, %zero)
  %v = gpu.shared_load(%from) {layout = #1, vector = 8} : tile<64x64xbf16, #1>
  %to = gpu.shared_alloc {element = bf16, shape = [64, 64], layout = #0, alignment_bytes = 1024} : shared<64x64xbf16, #0>
  %c = gpu.convert(%v) {layout = #2} : tile<64x64xbf16, #2>
  %t = tile.trans(%c) {order = [1, 0]} : tile<64x64xbf16, #3>
  gpu.staged_tma_store(%y, %t, %to, %zero, %zero)
  scf.return
}
"""


def test_a_transposed_copy_is_read_and_written_by_matrices() -> None:
    kernel = applied(TEXT, fit_copies)
    x = tensor((64, 64), "bf16")
    stores = (expand_tensor_loads, pipeline_tma_stores)
    lowered = (*stores, allocate_shared, insert_barriers)
    assert_same_meaning(TEXT, kernel, [x, like(x)], lower=lowered)
