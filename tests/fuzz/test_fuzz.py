"""Random programs mean the same at every stage, and planted bugs are caught.

A failure is shrunk by Hypothesis and printed as tile IR with its arguments. A long run is
`python tests/fuzz/run.py`, see docs/internals/fuzzing.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings

from aotc.ir.core import Kernel
from aotc.ir.diagnostics import CompileError
from aotc.ir.dialects import arith, wgmma
from aotc.ir.passes import Pipeline
from aotc.ir.rewrite import Builder, rewrite
from aotc.ir.types import FP32, SCALARS, ScalarType, element_of
from aotc.schedule import pipeline
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run
from tests.fuzz import check as checking
from tests.fuzz.arguments import Buffer
from tests.fuzz.check import Failure, Refused, check, is_defined
from tests.fuzz.choices import Choices, Seeded
from tests.fuzz.facts import RAGGED, Facts, fits, full, multiplied, of_count, settled, summed
from tests.fuzz.launch import is_allowed
from tests.fuzz.long_programs import MIN_SIZE, long_program
from tests.fuzz.programs import Program, from_seed, parse_program, programs
from tests.fuzz.reduce import reduced
from tests.fuzz.run import run_seed


@pytest.mark.slow
@settings(max_examples=30, derandomize=True, suppress_health_check=list(HealthCheck))
@given(programs())
def test_a_program_means_the_same_at_every_stage(program: Program) -> None:
    note(str(program))
    try:
        check(program, seeds=(0, 3))
    except Refused as refusal:
        note(str(refusal))


@pytest.mark.parametrize("seed", range(12))
def test_the_program_of_a_seed(seed: int) -> None:
    outcome = run_seed(seed, reduces=False)
    assert outcome.status in ("right", "refused"), outcome.report


@pytest.mark.parametrize("seed", [3, 7])
def test_a_long_program_means_the_same_when_compiled(seed: int) -> None:
    program = long_program(Choices(Seeded(seed)), MIN_SIZE)
    kernel = program.kernel()
    rewrite(kernel, {})  # drops dead ops
    assert sum(1 for _ in kernel.walk()) >= 0.8 * MIN_SIZE
    check(program, seeds=(0,), each_pass=False)


# ---- generated programs -----------------------------------------------------------------------


def test_a_seed_makes_one_program() -> None:
    assert from_seed(3) == from_seed(3)
    assert from_seed(3) != from_seed(4)


def test_undefined_values_do_not_matter() -> None:
    for seed in range(25):
        assert is_defined(from_seed(seed)), f"seed {seed}"


def test_a_use_of_masked_off_elements_is_seen() -> None:
    assert not is_defined(parse_program(_MASKED_OFF))


_MASKED_OFF = """// sm_80, 1 warps, 1 stages, grid (1,)
// Buffer(name='x', dtype='i16', size=32, fill='any')
// Buffer(name='y', dtype='i16', size=32, fill='poison')
kernel @k(%x: *i16, %y: *i16) {num_warps = 1} {
  %0 = tile.arange {start = 0, end = 32} : tile<32xi32>
  %1 = arith.constant {value = 31, type = tile<32xi32>} : tile<32xi32>
  %2 = arith.compare(%0, %1) {predicate = "lt"} : tile<32xi1>
  %3 = tile.splat(%x) {shape = [32]} : tile<32x*i16>
  %4 = arith.addptr(%3, %0) : tile<32x*i16>
  %5 = tile.load(%4, %2, _) : tile<32xi16>
  %6 = tile.splat(%y) {shape = [32]} : tile<32x*i16>
  %7 = arith.addptr(%6, %0) : tile<32x*i16>
  tile.store(%7, %5, _)
  scf.return
}
"""


def test_every_op_of_tile_programs_is_generated() -> None:
    opcodes = {
        *("tile.load", "tile.store", "tile.reduce", "tile.scan", "tile.dot", "tile.atomic_rmw"),
        *("tile.reshape", "tile.trans", "tile.join", "tile.split", "tile.broadcast", "tile.hint"),
        *("scf.for", "scf.while", "scf.if", "arith.select", "arith.cast", "arith.fma"),
        *("tile.descriptor_load", "tile.descriptor_store", "tile.descriptor_reduce"),
        *("tile.descriptor_extent", "tile.descriptor_stride"),
        *("tile.gather", "tile.histogram"),
    }
    for seed in range(200):
        opcodes -= {op.opcode for op in from_seed(seed).kernel().walk()}
        if not opcodes:
            return
    raise AssertionError(f"never generated: {sorted(opcodes)}")


def _hopper_features(program: Program) -> set[str]:
    """Return the Hopper features in a program's compiled code."""
    kernel = program.kernel()
    schedule = Schedule(TARGETS["sm_90a"], program.config, map_pointers=program.map_pointers)
    try:
        kernel = schedule_kernel(kernel, schedule)
    except CompileError:
        return set()
    ops = list(kernel.walk())
    features = {op.opcode for op in ops}
    features |= {"multicast" for op in ops if getattr(op, "num_parts", 1) > 1}
    features |= {"some columns" for op in ops if isinstance(op, wgmma.Wgmma) and op.num_columns}
    features |= (
        {"ahead"}
        if any("a dot is in flight while" in remark for remark in schedule.remarks)
        else set()
    )
    features |= {"groups"} if kernel.num_consumer_groups > 1 else set()
    features |= {"programs in a loop"} if kernel.is_persistent else set()
    is_mapped = any(info.tensor for info in kernel.params)
    return features | ({"mapped"} if is_mapped and is_allowed(kernel, program.make()) else set())


# Seeds with one of the features each, as of the last change of the generator: others take a minute.
_REACHING = (0, 5, 15, 24, 37, 330, 875)


@pytest.mark.slow
def test_hopper_features_are_reached() -> None:
    features = {
        *("gpu.specialize", "gpu.tma_load", "gpu.tma_store", "gpu.tma_reduce", "gpu.bulk_load"),
        *("gpu.wgmma", "multicast", "groups", "programs in a loop", "mapped"),
        *("some columns", "ahead"),
    }
    for seed in (*_REACHING, *range(900)):
        program = from_seed(seed)
        if program.target == "sm_90a":
            features -= _hopper_features(program)
        if not features:
            return
    raise AssertionError(f"never compiled: {sorted(features)}")


@pytest.mark.parametrize("name", [name for name in SCALARS if name != "i1"])
def test_exact_data_has_its_facts(name: str) -> None:
    element = SCALARS[name]
    facts = Facts(lo=0 if element.is_int else 1, hi=3)
    data = Buffer("x", name, 1000, "exact", facts.lo, facts.hi).make().astype(np.float64)
    scaled = np.ldexp(data, -facts.lo)
    assert (scaled == np.round(scaled)).all()
    assert np.abs(data).max() == 2.0**facts.hi
    assert fits(element, facts)


def test_poison_is_nothing_a_program_writes() -> None:
    data = Buffer("x", "fp32", 5, "poison", skew=3).make()
    assert (data.view(np.uint32) == 0x5A5A5A5A).all()
    assert data.ctypes.data % 16 != 0 or data.base is not None


def test_sums_and_products_of_facts() -> None:
    facts = Facts(lo=-1, hi=3)
    assert summed([facts, facts]) == Facts(lo=-1, hi=4)
    assert summed([facts, Facts(lo=-2, hi=1)]) == Facts(lo=-2, hi=4)
    assert multiplied(facts, facts) == Facts(lo=-2, hi=6)
    assert [of_count(facts, count).hi for count in (0, 1, 2, 3, 4, 5)] == [3, 3, 4, 5, 5, 6]


def test_a_matrix_product_is_added_to_exact_sums_alone() -> None:
    product = Facts(hi=6, acc_bits=13)
    total = summed([Facts(lo=-1, hi=11), product, Facts(hi=2, acc_bits=24)])
    assert total == Facts(lo=-1, hi=12, acc_bits=13)
    assert product.accumulates(total)
    assert not product.accumulates(Facts(lo=-1, hi=13))
    assert not product.accumulates(RAGGED)
    assert Facts(hi=6).accumulates(RAGGED)


@pytest.mark.parametrize(
    ("name", "hi", "is_kept"), [("fp16", 11, True), ("fp16", 12, False), ("i8", 6, True)]
)
def test_numbers_within_a_type_stay_exact(name: str, hi: int, is_kept: bool) -> None:
    facts = Facts(hi=hi)
    assert settled(SCALARS[name], facts) == (facts if is_kept else None)


def test_integers_beyond_their_type_are_anything() -> None:
    element: ScalarType = SCALARS["i8"]
    assert settled(element, Facts(hi=7)) == full(element)


# ---- detected faults --------------------------------------------------------------------------

SUM = """// sm_90a, 2 warps, 2 stages, grid (2,)
// Buffer(name='x', dtype='fp32', size=128, fill='exact', lo=-1, hi=3, seed=5)
// Buffer(name='y', dtype='fp32', size=128, fill='poison')
kernel @sum(%x: *fp32 {divisibility = 16}, %y: *fp32 {divisibility = 16}) {num_warps = 4} {
  %program = tile.program_id {axis = 0} : i32
  %size = arith.constant {value = 64, type = i32} : i32
  %first = arith.mul(%program, %size) : i32
  %index = tile.arange {start = 0, end = 64} : tile<64xi32>
  %base = arith.addptr(%x, %first) : *fp32
  %xs = tile.splat(%base) {shape = [64]} : tile<64x*fp32>
  %from = arith.addptr(%xs, %index) : tile<64x*fp32>
  %v = tile.load(%from, _, _) : tile<64xfp32>
  %one = arith.constant {value = 1.0, type = tile<64xfp32>} : tile<64xfp32>
  %w = arith.add(%v, %one) : tile<64xfp32>
  %goal = arith.addptr(%y, %first) : *fp32
  %ys = tile.splat(%goal) {shape = [64]} : tile<64x*fp32>
  %to = arith.addptr(%ys, %index) : tile<64x*fp32>
  tile.store(%to, %w, _)
  scf.return
}
"""


def test_a_right_program_passes() -> None:
    check(parse_program(SUM), assembles=True)
    check(parse_program(SUM), each_pass=False)


def subtract_instead(kernel: Kernel, schedule: Schedule) -> None:
    """Plant a fault as of a wrong pass."""
    del schedule
    for op in kernel.walk():
        if isinstance(op, arith.Add) and element_of(op.out.type) == FP32:
            op.replace_with([Builder.before_op(op)(arith.Sub(op.lhs, op.rhs)).out])


@pytest.mark.parametrize("each_pass", [True, False])
def test_a_wrong_pass_is_found_and_named(monkeypatch: pytest.MonkeyPatch, each_pass: bool) -> None:
    passes = pipeline.TILE_TO_GPU.passes
    wrong = Pipeline((*passes[:3], subtract_instead, *passes[3:]))
    monkeypatch.setattr(pipeline, "TILE_TO_GPU", wrong)
    with pytest.raises(Failure, match=r"after subtract_instead: result: y\[0\]") as found:
        check(parse_program(SUM), each_pass=each_pass)
    assert found.value.kind == "result"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("add.f32", "sub.f32", r"emulator, seed 0: result: y\[0\]"),
        ("add.s64", "sub.s64", "emulator, seed 0: "),
        ("st.global", "no.such", "emulator, seed 0: "),
    ],
)
def test_a_wrong_instruction_is_found(
    monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    correct = checking.emit_ptx

    def emit(*args: Any) -> str:
        text = correct(*args)
        assert old in text
        return text.replace(old, new)

    monkeypatch.setattr(checking, "emit_ptx", emit)
    with pytest.raises(Failure, match=message):
        check(parse_program(SUM))


def test_a_misread_source_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = checking.write_source
    monkeypatch.setattr(checking, "write_source", lambda k: correct(k).replace("1.0", "2.0"))
    with pytest.raises(Failure, match=r"frontend: result: y\[0\]"):
        check(parse_program(SUM))


def test_a_missing_feature_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Kernel:
        raise CompileError("too much shared memory")

    monkeypatch.setattr(checking, "schedule_kernel", refuse)
    with pytest.raises(Refused, match="too much"):
        check(parse_program(SUM))


@pytest.mark.parametrize(
    ("want", "actual", "steps", "is_wrong"),
    [
        (1.0, 1.0 + 2**-23, 0.0, True),
        (1.0, 1.0 + 2**-23, 1.0, False),
        (1.0, 1.0 + 2**-21, 1.0, True),
        (0.0, -0.0, 0.0, False),
        (np.nan, -np.nan, 0.0, False),
        (np.nan, 1.0, 4.0, True),
        (np.inf, -np.inf, 4.0, True),
    ],
)
def test_how_far_a_result_may_be_off(
    want: float, actual: float, steps: float, is_wrong: bool
) -> None:
    buffer = Buffer("x", "fp32", 1, "poison", steps=steps)
    arrays = (np.array([value], np.float32) for value in (want, actual))
    assert bool(checking.differences(buffer, *arrays).size) == is_wrong


# ---- making failures small --------------------------------------------------------------------


def _opcodes(program: Program) -> list[str]:
    kernel = program.kernel()
    rewrite(kernel, {})  # drops dead ops
    return [op.opcode for op in kernel.walk()]


@pytest.mark.parametrize("opcode", ["tile.reduce", "tile.dot", "arith.cast", "scf.while"])
def test_needless_parts_are_removed(opcode: str) -> None:
    programs_with = (from_seed(seed) for seed in range(50))
    program = next(
        random_program for random_program in programs_with if opcode in _opcodes(random_program)
    )
    small = reduced(program, lambda candidate: opcode in _opcodes(candidate), max_attempts=2000)
    left = _opcodes(small)
    assert opcode in left
    assert len(left) < 30
    assert "tile.atomic_rmw" not in left
    assert small.grid == (1,) * len(program.grid)
    assert (small.num_warps, small.num_stages, small.target) == (1, 1, "sm_90a")
    run(small.kernel(), small.grid, list(small.make().values()))


def test_a_minimal_program_stays() -> None:
    program = parse_program(SUM)
    assert reduced(program, lambda _: False) == program
