"""Launches of Triton without a GPU: each passes every parameter of its function, and no other."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from benchmarks.harness import triton_peer
from benchmarks.harness.dry import configs_of
from benchmarks.harness.manifest import function, grid_of, tables
from benchmarks.harness.operands import HostArrays
from benchmarks.harness.registry import FAMILIES, tiny
from benchmarks.harness.workload import Step, Workload, alternatives

_LAUNCH = {"num_warps", "num_stages", "maxnreg", "launch_pdl"}
_CASES = [
    pytest.param(workload, id=f"{family} {workload.name}")
    for family in FAMILIES
    for workload in tiny(family)
    if workload.triton is not None
]


def _problem(workload: Workload, step: Step, values: dict[str, Any]) -> str:
    """Return what a launch of a step lacks or has too much, if anything."""
    table = tables(workload.manifest)[step.kernel]
    options = triton_peer._options(workload, step)
    kernel = function(workload.manifest, table)
    passed = triton_peer._arguments(table, kernel, step, values, options)
    params = inspect.signature(kernel.fn).parameters
    needed = {name for name, param in params.items() if param.default is inspect.Parameter.empty}
    lacking, beyond = needed - {*passed, *options}, {*passed, *options} - {*params} - _LAUNCH
    blocks = triton_peer._blocks(table, step, options)
    flat = [name for name, block in blocks.items() if values[name].ndim != len(block)]
    grid = step.grid or grid_of(table, {**values, **options})
    small = [extent for extent in grid if extent < 1]
    return f"{lacking} {beyond} {flat} {small}" if lacking or beyond or flat or small else ""


@pytest.mark.parametrize("workload", _CASES)
def test_a_launch_passes_what_its_function_takes(workload: Workload) -> None:
    pytest.importorskip("triton")
    arrays = HostArrays()
    args = workload.operands(arrays)
    configs = triton_peer.configs_of(workload, configs_of(workload.manifest))
    plans = list(workload.candidates(arrays, args, configs))
    assert plans
    steps = {step.label: step for plan in plans for slot in alternatives(plan) for step in slot}
    problems = {
        label: problem
        for label, step in steps.items()
        if (problem := _problem(workload, step, step.arguments(args)))
    }
    assert problems == {}
