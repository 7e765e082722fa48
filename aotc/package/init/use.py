"""The uses of a kernel's parameters."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from enum import Flag, auto


class Use(Flag):
    """The ways a kernel uses a parameter."""

    NOTHING = 0
    POINTER = auto()
    """Memory is accessed through it."""
    DESCRIPTOR = auto()
    """Its own `load` or `store` is called."""
    OFFSET = auto()
    """It is part of an address."""
    BOUND = auto()
    """Indices of elements are compared with it."""
    INTEGER = auto()
    FLOAT = auto()
    CONDITION = auto()
    """It is the whole condition of an `if`."""
    NONE_TEST = auto()
    """It is compared with None."""
    EXTENT = auto()
    """It is an extent of a tile."""
    TRIPS = auto()
    """It bounds an unrolled loop."""
    DTYPE = auto()
    """Values are cast to it."""
    INDICES = auto()
    """It points to integers, such as offsets."""
    ADDRESSES = auto()
    """It points to pointers."""
    BITS = auto()
    """It points to packed integers: loads are shifted or masked."""


@dataclass
class Uses:
    """The uses of each parameter of one function, and the constants it is compared with.

    `stored` are the integer types of casts before stores through a pointer. `blocks` are, for each
    axis of a descriptor, the parameters its offsets are multiples of; None if unknown.
    """

    uses: dict[str, Use] = field(default_factory=dict[str, Use])
    stored: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    blocks: dict[str, tuple[frozenset[str] | None, ...]] = field(
        default_factory=dict[str, tuple[frozenset[str] | None, ...]]
    )
    compared: dict[str, list[ast.expr]] = field(default_factory=dict[str, list[ast.expr]])
    returns_float: bool = False

    def of(self, name: str) -> Use:
        """Return a parameter's uses."""
        return self.uses.get(name, Use.NOTHING)

    def add(self, names: frozenset[str], use: Use) -> None:
        """Record a use of parameters."""
        for name in names:
            self.uses[name] = self.of(name) | use
