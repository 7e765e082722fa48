"""The distance between two accesses to global memory, over all iterations.

Elements differ if their indices differ along some dimension. A dimension is the factor of one
stride, a product of arguments of the launch, and a tensor's strides keep its elements apart. An
index is a polynomial over positions in the tile, induction variables and other scalars of the
kernel. Where a loop carries the earlier access to the later one, its induction variable has
advanced by at least a step.

A mask bounds the indices of a dimension, too: halves of a row that begin at n and end at n are
disjoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from aotc.ir.core import Block, Op, Value
from aotc.ir.dialects import scf
from aotc.ir.effects import Trait
from aotc.ir.rewrite import is_inside
from aotc.ir.walks import reached
from aotc.schedule.analysis.affine import AffineAnalysis, axis_symbol
from aotc.schedule.analysis.polynomial import ZERO, Monomial, Polynomial
from aotc.schedule.analysis.signs import Signs

_MAX_AXES = 8
_OTHER_AXES = {axis_symbol(axis): axis_symbol(axis + _MAX_AXES) for axis in range(_MAX_AXES)}
"""Symbols of positions in the other of two compared tiles."""


@dataclass(frozen=True)
class Touch:
    """An access, and the loops advanced to a later iteration since."""

    op: Op
    carried: frozenset[Op] = frozenset()

    def carried_by(self, loop: Op) -> Touch:
        """Return the same access as the next iteration of `loop` sees it.

        An access outside of the loop is the same for all iterations.
        """
        if loop in self.carried or not is_inside(self.op, loop):
            return self
        return Touch(self.op, self.carried | {loop})


@dataclass(frozen=True, slots=True)
class Tile:
    """Hold the index of each element of an access, the extents, and the mask's bounds below 0."""

    offset: Polynomial
    extents: tuple[int, ...]
    below_zero: tuple[Polynomial, ...]


class Distance:
    """Tell whether the elements of two accesses are apart, in all iterations."""

    def __init__(self, affine: AffineAnalysis, earlier: Touch, later: Op) -> None:
        self._affine = affine
        carried = [loop for loop in later.ancestors() if loop in earlier.carried]
        self._outermost = carried[-1] if carried else None
        self._loops = [*carried]
        for access, other in ((earlier.op, later), (later, earlier.op)):
            around = list(other.ancestors())
            loops = (op for op in access.ancestors() if op.has(Trait.LOOP))
            self._loops += [loop for loop in loops if loop not in around]

    def separates(self, mine: Tile, theirs: Tile) -> bool:
        """Return whether no element is touched by both tiles."""
        starts, ends = self._by_stride(mine.offset), self._by_stride(theirs.offset)
        for stride in {**starts, **ends}:
            start, end = starts.get(stride, ZERO), ends.get(stride, ZERO)
            # A number times an argument need be no stride: it may be a shift by any distance.
            if stride != () and (start.value is not None or end.value is not None):
                shift = Polynomial.of([(stride, 1)])
                starts[()] = starts.get((), ZERO) + shift * start
                ends[()] = ends.get((), ZERO) + shift * end
            elif stride != () and self._differ(start, end, mine.extents, theirs.extents):
                return True
        start, end = starts.get((), ZERO), ends.get((), ZERO)
        return self._differ(start, end, mine.extents, theirs.extents) or self._is_masked_apart(
            (start, mine.below_zero), (end, theirs.below_zero)
        )

    def _is_masked_apart(
        self,
        mine: tuple[Polynomial, tuple[Polynomial, ...]],
        theirs: tuple[Polynomial, tuple[Polynomial, ...]],
    ) -> bool:
        """Return whether the mask of the lower of two ranges ends it before the other begins."""
        signs = Signs(self._affine)
        for (low, bounds), (high, _) in ((mine, theirs), (theirs, mine)):
            apart = high.renamed(_OTHER_AXES) - low
            if any(map(self.is_moved, apart.symbols)):
                continue
            # The mask keeps these below 0, at most -1, so the gain is at least 1.
            if any(signs.never_negative(apart + bound) for bound in bounds):
                return True
        return False

    def may_be_none(self, mine: Polynomial, theirs: Polynomial) -> bool:
        """Return whether an element of a tile may have one index in both accesses.

        It certainly does if the indices are equal. They may also be equal in one iteration of a
        loop around one access alone, as when tiles are accumulated and the result is stored after
        the loop.
        """
        if self._outermost is not None:
            return mine == theirs and not any(map(self.is_moved, mine.symbols))
        return all(
            all(map(is_no_axis, monomial)) and any(map(self.is_moved, monomial))
            for monomial, _ in (theirs - mine).terms
        )

    def moves(self, value: Value | None) -> bool:
        """Return whether a value may differ between the two accesses."""
        return value is not None and any(_is_of(value.owner, loop) for loop in self._loops)

    def is_moved(self, symbol: int) -> bool:
        """Return whether a symbol may differ between the two accesses."""
        symbols = reached([symbol], self._affine.symbols_of)
        sources = (
            self._affine.sources[reached_symbol]
            for reached_symbol in symbols
            if reached_symbol >= 0
        )
        return any(isinstance(source, Value) and self.moves(source) for source in sources)

    def _by_stride(self, offset: Polynomial) -> dict[Monomial, Polynomial]:
        """Return the index along each dimension, by its stride."""
        indices: dict[Monomial, Polynomial] = {}
        for monomial, factor in offset.terms:
            stride = tuple(symbol for symbol in monomial if self._affine.is_launch(symbol))
            index = tuple(symbol for symbol in monomial if not self._affine.is_launch(symbol))
            indices[stride] = indices.get(stride, ZERO) + Polynomial.of([(index, factor)])
        return indices

    def _differ(
        self,
        mine: Polynomial,
        theirs: Polynomial,
        extents: tuple[int, ...],
        other_extents: tuple[int, ...],
    ) -> bool:
        """Return whether two indices along one dimension are never equal."""
        reach, other_reach = _reach(mine, extents), _reach(theirs, other_extents)
        if reach is None or other_reach is None:
            return False
        low, high = reach
        other_low, other_high = other_reach
        start, end = mine.split(is_no_axis)[0], theirs.split(is_no_axis)[0]
        loop = self._outermost
        number = self._affine[loop.induction].offset if isinstance(loop, scf.For) else ZERO
        moved_symbols = [
            moved_symbol
            for moved_symbol in (*start.symbols, *end.symbols)
            if self.is_moved(moved_symbol)
        ]
        if any(symbol not in number.symbols for symbol in moved_symbols):
            return False
        apart = (end - start).value
        if apart is None:
            return False
        if not moved_symbols:
            return apart + other_low > high or apart + other_high < low
        factor = start.coefficient_of(number.symbols[0]) if len(number.symbols) == 1 else None
        if apart or factor is None or factor != end.coefficient_of(number.symbols[0]):
            return False
        assert isinstance(loop, scf.For)
        moved_by = factor * self._affine[loop.step].offset
        # A loop's step is not 0, so a multiple of a number moves by at least this number.
        at_least = math.gcd(*(coefficient for _, coefficient in moved_by.terms))
        return at_least > max(high - other_low, other_high - low)


def _reach(index: Polynomial, extents: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the range of an index over positions in the tile, relative to its start, or None."""
    low = high = 0
    for monomial, factor in index.terms:
        axes = [symbol for symbol in monomial if symbol < 0]
        if axes:
            if len(monomial) > 1:
                return None
            last = factor * (extents[-1 - axes[0]] - 1)
            low, high = low + min(0, last), high + max(0, last)
    return low, high


def is_no_axis(symbol: int) -> bool:
    """Return whether a symbol is no position in a tile."""
    return symbol >= 0


def _is_of(owner: Op | Block, loop: Op) -> bool:
    return (isinstance(owner, Block) and owner.parent is loop) or is_inside(owner, loop)
