"""Conversions by shuffles: the planner's plans, executed."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aotc.backend import assemble, emit_ptx
from aotc.ir.dialects import gpu
from aotc.ir.layout import LinearLayout
from aotc.ir.types import BF16, FP16, FP32, FP64, I1, I8, I32
from aotc.schedule.layout.conversions import plan_warp_shuffle
from aotc.target import TARGETS
from tests.backend.programs import NUMPY, Program
from tests.support.extent import examples


@st.composite
def pairs_in_a_warp(draw: st.DrawFn) -> tuple[LinearLayout, LinearLayout]:
    """Two layouts of one tile with the same parts in each warp, and replicas."""
    num_bits = draw(st.integers(3, 9))
    outs = (("dim0", num_bits),)
    units = [1 << bit for bit in range(num_bits)]
    warp = [draw(st.sampled_from([0, units[-1]]))]
    inside = [unit for unit in units if unit not in warp]

    def spread() -> LinearLayout:
        columns = list(inside) + [0] * max(0, 5 - len(inside))
        columns += draw(st.lists(st.just(0), max_size=1))
        columns = list(draw(st.permutations(columns)))
        for _ in range(draw(st.integers(0, 6))):
            into, of = draw(st.tuples(*[st.integers(0, len(columns) - 1)] * 2))
            if into != of:
                columns[into] ^= columns[of]
        return LinearLayout.from_columns(
            [("register", columns[5:]), ("lane", columns[:5]), ("warp", warp)], outs
        )

    return spread(), spread()


@given(pairs_in_a_warp(), st.sampled_from([I1, I8, BF16, FP16, I32, FP32, FP64]))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_plans_of_shuffles_do_what_they_say(layouts, element) -> None:
    source, target = layouts
    plan = plan_warp_shuffle(source, target, element.bits)
    assert plan is not None
    program = Program(2)
    value = program.load(element, source)
    program.store(program.add(gpu.ShuffleConvert(value, target, astuple(plan))).out)
    x: Any = np.random.default_rng(0).integers(0, 2 if element == I1 else 100, source.shape)
    x = x.astype(np.float32).astype(NUMPY[element.name])
    assert np.array_equal(program.run(x)[0], x)


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_shuffles_assemble(target) -> None:
    bits = [1 << bit for bit in range(8)]
    outs = (("dim0", 8),)
    source = LinearLayout.from_columns([("register", bits[:3]), ("lane", bits[3:])], outs)
    destination = LinearLayout.from_columns([("register", bits[5:]), ("lane", bits[:5])], outs)
    for element in (I8, FP16, FP32, FP64):
        plan = plan_warp_shuffle(source, destination, element.bits)
        assert plan is not None
        program = Program()
        value = program.load(element, source)
        program.store(program.add(gpu.ShuffleConvert(value, destination, astuple(plan))).out)
        ptx = emit_ptx(program.llvm_ir(target), target)
        assert "shfl.sync" in ptx
        assembly = assemble(ptx, target)
        assert (assembly.spill_bytes, assembly.stack_bytes) == (0, 0)
