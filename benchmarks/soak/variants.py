"""Variants of the manifests: their selection, preparation and launches.

Variants with different configs alone mostly have the same tile IR, and so the same references: a
group of them is interpreted once. `num_warps`, `num_stages` and the like then cost only their
compilation.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from aotc.compiler import CompiledKernel, CompileRequest, PtxKernel, compile_kernel
from aotc.config import CONFIG_KEYS, Config
from aotc.ir import expression
from aotc.ir.diagnostics import CompileError, DiagnosticError, IRError
from aotc.ir.expression import Expression
from aotc.package.archive import file as archives
from aotc.package.archive.index import Archive, Kernel
from aotc.package.builder.assemble import assemble, member_label, misfit
from aotc.package.builder.workers import compile_both_ways
from aotc.package.manifest.read import load
from aotc.package.verify.subjects import Subject, VerifyOptions, load_subjects
from aotc.package.verify.variants import verify_variant
from aotc.verify.checks.check import Execute, Execution
from aotc.verify.checks.compare import compare
from aotc.verify.checks.reference import Bytes, Reference
from benchmarks.soak import risk
from benchmarks.soak.case import Try
from benchmarks.soak.journal import Outcome
from benchmarks.soak.limits import time_limit

ROOT = Path(__file__).parents[2]
TARGET = "sm_90a"
_FOLDER = Path(__file__).parent

References: TypeAlias = "tuple[tuple[Expression | None, tuple[Reference, ...]], ...]"


@dataclass(frozen=True, slots=True)
class Source:
    """Name a manifest, and how many variants of each of its kernels are taken."""

    path: Path
    per_kernel: int

    @property
    def name(self) -> str:
        """The manifest's path from the root of the project."""
        return str(self.path.relative_to(ROOT))


_ALL = 1 << 20
SOURCES = (
    Source(ROOT / "kernels.toml", _ALL),
    *(Source(path, _ALL) for path in sorted((ROOT / "kernels").glob("*.toml"))),
    # Few: they have no sizes of their own for verify, and soak.toml has the same kernels.
    *(Source(path, 8) for path in sorted((ROOT / "benchmarks").glob("*.toml"))),
    Source(_FOLDER / "fallbacks.toml", _ALL),
    Source(_FOLDER / "soak.toml", 48),
    Source(_FOLDER / "converted.toml", 288),
)
# A few, quick in the emulator.
SMOKE = ("vector_add", "transpose_blocks", "median", "sum_splits")
RISKY = (Source(_FOLDER / "risky.toml", _ALL),)


@dataclass(frozen=True, slots=True)
class Group:
    """Variants with the same source, types and constants, of one manifest."""

    source: str
    subjects: tuple[Subject, ...]

    @property
    def kernel(self) -> str:
        """The kernel, with its manifest."""
        return f"{self.source}: {self.subjects[0].kernel}"

    @property
    def label(self) -> str:
        """Name in messages."""
        return f"{self.source}: {self.subjects[0].label} and {len(self.subjects) - 1} more"


def name_of(group: Group, subject: Subject) -> str:
    """Return the case name of a variant."""
    return f"{group.source}: {subject.label}"


def kernel_of(name: str) -> str:
    """Return the kernel of a variant's case, with its manifest, as `Group.kernel` has it."""
    return " ".join(name.split(" ")[:2])


# ---- selection --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Draw:
    """How to draw variants: `seed`, and `share` to scale the number of each kernel."""

    seed: int
    share: float = 1.0


def kernels_of(source: Source) -> list[str]:
    """Return the kernels of a manifest. Raises: DiagnosticError if it is wrong."""
    return [kernel.name for kernel in load(str(source.path)).kernels]


def draw(named: tuple[Source, str], how: Draw) -> list[Group]:
    """Return the variants of a kernel of a manifest to run, in groups.

    Raises: DiagnosticError if the manifest is wrong.
    """
    source, name = named
    subjects = load_subjects(str(source.path), [name], [TARGET])
    limit = max(1, round(min(len(subjects), source.per_kernel) * how.share))
    chooser = random.Random(f"{how.seed} {source.name} {name}")
    return [
        Group(source.name, tuple(map(_alone, group))) for group in sample(subjects, limit, chooser)
    ]


def select(
    sources: Sequence[Source], seed: int, share: float = 1.0, kernels: Sequence[str] = ()
) -> list[Group]:
    """Return the variants of manifests to run, in groups; with `kernels` only of these.

    Raises: DiagnosticError if a manifest is wrong.
    """
    groups: list[Group] = []
    for named in named_kernels(sources, kernels):
        groups += draw(named, Draw(seed, share))
    return groups


def named_kernels(
    sources: Sequence[Source], kernels: Sequence[str] = ()
) -> list[tuple[Source, str]]:
    """Return the kernels of manifests, or only the named ones."""
    return [
        (source, name)
        for source in sources
        for name in kernels_of(source)
        if not kernels or name in kernels
    ]


def sample(
    subjects: Sequence[Subject], limit: int, chooser: random.Random, per_group: int = 6
) -> list[list[Subject]]:
    """Return up to `limit` subjects in groups with shared references, or all if there are no more."""
    groups: dict[CompileRequest, list[Subject]] = {}
    for subject in subjects:
        groups.setdefault(_without_config(subject), []).append(subject)
    ordered = list(groups.values())
    if len(subjects) <= limit:
        return ordered
    chooser.shuffle(ordered)
    for group in ordered:
        chooser.shuffle(group)
    sampled: list[list[Subject]] = []
    for group in ordered:
        sampled.append(group[: min(per_group, limit)])
        limit -= len(sampled[-1])
        if not limit:
            break
    return sampled


def _without_config(subject: Subject) -> CompileRequest:
    assert subject.request is not None
    return replace(subject.request, config=Config())


# ---- making ready -----------------------------------------------------------------------------


class VariantDevice(Protocol):
    """A device for launches of variants."""

    def opened(self, case: VariantCase, member: Member) -> AbstractContextManager[Execute]: ...


@dataclass(frozen=True, slots=True)
class Member:
    """One of a variant's two kernels, alone in an archive.

    `ptx` is there for the emulator only.
    """

    label: str
    kernel: Kernel
    content: bytes
    references: tuple[Reference, ...]
    ptx: PtxKernel | None


@dataclass(frozen=True, slots=True)
class VariantCase:
    """A compiled variant with its references."""

    name: str
    command: str
    subject: Subject
    members: tuple[Member, ...]
    remarks: tuple[str, ...]
    repeats: int
    is_risky: bool

    @contextmanager
    def opened(self, device: VariantDevice) -> Iterator[Iterator[tuple[str, Try]]]:
        """Yield the launches, each as often as it is repeated."""
        yield self._launches(device)

    def _launches(self, device: VariantDevice) -> Iterator[tuple[str, Try]]:
        for member in self.members:
            with device.opened(self, member) as execute:
                for reference in member.references:
                    launch = reference.launch
                    label = f"{member.label}{launch.label} ({launch.shape}), grid {launch.grid}"
                    attempt = _attempt(execute, reference, self.subject.spec.tolerance)
                    for _ in range(self.repeats):
                        yield label, attempt


def _attempt(execute: Execute, reference: Reference, tolerance: float) -> Try:
    right: dict[str, Bytes] = {}

    def attempt() -> str:
        execution = execute(reference)
        for name, buffer in reference.buffers.items():
            actual = execution.buffers[name]
            if name in right and np.array_equal(right[name], actual):
                continue
            problem = compare(buffer, actual, tolerance)
            if problem is not None:
                return (
                    f"{name}[{problem.index}] is {problem.actual}, expected {problem.expected} within "
                    f"{problem.bound:.3g}; {problem.num_wrong} of {problem.num_written} {problem.reason}"
                ).rstrip()
            right[name] = actual
        return ""

    return attempt


@dataclass(frozen=True, slots=True)
class Settings:
    """How to make cases: `seed` draws inputs, `limit_seconds` is for one variant or program.

    With `emulates` there are no cubins; without `interprets` cases are only compiled.
    """

    seed: int = 0
    repeats: int = 2
    limit_seconds: float = 120.0
    emulates: bool = False
    interprets: bool = True


@dataclass(frozen=True, slots=True)
class Prepared:
    """A worker's output: cases to launch, and outcomes of failed preparations."""

    cases: list[VariantCase]
    outcomes: list[Outcome]


def prepare(group: Group, settings: Settings, phase: str) -> Prepared:
    """Compile the variants of a group and interpret their launches."""
    shared: dict[tuple[object, ...], References] = {}
    cases: list[VariantCase] = []
    outcomes: list[Outcome] = []
    # The variant with most stages selects the launches: their loops are then long enough for all.
    for subject in sorted(group.subjects, key=_num_stages, reverse=True):
        name = name_of(group, subject)
        seed = f" --seed {settings.seed}" if settings.seed else ""
        command = f"aotc verify {group.source} --device{seed} --variant '{subject.label}'"
        builder = _Builder(subject, settings)
        try:
            with time_limit(settings.limit_seconds):
                case = builder.case(name, command, shared)
        except TimeoutError as error:
            case = Outcome(name, phase, "error", f"making it ready: {error}", command)
        except CompileError as error:
            case = Outcome(name, phase, "refused", error.render())
        except DiagnosticError as error:
            case = Outcome(name, phase, "dropped", error.render())
        except Exception as error:  # noqa: BLE001 - a bug of any type is a finding
            detail = f"making it ready: {type(error).__name__}: {error}"
            case = Outcome(name, phase, "error", detail, command)
        if isinstance(case, VariantCase) and not settings.interprets:
            case = Outcome(name, phase, "built", remarks=case.remarks)
        if isinstance(case, str):
            case = Outcome(name, phase, "dropped", case, remarks=builder.remarks)
        if isinstance(case, Outcome):
            outcomes.append(case)
        else:
            cases.append(case)
    return Prepared(cases, outcomes)


def _num_stages(subject: Subject) -> int:
    return subject.request.config.num_stages if subject.request is not None else 0


def _alone(subject: Subject) -> Subject:
    """Return the subject without others' configs, possibly thousands."""
    assert subject.expanded is not None
    expansion, variant = subject.expanded
    only = replace(variant, config_index=0)
    alone = replace(expansion, configs=(variant.config,), variants=(only,))
    return replace(subject, expanded=(alone, only))


class _Builder:
    """Build one variant: both of its kernels, each once."""

    def __init__(self, subject: Subject, settings: Settings) -> None:
        self._subject = subject
        self._settings = settings
        self._compiled: dict[CompileRequest, CompiledKernel] = {}

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks and warnings of the kernels' compilers."""
        lines = [line for compiled in self._compiled.values() for line in compiled.metadata.remarks]
        lines += [
            line
            for compiled in self._compiled.values()
            for line in compiled.metadata.ptxas_warnings
        ]
        return tuple(dict.fromkeys(lines))

    def case(
        self, name: str, command: str, shared: dict[tuple[object, ...], References]
    ) -> VariantCase | str:
        """Return the case, or why the target cannot hold the variant."""
        subject = self._subject
        assert subject.request is not None
        assert subject.expanded is not None
        expansion, spec = subject.expanded
        cached = compile_both_ways(self._compile, subject.request)
        last = cached if cached.fallback is None else cached.fallback
        reason = misfit(last.metadata, spec)
        if reason:
            return reason
        record = assemble(expansion, [(spec, cached)]).kernel
        references = dict[Expression | None, tuple[Reference, ...]]()
        if self._settings.interprets:
            key = self._key()
            if key not in shared:
                shared[key] = self._references()
            references = dict(shared[key])
        members: list[Member] = []
        for variant in record.variants:
            alone = replace(record, variants=(variant,))
            content = archives.encode(Archive("soak", "0.0.0", (alone,)))
            label = member_label("", variant.condition).strip()
            member_references = references.get(variant.condition, ())
            ptx = self._ptx(variant.condition) if self._settings.emulates else None
            members.append(
                Member(f"{label}: " if label else "", alone, content, member_references, ptx)
            )
        if self._settings.interprets and not any(member.references for member in members):
            return "no launch of it can be compared"
        # Launches need little of it.
        bare = replace(subject, expanded=None, request=None, grid=(), guards=())
        is_risky = any(
            map(risk.is_risky, (compiled.asm["ptx"] for compiled in self._compiled.values()))
        )
        return VariantCase(
            *(name, command, bare, tuple(members), self.remarks, self._settings.repeats),
            is_risky=is_risky,
        )

    def _compile(self, request: CompileRequest) -> CompiledKernel:
        if request not in self._compiled:
            compiled = compile_kernel(request, keep_asm=True)
            if fault := compiled.metadata.wgmma_hazard or compiled.metadata.ptxas_crash:
                raise IRError(fault)
            self._compiled[request] = compiled
        return self._compiled[request]

    def _to_ptx(self, request: CompileRequest) -> PtxKernel:
        kernel = self._compile(request)
        metadata = kernel.metadata
        return PtxKernel(
            *(kernel.asm["tile"], kernel.asm["ptx"], metadata.symbol, metadata.shared_bytes),
            *(metadata.params, metadata.guards),
        )

    def _ptx(self, condition: Expression | None) -> PtxKernel:
        requests = list(self._compiled)
        # Kernels with a condition were compiled first.
        return self._to_ptx(requests[-1] if condition is None else requests[0])

    def _references(self) -> References:
        """Interpret the kernel, as `aotc verify` does."""
        by_condition: dict[Expression | None, list[Reference]] = {}

        def execute(condition: Expression | None) -> Execute:
            references = by_condition.setdefault(condition, [])

            def run(reference: Reference) -> Execution:
                references.append(reference)
                return Execution({n: b.expected for n, b in reference.buffers.items()})

            return run

        options = VerifyOptions(self._settings.seed, is_compared_later=True)
        verify_variant(self._subject, options, self._to_ptx, execute)
        return tuple((condition, tuple(listed)) for condition, listed in by_condition.items())

    def _key(self) -> tuple[object, ...]:
        """Return all inputs of the references: see `aotc.verify.checks.reference` and `.launches`."""
        subject = self._subject
        tile_ir = tuple(_HEAD.sub("", compiled.asm["tile"]) for compiled in self._compiled.values())
        guards = tuple(compiled.metadata.guards for compiled in self._compiled.values())
        roots = (*subject.grid, *subject.guards, *_expressions(subject))
        named = {name for root in roots for name in expression.free_names(root)}
        values = {n: v for n, v in subject.values.items() if n not in CONFIG_KEYS or n in named}
        rounding = subject.values.get("conditional_rescaling", 0)
        return (tile_ir, guards, subject.grid, subject.guards, rounding, *sorted(values.items()))


# Config attributes in a kernel's head: the interpreter has no threads.
_HEAD = re.compile(r"(?<=[{ ])(num_warps|num_ctas|maxnreg) = \d+(?=.* \{\n)")


def _expressions(subject: Subject) -> Iterable[Expression]:
    spec = subject.spec
    for tree in (*spec.expressions.values(), *(spec.grid or ())):
        yield tree.root
    for limits in spec.ranges.values():
        for end in (limits.low, limits.high):
            if not isinstance(end, int | float):
                yield end.root
