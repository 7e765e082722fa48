"""Verify variants without a GPU: the work of `aotc verify`, for a manifest or an archive.

A `Subject` is one variant with all that is needed to judge it: how to compile it (or, from an
archive, its stored PTX and tile IR), its grid, the guards under which a launch selects it, and
what the manifest states about its inputs. Subjects are verified independently, in any process.

Invariant: the result of a subject depends on it and on the options, not on other subjects or on
the number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from aotc import target as targets
from aotc.compiler import (
    CompileRequest,
    PtxKernel,
    autotune_configs,
    compile_ptx,
    find_assembly_error,
)
from aotc.ir import expression
from aotc.ir.core import GRID_SOURCES
from aotc.ir.diagnostics import CompileError, ManifestError, ResourceError, did_you_mean
from aotc.ir.expression import Binary, Expression, ExpressionError, Integer, Name
from aotc.ir.text import parse_kernel
from aotc.ir.types import SCALARS
from aotc.metadata import ParamSlot
from aotc.package import archive as archives
from aotc.package import stored_ptx
from aotc.package.argument_type import PROMISED_DIVISOR
from aotc.package.assemble import member_label, stored_params
from aotc.package.condition import NEVER, launch_condition
from aotc.package.grid import Expansion, VariantSpec, expand, integer_values, value_text
from aotc.package.index import Archive, Kernel, Variant
from aotc.package.manifest import load
from aotc.package.planned import launcher_of_record, launcher_of_request
from aotc.package.spec import Manifest, ManifestExpression, VerifySpec
from aotc.package.workers import Done, Job, misfit_text, run_all
from aotc.target import Target
from aotc.verify.checks.check import Checks, Execute, Finding, References, check_kernel
from aotc.verify.checks.dataflow import roles_of, shared_block
from aotc.verify.checks.emulated import (
    DEFAULT_MAX_MEMORY_BYTES,
    DEFAULT_MAX_STEPS,
    Emulation,
    Param,
)
from aotc.verify.checks.launched import Launcher
from aotc.verify.checks.launches import (
    DEFAULT_MAX_PROGRAMS,
    DEFAULT_NUM_STAGES,
    Choice,
    Conditions,
    Scalar,
)
from aotc.verify.checks.noise import is_inexact
from aotc.verify.checks.reference import DEFAULT_MAX_BUFFER_BYTES, Inputs, Pointees, Range
from aotc.verify.emulator.errors import EmulationError
from aotc.verify.emulator.text.parse import parse_module
from aotc.verify.emulator.text.program import Module
from aotc.verify.sass import findings as sass

PtxCompiler: TypeAlias = Callable[[CompileRequest], PtxKernel]
Status: TypeAlias = Literal["verified", "partly verified", "wrong", "unverified", "dropped"]

_NO_GRID = (-1,)


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """How to verify: `seed` determines the inputs and, unless 0, the order in which warps run.

    With `is_compared_later` executing only keeps references, for launches elsewhere.
    """

    seed: int = 0
    max_steps: int = DEFAULT_MAX_STEPS
    max_memory_bytes: int = DEFAULT_MAX_MEMORY_BYTES
    is_compared_later: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant to verify; its PTX comes from `request` or from `stored`.

    `values` are the integers that expressions may name besides the launch's arguments: constants,
    config entries, and arguments whose value is compiled in. `grid` is empty if the caller gives
    it. `expanded` or `archived` is the variant's record.
    """

    label: str
    kernel: str
    target: Target
    request: CompileRequest | None
    stored: PtxKernel | None
    grid: tuple[Expression, ...]
    guards: tuple[Expression, ...]
    values: Mapping[str, int]
    num_ctas: int = 1
    spec: VerifySpec = field(default_factory=VerifySpec)
    expanded: tuple[Expansion, VariantSpec] | None = None
    archived: tuple[Kernel, Variant] | None = None


@dataclass(frozen=True, slots=True)
class VariantResult:
    """The result for a variant; `dropped` says why its target cannot hold it.

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
        """Whether the audit found an error that must not ship."""
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
        have_run = [any(f.status == "right" and f.num_stored for f in each) for each in members]
        if not all(have_run):
            return "unverified"
        return "partly verified" if any(f.gap for f in self.launches) else "verified"

    @property
    def launches(self) -> tuple[Finding, ...]:
        """All findings, those without tensor maps last."""
        return (*self.findings, *(self.fallback or ()))

    @property
    def lane_instructions(self) -> int:
        """Instructions executed, counted once for each lane."""
        return sum(finding.lane_instructions for finding in self.launches)


# ------------------------------------------------------------------------------------- subjects


def subjects_of_manifest(
    manifest: Manifest,
    kernels: Sequence[str] = (),
    target_names: Sequence[str] = (),
    without: Sequence[str] = (),
) -> list[Subject]:
    """Return the variants of a manifest, all or those of some kernels and targets.

    Raises:
        DiagnosticError: there is no such kernel or target, or a kernel's configs are wrong.
    """
    wanted = [manifest.kernel(name).name for name in kernels]
    chosen = manifest.targets_for(target_names, without)
    found: list[Subject] = []
    for kernel in manifest.kernels:
        if not wanted or kernel.name in wanted:
            expansion = expand(kernel, chosen, autotune_configs)
            found += [subject_of(expansion, variant) for variant in expansion.variants]
    return found


def subject_of(expansion: Expansion, variant: VariantSpec) -> Subject:
    """Make a subject of a variant of an expanded kernel."""
    kernel = variant.kernel
    fixed = {
        name: argument.value
        for name, argument in kernel.signature.items()
        if isinstance(argument.value, int)
    }
    return Subject(
        label=variant.label,
        kernel=kernel.name,
        target=variant.target,
        request=variant.request,
        stored=None,
        grid=variant.grid,
        guards=tuple(expansion.guards[index].expression for index in variant.guards),
        values={**integer_values(variant.values), **fixed},
        num_ctas=variant.request.config.num_ctas,
        spec=kernel.verify,
        expanded=(replace(expansion, variants=(variant,), dropped=()), variant),
    )


def subjects_of_archive(
    archive: Archive, path: str, kernels: Sequence[str] = (), target_names: Sequence[str] = ()
) -> list[Subject]:
    """Return the variants of an archive, all or those of some kernels and targets.

    Raises:
        ManifestError: there is no such kernel or target, or the archive has no PTX.
    """
    names = [kernel.name for kernel in archive.kernels]
    for what, wanted, known in (
        ("kernel", kernels, names),
        ("target", target_names, list(archive.targets)),
    ):
        for name in wanted:
            if name not in known:
                message = f"expected a {what} of {path} ({', '.join(known)}), got {name!r}"
                raise ManifestError(message, remedy=did_you_mean(name, known))
    return [
        _stored_subject(kernel, variant, path)
        for kernel in archive.kernels
        for variant in kernel.variants
        if (not kernels or kernel.name in kernels)
        and (not target_names or variant.target in target_names)
    ]


def _stored_subject(kernel: Kernel, variant: Variant, path: str) -> Subject:
    label = member_label(_archive_label(kernel, variant), variant.condition)
    tile_ir, ptx = stored_ptx.split(variant.ptx) if variant.ptx is not None else ("", "")
    if not tile_ir:
        message = f"expected an archive with PTX, {path} has none for {label}"
        raise ManifestError(message, remedy="build it with `aotc build --with-ptx`")
    config = dict(kernel.configs[variant.config])
    choices = zip((c.name for c in kernel.choices), variant.choices, strict=True)
    known = {**dict(kernel.constants), **config, **dict(choices)}
    return Subject(
        label=label,
        kernel=kernel.name,
        target=targets.parse(variant.target),
        request=None,
        stored=PtxKernel(
            tile_ir,
            ptx,
            variant.symbol,
            variant.dynamic_shared_bytes,
            stored_params(kernel, variant),
        ),
        grid=variant.grid,
        guards=(
            *(kernel.guards[index].expression for index in variant.guards),
            *(() if variant.condition is None else (variant.condition,)),
        ),
        values={name: int(value) for name, value in known.items() if isinstance(value, int)},
        num_ctas=variant.cluster[0] * variant.cluster[1] * variant.cluster[2],
        archived=(kernel, variant),
    )


def _archive_label(kernel: Kernel, variant: Variant) -> str:
    """Return a variant's name in messages, as `VariantSpec.label`."""
    parts = [kernel.name, variant.target]
    parts += [f"{v.name}={d}" for v, d in zip(kernel.type_variables, variant.types, strict=True)]
    choices = zip(kernel.choices, variant.choices, strict=True)
    parts += [f"{choice.name}={value_text(value)}" for choice, value in choices]
    held = [expression.to_text(kernel.guards[index].expression) for index in variant.guards]
    parts += [
        f"{param.name}:{param.divisibility}"
        for param in kernel.params
        if param.is_optional and f"{param.name} % {param.divisibility} == 0" in held
    ]
    parts += [f"{name}={value_text(value)}" for name, value in kernel.configs[variant.config]]
    return " ".join(parts)


def load_subjects(
    path: str,
    kernels: Sequence[str] = (),
    target_names: Sequence[str] = (),
    labels: Sequence[str] = (),
    without: Sequence[str] = (),
) -> list[Subject]:
    """Return the variants of the manifest or the archive at `path`; `labels` restricts them.

    Those of a manifest are compiled `without` the named features.

    Raises:
        DiagnosticError: the manifest is wrong, or there is no such kernel, target or variant.
        ArchiveError: the archive cannot be read.
    """
    if Path(path).suffix == ".aotc":
        if without:
            message = f"expected a manifest to compile without {', '.join(without)}, got {path}"
            raise ManifestError(message, remedy="an archive is verified as it was built")
        found = subjects_of_archive(archives.read(Path(path)), path, kernels, target_names)
    else:
        found = subjects_of_manifest(load(path), kernels, target_names, without)
    known = [subject.label for subject in found]
    for label in labels:
        if label not in known:
            message = f"expected a variant of {path}, got {label!r}"
            raise ManifestError(message, remedy=did_you_mean(label, known))
    return [subject for subject in found if not labels or subject.label in labels]


# ------------------------------------------------------------------------------------ verifying


def verify_all(
    subjects: Sequence[Subject],
    work: Callable[[Subject], VariantResult],
    jobs: int,
) -> Generator[Done[Subject, VariantResult], None, None]:
    """Yield the result of every subject, in the order of completion.

    `work` is `verify_variant` or `verify_on_device` with its options bound, so it can be pickled.
    """
    return run_all([Job(subject.label, subject) for subject in subjects], work, jobs)


def verify_variant(
    subject: Subject,
    options: VerifyOptions | None = None,
    compiler: PtxCompiler = compile_ptx,
    execute: Callable[[Expression | None], Execute] | None = None,
) -> VariantResult:
    """Verify one variant in this process: with and without tensor maps, if compiled both ways.

    `execute` returns a function that runs launches, given the condition that selects one of the
    two; the default is the emulator.

    Raises:
        CompileError: the kernel cannot be compiled, or exceeds the emulator's limits.
        EmulationError: the emulator does not support an instruction of the PTX.
    """
    options = options or VerifyOptions()
    limit = subject.target.max_shared_bytes
    found: list[tuple[Finding, ...]] = []
    references: dict[str, References] = {}
    reason = ""
    for compiled, condition in _members(subject, compiler):
        if isinstance(compiled, ResourceError):
            reason = misfit_text(compiled)
            continue
        if compiled.shared_bytes > limit:
            reason = f"{compiled.shared_bytes} bytes of shared memory, the limit is {limit}"
            continue
        member = subject
        if condition is not None:
            member = replace(subject, guards=(*subject.guards, condition))
        reason = ""
        run = _emulation(member, compiled, options) if execute is None else execute(condition)
        # A GPU runs all program instances, and so does a persistent kernel in the emulator.
        is_device = execute is not None
        loops = any(slot.source in GRID_SOURCES for slot in compiled.params)
        checks = _checks(member, options, may_be_left_out=not is_device and not loops)
        if condition is not None:  # another form of the same tile IR follows
            references[compiled.tile_ir] = References()
        checks = replace(checks, references=references.get(compiled.tile_ir))
        found.append(_findings(member, compiled, checks, run))
    if reason:
        return VariantResult(subject.label, subject.kernel, subject.target.name, (), reason)
    fallback = found[1] if len(found) > 1 else None
    names = (subject.label, subject.kernel, subject.target.name)
    return VariantResult(*names, found[0], fallback=fallback)


def _members(
    subject: Subject, compiler: PtxCompiler
) -> Iterator[tuple[PtxKernel | ResourceError, Expression | None]]:
    """Yield each kernel that is built of a variant, or its error; the conditional one first."""
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
        return tuple(check_kernel(kernel, roles, checks, run))
    except EmulationError as error:
        mistake = _assembly_error(compiled, error)
        if mistake is not None:
            raise mistake from None
        if error.line and subject.stored is None:
            raise
        # The user's mistake: a modified archive, or a limit that is too low.
        remedy = "" if error.line else "--max-memory and --max-steps set the limits"
        raise CompileError(f"cannot emulate {subject.label}: {error}", remedy=remedy) from None


def _assembly_error(compiled: PtxKernel, error: EmulationError) -> CompileError | None:
    """Return an error at the inline assembly in the source that the emulator rejects."""
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
        num_ctas=subject.num_ctas,
        sources=() if subject.request is None else (Path(subject.request.source),),
        seed=options.seed,
        max_steps=options.max_steps,
        max_memory_bytes=options.max_memory_bytes,
        params=tuple(map(_param, compiled.params)),
        fixed=subject.values,
        launcher=_launcher(subject, compiled, module),
    )


def _launcher(subject: Subject, compiled: PtxKernel, module: Module) -> Launcher | None:
    """Return the planner of launches; None for a subject that no archive can hold."""
    if subject.archived is not None:
        kernel, variant = subject.archived
        alone = replace(kernel, variants=(variant,))
        return launcher_of_record(alone, subject.guards, subject.values)
    if subject.expanded is not None:
        known = (subject.guards, subject.values)
        return launcher_of_request(*subject.expanded, compiled, module, *known)
    return None


def _param(slot: ParamSlot) -> Param:
    spec = slot.tensor_map
    if spec is None:
        return Param(slot.argument, slot.source)
    form = (spec.box, spec.swizzle_bytes, spec.fill_nan)
    return Param(slot.argument, "", *form, spec.shape, spec.strides)


def _checks(subject: Subject, options: VerifyOptions, *, may_be_left_out: bool) -> Checks:
    spec = subject.spec
    choices = {name: Choice(values=values) for name, values in spec.values.items()}
    for name, root in spec.expressions.items():
        choices[name] = Choice(function=_function(root, subject.values))
    grid: Iterable[Expression] = subject.grid or [each.root for each in spec.grid or ()]
    conditions = Conditions(
        grid=_grid(tuple(grid), subject.values),
        admits=_admits(subject),
        fixed=subject.values,
        divisors=_divisors(subject.guards),
        choices=choices,
        max_programs=spec.max_programs or DEFAULT_MAX_PROGRAMS,
        num_stages=_num_stages(subject),
        num_groups=_num_groups(subject),
        may_be_left_out=may_be_left_out,
        may_alias=spec.in_place,
    )
    ranges = {
        name: Range(
            _limit(each.low, subject.values),
            _limit(each.high, subject.values),
            is_distinct=each.is_distinct,
        )
        for name, each in spec.ranges.items()
    }
    pointees = {
        name: Pointees(SCALARS[each.element], _limit(each.count, subject.values))
        for name, each in spec.pointees.items()
    }
    limit = min(DEFAULT_MAX_BUFFER_BYTES, options.max_memory_bytes)
    return Checks(
        *(conditions, Inputs(ranges, pointees, limit), options.seed, spec.tolerance),
        is_compared_later=options.is_compared_later,
    )


def _num_stages(subject: Subject) -> int:
    """Return the default number of pipeline stages of loops."""
    if subject.request is not None:
        return subject.request.config.num_stages
    return subject.values.get("num_stages", DEFAULT_NUM_STAGES)


def _num_groups(subject: Subject) -> int:
    """Return the number of consumer groups that divide the tiles of a persistent CTA."""
    if subject.request is not None:
        return subject.request.config.num_consumer_groups
    return subject.values.get("num_consumer_groups", 1)


def _function(
    given: ManifestExpression, values: Mapping[str, int]
) -> Callable[[Mapping[str, int]], int]:
    def function(scalars: Mapping[str, int]) -> int:
        try:
            return expression.evaluate(given.root, {**values, **scalars})
        except ExpressionError as error:
            raise given.error(error) from None

    return function


def _limit(
    end: float | ManifestExpression, values: Mapping[str, int]
) -> Callable[[Mapping[str, Scalar]], Scalar]:
    if not isinstance(end, ManifestExpression):
        return lambda _: end
    function = _function(end, values)
    return lambda scalars: function({n: v for n, v in scalars.items() if isinstance(v, int)})


def _grid(
    grid: tuple[Expression, ...], values: Mapping[str, int]
) -> Callable[[Mapping[str, int]], tuple[int, ...]] | None:
    if not grid:
        return None

    def extents(scalars: Mapping[str, int]) -> tuple[int, ...]:
        try:
            return tuple(expression.evaluate(root, {**values, **scalars}) for root in grid)
        except ExpressionError:
            return _NO_GRID

    return extents


def _admits(subject: Subject) -> Callable[[Mapping[str, int]], bool]:
    """Return whether a launch selects this variant: its guards hold. Pointers are aligned."""

    def admits(scalars: Mapping[str, int]) -> bool:
        for guard in subject.guards:
            # A tensor's address and strides are aligned, and its last axis is dense.
            known = dict.fromkeys(expression.free_names(guard), 0)
            for node in expression.walk(guard):
                if isinstance(node, expression.Extent):
                    is_last = f"{node.name}.shape[{node.dim + 1}]" not in scalars
                    known[expression.to_text(node)] = 1 if is_last else PROMISED_DIVISOR
            try:
                if not expression.evaluate(guard, {**known, **subject.values, **scalars}):
                    return False
            except ExpressionError:
                return False
        return True

    return admits


def _divisors(guards: Iterable[Expression]) -> dict[str, int]:
    """Return the divisor of each argument that must be a multiple of a number."""
    found: dict[str, int] = {}
    for guard in guards:
        for part in expression.conjuncts(guard):
            match part:
                case Binary("==", Binary("%", Name(name), Integer(divisor)), Integer(0)):
                    found[name] = math.lcm(found.get(name, 1), max(1, abs(divisor)))
                case _:
                    pass
    return found


def grid_blocks(grid: Iterable[Expression]) -> dict[str, int]:
    """Return the arguments that a grid names, each with the tile size that divides it.

    >>> grid_blocks([expression.parse("cdiv(n, 128)"), expression.parse("rows")])
    {'n': 128, 'rows': 1}
    """
    found: dict[str, int] = {}
    for root in grid:
        for node in expression.walk(root):
            block = 1
            inside: Expression = node
            if isinstance(node, expression.Binary) and node.op in ("cdiv", "//"):
                block = node.rhs.value if isinstance(node.rhs, expression.Integer) else 1
                inside = node.lhs
            elif not isinstance(node, expression.Name):
                continue
            names = expression.free_names(inside)
            if any(
                isinstance(n, expression.Binary) and n.op == "*" for n in expression.walk(inside)
            ):
                block = shared_block(block, len(names))
            for name in names:
                found[name] = max(block, found.get(name, 1))
    return found
