"""One launch at which a kernel is verified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from aotc.verify.checks.extents import is_long

Scalar: TypeAlias = int | float

BACKWARDS = "backwards"


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: what scalar arguments are, how many programs there are, what is drawn.

    `index_high` bounds loaded indices; with `misaligned` a pointer that is promised no alignment
    is one element off. Unless `in_step`, an emulator is to run warps in an order drawn from `seed`.
    Buffers of an `is_sparse` launch have holes of gigabytes. `aliases` gives an argument the one
    whose memory it is. `programs` are the numbers of those that run, in the order in which an
    interpreter runs them, empty for all of the grid. The last row of a tensor is `apart` elements from
    its first, if not 0.
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

    @property
    def is_long(self) -> bool:
        """Whether an extent is so long that an index which a kernel doubles would overflow."""
        return is_long(self.label)

    @property
    def is_backwards(self) -> bool:
        """Whether strides are negative, so that rows lie before their pointer."""
        return self.label == BACKWARDS

    @property
    def is_positive(self) -> bool:
        """Whether floats are, so that what sums lose does not cancel."""
        return self.label == "sums"

    @property
    def shape(self) -> str:
        """The arguments as a message shows them."""
        return ", ".join(f"{name} = {_shown(value)}" for name, value in self.scalars.items())

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two launches the same, but for what is drawn."""
        drawn = self.is_special, self.is_positive
        traits = (self.misaligned, self.in_step, self.apart, *drawn, *self.aliases.items())
        # As text: a zero is equal to the one of the other sign.
        return (*traits, self.programs, *((n, repr(v)) for n, v in self.scalars.items()))


def _shown(value: Scalar) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
