"""Random programs of `tests/fuzz`, compiled for the GPU and launched there.

The generator draws a target for each program; here all are compiled for the GPU's own. Arrays
end with the last accessible element, and lie between guard zones.
"""

# NumPy's own stubs leave overloads of ndarray's methods partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from aotc.backend import assemble as assemble_ptx
from aotc.backend import emit_ptx, find_hazards, lower_kernel
from aotc.ir.core import Kernel
from aotc.ir.diagnostics import CompileError, IRError
from aotc.ir.dialects.descriptor import TENSOR_ALIGNMENT_BYTES
from aotc.ir.types import SCALARS
from aotc.limits import CompileLimits
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.schedule.shared_memory.check_resources import check_resources
from aotc.target import TARGETS
from aotc.verify.emulator.async_copies.tensor_argument import PlacedTensor
from aotc.verify.interpreter.run import run
from benchmarks.soak import risk
from benchmarks.soak.case import Try
from benchmarks.soak.journal import Outcome
from benchmarks.soak.limits import time_limit
from benchmarks.soak.variants import TARGET, Settings
from tests.fuzz import launch
from tests.fuzz.arguments import Array, Scalar
from tests.fuzz.check import differences, keeps_promises
from tests.fuzz.long_programs import FIRST_LONG_SEED, of_seed
from tests.fuzz.programs import Program

_GUARD_BYTES = 1024  # a multiple of every tensor alignment
_GUARD = 0xA5

# Argument for a parameter: a number, an array by its name, scratch memory, or a map of the named
# array.
Passed: TypeAlias = "int | str | Array | tuple[str, PlacedTensor]"


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a parameter."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Entry:
    """Launch properties of a compiled kernel."""

    name: str
    params: tuple[Size, ...]
    cta_threads: tuple[int, int, int]
    shared_bytes: int


class ProgramDevice(Protocol):
    """A device for launches of programs."""

    def loaded(
        self, case: ProgramCase
    ) -> AbstractContextManager[Callable[[Sequence[Any]], None]]: ...


@dataclass(frozen=True, slots=True)
class ProgramCase:
    """A compiled program, and its arrays' expected contents after a launch."""

    name: str
    command: str
    program: Program
    entry: Entry
    cubin: bytes
    ptx: str
    grid: tuple[int, ...]
    passed: tuple[Passed, ...]
    expected: Mapping[str, Array]
    remarks: tuple[str, ...]
    repeats: int
    is_risky: bool

    @contextmanager
    def opened(self, device: ProgramDevice) -> Iterator[Iterator[tuple[str, Try]]]:
        """Yield the launch, as often as it is repeated."""
        with device.loaded(self) as execute:
            yield ((str(self.grid), self._attempt(execute)) for _ in range(self.repeats))

    def _attempt(self, execute: Callable[[Sequence[Any]], None]) -> Try:
        def attempt() -> str:
            arguments = {
                name: _guarded(value) if isinstance(value, np.ndarray) else value
                for name, value in self.program.make().items()
            }
            execute([_argument(param, arguments) for param in self.passed])
            return self._problem(arguments)

        return attempt

    def _problem(self, arguments: Mapping[str, Array | int]) -> str:
        """Return the error in a launch's results, "" if there is none."""
        for argument in self.program.arguments:
            array = arguments[argument.name]
            if isinstance(argument, Scalar):
                continue
            assert isinstance(array, np.ndarray)
            actual, is_whole = _unguarded(array)
            if not is_whole:
                return f"writes beyond {argument.name}"
            want = self.expected[argument.name]
            wrong = differences(argument, want, actual)
            if wrong.size:
                index = int(wrong[0])
                return (
                    f"{argument.name}[{index}] is {actual[index]!r}, expected {want[index]!r}; "
                    f"{wrong.size} of {want.size} differ"
                )
        return ""


# ---- arrays -----------------------------------------------------------------------------------


def _owner(array: Array) -> Array:
    owner = array if array.base is None else array.base
    assert isinstance(owner, np.ndarray)
    return owner


def _guarded(array: Array) -> Array:
    """Return a copy with the array's whole base memory between guard zones."""
    owner = _owner(array)
    content = owner.reshape(-1).view(np.uint8)
    room = np.full(content.size + 2 * _GUARD_BYTES, _GUARD, np.uint8)
    room[_GUARD_BYTES : _GUARD_BYTES + content.size] = content
    offset = array.ctypes.data - owner.ctypes.data + _GUARD_BYTES
    return np.ndarray(array.shape, array.dtype, room, offset, array.strides)


def _unguarded(array: Array) -> tuple[Array, bool]:
    """Return the memory between the guard zones, and whether these are intact."""
    room = _owner(array)
    guards = np.concatenate([room[:_GUARD_BYTES], room[-_GUARD_BYTES:]])
    return room[_GUARD_BYTES:-_GUARD_BYTES].view(array.dtype), bool((guards == _GUARD).all())


def _argument(passed: Passed, arguments: Mapping[str, Array | int]) -> Any:
    if isinstance(passed, int):
        return passed
    if isinstance(passed, str):
        return arguments[passed]
    if isinstance(passed, np.ndarray):
        return passed.copy()
    name, tensor = passed
    array = arguments[name]
    assert isinstance(array, np.ndarray)
    return replace(tensor, array=array)


# ---- making ready -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepared:
    """A worker's output: cases to launch, and outcomes of failed preparations."""

    cases: list[ProgramCase]
    outcomes: list[Outcome]


def name_of(seed: int) -> str:
    """Return the case name of a seed."""
    return f"program {seed}"


def is_long(name: str) -> bool:
    """Return whether the case of this name is a long program."""
    kind, _, seed = name.partition(" ")
    return kind == "program" and seed.isdecimal() and int(seed) >= FIRST_LONG_SEED


def prepare(seeds: Sequence[int], settings: Settings, phase: str) -> Prepared:
    """Make the programs of some seeds, compile and interpret them."""
    prepared = Prepared([], [])
    for seed in seeds:
        name, command = name_of(seed), f"python -m benchmarks.soak programs --seeds {seed}"
        try:
            with time_limit(settings.limit_seconds):
                prepared.cases.append(_case(seed, name, command, settings))
        except CompileError as error:
            prepared.outcomes.append(Outcome(name, phase, "refused", error.render()))
        except Exception as error:  # noqa: BLE001 - a bug of any type is a finding
            detail = f"making it ready: {type(error).__name__}: {error}"
            command = f"python tests/fuzz/run.py --only {seed}"
            prepared.outcomes.append(Outcome(name, phase, "error", detail, command))
    return prepared


def _case(seed: int, name: str, command: str, settings: Settings) -> ProgramCase:
    """Compile a program, and interpret it. Raises: CompileError if no launcher would take it."""
    program = replace(of_seed(seed), target=TARGET)
    target = TARGETS[TARGET]
    tile_ir = program.kernel()
    expected = program.make()
    kernel, remarks = _scheduled(program, tile_ir, expected)
    owns_sm = not check_resources(kernel, target, CompileLimits())
    passed = launch.parameters(kernel, expected, program.grid)
    _check_rows(kernel, passed)
    lowered = lower_kernel(kernel, target, owns_sm=owns_sm)
    ptx = emit_ptx(lowered.llvm_ir, target)
    for hazard in find_hazards(ptx):
        raise IRError(str(hazard))
    assembly = None if settings.emulates else assemble_ptx(ptx, target)
    if assembly is not None and assembly.crash:
        raise IRError(f"assembled with {assembly.level} alone: {assembly.crash}")
    if settings.interprets:
        run(tile_ir, program.grid, launch.arguments(tile_ir, expected))
    sizes = tuple(Size(slot.size_bytes) for slot in lowered.params)
    names = {id(value): key for key, value in expected.items() if isinstance(value, np.ndarray)}
    return ProgramCase(
        name,
        command,
        program,
        Entry(kernel.name, sizes, (kernel.num_threads, 1, 1), kernel.shared_bytes),
        assembly.cubin if assembly is not None else b"",
        ptx if settings.emulates else "",
        launch.ctas(kernel, program.grid),
        tuple(_passed(param, names) for param in passed),
        {name: _whole(value) for name, value in expected.items() if isinstance(value, np.ndarray)},
        remarks,
        settings.repeats,
        risk.is_risky(ptx),
    )


def _check_rows(kernel: Kernel, passed: Sequence[Any]) -> None:
    """Refuse tensors no launcher takes: rows must be multiples of 16 bytes.

    Raises: CompileError.
    """
    for info, value in zip(kernel.params, passed, strict=True):
        if info.tensor is None and isinstance(value, PlacedTensor):
            row_bytes = value.shape[-1] * SCALARS[value.element].size_bytes
            if row_bytes % TENSOR_ALIGNMENT_BYTES:
                raise CompileError(f"rows of {row_bytes} bytes, which launchers refuse")


def _is_allowed(kernel: Kernel, program: Program, arguments: launch.Given) -> bool:
    if kernel.scratch_bytes and not keeps_promises(program):
        return False
    return launch.is_allowed(kernel, arguments)


def _scheduled(
    program: Program, tile_ir: Kernel, arguments: launch.Given
) -> tuple[Kernel, tuple[str, ...]]:
    """Return the gpu IR a launcher would choose for the program's launch."""
    for map_pointers in dict.fromkeys((program.map_pointers, False)):
        schedule = Schedule(TARGETS[TARGET], program.config, map_pointers=map_pointers)
        kernel = schedule_kernel(tile_ir, schedule)
        if not map_pointers or _is_allowed(kernel, program, arguments):
            return kernel, tuple(schedule.remarks)
    raise AssertionError


def _passed(value: Any, names: Mapping[int, str]) -> Passed:
    if isinstance(value, PlacedTensor):
        return names[id(value.array)], replace(value, array=np.empty(0))
    if isinstance(value, np.ndarray):
        return names.get(id(value), value)
    return int(value)


def _whole(array: Array) -> Array:
    return _owner(array).reshape(-1).view(array.dtype).copy()
