"""How far apart rows are: strides under which they do not overlap, near each other or very far.

Near ones are dense or padded, each further than the one before, so that a stride that is
taken for another one shows. Far ones put rows so far apart where the kernel computes offsets in 64
bits that the last one's is more than a signed or an unsigned number of 32 bits holds. Where it does not,
they go as far as 32 bits do.

Invariant: a stride is a multiple of its divisor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aotc.ir.core import Kernel, Value
from aotc.ir.dialects import tile
from aotc.ir.types import ScalarType, Type
from aotc.verify.checks.dataflow import Roles, StrideTerm
from aotc.verify.checks.integers import Known, upper_bound
from aotc.verify.checks.value_flow import backward

_PADDING = 3
FAR_ELEMS = 5 << 29  # elements: 1.25 times 2**31
_NARROW = (1 << 31) - (1 << 26)  # room for what else is added in 32 bits


@dataclass(frozen=True, slots=True)
class Spacing:
    """Say how far apart rows are: `scale` times what they seem to need, or `far`.

    Far strides of offsets in 32 bits are as large as fit with `is_narrow_far`, else near.
    """

    scale: int = 1
    far: int = 0
    is_narrow_far: bool = False


NEAR = tuple(Spacing(scale) for scale in (1, 2, 4, 8, 64))
# The first row of the last tile of two is beyond 2**32, too. Others are for what takes too much memory.
FAR = (*(Spacing(1, far, is_narrow_far=True) for far in (4, 2, 1)), Spacing(1, 1))


@dataclass(frozen=True, slots=True)
class Rows:
    """Hold what strides follow from: the kernel, its roles, and what of a launch is known.

    `width` is how many elements a row may have. `names` are the strides to choose.
    """

    kernel: Kernel
    roles: Roles
    divisors: Mapping[str, int]
    names: Sequence[str]
    integers: Mapping[str, int]
    grid: Sequence[int]
    width: int

    def strides(self, spacing: Spacing, *, is_padded: bool) -> dict[str, int]:
        """Return strides under which rows lie apart, the last of the signature the innermost."""
        near = self._near(spacing, is_padded=is_padded)
        return {**near, **self._far(near, spacing)} if spacing.far else near

    def _users(self, name: str) -> list[tuple[str, StrideTerm]]:
        return [
            (pointer, term)
            for pointer, terms in self.roles.strides.items()
            for term in terms
            if term.stride == name
        ]

    def _near(self, spacing: Spacing, *, is_padded: bool) -> dict[str, int]:
        width = self.width
        if spacing.scale > 1:  # rows are longer than any extent: whole tiles, or several of them
            width = max(width, self.roles.largest_tile) * spacing.scale // 2
        reach = {p: width if p in self.roles.unit else 1 for p in self.roles.strides}
        found: dict[str, int] = {}
        for name in reversed(self.names):
            users = self._users(name)
            divisor = self.divisors[name]
            stride = max(reach[pointer] for pointer, _ in users)
            if is_padded and stride > 1:
                # Each more than the one before: so one that is taken for another shows.
                stride += (len(found) + 1) * (divisor if divisor > 1 else _PADDING)
            stride = -(-stride // divisor) * divisor
            found[name] = stride
            for pointer, term in users:
                reach[pointer] = stride * self._count(term, width)
        return found

    def _far(self, near: Mapping[str, int], spacing: Spacing) -> dict[str, int]:
        found: dict[str, int] = {}
        for at, name in enumerate(reversed(self.names)):
            users = self._users(name)
            last = max(1, *(self._largest_index(term) for _, term in users))
            is_wide = all(term.is_wide for _, term in users)
            if is_wide:
                wanted = spacing.far * FAR_ELEMS // last
            elif spacing.is_narrow_far:
                rivals = max(
                    sum(not term.is_wide for term in self.roles.strides[p]) for p, _ in users
                )
                wanted = _NARROW // rivals // last
            else:
                continue
            divisor = self.divisors[name]
            # Apart from each other, so that no two sums of them are the same.
            wanted = min(wanted, self._limit(name)) - (at + 1) * (at + 5) * 64 * divisor
            found[name] = max(near[name], wanted // divisor * divisor)
        return found

    def _types(self) -> dict[str, Type]:
        params = zip(self.kernel.params, self.kernel.body.args, strict=True)
        return {info.name: arg.type for info, arg in params}

    def _limit(self, name: str) -> int:
        kind = self._types()[name]
        assert isinstance(kind, ScalarType)
        return (1 << kind.bits - 1) - 1

    def _known(self) -> Known:
        params = zip(self.kernel.params, self.kernel.body.args, strict=True)
        scalars = {arg: self.integers[i.name] for i, arg in params if i.name in self.integers}
        return Known(self.grid, scalars)

    def _bound(self, term: StrideTerm) -> int | None:
        known = self._known()
        bounds = [upper_bound(index, known) for index in term.indices]
        numbers = [bound for bound in bounds if bound is not None]
        return sum(numbers) if len(numbers) == len(bounds) else None

    def _count(self, term: StrideTerm, width: int) -> int:
        """Return how many values the index of a stride may have."""
        bound = self._bound(term)
        return max(width, term.rows) if bound is None else max(1, bound + 1)

    def _largest_index(self, term: StrideTerm) -> int:
        """Return the largest index of a stride that some program seems to use."""
        bound = self._bound(term)
        if bound is not None:
            return bound
        # An index within a tile: the tile's own extent, or that of all tiles.
        largest = max(self.width, term.rows) - 1
        ends = [
            value.op.end - 1
            for value in backward(term.indices, through_loads=False)
            if isinstance(value.op, tile.Arange)
        ]
        return largest if _is_placed(term.indices) else min(max([0, *ends]) or largest, largest)


def _is_placed(indices: Sequence[Value]) -> bool:
    """Return whether an index depends on the program, so that it goes over all tiles."""
    found = backward(indices, through_loads=False)
    return any(isinstance(value.op, tile.ProgramId) for value in found)
