"""References: buffers limited to a kernel's accesses, and noise where rounding is open."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from aotc.ir.core import Op
from aotc.ir.dialects import arith
from aotc.ir.text import parse_kernel, print_kernel
from aotc.verify.arrays import Array
from aotc.verify.checks import reference as references
from aotc.verify.checks.dataflow import roles_of
from aotc.verify.checks.index_overflow import IndexOverflowError
from aotc.verify.checks.inputs import Inputs, Range
from aotc.verify.checks.launch import Launch
from aotc.verify.checks.noise import inexact_ops, is_inexact
from aotc.verify.checks.open_results import (
    depends_on_order,
    depends_on_undefined,
    is_right_in_another_order,
)
from aotc.verify.checks.reference import (
    MAX_UPWARD_RUNS,
    NUM_RANDOM_RUNS,
    Buffer,
    ConflictError,
    Reference,
    interpret,
)
from aotc.verify.checks.rounding import NUM_FLIPPED_RUNS
from aotc.verify.interpreter.program import InterpretError, Program, Rule, Rules
from aotc.verify.interpreter.replay import Recording, Steady
from aotc.verify.interpreter.run import RULES, Interpreter
from tests.support.steered_kernel import STEERED
from tests.support.verify_subjects import kernel_of


def _launch(grid: tuple[int, ...], *, misaligned: bool = False, **scalars: float) -> Launch:
    return Launch("over", scalars, grid, 9, 5, misaligned)


def _reference(name: str, launch: Launch, inputs: Inputs | None = None) -> Reference:
    kernel = kernel_of(name)
    return interpret(kernel, roles_of(kernel, {}, is_inexact), launch, inputs or Inputs())


def _values(buffer: Buffer, content: np.ndarray) -> np.ndarray:
    return buffer.elements(content)[buffer.start_bytes // buffer.pointee.size_bytes :]


ROWS = {"stride": 20, "n_rows": 3, "n_cols": 17, "factor": 0.3}


@pytest.mark.parametrize("misaligned", [False, True])
def test_a_buffer_holds_touched_elements(misaligned: bool) -> None:
    reference = _reference("scale_rows", _launch((3,), misaligned=misaligned, **ROWS))
    assert reference.order == ("x_ptr", "out_ptr", "stride", "n_rows", "n_cols", "factor")
    x, out = reference.buffers["x_ptr"], reference.buffers["out_ptr"]
    rows = np.zeros((3, 20), bool)
    rows[:, :17] = True
    touched = rows.reshape(-1)[: 2 * 20 + 17]
    for marks, expected in (
        (x.readable, touched),
        (x.writable, np.zeros_like(touched)),
        (out.writable, touched),
        (out.readable, np.zeros_like(touched)),
    ):
        assert (marks[x.start_bytes :].reshape(-1, 4).all(axis=1) == expected).all()
        assert not marks[: x.start_bytes].any()
    actual, source = _values(out, out.expected), _values(x, x.initial)
    assert (actual[touched] == source[touched] * np.float32(0.3)).all()
    assert (actual[~touched] == _values(out, out.initial)[~touched]).all()
    assert x.start_bytes % 256 == (4 if misaligned else 0)


def test_products_are_exact_and_sums_are_not() -> None:
    exact = _reference("scale_rows", _launch((3,), **ROWS)).buffers["out_ptr"]
    assert exact.is_exact
    buffers = _reference("sum_rows", _launch((2,), stride=16, n_cols=16)).buffers
    assert buffers["x_ptr"].is_exact
    out = buffers["out_ptr"]
    assert not out.is_exact
    assert len(out.upward) == len(inexact_ops(kernel_of("sum_rows"))) == 1 <= MAX_UPWARD_RUNS
    assert len(out.random) == NUM_RANDOM_RUNS
    value, perturbed = _values(out, out.expected), _values(out, out.upward[0])
    assert (perturbed > value).all()
    assert (np.abs(perturbed - value) < 1e-5).all()


def test_overlapping_programs_have_no_result() -> None:
    with pytest.raises(ConflictError, match="program 1 writes what another has written in out_ptr"):
        _reference("crowd", _launch((2,), n=3))
    assert _reference("crowd", _launch((1,), n=3)).buffers["out_ptr"].writable.any()


def test_atomics_may_share() -> None:
    out = _reference("count", _launch((3,), n=40)).buffers["out_ptr"]
    assert out.readable.sum() == out.writable.sum() == 4


_ZEROS = Inputs({"counter_ptr": Range(lambda _: 0, lambda _: 1)})


def test_the_last_program_at_a_counter_reads_all_writes() -> None:
    buffers = _reference("last_adds", _launch((5,)), _ZEROS).buffers
    x, out, counter = (buffers[name] for name in ("x_ptr", "out_ptr", "counter_ptr"))
    assert _values(out, out.expected)[0] == _values(x, x.initial)[: 5 * 16].sum(dtype=np.int32)
    assert _values(counter, counter.expected)[0] == 0


@pytest.mark.parametrize(
    "order", ['sem = "relaxed"', 'sem = "acquire"', 'sem = "release"', 'scope = "cta"']
)
def test_a_counter_that_orders_nothing_does_not_help(order: str) -> None:
    text = print_kernel(kernel_of("last_adds"))
    assert text.count('{kind = "add"}') == 1
    kernel = parse_kernel(text.replace('{kind = "add"}', f'{{kind = "add", {order}}}'))
    with pytest.raises(ConflictError, match="program 4 reads what another has written in parts"):
        interpret(kernel, roles_of(kernel, {}, is_inexact), _launch((5,)), _ZEROS)


def test_an_assumption_that_does_not_hold_is_the_launchs_fault() -> None:
    with pytest.raises(InterpretError, match="does not hold"):
        _reference("scale_rows", _launch((4,), **ROWS))


def test_indices_stay_in_their_range() -> None:
    launch = _launch((2,), n=20, stride_x=7)
    reference = _reference("gather", launch)
    index = reference.buffers["index_ptr"]
    assert set(_values(index, index.initial)[:20].tolist()) <= set(range(5))
    inputs = Inputs({"index_ptr": Range(lambda _: 30, lambda scalars: scalars["n"] + 12)})
    index = _reference("gather", launch, inputs).buffers["index_ptr"]
    assert set(_values(index, index.initial)[:20].tolist()) <= {30, 31}


@pytest.mark.parametrize("is_sparse", [False, True])
def test_an_unknown_result_is_found(is_sparse: bool) -> None:
    for name, expected in (("leaky", "out_ptr"), ("gather", "")):
        kernel = kernel_of(name)
        roles = roles_of(kernel, {}, is_inexact)
        launch = replace(_launch((2,), n=20, stride_x=7), is_sparse=is_sparse)
        reference = interpret(kernel, roles, launch, Inputs())
        assert depends_on_undefined(kernel, roles, reference, Inputs()) == expected


@pytest.mark.parametrize(
    ("name", "num_programs", "expected"),
    [("placed", 3, "out_ptr"), ("placed", 1, ""), ("last_adds", 3, ""), ("count", 3, "")],
)
def test_an_order_dependent_result_is_found(name: str, num_programs: int, expected: str) -> None:
    kernel = kernel_of(name)
    roles = roles_of(kernel, {}, is_inexact)
    launch = _launch((num_programs,), n=20) if name == "count" else _launch((num_programs,))
    reference = interpret(kernel, roles, launch, _ZEROS)
    assert depends_on_order(kernel, roles, reference, _ZEROS) == expected


@pytest.mark.parametrize("name", ["placed", "locked"])
def test_programs_may_come_in_any_order(name: str) -> None:
    """But each of them comes, and none twice."""
    kernel = kernel_of(name)
    roles = roles_of(kernel, {}, is_inexact)
    launch = _launch((3,))

    def left(*programs: int) -> dict[str, references.Bytes]:
        reference = interpret(kernel, roles, replace(launch, programs=programs), _ZEROS)
        return {name: buffer.expected for name, buffer in reference.buffers.items()}

    is_right = partial(is_right_in_another_order, kernel, roles)
    for order in ((2, 0, 1), (1, 0, 2)):
        assert is_right(launch, _ZEROS, left(*order), 0.0)
    twice = {**left(0, 1, 2), "out_ptr": left(0, 1, 1)["out_ptr"]}
    assert not is_right(launch, _ZEROS, twice, 0.0)
    many = replace(launch, grid=(5,))
    assert not is_right(many, _ZEROS, left(2, 0, 1), 0.0)  # too many to be tried


@pytest.mark.parametrize(("count", "overflows"), [(1 << 29, False), ((1 << 31) - 16, True)])
def test_an_index_that_overflows_means_nothing(count: int, overflows: bool) -> None:
    """It goes to just before the pointer, where there is room."""
    kernel = kernel_of("gather")
    scalars = {"n": count, "stride_x": 1}
    last = count // 16 - 1
    launch = replace(_launch((last + 1,)), label="long: n", scalars=scalars)
    launch = replace(launch, programs=(last,), is_sparse=True)
    roles = roles_of(kernel, {}, is_inexact)
    if overflows:
        with pytest.raises(IndexOverflowError, match="int32 product of an address overflows"):
            interpret(kernel, roles, launch, Inputs())
    else:
        assert interpret(kernel, roles, launch, Inputs()).num_stored == 16 * 8


def test_bounds_are_the_same_where_nothing_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = _launch((1,))
    replayed = _reference("attend", launch).buffers["out_ptr"]
    monkeypatch.setattr(references, "Recording", partial(Recording, max_bytes=-1))
    computed = _reference("attend", launch).buffers["out_ptr"]
    assert len(replayed.flipped) == NUM_FLIPPED_RUNS
    for ours, theirs in (
        (replayed.upward, computed.upward),
        (replayed.flipped, computed.flipped),
        (replayed.random, computed.random),
    ):
        assert [array.tobytes() for array in ours] == [array.tobytes() for array in theirs]


def _halved(program: Program, op: Op, value: Array) -> Array:
    del program, op
    return np.exp(value) / np.float32(2)


@pytest.mark.parametrize("changed_op", [arith.Exp, arith.Compare, None])
def test_steady_results_equal_a_full_run(changed_op: type[Op] | None) -> None:
    """One exponential more exceeds 1 in the first run, so the stored and reloaded value changes."""
    kernel = parse_kernel(STEERED)
    x, y = np.array([0.1, 1.0, -3.0, 2.0, 9.0], np.float32), np.arange(9, dtype=np.float32)
    rules = {**RULES, arith.Exp: _halved} if changed_op is arith.Exp else RULES
    if changed_op is arith.Compare:
        rules = {**RULES, arith.Compare: lambda program, op, a, b: np.asarray(a < b)}

    def run(rules: Rules, steady: Steady | None = None) -> list[bytes]:
        buffers = [x.copy(), y.copy()]
        Interpreter(kernel, [*buffers, 4], rules=rules, steady=steady).run((1,))
        return [buffer.tobytes() for buffer in buffers]

    recording = Recording()
    exact = run(recording.recording(RULES))
    live = [op for op in kernel.walk() if changed_op is not None and isinstance(op, changed_op)]
    steady = references.steady_values(kernel, recording, live)
    ran: list[type[Op]] = []
    counted = {cls: _counting(cls, rule, ran) for cls, rule in rules.items()}
    replayed = run(recording.replaying(counted, live, same_poison=True), steady)
    assert replayed == run(rules)
    assert (replayed == exact) == (changed_op is None)
    assert arith.Constant not in ran


def _counting(cls: type[Op], rule: Rule, ran: list[type[Op]]) -> Rule:
    def counted(program: Program, op: Op, *operands: Array | None):
        ran.append(cls)
        return rule(program, op, *operands)

    return counted
