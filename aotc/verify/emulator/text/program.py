"""A parsed PTX text: variables, and kernels with their parameters and instructions.

Invariant: all of it is immutable; `machine.py` holds the state of running CTAs.
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

    A shared variable of size 0 is the dynamic shared memory. `data` is the initial value.
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

    `registers` maps each width to its number of rows; `variables` are declared in the body.
    `cta_threads`, `max_threads` and `cluster_ctas` are 0 where unspecified.
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
    """Hold a PTX text: `variables` are module-level. A module equals only itself."""

    target: str
    variables: Mapping[str, Variable]
    kernels: Mapping[str, Kernel]
