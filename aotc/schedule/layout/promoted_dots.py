"""fp8 products kept apart from the accumulator, and promoted to it by fp32 additions.

`wgmma` sums fp8 products with some 13 bits, so only a part of K, of `promotion_interval` elements,
goes through one of its accumulators. The next product is in flight while threads add the last one.
Where two products of the whole result would not fit beside the accumulator, they are of parts of
it:

    p = dot(a[:64], b)
    q = dot(a[64:], b);  wait for p;  acc[:64] += p
                         wait for q;  acc[64:] += q

Invariant: every product is added once, in the order of K, and read only after a wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aotc.ir.core import Value
from aotc.ir.dialects import arith, gpu, tile, wgmma
from aotc.ir.layout import LinearLayout
from aotc.ir.rewrite import Builder
from aotc.ir.sub_tile import sub_tile
from aotc.ir.tiles import tile_shape
from aotc.ir.types import FP8E4NV, FP8E5, I1, TileType, element_of
from aotc.ir.wgmma_tiling import K_BYTES, ROWS
from aotc.schedule.analysis.register_budget import PROMOTION_LIMIT, REGISTER_BITS

_LEAST_COLUMNS = 64
"""Narrower instructions wait for A, of which each reads as many bytes as a wide one."""

_Shape = tuple[int, int]


def promotion_interval(op: tile.Dot) -> int:
    """Return how much of K to accumulate before promotion to the accumulator, or 0 for all."""
    most = op.max_num_imprecise_acc
    if element_of(op.a.type) not in (FP8E4NV, FP8E5) or not most:
        return 0
    return min(tile_shape(op.a)[1], 1 << max(most, K_BYTES).bit_length() - 1)


def product_part(acc: LinearLayout, bits: int, num_columns: int = 0) -> tuple[_Shape, int] | None:
    """Return a part of a result, and its number of products in flight beside the accumulator.

    It is the largest with room for two, else the largest with room for one. `bits` is the element
    width. With `num_columns`, only the first so many are computed.
    """
    share = (num_columns or acc.shape[1]) / acc.shape[1]
    acc_registers = _registers(acc, bits)
    parts = list(_parts(acc, can_cut_columns=not num_columns))
    for count in (2, 1):
        for part, layout in parts:
            if (acc_registers + count * _registers(layout, bits)) * share <= PROMOTION_LIMIT:
                return part, count
    return None


def _parts(acc: LinearLayout, *, can_cut_columns: bool) -> Iterator[tuple[_Shape, LinearLayout]]:
    """Yield ever smaller parts held by all threads alike: fewer rows, then fewer columns."""
    part = (acc.shape[0], acc.shape[1])
    layout: LinearLayout | None = acc
    while layout is not None:
        yield part, layout
        rows, columns = part
        halves = [(rows // 2, columns)] if rows > ROWS else []
        halves += [(rows, columns // 2)] if can_cut_columns and columns > _LEAST_COLUMNS else []
        candidates = [(half, sub_tile(acc, half)) for half in halves]
        part, layout = next(
            (candidate for candidate in candidates if candidate[1] is not None), (part, None)
        )


def _registers(layout: LinearLayout, bits: int) -> int:
    return (1 << len(layout.bases("register"))) * bits // REGISTER_BITS


@dataclass(frozen=True)
class _Product:
    """A product in flight, and its part of the accumulator."""

    dot: wgmma.Wgmma
    part: int


class PromotedDot:
    """A dot by wgmma while its products, and their promotion to the accumulator, are emitted."""

    def __init__(self, op: tile.Dot, a: Value, b: Value, acc: Value, builder: Builder) -> None:
        self.op, self.a, self.b, self.builder = op, a, b, builder
        kind = acc.type
        assert isinstance(kind, TileType)
        assert kind.layout is not None
        self.layout, bits = kind.layout, element_of(kind).bits
        chosen = product_part(self.layout, bits, op.num_columns)
        assert chosen is not None, "wgmma was chosen for a product that fits"
        part, self.most_in_flight = chosen
        self.part = part
        self.starts = [
            (row, column)
            for row in range(0, kind.shape[0], part[0])
            for column in range(0, kind.shape[1], part[1])
        ]
        self.sums = [self._extract(acc, start, part) for start in self.starts]
        self.in_flight: list[_Product] = []
        # The last product added. The next one begins in its registers: otherwise ptxas allocates
        # further registers, and spills.
        self.added: Value | None = None

    def emit(self) -> Value:
        """Return the accumulator with all products added."""
        size = promotion_interval(self.op)
        zero = self.builder(arith.Constant(value=False, type=I1)).out
        for first in range(0, tile_shape(self.op.a)[1], size):
            for number in range(len(self.starts)):
                if len(self.in_flight) == self.most_in_flight:
                    self._promote()
                self._begin(number, first, size, zero)
        while self.in_flight:
            self._promote()
        return self._joined()

    def _begin(self, number: int, first: int, size: int, zero: Value) -> None:
        """Start the product of a part of the result, over `size` of K from `first` on."""
        origin, left, into = self.starts[number], self.a, self.added
        if isinstance(left.type, TileType):
            left = self._extract(left, (origin[0], first), (self.part[0], size))
        if into is None:
            into = self.builder(gpu.Undefined(self.sums[number].type)).out
        self.added = None
        how, columns = self.op.input_precision, self.op.num_columns
        start = origin if len(self.starts) > 1 else ()
        dot = wgmma.Wgmma(left, self.b, into, zero, how, first, size, columns, start)
        self.in_flight.append(_Product(self.builder(dot), number))

    def _promote(self) -> None:
        """Wait for the oldest product in flight and add it."""
        product = self.in_flight.pop(0)
        wait = wgmma.WgmmaWait([product.dot.out], len(self.in_flight), (self.op.num_columns,))
        self.added = self.builder(wait).outs[0]
        total = arith.Add(self.sums[product.part], self.added)
        self.sums[product.part] = self.builder(total).out

    def _joined(self) -> Value:
        """Return the accumulator of the sums of its parts."""
        whole, (rows, columns) = self.layout.shape, self.part
        bands = self.sums
        if columns < whole[1]:
            band = sub_tile(self.layout, (rows, whole[1]))
            assert band is not None, "threads hold their share of bands that have parts like that"
            count = whole[1] // columns
            starts = range(0, len(self.sums), count)
            bands = [
                self.builder(gpu.Concat(self.sums[start : start + count], 1, band)).out
                for start in starts
            ]
        return self.builder(gpu.Concat(bands, 0, self.layout)).out if rows < whole[0] else bands[0]

    def _extract(self, value: Value, start: _Shape, shape: _Shape) -> Value:
        if tile_shape(value) == shape:
            return value
        return self.builder(gpu.Extract(value, start, shape)).out
