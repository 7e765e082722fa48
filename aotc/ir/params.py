"""Parameters of a kernel: the launch argument of each, and the promises about its value."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorSource:
    """Describe a descriptor's tensor, in expressions over the arguments of the launch.

    `address` is a pointer argument. `shape` and `strides` are in elements, outermost axis first;
    the innermost axis is dense, so `strides` has one entry fewer. Every extent is at least 1.
    """

    address: str
    shape: tuple[str, ...]
    strides: tuple[str, ...]


BOUNDS = re.compile(r"^(?P<type>.*\S)\s+in\s+(?P<low>-?\d+)\s*\.\.\s*(?P<high>-?\d+)$")
"""A type with the least and the greatest value of a scalar, such as `i32 in 1..4096`."""

NOALIAS = "noalias"
"""The signature's promise, after the type, of a pointer to memory behind no other argument."""

GRID_SOURCES = ("grid[0]", "grid[1]", "grid[2]")
"""The `source` of a parameter for the extent of the launch grid along an axis."""

SCRATCH_SOURCE = "scratch[0]"
"""The `source` of a parameter for the address of the launch's scratch memory."""

LAUNCH_SOURCES = (*GRID_SOURCES, SCRATCH_SOURCE)
"""The sources of parameters without an argument."""

SCRATCH_ALIGNMENT_BYTES = 128
"""Alignment of scratch memory."""


@dataclass(frozen=True, slots=True)
class ParamInfo:
    """Describe a kernel parameter: its name and the launcher's promises about its value.

    `divisibility` is a divisor of the argument (for a pointer: of its address in bytes). `bounds`
    are the least and the greatest value of an integer, None if all of its type are possible. With
    `noalias` the kernel accesses the memory behind a pointer through no other parameter, unless
    both only read it. `source` is the launcher's value if it is not the argument called `name`: an
    expression such as "x.shape[0]", a tensor's extent, or "x", its address; or one of
    `LAUNCH_SOURCES`, which come of no argument. A descriptor made by the compiler has a `tensor`
    for the launcher to describe.
    """

    name: str
    divisibility: int = 1
    source: str = ""
    tensor: TensorSource | None = None
    noalias: bool = False
    bounds: tuple[int, int] | None = None

    @property
    def argument(self) -> str:
        """The launch argument behind this parameter."""
        if self.tensor is not None:
            return self.tensor.address
        return self.source.partition(".")[0] or self.name


def whole_rows(params: Iterable[ParamInfo]) -> tuple[str, ...]:
    """Return the tensors with a promised divisor of an extent."""
    arguments = (
        info.argument
        for info in params
        if info.divisibility > 1 and info.source.startswith(f"{info.argument}.shape[")
    )
    return tuple(dict.fromkeys(arguments))
