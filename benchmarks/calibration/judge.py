"""One case on both sides, compared; many cases in several processes.

Each process has its own context on the GPU. A faulting kernel makes it unusable for good, so the
remaining cases run in a fresh process.

Invariant: a case one side cannot run is reported, never left out.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from aotc.verify.checks.check import ExecutionFault
from aotc.verify.emulator.async_copies.tensor_argument import TensorArgument
from aotc.verify.emulator.errors import EmulationError, Fault
from aotc.verify.emulator.run import emulate
from aotc.verify.emulator.text.parse import parse_module
from aotc.verify.emulator.text.program import Module
from benchmarks.calibration.case import Argument, Array, Case, entry_name
from benchmarks.calibration.distance import Comparison, compare
from benchmarks.calibration.gpu import Gpu, describe_fault
from benchmarks.calibration.groups import GROUPS

CHUNK = 12
_MAX_SHOWN = 8

# Faults of this process's context; after the first there is no use in asking it for more.
_faults: list[ExecutionFault] = []


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Result of a case: an error, or a comparison for each of its outputs.

    `values` are both sides' first results, of probes alone; `operands` belong to the examples.
    """

    group: str
    name: str
    row: str
    bound: str
    comparisons: tuple[Comparison, ...] = ()
    operands: tuple[tuple[str, ...], ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    error: str = ""
    seconds: float = 0.0

    @property
    def is_within(self) -> bool:
        """Return whether both sides ran and every result is in its bound."""
        return not self.error and not any(comparison.broken for comparison in self.comparisons)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Name some cases of a group; without a folder of cubins the emulator runs alone."""

    group: str
    indices: tuple[int, ...]
    folder: Path | None


def chunks(folder: Path | None, names: Sequence[str] = ()) -> list[Chunk]:
    """Return all cases, or some groups' cases, in chunks of about a second's work."""
    group_chunks: list[Chunk] = []
    for group in GROUPS.values():
        if not names or group.name in names:
            indices = range(len(group.cases))
            group_chunks += [
                Chunk(group.name, tuple(indices[start : start + CHUNK]), folder)
                for start in range(0, len(indices), CHUNK)
            ]
    return group_chunks


def judge_chunk(chunk: Chunk) -> list[CaseResult]:
    """Run cases on both sides and compare.

    A fault on the GPU ends CUDA for a process: the remaining cases go to another process.
    """
    results: list[CaseResult] = []
    for position, index in enumerate(chunk.indices):
        if _faults:
            rest = replace(chunk, indices=chunk.indices[position:])
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                return results + pool.submit(judge_chunk, rest).result()
        results.append(judge(chunk.group, index, chunk.folder))
    return results


def judge(group: str, index: int, folder: Path | None) -> CaseResult:
    """Run a case in the emulator and on the GPU; without a folder twice in the emulator."""
    case = GROUPS[group].cases[index]
    bound = ", ".join(dict.fromkeys(str(output.bound) for output in case.outputs))
    row = case.row or case.name
    start = time.perf_counter()
    before, emulated, actual = case.arguments(), case.arguments(), case.arguments()
    scales = case.magnitudes(before) if case.magnitudes is not None else []
    failures = [_emulate(group, index, emulated, seed=0)]
    if scales:
        failures.append(_emulate(group, index, scales, seed=0))
    other = _emulate(group, index, actual, seed=1) if folder is None else ""
    other = other or (_launch(group, index, folder, actual) if folder is not None else "")
    failures = [failure for failure in (*failures, other) if failure]
    if failures:
        # Where both sides refuse a probe, they agree.
        agreed = case.is_probe and bool(other) and len(failures) > 1
        values = ((failures[0], other),) if agreed else ()
        error = "" if agreed else "; ".join(failures)
        return CaseResult(group, case.name, row, bound, values=values, error=error)
    comparisons = tuple(
        compare(
            output.kind,
            array_of(emulated[output.index]),
            array_of(actual[output.index]),
            output.bound,
            array_of(scales[output.index]) if scales else None,
        )
        for output in case.outputs
    )
    return CaseResult(
        group,
        case.name,
        row,
        bound,
        comparisons,
        _operands(case, before, comparisons),
        _values(case, emulated, actual) if case.is_probe else (),
        seconds=time.perf_counter() - start,
    )


def array_of(arg: Argument) -> Array:
    """Return the memory behind an argument, dense."""
    array = arg.array if isinstance(arg, TensorArgument) else arg
    assert isinstance(array, np.ndarray)
    return np.ascontiguousarray(array)


def _emulate(group: str, index: int, args: list[Argument], seed: int) -> str:
    """Run a case in the emulator; return its error."""
    case, entry = GROUPS[group].cases[index], entry_name(index)
    options = {"kernel": entry, "shared_bytes": case.shared_bytes, "seed": seed}
    try:
        emulate(_module(group), case.grid, args, **options)
    except (Fault, EmulationError) as error:
        return f"emulator: {error}"
    return ""


def _launch(group: str, index: int, folder: Path, args: list[Argument]) -> str:
    """Run a case on the GPU; return its error."""
    case = GROUPS[group].cases[index]
    kernel = _module(group).kernels[entry_name(index)]
    try:
        cubin = _cubin(group, folder)
        open_gpu().launch(cubin, kernel, args, case.grid, case.shared_bytes)
    except ExecutionFault as error:
        _faults.append(error)
        return f"GPU: {describe_fault(error)}"
    return ""


def device_name() -> str:
    """Return the name of the GPU. Raises: NoDeviceError."""
    return open_gpu().name


@cache
def _module(group: str) -> Module:
    return parse_module(GROUPS[group].ptx)


@cache
def open_gpu() -> Gpu:
    return Gpu()


@cache
def _cubin(group: str, folder: Path) -> bytes:
    return (folder / f"{group}.cubin").read_bytes()


def _operands(
    case: Case, before: Sequence[Argument], comparisons: Sequence[Comparison]
) -> tuple[tuple[str, ...], ...]:
    """Return the operands at the examples' places, where there is one array for each operand."""
    outputs = {output.index for output in case.outputs}
    inputs = [
        arg
        for number, arg in enumerate(before)
        if number not in outputs and isinstance(arg, np.ndarray)
    ]
    rows: list[tuple[str, ...]] = []
    for comparison in comparisons:
        for example_index, _, _ in comparison.examples:
            # A packed result has several places for each operand.
            row = [arg.ravel()[example_index * arg.size // comparison.count] for arg in inputs]
            rows.append(tuple(f"{int(word):#x}" for word in row))
    return tuple(rows)


def _values(
    case: Case, emulated: Sequence[Argument], actual: Sequence[Argument]
) -> tuple[tuple[str, str], ...]:
    """Return each result's first words on both sides."""
    return tuple(
        (_first_words(array_of(emulated[number])), _first_words(array_of(actual[number])))
        for number in (output.index for output in case.outputs)
    )


def _first_words(result: Array) -> str:
    """Return the first words, without the run of equal words at the end."""
    words = result.ravel()
    changes = np.flatnonzero(words[1:] != words[:-1])
    end = int(changes[-1]) + 2 if changes.size else 1
    text = " ".join(f"{int(word):#x}" for word in words[: min(end, _MAX_SHOWN)])
    return text + (" …" if end > _MAX_SHOWN else "")
