"""Dot operands exchanged by threads: two buffers, one barrier per iteration, refusals."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aotc.config import Config
from aotc.frontend import translate
from aotc.ir.text import parse_kernel, print_kernel
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.schedule.pipelining.rotate_exchanges import rotate_exchanges
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run
from tests.support.descriptors import compiled, launch, like, lowered, tensor
from tests.support.pass_case import applied

SOURCE = """def k(a, b, v, c, n):
    query = a.load([0, 0])
    total = tl.zeros((64, 64), tl.float32)
    for key in range(0, n, 64):
        score = tl.dot(query, b.load([key, 0]).T)
        weight = (score * 0.5).to(tl.float16)
        total = tl.dot(weight, v.load([key, 0]), total)
        c.store([64 + key, 0], tl.dot(weight.T, query))
    c.store([0, 0], total)
"""
SIGNATURE = {
    **dict.fromkeys("abv", "tensordesc<fp16[64,64]>"),
    "c": "tensordesc<fp32[64,64]>",
    "n": "i32",
}
SM_90A = TARGETS["sm_90a"]
RING = re.compile(r"gpu\.shared_alloc \{element = fp16, shape = \[64, 64\],[^}]*num_stages = 2\}")


def test_iterations_take_the_buffers_in_turn(tmp_path: Path) -> None:
    text, _ = lowered(tmp_path, SOURCE, SIGNATURE, 4, num_stages=2)
    assert len(RING.findall(text)) == 3  # of keys, of values, of the exchange
    loop = text[text.index("gpu.wgmma(") : text.index("scf.yield")]
    write = loop.index("matrix = ")
    assert loop[:write].count("gpu.barrier") == 0
    between = loop[write : loop.index("gpu.wgmma(", write)]
    assert between.count("gpu.barrier") == 1


@pytest.mark.emulated
@pytest.mark.parametrize("num_warps", [4, 8])
@pytest.mark.parametrize("num_stages", [1, 2])
def test_results(tmp_path: Path, num_stages: int, num_warps: int) -> None:
    options = {"num_stages": num_stages, "num_warps": num_warps}
    kernel = compiled(tmp_path, SOURCE, SIGNATURE, **options)
    for n in (1, 64, 65, 128, 64 * 5):
        a, b, v = (
            tensor(shape, "fp16", seed=n + index) / np.float16(64)
            for index, shape in enumerate(((64, 64), (n, 64), (n, 64)))
        )
        c = like(tensor((64 + n, 64), "fp32"))
        launch(kernel, (1,), {"a": a, "b": b, "c": c, "v": v, "n": n}, seed=n)
        weight = (a.astype(np.float64) @ b.astype(np.float64).T * 0.5).astype(np.float16)
        total = weight.astype(np.float64) @ v.astype(np.float64)
        stored = weight.astype(np.float64).T @ a.astype(np.float64)
        np.testing.assert_allclose(c[:64], total, rtol=0, atol=1e-2 * np.abs(total).max())
        np.testing.assert_allclose(c[64:], stored, rtol=0, atol=1e-2 * np.abs(stored).max())


CHECKS = """\
// CHECK: %0 = gpu.shared_alloc {{.*}}num_stages = 2}
// CHECK: scf.for({{.*}}, %total: tile<64x64xfp32, #1>, %stage: i32)
// CHECK: %buffer = gpu.shared_stage(%0, %stage)
// CHECK: gpu.shared_store(%tile, %buffer)
// CHECK: gpu.wgmma(%buffer, %keys,
// CHECK: %2 = gpu.next_stage(%stage) {num_stages = 2}
// CHECK: scf.yield(%sum, %2)
"""
LOOP = """\
#0 = #ll<offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[0,32],[1,8],[2,16],[4,32],[8,0],[16,0],[32,0]] : [64,64]>
#1 = #ll<register=[[0,1],[8,0],[0,8],[0,16],[0,32]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0]] : [64,64]>
kernel @k(%n: i32) {num_warps = 4, producer_warps = 1} {
  %keys = gpu.shared_alloc {element = fp16, shape = [64, 64], layout = #0, alignment_bytes = 1024} : shared<64x64xfp16, #0>
  gpu.specialize () {
    %zero = arith.constant {value = 0, type = i32} : i32
    %one = arith.constant {value = 1, type = i32} : i32
    %none = arith.constant {value = 0.0, type = tile<64x64xfp32, #1>} : tile<64x64xfp32, #1>
    %fresh = gpu.undefined {type = tile<64x64xfp32, #1>} : tile<64x64xfp32, #1>
    %never = arith.constant {value = false, type = i1} : i1
    %end = scf.for(%zero, %n, %one, %none) {unroll = 1} (%k: i32, %total: tile<64x64xfp32, #1>) {
      %scalar = arith.cast(%k) {dtype = fp16} : fp16
      %tile = tile.splat(%scalar) {shape = [64, 64], layout = #1} : tile<64x64xfp16, #1>
      %buffer = gpu.shared_alloc {element = fp16, shape = [64, 64], layout = #0, alignment_bytes = 1024} : shared<64x64xfp16, #0>
      gpu.shared_store(%tile, %buffer) {vector = 2}
      %dot = gpu.wgmma(%buffer, %keys, %fresh, %never) : tile<64x64xfp32, #1>
      %part = gpu.wgmma_wait(%dot) {num_columns = [0]} : tile<64x64xfp32, #1>
      %sum = arith.add(%total, %part) : tile<64x64xfp32, #1>
      scf.yield(%sum)
    } : tile<64x64xfp32, #1>
    scf.yield()
  } () {
    scf.yield()
  }
  scf.return
}
"""


def _rewritten(text: str, max_shared_bytes: int = SM_90A.max_shared_bytes) -> str:
    kernel = parse_kernel(text)
    target = replace(SM_90A, max_shared_bytes=max_shared_bytes)
    rotate_exchanges(kernel, Schedule(target, Config(4)))
    return print_kernel(kernel)


def test_an_exchange_becomes_a_ring() -> None:
    applied(CHECKS + LOOP, rotate_exchanges, config=Config(4))


def test_a_second_buffer_has_to_fit() -> None:
    held_bytes = 3 * 64 * 64 * 2
    assert _rewritten(LOOP, held_bytes) != print_kernel(parse_kernel(LOOP))
    assert _rewritten(LOOP, held_bytes - 1) == print_kernel(parse_kernel(LOOP))


def test_what_threads_read_stays() -> None:
    layout = "{layout = #1, vector = 1} : tile<64x64xfp16, #1>"
    text = LOOP.replace(
        "      %dot =", f"      %read = gpu.shared_load(%buffer) {layout}\n      %dot ="
    )
    assert text != LOOP
    assert _rewritten(text) == print_kernel(parse_kernel(text))


@pytest.mark.emulated
def test_buffers_of_a_loop_inside_are_not_those_of_the_loop_around(tmp_path: Path) -> None:
    """For example, stages of masked loads in a loop over tiles."""
    source = """def k(a, b, c, m, n, k):
    for tile in tl.range(tl.program_id(0), m // 64, tl.num_programs(0)):
        rows = tile * 64 + tl.arange(0, 64)
        total = tl.zeros((64, 64), tl.float32)
        for start in range(0, k, 64):
            at = start + tl.arange(0, 64)
            left = tl.load(a + rows[:, None] * k + at[None, :], mask=(at < k)[None, :], other=1.0)
            total = tl.dot(left, b.load([start, 0]), total)
        c.store([tile * 64, 0], total)
"""
    signature = {
        "a": "*fp16:16",
        "b": "tensordesc<fp16[64,64]>",
        "c": "tensordesc<fp32[64,64]>",
        **dict.fromkeys("mn", "i32"),
        "k": "i32:16",
    }
    kernel = compiled(tmp_path, source, signature, num_stages=4)
    for k in (16, 64, 208):
        a, b = (tensor(shape, "fp16", seed=k) / np.float16(64) for shape in ((128, k), (k, 64)))
        c = like(tensor((128, 64), "fp32"))
        launch(kernel, (1,), {"a": a, "b": b, "c": c, "m": 128, "n": 64, "k": k}, seed=k)
        expected = a.astype(np.float64) @ b.astype(np.float64)
        np.testing.assert_allclose(c, expected, rtol=0, atol=1e-2 * np.abs(expected).max())


ROWS = """def k(x_ptr, out_ptr, n):
    cols = tl.arange(0, 512)
    for row in range(0, n):
        x = tl.load(x_ptr + row * 512 + cols)
        REDUCED
        tl.store(out_ptr + row * 512 + cols, x * total)
"""
ONCE = "total = tl.sum(x, 0)"
TWO_VALUES = "total, most = tl.reduce((x, -x), 0, both); total -= most"
TWICE = "total = tl.sum(x, 0); total = tl.sum(x * total, 0)"
BOTH = """@triton.jit
def both(a, b, c, d):
    return a + c, tl.maximum(b, d)
"""


@pytest.mark.parametrize(
    ("reduced", "rings", "barriers"), [(ONCE, 1, 1), (TWO_VALUES, 2, 1), (TWICE, 0, 2)]
)
def test_a_reduction_in_a_loop_takes_one_barrier(
    tmp_path: Path, reduced: str, rings: int, barriers: int
) -> None:
    path = tmp_path / "rows.py"
    source = ROWS.replace("REDUCED", reduced)
    path.write_text(f"import triton\nimport triton.language as tl\n\n{BOTH}\n@triton.jit\n{source}")
    signature = {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16", "n": "i32"}
    kernel = translate(str(path), "k", signature, {}).kernel
    x = np.random.default_rng(rings).integers(-9, 9, (5, 512)).astype(np.float32)
    expected = np.zeros_like(x)
    run(kernel, (1,), [x.reshape(-1), expected.reshape(-1), 5])
    scheduled = schedule_kernel(kernel, Schedule(SM_90A, Config(num_warps=4)))
    text = print_kernel(scheduled)
    assert len(re.findall(r"shared_alloc .*num_stages = 2", text)) == rings
    body = text[text.index("scf.for") : text.rindex("scf.yield")]
    assert body.count("gpu.barrier") == barriers
    output = np.zeros_like(x)
    run(scheduled, (1,), [x.reshape(-1), output.reshape(-1), 5])
    np.testing.assert_array_equal(output, expected)
