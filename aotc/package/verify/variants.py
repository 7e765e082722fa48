"""Verify variants without a GPU: the work of `aotc verify`, for a manifest or an archive.

Each subject (`subjects`) is compiled to PTX, or its stored PTX is used, and the emulator runs the
launches chosen by `conditions`. Subjects are verified independently, in any process.

Invariant: the result of a subject depends on it and on the options, not on other subjects or the
number of processes. References cached in a process are only used for equal tile IR and inputs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Literal, TypeAlias

from aotc.compiler import CompileRequest, PtxKernel, compile_ptx
from aotc.ir.diagnostics import CompileError, ResourceError
from aotc.ir.expression import Expression
from aotc.ir.params import GRID_SOURCES
from aotc.ir.text import parse_kernel
from aotc.metadata import ParamSlot
from aotc.package.builder.assemble import guards_of
from aotc.package.builder.condition import NEVER, launch_condition
from aotc.package.builder.workers import Done, Job, misfit_text, run_all
from aotc.package.verify.conditions import checks_of, grid_blocks
from aotc.package.verify.planned_launch import launcher_of_record, launcher_of_request
from aotc.package.verify.reference_cache import ReferenceCache
from aotc.package.verify.refusals import needs_of
from aotc.package.verify.subjects import Subject, VerifyOptions
from aotc.stages import find_assembly_error
from aotc.verify.checks.check import Checks, Execute, Finding, check_kernel
from aotc.verify.checks.dataflow import roles_of
from aotc.verify.checks.emulated import (
    Emulation,
    Param,
)
from aotc.verify.checks.launched import Launcher
from aotc.verify.checks.noise import is_inexact
from aotc.verify.emulator.errors import EmulationError
from aotc.verify.emulator.text.parse import parse_module
from aotc.verify.emulator.text.program import Module
from aotc.verify.sass import findings as sass

_REFERENCES = ReferenceCache()
_SECONDS = 3.0  # of a variant, without any measurement
_COLLECTION_THRESHOLDS = (5000, 20, 20)  # of objects; Python's are (700, 10, 10)

PtxCompiler: TypeAlias = Callable[[CompileRequest], PtxKernel]
Status: TypeAlias = Literal["verified", "partly verified", "wrong", "unverified", "dropped"]


@dataclass(frozen=True, slots=True)
class VariantResult:
    """The result for a variant; `dropped` is the reason it does not fit its target.

    `fallback` is the result for the same config without tensor maps, if it is compiled both ways;
    `cubins` are the audit's findings in each cubin, empty without an audit.
    """

    label: str
    kernel: str
    target: str
    findings: tuple[Finding, ...]
    dropped: str = ""
    fallback: tuple[Finding, ...] | None = None
    cubins: tuple[tuple[sass.Finding, ...], ...] = ()

    @property
    def is_audited_wrong(self) -> bool:
        """Return whether the audit found an error that must not ship."""
        return any(finding.is_failure for cubin in self.cubins for finding in cubin)

    @property
    def status(self) -> Status:
        """The verdict over all chosen launches."""
        if self.dropped:
            return "dropped"
        if self.is_audited_wrong:
            return "wrong"
        if any(finding.status in ("wrong", "fault") for finding in self.launches):
            return "wrong"
        members = [self.findings] if self.fallback is None else [self.findings, self.fallback]
        have_run = [
            any(f.status == "right" and f.num_stored for f in findings) for findings in members
        ]
        if not all(have_run):
            return "unverified"
        return "partly verified" if any(f.gap for f in self.launches) else "verified"

    @property
    def launches(self) -> tuple[Finding, ...]:
        """All findings, the fallback's last."""
        return (*self.findings, *(self.fallback or ()))

    @property
    def lane_instructions(self) -> int:
        """Instructions executed, counted once for each lane."""
        return sum(finding.lane_instructions for finding in self.launches)


def verify_all(
    subjects: Sequence[Subject],
    work: Callable[[Subject], VariantResult],
    jobs: int,
    executor: Executor | None = None,
) -> Generator[Done[Subject, VariantResult], None, None]:
    """Yield the result of every subject, in the order of completion; see `run_all`.

    `work` is `verify_next` or `verify_on_device` with its options bound, so it can be pickled.
    """
    tasks = [Job(subject.label, subject) for subject in subjects]
    return run_all(tasks, work, jobs, executor, lambda _: _SECONDS)


def verify_next(subject: Subject, options: VerifyOptions | None = None) -> VariantResult:
    """Verify as `verify_variant`, with the references cached in this process."""
    return verify_variant(subject, options, cache=_REFERENCES)


@contextmanager
def _rare_collections() -> Generator[None]:
    """Run the garbage collector less often: the work creates many objects, and few cycles."""
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@_rare_collections()
def verify_variant(
    subject: Subject,
    options: VerifyOptions | None = None,
    compiler: PtxCompiler = compile_ptx,
    execute: Callable[[Expression | None], Execute] | None = None,
    cache: ReferenceCache | None = None,
) -> VariantResult:
    """Verify one variant in this process: with and without tensor maps, if compiled both ways.

    `execute` returns a function that runs launches, given the condition for one of the two; the
    default is the emulator. `cache` has the references of other variants' launches.

    Raises:
        CompileError: the kernel cannot be compiled, or exceeds the emulator's limits.
        EmulationError: the emulator does not support an instruction of the PTX.
    """
    options = options or VerifyOptions()
    findings: list[tuple[Finding, ...]] = []
    cache = cache or ReferenceCache()
    reason = ""
    for member in members_of(subject, options, compiler, execute):
        reason = member if isinstance(member, str) else ""
        if isinstance(member, str):
            continue
        # Another form of the same tile IR may follow.
        references = cache.of(member.compiled.tile_ir, subject, options)
        checks = replace(member.checks, references=references)
        findings.append(_findings(member.subject, member.compiled, checks, member.run))
        cache.trim()
    if reason:
        return VariantResult(subject.label, subject.kernel, subject.target.name, (), reason)
    fallback = findings[1] if len(findings) > 1 else None
    names = (subject.label, subject.kernel, subject.target.name)
    return VariantResult(*names, findings[0], fallback=fallback)


@dataclass(frozen=True, slots=True)
class Member:
    """One kernel built for a variant, with the checks of its launches and what runs them."""

    subject: Subject
    compiled: PtxKernel
    checks: Checks
    run: Execute

    def launches(self) -> Iterator[Finding]:
        """Yield the outcome of each launch as soon as it has run. Raises: EmulationError."""
        kernel = parse_kernel(self.compiled.tile_ir)
        roles = roles_of(kernel, grid_blocks(self.subject.grid), is_inexact)
        return check_kernel(kernel, roles, self.checks, self.run)


def members_of(
    subject: Subject,
    options: VerifyOptions,
    compiler: PtxCompiler = compile_ptx,
    execute: Callable[[Expression | None], Execute] | None = None,
) -> Iterator[Member | str]:
    """Yield each kernel built for a variant, or why it does not fit the target."""
    limit = subject.target.max_shared_bytes
    for compiled, condition in _members(subject, compiler):
        if isinstance(compiled, ResourceError):
            yield misfit_text(compiled)
            continue
        if compiled.shared_bytes > limit:
            yield f"{compiled.shared_bytes} bytes of shared memory, the limit is {limit}"
            continue
        member = replace(subject, guards=_guards(subject, compiled))
        if condition is not None:
            member = replace(member, guards=(*member.guards, condition))
        run = _emulation(member, compiled, options) if execute is None else execute(condition)
        # A GPU runs all program instances. In the emulator so does a persistent kernel, or one with
        # program instances that wait for each other.
        is_device = execute is not None
        loops = any(slot.source in GRID_SOURCES for slot in compiled.params)
        all_run = is_device or loops or compiled.cooperative
        yield Member(member, compiled, checks_of(member, options, may_be_left_out=not all_run), run)


def _guards(subject: Subject, compiled: PtxKernel) -> tuple[Expression, ...]:
    """Return the guards for an archive of this variant alone."""
    if subject.expanded is None:
        return subject.guards
    expansion, _ = subject.expanded
    built = guards_of(expansion, [compiled])
    of_manifest = (guard.expression for guard in expansion.guards)
    replacements = dict(zip(of_manifest, (guard.expression for guard in built), strict=True))
    return tuple(replacements.get(guard, guard) for guard in subject.guards)


def _members(
    subject: Subject, compiler: PtxCompiler
) -> Iterator[tuple[PtxKernel | ResourceError, Expression | None]]:
    """Yield each kernel built for a variant, or its error; the conditional one first."""
    if subject.stored is not None:
        yield subject.stored, None
        return
    assert subject.request is not None
    try:
        compiled = compiler(subject.request)
    except ResourceError as error:
        yield error, NEVER
        condition = NEVER
    else:
        condition = launch_condition(subject.request, compiled.guards, compiled.params)
        if condition != NEVER:
            yield compiled, condition
    if condition is not None:
        try:
            yield compiler(replace(subject.request, map_pointers=False)), None
        except ResourceError as error:
            yield error, None


def _findings(
    subject: Subject, compiled: PtxKernel, checks: Checks, run: Execute
) -> tuple[Finding, ...]:
    kernel = parse_kernel(compiled.tile_ir)
    roles = roles_of(kernel, grid_blocks(subject.grid), is_inexact)
    try:
        together = run.together if isinstance(run, Emulation) else None
        return tuple(check_kernel(kernel, roles, checks, run, together))
    except EmulationError as error:
        mistake = _assembly_error(compiled, error)
        if mistake is not None:
            raise mistake from None
        if error.line and subject.stored is None:
            raise
        # The user's mistake: a modified archive, or a limit set too low.
        remedy = "" if error.line else "--max-memory and --max-steps set the limits"
        raise CompileError(f"cannot emulate {subject.label}: {error}", remedy=remedy) from None


def _assembly_error(compiled: PtxKernel, error: EmulationError) -> CompileError | None:
    """Return an error at the source's inline assembly, if the emulator rejects it."""
    return find_assembly_error(compiled, error.line, "the emulator", error.message)


def _emulation(subject: Subject, compiled: PtxKernel, options: VerifyOptions) -> Execute:
    try:
        module = parse_module(compiled.ptx)
    except EmulationError as error:
        raise (_assembly_error(compiled, error) or error) from None
    return Emulation(
        module,
        compiled.symbol,
        compiled.shared_bytes,
        num_ctas=_num_ctas(compiled, module),
        sources=() if subject.request is None else (Path(subject.request.source),),
        seed=options.seed,
        max_steps=options.max_steps,
        max_memory_bytes=options.max_memory_bytes,
        params=tuple(map(_param, compiled.params)),
        fixed=subject.values,
        launcher=_launcher(subject, compiled, module),
        scratch_bytes=compiled.scratch_bytes,
        cooperative=compiled.cooperative,
    )


def _num_ctas(compiled: PtxKernel, module: Module) -> int:
    """Return the CTAs of a program: one if it cannot be divided, even if the config asks for more."""
    kernel = module.kernels.get(compiled.symbol)
    return 1 if kernel is None else max(1, prod(kernel.cluster_ctas))


def _launcher(subject: Subject, compiled: PtxKernel, module: Module) -> Launcher | None:
    """Return the planner of launches; None for a subject without an archive form."""
    tile_ir = parse_kernel(compiled.tile_ir)
    needs = needs_of(tile_ir, compiled.scratch_bytes, _num_ctas(compiled, module))
    context = (subject.guards, subject.values, needs)
    if subject.archived is not None:
        kernel, variant = subject.archived
        return launcher_of_record(kernel.alone(variant), *context)
    if subject.expanded is not None:
        return launcher_of_request(*subject.expanded, compiled, module, *context)
    return None


def _param(slot: ParamSlot) -> Param:
    spec = slot.tensor_map
    if spec is None:
        return Param(slot.argument, slot.source)
    form = (spec.box, spec.swizzle_bytes, spec.fill_nan)
    return Param(slot.argument, "", *form, spec.shape, spec.strides)
