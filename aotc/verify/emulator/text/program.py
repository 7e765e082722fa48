"""What a PTX text holds: variables, and kernels with their parameters and instructions.

Invariant: all of it is immutable; a batch of running CTAs has its own state in `machine.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from aotc.verify.emulator.syntax import Instruction

Extents: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Variable:
    """Declare memory; `space` is "shared", "global", "const", "local" or "param".

    A shared variable of no bytes is the dynamic shared memory. `data` is what it starts with.
    """

    name: str
    space: str
    size_bytes: int
    align: int
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Param:
    """Declare a parameter of a kernel, at `offset` in the parameter buffer."""

    name: str
    offset: int
    size_bytes: int
    is_pointer: bool


@dataclass(frozen=True, slots=True)
class Kernel:
    """Hold one `.entry`.

    `registers` says for each width how many rows there are; `variables` are those that the body
    declares. `cta_threads`, `max_threads` and `cluster_ctas` are 0 where the text says nothing.
    """

    name: str
    params: tuple[Param, ...]
    instructions: tuple[Instruction, ...]
    registers: Mapping[int, int] = field(default_factory=dict[int, int])
    variables: Mapping[str, Variable] = field(default_factory=dict[str, Variable])
    cta_threads: Extents = (0, 0, 0)
    max_threads: Extents = (0, 0, 0)
    cluster_ctas: Extents = (0, 0, 0)

    @property
    def param_bytes(self) -> int:
        """Size of the parameter buffer."""
        return max((param.offset + param.size_bytes for param in self.params), default=0)


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """Hold a PTX text: `variables` are those outside of kernels. A module equals itself alone."""

    target: str
    variables: Mapping[str, Variable]
    kernels: Mapping[str, Kernel]
