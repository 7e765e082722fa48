"""Plant a bug in the compiler, compile a kernel under it, and verify the kernel.

A `Plant` opens a context with a wrong compiler: a function is replaced, an edit follows a pass, or
the text of LLVM IR or PTX is changed. The compiler's caches are cleared on entry and exit.

Invariant: the context restores the compiler.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

from aotc import backend
from aotc.backend import lower
from aotc.compiler import CompileRequest, PtxKernel, compile_ptx
from aotc.ir.core import Kernel, Op
from aotc.ir.passes import Pipeline
from aotc.metadata import ParamSlot
from aotc.package.archive.index import Kernel as Record
from aotc.package.verify import planned_launch as planned
from aotc.package.verify.reference_cache import ReferenceCache
from aotc.package.verify.subjects import Subject, load_subjects
from aotc.package.verify.variants import VariantResult, verify_variant
from aotc.schedule import pipeline
from aotc.schedule.context import Schedule
from tests.support.hazards import HazardError, no_fallback

MANIFEST = Path(__file__).parents[1] / "mutation_cases" / "kernels.toml"

# Of correct kernels: a bug below the tile IR leaves its meaning unchanged.
_REFERENCES = ReferenceCache()

Plant: TypeAlias = Callable[[], AbstractContextManager[None]]
Edit: TypeAlias = Callable[[Kernel], None]
Program: TypeAlias = tuple[str, int, tuple[ParamSlot, ...], str]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The verdict of `verify` on a kernel: "", "mismatch", or the kind of a fault.

    `program` is the executed program: PTX, the bytes of shared memory, the launcher's parameters, and
    the other launch metadata. `detail` is the report.
    """

    kind: str
    detail: str
    program: Program


@dataclass(frozen=True, slots=True)
class Mutation:
    """A possible compiler bug, and the kernel of the manifest to expose it."""

    name: str
    stands_for: str
    kernel: str
    plant: Plant
    target: str = "sm_80"

    def observe(self) -> Evidence:
        """Return the verdict of the build's own check or of `verify` on the kernel with the bug."""
        with self.plant(), no_fallback():
            try:
                return _verified(_subject(self.kernel, self.target))
            except HazardError as hazard:
                return Evidence("build", str(hazard), ("", 0, (), ""))

    def control(self) -> Evidence:
        """Return the verdict of `verify` on the correct kernel."""
        return _control(self.kernel, self.target)


@lru_cache(maxsize=256)
def _control(kernel: str, target: str) -> Evidence:
    return _verified(_subject(kernel, target))


@lru_cache(maxsize=1)
def _subjects() -> dict[tuple[str, str], Subject]:
    return {
        (subject.kernel, subject.target.name): subject for subject in load_subjects(str(MANIFEST))
    }


def _subject(kernel: str, target: str) -> Subject:
    return _subjects()[kernel, target]


def _verified(subject: Subject) -> Evidence:
    kernels: list[PtxKernel] = []

    def compiler(request: CompileRequest) -> PtxKernel:
        kernels.append(compile_ptx(request))
        return kernels[-1]

    with records_kept() as records:
        result = verify_variant(subject, compiler=compiler, cache=_REFERENCES)
    request, first = subject.request, kernels[0]
    assert request is not None
    condition = planned.launch_condition(request, first.guards, first.params)
    metadata = str((first.scratch_bytes, first.cooperative, condition, *records[:1]))
    return _evidence(result, (first.ptx, first.shared_bytes, first.params, metadata))


@contextmanager
def records_kept() -> Iterator[list[Record]]:
    """Collect the kernel records used to plan launches while the context is open."""
    records: list[Record] = []
    launcher_of_record = planned.launcher_of_record

    def kept(record: Record, *known: Any) -> Any:
        records.append(record)
        return launcher_of_record(record, *known)

    with mock.patch.object(planned, "launcher_of_record", kept):
        yield records


def _evidence(result: VariantResult, program: Program) -> Evidence:
    for finding in result.findings:
        if finding.status == "wrong":
            return Evidence("mismatch", finding.detail, program)
        if finding.status == "fault":
            return Evidence(finding.detail.partition(":")[0], finding.detail, program)
    assert result.status == "verified", f"{result.label} is {result.status}"
    return Evidence("", "", program)


# ---- ways to plant a bug ----------------------------------------------------------------------


@contextmanager
def _fresh_tables() -> Iterator[None]:
    _forget()
    try:
        yield
    finally:
        _forget()


def _forget() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith(("aotc.schedule", "aotc.backend", "aotc.ir")):
            for value in list(vars(module).values()):
                clear = getattr(value, "cache_clear", None)
                if clear is not None:
                    clear()


def _plant(*patches: Callable[[], AbstractContextManager[Any]]) -> Plant:
    @contextmanager
    def planted() -> Iterator[None]:
        with ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch())
            stack.enter_context(_fresh_tables())
            yield

    return planted


def together(*plants: Plant) -> Plant:
    """Plant several bugs at once, such as one in every module with a given name."""

    @contextmanager
    def planted() -> Iterator[None]:
        with ExitStack() as stack:
            for plant in plants:
                stack.enter_context(plant())
            yield

    return planted


def replacing(owner: Any, name: str, new: Any) -> Plant:
    """Put `new` in the place of an attribute of a module or class."""
    return _plant(lambda: mock.patch.object(owner, name, new))


def wrapping(owner: Any, name: str, make: Callable[[Any], Any]) -> Plant:
    """Replace an attribute of a module or class by `make(attribute)`."""
    return replacing(owner, name, make(getattr(owner, name)))


def entry(table: dict[Any, Any], key: Any, new: Any) -> Plant:
    """Put `new` into a table of the compiler."""
    return _plant(lambda: mock.patch.dict(table, {key: new}))


def rule(cls: type[Op], make: Callable[[Any], Any]) -> Plant:
    """Replace the lowering rule of an op by `make(rule)`."""
    return entry(lower.RULES, cls, make(lower.RULES[cls]))


def after_pass(name: str, edit: Edit) -> Plant:
    """Spoil the kernel after the first pass of a name."""

    def spoil(kernel: Kernel, schedule: Schedule) -> None:
        del schedule
        edit(kernel)

    passes = list(pipeline.TILE_TO_GPU.passes)
    index = [pass_function.__name__ for pass_function in passes].index(name)
    spoiled = Pipeline((*passes[: index + 1], spoil, *passes[index + 1 :]))
    return _plant(lambda: mock.patch.object(pipeline, "TILE_TO_GPU", spoiled))


def in_llvm(pattern: str, new: str, count: int = 0) -> Plant:
    """Replace a regular expression in LLVM IR, everywhere or `count` times."""
    emit_ptx = backend.emit_ptx
    return replacing(
        backend,
        "emit_ptx",
        lambda text, *more, **named: emit_ptx(_sub(pattern, new, text, count), *more, **named),
    )


def in_ptx(pattern: str, new: str, count: int = 0) -> Plant:
    """Replace a regular expression in PTX, everywhere or `count` times."""
    emit_ptx = backend.emit_ptx
    return replacing(
        backend,
        "emit_ptx",
        lambda text, *more, **named: _sub(pattern, new, emit_ptx(text, *more, **named), count),
    )


def _sub(pattern: str, new: str, text: str, count: int) -> str:
    return re.sub(pattern, new, text, count=count, flags=re.MULTILINE)


# ---- edits ------------------------------------------------------------------------------------


def found(kernel: Kernel, cls: type[Op]) -> Sequence[Any]:
    """Return the ops of a class, in program order."""
    return [op for op in kernel.walk() if isinstance(op, cls)]


def each(cls: type[Op], change: Callable[[Any], None]) -> Edit:
    """Return an edit: change every op of a class."""

    def edit(kernel: Kernel) -> None:
        for op in found(kernel, cls):
            change(op)

    return edit


def without(cls: type[Op], index: int) -> Edit:
    """Return an edit: erase op number `index` of a class."""
    return lambda kernel: found(kernel, cls)[index].erase()
