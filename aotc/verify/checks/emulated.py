"""Execute a launch in the PTX emulator.

The buffers are exactly what the interpreted kernel touched, byte by byte: a compiled kernel that
reads or writes one byte more, under a mask that is off by one, is stopped at that instruction.

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
_MAX_STALE_RUNS = 8  # each knows the loads that raced in the one before
_LOAD = re.compile(r"(@!?%\w+\s+)?ld\.")
_ARGUMENT = re.compile(r"\bargument (\d+)\b")


@dataclass(frozen=True, slots=True)
class Param:
    """Say what a parameter of the function is: the argument, or what `source` says of it.

    What comes of no argument has one of `LAUNCH_SOURCES` for both, such as "grid[0]".
    With a `box` it is a map of the tensor at the argument, whose `shape` and `strides` are
    expressions over the arguments, in elements; the innermost axis is dense and has no stride.
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
    """Say that a parameter is the address of an argument's memory, or a map of a tensor there.

    A map has a `box`; `shape` and `strides` are in elements, outermost first, the last stride 1.
    """

    argument: str
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    box: tuple[int, ...] = ()
    swizzle_bytes: int = 0
    fill_nan: bool = False


class _Held:
    """Hold what lies in the buffers of a launch while it runs."""

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

    def place(self, index: int, name: str, place: Place) -> Argument:
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
        if not place.box:
            return content
        return PlacedTensor(
            content,
            buffer.pointee.name,
            place.shape,
            place.strides,
            place.box,
            place.swizzle_bytes,
            fill_nan=place.fill_nan,
        )

    def addresses(self, memory: GlobalMemory) -> dict[str, int]:
        """Place the buffers in memory; return the address of each argument that is in one.

        Raises: Unsuited.
        """
        self._memory = memory
        placed: dict[str, int] = {}
        found: dict[str, int] = {}
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
            found[name] = placed[buffer.name]
        return found

    def _buffer(self, name: str) -> Buffer:
        buffer = self._reference.buffer(name)
        assert buffer is not None
        return buffer

    @staticmethod
    def _is_used_before(buffer: Buffer) -> bool:
        """Return whether something before the pointer is used, such as the rest of a 4-byte word."""
        start = buffer.start_bytes
        marks = view(buffer.readable | buffer.writable, np.uint8)
        return any(part[: max(0, start - at)].any() for at, part in buffer.parts(marks))

    def _table(self, buffer: Buffer, content: Bytes) -> PointerTable | TensorTable:
        """Return the addresses, or the tensor maps, that lie in a buffer."""
        others = [self._opened(self._reference.buffers[each]) for each in buffer.pointees]
        masks = tuple((readable, writable) for _, readable, writable in others)
        if buffer.maps is not None:
            tensors = (replace(buffer.maps, array=content) for content, *_ in others)
            return TensorTable(tuple(tensors), masks)
        count = max(1, content.size // 8)
        return PointerTable(count, tuple(content for content, *_ in others), masks)

    def _opened(
        self, buffer: Buffer, before_bytes: int = 0
    ) -> tuple[Bytes, Marks | None, Marks | None]:
        """Return a buffer from `before_bytes` before its pointer, and what may be used of it."""
        start = buffer.start_bytes - before_bytes
        content = self._owners[buffer.name][start:]
        if buffer.size_bytes > _MAX_MARKED_BYTES:
            # The emulator then sees what is outside of a buffer, not what is between rows.
            return content, None, None
        readable, writable = (
            view(buffer.spread(view(marks, np.uint8)), np.bool_)[start:]
            for marks in (buffer.readable, buffer.writable)
        )
        return content, readable, writable

    def left(self) -> dict[str, Bytes]:
        """Return what the buffers hold now, in maps that were stored with the reference's addresses."""
        left: dict[str, Bytes] = {}
        for name, buffer in self._reference.buffers.items():
            whole = self._owners[name]
            for start in buffer.stored_maps:
                slot = whole[start : start + SIZE_BYTES]
                slot[:] = np.frombuffer(self._as_stored(slot.tobytes()), np.uint8)
            left[name] = buffer.collect(whole)
        return left

    def _as_stored(self, encoded: bytes) -> bytes:
        """Return a map of a tensor in a buffer here as the map of what the reference has there."""
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
    """Hold a kernel's PTX and how it is run; call it with a reference to execute its launch.

    `num_ctas` CTAs make up a program. `seed` 0 runs warps in the order that the launch asks for,
    any other at random: in step a missing barrier between accesses to global memory does not show.
    `sources` are files that reports may quote. `params` are the function's, if they are not the
    arguments of a launch one by one; `fixed` are the arguments whose value is compiled in. With a
    `launcher`, it says what the parameters and the dimensions are. A program has `scratch_bytes`.
    CTAs of one that is `cooperative` wait for each other.
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
        """Return what the kernel leaves in the buffers.

        Raises:
            ExecutionFault: it did what it may not.
            EmulationError: the PTX cannot be emulated.
        """
        try:
            return self._emulated(reference, None)
        except ExecutionFault as fault:
            if not fault.is_race:
                raise
            done = self._without_stale_loads(reference)
            if done is None:
                raise
            return replace(done, forgiven=str(fault))

    def together(self, references: Sequence[Reference]) -> list[Execution | None]:
        """Return what the kernel leaves at each launch that can run beside the others, in one batch.

        Warps run the same instructions at most launches, and each costs as much for one launch as for
        all. None for the others, and for all of them where the kernel does what it may not at any:
        each is to be executed alone then, which says what it did.
        """
        found: list[Execution | None] = [None] * len(references)
        kernel = self.module.kernels.get(self.symbol)
        # Clusters that synchronise through memory are to be in one batch.
        if kernel is None or self.seed or self.cooperative or orders_ctas(kernel):
            return found
        memory = GlobalMemory()
        planned: dict[int, tuple[_Held, Launched]] = {}
        try:
            for at, reference in enumerate(references):
                launch = reference.launch
                # Threads may well race where arguments are one memory, which is looked into alone.
                if launch.in_step and not (launch.programs or launch.is_sparse or launch.aliases):
                    held = _Held(reference)
                    launched = self._planned(reference, held, memory)
                    if launched is not None:
                        planned[at] = held, launched
            kinds = {(each.cta_threads, each.shared_bytes) for _, each in planned.values()}
            if len(planned) < 2 or len(kinds) > 1:
                return found
            grid, *more_grids = (each.grid for _, each in planned.values())
            ((cta_threads, shared_bytes),) = kinds
            params = tuple(each.block_of(kernel) for _, each in planned.values())
            done = emulate(
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
            return found
        steps = done.lane_instructions
        for at, (held, _) in planned.items():
            found[at] = Execution(held.left(), steps)  # counted once
            steps = 0
        return found

    def _without_stale_loads(self, reference: Reference) -> Execution | None:
        """Run with random bits in place of what loads read that race with stores of their CTA.

        None if there is another fault, or there is no end of such loads.
        """
        stale = StaleLoads(reference.launch.seed)
        for _ in range(_MAX_STALE_RUNS):
            try:
                done = self._emulated(reference, stale)
            except ExecutionFault:
                return None
            if not stale.take():
                return done
        return None

    def _emulated(self, reference: Reference, stale: StaleLoads | None) -> Execution:
        held = _Held(reference)
        programs = (*reference.launch.grid, 1, 1)[:3]
        if self.launcher is not None:
            return self._launched(reference, held, programs, stale)
        x, y, z = self._clusters(programs)
        args = [
            held.place(index, value.argument, value) if isinstance(value, Place) else value
            for index, value in enumerate(self.passed(reference))
        ]
        grid = (x * self.num_ctas, y, z)
        return self._run(reference, held, grid, args, stale, shared_bytes=self.shared_bytes)

    def _run(
        self,
        reference: Reference,
        held: _Held,
        grid: tuple[int, ...],
        args: Sequence[Argument] | ParameterBlock,
        stale: StaleLoads | None,
        *,
        shared_bytes: int,
        cta_threads: tuple[int, ...] | None = None,
    ) -> Execution:
        try:
            done = emulate(
                self.module,
                grid,
                args,
                kernel=self.symbol,
                cta_threads=cta_threads,
                shared_bytes=shared_bytes,
                seed=self.seed or (0 if reference.launch.in_step else reference.launch.seed),
                max_steps=self.max_steps,
                max_memory_bytes=self.max_memory_bytes,
                readable=held.readable,
                writable=held.writable,
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
        return Execution(held.left(), done.lane_instructions)

    def _launched(
        self,
        reference: Reference,
        held: _Held,
        programs: tuple[int, ...],
        stale: StaleLoads | None,
    ) -> Execution:
        """Run the launch that the runtime makes of the reference's arguments."""
        memory = GlobalMemory()
        launched = self._planned(reference, held, memory)
        if launched is None:
            if all(programs):
                raise ExecutionFault(f"the launcher launches nothing for {programs} programs")
            return Execution(held.left(), 0)
        kernel = self.module.kernels.get(self.symbol)
        # Without it the emulator says what there is.
        params = launched.params if kernel is None else launched.block_of(kernel)
        return self._run(
            reference,
            held,
            launched.grid,
            ParameterBlock((params,), memory),
            stale,
            shared_bytes=launched.shared_bytes,
            cta_threads=launched.cta_threads,
        )

    def _planned(self, reference: Reference, held: _Held, memory: GlobalMemory) -> Launched | None:
        """Return the launch that the runtime makes, of buffers in memory; None where it makes none.

        Raises: ExecutionFault, Unsuited.
        """
        if self.launcher is None:
            return None
        programs = (*reference.launch.grid, 1, 1)[:3]
        addresses = held.addresses(memory)
        if self.scratch_bytes:
            addresses[SCRATCH_SOURCE] = memory.add("scratch memory", self._scratch(programs))
        at_once = prod(programs) if self.cooperative else num_persistent_ctas(programs)
        return self.launcher(reference, addresses, max(1, at_once))

    def passed(self, reference: Reference) -> list[Place | Scalar | Bytes]:
        """Return what the launcher passes for each parameter of the function.

        The mirror of the launcher's own records: what it computes of a launch's arguments, and how
        it would describe tensors. Whoever has the launcher itself evaluate them replaces this alone.
        """
        programs = (*reference.launch.grid, 1, 1)[:3]
        counts = zip(GRID_SOURCES, programs, strict=True)
        values = {**self.fixed, **_integers(reference), **dict(counts)}
        found: list[Place | Scalar | Bytes] = []
        for param in self.params or _plain(reference):
            name = param.argument
            if param.source == SCRATCH_SOURCE:
                found.append(self._scratch(programs))
            elif param.source in values:
                found.append(values[param.source])
            elif reference.buffer(name) is None:
                found.append(reference.launch.scalars[name])
            else:
                shape, strides = (
                    tuple(evaluate(parse(text), values) for text in texts)
                    for texts in (param.shape, param.strides)
                )
                place = (name, shape, (*strides, 1) if param.box else ())
                found.append(Place(*place, param.box, param.swizzle_bytes, param.fill_nan))
        return found

    def _scratch(self, programs: tuple[int, ...]) -> Bytes:
        """Return the scratch memory of a launch, with noise in it."""
        return np.full(self.scratch_bytes * prod(programs), 0xA5, np.uint8)

    def _clusters(self, programs: tuple[int, ...]) -> tuple[int, ...]:
        """Return the grid of clusters that run so many programs."""
        loops = any(param.source in GRID_SOURCES for param in self.params)
        return (num_persistent_ctas(programs), 1, 1) if loops else programs

    def _named(self, text: str, reference: Reference) -> str:
        """Return a message of the emulator's with the names of arguments, which PTX has not."""
        params = self.params or _plain(reference)
        return _ARGUMENT.sub(lambda match: params[int(match[1])].argument, text)


def _plain(reference: Reference) -> tuple[Param, ...]:
    """Return the parameters of a function that takes the arguments as they are."""
    return tuple(Param(name) for name in reference.order)


def _integers(reference: Reference) -> dict[str, int]:
    """Return what expressions may name: integer arguments, "x.shape[0]", "x.strides[1]"."""
    values = {n: v for n, v in reference.launch.scalars.items() if isinstance(v, int)}
    for name, buffer in reference.buffers.items():
        for kind, sizes in (("shape", buffer.shape), ("strides", buffer.strides)):
            values.update((f"{name}.{kind}[{axis}]", size) for axis, size in enumerate(sizes))
    return values
