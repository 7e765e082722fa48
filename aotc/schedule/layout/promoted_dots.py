"""fp8 products that are kept apart from the accumulator, and promoted to it by additions in fp32.

`wgmma` sums fp8 products with some 13 bits, so only a part of K goes through one of its accumulators:
`promotion_interval` says how much. The next product is in flight while threads add the last one. Where
two products of all of the result would not fit beside the accumulator, they are of parts of it:

    p = dot(a[:64], b)
    q = dot(a[64:], b);  wait for p;  acc[:64] += p
                         wait for q;  acc[64:] += q

Invariant: every product is added once, in the order of K, and read only after a wait that covers it.
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
    """Return a part of a result, and how many of its products are in flight beside the accumulator.

    It is the largest of which two fit, else the largest that fits. `bits` are those of an element. With
    `num_columns`, only so many first ones are computed.
    """
    share = (num_columns or acc.shape[1]) / acc.shape[1]
    held = _registers(acc, bits)
    parts = list(_parts(acc, can_cut_columns=not num_columns))
    for count in (2, 1):
        for part, layout in parts:
            if (held + count * _registers(layout, bits)) * share <= PROMOTION_LIMIT:
                return part, count
    return None


def _parts(acc: LinearLayout, *, can_cut_columns: bool) -> Iterator[tuple[_Shape, LinearLayout]]:
    """Yield ever smaller parts of which every thread holds its share: fewer rows, then fewer columns."""
    part = (acc.shape[0], acc.shape[1])
    layout: LinearLayout | None = acc
    while layout is not None:
        yield part, layout
        rows, columns = part
        halves = [(rows // 2, columns)] if rows > ROWS else []
        halves += [(rows, columns // 2)] if can_cut_columns and columns > _LEAST_COLUMNS else []
        held = [(half, sub_tile(acc, half)) for half in halves]
        part, layout = next((each for each in held if each[1] is not None), (part, None))


def _registers(layout: LinearLayout, bits: int) -> int:
    return (1 << len(layout.bases("register"))) * bits // REGISTER_BITS


@dataclass(frozen=True)
class _Product:
    """A product in flight, and which part of the accumulator it is for."""

    dot: wgmma.Wgmma
    part: int


class PromotedDot:
    """A dot by wgmma while its products, and their promotion to the accumulator, are emitted."""

    def __init__(self, op: tile.Dot, a: Value, b: Value, acc: Value, place: Builder) -> None:
        self.op, self.a, self.b, self.place = op, a, b, place
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
        # The last product that was added. Another one begins in its registers: ptxas gives one that
        # begins in none registers of its own, and spills.
        self.added: Value | None = None

    def emit(self) -> Value:
        """Return the accumulator with all products added."""
        size = promotion_interval(self.op)
        zero = self.place(arith.Constant(value=False, type=I1)).out
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
        place, left, into = self.starts[number], self.a, self.added
        if isinstance(left.type, TileType):
            left = self._extract(left, (place[0], first), (self.part[0], size))
        if into is None:
            into = self.place(gpu.Undefined(self.sums[number].type)).out
        self.added = None
        how, columns = self.op.input_precision, self.op.num_columns
        start = place if len(self.starts) > 1 else ()
        dot = wgmma.Wgmma(left, self.b, into, zero, how, first, size, columns, start)
        self.in_flight.append(_Product(self.place(dot), number))

    def _promote(self) -> None:
        """Wait for the oldest product in flight and add it."""
        product = self.in_flight.pop(0)
        wait = wgmma.WgmmaWait([product.dot.out], len(self.in_flight), (self.op.num_columns,))
        self.added = self.place(wait).outs[0]
        total = arith.Add(self.sums[product.part], self.added)
        self.sums[product.part] = self.place(total).out

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
                self.place(gpu.Concat(self.sums[at : at + count], 1, band)).out for at in starts
            ]
        return self.place(gpu.Concat(bands, 0, self.layout)).out if rows < whole[0] else bands[0]

    def _extract(self, value: Value, start: _Shape, shape: _Shape) -> Value:
        if tile_shape(value) == shape:
            return value
        return self.place(gpu.Extract(value, start, shape)).out
