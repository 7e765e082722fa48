"""Check one compiled kernel against its tile IR, at boundary launches.

For each launch the tile IR is interpreted for buffers, results and bounds. Then the
compiled kernel is executed on the same buffers, and the results are compared. The caller
chooses how to execute it: PTX in the emulator, or a cubin on a GPU.

Where programs of a launch overlap, or a program overwrites its own results, the rows were too
close: the launch is repeated with wider strides. A launch is passed over, with the reason,
where the kernel itself misbehaves: an assumption fails, an index is out of all bounds, a result
depends on undefined values. Such a launch says nothing about the compiler. Optional launches
(rows far apart, aliased arguments, floats of any sign and size) are dropped where they make no
sense for the kernel.

Invariant: a launch with the status "right" was executed and compared; `num_stored` bytes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias

from aotc.ir.core import Kernel
from aotc.verify.checks.compare import Mismatch, compare
from aotc.verify.checks.dataflow import Roles
from aotc.verify.checks.extents import is_float, may_store_nothing
from aotc.verify.checks.index_overflow import IndexOverflowError
from aotc.verify.checks.inputs import Inputs
from aotc.verify.checks.launch import BACKWARDS, Indices, Launch, Scalar
from aotc.verify.checks.launches import Chooser, Conditions
from aotc.verify.checks.noise import is_inexact
from aotc.verify.checks.open_results import (
    depends_on_order,
    is_right_in_another_order,
    leaves_buffers,
)
from aotc.verify.checks.reference import (
    Bytes,
    ConflictError,
    Reference,
    RewriteError,
    interpret,
)
from aotc.verify.checks.rounding import reads_by_rounding
from aotc.verify.checks.undefined_sources import undefined_text
from aotc.verify.interpreter.numerics import ALL_ZERO
from aotc.verify.interpreter.program import InterpretError

Status: TypeAlias = Literal["right", "wrong", "fault", "passed over"]


class ExecutionFault(Exception):  # noqa: N818 - hardware's word
    """Report an illegal action of a compiled kernel; the message is the whole report.

    `beyond` is set if the only fault is a read or write outside of the reference's; `is_race`
    if two accesses are unordered.
    """

    def __init__(
        self,
        report: str,
        *,
        beyond: Literal["", "reads", "writes"] = "",
        is_race: bool = False,
    ) -> None:
        super().__init__(report)
        self.beyond = beyond
        self.is_race = is_race


class _OpenError(Exception):
    """Report an unchecked launch: more than one result is right."""


class Unsuited(Exception):  # noqa: N818 - what the launch is
    """Report a launch not executable here; the kernel may still be right."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The buffers after a compiled kernel, by name, and the number of executed instructions.

    `forgiven` is a fault excused by right results: a race on unused
    values.
    """

    buffers: Mapping[str, Bytes]
    lane_instructions: int = 0
    forgiven: str = ""


Execute: TypeAlias = Callable[[Reference], Execution]
ExecuteTogether: TypeAlias = Callable[[Sequence[Reference]], Sequence[Execution | None]]


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one launch; `detail` is empty if it is right.

    `num_stored` bytes were stored and compared.
    """

    label: str
    scalars: Mapping[str, Scalar]
    grid: tuple[int, ...]
    status: Status
    detail: str = ""
    mismatch: Mismatch | None = None
    lane_instructions: int = 0
    num_stored: int = 0

    @property
    def gap(self) -> str:
        """The reason this launch is unchecked, empty if it is checked or need not be."""
        if self.status == "passed over":
            return self.detail
        if self.status == "right" and not self.num_stored and not may_store_nothing(self.label):
            return "the kernel stores nothing"
        return ""


@dataclass(slots=True)
class References:
    """Interpret each launch of a kernel once, for all compiled forms of the kernel."""

    _cache: dict[tuple[object, ...], Reference | ConflictError | InterpretError] = field(
        default_factory=dict[tuple[object, ...], "Reference | ConflictError | InterpretError"]
    )

    @property
    def size_bytes(self) -> int:
        """The memory of the buffers of all launches."""
        references = (
            reference for reference in self._cache.values() if isinstance(reference, Reference)
        )
        return sum(
            buffer.held_bytes for reference in references for buffer in reference.buffers.values()
        )

    def of(
        self, chooser: Chooser, launch: Launch, inputs: Inputs, *, may_rewrite: bool
    ) -> Reference:
        """Return the reference of a launch. Raises: as `interpret`."""
        drawn = (launch.seed, launch.index_high, launch.is_sparse, launch.grid, launch.indices)
        key = (launch.label, *drawn, may_rewrite, *launch.key)
        outcome = self._cache.get(key)
        if outcome is None:
            try:
                outcome = interpret(
                    chooser.kernel, chooser.roles, launch, inputs, may_rewrite=may_rewrite
                )
            except (ConflictError, InterpretError) as error:
                outcome = error.with_traceback(
                    None
                )  # its frames would keep all intermediate arrays alive
            self._cache[key] = outcome
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@dataclass(frozen=True, slots=True)
class Checks:
    """The settings of a kernel's checks.

    Checks of the same tile IR, under the same inputs, may share their `references`. With
    `is_compared_later`, `execute` only collects references, for a later comparison. Then
    references with undefined values are passed over before execution, instead of
    after a mismatch.
    """

    conditions: Conditions
    inputs: Inputs = field(default_factory=Inputs)
    seed: int = 0
    tolerance: float = 0.0
    references: References | None = None
    is_compared_later: bool = False


def check_kernel(
    kernel: Kernel,
    roles: Roles,
    checks: Checks,
    execute: Execute,
    execute_together: ExecuteTogether | None = None,
) -> Iterator[Finding]:
    """Yield a finding for each launch, up to the first wrong one.

    Launches of `execute_together` are not executed again.
    """
    chooser = Chooser(kernel, roles, checks.conditions, checks.seed)
    checks = replace(checks, inputs=checks.inputs.with_addresses(roles))
    launches = _references(chooser, checks)
    executions: dict[tuple[object, ...], Execution] = {}
    if execute_together is not None:
        launches = list(launches)
        references = [candidate for _, _, candidate in launches if isinstance(candidate, Reference)]
        for reference, execution in zip(references, execute_together(references), strict=True):
            if execution is not None:
                executions[reference.launch.key] = execution
    may_be_whole = bool(roles.extents)
    for index, launch, reference in launches:
        if isinstance(reference, Reference):
            try:
                finding = _check_launch(
                    chooser, reference, checks, execute, executions.get(launch.key)
                )
                if launch.label in ("far", BACKWARDS):
                    finding = _retry_nearer(chooser, index, checks, execute, finding)
                if launch.is_backwards and finding.status == "passed over":
                    continue  # without a launcher no memory lies before a pointer
            except _OpenError as error:
                if chooser.is_optional(index):
                    continue
                whole = _check_whole(chooser, index, checks, execute) if may_be_whole else None
                may_be_whole = whole is not None
                finding = whole or _finding(launch, "passed over", str(error))
        else:
            finding = reference
        yield finding
        if finding.status in ("wrong", "fault"):
            return


def _references(
    chooser: Chooser, checks: Checks
) -> Iterator[tuple[int, Launch, Reference | Finding]]:
    """Yield each distinct launch with its index and its reference, or the finding instead."""
    seen: dict[tuple[object, ...], None] = {}
    executed: dict[tuple[object, ...], None] = {}
    patience = _Patience()
    for index in range(chooser.count):
        pair = _reference(chooser, index, checks, executed, patience=patience)
        if pair is None:
            continue
        launch, reference = pair
        if launch.key in seen:
            continue
        seen[launch.key] = None
        if isinstance(reference, Reference):
            executed[launch.key] = None
        yield index, launch, reference


def _reference(
    chooser: Chooser,
    index: int,
    checks: Checks,
    executed: Container[tuple[object, ...]],
    first_spacing: int = 0,
    patience: _Patience | None = None,
) -> tuple[Launch, Reference | Finding] | None:
    """Return a launch and its reference, or the finding instead.

    None if there is no such launch, or it is in `executed`. Where random indices lead outside of
    buffers or select nothing, other ones are tried, and then other grids, if a launch gives it.
    """
    attempt = partial(_attempt, chooser, index, checks, executed, first_spacing)
    first = attempt(_Fallback())
    if first is None or _stores(first) or may_store_nothing(first[0].label):
        return first
    patience = patience or _Patience()
    attempts = map(attempt, _fallbacks(chooser, checks, len(first[0].grid)))
    if patience.is_left and (
        other := next((other for other in attempts if other is not None and _stores(other)), None)
    ):
        return other
    patience.num_failed += 1
    return first


@dataclass(frozen=True, slots=True)
class _Fallback:
    """Another choice of a launch's indices, of its grid unless empty, and of its extents."""

    indices: Indices = "any"
    grid: tuple[int, ...] = ()
    is_whole: bool = False


@dataclass(slots=True)
class _Patience:
    """Count the launches for which no fallback stores anything."""

    num_failed: int = 0

    @property
    def is_left(self) -> bool:
        return self.num_failed < _MAX_FAILED


def _fallbacks(chooser: Chooser, checks: Checks, rank: int) -> Iterator[_Fallback]:
    has_indices = any(name not in checks.inputs.ranges for name in chooser.roles.indices)
    if has_indices:
        yield from map(_Fallback, _OTHER_INDICES)
    if chooser.roles.extents:
        yield _Fallback(is_whole=True)
    if chooser.conditions.grid is not None or not chooser.conditions.may_change_grid:
        return
    grids = [(1,) * rank]
    for axis in range(rank):
        pair = 0 if axis else min(1, rank - 1)  # two programs of another axis, if there is one
        grids.append(tuple({pair: 2, axis: _MANY}.get(i, 1) for i in range(rank)))
    for grid in grids:
        yield _Fallback("any", grid)
        if has_indices:
            yield _Fallback("few", grid)


def _stores(attempt: tuple[Launch, Reference | Finding]) -> bool:
    """Return whether a launch may run and stores anything, or shows a certain mistake."""
    _, outcome = attempt
    if isinstance(outcome, Reference):
        return outcome.num_stored > 0
    return outcome.status == "fault"


def _attempt(
    chooser: Chooser,
    index: int,
    checks: Checks,
    executed: Container[tuple[object, ...]],
    first_spacing: int,
    fallback: _Fallback,
) -> tuple[Launch, Reference | Finding] | None:
    """Return a launch and its reference, or the finding instead.

    None if there is no such launch, or it is in `executed`.
    """
    if fallback.is_whole:
        chooser = replace(chooser, is_whole=True)
    failed: tuple[Launch, Finding] | None = None
    spacings = chooser.spacings(index)[first_spacing:]
    rewrites = False
    references = checks.references or References()
    # A kernel may rewrite its results on purpose, so the last attempt accepts it.
    for attempt, spacing in enumerate((*spacings, spacings[0])):
        is_last = attempt == len(spacings)
        if is_last and not rewrites:
            break
        launch = chooser.launch(index, spacing)
        if launch is None:
            break
        grid = fallback.grid or launch.grid
        launch = replace(launch, indices=fallback.indices, grid=grid)
        if launch.key in executed:
            return None
        try:
            return launch, references.of(chooser, launch, checks.inputs, may_rewrite=is_last)
        except ConflictError as error:
            rewrites |= attempt == 0 and isinstance(error, RewriteError)
            last = launch, _finding(launch, "passed over", str(error))
            failed = last if failed is None or is_last else failed
        except InterpretError as error:
            # A buffer of declared size has nothing before its pointer.
            is_meant = not launch.is_backwards
            if error.is_out_of_bounds and is_meant and _is_certain(chooser, launch, checks.inputs):
                return launch, _finding(launch, "fault", error.render())
            if isinstance(error, IndexOverflowError) and not chooser.is_optional(index):
                return launch, _finding(launch, "fault", error.render())
            failed = launch, _finding(launch, "passed over", error.render())
            if not launch.is_sparse:
                break
    return None if chooser.is_optional(index) else failed


def _is_certain(chooser: Chooser, launch: Launch, inputs: Inputs) -> bool:
    """Return whether an access outside a buffer is certainly the kernel's mistake."""
    # Some kernels make no sense of some floats.
    if is_float(launch.label):
        return False
    return leaves_buffers(chooser.kernel, chooser.roles, launch, inputs)


_OTHER_INDICES: tuple[Indices, ...] = ("few", "distinct", "cumulative")
_MANY = 16  # programs of an axis, if they number pairs or tiles of something
_MAX_FAILED = 4
_BY_ORDER = "the result in {} depends on the order in which programs update memory atomically"
_BY_ROUNDING = "which elements it reads depends on how floats are rounded"


def _check_launch(
    chooser: Chooser,
    reference: Reference,
    checks: Checks,
    execute: Execute,
    execution: Execution | None,
) -> Finding:
    """Execute a launch, unless `execution` is given, and compare. Raises: _OpenError."""
    launch = reference.launch
    if checks.is_compared_later:
        undefined = undefined_text(chooser.kernel, chooser.roles, reference, checks.inputs)
        if undefined:
            raise _OpenError(undefined)
    try:
        execution = execution or execute(reference)
    except Unsuited as error:
        return _finding(launch, "passed over", str(error))
    except ExecutionFault as error:
        if error.beyond == "reads" and reads_by_rounding(chooser.kernel, is_inexact):
            raise _OpenError(_BY_ROUNDING) from None
        # An undefined mask or index explains an access out of bounds.
        undefined = error.beyond and undefined_text(
            chooser.kernel, chooser.roles, reference, checks.inputs
        )
        if undefined:
            raise _OpenError(undefined) from None
        return _finding(launch, "fault", str(error))
    for name, buffer in reference.buffers.items():
        mismatch = compare(buffer, execution.buffers[name], checks.tolerance)
        if mismatch is None:
            continue
        undefined = undefined_text(chooser.kernel, chooser.roles, reference, checks.inputs)
        if undefined:
            raise _OpenError(undefined)
        if is_right_in_another_order(
            *(chooser.kernel, chooser.roles, launch, checks.inputs),
            *(execution.buffers, checks.tolerance),
        ):
            break
        buffer_name = depends_on_order(chooser.kernel, chooser.roles, reference, checks.inputs)
        if buffer_name:
            raise _OpenError(_BY_ORDER.format(buffer_name))
        if execution.forgiven:
            return _finding(launch, "fault", execution.forgiven)
        strides = [term.stride for term in chooser.roles.strides.get(name, ())]
        return _finding(launch, "wrong", _text(mismatch, launch, strides), mismatch)
    # A match may be luck: the reference and the registers may have had the same undefined values.
    undefined = undefined_text(
        chooser.kernel, chooser.roles, reference, checks.inputs, seeds=(ALL_ZERO,)
    )
    if undefined:
        raise _OpenError(undefined)
    return replace(
        _finding(launch, "right"),
        lane_instructions=execution.lane_instructions,
        num_stored=reference.num_stored,
    )


def _check_whole(chooser: Chooser, index: int, checks: Checks, execute: Execute) -> Finding | None:
    """Return the outcome of a launch of whole blocks, without lanes that masks leave undefined."""
    attempt = _attempt(chooser, index, checks, (), 0, _Fallback(is_whole=True))
    if attempt is None or not isinstance(attempt[1], Reference):
        return None
    try:
        return _check_launch(chooser, attempt[1], checks, execute, None)
    except _OpenError:
        return None


def _retry_nearer(
    chooser: Chooser, index: int, checks: Checks, execute: Execute, finding: Finding
) -> Finding:
    """Retry a launch without room at smaller row spacings; return the last finding."""
    for spacing in range(1, len(chooser.spacings(index))):
        if finding.status != "passed over":
            break
        nearer = _reference(chooser, index, checks, (), spacing)
        if nearer is not None and isinstance(nearer[1], Reference):
            finding = _check_launch(chooser, nearer[1], checks, execute, None)
    return finding


def _finding(
    launch: Launch,
    status: Status,
    detail: str = "",
    mismatch: Mismatch | None = None,
) -> Finding:
    return Finding(launch.label, launch.scalars, launch.grid, status, detail, mismatch)


def coordinates(index: int, steps: Sequence[int]) -> tuple[int, ...]:
    """Return the coordinates of element `index` in a buffer whose axes are `steps` elements apart.

    >>> coordinates(37, [16]) (2, 5)
    """
    indices: list[int] = []
    for step in sorted((step for step in steps if step > 1), reverse=True):
        indices.append(index // step)
        index %= step
    return (*indices, index)


def _text(mismatch: Mismatch, launch: Launch, strides: Sequence[str]) -> str:
    steps = [int(launch.scalars[name]) for name in strides if name in launch.scalars]
    position = coordinates(mismatch.index, steps)
    location = f" at {list(position)}" if len(position) > 1 else ""
    bound = f"within {mismatch.bound:.3g}" if mismatch.bound else "to the bit"
    problem = mismatch.reason or "are wrong"
    return (
        f"{mismatch.buffer}[{mismatch.index}]{location} is {mismatch.actual}, "
        f"expected {mismatch.expected} {bound}\n{mismatch.num_wrong} of {mismatch.num_written} elements {problem}"
    )
