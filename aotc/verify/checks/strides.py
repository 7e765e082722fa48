"""Choose row strides without overlap, near each other or very far.

Near strides are dense or padded, each more than the one before, so that confusing two of them
shows. Far strides push the last row's offset beyond signed and unsigned 32 bits, if the kernel
computes offsets in 64 bits; otherwise they go as far as 32 bits allow.

Invariant: a stride is a multiple of its divisor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aotc.ir.core import Kernel, Value
from aotc.ir.dialects import tile
from aotc.ir.types import ScalarType, Type
from aotc.verify.checks.dataflow import Roles, StrideTerm
from aotc.verify.checks.integers import LaunchValues, upper_bound
from aotc.verify.checks.value_flow import backward

_PADDING = 3
FAR_ELEMS = 5 << 29  # elements: 1.25 times 2**31
_NARROW = (1 << 31) - (1 << 26)  # leaves room for other terms in 32 bits


@dataclass(frozen=True, slots=True)
class Spacing:
    """The spacing of rows: `scale` times their apparent length, or `far`.

    With `is_narrow_far`, far strides of 32-bit offsets are as large as fits, else near.
    """

    scale: int = 1
    far: int = 0
    is_narrow_far: bool = False


NEAR = tuple(Spacing(scale) for scale in (1, 2, 4, 8, 64))
# The last of two tiles begins beyond 2**32, too. The others are for launches beyond
# memory.
FAR = (*(Spacing(1, far, is_narrow_far=True) for far in (4, 2, 1)), Spacing(1, 1))


@dataclass(frozen=True, slots=True)
class Rows:
    """The inputs of a choice of strides: the kernel, its roles, and a launch's integers.

    `width` is the largest number of elements in a row. `names` are the strides to choose.
    """

    kernel: Kernel
    roles: Roles
    divisors: Mapping[str, int]
    names: Sequence[str]
    integers: Mapping[str, int]
    grid: Sequence[int]
    width: int

    def strides(self, spacing: Spacing, *, is_padded: bool) -> dict[str, int]:
        """Return strides to separate rows; the signature's last is the innermost."""
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
        strides: dict[str, int] = {}
        for name in reversed(self.names):
            users = self._users(name)
            divisor = self.divisors[name]
            stride = max(reach[pointer] for pointer, _ in users)
            if is_padded and stride > 1:
                # Each more than the one before: confusing two strides shows.
                stride += (len(strides) + 1) * (divisor if divisor > 1 else _PADDING)
            stride = -(-stride // divisor) * divisor
            strides[name] = stride
            for pointer, term in users:
                reach[pointer] = stride * self._count(term, width)
        return strides

    def _far(self, near: Mapping[str, int], spacing: Spacing) -> dict[str, int]:
        strides: dict[str, int] = {}
        for position, name in enumerate(reversed(self.names)):
            users = self._users(name)
            last = max(1, *(self._largest_index(term) for _, term in users))
            is_wide = all(term.is_wide for _, term in users)
            if is_wide:
                stride = spacing.far * FAR_ELEMS // last
            elif spacing.is_narrow_far:
                rivals = max(
                    sum(not term.is_wide for term in self.roles.strides[p]) for p, _ in users
                )
                stride = _NARROW // rivals // last
            else:
                continue
            divisor = self.divisors[name]
            # Apart from each other, for distinct sums.
            stride = min(stride, self._limit(name)) - (position + 1) * (position + 5) * 64 * divisor
            strides[name] = max(near[name], stride // divisor * divisor)
        return strides

    def _types(self) -> dict[str, Type]:
        params = zip(self.kernel.params, self.kernel.body.args, strict=True)
        return {info.name: arg.type for info, arg in params}

    def _limit(self, name: str) -> int:
        kind = self._types()[name]
        assert isinstance(kind, ScalarType)
        return (1 << kind.bits - 1) - 1

    def _known(self) -> LaunchValues:
        params = zip(self.kernel.params, self.kernel.body.args, strict=True)
        scalars = {arg: self.integers[i.name] for i, arg in params if i.name in self.integers}
        return LaunchValues(self.grid, scalars)

    def _bound(self, term: StrideTerm) -> int | None:
        launch = self._known()
        bounds = [upper_bound(index, launch) for index in term.indices]
        numbers = [bound for bound in bounds if bound is not None]
        return sum(numbers) if len(numbers) == len(bounds) else None

    def _count(self, term: StrideTerm, width: int) -> int:
        """Return the number of values of a stride's index."""
        bound = self._bound(term)
        return max(width, term.rows) if bound is None else max(1, bound + 1)

    def _largest_index(self, term: StrideTerm) -> int:
        """Return the apparent largest index of a stride in any program."""
        bound = self._bound(term)
        if bound is not None:
            return bound
        # An index within a tile: the tile's own extent, or the extent of all tiles.
        largest = max(self.width, term.rows) - 1
        ends = [
            value.op.end - 1
            for value in backward(term.indices, through_loads=False)
            if isinstance(value.op, tile.Arange)
        ]
        return largest if _is_placed(term.indices) else min(max([0, *ends]) or largest, largest)


def _is_placed(indices: Sequence[Value]) -> bool:
    """Return whether an index depends on the program, and so covers all tiles."""
    origins = backward(indices, through_loads=False)
    return any(isinstance(value.op, tile.ProgramId) for value in origins)
