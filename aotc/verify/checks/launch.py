"""One launch for verifying a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from aotc.verify.checks.extents import is_long

Scalar: TypeAlias = int | float
Indices: TypeAlias = Literal["any", "cumulative", "distinct", "few"]

BACKWARDS = "backwards"


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: its scalar arguments, its grid, and its random choices.

    `index_high` bounds loaded indices. With `misaligned`, pointers without promised alignment
    are one element off. Unless `in_step`, an emulator runs warps in an order drawn from `seed`.
    Buffers of an `is_sparse` launch have holes of gigabytes. `aliases` maps an argument to the
    argument with the same memory. `programs` lists the programs to run, in the interpreter's
    order, or is empty for the whole grid. The last row of a tensor is `apart` elements from its
    first, if not 0. Loaded `indices` are random, running sums, each once, or 0 and 1.
    """

    label: str
    scalars: Mapping[str, Scalar]
    grid: tuple[int, ...]
    seed: int
    index_high: int
    misaligned: bool
    in_step: bool = True
    is_special: bool = False
    is_sparse: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    programs: tuple[int, ...] = ()
    apart: int = 0
    indices: Indices = "any"

    @property
    def is_long(self) -> bool:
        """Whether an extent is so long that doubling an index would overflow."""
        return is_long(self.label)

    @property
    def is_backwards(self) -> bool:
        """Whether strides are negative: rows lie before their pointer."""
        return self.label == BACKWARDS

    @property
    def is_positive(self) -> bool:
        """Whether floats are positive, so that errors of sums do not cancel."""
        return self.label == "sums"

    @property
    def shape(self) -> str:
        """The arguments as a message shows them."""
        return ", ".join(f"{name} = {_shown(value)}" for name, value in self.scalars.items())

    @property
    def key(self) -> tuple[object, ...]:
        """The identity of a launch, apart from its random contents."""
        drawn = self.is_special, self.is_positive
        traits = (self.misaligned, self.in_step, self.apart, *drawn, *self.aliases.items())
        # As text: zeros of either sign compare equal.
        return (*traits, self.programs, *((n, repr(v)) for n, v in self.scalars.items()))


def _shown(value: Scalar) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
