"""Packing of coordinates, and of the bases of layouts, into integers.

An element is its row-major index: the last dimension has the low bits. These functions move bits
between packings with different cuts of the index; they know dimensions and sizes, not layouts.

Invariant: all sizes are powers of two, so packing is concatenation of bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

# Dimensions with their sizes: named, or the positional `dim0`, `dim1`, … of a shape.
Sizes: TypeAlias = Mapping[str, int] | Sequence[int]
Ins: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
Outs: TypeAlias = tuple[tuple[str, int], ...]


def log2_exact(size: int) -> int:
    """Return the exponent of a power of two. Raises: ValueError for any other size."""
    if size < 1 or size & (size - 1):
        raise ValueError(f"{size} is not a power of two")
    return size.bit_length() - 1


def sized(sizes: Sizes) -> Outs:
    """Return dimensions with their numbers of bits."""
    if isinstance(sizes, Mapping):
        return tuple((name, log2_exact(size)) for name, size in sizes.items())
    return tuple((f"dim{axis}", log2_exact(size)) for axis, size in enumerate(sizes))


def pack(coords: Sequence[int], outs: Outs) -> int:
    """Return the row-major index. Raises: ValueError for coordinates outside the dimensions."""
    if len(coords) != len(outs):
        raise ValueError(f"{list(coords)} has not one coordinate for each of {dict(outs)}")
    index = 0
    for coord, (name, bits) in zip(coords, outs, strict=True):
        if coord < 0 or coord >> bits:
            raise ValueError(f"{name} = {coord} is outside 0..{(1 << bits) - 1}")
        index = index << bits | coord
    return index


def unpack(index: int, outs: Outs) -> tuple[int, ...]:
    """Return the coordinates of a row-major index."""
    coords: list[int] = []
    for _, bits in reversed(outs):
        coords.append(index & ((1 << bits) - 1))
        index >>= bits
    return tuple(reversed(coords))


def lowest_bit(outs: Outs, out_dim: str) -> int:
    """Return the position of the lowest bit of `out_dim` in a packed index."""
    shift = 0
    for name, bits in reversed(outs):
        if name == out_dim:
            return shift
        shift += bits
    raise ValueError(f"{out_dim} is not an output of {outs}")


def scatter(source: Outs, target: Outs, lowest: Mapping[str, int] | None = None) -> list[int]:
    """Return where each packed bit of `source` goes in `target`, as unit vectors.

    Bit `b` of a dimension becomes bit `b + lowest[dimension]`, or `b`, of the same one.
    """
    above = lowest or {}
    return [
        1 << (lowest_bit(target, name) + above.get(name, 0) + bit)
        for name, bits in reversed(source)
        for bit in range(bits)
    ]


def gather_bits(columns: Iterable[int], positions: Sequence[int]) -> list[int]:
    """Return each column with bit `positions[i]` moved to bit `i`, all others dropped."""
    return [sum((c >> p & 1) << i for i, p in enumerate(positions)) for c in columns]


def move_bits(column: int, where: Mapping[int, int]) -> int:
    """Return the column with unit vector `u` moved to bit `where[u]`."""
    out = 0
    while column:
        low = column & -column
        out |= 1 << where[low]
        column ^= low
    return out
