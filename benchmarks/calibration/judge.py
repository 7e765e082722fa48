"""One case on both sides, compared; many cases in several processes.

Each process has a context of its own on the GPU, which a kernel that faults leaves unusable: it is
then reset, so that later cases run.

Invariant: a case that one side cannot run is reported, never left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from aotc.verify.check import ExecutionFault
from aotc.verify.emulator.context import Fault
from aotc.verify.emulator.errors import EmulationError
from aotc.verify.emulator.parse import parse_module
from aotc.verify.emulator.program import Module
from aotc.verify.emulator.run import emulate
from aotc.verify.emulator.tensor_argument import TensorArgument
from benchmarks.calibration.case import Argument, Array, Case, entry_name
from benchmarks.calibration.distance import Comparison, compare
from benchmarks.calibration.gpu import Gpu, describe_fault
from benchmarks.calibration.groups import GROUPS

CHUNK = 12


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Say what came of a case: an error, or a comparison for each of its outputs.

    `values` are both sides' first results, of probes alone; `operands` those of the examples.
    """

    group: str
    name: str
    bound: str
    comparisons: tuple[Comparison, ...] = ()
    operands: tuple[tuple[str, ...], ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    error: str = ""
    seconds: float = 0.0

    @property
    def is_within(self) -> bool:
        """Whether both sides ran and no result is out of its bound."""
        return not self.error and not any(found.broken for found in self.comparisons)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Name some cases of a group; without a folder of cubins the emulator runs alone."""

    group: str
    indices: tuple[int, ...]
    folder: Path | None


def chunks(folder: Path | None, names: Sequence[str] = ()) -> list[Chunk]:
    """Return all cases, or those of some groups, in pieces of a second's work or so."""
    found: list[Chunk] = []
    for group in GROUPS.values():
        if not names or group.name in names:
            indices = range(len(group.cases))
            found += [
                Chunk(group.name, tuple(indices[at : at + CHUNK]), folder)
                for at in range(0, len(indices), CHUNK)
            ]
    return found


def judge_chunk(chunk: Chunk) -> list[CaseResult]:
    """Run cases on both sides and compare."""
    return [judge(chunk.group, index, chunk.folder) for index in chunk.indices]


def judge(group: str, index: int, folder: Path | None) -> CaseResult:
    """Run a case in the emulator and on the GPU; without a folder twice in the emulator."""
    case = GROUPS[group].cases[index]
    bound = ", ".join(dict.fromkeys(str(output.bound) for output in case.outputs))
    start = time.perf_counter()
    before, emulated, actual = case.arguments(), case.arguments(), case.arguments()
    scales: list[Argument] = []
    try:
        _emulate(group, index, emulated, seed=0)
        if case.magnitudes is not None:
            scales = case.magnitudes(before)
            _emulate(group, index, scales, seed=0)
        if folder is None:
            _emulate(group, index, actual, seed=1)
        else:
            _launch(group, index, folder, actual)
    except (Fault, EmulationError) as error:
        return CaseResult(group, case.name, bound, error=f"emulator: {error}")
    except ExecutionFault as error:
        _gpu().reset()
        _cubin.cache_clear()
        return CaseResult(group, case.name, bound, error=f"GPU: {describe_fault(error)}")
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


def _emulate(group: str, index: int, args: list[Argument], seed: int) -> None:
    case = GROUPS[group].cases[index]
    emulate(
        _module(group),
        case.grid,
        args,
        kernel=entry_name(index),
        shared_bytes=case.shared_bytes,
        seed=seed,
    )


def _launch(group: str, index: int, folder: Path, args: list[Argument]) -> None:
    case = GROUPS[group].cases[index]
    kernel = _module(group).kernels[entry_name(index)]
    _gpu().launch(_cubin(group, folder), kernel, args, case.grid, case.shared_bytes)


@cache
def _module(group: str) -> Module:
    return parse_module(GROUPS[group].ptx)


@cache
def _gpu() -> Gpu:
    return Gpu()


@cache
def _cubin(group: str, folder: Path) -> object:
    return _gpu().load((folder / f"{group}.cubin").read_bytes())


def _operands(
    case: Case, before: Sequence[Argument], comparisons: Sequence[Comparison]
) -> tuple[tuple[str, ...], ...]:
    """Return the operands at the examples' places, where there is one array for each operand."""
    outputs = {output.index for output in case.outputs}
    inputs = [
        arg for at, arg in enumerate(before) if at not in outputs and isinstance(arg, np.ndarray)
    ]
    found: list[tuple[str, ...]] = []
    for comparison in comparisons:
        for place, _, _ in comparison.examples:
            # A packed result has several places for each operand.
            row = [arg.ravel()[place * arg.size // comparison.count] for arg in inputs]
            found.append(tuple(f"{int(word):#x}" for word in row))
    return tuple(found)


def _values(
    case: Case, emulated: Sequence[Argument], actual: Sequence[Argument]
) -> tuple[tuple[str, str], ...]:
    shown: list[tuple[str, str]] = []
    for output in case.outputs:
        sides = (array_of(side[output.index]).ravel() for side in (emulated, actual))
        shown.append(tuple(" ".join(f"{int(word):#x}" for word in side[:64]) for side in sides))
    return tuple(shown)
