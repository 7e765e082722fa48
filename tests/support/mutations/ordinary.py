"""The planted bugs under ordinary kernels, for `aotc verify` at its default settings.

A small kernel made for a bug shows it more easily than the kernels of users. So each bug is planted
under a fixed list of variants of kernels/*.toml that exercise its part of the compiler. It is effective
if PTX, shared memory or parameters change. It is found if `verify` finds it in one of the first few
such variants.

`python -m tests.support.mutations.ordinary` prints the table of docs/internals/planted-bugs.md. Names of
areas select bugs by area. `--sample N` takes every Nth bug of an area, from number `--first` on, and
`--only` selects by a word of the name.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

from aotc.compiler import CompileRequest, PtxKernel, compile_ptx
from aotc.ir.diagnostics import DiagnosticError, IRError
from aotc.ir.text import parse_kernel
from aotc.package.archive.index import ArchiveError
from aotc.package.verify import planned_launch as planned
from aotc.package.verify import refusals
from aotc.package.verify.planned_launch import launcher_of_request
from aotc.package.verify.subjects import Subject, load_subjects
from aotc.package.verify.variants import verify_variant
from aotc.verify.emulator.text.parse import parse_module
from tests.support.mutations.plant import Mutation
from tests.support.mutations.table import AREAS

_KERNELS = Path(__file__).parents[3]
_MAX_EFFECTIVE = 12
"""How many variants that a bug changes are verified before it counts as missed."""

# A bug may not apply to a kernel: there is no such op, or it no longer compiles.
_UNSUITED = (
    IndexError,
    StopIteration,
    AttributeError,
    AssertionError,
    ValueError,
    RuntimeError,
    DiagnosticError,
    IRError,
)

Row: TypeAlias = tuple[str, str, str, str]
"""A variant: manifest, kernel, target and words of its label."""

# The variant of a kernel: words of its label, and with a "-" words not in it.
_ROWS = (
    ("kernels.toml", "softmax", "sm_80", "T=fp32 BLOCK=1024"),
    ("kernels.toml", "quantize_int8_rows", "sm_80", "T=fp16"),
    ("kernels.toml", "layernorm", "sm_90a", "T=bf16 x_ptr:16 LOOP=true"),
    ("kernels.toml", "cumsum_rows", "sm_80", "T=fp32"),
    ("kernels.toml", "argmax_rows", "sm_80", "T=fp32"),
    ("kernels.toml", "transpose2d", "sm_80", "T=fp16 x_ptr:16"),
    ("kernels.toml", "vector_add", "sm_80", "T=fp16 x_ptr:16"),
    ("kernels.toml", "vector_add", "sm_80", "T=fp16 -x_ptr:16"),
    ("kernels.toml", "rotary", "sm_80", "T=fp16 x_ptr:16"),
    ("kernels/matrix.toml", "bordered_stencil", "sm_80", ""),
)
_ATOMICS = (
    ("kernels/matrix.toml", "histogram", "sm_80", ""),
    ("kernels/matrix.toml", "row_sums", "sm_80", "T=bf16"),
    ("kernels/matrix.toml", "matmul_split_k_atomic", "sm_80", "U=bf16"),
    ("kernels/hopper.toml", "small_linear_split", "sm_90a", "EVEN=true"),
    ("kernels/matrix.toml", "embedding_bag", "sm_80", "T=fp16"),
)
_DOTS = (
    ("kernels/matrix.toml", "matmul", "sm_80", "T=fp16 BIAS=false BLOCK_M=128"),
    ("kernels/matrix.toml", "matmul", "sm_80", "T=fp16 BIAS=false BLOCK_M=64"),
    ("kernels/matrix.toml", "linear", "sm_80", "T=bf16 BLOCK_M=32"),
    ("kernels/matrix.toml", "int8_matmul", "sm_80", "BLOCK_M=16"),
    ("kernels/matrix.toml", "small_matmuls", "sm_80", "T=fp32"),
    ("kernels/matrix.toml", "attention", "sm_80", "HEAD_DIM=64 CAUSAL=true"),
    ("kernels/matrix.toml", "conv2d", "sm_80", "BIAS=true"),
    ("kernels/matrix.toml", "matmul", "sm_90a", "T=bf16 BIAS=false BLOCK_M=128"),
    ("kernels/attention.toml", "attention_forward", "sm_90a", "HEAD_DIM=64 CAUSAL=true"),
)
_HOPPER = (
    ("kernels/hopper.toml", "persistent_linear", "sm_90a", "BLOCK_N=256"),
    ("kernels/hopper.toml", "persistent_linear", "sm_90a", "BLOCK_K=128"),
    ("kernels/hopper.toml", "persistent_linear", "sm_90a", "num_consumer_groups=2"),
    ("kernels/hopper.toml", "persistent_matmul", "sm_90a", "T=fp16"),
    ("kernels/hopper.toml", "persistent_matmul_columns", "sm_90a", "BLOCK_N=256"),
    ("kernels/hopper.toml", "persistent_blockwise_fp8", "sm_90a", "mma_stages=2"),
    ("kernels/hopper.toml", "persistent_linear_residual", "sm_90a", ""),
    ("kernels/hopper.toml", "batched_linear", "sm_90a", "BLOCK_N=64"),
    ("kernels/hopper.toml", "small_linear_descriptor", "sm_90a", "BLOCK_N=128"),
    ("kernels/descriptors.toml", "transpose_blocks", "sm_90a", "T=bf16"),
    ("kernels/descriptors.toml", "accumulate_blocks", "sm_90a", ""),
    ("kernels/matrix.toml", "matmul", "sm_90a", "T=fp16 BIAS=false BLOCK_M=128"),
)
_FUNCTIONS = (
    ("kernels/functions.toml", "average_pool", "sm_80", "T=i8"),
    ("kernels/functions.toml", "average_pool", "sm_80", "T=u8"),
    ("kernels/functions.toml", "roll_rows", "sm_80", "T=fp16"),
    ("kernels/functions.toml", "linear_recurrence", "sm_80", "T=fp32"),
    ("kernels/functions.toml", "replace_nan", "sm_80", "T=fp32"),
    ("kernels/functions.toml", "dropout", "sm_80", "T=bf16"),
    ("kernels/functions.toml", "median", "sm_80", "T=fp32 num_warps=1"),
    ("kernels/functions.toml", "route", "sm_80", "T=bf16 BLOCK=4"),
    ("kernels/functions.toml", "mx_matmul", "sm_80", "A_FORMAT=e4m3"),
    ("kernels/descriptors.toml", "scale_rows", "sm_80", ""),
)
_ATTENTION = (
    (
        "kernels/attention.toml",
        "attention_forward",
        "sm_90a",
        "HEAD_DIM=64 CAUSAL=true mma_stages=2",
    ),
    (
        "kernels/attention.toml",
        "attention_forward",
        "sm_90a",
        "HEAD_DIM=128 CAUSAL=false mma_stages=2",
    ),
)
_CLUSTERS = (
    ("kernels/descriptors.toml", "matmul_descriptor", "sm_90a", "num_ctas=2"),
    ("kernels/rows.toml", "softmax", "sm_90a", "num_ctas=8"),
    ("kernels/rows.toml", "layernorm", "sm_90a", "num_ctas=2"),
    ("kernels/rows.toml", "cross_entropy_grad", "sm_90a", "num_ctas=2"),
)
_LONG_ROWS = (
    ("kernels/descriptors.toml", "scale_long_rows", "sm_90a", "T=bf16"),
    ("kernels/descriptors.toml", "scale_long_rows", "sm_90a", "T=fp32"),
)
_FENCED = (
    ("kernels/descriptors.toml", "grouped_gemm", "sm_90a", ""),
    ("kernels/hopper.toml", "small_linear_split", "sm_90a", "EVEN=true"),
    ("kernels/matrix.toml", "row_sums", "sm_80", "T=bf16"),
    ("tests/support/mutation_cases/kernels.toml", "write_and_load", "sm_90a", ""),
)
_MAPPED = (
    ("tests/support/mutation_cases/kernels.toml", "describe_rows", "sm_90a", ""),
    ("tests/support/mutation_cases/kernels.toml", "copy_mapped", "sm_90a", ""),
)
_LAUNCHED = (
    ("kernels/cooperative.toml", "long_softmax", "sm_90a", ""),
    ("kernels/descriptors.toml", "grouped_gemm", "sm_90a", ""),
    ("kernels/matrix.toml", "matmul", "sm_90a", "T=bf16 BIAS=false BLOCK_M=128"),
)
_BY_AREA = {
    "accesses to global memory, atomics": (*_ROWS, *_FUNCTIONS, *_ATOMICS),
    "shared memory, layouts, reductions, scans": (*_ROWS, *_FUNCTIONS, *_DOTS),
    "arithmetic, conversions": (*_ROWS, *_FUNCTIONS, *_ATOMICS, *_DOTS),
    "loops, branches, pipelines": (*_DOTS, *_ATOMICS, *_ROWS),
    "dots": _DOTS,
    "attention": (*_ATTENTION, *_HOPPER),
    "clusters": (*_CLUSTERS, *_HOPPER),
    "far rows": (*_ROWS, *_ATOMICS, *_FUNCTIONS, *_DOTS),
    "fences": (*_FENCED, *_MAPPED, *_LONG_ROWS, *_CLUSTERS, *_HOPPER),
    "bulk copies": (*_LONG_ROWS, *_HOPPER),
    "launcher": (*_LAUNCHED, *_HOPPER, *_ROWS[:2]),
    "record of a variant": (*_LAUNCHED, *_HOPPER, *_CLUSTERS, *_ROWS),
    "stored tensor maps": _MAPPED,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a bug: the variants it changes, and the kind of finding, if any."""

    name: str
    variants: tuple[str, ...] = ()
    kind: str = ""
    seconds: float = 0.0


@cache
def _subject(path: str, kernel: str, target: str, parts: str) -> Subject:
    subjects = load_subjects(str(_KERNELS / path), [kernel], [target])
    words = parts.split()
    return next(subject for subject in subjects if all(_has(subject.label, word) for word in words))


def _has(label: str, word: str) -> bool:
    return (word.lstrip("-") in label.split()) != word.startswith("-")


@cache
def _as_it_should_be(row: Row, request: CompileRequest) -> tuple[object, ...]:
    return _told(row, request)


def _changed(row: Row, request: CompileRequest) -> bool:
    """Return whether the bug changes a variant, or keeps it from compiling."""
    return _as_it_should_be(row, request) != _told(row, request)


def _told(row: Row, request: CompileRequest) -> tuple[object, ...]:
    """Return a kernel's program and the metadata for its launcher."""
    kernel = compile_ptx(request)
    metadata = kernel.params, kernel.guards, kernel.scratch_bytes, kernel.cooperative
    condition = planned.launch_condition(request, kernel.guards, kernel.params)
    return (kernel.ptx, kernel.shared_bytes, condition, *metadata, _record(_subject(*row), kernel))


def _record(subject: Subject, kernel: PtxKernel) -> object:
    """Return the record of a variant, or why there is none."""
    if subject.expanded is None:
        return None
    facts = subject.guards, subject.values, refusals.needs_of(parse_kernel(kernel.tile_ir), 0, 1)
    try:
        launcher = launcher_of_request(*subject.expanded, kernel, parse_module(kernel.ptx), *facts)
    except (ArchiveError, IRError) as error:
        return str(error)
    return launcher.record


def observe(mutation: Mutation, area: str) -> Outcome:
    """Return the verdict of `verify` on ordinary variants compiled with a bug."""
    start = time.process_time()
    effective: list[str] = []
    for row in _BY_AREA.get(area, _HOPPER):
        subject = _subject(*row)
        assert subject.request is not None
        requests = [subject.request]
        if subject.request.map_pointers:
            requests.append(CompileRequest(**{**_fields(subject.request), "map_pointers": False}))
        for request in requests:
            _as_it_should_be(row, request)  # compiled before anything is wrong
        try:
            with mutation.plant():
                if not any(_changed(row, request) for request in requests):
                    continue
                kind = _kind(subject)
        except _UNSUITED:
            continue
        effective.append(subject.label)
        if kind:
            return Outcome(mutation.name, tuple(effective), kind, time.process_time() - start)
        if len(effective) == _MAX_EFFECTIVE:
            break
    return Outcome(mutation.name, tuple(effective), "", time.process_time() - start)


def _fields(request: CompileRequest) -> dict[str, object]:
    return {name: getattr(request, name) for name in request.__dataclass_fields__}


def _kind(subject: Subject) -> str:
    """Return the finding on a variant, or ""."""
    try:
        findings = verify_variant(subject).launches
    except ArchiveError:
        return "launcher"  # its record is invalid in an archive
    for finding in findings:
        if finding.status == "wrong":
            return "mismatch"
        if finding.status == "fault":
            is_launcher = finding.detail.startswith("the launch")
            return "launcher" if is_launcher else finding.detail.partition(":")[0]
    return ""


def _mutations(options: argparse.Namespace) -> Iterator[tuple[str, Mutation]]:
    for area, mutations in AREAS.items():
        if options.areas and not any(area.startswith(name) for name in options.areas):
            continue
        for mutation in mutations[options.first :: options.sample]:
            if options.only not in mutation.name:
                continue
            if isinstance(
                mutation, Mutation
            ):  # the others are for kernels not made by the compiler
                yield area, mutation


def main(arguments: Sequence[str]) -> None:
    """Print a line for each bug as it is judged, then the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("areas", nargs="*")
    parser.add_argument("--sample", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="")
    options = parser.parse_args(arguments)
    outcomes: dict[str, list[Outcome]] = {}
    for area, mutation in _mutations(options):
        outcome = observe(mutation, area)
        outcomes.setdefault(area, []).append(outcome)
        state = outcome.kind or ("MISSED" if outcome.variants else "no effect")
        last = outcome.variants[-1] if outcome.variants else ""
        line = f"{state:14} {outcome.seconds:6.1f} {outcome.name}: {last}\n"
        sys.stderr.write(line)
    sys.stdout.write("\n".join(_table(outcomes)) + "\n")


def _table(outcomes_of_area: dict[str, list[Outcome]]) -> Iterator[str]:
    yield "|area|planted|effective|found|as|"
    yield "|-|-|-|-|-|"
    for area, outcomes in outcomes_of_area.items():
        effective = [outcome for outcome in outcomes if outcome.variants]
        kinds = [outcome.kind for outcome in effective if outcome.kind]
        by_count = sorted({(-kinds.count(kind), kind) for kind in kinds})
        shown = ", ".join(f"{kind} {-count}" for count, kind in by_count)
        yield f"|{area}|{len(outcomes)}|{len(effective)}|{len(kinds)}|{shown}|"


if __name__ == "__main__":
    main(sys.argv[1:])
