"""One compiled kernel against its tile IR, at boundary launches.

For each launch the tile IR is interpreted, which gives buffers, results and bounds, then the
compiled kernel is executed on the same buffers, and what it leaves is compared. How it is executed
is the caller's: PTX in the emulator, a cubin on a GPU.

Where programs of a launch overlap, or a program overwrites its own results, rows were set too
close, and it is tried again with more room.
A launch at which the kernel itself does what it may not (an assumption that does not hold, an index
out of all bounds, a result that depends on undefined values) says nothing about the compiler and
is passed over, with the reason. Rows far apart, arguments that are one memory, and floats of any sign
and size need not mean anything to a kernel; where they do not, there is no such launch.

Invariant: a launch that is right was executed and compared; `num_stored` says how much.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from aotc.ir.core import Kernel
from aotc.verify.checks.compare import Mismatch, compare
from aotc.verify.checks.dataflow import Roles
from aotc.verify.checks.extents import is_float, may_store_nothing
from aotc.verify.checks.index_overflow import IndexOverflowError
from aotc.verify.checks.inputs import Inputs
from aotc.verify.checks.launch import BACKWARDS, Launch, Scalar
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
    """Report that a compiled kernel did what it may not; the message is the whole report.

    `beyond` says that all it did was to read or write where the reference has not, `is_race` that
    nothing orders two accesses.
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
    """Report that a launch is not checked: what is right may be one thing or another."""


class Unsuited(Exception):  # noqa: N818 - what the launch is
    """Report that a launch cannot be executed here, which says nothing about the kernel."""


@dataclass(frozen=True, slots=True)
class Execution:
    """Hold what a compiled kernel left in the buffers, by name, and how many steps it took.

    `forgiven` is a fault that is none if the results are right: threads race for what nobody uses.
    """

    buffers: Mapping[str, Bytes]
    lane_instructions: int = 0
    forgiven: str = ""


Execute: TypeAlias = Callable[[Reference], Execution]
ExecuteTogether: TypeAlias = Callable[[Sequence[Reference]], Sequence[Execution | None]]


@dataclass(frozen=True, slots=True)
class Finding:
    """Say what came of one launch; `detail` is empty where all is right.

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
        """Why this launch is not checked, empty if it is or need not be."""
        if self.status == "passed over":
            return self.detail
        if self.status == "right" and not self.num_stored and not may_store_nothing(self.label):
            return "the kernel stores nothing"
        return ""


@dataclass(slots=True)
class References:
    """Interpret each launch of a kernel once, however many forms of it run that launch."""

    _known: dict[tuple[object, ...], Reference | ConflictError | InterpretError] = field(
        default_factory=dict[tuple[object, ...], "Reference | ConflictError | InterpretError"]
    )

    @property
    def size_bytes(self) -> int:
        """How much memory the buffers of all launches take."""
        known = (each for each in self._known.values() if isinstance(each, Reference))
        return sum(buffer.held_bytes for each in known for buffer in each.buffers.values())

    def of(
        self, chooser: Chooser, launch: Launch, inputs: Inputs, *, may_rewrite: bool
    ) -> Reference:
        """Return what a launch must give. Raises: as `interpret`."""
        drawn = (launch.seed, launch.index_high, launch.is_sparse, launch.grid)
        key = (launch.label, *drawn, may_rewrite, *launch.key)
        found = self._known.get(key)
        if found is None:
            try:
                found = interpret(
                    chooser.kernel, chooser.roles, launch, inputs, may_rewrite=may_rewrite
                )
            except (ConflictError, InterpretError) as error:
                found = error.with_traceback(None)  # its frames would keep all that was computed
            self._known[key] = found
        if isinstance(found, Exception):
            raise found
        return found


@dataclass(frozen=True, slots=True)
class Checks:
    """What to check a kernel under.

    Checks of the same tile IR, under the same inputs, may share their `references`. With
    `is_compared_later`, what executes only keeps them: those that depend on undefined values, for
    which others look after a mismatch, are passed over ahead.
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
    """Yield a finding for each launch; after the first that is wrong there are no more.

    What `execute_together` executes at once is not executed again.
    """
    chooser = Chooser(kernel, roles, checks.conditions, checks.seed)
    chosen = _references(chooser, checks)
    done: dict[tuple[object, ...], Execution] = {}
    if execute_together is not None:
        chosen = list(chosen)
        references = [each for _, _, each in chosen if isinstance(each, Reference)]
        for reference, execution in zip(references, execute_together(references), strict=True):
            if execution is not None:
                done[reference.launch.key] = execution
    for index, launch, reference in chosen:
        if isinstance(reference, Reference):
            try:
                finding = _checked(chooser, reference, checks, execute, done.get(launch.key))
                if launch.label in ("far", BACKWARDS):
                    finding = _nearer(chooser, index, checks, execute, finding)
                if launch.is_backwards and finding.status == "passed over":
                    continue  # without a launcher nothing lies before a pointer
            except _OpenError as error:
                if chooser.is_optional(index):
                    continue
                finding = _finding(launch, "passed over", str(error))
        else:
            finding = reference
        yield finding
        if finding.status in ("wrong", "fault"):
            return


def _references(
    chooser: Chooser, checks: Checks
) -> Iterator[tuple[int, Launch, Reference | Finding]]:
    """Yield each launch once, by its number, and its reference, or why there is none."""
    seen: dict[tuple[object, ...], None] = {}
    executed: dict[tuple[object, ...], None] = {}
    for index in range(chooser.count):
        found = _reference(chooser, index, checks, executed)
        if found is None:
            continue
        launch, reference = found
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
) -> tuple[Launch, Reference | Finding] | None:
    """Return a launch and its reference, or why there is none.

    None if there is no such launch, or it is one of those `executed`.
    """
    failed: tuple[Launch, Finding] | None = None
    spacings = chooser.spacings(index)[first_spacing:]
    rewrites = False
    references = checks.references or References()
    # A kernel may well mean to change what it wrote, so in the end that is accepted.
    for at, spacing in enumerate((*spacings, spacings[0])):
        is_last = at == len(spacings)
        if is_last and not rewrites:
            break
        launch = chooser.launch(index, spacing)
        if launch is None:
            break
        if launch.key in executed:
            return None
        try:
            return launch, references.of(chooser, launch, checks.inputs, may_rewrite=is_last)
        except ConflictError as error:
            rewrites |= at == 0 and isinstance(error, RewriteError)
            last = launch, _finding(launch, "passed over", str(error))
            failed = last if failed is None or is_last else failed
        except InterpretError as error:
            # A buffer of stated size has nothing before its pointer.
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
    """Return whether it is the kernel's mistake that a launch leaves a buffer."""
    # Not every float means something to a kernel.
    if is_float(launch.label):
        return False
    return leaves_buffers(chooser.kernel, chooser.roles, launch, inputs)


_BY_ORDER = "the result in {} depends on the order in which programs update memory atomically"
_BY_ROUNDING = "which elements it reads depends on how floats are rounded"


def _checked(
    chooser: Chooser,
    reference: Reference,
    checks: Checks,
    execute: Execute,
    done: Execution | None,
) -> Finding:
    """Execute a launch unless that is `done`, and compare. Raises: _OpenError."""
    launch = reference.launch
    if checks.is_compared_later:
        undefined = undefined_text(chooser.kernel, chooser.roles, reference, checks.inputs)
        if undefined:
            raise _OpenError(undefined)
    try:
        done = done or execute(reference)
    except Unsuited as error:
        return _finding(launch, "passed over", str(error))
    except ExecutionFault as error:
        if error.beyond == "reads" and reads_by_rounding(chooser.kernel, is_inexact):
            raise _OpenError(_BY_ROUNDING) from None
        # A mask or an index may be undefined, and so may be where a kernel goes.
        undefined = error.beyond and undefined_text(
            chooser.kernel, chooser.roles, reference, checks.inputs
        )
        if undefined:
            raise _OpenError(undefined) from None
        return _finding(launch, "fault", str(error))
    for name, buffer in reference.buffers.items():
        mismatch = compare(buffer, done.buffers[name], checks.tolerance)
        if mismatch is None:
            continue
        undefined = undefined_text(chooser.kernel, chooser.roles, reference, checks.inputs)
        if undefined:
            raise _OpenError(undefined)
        if is_right_in_another_order(
            *(chooser.kernel, chooser.roles, launch, checks.inputs),
            *(done.buffers, checks.tolerance),
        ):
            break
        moved = depends_on_order(chooser.kernel, chooser.roles, reference, checks.inputs)
        if moved:
            raise _OpenError(_BY_ORDER.format(moved))
        if done.forgiven:
            return _finding(launch, "fault", done.forgiven)
        strides = [term.stride for term in chooser.roles.strides.get(name, ())]
        return _finding(launch, "wrong", _text(mismatch, launch, strides), mismatch)
    # What the compiled kernel found in its registers may be what the reference took by luck.
    undefined = undefined_text(
        chooser.kernel, chooser.roles, reference, checks.inputs, seeds=(ALL_ZERO,)
    )
    if undefined:
        raise _OpenError(undefined)
    return replace(
        _finding(launch, "right"),
        lane_instructions=done.lane_instructions,
        num_stored=reference.num_stored,
    )


def _nearer(
    chooser: Chooser, index: int, checks: Checks, execute: Execute, finding: Finding
) -> Finding:
    """Return the finding at rows less far apart, for one that says there is no room; else that."""
    for spacing in range(1, len(chooser.spacings(index))):
        if finding.status != "passed over":
            break
        nearer = _reference(chooser, index, checks, (), spacing)
        if nearer is not None and isinstance(nearer[1], Reference):
            finding = _checked(chooser, nearer[1], checks, execute, None)
    return finding


def _finding(
    launch: Launch,
    status: Status,
    detail: str = "",
    mismatch: Mismatch | None = None,
) -> Finding:
    return Finding(launch.label, launch.scalars, launch.grid, status, detail, mismatch)


def coordinates(index: int, steps: Sequence[int]) -> tuple[int, ...]:
    """Return where the element `index` of a buffer is, whose axes are `steps` elements apart.

    >>> coordinates(37, [16])
    (2, 5)
    """
    found: list[int] = []
    for step in sorted((step for step in steps if step > 1), reverse=True):
        found.append(index // step)
        index %= step
    return (*found, index)


def _text(mismatch: Mismatch, launch: Launch, strides: Sequence[str]) -> str:
    steps = [int(launch.scalars[name]) for name in strides if name in launch.scalars]
    at = coordinates(mismatch.index, steps)
    place = f" at {list(at)}" if len(at) > 1 else ""
    bound = f"within {mismatch.bound:.3g}" if mismatch.bound else "to the bit"
    what = mismatch.reason or "are wrong"
    return (
        f"{mismatch.buffer}[{mismatch.index}]{place} is {mismatch.actual}, "
        f"expected {mismatch.expected} {bound}\n{mismatch.num_wrong} of {mismatch.num_written} elements {what}"
    )
