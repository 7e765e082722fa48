"""Execute a launch in the PTX emulator.

Only bytes accessed by the interpreted kernel are accessible: a compiled kernel that reads or
writes one byte more, under an off-by-one mask, faults at that instruction.

Invariant: the arrays of the reference are not changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

import numpy as np

from aotc.ir.expression import evaluate, parse
from aotc.ir.params import GRID_SOURCES, SCRATCH_SOURCE
from aotc.verify.arrays import view
from aotc.verify.checks.check import Execution, ExecutionFault, Unsuited
from aotc.verify.checks.launch import Scalar
from aotc.verify.checks.launched import Launched, Launcher
from aotc.verify.checks.reference import Buffer, Bytes, Marks, Reference
from aotc.verify.emulator.arguments import ParameterBlock, PointerTable
from aotc.verify.emulator.async_copies.tensor_argument import PlacedTensor, TensorTable
from aotc.verify.emulator.async_copies.tensor_map import SIZE_BYTES, TensorMap, TensorMapError
from aotc.verify.emulator.errors import EmulationError, Fault
from aotc.verify.emulator.memory.global_memory import GlobalMemory, are_of_one_buffer
from aotc.verify.emulator.memory.stale_loads import StaleLoads
from aotc.verify.emulator.memory_access.granules import orders_ctas
from aotc.verify.emulator.report import render_fault
from aotc.verify.emulator.run import DEFAULT_MAX_MEMORY_BYTES, DEFAULT_MAX_STEPS, Argument, emulate
from aotc.verify.emulator.text.program import Module
from aotc.verify.interpreter.persistent_grid import num_persistent_ctas

_MAX_MARKED_BYTES = 1 << 26
_MAX_STALE_RUNS = 8  # each run replaces the racing loads of the one before
_LOAD = re.compile(r"(@!?%\w+\s+)?ld\.")
_ARGUMENT = re.compile(r"\bargument (\d+)\b")


@dataclass(frozen=True, slots=True)
class Param:
    """The origin of one parameter of the compiled function: an argument, or a `source` within one.

    A parameter without an argument has one of `LAUNCH_SOURCES` in both fields, such as
    "grid[0]". With a `box` it is the argument's tensor map; `shape` and `strides` are
    expressions over the arguments, in elements. The innermost axis is dense and has no stride.
    """

    argument: str
    source: str = ""
    box: tuple[int, ...] = ()
    swizzle_bytes: int = 0
    fill_nan: bool = False
    shape: tuple[str, ...] = ()
    strides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """An argument's address, or a map of the tensor there, as a parameter.

    A map has a `box`; `shape` and `strides` are in elements, outermost first, the last stride
    1.
    """

    argument: str
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    box: tuple[int, ...] = ()
    swizzle_bytes: int = 0
    fill_nan: bool = False


class _Buffers:
    """The buffers of a launch in the emulator's memory."""

    def __init__(self, reference: Reference) -> None:
        """Raises: Unsuited if there is not enough memory."""
        self._reference = reference
        self.readable: dict[int, Marks] = {}
        self.writable: dict[int, Marks] = {}
        self._memory: GlobalMemory | None = None
        try:
            self._owners = {n: b.spread(b.initial) for n, b in reference.buffers.items()}
        except MemoryError as error:
            raise Unsuited(f"no memory for rows that are far apart: {error}") from None

    def place(self, index: int, name: str, tensor: Place) -> Argument:
        """Return the argument number `index` of the function, a pointer or a map.

        Raises: Unsuited.
        """
        buffer = self._buffer(name)
        if self._is_used_before(buffer) or buffer.stored_maps:
            does = "stores tensor maps to" if buffer.stored_maps else "steps back from"
            reason = f"the kernel {does} {name}, which needs the launcher to be emulated"
            raise Unsuited(reason)
        content, readable, writable = self._opened(buffer)
        if buffer.pointees:
            return self._table(buffer, content)
        if readable is not None and writable is not None:
            self.readable[index], self.writable[index] = readable, writable
        if not tensor.box:
            return content
        return PlacedTensor(
            content,
            buffer.pointee.name,
            tensor.shape,
            tensor.strides,
            tensor.box,
            tensor.swizzle_bytes,
            fill_nan=tensor.fill_nan,
        )

    def addresses(self, memory: GlobalMemory) -> dict[str, int]:
        """Place the buffers in memory; return the address of each argument in a buffer.

        Raises: Unsuited.
        """
        self._memory = memory
        placed: dict[str, int] = {}
        addresses: dict[str, int] = {}
        for name in self._reference.order:
            if self._reference.buffer(name) is None:
                continue
            buffer = self._buffer(name)
            if buffer.name not in placed:
                before_bytes = buffer.start_bytes if self._is_used_before(buffer) else 0
                content, *masks = self._opened(buffer, before_bytes)
                if buffer.pointees:
                    placed[buffer.name] = self._table(buffer, content).place(memory, buffer.name)
                else:
                    placed[buffer.name] = memory.add(
                        buffer.name, content, *masks, pointer_bytes=before_bytes
                    )
            addresses[name] = placed[buffer.name]
        return addresses

    def _buffer(self, name: str) -> Buffer:
        buffer = self._reference.buffer(name)
        assert buffer is not None
        return buffer

    @staticmethod
    def _is_used_before(buffer: Buffer) -> bool:
        """Return whether bytes before the pointer are used, such as the rest of a 4-byte word."""
        start = buffer.start_bytes
        marks = view(buffer.readable | buffer.writable, np.uint8)
        return any(part[: max(0, start - offset)].any() for offset, part in buffer.parts(marks))

    def _table(self, buffer: Buffer, content: Bytes) -> PointerTable | TensorTable:
        """Return the table of addresses or tensor maps in a buffer."""
        targets = [self._opened(self._reference.buffers[name]) for name in buffer.pointees]
        masks = tuple((readable, writable) for _, readable, writable in targets)
        if buffer.maps is not None:
            tensors = (replace(buffer.maps, array=content) for content, *_ in targets)
            return TensorTable(tuple(tensors), masks)
        count = max(1, content.size // 8)
        return PointerTable(count, tuple(content for content, *_ in targets), masks)

    def _opened(
        self, buffer: Buffer, before_bytes: int = 0
    ) -> tuple[Bytes, Marks | None, Marks | None]:
        """Return a buffer from `before_bytes` before its pointer, with its access masks."""
        start = buffer.start_bytes - before_bytes
        content = self._owners[buffer.name][start:]
        if buffer.size_bytes > _MAX_MARKED_BYTES:
            # Then the emulator catches accesses outside of the buffer, not between rows.
            return content, None, None
        readable, writable = (
            view(buffer.spread(view(marks, np.uint8)), np.bool_)[start:]
            for marks in (buffer.readable, buffer.writable)
        )
        return content, readable, writable

    def left(self) -> dict[str, Bytes]:
        """Return the contents of the buffers, with stored maps relocated.

        The maps get the reference's addresses.
        """
        left: dict[str, Bytes] = {}
        for name, buffer in self._reference.buffers.items():
            whole = self._owners[name]
            for start in buffer.stored_maps:
                slot = whole[start : start + SIZE_BYTES]
                slot[:] = np.frombuffer(self._as_stored(slot.tobytes()), np.uint8)
            left[name] = buffer.collect(whole)
        return left

    def _as_stored(self, encoded: bytes) -> bytes:
        """Return a tensor map with its address relocated to the reference's buffer."""
        try:
            tensor = TensorMap.from_bytes(encoded)
        except TensorMapError:
            return encoded
        assert self._memory is not None
        for name, buffer in self._reference.buffers.items():
            base = self._memory.address_of(self._owners[name])
            if base is not None and are_of_one_buffer(base, tensor.address):
                return replace(tensor, address=tensor.address - base + buffer.address).pack()
        return encoded


@dataclass(frozen=True, slots=True)
class Emulation:
    """A kernel's PTX with its launch parameters; call it to execute a reference's launch.

    `num_ctas` CTAs make up a program. With `seed` 0, warps run in the order the launch asks
    for, else in random order: in lockstep, a missing barrier between accesses to global memory
    does not show. Reports may quote the files of `sources`. `params` are the function's
    parameters, unless they are the launch's arguments one by one. `fixed` are the arguments
    with compiled-in values. A `launcher` computes parameters and dimensions instead. A program
    has `scratch_bytes` of scratch memory. The CTAs of a `cooperative` kernel wait for each
    other.
    """

    module: Module
    symbol: str
    shared_bytes: int
    num_ctas: int = 1
    sources: tuple[Path, ...] = ()
    seed: int = 0
    max_steps: int = DEFAULT_MAX_STEPS
    max_memory_bytes: int = DEFAULT_MAX_MEMORY_BYTES
    params: tuple[Param, ...] = ()
    fixed: Mapping[str, int] = field(default_factory=dict[str, int])
    launcher: Launcher | None = None
    scratch_bytes: int = 0
    cooperative: bool = False

    def __call__(self, reference: Reference) -> Execution:
        """Return the buffers after the kernel.

        Raises:
          - ExecutionFault: it did something illegal.
          - EmulationError: the PTX cannot be emulated.
        """
        try:
            return self._emulated(reference, None)
        except ExecutionFault as fault:
            if not fault.is_race:
                raise
            execution = self._without_stale_loads(reference)
            if execution is None:
                raise
            return replace(execution, forgiven=str(fault))

    def together(self, references: Sequence[Reference]) -> list[Execution | None]:
        """Execute the launches that fit in one batch; return None for the others.

        Warps run the same instructions at most launches, and the emulator's cost of an
        instruction hardly depends on the number of launches. If the kernel faults at any
        launch, return None for all: the caller then executes them one by one, for a precise
        report.
        """
        executions: list[Execution | None] = [None] * len(references)
        kernel = self.module.kernels.get(self.symbol)
        # Clusters synchronizing through memory need a batch of their own.
        if kernel is None or self.seed or self.cooperative or orders_ctas(kernel):
            return executions
        memory = GlobalMemory()
        plans: dict[int, tuple[_Buffers, Launched]] = {}
        try:
            for index, reference in enumerate(references):
                launch = reference.launch
                # Aliased arguments may race legitimately, so such launches run alone.
                if launch.in_step and not (launch.programs or launch.is_sparse or launch.aliases):
                    buffers = _Buffers(reference)
                    launched = self._planned(reference, buffers, memory)
                    if launched is not None:
                        plans[index] = buffers, launched
            kinds = {(plan.cta_threads, plan.shared_bytes) for _, plan in plans.values()}
            if len(plans) < 2 or len(kinds) > 1:
                return executions
            grid, *more_grids = (plan.grid for _, plan in plans.values())
            ((cta_threads, shared_bytes),) = kinds
            params = tuple(plan.block_of(kernel) for _, plan in plans.values())
            emulation = emulate(
                self.module,
                grid,
                ParameterBlock(params, memory),
                kernel=self.symbol,
                cta_threads=cta_threads,
                shared_bytes=shared_bytes,
                max_steps=self.max_steps,
                max_memory_bytes=self.max_memory_bytes,
                approximate=True,
                more_grids=more_grids,
            )
        except (Fault, EmulationError, ExecutionFault, Unsuited, ValueError):
            return executions
        steps = emulation.lane_instructions
        for index, (buffers, _) in plans.items():
            executions[index] = Execution(buffers.left(), steps)  # counted once
            steps = 0
        return executions

    def _without_stale_loads(self, reference: Reference) -> Execution | None:
        """Run with random bits for loads racing with stores of their CTA.

        Return None at another fault, or if such loads keep appearing.
        """
        stale = StaleLoads(reference.launch.seed)
        for _ in range(_MAX_STALE_RUNS):
            try:
                execution = self._emulated(reference, stale)
            except ExecutionFault:
                return None
            if not stale.take():
                return execution
        return None

    def _emulated(self, reference: Reference, stale: StaleLoads | None) -> Execution:
        buffers = _Buffers(reference)
        programs = (*reference.launch.grid, 1, 1)[:3]
        if self.launcher is not None:
            return self._launched(reference, buffers, programs, stale)
        x, y, z = self._clusters(programs)
        args = [
            buffers.place(index, value.argument, value) if isinstance(value, Place) else value
            for index, value in enumerate(self.passed(reference))
        ]
        grid = (x * self.num_ctas, y, z)
        return self._run(reference, buffers, grid, args, stale, shared_bytes=self.shared_bytes)

    def _run(
        self,
        reference: Reference,
        buffers: _Buffers,
        grid: tuple[int, ...],
        args: Sequence[Argument] | ParameterBlock,
        stale: StaleLoads | None,
        *,
        shared_bytes: int,
        cta_threads: tuple[int, ...] | None = None,
    ) -> Execution:
        try:
            emulation = emulate(
                self.module,
                grid,
                args,
                kernel=self.symbol,
                cta_threads=cta_threads,
                shared_bytes=shared_bytes,
                seed=self.seed or (0 if reference.launch.in_step else reference.launch.seed),
                max_steps=self.max_steps,
                max_memory_bytes=self.max_memory_bytes,
                readable=buffers.readable,
                writable=buffers.writable,
                approximate=True,
                clusters=() if self.cooperative else reference.launch.programs,
                together=self.cooperative,
                stale=stale,
            )
        except Fault as fault:
            report = render_fault(fault, sources=self.sources)
            verb = "reads" if _LOAD.match(fault.text) is not None else "writes"
            raise ExecutionFault(
                self._named(report, reference),
                beyond=verb if fault.kind == "bounds" else "",
                is_race=fault.kind == "race",
            ) from fault
        return Execution(buffers.left(), emulation.lane_instructions)

    def _launched(
        self,
        reference: Reference,
        buffers: _Buffers,
        programs: tuple[int, ...],
        stale: StaleLoads | None,
    ) -> Execution:
        """Run the runtime's launch for the reference's arguments."""
        memory = GlobalMemory()
        launched = self._planned(reference, buffers, memory)
        if launched is None:
            if all(programs):
                raise ExecutionFault(f"the launcher launches nothing for {programs} programs")
            return Execution(buffers.left(), 0)
        kernel = self.module.kernels.get(self.symbol)
        # For an unknown symbol the emulator's error lists the kernels.
        params = launched.params if kernel is None else launched.block_of(kernel)
        return self._run(
            reference,
            buffers,
            launched.grid,
            ParameterBlock((params,), memory),
            stale,
            shared_bytes=launched.shared_bytes,
            cta_threads=launched.cta_threads,
        )

    def _planned(
        self, reference: Reference, buffers: _Buffers, memory: GlobalMemory
    ) -> Launched | None:
        """Return the runtime's launch for buffers in memory; None for an empty launch.

        Raises: ExecutionFault, Unsuited.
        """
        if self.launcher is None:
            return None
        programs = (*reference.launch.grid, 1, 1)[:3]
        addresses = buffers.addresses(memory)
        if self.scratch_bytes:
            addresses[SCRATCH_SOURCE] = memory.add("scratch memory", self._scratch(programs))
        at_once = prod(programs) if self.cooperative else num_persistent_ctas(programs)
        return self.launcher(reference, addresses, max(1, at_once))

    def passed(self, reference: Reference) -> list[Place | Scalar | Bytes]:
        """Return the launcher's argument for each parameter of the function.

        This mirrors the launcher's own evaluation of a launch's arguments and its tensor
        descriptions. With a `launcher` it is not used.
        """
        programs = (*reference.launch.grid, 1, 1)[:3]
        counts = zip(GRID_SOURCES, programs, strict=True)
        values = {**self.fixed, **_integers(reference), **dict(counts)}
        arguments: list[Place | Scalar | Bytes] = []
        for param in self.params or _plain(reference):
            name = param.argument
            if param.source == SCRATCH_SOURCE:
                arguments.append(self._scratch(programs))
            elif param.source in values:
                arguments.append(values[param.source])
            elif reference.buffer(name) is None:
                arguments.append(reference.launch.scalars[name])
            else:
                shape, strides = (
                    tuple(evaluate(parse(text), values) for text in texts)
                    for texts in (param.shape, param.strides)
                )
                tensor = (name, shape, (*strides, 1) if param.box else ())
                arguments.append(Place(*tensor, param.box, param.swizzle_bytes, param.fill_nan))
        return arguments

    def _scratch(self, programs: tuple[int, ...]) -> Bytes:
        """Return the scratch memory of a launch, filled with noise."""
        return np.full(self.scratch_bytes * prod(programs), 0xA5, np.uint8)

    def _clusters(self, programs: tuple[int, ...]) -> tuple[int, ...]:
        """Return the grid, in clusters, for so many programs."""
        loops = any(param.source in GRID_SOURCES for param in self.params)
        return (num_persistent_ctas(programs), 1, 1) if loops else programs

    def _named(self, text: str, reference: Reference) -> str:
        """Replace argument numbers in an emulator's message by names, which PTX lacks."""
        params = self.params or _plain(reference)
        return _ARGUMENT.sub(lambda match: params[int(match[1])].argument, text)


def _plain(reference: Reference) -> tuple[Param, ...]:
    """Return the parameters for a launch's arguments one by one."""
    return tuple(Param(name) for name in reference.order)


def _integers(reference: Reference) -> dict[str, int]:
    """Return the values expressions may name: integers, "x.shape[0]", "x.strides[1]"."""
    values = {n: v for n, v in reference.launch.scalars.items() if isinstance(v, int)}
    for name, buffer in reference.buffers.items():
        for kind, sizes in (("shape", buffer.shape), ("strides", buffer.strides)):
            values.update((f"{name}.{kind}[{axis}]", size) for axis, size in enumerate(sizes))
    return values
