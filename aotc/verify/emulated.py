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
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aotc.verify.check import Execution, ExecutionFault, Unsuited
from aotc.verify.elastic import HEAD_BYTES
from aotc.verify.emulator.context import Fault
from aotc.verify.emulator.program import Module
from aotc.verify.emulator.report import render_fault
from aotc.verify.emulator.run import DEFAULT_MAX_MEMORY_BYTES, DEFAULT_MAX_STEPS, Argument, emulate
from aotc.verify.emulator.tensor_argument import PlacedTensor
from aotc.verify.reference import Buffer, Bytes, Marks, Reference

_ARGUMENT = re.compile(r"\bargument (\d+)\b")


@dataclass(frozen=True, slots=True)
class Param:
    """Say what a parameter of the function is: the argument, or what `source` says of it.

    With a `box` it is a tensor map.
    """

    argument: str
    source: str = ""
    box: tuple[int, ...] = ()
    swizzle_bytes: int = 0
    fill_nan: bool = False


@dataclass(frozen=True, slots=True)
class Emulation:
    """Hold a kernel's PTX and how it is run; call it with a reference to execute its launch.

    `num_ctas` blocks make up a program. `seed` 0 runs warps in the order that the launch asks for,
    any other at random: in step a missing barrier between accesses to global memory does not show.
    `sources` are files that reports may quote. `params` are the function's, if they are not the
    arguments of a launch one by one.
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

    def __call__(self, reference: Reference) -> Execution:
        """Return what the kernel leaves in the buffers.

        Raises:
            ExecutionFault: it did what it may not.
            EmulationError: the PTX cannot be emulated.
        """
        owners = {
            name: buffer.initial[HEAD_BYTES:].copy() for name, buffer in reference.buffers.items()
        }
        args: list[Argument] = []
        readable: dict[int, Marks] = {}
        writable: dict[int, Marks] = {}
        for index, param in enumerate(self.params or _plain(reference)):
            name = param.argument
            buffer = reference.buffers.get(name)
            if buffer is None:
                args.append(reference.launch.scalars[name])
            elif param.source.startswith(f"{name}."):
                args.append(_part(buffer, param.source))
            else:
                if (buffer.readable | buffer.writable)[: buffer.start_bytes].any():
                    reason = f"the kernel steps back from {name}, which cannot be emulated yet"
                    raise Unsuited(reason)
                held = owners[name][buffer.start_bytes - HEAD_BYTES :]
                args.append(_pointed(buffer, param, held))
                readable[index] = buffer.readable[buffer.start_bytes :]
                writable[index] = buffer.writable[buffer.start_bytes :]
        grid = (*reference.launch.grid, 1, 1)[:3]
        try:
            done = emulate(
                self.module,
                (grid[0] * self.num_ctas, *grid[1:]),
                args,
                kernel=self.symbol,
                shared_bytes=self.shared_bytes,
                seed=self.seed or (0 if reference.launch.in_step else reference.launch.seed),
                max_steps=self.max_steps,
                max_memory_bytes=self.max_memory_bytes,
                readable=readable,
                writable=writable,
                reads_unwritten=True,
            )
        except Fault as fault:
            report = render_fault(fault, sources=self.sources)
            raise ExecutionFault(self._named(report, reference)) from fault
        left = {
            name: np.concatenate([buffer.initial[:HEAD_BYTES], owners[name]])
            for name, buffer in reference.buffers.items()
        }
        return Execution(left, done.lane_instructions)

    def _named(self, text: str, reference: Reference) -> str:
        """Return a message of the emulator's with the names of arguments, which PTX has not."""
        params = self.params or _plain(reference)
        return _ARGUMENT.sub(lambda match: params[int(match[1])].argument, text)


def _plain(reference: Reference) -> tuple[Param, ...]:
    """Return the parameters of a function that takes the arguments as they are."""
    return tuple(Param(name) for name in reference.order)


def _part(buffer: Buffer, source: str) -> int:
    """Return what a parameter's source says of a tensor: "x.shape[0]", "x.strides[1]"."""
    kind, _, axis = source.partition(".")[2].rstrip("]").partition("[")
    return (buffer.shape if kind == "shape" else buffer.strides)[int(axis)]


def _pointed(buffer: Buffer, param: Param, held: Bytes) -> Argument:
    """Return what is passed for a pointer, or for the tensor that a map describes."""
    if not param.box:
        return held
    return PlacedTensor(
        *(held, buffer.pointee.name, buffer.shape, buffer.strides),
        *(param.box, param.swizzle_bytes),
        fill_nan=param.fill_nan,
    )
