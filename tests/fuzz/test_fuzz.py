"""Random programs mean the same at every stage; and what would go unseen if the check were blind.

A failure is shrunk by Hypothesis and printed as tile IR with its arguments. A long run is
`python tests/fuzz/run.py`, see docs/fuzzing.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings

from aotc.ir.core import Kernel
from aotc.ir.types import SCALARS, ScalarType
from aotc.schedule.context import Schedule
from aotc.verify.interpreter import run
from tests.fuzz import check as checking
from tests.fuzz.arguments import Buffer
from tests.fuzz.check import Failure, Refused, check
from tests.fuzz.choices import Choices, Seeded
from tests.fuzz.facts import Facts, fits, full, multiplied, of_count, settled, summed
from tests.fuzz.generator import Limits
from tests.fuzz.programs import Program, from_seed, generate, programs
from tests.fuzz.reduce import reduced
from tests.fuzz.run import run_seed


@settings(max_examples=40, derandomize=True, suppress_health_check=list(HealthCheck))
@given(programs())
def test_a_program_means_the_same_at_every_stage(program: Program) -> None:
    note(str(program))
    try:
        check(program, seeds=(0, 3))
    except Refused as refusal:
        note(str(refusal))


@pytest.mark.parametrize("seed", range(20))
def test_the_program_of_a_seed(seed: int) -> None:
    outcome = run_seed(seed, reduces=False)
    assert outcome.status in ("right", "refused"), outcome.report


# ---- what is generated ------------------------------------------------------------------------


def test_a_seed_makes_one_program() -> None:
    assert from_seed(3) == from_seed(3)
    assert from_seed(3) != from_seed(4)


def test_what_is_undefined_does_not_matter() -> None:
    """Interpret under two poisons: masked-off lanes and the like must not show."""
    for seed in range(25):
        program = from_seed(seed)
        results: list[list[Any]] = []
        for poison in (0, 1):
            arguments = program.make()
            run(program.kernel(), program.grid, arguments, poison_seed=poison)
            results.append(arguments)
        for first, second in zip(*results, strict=True):
            alike = np.asarray(first == second) | (first != first) & (second != second)
            assert alike.all(), f"seed {seed}"


def test_every_op_of_tile_programs_is_generated() -> None:
    wanted = {
        *("tile.load", "tile.store", "tile.reduce", "tile.scan", "tile.dot", "tile.atomic_rmw"),
        *("tile.reshape", "tile.trans", "tile.join", "tile.split", "tile.broadcast", "tile.hint"),
        *("scf.for", "scf.while", "scf.if", "arith.select", "arith.cast", "arith.fma"),
    }
    for seed in range(200):
        wanted -= {op.opcode for op in from_seed(seed).kernel().walk()}
        if not wanted:
            return
    raise AssertionError(f"never generated: {sorted(wanted)}")


@pytest.mark.parametrize("name", [name for name in SCALARS if name != "i1"])
def test_exact_data_is_what_its_facts_say(name: str) -> None:
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
    one = Facts(lo=-1, hi=3)
    assert summed([one, one]) == Facts(lo=-1, hi=4)
    assert summed([one, Facts(lo=-2, hi=1)]) == Facts(lo=-2, hi=4)
    assert multiplied(one, one) == Facts(lo=-2, hi=6)
    assert [of_count(one, count).hi for count in (0, 1, 2, 3, 4, 5)] == [3, 3, 4, 5, 5, 6]


@pytest.mark.parametrize(
    ("name", "hi", "is_kept"), [("fp16", 11, True), ("fp16", 12, False), ("i8", 6, True)]
)
def test_only_what_a_type_holds_stays_exact(name: str, hi: int, is_kept: bool) -> None:
    facts = Facts(hi=hi)
    assert settled(SCALARS[name], facts) == (facts if is_kept else None)


def test_integers_that_may_wrap_are_anything() -> None:
    element: ScalarType = SCALARS["i8"]
    assert settled(element, Facts(hi=7)) == full(element)


# ---- what is found ----------------------------------------------------------------------------



@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("add.f32", "sub.f32", "result"),
        ("ld.global.b32", "ld.global.b64", None),
        ("st.global", "ld.global", None),
    ],
)
def test_a_wrong_instruction_is_found(
    monkeypatch: pytest.MonkeyPatch, old: str, new: str, kind: str | None
) -> None:
    correct = checking.emit_ptx
    monkeypatch.setattr(checking, "emit_ptx", lambda *a: correct(*a).replace(old, new))
    _expect_failure("emulator", kind)


def _expect_failure(stage: str, kind: str | None) -> Failure:
    for seed in range(60):
        try:
            check(_small(seed), seeds=(0,))
        except Failure as failure:
            assert failure.stage.startswith(stage), failure
            if kind in (None, failure.kind):
                return failure
    raise AssertionError("nothing was found")


def _small(seed: int) -> Program:
    return generate(Choices(Seeded(seed)), Limits(ops=8, elems=64))
