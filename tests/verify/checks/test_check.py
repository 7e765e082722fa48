"""Checking a kernel, here on the interpreter: right, wrong, faulty or passed over."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from aotc.ir.core import Kernel
from aotc.ir.text import parse_kernel, print_kernel
from aotc.verify.arrays import Array
from aotc.verify.checks import check
from aotc.verify.checks.check import (
    Checks,
    Execution,
    ExecutionFault,
    Finding,
    References,
    Unsuited,
    check_kernel,
    coordinates,
)
from aotc.verify.checks.dataflow import Roles, roles_of
from aotc.verify.checks.launch import Launch
from aotc.verify.checks.launches import Choice, Conditions
from aotc.verify.checks.noise import is_inexact
from aotc.verify.checks.reference import Reference, interpret
from aotc.verify.interpreter.numerics import dtype_of
from aotc.verify.interpreter.program import InterpretError
from aotc.verify.interpreter.run import Interpreter
from tests.support.verify_subjects import kernel_of


def _any(_: Mapping[str, int]) -> bool:
    return True


def interpreted(kernel: Kernel) -> Callable[[Reference], Execution]:
    """Return an executor that interprets `kernel` on exactly the given buffers."""

    def execute(reference: Reference) -> Execution:
        if reference.launch.is_backwards:
            raise Unsuited("arrays have nothing before their first element")
        buffers = reference.buffers
        contents = {name: buffer.spread(buffer.initial) for name, buffer in buffers.items()}
        args: list[Array | int | float] = []
        for name in reference.order:
            buffer = reference.buffer(name)
            if buffer is None:
                args.append(reference.launch.scalars[name])
                continue
            view = contents[buffer.name][buffer.start_bytes :]
            args.append(view.view(dtype_of(buffer.pointee)))
        try:
            Interpreter(kernel, args).run(reference.launch.grid, reference.launch.programs)
        except InterpretError as error:
            raise ExecutionFault(error.message) from error
        return Execution({name: buffers[name].collect(contents[name]) for name in contents}, 100)

    return execute


def _check(name: str, edit: Callable[[str], str] = str, **conditions: object) -> list[Finding]:
    kernel = kernel_of(name)
    grid = conditions.pop("grid", None)
    checks = Checks(Conditions(grid, _any, **conditions))  # type: ignore[arg-type]
    compiled = parse_kernel(edit(print_kernel(kernel)))
    roles = roles_of(kernel, {}, is_inexact)
    return list(check_kernel(kernel, roles, checks, interpreted(compiled)))


def _rows(scalars: Mapping[str, int]) -> tuple[int, ...]:
    return (scalars["n_rows"],)


@pytest.mark.parametrize("name", ["sum_rows", "gather", "grouped"])
def test_an_equivalent_kernel_is_right(name: str) -> None:
    findings = _check(name)
    assert len(findings) >= 5
    assert [finding.status for finding in findings] == ["right"] * len(findings)
    assert sum(finding.lane_instructions for finding in findings) == 100 * len(findings)


def test_a_mask_that_is_off_by_one_is_wrong() -> None:
    findings = _check("scale_rows", lambda text: text.replace('"lt"}', '"le"}'), grid=_rows)
    assert findings[-1].status in ("wrong", "fault")
    assert [finding.status for finding in findings[:-1]] == ["right"] * (len(findings) - 1)


def test_a_wrong_factor_is_located() -> None:
    (finding,) = _check("grouped", lambda text: text.replace("value = 0.5", "value = 0.25"))
    assert finding.status == "wrong"
    assert finding.mismatch is not None
    assert finding.mismatch.buffer == "out_ptr"
    pattern = r"out_ptr\[0\] at \[0, 0\] is \S+, expected \S+ to the bit\n(\d+) of (\d+) elements"
    match = re.match(pattern, finding.detail)
    assert match is not None
    assert int(match[2]) == finding.scalars["M"] * finding.scalars["N"]


@pytest.mark.parametrize(
    ("name", "beyond", "reason"),
    [
        ("looked_up", "reads", "which elements it reads depends on how floats are rounded"),
        ("looked_up", "writes", ""),
        ("looked_up", "", ""),
        ("gather", "reads", ""),
        ("scale_rows", "reads", ""),
        ("scale_rows", "writes", ""),
        ("leaky", "reads", "the result in out_ptr depends on undefined values"),
        ("leaky", "writes", "the result in out_ptr depends on undefined values"),
        ("leaky", "", ""),
    ],
)
def test_control_flow_may_depend_on_unknown_values(
    name: str, beyond: Literal["", "reads", "writes"], reason: str
) -> None:
    kernel = kernel_of(name)

    def execute(_: Reference) -> Execution:
        raise ExecutionFault("accesses 4 bytes", beyond=beyond)

    checks = Checks(Conditions(_rows if name == "scale_rows" else None, _any))
    findings = list(check_kernel(kernel, roles_of(kernel, {}, is_inexact), checks, execute))
    assert findings[0].status == ("passed over" if reason else "fault")
    if reason:
        assert reason in findings[0].detail
    else:
        assert findings[0].detail.startswith("accesses 4 bytes")


def test_unknown_results_prove_nothing() -> None:
    kernel = kernel_of("leaky")
    roles = roles_of(kernel, {}, is_inexact)

    def execute(reference: Reference) -> Execution:
        zeros = {n: np.zeros_like(b.initial) for n, b in reference.buffers.items()}
        contents = {
            n: np.where(b.writable, zeros[n], b.initial) if n == "out_ptr" else b.initial
            for n, b in reference.buffers.items()
        }
        return Execution(contents)

    findings = list(check_kernel(kernel, roles, Checks(Conditions(None, _any)), execute))
    assert findings[0].status == "passed over"
    assert "depends on undefined values" in findings[0].detail


def test_floats_without_a_defined_result_are_left_out() -> None:
    """Out-of-range float conversions are undefined; here they differ from the expected result."""
    kernel = kernel_of("to_bytes")
    roles = roles_of(kernel, {}, is_inexact)

    def execute(reference: Reference) -> Execution:
        args = [
            reference.launch.scalars[n] if reference.buffer(n) is None else n
            for n in reference.order
        ]
        buffers = reference.buffers
        contents = {n: b.initial.copy() for n, b in buffers.items()}
        arrays = [
            contents[arg][buffers[arg].start_bytes :].view(dtype_of(buffers[arg].pointee))
            if isinstance(arg, str)
            else arg
            for arg in args
        ]
        Interpreter(kernel, arrays, poison_seed=7).run(reference.launch.grid)
        return Execution(contents)

    for later in (False, True):
        checks = Checks(Conditions(None, _any), is_compared_later=later)
        findings = list(check_kernel(kernel, roles, checks, execute))
        labels = [finding.label for finding in findings if finding.status == "right"]
        assert "float: scale is negative" in labels
        assert "float: scale is large" not in [finding.label for finding in findings]
        assert not any(finding.gap for finding in findings if "float" in finding.label)


def test_a_float_may_tell_a_kernel_to_store_nothing() -> None:
    findings = _check("added_if")
    assert {finding.status for finding in findings} == {"right"}
    stored = {finding.label: finding.num_stored for finding in findings}
    assert stored["float: scale is minus zero"] == 0
    assert stored["float: scale is negative"] > 0
    assert not any(finding.gap for finding in findings)


def test_a_fault_for_negative_floats_only_is_found() -> None:
    findings = _check("added_if", lambda text: text.replace('"ne"', '"gt"'))
    assert findings[-1].status == "wrong"
    assert findings[-1].label == "float: scale is negative"


@pytest.mark.parametrize(("name", "is_open"), [("leaky", True), ("scale_rows", False)])
def test_a_match_of_an_open_result_proves_nothing(name: str, is_open: bool) -> None:
    """The execution matches, so no mismatch raises the question."""
    kernel = kernel_of(name)
    roles = roles_of(kernel, {}, is_inexact)

    def execute(reference: Reference) -> Execution:
        return Execution({n: b.expected for n, b in reference.buffers.items()})

    for later in (False, True):
        checks = Checks(Conditions(None, _any), is_compared_later=later)
        open_ones = [
            finding
            for finding in check_kernel(kernel, roles, checks, execute)
            if "depends on undefined values" in finding.detail
        ]
        assert bool(open_ones) == is_open


def test_always_overlapping_programs_are_passed_over() -> None:
    findings = _check("crowd", grid=lambda _: (2,))
    assert {finding.status for finding in findings} == {"passed over", "right"}
    passed = [finding for finding in findings if finding.status == "passed over"]
    assert "writes what another has written" in passed[0].detail


def test_a_program_that_meets_any_other_runs_alone() -> None:
    findings = _check("crowd")
    assert (findings[0].status, findings[0].grid) == ("right", (1,))
    findings = _check("crowd", may_change_grid=False)
    assert "passed over" in [finding.status for finding in findings]


def test_more_programs_run_where_few_store_nothing() -> None:
    findings = _check("lower_pairs")
    assert {finding.status for finding in findings} == {"right"}
    assert (findings[0].grid, findings[0].num_stored) == ((16,), 6 * 16 * 4)


def test_whole_tiles_are_tried_where_others_are_undefined() -> None:
    findings = [finding for finding in _check("tile_sums") if finding.num_stored]
    assert {(finding.status, finding.scalars["n_rows"]) for finding in findings} == {("right", 16)}


def test_rows_longer_than_any_extent_get_room() -> None:
    """Overlapping rows would be swapped in an unknown order."""
    findings = _check("halves")
    assert {finding.status for finding in findings} == {"right"}
    for finding in findings:
        if finding.scalars["n_rows"] > 1:
            assert finding.scalars["stride"] >= 2 * finding.scalars["n"]


def test_a_kernel_may_mean_to_write_twice() -> None:
    findings = _check("twice")
    assert {finding.status for finding in findings} == {"right"}


def test_a_launch_that_was_executed_is_not_interpreted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interpreted_keys: list[tuple[object, ...]] = []

    def counted(kernel: Kernel, roles: Roles, launch: Launch, *rest: Any, **how: Any) -> Reference:
        interpreted_keys.append(launch.key)
        return interpret(kernel, roles, launch, *rest, **how)

    monkeypatch.setattr(check, "interpret", counted)
    values = {"n_rows": 2, "n_cols": 17, "stride": 20, "factor": 0.5}
    choices = {name: Choice((value,)) for name, value in values.items()}
    findings = _check("scale_rows", grid=_rows, choices=choices)
    assert {finding.status for finding in findings} == {"right"}
    assert len(set(interpreted_keys)) == len(interpreted_keys)


def test_launches_differ_by_alignment_and_order_too() -> None:
    """A kernel without scalars is launched aligned and not, in step and at random."""
    findings = _check("doubled")
    assert [finding.status for finding in findings] == ["right"] * 6
    assert [finding.label for finding in findings[4:]] == ["special", "in place: out_ptr is x_ptr"]


def test_a_launch_that_cannot_be_executed_is_passed_over() -> None:
    kernel = kernel_of("gather")

    def execute(_: Reference) -> Execution:
        raise Unsuited("not here")

    roles = roles_of(kernel, {}, is_inexact)
    findings = list(check_kernel(kernel, roles, Checks(Conditions(None, _any)), execute))
    assert {(finding.status, finding.detail) for finding in findings} == {
        ("passed over", "not here")
    }


def _labels(findings: list[Finding]) -> list[str]:
    return [finding.label.partition(":")[0] for finding in findings]


def test_arguments_are_one_memory_where_threads_do_not_meet() -> None:
    assert _labels(_check("next_rows")).count("in place") == 1
    assert "in place" not in _labels(_check("shifted"))


def test_loads_ahead_of_stores_to_the_same_memory_are_found() -> None:
    kernel = kernel_of("next_rows")

    def ahead(reference: Reference) -> Execution:
        """Execute a launch as if all of x were loaded before anything is stored."""
        contents = {name: buffer.initial.copy() for name, buffer in reference.buffers.items()}
        args: list[Array | int | float] = []
        for name in reference.order:
            buffer = reference.buffer(name)
            if buffer is None:
                args.append(reference.launch.scalars[name])
                continue
            content = contents[buffer.name].copy() if name == "x_ptr" else contents[buffer.name]
            args.append(content[buffer.start_bytes :].view(dtype_of(buffer.pointee)))
        Interpreter(kernel, args).run(reference.launch.grid)
        return Execution(contents)

    roles = roles_of(kernel, {}, is_inexact)
    choices = {"n_rows": Choice(values=(3,)), "stride": Choice(values=(32,))}
    checks = Checks(Conditions(None, _any, choices=choices))
    findings = list(check_kernel(kernel, roles, checks, ahead))
    assert findings[-1].status == "wrong"
    assert _labels(findings)[-1] == "in place"


def test_rows_far_apart_and_tiles_one_after_the_other_are_right() -> None:
    def grid(scalars: Mapping[str, int]) -> tuple[int, ...]:
        return (min(40, -(-scalars["n_rows"] // 2) * -(-scalars["n_cols"] // 16)),)

    findings = _check("tiles", grid=grid, may_be_left_out=True)
    assert {finding.status for finding in findings} == {"right"}
    assert {"far", "persistent"} <= {*_labels(findings)}
    assert all(finding.num_stored for finding in findings if finding.label != "none")


def test_an_offset_of_32_bits_is_found() -> None:
    def narrowed(text: str) -> str:
        return re.sub(r"(%\w+) = arith.mul\((%\w+), (%\w+)\) : i64", _NARROW, text)

    findings = _check("scale_rows", narrowed, grid=_rows)
    assert findings[-1].status in ("wrong", "fault")
    assert findings[-1].label == "far"


_NARROW = """\\1w = arith.mul(\\2, \\3) : i64
  \\1n = arith.cast(\\1w) {dtype = i32} : i32
  \\1 = arith.cast(\\1n) {dtype = i64} : i64"""


def test_a_tolerance_is_granted() -> None:
    kernel = kernel_of("grouped")
    compiled = parse_kernel(print_kernel(kernel).replace("value = 0.5", "value = 0.5001"))
    roles = roles_of(kernel, {}, is_inexact)
    checks = Checks(Conditions(None, _any))
    strict = list(check_kernel(kernel, roles, checks, interpreted(compiled)))
    assert strict[-1].status == "wrong"
    lenient = replace(checks, tolerance=1e-3)
    findings = list(check_kernel(kernel, roles, lenient, interpreted(compiled)))
    assert {finding.status for finding in findings} == {"right"}


@pytest.mark.parametrize(
    ("index", "steps", "expected"),
    [(37, [16], (2, 5)), (37, [], (37,)), (137, [5, 50], (2, 7, 2)), (3, [1], (3,))],
)
def test_coordinates(index: int, steps: list[int], expected: tuple[int, ...]) -> None:
    assert coordinates(index, steps) == expected


def test_forms_of_a_kernel_share_references() -> None:
    """The second form runs on the same references, and is held against them as strictly."""
    kernel = kernel_of("grouped")
    roles = roles_of(kernel, {}, is_inexact)
    checks = Checks(Conditions(None, _any), references=References())
    seen: list[Reference] = []

    def execute(reference: Reference) -> Execution:
        seen.append(reference)
        return interpreted(kernel)(reference)

    assert {result.status for result in check_kernel(kernel, roles, checks, execute)} == {"right"}
    count = len(seen)
    assert {result.status for result in check_kernel(kernel, roles, checks, execute)} == {"right"}
    assert [id(reference) for reference in seen[count:]] == [
        id(reference) for reference in seen[:count]
    ]
    other = parse_kernel(print_kernel(kernel).replace("value = 0.5", "value = 0.25"))
    findings = list(check_kernel(kernel, roles, checks, interpreted(other)))
    assert findings[-1].status == "wrong"


def test_batched_executions_are_compared_without_a_rerun() -> None:
    kernel = kernel_of("grouped")
    roles = roles_of(kernel, {}, is_inexact)
    alone: list[str] = []

    def execute(reference: Reference) -> Execution:
        alone.append(reference.launch.label)
        return interpreted(kernel)(reference)

    def together(references: Sequence[Reference]) -> list[Execution | None]:
        in_step = [reference.launch.in_step for reference in references]
        return [
            interpreted(kernel)(reference) if is_in_step else None
            for reference, is_in_step in zip(references, in_step, strict=True)
        ]

    checks = Checks(Conditions(None, _any))
    findings = list(check_kernel(kernel, roles, checks, execute, together))
    plain = list(check_kernel(kernel, roles, checks, interpreted(kernel)))
    assert [each.label for each in findings] == [each.label for each in plain]
    assert {each.status for each in findings} == {"right"}
    assert 0 < len(alone) < len(findings)
    other = parse_kernel(print_kernel(kernel).replace("value = 0.5", "value = 0.25"))
    wrong = list(
        check_kernel(kernel, roles, checks, execute, lambda rs: [interpreted(other)(r) for r in rs])
    )
    assert [each.status for each in wrong] == ["wrong"]
