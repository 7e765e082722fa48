"""Execute a launch in the PTX emulator.

The buffers are exactly what the interpreted kernel touched, byte by byte: a compiled kernel that
reads or writes one byte more, under a mask that is off by one, is stopped at that instruction.

Invariant: the arrays of the reference are not changed.
"""

# NumPy's own stubs leave overloads of ndarray's methods partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from aotc.ir.core import GRID_SOURCES
from aotc.ir.expression import evaluate, parse
from aotc.verify.check import Execution, ExecutionFault, Unsuited
from aotc.verify.elastic import HEAD_BYTES
from aotc.verify.emulator.arguments import ParameterBlock
from aotc.verify.emulator.context import Fault
from aotc.verify.emulator.memory import GlobalMemory
from aotc.verify.emulator.program import Module
from aotc.verify.emulator.report import render_fault
from aotc.verify.emulator.run import DEFAULT_MAX_MEMORY_BYTES, DEFAULT_MAX_STEPS, Argument, emulate
from aotc.verify.emulator.tensor_argument import PlacedTensor
from aotc.verify.launched import Launcher
from aotc.verify.looped import num_looping_blocks
from aotc.verify.reference import Buffer, Bytes, Marks, Reference

_ARGUMENT = re.compile(r"\bargument (\d+)\b")


@dataclass(frozen=True, slots=True)
class Param:
    """Say what a parameter of the function is: the argument, or what `source` says of it.

    Of a function that counts the programs of a launch, argument and source are "grid[0]" and so on.
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
class Emulation:
    """Hold a kernel's PTX and how it is run; call it with a reference to execute its launch.

    `num_ctas` blocks make up a program. `seed` 0 runs warps in the order that the launch asks for,
    any other at random: in step a missing barrier between accesses to global memory does not show.
    `sources` are files that reports may quote. `params` are the function's, if they are not the
    arguments of a launch one by one; `fixed` are the arguments whose value is compiled in. With a
    `launcher`, it says what the parameters and the dimensions are.
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

    def __call__(self, reference: Reference) -> Execution:
        """Return what the kernel leaves in the buffers.

        Raises:
            ExecutionFault: it did what it may not.
            EmulationError: the PTX cannot be emulated.
        """
        owners = {
            name: buffer.initial[HEAD_BYTES:].copy() for name, buffer in reference.buffers.items()
        }
        programs = (*reference.launch.grid, 1, 1)[:3]
        if self.launcher is not None:
            return self._launched(self.launcher, reference, owners, programs)
        counts = zip(GRID_SOURCES, programs, strict=True)
        values = {**self.fixed, **_integers(reference), **dict(counts)}
        args: list[Argument] = []
        readable: dict[int, Marks] = {}
        writable: dict[int, Marks] = {}
        for index, param in enumerate(self.params or _plain(reference)):
            name = param.argument
            buffer = reference.buffers.get(name)
            if param.source in values:
                args.append(values[param.source])
            elif buffer is None:
                args.append(reference.launch.scalars[name])
            else:
                held = _held(buffer, owners[name])
                args.append(_pointed(buffer, param, held, values))
                readable[index] = buffer.readable[buffer.start_bytes :]
                writable[index] = buffer.writable[buffer.start_bytes :]
        x, y, z = self._clusters(programs)
        return self._run(
            reference,
            owners,
            (x * self.num_ctas, y, z),
            args,
            shared_bytes=self.shared_bytes,
            readable=readable,
            writable=writable,
        )

    def _run(
        self,
        reference: Reference,
        owners: Mapping[str, Bytes],
        grid: tuple[int, ...],
        args: Sequence[Argument] | ParameterBlock,
        *,
        shared_bytes: int,
        block: tuple[int, ...] | None = None,
        readable: Mapping[int, Marks] | None = None,
        writable: Mapping[int, Marks] | None = None,
    ) -> Execution:
        try:
            done = emulate(
                self.module,
                grid,
                args,
                kernel=self.symbol,
                block=block,
                shared_bytes=shared_bytes,
                seed=self.seed or (0 if reference.launch.in_step else reference.launch.seed),
                max_steps=self.max_steps,
                max_memory_bytes=self.max_memory_bytes,
                readable=readable,
                writable=writable,
                approximate=True,
            )
        except Fault as fault:
            report = render_fault(fault, sources=self.sources)
            raise ExecutionFault(self._named(report, reference)) from fault
        return _execution(reference, owners, done.lane_instructions)

    def _launched(
        self,
        launcher: Launcher,
        reference: Reference,
        owners: Mapping[str, Bytes],
        programs: tuple[int, ...],
    ) -> Execution:
        """Run the launch that the runtime makes of the reference's arguments."""
        memory = GlobalMemory()
        addresses: dict[str, int] = {}
        for name, buffer in reference.buffers.items():
            marks = (buffer.readable[buffer.start_bytes :], buffer.writable[buffer.start_bytes :])
            addresses[name] = memory.add(name, _held(buffer, owners[name]), *marks)
        launched = launcher(reference, addresses, max(1, num_looping_blocks(programs)))
        if launched is None:
            if all(programs):
                raise ExecutionFault(f"the launcher launches nothing for {programs} programs")
            return _execution(reference, owners, 0)
        kernel = self.module.kernels.get(self.symbol)
        # Without it the emulator says what there is.
        params = launched.params if kernel is None else launched.block_of(kernel)
        return self._run(
            reference,
            owners,
            launched.grid,
            ParameterBlock(params, memory),
            shared_bytes=launched.shared_bytes,
            block=launched.block,
        )

    def _clusters(self, programs: tuple[int, ...]) -> tuple[int, ...]:
        """Return the grid of clusters that run so many programs."""
        loops = any(param.source in GRID_SOURCES for param in self.params)
        return (num_looping_blocks(programs), 1, 1) if loops else programs

    def _named(self, text: str, reference: Reference) -> str:
        """Return a message of the emulator's with the names of arguments, which PTX has not."""
        params = self.params or _plain(reference)
        return _ARGUMENT.sub(lambda match: params[int(match[1])].argument, text)


def _held(buffer: Buffer, owner: Bytes) -> Bytes:
    """Return what lies behind a pointer. Raises: Unsuited if something before it is used."""
    if (buffer.readable | buffer.writable)[: buffer.start_bytes].any():
        reason = f"the kernel steps back from {buffer.name}, which cannot be emulated yet"
        raise Unsuited(reason)
    return owner[buffer.start_bytes - HEAD_BYTES :]


def _execution(reference: Reference, owners: Mapping[str, Bytes], instructions: int) -> Execution:
    left = {
        name: np.concatenate([buffer.initial[:HEAD_BYTES], owners[name]])
        for name, buffer in reference.buffers.items()
    }
    return Execution(left, instructions)


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


def _pointed(buffer: Buffer, param: Param, held: Bytes, values: Mapping[str, int]) -> Argument:
    """Return what is passed for a pointer, or for the tensor that a map describes."""
    if not param.box:
        return held
    shape, strides = (
        tuple(evaluate(parse(text), values) for text in texts)
        for texts in (param.shape, param.strides)
    )
    return PlacedTensor(
        *(held, buffer.pointee.name, shape, (*strides, 1)),
        *(param.box, param.swizzle_bytes),
        fill_nan=param.fill_nan,
    )
