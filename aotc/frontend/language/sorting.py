"""Sorting along the last axis: bitonic networks of pairwise minima and maxima.

An axis of 2**n elements becomes n axes of extent 2, one for each bit of the index. Elements with
indices that differ in one bit are the two halves along its axis. So a compare-exchange is split, minimum,
maximum, join, and movement between threads is an ordinary layout conversion.

The keys compared are signed integers with the order of the elements. Floats have the total order of
IEEE 754: -0 before 0, and a NaN beyond the infinity of its sign. So no element is lost. Inverting a key's
bits reverses the order, so runs to be sorted in the other direction are inverted first.

Source: K. E. Batcher, "Sorting networks and their applications" (1968); for the greatest k,
A. Shanbhag et al., "Efficient top-k query processing on massively parallel hardware" (2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language import operators
from aotc.frontend.language.convert import (
    bitcast,
    broadcast_to,
    cast,
    integer_range,
    static_axis,
    static_bool,
    static_int,
    to_value,
)
from aotc.frontend.language.shapes import reshape, transpose
from aotc.frontend.values import Operand, element, shape, show
from aotc.ir.core import Value
from aotc.ir.dialects import arith, tile
from aotc.ir.layout import log2_exact
from aotc.ir.types import FP32, I32, I64, SCALARS, ScalarType, TileType

# ---- keys -------------------------------------------------------------------------------------


def _key_type(kind: ScalarType) -> ScalarType:
    return I32 if kind.bits <= I32.bits else I64


def _to_keys(emit: Emitter, value: Value, kind: ScalarType) -> Value:
    """Return signed integer keys with the order of the elements."""
    key = _key_type(kind)
    if kind.is_float:
        bits = cast(emit, bitcast(emit, value, SCALARS[f"i{kind.bits}"]), key)
        return _fold_negative(emit, bits, kind)
    if kind.is_signed or kind.bits < key.bits:
        return cast(emit, value, key)
    return operators.bit_xor(emit, bitcast(emit, value, key), integer_range(key)[0])


def _from_keys(emit: Emitter, keys: Value, kind: ScalarType) -> Value:
    """Undo `_to_keys`."""
    key = _key_type(kind)
    if kind.is_float:
        bits = cast(emit, _fold_negative(emit, keys, kind), SCALARS[f"i{kind.bits}"])
        return bitcast(emit, bits, kind)
    if kind.is_signed or kind.bits < key.bits:
        return cast(emit, keys, kind)
    return bitcast(emit, operators.bit_xor(emit, keys, integer_range(key)[0]), kind)


def _fold_negative(emit: Emitter, bits: Value, kind: ScalarType) -> Value:
    """Invert all bits but the sign of negative floats, to order them as integers; an involution."""
    sign = operators.shift_right(emit, bits, _key_type(kind).bits - 1)
    magnitude = operators.bit_and(emit, sign, (1 << kind.bits - 1) - 1)
    return operators.bit_xor(emit, bits, magnitude)


# ---- the network ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cube:
    """Keys of shape (rows, 2, …, 2); `bits` maps axes to bits of the index."""

    keys: Value
    bits: tuple[int, ...]


def _cube(emit: Emitter, keys: Value) -> _Cube:
    extents = shape(keys)
    num_bits = log2_exact(extents[-1])
    keys = reshape(emit, keys, prod(extents[:-1]), *[2] * num_bits)
    return _Cube(keys, tuple(reversed(range(num_bits))))


def _flat(emit: Emitter, cube: _Cube, rows: tuple[int, ...]) -> Value:
    """Reshape keys to (*rows, n) in the order of their indices."""
    ordered = sorted(cube.bits, reverse=True)
    order = (0, *(1 + cube.bits.index(bit) for bit in ordered))
    keys = transpose(emit, cube.keys, order)
    return reshape(emit, keys, *rows, 1 << len(ordered))


def _split_at(emit: Emitter, cube: _Cube, bit: int) -> tuple[_Cube, _Cube]:
    """Split keys by `bit` of their index, 0 first."""
    axis, last = 1 + cube.bits.index(bit), len(cube.bits)
    order = (*(i for i in range(last + 1) if i != axis), axis)
    parts = emit(tile.Split(transpose(emit, cube.keys, order)))
    bits = tuple(i for i in cube.bits if i != bit)
    return _Cube(parts.lhs, bits), _Cube(parts.rhs, bits)


def _invert(emit: Emitter, cube: _Cube) -> _Cube:
    return _Cube(operators.bit_xor(emit, cube.keys, -1), cube.bits)


def _invert_at(emit: Emitter, cube: _Cube, bit: int, digit: int = 1) -> _Cube:
    """Invert the keys with `digit` at `bit` of their index; a missing bit counts as 0."""
    if bit not in cube.bits:
        return cube if digit else _invert(emit, cube)
    kind = element(cube.keys)
    assert isinstance(kind, ScalarType)
    digits = cast(emit, emit(tile.Arange(0, 2)).out, kind)
    mask = operators.negate(emit, digits) if digit else operators.subtract(emit, digits, 1)
    extents = [1] * (1 + len(cube.bits))
    extents[1 + cube.bits.index(bit)] = 2
    mask = broadcast_to(emit, reshape(emit, mask, *extents), shape(cube.keys))
    return _Cube(operators.bit_xor(emit, cube.keys, mask), cube.bits)


@dataclass(frozen=True, slots=True)
class _Network:
    """The steps of a sorting network, and its order."""

    emit: Emitter
    descending: bool

    def exchange(self, low: _Cube, high: _Cube, bit: int) -> _Cube:
        """Compare-exchange two halves and join them along `bit`."""
        first, second = self.first(low, high), self.second(low, high)
        return _Cube(self.emit(tile.Join(first.keys, second.keys)).out, (*low.bits, bit))

    def first(self, low: _Cube, high: _Cube) -> _Cube:
        pick = arith.Max if self.descending else arith.Min
        return _Cube(self.emit(pick(low.keys, high.keys)).out, low.bits)

    def second(self, low: _Cube, high: _Cube) -> _Cube:
        pick = arith.Min if self.descending else arith.Max
        return _Cube(self.emit(pick(low.keys, high.keys)).out, low.bits)

    def merge(self, cube: _Cube, num_bits: int) -> _Cube:
        """Sort bitonic runs of 2**num_bits keys."""
        for bit in reversed(range(num_bits)):
            cube = self.exchange(*_split_at(self.emit, cube, bit), bit)
        return cube

    def sort_runs(self, cube: _Cube, num_bits: int) -> _Cube:
        """Sort runs of 2**num_bits keys; every second run is inverted and stays inverted.

        Runs of one key need no work; none is inverted.
        """
        if not num_bits:
            return cube
        cube = _invert_at(self.emit, cube, 1)
        for bit in range(num_bits):
            low, high = _split_at(self.emit, cube, bit)
            if bit:
                # Halves are sorted, the high one inverted; from here on runs of both halves are.
                low = _invert_at(self.emit, low, bit + 1)
                high = _invert_at(self.emit, high, bit + 1, 0)
            cube = self.merge(self.exchange(low, high, bit), bit)
        return cube

    def choose(self, cube: _Cube, num_bits: int) -> _Cube:
        """Keep the first 2**num_bits keys in sorted order; runs of that length are already sorted."""
        for bit in range(num_bits, len(cube.bits)):
            low, high = _split_at(self.emit, cube, bit)
            if num_bits:
                high = _invert(self.emit, high)
            # The one forwards, the other backwards: the first of each pair are the first of all.
            cube = self.first(low, high)
            if num_bits:
                cube = self.merge(_invert_at(self.emit, cube, bit + 1), num_bits)
        return cube


# ---- the functions ----------------------------------------------------------------------------


def _sortable(emit: Emitter, operand: Operand, dim: Operand, name: str) -> tuple[Value, ScalarType]:
    value = to_value(emit, operand, f"a tile for tl.{name}")
    kind = element(value)
    if not isinstance(value.type, TileType) or not isinstance(kind, ScalarType):
        raise mistake(f"tl.{name} takes a tile of numbers, got {show(value)}")
    last = len(shape(value)) - 1
    axis = last if dim is None else static_axis(dim, last + 1, "dim")
    if axis != last:
        raise mistake(
            f"tl.{name} goes along the last axis, {last} of {show(value)}, got dim={axis}",
            remedy="bring the axis to the end with tl.permute, and back afterwards",
        )
    return value, kind


def sort(
    emit: Emitter,
    x: Operand,
    dim: Operand = None,
    descending: Operand = False,  # noqa: FBT002 - Triton's signature
) -> Value:
    """Sort along the last axis, the least first, or the greatest if `descending`."""
    value, kind = _sortable(emit, x, dim, "sort")
    network = _Network(emit, static_bool(descending, "descending"))
    cube = _cube(emit, _to_keys(emit, value, kind))
    cube = network.sort_runs(cube, len(cube.bits))
    return _from_keys(emit, _flat(emit, cube, shape(value)[:-1]), kind)


def topk(
    emit: Emitter,
    x: Operand,
    k: Operand,
    dim: Operand = None,
    descending: Operand = True,  # noqa: FBT002 - Triton's signature
) -> Value:
    """Return the greatest `k` along the last axis, the greatest first; or the least, upwards.

    Narrow types are widened as by `max`, unless all elements are kept.
    """
    value, kind = _sortable(emit, x, dim, "topk")
    count, extent = static_int(k, "k"), shape(value)[-1]
    if count < 1 or count & (count - 1) or count > extent:
        raise mistake(
            f"k must be a power of two from 1 to {extent}, the last extent of {show(value)}, "
            f"got {count}",
            remedy="take more and mask what is too much",
        )
    network = _Network(emit, static_bool(descending, "descending"))
    cube, num_bits = _cube(emit, _to_keys(emit, value, kind)), log2_exact(count)
    cube = network.choose(network.sort_runs(cube, num_bits), num_bits)
    chosen = _from_keys(emit, _flat(emit, cube, shape(value)[:-1]), kind)
    if count == extent or kind.bits >= I32.bits:
        return chosen
    return cast(emit, chosen, FP32 if kind.is_float else I32)


def bitonic_merge(
    emit: Emitter,
    x: Operand,
    dim: Operand = None,
    descending: Operand = False,  # noqa: FBT002 - Triton's signature
) -> Value:
    """Sort a bitonic sequence along the last axis."""
    value, kind = _sortable(emit, x, dim, "bitonic_merge")
    network = _Network(emit, static_bool(descending, "descending"))
    cube = _cube(emit, _to_keys(emit, value, kind))
    cube = network.merge(cube, len(cube.bits))
    return _from_keys(emit, _flat(emit, cube, shape(value)[:-1]), kind)


FUNCTIONS: dict[str, Callable[..., Operand]] = {
    "sort": sort,
    "topk": topk,
    "bitonic_merge": bitonic_merge,
}
