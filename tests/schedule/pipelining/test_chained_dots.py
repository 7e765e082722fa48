"""Attention's two dots: scores and weights of the next iteration run beside the second dot of this one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.config import Config
from aotc.schedule.pipelining.pipeline_mma import pipeline_mma
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from tests.support.descriptors import compiled, launch, like, lowered, tensor
from tests.support.pass_case import applied, assert_same_meaning

SOURCE = """def k(q, k, v, out, scale, n, CAUSAL: tl.constexpr = {causal}):
    row = tl.program_id(0) * 64
    rows = row + tl.arange(0, 64)
    query = q.load([row, 0])
    top = tl.full((64,), -1.0e30, tl.float32)
    total = tl.zeros((64,), tl.float32)
    acc = tl.zeros((64, 64), tl.float32)
    for first in range(0, n, 64):
        scores = tl.dot(query, k.load([first, 0]).T) * scale
        columns = first + tl.arange(0, 64)
        seen = (columns <= rows[:, None]) & (columns < n)[None, :] if CAUSAL else columns < n
        scores = tl.where(seen if CAUSAL else seen[None, :], scores, -float("inf"))
        new = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - new[:, None])
        factor = tl.exp2(top - new)
        total = total * factor + tl.sum(weights, 1)
        acc = acc * factor[:, None]
        acc = tl.dot(weights.to(tl.float16), v.load([first, 0]), acc)
        top = new
    out.store([row, 0], acc / total[:, None])
"""
SIGNATURE = {
    **dict.fromkeys("qkv", "tensordesc<fp16[64,64]>"),
    "out": "tensordesc<fp32[64,64]>",
    "scale": "fp32",
    "n": "i32",
}
ARGUMENTS = ("q", "k", "v", "bias", "out", "scale", "n")
AHEAD = "a dot is in flight while the result of the one before is used"


def _expected(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, causal: bool
) -> np.ndarray:
    scores = q.astype(np.float64) @ k.astype(np.float64).T * scale
    if causal:
        scores[np.tril(np.ones_like(scores)) == 0] = -np.inf
    weights = np.exp2(scores - scores.max(1, keepdims=True))
    return weights @ v.astype(np.float64) / weights.sum(1, keepdims=True)


@pytest.mark.emulated
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("num_warps", [4, 8])
def test_attention_is_right_at_every_length(
    tmp_path: Path, num_stages: int, num_warps: int, causal: bool
) -> None:
    source = SOURCE.format(causal=causal)
    signature = SIGNATURE
    if num_warps == 8:
        source = source.replace("64,)", "128,)").replace(
            "acc = tl.zeros((64, ", "acc = tl.zeros((128, "
        )
        source = source.replace("tl.program_id(0) * 64", "tl.program_id(0) * 128")
        source = source.replace("rows = row + tl.arange(0, 64)", "rows = row + tl.arange(0, 128)")
        signature = signature | {
            "q": "tensordesc<fp16[128,64]>",
            "out": "tensordesc<fp32[128,64]>",
        }
    options = {"num_warps": num_warps, "num_stages": num_stages, "mma_stages": 2}
    kernel = compiled(tmp_path, source, signature, **options)
    # At most as many iterations as a ring has stages, and enough to use each twice.
    for seed, n in enumerate((1, 63, 64, 65, 128, 200, 64 * (2 * num_stages + 1))):
        q, k, v = (
            tensor((n, 64), "fp16", seed=3 * seed + index) / np.float16(64) for index in range(3)
        )
        out = like(tensor((n, 64), "fp32"))
        rows = 64 if num_warps == 4 else 128
        scale = (-0.25, 0.5)[seed % 2]
        values = {"q": q, "k": k, "v": v, "out": out, "scale": scale, "n": n}
        launch(kernel, (-(-n // rows),), values, seed=seed)
        expected = _expected(q, k, v, scale, causal)
        # Weights are rounded to fp16, and the rest is fp32.
        bound = 2.0**-10 * np.abs(v.astype(np.float64)).max()
        assert np.abs(out - expected).max() <= bound


def test_the_order_of_an_iteration(tmp_path: Path) -> None:
    text, remarks = lowered(tmp_path, SOURCE.format(causal=False), SIGNATURE, 4, mma_stages=2)
    assert AHEAD in remarks
    body = text[text.index("scf.for", text.index("gpu.wgmma_wait")) :]
    line = next(line for line in text.splitlines() if body.split("\n")[0] in line)
    indentation = line[: len(line) - len(line.lstrip())]
    body = body[: body.index(f"\n{indentation}}} :")]
    words = r"gpu\.wgmma_wait|gpu\.wgmma\b|gpu\.mbarrier_wait|gpu\.mbarrier_arrive|gpu\.reduce|arith\.cast\(%weights"
    assert [op_name.removeprefix("gpu.") for op_name in re.findall(words, body)][:6] == [
        *("mbarrier_wait", "wgmma"),  # the next scores
        "wgmma",  # this iteration's weights by its values, waited for an iteration ago
        *("wgmma_wait", "mbarrier_arrive", "reduce"),
    ]
    pending = re.findall(r"gpu\.wgmma_wait\(.*?\{(.*?)\}", text)
    assert ["pending = 1" in op_name for op_name in pending] == [False, True, False, False]


def test_a_factor_of_each_row_is_carried_and_not_a_tile(tmp_path: Path) -> None:
    text, _ = lowered(tmp_path, SOURCE.format(causal=False), SIGNATURE, 4, mma_stages=2)
    loop = next(line for line in text.splitlines() if "scf.for" in line and "acc" in line)
    arguments = loop[loop.rindex("(") :]
    assert arguments.count("tile<64x64xfp32") == 1  # the accumulator
    assert arguments.count("tile<64x64xfp16") == 1  # the operand of the next second dot


def test_weights_that_need_the_accumulator_stay_in_their_iteration(tmp_path: Path) -> None:
    """No chain: the next scores are in flight, and thread computation stays in place."""
    source = SOURCE.format(causal=False).replace(
        "weights.to(tl.float16)", "(weights + tl.sum(acc, 1)[:, None]).to(tl.float16)"
    )
    text, remarks = lowered(tmp_path, source, SIGNATURE, 4, mma_stages=2)
    assert AHEAD in remarks
    assert text.count("gpu.wgmma(") == 4 + 5  # unrolled by two


@pytest.mark.emulated
def test_weights_that_are_used_as_they_are_rounded_stay_in_their_iteration(tmp_path: Path) -> None:
    """No chain: rounding would happen while the second dot reads the previous weights."""
    source = (
        SOURCE.format(causal=False)
        .replace(
            "weights = tl.exp2(scores - new[:, None])",
            "weights = tl.exp2(scores - new[:, None]).to(tl.float16)",
        )
        .replace("tl.sum(weights, 1)", "tl.sum(weights.to(tl.float32), 1)")
    )
    kernel = compiled(tmp_path, source, SIGNATURE, num_warps=4, num_stages=3, mma_stages=2)
    q, k, v = (tensor((200, 64), "fp16", seed=index) / np.float16(64) for index in range(3))
    out = like(tensor((200, 64), "fp32"))
    values = {"q": q, "k": k, "v": v, "out": out, "scale": 0.5, "n": 200}
    launch(kernel, (4,), values)
    bound = 2.0**-9 * np.abs(v.astype(np.float64)).max()
    assert np.abs(out - _expected(q, k, v, 0.5, causal=False)).max() <= bound


# Weights less a term loaded with each block of keys, and stored.
WEIGHTS_STORED = """def k(q, k, v, rows, weights_ptr, out, scale, n):
    row = tl.program_id(0) * 64
    block = q.load([row, 0])
    acc = tl.zeros((64, 64), tl.float32)
    for first in range(0, n, 64):
        keys = k.load([first, 0])
        of_keys = rows.load([first])
        weights = tl.dot(block, keys.T) * scale - of_keys[None, :]
        at = (row + first + tl.arange(0, 64))[:, None] * 64 + tl.arange(0, 64)[None, :]
        tl.store(weights_ptr + at, weights)
        acc = tl.dot(weights.to(tl.float16), v.load([first, 0]), acc)
    out.store([row, 0], acc)
"""


def test_what_comes_with_scores_is_read_and_fenced_ahead_of_stores(tmp_path: Path) -> None:
    signature = SIGNATURE | {"rows": "tensordesc<fp32[64]>", "weights_ptr": "*fp32:16"}
    text, remarks = lowered(tmp_path, WEIGHTS_STORED, signature, 4, mma_stages=2)
    assert AHEAD in remarks
    body = text[text.index("scf.for", text.index("gpu.wgmma_wait")) :]
    words = r"gpu\.(wgmma\b|wgmma_wait|shared_load|proxy_fence|store|mbarrier_arrive)"
    assert re.findall(words, body)[:7] == [
        *("wgmma", "shared_load", "proxy_fence"),  # of the next iteration
        *("store", "wgmma"),
        *("wgmma_wait", "mbarrier_arrive"),
    ]


# A bias for each block of keys, loaded from memory.
BIASED = (
    SOURCE.format(causal=False)
    .replace("def k(q, k, v, out,", "def k(q, k, v, bias, out,")
    .replace("new = tl.maximum", "scores += tl.load(bias + first // 64)\n        new = tl.maximum")
)
# Each iteration adds the previous one's store.
STORED = BIASED.replace(
    "        top = new",
    "        tl.store(bias + first // 64 + 1, first * 0.03125)\n        top = new",
)


@pytest.mark.emulated
@pytest.mark.parametrize(("source", "num_dots"), [(BIASED, 2 + 2), (STORED, 4 + 5)])
def test_loads_that_scores_need_come_ahead_where_nothing_is_stored(
    tmp_path: Path, source: str, num_dots: int
) -> None:
    signature = {key: {**SIGNATURE, "bias": "*fp32:16"}[key] for key in ARGUMENTS}
    options = {"num_stages": 2, "mma_stages": 2}
    text, _ = lowered(tmp_path, source, signature, 4, **options)
    assert text.count("gpu.wgmma(") == num_dots
    kernel = compiled(tmp_path, source, signature, **options)
    n = 320
    q, k, v = (tensor((n, 64), "fp16", seed=index) / np.float16(64) for index in range(3))
    bias = np.random.default_rng(5).standard_normal(n // 64 + 1).astype(np.float32)
    added = bias.copy()
    if source is STORED:
        added[1:] = np.arange(0, n, 64) * 0.03125
    out = like(tensor((64, 64), "fp32"))
    values = {"q": q, "k": k, "v": v, "bias": bias, "out": out, "scale": 0.25, "n": n}
    launch(kernel, (1,), values)
    np.testing.assert_array_equal(bias, added)
    scores = q[:64].astype(np.float64) @ k.astype(np.float64).T * 0.25
    scores += np.repeat(added[:-1], 64)
    weights = np.exp2(scores - scores.max(1, keepdims=True))
    expected = weights @ v.astype(np.float64) / weights.sum(1, keepdims=True)
    assert np.abs(out - expected).max() <= 2.0**-10 * np.abs(v.astype(np.float64)).max()


@pytest.mark.parametrize("position", ["beside the keys", "beside the values"])
def test_rows_of_a_stage_are_read_ahead_with_the_scores(tmp_path: Path, position: str) -> None:
    """A producer loads them; the stage of the keys is given back ahead, once both are read."""
    source = SOURCE.format(causal=False).replace("def k(q, k, v, out,", "def k(q, k, v, bias, out,")
    load, add = "added = bias.load([first])\n        ", "scores += added[None, :]\n        "
    if position == "beside the keys":
        source = source.replace("scores = tl.dot", f"{load}scores = tl.dot")
        source = source.replace("columns = first", f"{add}columns = first")
    else:
        values = "values = v.load([first, 0])\n        "
        source = source.replace("columns = first", f"{load}{values}{add}columns = first")
        source = source.replace("v.load([first, 0]), acc", "values, acc")
    signature = {key: {**SIGNATURE, "bias": "tensordesc<fp32[64]>"}[key] for key in ARGUMENTS}
    options: dict[str, Any] = {"num_stages": 2, "mma_stages": 2}
    text, remarks = lowered(tmp_path, source, signature, 4, **options)
    assert AHEAD in remarks
    assert text.count("gpu.wgmma(") == 2 + 2  # two chains, and not unrolled by two
    kernel = compiled(tmp_path, source, signature, **options)
    for seed, n in enumerate((64, 100, 320)):
        q, k, v = (
            tensor((n, 64), "fp16", seed=3 * seed + index) / np.float16(64) for index in range(3)
        )
        bias = np.random.default_rng(seed).standard_normal(n).astype(np.float32)
        out = like(tensor((n, 64), "fp32"))
        values = {"q": q, "k": k, "v": v, "bias": bias, "out": out, "scale": 0.25, "n": n}
        launch(kernel, (-(-n // 64),), values, seed=seed)
        scores = q.astype(np.float64) @ k.astype(np.float64).T * 0.25 + bias
        weights = np.exp2(scores - scores.max(1, keepdims=True))
        expected = weights @ v.astype(np.float64) / weights.sum(1, keepdims=True)
        assert np.abs(out - expected).max() <= 2.0**-10 * np.abs(v.astype(np.float64)).max()


# ---- keys and values in one stage -------------------------------------------------------------

CHECKS = """\
// CHECK: gpu.mbarrier_wait(
// CHECK: gpu.wgmma(%q,
// CHECK: gpu.wgmma_wait(
// CHECK: scf.for(
// CHECK: [[FILLED:%.*]] = gpu.shared_stage(%full, [[AT:%[a-z_0-9]+]]) {ahead = 1}
// CHECK-NEXT: gpu.mbarrier_wait([[FILLED]],
// CHECK: [[SCORES:%.*]] = gpu.wgmma(%q,
// CHECK: [[VALUES:%.*]] = gpu.shared_stage(%v_ring, [[AT]])
// CHECK: [[SUM:%.*]] = gpu.wgmma({{.*}}, [[VALUES]],
// CHECK-NEXT: gpu.wgmma_wait([[SCORES]]) {pending = 1
// CHECK-NOT: gpu.mbarrier_wait(
// CHECK-NOT: gpu.mbarrier_arrive(
// CHECK: gpu.wgmma_wait([[SUM]])
// CHECK: [[READ:%.*]] = gpu.shared_stage(%empty, [[AT]]) :
// CHECK-NEXT: gpu.mbarrier_arrive([[READ]],
// CHECK: scf.yield(
"""
ONE_RING = """\
#0 = #ll<offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[0,32],[1,8],[2,16],[4,32],[8,0],[16,0],[32,0]] : [64,64]>
#1 = #ll<offset=[] : [1]>
#2 = #ll<register=[[0,1],[8,0],[0,8],[0,16],[0,32]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0]] : [64,64]>
#3 = #ll<register=[[1],[512],[8],[16],[32]] lane=[[2],[4],[64],[128],[256]] warp=[[1024],[2048]] : [4096]>
#4 = #ll<offset=[[1,0],[2,0],[4,0],[8,0],[16,0],[32,0],[8,1],[16,2],[32,4],[0,8],[0,16],[0,32]] : [64,64]>
kernel @k(%x: map<64x64xfp16, 128>, %y: map<64x64xfp16, 128>, %z: map<64x64xfp16, 128>, %out: *fp32, %n: i32) {num_warps = 4, producer_warps = 1} {
  %q = gpu.shared_alloc {element = fp16, shape = [64, 64], layout = #0, alignment_bytes = 1024} : shared<64x64xfp16, #0>
  %q_full = gpu.shared_alloc {element = u64, shape = [1], layout = #1, alignment_bytes = 8} : shared<1xu64, #1>
  %k_ring = gpu.shared_alloc {element = fp16, shape = [64, 64], layout = #0, alignment_bytes = 1024, num_stages = 2} : shared<64x64xfp16, #0, 2>
  %v_ring = gpu.shared_alloc {element = fp16, shape = [64, 64], layout = #0, alignment_bytes = 1024, num_stages = 2} : shared<64x64xfp16, #0, 2>
  %full = gpu.shared_alloc {element = u64, shape = [1], layout = #1, alignment_bytes = 8, num_stages = 2} : shared<1xu64, #1, 2>
  %empty = gpu.shared_alloc {element = u64, shape = [1], layout = #1, alignment_bytes = 8, num_stages = 2} : shared<1xu64, #1, 2>
  gpu.mbarrier_init(%q_full)
  gpu.mbarrier_init(%full)
  gpu.mbarrier_init(%empty) {count = 4}
  gpu.barrier
  gpu.specialize () {
    %zero = arith.constant {value = 0, type = i32} : i32
    %one = arith.constant {value = 1, type = i32} : i32
    %none = arith.constant {value = 0.0, type = tile<64x64xfp32, #2>} : tile<64x64xfp32, #2>
    %half = arith.constant {value = 0.5, type = tile<64x64xfp32, #2>} : tile<64x64xfp32, #2>
    %fresh = gpu.undefined {type = tile<64x64xfp32, #2>} : tile<64x64xfp32, #2>
    %never = arith.constant {value = false, type = i1} : i1
    %always = arith.constant {value = true, type = i1} : i1
    gpu.mbarrier_wait(%q_full, %zero)
    %total, %end, %last = scf.for(%zero, %n, %one, %none, %zero, %zero) (%i: i32, %acc: tile<64x64xfp32, #2>, %index: i32, %phase: i32) {
      %filled = gpu.shared_stage(%full, %index) : shared<1xu64, #1>
      gpu.mbarrier_wait(%filled, %phase)
      %k = gpu.shared_stage(%k_ring, %index) : shared<64x64xfp16, #0>
      %kt = gpu.shared_trans(%k) {order = [1, 0]} : shared<64x64xfp16, #4>
      %v = gpu.shared_stage(%v_ring, %index) : shared<64x64xfp16, #0>
      %started = gpu.wgmma(%q, %kt, %fresh, %never) : tile<64x64xfp32, #2>
      %scores = gpu.wgmma_wait(%started) {num_columns = [0]} : tile<64x64xfp32, #2>
      %scaled = arith.mul(%scores, %half) : tile<64x64xfp32, #2>
      %weights = arith.cast(%scaled) {dtype = fp16} : tile<64x64xfp16, #2>
      %added = gpu.wgmma(%weights, %v, %acc, %always) : tile<64x64xfp32, #2>
      %sum = gpu.wgmma_wait(%added) {num_columns = [0]} : tile<64x64xfp32, #2>
      %read = gpu.shared_stage(%empty, %index) : shared<1xu64, #1>
      gpu.mbarrier_arrive(%read, _) {count = 4}
      %next = gpu.next_stage(%index) {num_stages = 2} : i32
      %wraps = arith.compare(%next, %zero) {predicate = "eq"} : i1
      %flip = arith.cast(%wraps) {dtype = i32} : i32
      %flipped = arith.xor(%phase, %flip) : i32
      scf.yield(%sum, %next, %flipped)
    } : tile<64x64xfp32, #2>, i32, i32
    %flat = tile.reshape(%total) {shape = [4096]} : tile<4096xfp32, #3>
    %m = tile.arange {start = 0, end = 4096, layout = #3} : tile<4096xi32, #3>
    %os = tile.splat(%out) {shape = [4096], layout = #3} : tile<4096x*fp32, #3>
    %r = arith.addptr(%os, %m) : tile<4096x*fp32, #3>
    gpu.store(%r, %flat, _)
    scf.yield()
  } () {
    %zero_p = arith.constant {value = 0, type = i32} : i32
    %one_p = arith.constant {value = 1, type = i32} : i32
    %size = arith.constant {value = 64, type = i32} : i32
    gpu.tma_load(%x, %q, %q_full, %zero_p, %zero_p)
    %end_p, %last_p = scf.for(%zero_p, %n, %one_p, %zero_p, %zero_p) {unroll = 1} (%i_p: i32, %index_p: i32, %phase_p: i32) {
      %at = arith.mul(%i_p, %size) : i32
      %before = arith.xor(%phase_p, %one_p) : i32
      %free = gpu.shared_stage(%empty, %index_p) : shared<1xu64, #1>
      gpu.mbarrier_wait(%free, %before)
      %fill = gpu.shared_stage(%full, %index_p) : shared<1xu64, #1>
      %k_free = gpu.shared_stage(%k_ring, %index_p) : shared<64x64xfp16, #0>
      gpu.tma_load(%y, %k_free, %fill, %at, %zero_p) {arrive = false}
      %v_free = gpu.shared_stage(%v_ring, %index_p) : shared<64x64xfp16, #0>
      gpu.tma_load(%z, %v_free, %fill, %at, %zero_p)
      %next_p = gpu.next_stage(%index_p) {num_stages = 2} : i32
      %wraps_p = arith.compare(%next_p, %zero_p) {predicate = "eq"} : i1
      %flip_p = arith.cast(%wraps_p) {dtype = i32} : i32
      %flipped_p = arith.xor(%phase_p, %flip_p) : i32
      scf.yield(%next_p, %flipped_p)
    } : i32, i32
    scf.yield()
  }
  scf.return
}
"""


def test_a_stage_of_both_dots_is_filled_before_the_first_and_released_after_the_second() -> None:
    text = CHECKS + ONE_RING
    kernel = applied(text, pipeline_mma, config=Config(4, mma_stages=2))
    rng = np.random.default_rng(0)
    x, y, z = (rng.integers(-2, 3, (rows, 64)).astype(np.float16) for rows in (64, 320, 320))
    for iterations in (0, 1, 2, 3, 5):
        args = [x, y, z, np.full(4096, 77, np.float32), iterations]
        assert_same_meaning(text, kernel, args, lower=(allocate_shared, insert_barriers))


# Keys and values of one page, say, are loaded side by side.
SIDE_BY_SIDE = """def k(q, k, v, out, n):
    query = q.load([0, 0])
    acc = tl.zeros((64, 64), tl.float32)
    for first in range(0, n, 64):
        keys, values = k.load([first, 0]), v.load([first, 0])
        scores = tl.dot(query, keys.T)
        acc = tl.dot((scores * 0.5).to(tl.float16), values.to(tl.float16), acc)
    out.store([0, 0], acc)
"""


@pytest.mark.emulated
@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("dtype", ["fp16", "fp8e5"])
def test_keys_and_values_of_one_stage_at_every_length(
    tmp_path: Path, dtype: str, num_stages: int
) -> None:
    """Values of fp8 are read by threads, after the first dot and before the second."""
    signature = {key: {**SIGNATURE, "v": f"tensordesc<{dtype}[64,64]>"}[key] for key in "qkv"}
    signature |= {"out": SIGNATURE["out"], "n": "i32"}
    options: dict[str, Any] = {"num_stages": num_stages, "mma_stages": 2}
    _, remarks = lowered(tmp_path, SIDE_BY_SIDE, signature, 4, **options)
    assert AHEAD in remarks
    kernel = compiled(tmp_path, SIDE_BY_SIDE, signature, **options)
    for seed, n in enumerate((0, 64, 128, 64 * (2 * num_stages + 1))):
        q, out = np.sign(tensor((64, 64), "fp16")), like(tensor((64, 64), "fp32"))
        k, v = (tensor((n or 1, 64), kind, seed=1) for kind in ("fp16", dtype))
        k, v = (np.sign(matrix.astype(np.float32)).astype(matrix.dtype) for matrix in (k, v))
        launch(kernel, (1,), {"q": q, "k": k, "v": v, "out": out, "n": n}, seed=seed)
        k, v = (matrix[:n].astype(np.float64) for matrix in (k, v))
        np.testing.assert_array_equal(out, 0.5 * (q.astype(np.float64) @ k.T) @ v)
