"""Build a manifest into `NAME.aotc`, `NAME.h`, `NAME.sources.json` and `libNAME.a`.

The steps are expansion, cache look-up, compiling the rest in worker processes, and writing.
Mistakes are collected and reported together. After a failure the other kernels are still compiled
and cached. Files are written only when everything compiled, or when the caller asked for a partial
result. Each is replaced atomically, and unchanged files are not touched.

Invariant: the files depend on the manifest, the sources and the toolchain, not on the number of
jobs, the state of the cache, or the order of the compiles.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from aotc.compiler import CompileRequest, autotune_configs, compile_variant
from aotc.edited_stage import EditedStage
from aotc.ir.diagnostics import DiagnosticError
from aotc.limits import HOPELESS_REGISTERS, HOPELESS_SPILL_BYTES, CompileLimits
from aotc.package.archive.index import Archive, ArchiveError, Kernel
from aotc.package.archive.label import member_label, one_label
from aotc.package.builder.assemble import Assembled, assemble, not_served
from aotc.package.builder.index_limits import IndexLimit, index_limits
from aotc.package.builder.outputs import known_host, write_files
from aotc.package.builder.toolchain import toolchain_text
from aotc.package.builder.workers import (
    Compiler,
    Failure,
    Outcome,
    Task,
    alike_failures,
    compile_all,
)
from aotc.package.cache.compile_times import CompileTimes, seconds_of
from aotc.package.cache.fit import fit_problem
from aotc.package.cache.shared_compiles import find_shared
from aotc.package.cache.store import Cache, CachedKernel
from aotc.package.emit.sources import KernelSource, tuned_entries
from aotc.package.manifest.configs import AutotuneReader
from aotc.package.manifest.spec import KernelSpec, Manifest
from aotc.package.manifest.variant_grid import Expansion, VariantSpec, expand
from aotc.package.tuning.packing import estimated, fitted, joined, only_tuned, stale
from aotc.package.tuning.table import TuningTable
from aotc.stages import without_lines
from aotc.target import Target

_USERS_ARCHIVE_ERRORS = ("IO", "LIMIT")


class Listener(Protocol):
    """Follow a build while it runs."""

    def started(self, num_variants: int, num_cached: int) -> None:
        """Report the number of variants, and how many of them need no compile."""

    def finished(self, outcome: Outcome) -> None:
        """Report that a variant was compiled, or failed."""

    def warned(self, message: str) -> None:
        """Report a problem without effect on the output."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Options of a build: the parts of the manifest to build, and the outputs.

    Empty `targets` and `kernels` mean all. `host` is the architecture for the static library, empty
    for this machine's. `with_ptx` also stores each variant's PTX; `lineinfo` gives cubins line
    tables, with files named relative to the manifest's folder. `without` names excluded features of
    the targets. With `has_shared_frames` cubins of a kernel are compressed together, else each
    alone, and without `is_compressed` not at all. `tuning` has measured times, used to fit the
    archive's selections; without `has_selections` there are none. `only_tuned` leaves out configs
    that no selection ranks first. An `edited` stage takes the place of the compiler's own, in the
    variant labelled `edited_variant`, or with its words.
    """

    output: Path
    jobs: int
    host: str = ""
    targets: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    keep_going: bool = False
    with_ptx: bool = False
    lineinfo: bool = True
    has_shared_frames: bool = True
    is_compressed: bool = True
    without: tuple[str, ...] = ()
    tuning: TuningTable | None = None
    has_selections: bool = True
    only_tuned: bool = False
    edited: EditedStage | None = None
    edited_variant: str = ""


@dataclass(frozen=True, slots=True)
class Ran:
    """A compile: its variant, its time, and its worker if remote."""

    label: str
    seconds: float
    worker: str


_READ = re.compile(r" (?P<name>\S+) is read as (?P<value>[^;]+);")
"""The frontend's remark on a value read at build time, and fixed for all later runs."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The result of a build; `archive` is None and `files` is empty if nothing was written.

    With `is_held_back` there is something to write, if the caller asks for a partial result. `inputs`
    are the paths of the manifests and of all source files compiled.
    """

    archive: Archive | None
    files: tuple[Path, ...]
    num_variants: int
    num_cached: int
    num_compiled: int
    dropped: tuple[str, ...]
    failures: tuple[Failure, ...]
    ran: tuple[Ran, ...] = ()
    is_held_back: bool = False
    inputs: tuple[str, ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """The compiler's remarks, each once for a kernel and target."""
        kernels = self.archive.kernels if self.archive is not None else ()
        lines = [
            f"{member_label(f'{kernel.name} {variant.target}', variant.condition)}: {remark}"
            for kernel in kernels
            for variant in kernel.variants
            for remark in variant.remarks
        ]
        return tuple(dict.fromkeys(lines))

    @property
    def index_limits(self) -> tuple[IndexLimit, ...]:
        """Extents where addresses overflow 32 bits."""
        return index_limits(self.archive.kernels if self.archive is not None else ())

    @property
    def values_read(self) -> tuple[str, ...]:
        """Globals and environment variables read by the source, as in `BLOCK = 128`, each once."""
        matches = [match for line in self.remarks if (match := _READ.search(line))]
        return tuple(dict.fromkeys(f"{match['name']} = {match['value']}" for match in matches))


def nothing_built(failure: Failure) -> BuildResult:
    """Return the result of a build without any compile, due to a failure."""
    return BuildResult(None, (), 0, 0, 0, (), (failure,))


def describe_result(result: BuildResult, warnings: Sequence[str]) -> dict[str, object]:
    """Return a result as JSON-ready data; keys are added, never renamed."""
    return {
        "status": "failed" if result.failures else "done",
        "files": [path.as_posix() for path in result.files],
        "variants": result.num_variants,
        "cached": result.num_cached,
        "compiled": result.num_compiled,
        "dropped": list(result.dropped),
        "remarks": list(result.remarks),
        "index_limits": [
            {
                "kernel": index_limit.kernel,
                "at": index_limit.location,
                "overflows_where": index_limit.condition,
            }
            for index_limit in result.index_limits
        ],
        "warnings": list(warnings),
        "errors": [
            {
                "in": alike[0].label,
                "variants": [failure.label for failure in alike],
                "report": report,
                "bug": is_bug,
                "mistakes": list(alike[0].mistakes),
            }
            for (is_bug, report), alike in alike_failures(result.failures).items()
        ],
        "ran": [
            {"variant": ran.label, "seconds": round(ran.seconds, 3), "worker": ran.worker}
            for ran in result.ran
        ],
    }


def build(
    manifest: Manifest,
    options: BuildOptions,
    listener: Listener,
    *,
    cache: Cache | None,
    compiler: Compiler = compile_variant,
    autotune: AutotuneReader = autotune_configs,
    executor: Executor | None = None,
) -> BuildResult:
    """Build a manifest and write its files.

    Compiles run in `options.jobs` processes, or in `executor`. The cache may be None.

    Raises:
        ManifestError: `options` names an unknown kernel or target.
    """
    _selection(manifest, options)
    known_host(options.host)  # reported before the compiles, not after them
    run = _Build(manifest, options, listener, cache, compiler, executor)
    run.expand(autotune)
    run.compile()
    try:
        return run.finish()
    finally:
        if cache is not None:
            cache.close()  # after the frames of the archive are stored, and also without an archive


def _selection(
    manifest: Manifest, options: BuildOptions
) -> list[tuple[KernelSpec, tuple[Target, ...]]]:
    targets = manifest.targets_for(options.targets, options.without)
    return manifest.select(options.kernels, targets)


@dataclass(frozen=True, slots=True)
class Expanded:
    """A kernel's variants, each with its compile task."""

    expansion: Expansion
    tasks: tuple[Task, ...]

    def unbounded(self, task: Task, spec: VariantSpec) -> Task:
        """Return the task without the bound of `_bounded`."""
        return replace(task, request=replace(task.request, limits=spec.kernel.limits))


def expand_all(
    manifest: Manifest, options: BuildOptions, autotune: AutotuneReader
) -> list[Expanded]:
    """Return the variants of all kernels selected by `options`. Raises: DiagnosticError."""
    request_options = _request_options(manifest, options)
    selected = _selection(manifest, options)
    return [_expanded(kernel, targets, request_options, autotune) for kernel, targets in selected]


def _request_options(manifest: Manifest, options: BuildOptions) -> dict[str, Any]:
    """Return the fields of every request set by options."""
    # With lines also for a build without: it shares compiles with others, and leaves them out later.
    return {"with_ptx": options.with_ptx, "line_root": Path(manifest.path).parent.as_posix()}


def _without_lines(kernel: CachedKernel) -> CachedKernel:
    """Return a compiled kernel and its fallback without tables of lines."""
    fallback = None if kernel.fallback is None else _without_lines(kernel.fallback)
    cubin = without_lines(kernel.cubin) if kernel.cubin else b""
    return replace(kernel, cubin=cubin, fallback=fallback)


def _expanded(
    kernel: KernelSpec,
    targets: Sequence[Target],
    request_options: Mapping[str, Any],
    autotune: AutotuneReader,
) -> Expanded:
    expansion = expand(kernel, targets, autotune)
    requests = (replace(v.request, **request_options) for v in expansion.variants)
    if len(expansion.configs) > 1:
        limits = _bounded(kernel)
        requests = (replace(request, limits=limits) for request in requests)
    labels = (variant.label for variant in expansion.variants)
    return Expanded(expansion, tuple(map(Task, labels, requests)))


def _bounded(kernel: KernelSpec) -> CompileLimits:
    """Return limits to refuse a config certain to lose to a fitting one.

    Above twice the registers of a thread ptxas always spills, and takes up to minutes for it.
    """
    if kernel.spill_bytes >= HOPELESS_SPILL_BYTES:
        return kernel.limits  # so many spills may be shipped
    bound = min(kernel.limits.live_registers, HOPELESS_REGISTERS)
    return replace(kernel.limits, live_registers=bound)


@dataclass(slots=True)
class _Build:
    """The state of one build; each method is called once, in the order below."""

    manifest: Manifest
    options: BuildOptions
    listener: Listener
    cache: Cache | None
    compiler: Compiler
    executor: Executor | None
    planned: list[Expanded] = field(default_factory=list[Expanded])
    compiled: dict[CompileRequest, CachedKernel] = field(
        default_factory=dict[CompileRequest, CachedKernel]
    )
    failures: list[Failure] = field(default_factory=list[Failure])
    dropped: list[str] = field(default_factory=list[str])
    num_variants: int = 0
    num_cached: int = 0
    num_compiled: int = 0
    ran: list[Ran] = field(default_factory=list[Ran])

    def expand(self, autotune: AutotuneReader) -> None:
        request_options = _request_options(self.manifest, self.options)
        for kernel, targets in _selection(self.manifest, self.options):
            with self._collecting(kernel.name):
                planned = _expanded(kernel, targets, request_options, autotune)
                self.planned.append(planned)
                self.dropped += planned.expansion.dropped
                self.num_variants += len(planned.tasks)
        if self.options.edited is not None:
            self._edit(self.options.edited)

    def _edit(self, edited: EditedStage) -> None:
        """Give the chosen variant its edited stage. Raises: ManifestError."""
        labels = {task.label: task for planned in self.planned for task in planned.tasks}
        task = labels[one_label(labels, self.options.edited_variant, self.manifest.path)]
        after = replace(task, request=replace(task.request, edited=edited))
        self.planned = [
            replace(planned, tasks=tuple(after if one is task else one for one in planned.tasks))
            for planned in self.planned
        ]
        self.listener.warned(f"{task.label} is compiled from {edited.file}, not from its source")

    def compile(self) -> None:
        # Two kernels of the manifest may need the same compile; it runs once.
        tasks: dict[CompileRequest, Task] = {}
        for planned in self.planned:
            for task in planned.tasks:
                tasks.setdefault(task.request, task)
        waiting = self._not_cached(tasks)
        if not waiting:
            waiting = self._not_cached(self._without_bound())
        self.num_cached = len(tasks) - len(waiting)
        if waiting:  # takes a while
            for failure in self.failures:
                self.listener.warned(f"{failure.label} failed: {failure.report.splitlines()[0]}")
        self.listener.started(len(tasks), self.num_cached)
        times = CompileTimes(None) if self.cache is None else self.cache.times
        times.load(planned.tasks[0].request for planned in self.planned)
        refused = self._compile(waiting, times)
        waiting = self._not_cached(self._without_bound())
        later = {task.label for task in waiting}
        for outcome in refused.values():
            if outcome.task.label not in later:
                self.listener.finished(outcome)
        for outcome in self._compile(waiting, times).values():
            self.listener.finished(outcome)

    def _not_cached(self, tasks: Mapping[CompileRequest, Task]) -> list[Task]:
        """Load cached kernels; return the other tasks, a variant of each kernel first."""
        if self.cache is not None:
            self.cache.prepare(tasks)
            for request, task in tasks.items():
                kernel = find_shared(self.cache, request)
                problem = "" if kernel is None else fit_problem(kernel, request)
                if problem:
                    self.listener.warned(
                        f"what the cache has for {task.label} is of another kernel: {problem}; "
                        "it is compiled again"
                    )
                elif kernel is not None:
                    self.compiled[request] = kernel
        waiting = [task for request, task in tasks.items() if request not in self.compiled]
        first = self._first_of_each(waiting)
        rest = [task for task in waiting if task.request not in first]
        return [*first.values(), *rest]

    def _compile(
        self, waiting: Sequence[Task], times: CompileTimes
    ) -> dict[CompileRequest, Outcome]:
        """Compile; return misfits of their target, not yet reported to the listener."""
        failed: dict[CompileRequest, Failure] = {}
        refused: dict[CompileRequest, Outcome] = {}
        outcomes = compile_all(
            waiting, self.compiler, self.options.jobs, self.executor, seconds_of(times)
        )
        # Closed explicitly, so that an interrupt stops the workers now, not at garbage collection.
        with contextlib.closing(outcomes):
            for outcome in outcomes:
                request = outcome.task.request
                self.ran.append(Ran(outcome.task.label, outcome.seconds, outcome.worker))
                if isinstance(outcome.result, Failure):
                    failed[request] = outcome.result
                else:
                    self.num_compiled += 1
                    times.note(request, outcome.seconds)
                    self.compiled[request] = outcome.result
                    if self.cache is not None:
                        self.cache.store(request, outcome.result)
                    if outcome.result.is_misfit:
                        refused[request] = outcome
                        continue
                self.listener.finished(outcome)
        self.failures += [failed[task.request] for task in waiting if task.request in failed]
        return refused

    def _without_bound(self) -> dict[CompileRequest, Task]:
        """Plan refused configs again without the bound, where no config fits; return their tasks."""
        again: dict[CompileRequest, Task] = {}
        for index, planned in enumerate(self.planned):
            pairs = list(zip(planned.expansion.variants, planned.tasks, strict=True))
            compiled = [
                (v, self.compiled[t.request]) for v, t in pairs if t.request in self.compiled
            ]
            unserved = not_served(compiled)
            tasks: list[Task] = []
            for spec, task in pairs:
                unbounded = planned.unbounded(task, spec) if spec in unserved else task
                if unbounded.request != task.request:
                    again[unbounded.request] = unbounded
                tasks.append(unbounded)
            self.planned[index] = replace(planned, tasks=tuple(tasks))
        return again

    def _first_of_each(self, waiting: Sequence[Task]) -> dict[CompileRequest, Task]:
        """Return a variant of each kernel and target: a kernel's mistake usually fails in all."""
        first: dict[tuple[int, str], Task] = {}
        requests = {task.request for task in waiting}
        for number, planned in enumerate(self.planned):
            for task in planned.tasks:
                if task.request in requests:
                    first.setdefault((number, task.request.target), task)
        return {task.request: task for task in first.values()}

    def _result_of(self, request: CompileRequest) -> CachedKernel:
        kernel = self.compiled[request]
        return kernel if self.options.lineinfo else _without_lines(kernel)

    def finish(self) -> BuildResult:
        records: list[Kernel] = []
        sources: dict[str, KernelSource] = {}
        for planned in self.planned:
            variants = zip(planned.expansion.variants, planned.tasks, strict=True)
            compiled = [
                (spec, self._result_of(task.request))
                for spec, task in variants
                if task.request in self.compiled
            ]
            if not compiled:
                continue  # all of its compiles failed, and are among the failures
            with self._collecting(planned.expansion.kernel.name):
                assembled = assemble(planned.expansion, compiled)
                self.dropped += assembled.dropped
                for warning in assembled.warnings:
                    self.listener.warned(warning)
                records.append(self._tuned(assembled))
                sources[assembled.kernel.name] = assembled.source
        manifest = self.manifest
        if self.options.tuning is not None:
            names = [kernel.name for kernel in manifest.kernels]
            for warning in stale(self.options.tuning, records, names):
                self.listener.warned(warning)
        result = Archive(
            manifest.name, manifest.version, tuple(records), toolchain_text(manifest.toolchain)
        )
        files: tuple[Path, ...] = ()
        is_held_back = bool(records and self.failures) and not self.options.keep_going
        if records and not is_held_back:
            files = self._write(result, sources)
        return BuildResult(
            archive=result if files else None,
            files=files,
            num_variants=self.num_variants,
            num_cached=self.num_cached,
            num_compiled=self.num_compiled,
            dropped=tuple(self.dropped),
            failures=tuple(self.failures),
            ran=tuple(self.ran),
            is_held_back=is_held_back,
            inputs=self._inputs(),
        )

    def _inputs(self) -> tuple[str, ...]:
        kernels = list(self.compiled.values())
        kernels += [kernel.fallback for kernel in kernels if kernel.fallback is not None]
        compiled = {path for kernel in kernels for path, _ in kernel.metadata.source_files}
        return tuple(sorted({*self.manifest.inputs, *compiled}))

    def _tuned(self, assembled: Assembled) -> Kernel:
        """Return a kernel with its selections, and only the variants asked for."""
        kernel = assembled.kernel
        if not self.options.has_selections:
            return kernel
        table = self.options.tuning
        measured = () if table is None else fitted(kernel, table, assembled.metadata)
        estimates = estimated(kernel, assembled.metadata)
        kernel = replace(kernel, selections=joined(estimates, measured))
        return only_tuned(kernel) if self.options.only_tuned else kernel

    def _write(self, result: Archive, sources: dict[str, KernelSource]) -> tuple[Path, ...]:
        try:
            with self._collecting(result.name):
                options = self.options
                frames = None if self.cache is None else self.cache.frames
                return write_files(
                    result,
                    sources,
                    options.output,
                    options.host,
                    self.listener.warned,
                    frames,
                    tuned_entries(self.manifest, sources),
                    is_grouped=options.has_shared_frames,
                    is_compressed=options.is_compressed,
                )
        except ArchiveError as error:
            is_bug = error.kind not in _USERS_ARCHIVE_ERRORS
            report = error.message if is_bug else f"error: {error.message}"
            self.failures.append(Failure(result.name, report, is_bug=is_bug))
        return ()

    @contextlib.contextmanager
    def _collecting(self, label: str) -> Generator[None, None, None]:
        """Collect the user's mistakes in the `with` block as failures."""
        try:
            yield
        except DiagnosticError as error:
            self.failures.append(Failure.of(label, error))
