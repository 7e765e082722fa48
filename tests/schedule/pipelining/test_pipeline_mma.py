"""Products issued an iteration ahead: selection, results, and refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.config import Config
from aotc.ir.text import parse_kernel, print_kernel
from aotc.schedule.pipelining.pipeline_mma import pipeline_mma
from aotc.schedule.shared_memory.allocate_shared import allocate_shared
from aotc.schedule.shared_memory.insert_barriers import insert_barriers
from tests.support.descriptors import compiled, launch, like, lowered, tensor
from tests.support.pass_case import applied, assert_same_meaning

AHEAD = "a dot is in flight while the result of the one before is used"
NOT_AHEAD = "no dot is issued an iteration ahead: "

SCALED = """def k(a, b, c, s, tiles, low, high):
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        total = tl.zeros((64, 64), tl.float32)
        for k in range(low, high, 1):
            part = tl.dot(a.load([tile * 64, k * 64]), b.load([0, k * 64]).T)
            total += part * tl.load(s + k)
        c.store([tile * 64, 0], total)
"""
SCALE = "total += part * tl.load(s + k)"
SIGNATURE = {
    "a": "tensordesc<fp16[64,64]>",
    "b": "tensordesc<fp16[64,64]>",
    "c": "tensordesc<fp32[64,64]>",
    "s": "*fp32",
    "tiles": "i32",
    "low": "i32",
    "high": "i32",
}
ATTENTION = """def k(a, b, c, v, n):
    row = tl.program_id(0) * 64
    query = a.load([row, 0])
    total = tl.zeros((64, 64), tl.float32)
    for key in range(0, n, 64):
        score = tl.dot(query, b.load([key, 0]).T)
        total = tl.dot((score * 0.5).to(tl.float16), v.load([key, 0]), total)
    c.store([row, 0], total)
"""
ATTENTION_SIGNATURE = {
    **{name: SIGNATURE[name] for name in "abc"},
    "v": "tensordesc<fp16[64,64]>",
    "n": "i32",
}

GRADIENT = """def k(a, b, c, v, d, n):
    row = tl.program_id(0) * 64
    query = a.load([row, 0])
    total = tl.zeros((64, 64), tl.float32)
    for key in range(0, n, 64):
        weight = (tl.dot(query, b.load([key, 0]).T) * 0.5).to(tl.float16)
        values = v.load([key, 0])
        d.atomic_add([key, 0], tl.dot(weight.T, query))
        total = tl.dot(weight, values, total)
    c.store([row, 0], total)
"""
GRADIENT_SIGNATURE = ATTENTION_SIGNATURE | {"d": SIGNATURE["c"]}


SOFTMAX = """def k(a, b, c, v, n):
    row = tl.program_id(0) * 64
    query = a.load([row, 0])
    total = tl.zeros((64, 64), tl.float32)
    above = tl.full((64,), -3.0e38, tl.float32)
    below = tl.zeros((64,), tl.float32)
    for key in range(0, n, 64):
        score = tl.dot(query, b.load([key, 0]).T) * 0.5
        most = tl.maximum(above, tl.ceil(tl.max(score, 1)))
        weight = tl.exp2(score - most[:, None])
        moved = tl.exp2(above - most)
        below = below * moved + tl.sum(weight, 1)
        total = tl.dot(weight.to(tl.float16), v.load([key, 0]), total * moved[:, None])
        above = most
    c.store([row, 0], total / below[:, None])
"""


def _lowered(
    folder: Path, source: str, signature: dict[str, str], num_warps: int = 4, **config: Any
) -> tuple[str, str]:
    """Return gpu IR and remarks of a kernel with products started ahead."""
    return lowered(folder, source, signature, num_warps, **{"mma_stages": 2, **config})


# ---- where ------------------------------------------------------------------------------------


def test_the_next_product_is_in_flight_while_one_is_computed_with(tmp_path: Path) -> None:
    text, remarks = _lowered(tmp_path, SCALED, SIGNATURE)
    assert AHEAD in remarks
    ops = re.findall(r"gpu\.(?:wgmma_wait|wgmma|mbarrier_arrive)|arith\.mul\(%part|scf\.for", text)
    ops = [op.split(".")[1] for op in ops[: ops.index("scf.for", 4)]]
    finish = ["wgmma_wait", "mbarrier_arrive", "mul(%part"]
    pair = ["wgmma", *finish] * 2
    last = ["wgmma", *finish, *finish, *finish]
    assert ops == ["for", "wgmma", "for", *pair, *last]
    waits = re.findall(r"gpu\.wgmma_wait\(.*?\{(.*?)\}", text)
    pending = [1 if "pending = 1" in wait else 0 for wait in waits]
    assert pending == [1, 1, 1, 0, 0]


def test_only_if_asked_for(tmp_path: Path) -> None:
    text, remarks = _lowered(tmp_path, SCALED, SIGNATURE, mma_stages=1)
    assert "ahead:" not in remarks
    assert AHEAD not in remarks
    assert text.count("gpu.wgmma(") == 1


def test_what_feeds_a_second_dot_is_computed_ahead(tmp_path: Path) -> None:
    """The scores of attention are: each dot stands in the loop once, and once beside it."""
    text, remarks = _lowered(tmp_path, ATTENTION, ATTENTION_SIGNATURE)
    assert AHEAD in remarks
    assert text.count("gpu.wgmma(") == 2 + 2


def test_the_first_dot_runs_beside_the_last_where_others_have_results(tmp_path: Path) -> None:
    """It completes in its own iteration: in flight are dots with results used by threads."""
    text, remarks = _lowered(tmp_path, GRADIENT, GRADIENT_SIGNATURE, num_stages=2)
    assert AHEAD in remarks
    matches = re.findall(r"(scf\.for|tma_reduce|wgmma_wait|wgmma)\(.*?(?:pending = (\d)|\n)", text)
    ops = ["".join(groups) for groups in matches]
    first = ["wgmma", "wgmma_wait"]
    body = ["wgmma", "wgmma", "wgmma", "wgmma_wait2", "tma_reduce", "wgmma_wait1", "wgmma_wait"]
    last = ["wgmma", "wgmma", "wgmma_wait1", "tma_reduce", "wgmma_wait"]
    assert ops[: ops.index("scf.for", 3)] == [*first, "scf.for", *body, *last]


def test_the_second_dot_runs_beside_the_next_first_where_a_reference_stays(tmp_path: Path) -> None:
    text, remarks = _lowered(tmp_path, SOFTMAX, ATTENTION_SIGNATURE, num_stages=2)
    assert AHEAD in remarks
    ops = r"(scf\.while|scf\.condition|warp_all|wgmma_wait|wgmma)\(.*?(?:pending = (\d)|\n)"
    assert ["".join(groups) for groups in re.findall(ops, text)] == [
        "scf.while",
        "wgmma_wait",
        *("wgmma", "wgmma_wait1", "wgmma_wait"),
        "scf.condition",
        *("warp_all", "wgmma"),
    ]
    # Weights of another iteration are ahead where the maximum is no whole number.
    source = SOFTMAX.replace("tl.ceil(tl.max(score, 1))", "tl.max(score, 1)")
    text, _ = _lowered(tmp_path, source, ATTENTION_SIGNATURE, num_stages=2)
    assert "warp_all" not in text
    assert re.findall(r"pending = (\d)", text) == ["1"]


def test_a_dot_behind_one_that_threads_feed_stays_in_its_iteration(tmp_path: Path) -> None:
    source = ATTENTION.replace("    score =", "    keys = b.load([key, 0])\n        score =")
    source = source.replace("tl.dot(query, b.load([key, 0]).T)", "tl.dot(query, keys.T)")
    source = source.replace(
        "        score =", "        fed = tl.dot(query, (keys + keys).T)\n        score ="
    )
    source = source.replace("(score * 0.5)", "(tl.maximum(score, 0.0) * tl.maximum(fed, 0.0))")
    text, remarks = _lowered(tmp_path, source, ATTENTION_SIGNATURE)
    assert NOT_AHEAD + "an operand is written in the loop" in remarks
    assert text.count("gpu.wgmma(") == 3


def test_threads_get_the_registers_of_the_second_product(tmp_path: Path) -> None:
    wide = SCALED.replace("(64, 64)", "(64, 128)")
    signature = SIGNATURE | {"b": "tensordesc<fp16[128,64]>", "c": "tensordesc<fp32[64,128]>"}
    _, remarks = _lowered(tmp_path, wide, signature, num_consumer_groups=2)
    assert AHEAD in remarks
    assert "registers for a consumer thread" in remarks
    wide, signature = wide.replace("128)", "256)"), {**signature}
    signature |= {"b": "tensordesc<fp16[256,64]>", "c": "tensordesc<fp32[64,256]>"}
    _, remarks = _lowered(tmp_path, wide, signature)
    assert NOT_AHEAD + "two results in flight take about 424 registers of a thread" in remarks


@pytest.mark.parametrize(
    ("old", "new", "config", "reason"),
    [
        ("", "", {"warp_specialize": False}, "the kernel has no producer warp"),
        (
            SCALE,
            "for _ in range(tiles):\n                total += part",
            {},
            "its operands have one stage",
        ),
        (SCALE, "total += part", {}, "none with a fresh accumulator is used in its iteration"),
        ("tl.dot(a.load(", "tl.dot(1 + a.load(", {}, "an operand is in registers"),
        ("b.load([0, k * 64]).T)", "(1 + b.load([0, k * 64])).T)", {}, "an operand is written"),
    ],
)
def test_where_it_is_not_done(
    tmp_path: Path, old: str, new: str, config: dict[str, Any], reason: str
) -> None:
    source = SCALED.replace(old, new) if old else SCALED
    assert source != SCALED or not old
    _, remarks = _lowered(tmp_path, source, SIGNATURE, **config)
    assert NOT_AHEAD + reason in remarks


# ---- results ----------------------------------------------------------------------------------


@pytest.mark.emulated
@pytest.mark.parametrize(
    "config",
    [
        {"num_stages": 2},
        {"num_stages": 4},
        {"num_stages": 4, "num_consumer_groups": 2},
        {"num_stages": 1, "num_consumer_groups": 2},
        {"num_stages": 3, "num_ctas": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("step", [1, 3])
def test_loops_of_every_length(tmp_path: Path, config: dict[str, Any], step: int) -> None:
    """Each tile has as many steps, so stages and turns go on over the ends of loops."""
    rows = 64 * config.get("num_ctas", 1)
    source = SCALED.replace("high, 1)", f"high, {step})").replace("tile * 64", f"tile * {rows}")
    source = source.replace("zeros((64,", f"zeros(({rows},")
    signature = SIGNATURE | {
        "a": f"tensordesc<fp16[{rows},64]>",
        "c": f"tensordesc<fp32[{rows},64]>",
    }
    kernel = compiled(tmp_path, source, signature, mma_stages=2, **config)
    s = np.arange(3, 12).astype(np.float32)
    a = np.sign(tensor((rows * 3, 64 * 9), "fp16"))
    b = np.sign(tensor((64, 64 * 9), "fp16", seed=1))
    for seed, (low, high) in enumerate([(0, 0), (2, 3), (0, 2), (1, 4), (4, 8), (0, 9), (7, 2)]):
        c = like(tensor((rows * 3, 64), "fp32"))
        values = {"a": a, "b": b, "c": c, "s": s, "tiles": 3, "low": low, "high": high}
        launch(kernel, (2,), values, seed=seed)
        expected = np.zeros(c.shape, np.float64)
        for k in range(low, high, step):
            part = slice(64 * k, 64 * k + 64)
            expected += s[k] * (a[:, part].astype(np.float64) @ b[:, part].astype(np.float64).T)
        np.testing.assert_array_equal(c, expected)


@pytest.mark.emulated
@pytest.mark.parametrize("num_stages", [2, 3])
def test_scores_of_attention(tmp_path: Path, num_stages: int) -> None:
    """Products of both kinds are in flight, and a loaded tile is read in all iterations."""
    kernel = compiled(tmp_path, ATTENTION, ATTENTION_SIGNATURE, num_stages=num_stages, mma_stages=2)
    for seed, n in enumerate((0, 64, 128, 192, 320)):
        a, b = np.sign(tensor((128, 64), "fp16")), np.sign(tensor((n or 1, 64), "fp16", seed=1))
        v, c = np.sign(tensor((n or 1, 64), "fp16", seed=2)), like(tensor((128, 64), "fp32"))
        launch(kernel, (2,), {"a": a, "b": b, "c": c, "v": v, "n": n}, seed=seed)
        wide = [matrix[:n].astype(np.float64) for matrix in (b, v)]
        expected = (0.5 * (a.astype(np.float64) @ wide[0].T)) @ wide[1]
        np.testing.assert_array_equal(c, expected)


@pytest.mark.emulated
@pytest.mark.parametrize("mma_stages", [1, 2])
@pytest.mark.parametrize("grows", [0.0, 40.0])
def test_softmax_whose_reference_stays(tmp_path: Path, mma_stages: int, grows: float) -> None:
    kernel = compiled(tmp_path, SOFTMAX, ATTENTION_SIGNATURE, num_stages=2, mma_stages=mma_stages)
    for seed, n in enumerate((64, 128, 320)):
        a, b = np.sign(tensor((128, 64), "fp16")), np.sign(tensor((n, 64), "fp16", seed=1))
        b[:, 0] += (grows * (np.arange(n) // 64)).astype(np.float16)
        v, c = tensor((n, 64), "fp16", seed=2), like(tensor((128, 64), "fp32"))
        launch(kernel, (2,), {"a": a, "b": b, "c": c, "v": v, "n": n}, seed=seed)
        scores = 0.5 * (a.astype(np.float64) @ b.astype(np.float64).T)
        weights = np.exp2(scores - scores.max(1, keepdims=True))
        expected = weights @ v.astype(np.float64) / weights.sum(1, keepdims=True)
        np.testing.assert_allclose(c, expected, rtol=0, atol=2**-10 * np.abs(v).max())


@pytest.mark.emulated
@pytest.mark.parametrize("num_stages", [1, 2])
def test_gradients_of_attention(tmp_path: Path, num_stages: int) -> None:
    """The scores of the next iteration are in flight while results of this one are stored."""
    kernel = compiled(tmp_path, GRADIENT, GRADIENT_SIGNATURE, num_stages=num_stages, mma_stages=2)
    for seed, n in enumerate((0, 64, 192)):
        a, b = np.sign(tensor((128, 64), "fp16")), np.sign(tensor((n or 1, 64), "fp16", seed=1))
        v, c = np.sign(tensor((n or 1, 64), "fp16", seed=2)), like(tensor((128, 64), "fp32"))
        d = np.zeros((n or 1, 64), np.float32)
        launch(kernel, (2,), {"a": a, "b": b, "c": c, "v": v, "d": d, "n": n}, seed=seed)
        queries, keys, values = (matrix.astype(np.float64) for matrix in (a, b[:n], v[:n]))
        weights = 0.5 * (queries @ keys.T)
        np.testing.assert_array_equal(c, weights @ values)
        np.testing.assert_array_equal(d[:n], weights.T @ queries)


@pytest.mark.emulated
def test_two_products_of_an_iteration(tmp_path: Path) -> None:
    source = SCALED.replace(
        SCALE,
        "other = tl.dot(a.load([tile * 64, k * 64]), b.load([64, k * 64]).T)\n"
        "            total += part * other * k",
    )
    kernel = compiled(tmp_path, source, SIGNATURE, num_stages=2, mma_stages=2)
    a = np.sign(tensor((128, 64 * 5), "fp16"))
    b = np.sign(tensor((128, 64 * 5), "fp16", seed=1))
    for high in range(6):
        c = like(tensor((128, 64), "fp32"))
        values = {"a": a, "b": b, "c": c, "s": np.zeros(1, np.float32)}
        launch(kernel, (1,), values | {"tiles": 2, "low": 0, "high": high}, seed=high)
        expected = np.zeros(c.shape, np.float64)
        for k in range(high):
            part = slice(64 * k, 64 * k + 64)
            sums = a[:, part].astype(np.float64) @ b[:, part].astype(np.float64).T
            expected += k * sums[:, :64] * sums[:, 64:]
        np.testing.assert_array_equal(c, expected)


# ---- the resulting IR ---------------------------------------------------------------------------

CHECKS = """\
// CHECK: scf.if(
// CHECK: gpu.mbarrier_wait(%filled, %zero)
// CHECK: %dot = gpu.wgmma(%a, %b, %fresh, %never)
// CHECK: [[AT:%[0-9]+]], {{%[0-9]+}}, [[LAST:%[0-9]+]], [[ACC:%[0-9]+]], {{.*}} = scf.for({{.*}}, %dot, %none,
// CHECK-SAME: unroll = 1} ({{.*}}, [[FIRST:%[a-z_0-9]+]]: tile<64x64xfp32, #{{[0-9]+}}>, %acc:
// CHECK: gpu.mbarrier_wait(
// CHECK: [[SECOND:%.*]] = gpu.wgmma({{.*}}, %fresh, %never)
// CHECK: [[PART:%.*]] = gpu.wgmma_wait([[FIRST]]) {pending = 1,
// CHECK-NEXT: [[READ:%.*]] = gpu.shared_stage(%empty, %index) :
// CHECK-NEXT: gpu.mbarrier_arrive([[READ]], _)
// CHECK-NEXT: [[ONE:%.*]] = arith.add(%acc, [[PART]])
// CHECK: gpu.mbarrier_wait(
// CHECK: [[THIRD:%.*]] = gpu.wgmma({{.*}}, %fresh, %never)
// CHECK: [[PART:%.*]] = gpu.wgmma_wait([[SECOND]]) {pending = 1,
// CHECK-NEXT: [[READ:%.*]] = gpu.shared_stage(%empty, %index) {ahead = 1}
// CHECK-NEXT: gpu.mbarrier_arrive([[READ]], _)
// CHECK-NEXT: [[TWO:%.*]] = arith.add([[ONE]], [[PART]])
// CHECK: scf.yield({{.*}}, [[THIRD]], [[TWO]],
// CHECK: scf.if(
// CHECK: gpu.mbarrier_wait(
// CHECK: [[MORE:%.*]] = gpu.wgmma({{.*}}, %fresh, %never)
// CHECK: [[PART:%.*]] = gpu.wgmma_wait([[LAST]]) {pending = 1,
// CHECK: [[ONE:%.*]] = arith.add([[ACC]], [[PART]])
// CHECK: [[PART:%.*]] = gpu.wgmma_wait([[MORE]]) {num_columns
// CHECK: [[TWO:%.*]] = arith.add([[ONE]], [[PART]])
// CHECK: scf.yield([[TWO]],
// CHECK-NEXT: } () {
// CHECK-NOT: gpu.wgmma(
// CHECK: [[PART:%.*]] = gpu.wgmma_wait([[LAST]]) {num_columns
// CHECK-NEXT: [[READ:%.*]] = gpu.shared_stage(%empty, [[AT]]) :
// CHECK-NEXT: gpu.mbarrier_arrive([[READ]], _)
// CHECK-NEXT: [[ONE:%.*]] = arith.add([[ACC]], [[PART]])
// CHECK: scf.yield([[ONE]],
// CHECK: } () {
// CHECK-NEXT: scf.yield(%none, %zero, %zero)
"""
LOOP = """\
#0 = #ll<offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[0,32],[1,8],[2,16],[4,32],[8,0],[16,0],[32,0]] : [64,64]>
#1 = #ll<offset=[] : [1]>
#2 = #ll<register=[[0,1],[8,0],[0,8],[0,16],[0,32]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0]] : [64,64]>
#3 = #ll<register=[[1],[512],[8],[16],[32]] lane=[[2],[4],[64],[128],[256]] warp=[[1024],[2048]] : [4096]>
kernel @k(%x: map<64x64xfp16, 128>, %y: map<64x64xfp16, 128>, %out: *fp32, %n: i32) {num_warps = 4, producer_warps = 1} {
  %a_ring = gpu.shared_alloc {element = fp16, shape = [64, 64], layout = #0, alignment_bytes = 1024, num_stages = 2} : shared<64x64xfp16, #0, 2>
  %b_ring = gpu.shared_alloc {element = fp16, shape = [64, 64], layout = #0, alignment_bytes = 1024, num_stages = 2} : shared<64x64xfp16, #0, 2>
  %full = gpu.shared_alloc {element = u64, shape = [1], layout = #1, alignment_bytes = 8, num_stages = 2} : shared<1xu64, #1, 2>
  %empty = gpu.shared_alloc {element = u64, shape = [1], layout = #1, alignment_bytes = 8, num_stages = 2} : shared<1xu64, #1, 2>
  gpu.mbarrier_init(%full)
  gpu.mbarrier_init(%empty) {count = 4}
  gpu.barrier
  gpu.specialize () {
    %zero = arith.constant {value = 0, type = i32} : i32
    %one = arith.constant {value = 1, type = i32} : i32
    %none = arith.constant {value = 0.0, type = tile<64x64xfp32, #2>} : tile<64x64xfp32, #2>
    %fresh = gpu.undefined {type = tile<64x64xfp32, #2>} : tile<64x64xfp32, #2>
    %never = arith.constant {value = false, type = i1} : i1
    %total, %end, %last = scf.for(%zero, %n, %one, %none, %zero, %zero) (%k: i32, %acc: tile<64x64xfp32, #2>, %index: i32, %phase: i32) {
      %filled = gpu.shared_stage(%full, %index) : shared<1xu64, #1>
      gpu.mbarrier_wait(%filled, %phase)
      %a = gpu.shared_stage(%a_ring, %index) : shared<64x64xfp16, #0>
      %b = gpu.shared_stage(%b_ring, %index) : shared<64x64xfp16, #0>
      %dot = gpu.wgmma(%a, %b, %fresh, %never) : tile<64x64xfp32, #2>
      %part = gpu.wgmma_wait(%dot) {num_columns = [0]} : tile<64x64xfp32, #2>
      %read = gpu.shared_stage(%empty, %index) : shared<1xu64, #1>
      gpu.mbarrier_arrive(%read, _) {count = 4}
      %sum = arith.add(%acc, %part) : tile<64x64xfp32, #2>
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
    %end_p, %last_p = scf.for(%zero_p, %n, %one_p, %zero_p, %zero_p) {unroll = 1} (%k_p: i32, %index_p: i32, %phase_p: i32) {
      %at = arith.mul(%k_p, %size) : i32
      %before = arith.xor(%phase_p, %one_p) : i32
      %free = gpu.shared_stage(%empty, %index_p) : shared<1xu64, #1>
      gpu.mbarrier_wait(%free, %before)
      %fill = gpu.shared_stage(%full, %index_p) : shared<1xu64, #1>
      %a_free = gpu.shared_stage(%a_ring, %index_p) : shared<64x64xfp16, #0>
      gpu.tma_load(%x, %a_free, %fill, %zero_p, %at) {arrive = false}
      %b_free = gpu.shared_stage(%b_ring, %index_p) : shared<64x64xfp16, #0>
      gpu.tma_load(%y, %b_free, %fill, %at, %zero_p)
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


def test_a_dot_is_issued_before_the_wait_for_the_one_before() -> None:
    text = CHECKS + LOOP
    kernel = applied(text, pipeline_mma, config=Config(4, mma_stages=2))
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((64, 320), (320, 64)))
    for iterations in (0, 1, 2, 3, 4, 5):
        args = [x, y, np.full(4096, 77, np.float32), iterations]
        assert_same_meaning(text, kernel, args, lower=(allocate_shared, insert_barriers))


def test_one_dot_in_flight_is_as_it_was() -> None:
    kernel = applied("// CHECK-NOT: scf.if\n" + LOOP, pipeline_mma, config=Config(4))
    assert print_kernel(kernel) == print_kernel(parse_kernel(LOOP))
