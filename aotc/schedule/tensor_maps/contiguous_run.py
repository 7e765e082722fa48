"""Derive the contiguous run of memory touched by an access through pointers.

A tile contiguous in memory, in row-major order, needs no tensor map for a copy: an address and a length
suffice. A mask may end it anywhere; the length is then computed at run time. Bulk copies move multiples of
16 bytes, so start and end of a run must be provable multiples.

Invariant: the mask is true exactly for the elements before the end, at a multiple of 16 bytes, in all
launches that keep the signature's promises.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import TypeVar

from aotc.ir.core import Value
from aotc.ir.dialects import arith, gpu
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32, I64, PointerType, ScalarType, TileType, element_of
from aotc.schedule.analysis.affine import AffineAnalysis, axis_symbol
from aotc.schedule.analysis.axis import AxisAnalysis
from aotc.schedule.analysis.polynomial import ZERO, Polynomial
from aotc.schedule.analysis.promises import find_promises
from aotc.schedule.tensor_maps.pointer_box import UnmappableError

PIECE_BYTES = 16
Access = gpu.Load | gpu.Store | gpu.AtomicRmw
AccessT = TypeVar("AccessT", bound=Access)


@dataclass(frozen=True, slots=True)
class ContiguousRun:
    """A run of elements starting `start` elements after `base`.

    Its length is the least of `extent` and `ends`, or 0 unless all `conditions` are below 0.
    """

    base: Value
    start: Polynomial
    extent: int
    element_bytes: int
    ends: tuple[Polynomial, ...]
    conditions: tuple[Polynomial, ...]

    @property
    def size_bytes(self) -> int:
        """The length of the whole run."""
        return self.extent * self.element_bytes

    @property
    def symbols(self) -> tuple[int, ...]:
        """The symbols in address and length."""
        return sum((affine.symbols for affine in (self.start, *self.ends, *self.conditions)), ())

    def scalars(self, analysis: AffineAnalysis) -> list[Value]:
        """Return the scalars of `symbols`. Raises: UnmappableError if one wraps around."""
        sources = [analysis.sources[symbol] for symbol in self.symbols]
        values = [source for source in sources if isinstance(source, Value)]
        if len(values) < len(sources):
            raise UnmappableError("its address wraps around")
        return values


def run_of(access: Access, analysis: AffineAnalysis, facts: AxisAnalysis) -> ContiguousRun:
    """Return the run touched by a load, store or atomic of a tile.

    Raises: UnmappableError if no run can be derived.
    """
    kind = (access.out if isinstance(access, gpu.Load) else access.value).type
    assert isinstance(kind, TileType)
    shape, size_bytes = kind.shape, element_of(kind).size_bytes
    address = analysis[access.pointer]
    base = address.base
    if base is None or not isinstance(base.type, PointerType):
        raise UnmappableError(
            "its address is no sum of a pointer and products of scalars and indices"
        )
    start = address.offset - _position(shape)
    if _has_axes(start):
        raise UnmappableError("its elements do not lie one after the other")

    def begins_well(facts: AxisAnalysis) -> bool:
        return facts[access.pointer].divisibility[-1] % PIECE_BYTES == 0

    def ends_well(facts: AxisAnalysis) -> bool:
        return all(_divisor(end, analysis, facts) * size_bytes % PIECE_BYTES == 0 for end in ends)

    if not begins_well(facts):
        raise UnmappableError(
            f"it is not known to begin at a multiple of {PIECE_BYTES} bytes",
            find_promises(facts.kernel, [access.pointer], begins_well),
        )
    ends, conditions = _limits(access, shape, analysis)
    if not ends_well(facts):
        sources = [analysis.sources[symbol] for end in ends for symbol in end.symbols]
        raise UnmappableError(
            f"it is not known to end at a multiple of {PIECE_BYTES} bytes",
            find_promises(facts.kernel, [s for s in sources if isinstance(s, Value)], ends_well),
        )
    run = ContiguousRun(base, start, prod(shape), size_bytes, ends, conditions)
    if run.size_bytes % PIECE_BYTES:
        raise UnmappableError(f"it has only {run.size_bytes} bytes")
    return run


def _position(shape: tuple[int, ...]) -> Polynomial:
    """Return an element's row-major position in a tile."""
    total = ZERO
    for axis, extent in enumerate(shape):
        step = Polynomial.constant(prod(shape[axis + 1 :]))
        total += Polynomial.symbol(axis_symbol(axis)) * step if extent > 1 else ZERO
    return total


def _divisor(polynomial: Polynomial, analysis: AffineAnalysis, facts: AxisAnalysis) -> int:
    """Return a divisor of a number of elements, valid if the signature's promises hold."""

    def known(symbol: int) -> int:
        source = analysis.sources[symbol]
        return facts[source].divisibility[0] if isinstance(source, Value) else 1

    return gcd(*(factor * prod(map(known, monomial)) for monomial, factor in polynomial.terms))


def _limits(
    access: Access, shape: tuple[int, ...], analysis: AffineAnalysis
) -> tuple[tuple[Polynomial, ...], tuple[Polynomial, ...]]:
    """Return the run's ends by the mask, in elements, and its conditions on the whole run."""
    position = _position(shape)
    outermost = next((axis for axis, extent in enumerate(shape) if extent > 1), 0)
    row, row_elems = Polynomial.symbol(axis_symbol(outermost)), prod(shape[outermost + 1 :])
    limits = () if access.mask is None else analysis.bounds(access.mask)
    if limits is None:
        raise UnmappableError(
            "its mask is no conjunction of indices that are compared with scalars"
        )
    ends: list[Polynomial] = []
    conditions: list[Polynomial] = []
    for limit in limits:
        if not _has_axes(limit):
            conditions.append(limit)
        elif not _has_axes(position - limit):
            ends.append(position - limit)
        elif not _has_axes(row - limit):
            ends.append((row - limit) * Polynomial.constant(row_elems))
        elif not _always(limit, shape):
            raise UnmappableError("its mask does not just cut off its end")
    return tuple(ends), tuple(conditions)


def _has_axes(polynomial: Polynomial) -> bool:
    return any(symbol < 0 for symbol in polynomial.symbols)


def _always(limit: Polynomial, shape: tuple[int, ...]) -> bool:
    """Return whether a limit is below 0 for every element."""
    most = 0
    for monomial, factor in limit.terms:
        if len(monomial) > 1 or any(symbol >= 0 for symbol in monomial):
            return False
        extents = [shape[-1 - symbol] - 1 for symbol in monomial]
        most += max(0, factor * extents[0]) if extents else factor
    return most < 0


# ---- emission ---------------------------------------------------------------------------------


class RunEmitter:
    """Emit addresses and lengths of runs, in 64 bits against overflow."""

    def __init__(self, analysis: AffineAnalysis, builder: Builder) -> None:
        self.analysis = analysis
        self.place = builder

    def pointer(self, run: ContiguousRun) -> Value:
        """Return the address of the first element."""
        return self.place(arith.AddPtr(run.base, self._sum(run.start))).out

    def size_bytes(self, run: ContiguousRun) -> Value:
        """Return the length in bytes, an i32."""
        builder, whole = self.place, run.size_bytes
        if not run.ends and not run.conditions:
            return builder(arith.Constant(whole, I32)).out
        length = self._constant(run.extent)
        for end in run.ends:
            length = builder(arith.Min(length, self._sum(end))).out
        zero = self._constant(0)
        length = builder(arith.Max(length, zero)).out if run.ends else length
        for condition in run.conditions:
            holds = builder(arith.Compare(self._sum(condition), zero, "lt")).out
            length = builder(arith.Select(holds, length, zero)).out
        count = builder(arith.Cast(length, I32)).out
        return builder(arith.Mul(count, builder(arith.Constant(run.element_bytes, I32)).out)).out

    def _constant(self, value: int) -> Value:
        return self.place(arith.Constant(value, I64)).out

    def _sum(self, polynomial: Polynomial) -> Value:
        total: Value | None = None
        for monomial, factor in polynomial.terms:
            product = self._constant(factor) if factor != 1 or not monomial else None
            for symbol in monomial:
                value = self._symbol(symbol)
                product = value if product is None else self.place(arith.Mul(product, value)).out
            assert product is not None
            total = product if total is None else self.place(arith.Add(total, product)).out
        return self._constant(0) if total is None else total

    def _symbol(self, symbol: int) -> Value:
        source = self.analysis.sources[symbol]
        assert isinstance(source, Value)
        assert isinstance(source.type, ScalarType)
        return source if source.type == I64 else self.place(arith.Cast(source, I64)).out
