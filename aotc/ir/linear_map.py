"""Linear maps over GF(2) between named dimensions, given by their packed bases.

The base of `LinearLayout` (`aotc.ir.layout`), without tiles: the image of each input bit,
evaluation at a place, and other ways to cut, order and name the dimensions. Nothing here asks for a
rank or an inverse.

Invariant: a map is immutable, its hash is computed once, and every basis lies inside the output
extents. Two maps are equal when their dimensions, in order, and their bases are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn, TypeVar

from aotc.ir import gf2
from aotc.ir.layout_bits import Ins, Outs, Sizes, gather_bits, pack, scatter, sized, unpack

if sys.version_info >= (3, 11):
    from typing import Self
else:
    from typing_extensions import Self

MapT = TypeVar("MapT", bound="LinearMap")


class LinearMap:
    """Map named input bits linearly to named outputs; see the module's docstring."""

    __slots__ = ("_hash", "_ins", "_outs")

    _ins: Ins  # (dimension, packed bases)
    _outs: Outs  # (dimension, number of bits)
    _hash: int

    def __init__(self, bases: Mapping[str, Iterable[Sequence[int]]], out_sizes: Sizes) -> None:
        """Build a map from one coordinate tuple per input bit.

        `out_sizes` is a shape, naming the outputs `dim0`, `dim1`, …, or a mapping of names.
        Raises: ValueError when a size is no power of two or a basis lies outside the sizes.
        """
        outs = sized(out_sizes)
        ins = tuple(
            (name, tuple(pack(coords, outs) for coords in columns))
            for name, columns in bases.items()
        )
        _initialise(self, ins, outs)

    @classmethod
    def from_columns(cls, ins: Iterable[tuple[str, Iterable[int]]], outs: Outs) -> Self:
        """Build a map from packed bases and `(name, bits)` outputs: the planner's fast path."""
        layout = cls.__new__(cls)
        _initialise(layout, tuple((name, tuple(columns)) for name, columns in ins), outs)
        return layout

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} is immutable")

    def __reduce__(self) -> tuple[Callable[[Ins, Outs], LinearMap], tuple[Ins, Outs]]:
        return (type(self).from_columns, (self._ins, self._outs))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, LinearMap)
            and self._hash == other._hash
            and self._ins == other._ins
            and self._outs == other._outs
        )

    # ---- dimensions and bases -----------------------------------------------------------------

    @property
    def in_dims(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self._ins)

    @property
    def out_dims(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self._outs)

    @property
    def ins(self) -> Ins:
        """Input dimensions in order, each with its packed bases."""
        return self._ins

    @property
    def outs(self) -> Outs:
        """Output dimensions in order, each with its number of bits."""
        return self._outs

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the output dimensions, in order."""
        return tuple(1 << bits for _, bits in self._outs)

    @property
    def total_in_bits(self) -> int:
        return sum(len(columns) for _, columns in self._ins)

    @property
    def total_out_bits(self) -> int:
        return sum(bits for _, bits in self._outs)

    def columns(self, in_dim: str) -> tuple[int, ...]:
        """Return the packed bases of `in_dim`; none for a dimension the map does not have."""
        for name, columns in self._ins:
            if name == in_dim:
                return columns
        return ()

    def all_columns(self) -> tuple[int, ...]:
        """Return the packed bases of all inputs, the first dimension's first."""
        return tuple(column for _, columns in self._ins for column in columns)

    def in_bits(self, in_dim: str) -> int:
        return len(self.columns(in_dim))

    def in_size(self, in_dim: str) -> int:
        return 1 << len(self.columns(in_dim))

    def out_bits(self, out_dim: str) -> int:
        for name, bits in self._outs:
            if name == out_dim:
                return bits
        raise ValueError(f"{out_dim} is not an output of {self}")

    def out_size(self, out_dim: str) -> int:
        return 1 << self.out_bits(out_dim)

    def bases(self, in_dim: str) -> tuple[tuple[int, ...], ...]:
        """Return the coordinates each bit of `in_dim` leads to, lowest bit first."""
        return tuple(self.unpack(column) for column in self.columns(in_dim))

    def pack(self, coords: Sequence[int]) -> int:
        """Return the row-major index of an element."""
        return pack(coords, self._outs)

    def unpack(self, index: int) -> tuple[int, ...]:
        """Return the coordinates of a row-major index."""
        return unpack(index, self._outs)

    # ---- evaluation ---------------------------------------------------------------------------

    def apply(self, **places: int) -> tuple[int, ...]:
        """Return the coordinates of the element at a place; inputs not named are 0."""
        return self.unpack(self.apply_packed(**places))

    def apply_packed(self, **places: int) -> int:
        """Return the row-major index of the element at a place; inputs not named are 0."""
        out = 0
        for name, value in places.items():
            columns = self.columns(name)
            if value < 0 or value >> len(columns):
                raise ValueError(f"{name} = {value} is outside 0..{(1 << len(columns)) - 1}")
            out ^= gf2.combine(columns, value)
        return out

    def table(self, in_dim: str, **places: int) -> list[int]:
        """Return the row-major index at every value of `in_dim`, the other inputs fixed.

        One XOR an entry: `layout.table("register", lane=3)` lists all elements of a thread.
        """
        return gf2.span_table(self.columns(in_dim), self.apply_packed(**places))

    def coords_table(self, in_dim: str, **places: int) -> list[tuple[int, ...]]:
        """Return the coordinates at every value of `in_dim`, the other inputs fixed."""
        return [self.unpack(index) for index in self.table(in_dim, **places)]

    # ---- dimensions ---------------------------------------------------------------------------

    def transpose_ins(self, names: Sequence[str]) -> Self:
        """Put the inputs into this order. Requires: `names` are the inputs, each once."""
        if sorted(names) != sorted(self.in_dims):
            raise ValueError(f"{list(names)} is not an order of the inputs of {self}")
        return type(self).from_columns([(name, self.columns(name)) for name in names], self._outs)

    def transpose_outs(self, names: Sequence[str]) -> Self:
        """Put the outputs into this order. Requires: `names` are the outputs, each once."""
        if sorted(names) != sorted(self.out_dims):
            raise ValueError(f"{list(names)} is not an order of the outputs of {self}")
        outs = tuple((name, self.out_bits(name)) for name in names)
        return move_outs(self, scatter(self._outs, outs), outs)

    def reshape_ins(self, sizes: Mapping[str, int]) -> Self:
        """Cut the input bits into other dimensions, the first dimension lowest.

        Requires: the sizes multiply to the present number of places.
        """
        columns = self.all_columns()
        cuts = sized(sizes)
        if sum(bits for _, bits in cuts) != len(columns):
            raise ValueError(f"{dict(sizes)} does not hold the {1 << len(columns)} places")
        ins: list[tuple[str, tuple[int, ...]]] = []
        for name, bits in cuts:
            ins.append((name, columns[:bits]))
            columns = columns[bits:]
        return type(self).from_columns(ins, self._outs)

    def reshape_outs(self, sizes: Sizes) -> Self:
        """Cut the packed index into other output dimensions, row-major: no basis changes.

        Requires: the sizes multiply to the present number of elements.
        """
        outs = sized(sizes)
        if sum(bits for _, bits in outs) != self.total_out_bits:
            raise ValueError(f"{sizes} does not hold the elements of {self.shape}")
        return type(self).from_columns(self._ins, outs)

    def flatten_ins(self, name: str = "offset") -> Self:
        """Join all inputs into one dimension, the first lowest."""
        return type(self).from_columns([(name, self.all_columns())], self._outs)

    def flatten_outs(self, name: str = "dim0") -> Self:
        """Join all outputs into the row-major index."""
        return type(self).from_columns(self._ins, ((name, self.total_out_bits),))

    def rename_outs(self, names: Sequence[str]) -> Self:
        """Give the outputs, in order, other names."""
        outs = tuple((n, bits) for n, (_, bits) in zip(names, self._outs, strict=True))
        return type(self).from_columns(self._ins, outs)

    def with_columns(self, in_dim: str, columns: Iterable[int]) -> Self:
        """Replace the packed bases of `in_dim`, or add the dimension last."""
        ins = dict(self._ins)
        ins[in_dim] = tuple(columns)
        return type(self).from_columns(ins.items(), self._outs)

    def remove_zero_bases(self, in_dim: str = "register") -> Self:
        """Drop the zero bases of `in_dim`: `[[0,1],[0,0],[1,0]]` -> `[[0,1],[1,0]]`."""
        return self.with_columns(in_dim, [column for column in self.columns(in_dim) if column])

    def sublayout(self, in_dims: Iterable[str], out_dims: Iterable[str]) -> Self:
        """Keep only these inputs and outputs; bases lose their dropped coordinates."""
        wanted_ins, wanted_outs = tuple(in_dims), tuple(out_dims)
        ins = [(name, columns) for name, columns in self._ins if name in wanted_ins]
        positions: list[int] = []
        shift = 0
        for name, bits in reversed(self._outs):
            if name in wanted_outs:
                positions += range(shift, shift + bits)
            shift += bits
        outs = tuple((name, bits) for name, bits in self._outs if name in wanted_outs)
        return type(self).from_columns(
            [(name, gather_bits(columns, positions)) for name, columns in ins], outs
        )

    def sublayout_is_zero(self, in_dims: Iterable[str], out_dims: Iterable[str]) -> bool:
        """Say whether these inputs have no influence on these outputs."""
        return not any(self.sublayout(in_dims, out_dims).all_columns())


def _initialise(layout: LinearMap, ins: Ins, outs: Outs) -> None:
    """Set the fields of a new, still mutable map."""
    limit = sum(bits for _, bits in outs)
    if len(dict(ins)) != len(ins) or len(dict(outs)) != len(outs):
        raise ValueError(f"a dimension is named twice in {[n for n, _ in (*ins, *outs)]}")
    for name, columns in ins:
        if any(column < 0 or column >> limit for column in columns):
            raise ValueError(f"a basis of {name} lies outside {dict(outs)} bits")
    object.__setattr__(layout, "_ins", ins)
    object.__setattr__(layout, "_outs", outs)
    object.__setattr__(layout, "_hash", hash((ins, outs)))


def move_outs(layout: MapT, targets: Sequence[int], outs: Outs) -> MapT:
    """Send packed output bit `i` to the vector `targets[i]` of `outs`."""
    return type(layout).from_columns(
        [(name, [gf2.combine(targets, c) for c in columns]) for name, columns in layout.ins], outs
    )
