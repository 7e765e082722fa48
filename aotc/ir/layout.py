"""Layouts: linear maps over GF(2) from the bits of the hardware to the elements of a tile.

A layout maps hardware places to elements of a tile. Its input dimensions name places: `register`,
`lane`, `warp` and `block` for a tile spread over threads, `offset` for one in shared memory. Its
output dimensions are the tile's axes, `dim0`, `dim1` and so on. All extents are powers of two, and
the map is fixed by its *bases*: the element of each single input bit. Any other place leads to the
XOR of the bases of its set bits. A 4x4 tile on four lanes of four registers:

    #ll<register=[[0,1],[1,0]] lane=[[0,2],[2,0]] : [4,4]>

    register 1 -> (0,1)      lane 1 -> (0,2)       dim1:   0      1      2      3
    register 2 -> (1,0)      lane 2 -> (2,0)       dim0 0  l0r0   l0r1   l1r0   l1r1
    register 3 -> (1,1)      lane 3 -> (2,2)            1  l0r2   l0r3   l1r2   l1r3
                                                        2  l2r0   l2r1   l3r0   l3r1
    lane 1, register 3 -> (0,2) ^ (1,1) = (1,3)         3  l2r2   l2r3   l3r2   l3r3

The map runs from hardware to tensor, since the reverse is no function: two threads may hold the
same element (a zero or repeated basis broadcasts), but a register holds one.

Coordinates are packed into one integer, the element's row-major index: the last axis has the low
bits. A reshape therefore changes no basis at all, only how the bits are cut into axes. Input bits
are packed the other way round, the first dimension low, so registers count fastest.

`aotc.ir.linear_map` stores and evaluates maps, and cuts and orders their dimensions. Here are
ranks, inverses and products, and the shape ops on layouts.

Invariant: as of `LinearMap`. An operation raises ValueError when its arguments break its
*requires*.

Source: "Linear Layouts: Robust Code Generation of Efficient Tensor Computation Using F2" (2025).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from aotc.ir import gf2
from aotc.ir.layout_bits import (
    Ins,
    Outs,
    Sizes,
    log2_exact,
    lowest_bit,
    move_bits,
    scatter,
    sized,
)
from aotc.ir.layout_text import format_layout, parse_layout
from aotc.ir.linear_map import LinearMap, move_outs

__all__ = ["Ins", "LinearLayout", "Outs", "Sizes", "log2_exact"]

_CACHED_RESULTS = 8192


class LinearLayout(LinearMap):
    """Map places of the hardware linearly to the elements of a tile; see the module's docstring."""

    __slots__ = ()

    @classmethod
    def identity(cls, in_dim: str, out_dim: str, size: int) -> LinearLayout:
        """Return the identity from `in_dim` to `out_dim`."""
        bits = log2_exact(size)
        return cls.from_columns([(in_dim, [1 << bit for bit in range(bits)])], ((out_dim, bits),))

    @classmethod
    def zeros(cls, in_dim: str, out_dim: str, size: int) -> LinearLayout:
        """Return the layout from all of `in_dim` to 0 of `out_dim`, an axis of extent 1."""
        return cls.from_columns([(in_dim, [0] * log2_exact(size))], ((out_dim, 0),))

    # ---- properties ---------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return _rank(self)

    def is_surjective(self) -> bool:
        """Say whether every element of the tile is held somewhere."""
        return _rank(self) == self.total_out_bits

    def is_injective(self) -> bool:
        """Say whether no element is held twice."""
        return _rank(self) == self.total_in_bits

    def is_bijective(self) -> bool:
        return self.is_injective() and self.is_surjective()

    def free_variable_masks(self) -> dict[str, int]:
        """Return, for each input, the mask of its redundant bits.

        A bit is free when lower bits, in the order of the dimensions, already reach its basis.
        Ensures: the places with all free bits 0 hold every held element exactly once. So a thread
        with a free lane or warp bit set need not store anything.

            #ll<register=[[1]] lane=[[2],[0],[3]] : [4]>  ->  {"register": 0, "lane": 0b110}
        """
        return dict(_free_masks(self))

    def zero_mask(self, in_dim: str) -> int:
        """Return the mask of the bits of `in_dim` with zero bases: pure broadcast."""
        return sum((column == 0) << bit for bit, column in enumerate(self.columns(in_dim)))

    def num_consecutive(self, in_dim: str = "register", order: Sequence[int] | None = None) -> int:
        """Return the length of aligned runs of consecutive values of `in_dim`.

        `order` lists the axes, fastest first; by default the last axis is fastest. Ensures: with
        result `n`, elements `k*n … k*n + n-1` of `in_dim` step by one along the flattened order.
        The first is at a multiple of `n`, for any values of the other inputs.

            #ll<register=[[0,1],[0,2],[1,0]] lane=[[0,4]] : [2,8]>   ->  4;  order (0, 1) -> 1
        """
        rank = len(self.outs)
        layout = self
        if order is not None and tuple(order) != tuple(range(rank - 1, -1, -1)):
            layout = self.transpose(tuple(reversed(order)))
        columns = layout.columns(in_dim)
        run = 0
        while run < len(columns) and columns[run] == 1 << run:
            run += 1
        other_columns = 0
        for name, other in layout.ins:
            for column in other[run:] if name == in_dim else other:
                other_columns |= column
        aligned = (other_columns & -other_columns).bit_length() - 1 if other_columns else run
        return 1 << min(run, aligned)

    def is_identity_on(self, dim: str) -> bool:
        """Return whether output `dim` is input `dim`, which changes no other output."""
        if dim not in self.in_dims or dim not in self.out_dims:
            return False
        rest = [name for name in self.in_dims if name != dim]
        shift = lowest_bit(self.outs, dim)
        columns = self.columns(dim)
        return (
            self.out_bits(dim) == len(columns)
            and all(column == 1 << (shift + bit) for bit, column in enumerate(columns))
            and self.sublayout_is_zero(rest, [dim])
        )

    # ---- algebra ------------------------------------------------------------------------------

    def compose(self, outer: LinearLayout) -> LinearLayout:
        """Return `outer` after `self`: place -> `outer(self(place))`.

        Requires: the outputs of `self` are the inputs of `outer`, in any order, none larger.
        """
        if set(self.out_dims) != set(outer.in_dims):
            raise ValueError(f"outputs of {self} are not the inputs of {outer}")
        outer_columns: list[int] = []
        for name, bits in reversed(self.outs):
            columns = outer.columns(name)
            if bits > len(columns):
                raise ValueError(f"output {name} of {self} does not fit the input of {outer}")
            outer_columns += columns[:bits]
        return LinearLayout.from_columns(
            [
                (name, [gf2.combine(outer_columns, column) for column in columns])
                for name, columns in self.ins
            ],
            outer.outs,
        )

    def invert(self) -> LinearLayout:
        """Return the inverse map, from coordinates to places.

        Requires: bijective. Ensures: `x.compose(x.invert())` and the reverse are identities, and
        `x.invert().invert() == x`. Dimensions come out in reverse order, so the packed bits of both
        sides are unchanged.
        """
        if not self.is_bijective():
            raise ValueError(f"{self} is not bijective")
        return _right_inverse(self)

    def pseudo_invert(self) -> LinearLayout:
        """Return a map from coordinates to one place of the element, with free bits 0.

        Requires: surjective. Ensures: `x.pseudo_invert().compose(x)` is the identity.
        """
        if not self.is_surjective():
            raise ValueError(f"{self} is not surjective")
        return _right_inverse(self)

    def invert_and_compose(self, outer: LinearLayout) -> LinearLayout:
        """Return `outer⁻¹ ∘ self`, from the places of `self` to those of `outer`.

        Requires: the same outputs with the same sizes, and every element of `self` in `outer`.
        Ensures: with `c = b.invert_and_compose(a)`, `a(c(x)) == b(x)` for every `x`. Where `a`
        holds an element more than once, its free bits are 0 in the answer.

            a = #ll<register=[[1]] lane=[[2]] : [4]>     c = #ll<register=[[0,1]] lane=[[1,0]]
            b = #ll<register=[[2]] lane=[[1]] : [4]>          : [lane=2,register=2]>
        """
        return _invert_and_compose(self, outer)

    def __mul__(self, other: LinearLayout) -> LinearLayout:
        """Return the product: `other` lays out copies of the tile `self`.

        Input and output dimensions are united by name, the bits of `self` below those of `other`.

            #ll<register=[[1]] : [2]> * #ll<lane=[[1],[2]] : [4]>
                == #ll<register=[[1]] lane=[[2],[4]] : [8]>
        """
        names = list(dict.fromkeys((*self.out_dims, *other.out_dims)))
        mine, theirs = dict(self.outs), dict(other.outs)
        outs = tuple((name, mine.get(name, 0) + theirs.get(name, 0)) for name in names)
        place_mine = scatter(self.outs, outs)
        place_theirs = scatter(other.outs, outs, mine)
        in_names = dict.fromkeys((*self.in_dims, *other.in_dims))
        return LinearLayout.from_columns(
            [
                (
                    name,
                    [gf2.combine(place_mine, c) for c in self.columns(name)]
                    + [gf2.combine(place_theirs, c) for c in other.columns(name)],
                )
                for name in in_names
            ],
            outs,
        )

    def divide_left(self, tile: LinearLayout) -> LinearLayout | None:
        """Return the `q` with `tile * q == self`, or None if there is none.

        The dimensions of `q` are those of `self`, with the bits of `tile` taken off.
        """
        mine = dict(tile.outs)
        if not (set(mine) <= set(self.out_dims) and set(tile.in_dims) <= set(self.in_dims)):
            return None
        if any(bits > self.out_bits(name) for name, bits in tile.outs):
            return None
        outs = tuple((name, bits - mine.get(name, 0)) for name, bits in self.outs)
        targets = scatter(outs, self.outs, mine)
        back = {unit: bit for bit, unit in enumerate(targets)}
        high = sum(targets)
        ins: list[tuple[str, list[int]]] = []
        for name, columns in self.ins:
            rest = columns[tile.in_bits(name) :]
            if len(columns) < tile.in_bits(name) or any(column & ~high for column in rest):
                return None
            ins.append((name, [move_bits(column, back) for column in rest]))
        quotient = LinearLayout.from_columns(ins, outs)
        product = tile * quotient
        return quotient if _same_map(product, self) else None

    def quotient(self, dims: Iterable[str]) -> LinearLayout | None:
        """Return the layout without `dims`, or None unless it is the identity on each of them."""
        names = tuple(dims)
        if not all(self.is_identity_on(name) for name in names):
            return None
        return self.sublayout(
            [name for name in self.in_dims if name not in names],
            [name for name in self.out_dims if name not in names],
        )

    # ---- shape operations of tiles ---------------------------------------------------------------
    # All are exact: every register of every thread holds the operation's result on the element it
    # held before. Outputs are positional (`dim0`, …) afterwards.

    def transpose(self, order: Sequence[int]) -> LinearLayout:
        """Permute the axes: axis `i` of the result is axis `order[i]`.

        Requires: `order` is a permutation of the axes.
        """
        return _transpose(self, tuple(order))

    def reshape(self, shape: Sequence[int]) -> LinearLayout:
        """Relinearise row-major. Requires: the same number of elements.

        #ll<register=[[0,1],[0,2],[1,0]] : [2,4]>.reshape((8,)) == #ll<register=[[1],[2],[4]] : [8]>
        """
        return _reshape(self, tuple(shape))

    def expand_dims(self, axis: int) -> LinearLayout:
        """Insert an axis of extent 1 before `axis`."""
        shape = self.shape
        if not 0 <= axis <= len(shape):
            raise ValueError(f"axis {axis} is outside 0..{len(shape)}")
        return self.reshape((*shape[:axis], 1, *shape[axis:]))

    def reduce(self, axis: int) -> LinearLayout:
        """Drop an axis: elements that differ only along it become one.

        Ensures: the number of registers is unchanged; bases along the axis become zero, so
        `free_variable_masks` names the threads with copies.

            #ll<register=[[0,1],[1,0]] lane=[[0,2]] : [2,4]>.reduce(1)
                == #ll<register=[[0],[1]] lane=[[0]] : [2]>
        """
        return _reduce(self, axis)

    def broadcast_source(self, shape: Sequence[int]) -> LinearLayout:
        """Return the layout of a tile of `shape` whose broadcast to this one moves nothing.

        Requires: `shape` has this layout's extents or 1 for each axis. Ensures: register for
        register, a thread holds the element it repeats.
        """
        layout = self
        if len(shape) != len(self.outs):
            raise ValueError(f"{tuple(shape)} does not broadcast to {self.shape}")
        for axis, (have, want) in enumerate(zip(shape, self.shape, strict=True)):
            if have == 1 != want:
                layout = layout.reduce(axis).expand_dims(axis)
            elif have != want:
                raise ValueError(f"{tuple(shape)} does not broadcast to {self.shape}")
        return layout

    def broadcast_to(self, shape: Sequence[int]) -> LinearLayout:
        """Repeat axes of extent 1 in new high registers, the last axis lowest.

        Ensures: register `r` of the result is a copy of register `r mod registers`.
        """
        wide = self.reshape(self.shape)
        if len(shape) != len(wide.shape):
            raise ValueError(f"{self.shape} does not broadcast to {tuple(shape)}")
        outs = sized(shape)
        wide = move_outs(wide, scatter(wide.outs, outs), outs)
        added: list[int] = []
        shift = 0
        for have, want in reversed(list(zip(self.shape, shape, strict=True))):
            if have == 1 != want:
                added += [1 << (shift + bit) for bit in range(log2_exact(want))]
            elif have != want:
                raise ValueError(f"{self.shape} does not broadcast to {tuple(shape)}")
            shift += log2_exact(want)
        return wide.with_columns("register", (*wide.columns("register"), *added))

    def join(self) -> LinearLayout:
        """Return the layout of two such tiles joined along a new last axis of extent 2.

        Ensures: register `2r` holds register `r` of the first tile and `2r + 1` of the second.
        """
        wide = move_outs(
            self, [2 << bit for bit in range(self.total_out_bits)], sized((*self.shape, 2))
        )
        return wide.with_columns("register", (1, *wide.columns("register")))

    def split_register_bit(self) -> int | None:
        """Return the register bit selecting the half along the last axis alone, or None.

        Half `h` of a thread is then its registers with this bit equal to `h`, in order.
        """
        if not self.shape or self.shape[-1] != 2:
            return None
        columns = self.columns("register")
        if 1 not in columns or sum(column & 1 for column in self.all_columns()) != 1:
            return None
        return columns.index(1)

    def split(self) -> LinearLayout:
        """Return the layout of each half along the last axis. Undoes `join`.

        Requires: `split_register_bit()` is not None.
        """
        bit = self.split_register_bit()
        if bit is None:
            raise ValueError(f"no register alone selects the half along the last axis of {self}")
        columns = self.columns("register")
        rest = self.with_columns("register", columns[:bit] + columns[bit + 1 :])
        return rest.reduce(len(self.outs) - 1)

    def concat(self, axis: int = 0) -> LinearLayout:
        """Return the layout of two such tiles concatenated along `axis`.

        Ensures: the registers of the first tile precede the registers of the second.
        """
        shape = self.shape
        if not 0 <= axis < len(shape):
            raise ValueError(f"axis {axis} is outside 0..{len(shape) - 1}")
        outs = sized((*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]))
        wide = self.reshape(shape)
        wide = move_outs(wide, scatter(wide.outs, outs), outs)
        new_bit = 1 << (lowest_bit(outs, f"dim{axis}") + log2_exact(shape[axis]))
        return wide.with_columns("register", (*wide.columns("register"), new_bit))

    # ---- text ---------------------------------------------------------------------------------

    def to_text(self) -> str:
        """Return the canonical one-line form, `#ll<register=[[0,1]] lane=[[1,0]] : [2,2]>`.

        Outputs other than `dim0`, `dim1`, … are named: `#ll<offset=[[1]] : [bank=2]>`.
        """
        return _to_text(self)

    @staticmethod
    def from_text(text: str) -> LinearLayout:
        """Parse the text of `to_text`. Raises: ValueError for any other text."""
        return _from_text(text)

    def __str__(self) -> str:
        return _to_text(self)

    def __repr__(self) -> str:
        return _to_text(self)


def _same_map(left: LinearLayout, right: LinearLayout) -> bool:
    """Compare up to the order of the dimensions."""
    return (
        set(left.in_dims) == set(right.in_dims)
        and dict(left.outs) == dict(right.outs)
        and left.transpose_ins(right.in_dims).transpose_outs(right.out_dims) == right
    )


# ---- memoised results -------------------------------------------------------------------------
# Outside the class, so the cache does not depend on bound methods; layouts hash in O(1).


@lru_cache(maxsize=_CACHED_RESULTS)
def _rank(layout: LinearLayout) -> int:
    return gf2.rank(layout.all_columns())


@lru_cache(maxsize=_CACHED_RESULTS)
def _free_masks(layout: LinearLayout) -> tuple[tuple[str, int], ...]:
    span = gf2.Span()
    return tuple(
        (name, sum((not span.add(column)) << bit for bit, column in enumerate(columns)))
        for name, columns in layout.ins
    )


@lru_cache(maxsize=_CACHED_RESULTS)
def _right_inverse(layout: LinearLayout) -> LinearLayout:
    span = gf2.Span(layout.all_columns())
    solutions = [span.solve(1 << bit) for bit in range(layout.total_out_bits)]
    ins: list[tuple[str, list[int]]] = []
    for name, bits in reversed(layout.outs):
        ins.append((name, [mask for mask in solutions[:bits] if mask is not None]))
        solutions = solutions[bits:]
    return LinearLayout.from_columns(ins, _ins_as_outs(layout))


@lru_cache(maxsize=_CACHED_RESULTS)
def _invert_and_compose(layout: LinearLayout, outer: LinearLayout) -> LinearLayout:
    if dict(layout.outs) != dict(outer.outs):
        raise ValueError(f"{layout} and {outer} have different outputs")
    layout = layout.transpose_outs(outer.out_dims)
    span = gf2.Span(outer.all_columns())
    ins: list[tuple[str, list[int]]] = []
    for name, columns in layout.ins:
        masks: list[int] = []
        for column in columns:
            mask = span.solve(column)
            if mask is None:
                raise ValueError(f"{outer} does not hold all that {layout} holds")
            masks.append(mask)
        ins.append((name, masks))
    return LinearLayout.from_columns(ins, _ins_as_outs(outer))


def _ins_as_outs(layout: LinearLayout) -> Outs:
    """Return the inputs of a layout as outputs: reversed, so packed bits keep their place."""
    return tuple((name, len(columns)) for name, columns in reversed(layout.ins))


@lru_cache(maxsize=_CACHED_RESULTS)
def _transpose(layout: LinearLayout, order: tuple[int, ...]) -> LinearLayout:
    if sorted(order) != list(range(len(layout.outs))):
        raise ValueError(f"{order} does not permute the {len(layout.outs)} axes of {layout}")
    names = layout.out_dims
    transposed = layout.transpose_outs([names[axis] for axis in order])
    return transposed.rename_outs([f"dim{axis}" for axis in range(len(order))])


@lru_cache(maxsize=_CACHED_RESULTS)
def _reshape(layout: LinearLayout, shape: tuple[int, ...]) -> LinearLayout:
    return layout.reshape_outs(shape)


@lru_cache(maxsize=_CACHED_RESULTS)
def _reduce(layout: LinearLayout, axis: int) -> LinearLayout:
    names = layout.out_dims
    if not 0 <= axis < len(names):
        raise ValueError(f"axis {axis} is outside 0..{len(names) - 1}")
    reduced = layout.sublayout(layout.in_dims, names[:axis] + names[axis + 1 :])
    return reduced.rename_outs([f"dim{i}" for i in range(len(names) - 1)])


@lru_cache(maxsize=_CACHED_RESULTS)
def _to_text(layout: LinearLayout) -> str:
    bases = [(name, layout.bases(name)) for name in layout.in_dims]
    return format_layout(bases, [(name, 1 << bits) for name, bits in layout.outs])


@lru_cache(maxsize=_CACHED_RESULTS)
def _from_text(text: str) -> LinearLayout:
    return LinearLayout(*parse_layout(text))
