"""Derive the tensor box touched by an access through pointers.

The address of each element is a pointer argument plus, for every axis of the tile, (start + position) *
stride. The mask compares indices with the ends of the tensor. Strides and ends are computed from launch
arguments. The mask tells which part of the address is the index along an axis, so a bound moves with its
index. Unmasked parts become axes of their own with an end out of reach. An index along no axis of the tile,
such as a batch number, becomes an axis where the box has one element.

A map cannot hold an end computed or loaded by the kernel, such as the length of a sequence starting
anywhere in a tensor. Then the box counts from the end of an artificial axis of `FAR` rows: row i of n is
row FAR - n + i, and hardware clips rows beyond n. Two more axes correct the address: one counts rows, and a
step along the other is 2^34 elements less a row. Addresses wrap modulo 2^64.

Guards collect the launch's checks: the tensor is not empty, its rows are multiples of 16 bytes, and indices
taken modulo its extent wrap only between two boxes.

Invariant: in every launch that keeps the guards, an element of the box is inside the tensor exactly where
the mask is true, and its address is the access's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import gcd, prod

from aotc.ir.core import Kernel, Value
from aotc.ir.dialects import tile
from aotc.ir.dialects.descriptor import MAX_RANK, MIN_ROW_BYTES, TENSOR_ALIGNMENT_BYTES
from aotc.ir.params import TensorSource
from aotc.ir.types import I32, I64, PointerType, TileType, element_of
from aotc.schedule.analysis.affine import AffineAnalysis, Wrapped, axis_symbol
from aotc.schedule.analysis.axis import AxisAnalysis
from aotc.schedule.analysis.global_order import is_zero
from aotc.schedule.analysis.launch_text import Guarded, LaunchText
from aotc.schedule.analysis.polynomial import ONE, ZERO, Polynomial
from aotc.schedule.analysis.promises import find_promises, promise_multiples
from aotc.schedule.analysis.signs import Signs
from aotc.schedule.tensor_maps.clamped_indices import clamps_of, is_unseen

OUT_OF_REACH = (1 << 31) - 1
"""The extent of an unmasked axis, above every index of a box."""

FAR = 1 << 30
"""The rows of an axis with an end computed by the kernel; at least a sequence's length."""

_TURN = 1 << 34
"""A stride, in elements: FAR steps of it wrap the 64-bit address to itself, for any element size."""

_NOT_ALIGNED = f"{{}} is not known to be a multiple of {TENSOR_ALIGNMENT_BYTES} bytes"


class UnmappableError(Exception):
    """An access touches no box of a tensor; the message gives reason and remedy."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class TensorAxis:
    """An axis of a tensor: stride, extent (the least of `extents`), and start of the box.

    The box has `box` elements along it, from axis `tile_axis` of the tile, if any. With an end computed by
    the kernel, elements with a negative position plus `beyond` are in bounds. `is_cut`: a box may begin
    before or beyond the axis, and reads zeros there.
    """

    stride: Polynomial
    start: Polynomial = ZERO
    extents: tuple[Polynomial, ...] = ()
    tile_axis: int | None = None
    box: int = 1
    beyond: Polynomial | None = None
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class TensorBox:
    """The accessed box of the tensor `source`, outermost axis first."""

    source: TensorSource
    axes: tuple[TensorAxis, ...]
    guards: tuple[str, ...]


Access = tile.Load | tile.Store | tile.AtomicRmw


def box_of(
    access: Access, kernel: Kernel, analysis: AffineAnalysis, facts: AxisAnalysis
) -> TensorBox:
    """Return the box read by a load, or written by a store or an atomic.

    Raises: UnmappableError if no box can be derived.
    """
    return _Reading(access, kernel, analysis, facts, LaunchText(kernel, analysis)).box()


@dataclass
class _Reading:
    """Decompose the address and the mask of one access."""

    access: Access
    kernel: Kernel
    analysis: AffineAnalysis
    facts: AxisAnalysis
    text: LaunchText
    at_least_zero: dict[int, list[Polynomial]] = field(
        default_factory=dict[int, "list[Polynomial]"]
    )

    def box(self) -> TensorBox:
        address = self.analysis[self.access.pointer]
        base = address.base
        if base is None or base.owner is not self.kernel.body:
            raise UnmappableError(
                "its address is no sum of a pointer argument and products of scalars and indices"
            )
        self._check_base(base)
        axes = self._bounded(self._strides(address.offset))
        rest = address.offset
        for axis in axes:
            assert axis.tile_axis is not None
            position = Polynomial.symbol(axis_symbol(axis.tile_axis))
            rest -= (position + axis.start) * axis.stride
        box_axes = self._placed(axes, rest)
        self._check_shape(box_axes)
        box_axes = self._counted_from_ends(box_axes)
        if len(box_axes) > MAX_RANK:
            raise UnmappableError(
                f"its address has {len(box_axes)} axes, tensor copies at most {MAX_RANK}"
            )
        guards, extents = self._starts(box_axes), [self._extent(axis) for axis in box_axes]
        for extent in extents:
            guards.update(dict.fromkeys(extent.guards))
        source = TensorSource(
            self.kernel.params[base.index].name,
            tuple(extent.text for extent in extents),
            tuple(self.text.of(axis.stride) for axis in box_axes[:-1]),
        )
        return TensorBox(source, box_axes, tuple(guards))

    # -- the address -----------------------------------------------------------

    def _strides(self, offset: Polynomial) -> list[TensorAxis]:
        """Return the axes of the tile, the contiguous one last."""
        kind = self.access.pointer.type
        assert isinstance(kind, TileType)
        axes: list[TensorAxis] = []
        for number, extent in enumerate(kind.shape):
            if extent == 1:
                continue
            stride = offset.coefficient_of(axis_symbol(number))
            if not stride or not all(map(self.analysis.is_launch, stride.symbols)):
                raise UnmappableError(
                    f"its stride along axis {number} is no argument of the launch"
                )
            axes.append(TensorAxis(stride, tile_axis=number, box=extent))
        dense = next((axis for axis in reversed(axes) if axis.stride == ONE), None)
        if dense is None:
            arguments = [
                self.text.of(axis.stride) for axis in axes if self._is_argument(axis.stride)
            ]
            remedy = (
                f"promise that {' or '.join(arguments)} is 1, as a constant or '=1' in the signature"
                if arguments
                else ""
            )
            raise UnmappableError("no axis is known to be contiguous", remedy)
        axes.remove(dense)
        return [*axes, dense]

    def _placed(self, axes: Sequence[TensorAxis], rest: Polynomial) -> tuple[TensorAxis, ...]:
        """Assign the rest of the address to tile axes it steps along, or to new axes."""
        placed = list(axes)
        extra: dict[Polynomial, Polynomial] = {}
        for term in rest:
            for index, axis in enumerate(placed):
                steps = term.divided_by(axis.stride)
                if (
                    steps is not None
                    and self._may_move(axis, steps)
                    and not self._is_beside_rows(axis, steps)
                ):
                    extents = tuple(extent + steps for extent in axis.extents)
                    placed[index] = replace(axis, start=axis.start + steps, extents=extents)
                    break
            else:
                stride, index_term = term.factor(self.analysis.is_launch)
                if not self._is_aligned(stride):
                    stride *= Polynomial.constant(abs(term.terms[0][1]))
                    index_term = term.divided_by(stride) or ZERO
                extra[stride] = extra.get(stride, ZERO) + index_term
        return (*(TensorAxis(stride, start) for stride, start in extra.items()), *placed)

    def _may_move(self, axis: TensorAxis, steps: Polynomial) -> bool:
        """Return whether an axis may begin `steps` later.

        A bound must stay computable by the launch, and a coordinate must fit 32 bits.
        """
        if axis.beyond is not None:
            return True
        arguments = [symbol for symbol in steps.symbols if self.analysis.is_launch(symbol)]
        is_argument = arguments == [symbol for monomial, _ in steps.terms for symbol in monomial]
        if axis.extents:
            return is_argument
        if axis.stride == ONE and any(map(self._is_i64, steps.symbols)):
            return False
        return not arguments or (is_argument and self._is_i32(Polynomial.symbol(arguments[0])))

    def _counted_from_ends(self, axes: Sequence[TensorAxis]) -> tuple[TensorAxis, ...]:
        """Replace each axis with an end computed by the kernel by FAR rows and two more axes.

        An unmasked element has a nonnegative row before the end, so its row along the second axis is not
        negative either. A masked element's may be negative, and reads zeros.
        """
        signs = Signs(self.analysis)
        far, turn = Polynomial.constant(FAR), Polynomial.constant(_TURN)
        outer: list[TensorAxis] = []
        counted: list[TensorAxis] = []
        for axis in axes:
            if axis.beyond is None:
                counted.append(axis)
                continue
            if not signs.never_negative(axis.start) or signs.required:
                raise UnmappableError("an index may be negative", "compare it with 0 in the mask")
            outer += [
                TensorAxis(turn - axis.stride, far),
                TensorAxis(axis.stride, axis.start - axis.beyond, is_cut=True),
            ]
            reversed_axis = replace(
                axis, start=far + axis.beyond, extents=(far,), beyond=None, is_cut=True
            )
            counted.append(reversed_axis)
        return (*outer, *counted)

    def _is_beside_rows(self, axis: TensorAxis, steps: Polynomial) -> bool:
        """Return whether steps along unbounded rows are better an axis of their own.

        For example, heads side by side in a row, `head * 128 + feature`: each head becomes a row.
        """
        if axis.stride != ONE or axis.extents:
            return False
        is_endless = self.text.end_of_boxes(axis.start + steps, axis.box) is None
        ((_, factor),) = steps.terms
        return is_endless and self._is_aligned(Polynomial.constant(abs(factor)))

    # -- the mask --------------------------------------------------------------

    def _bounded(self, axes: Sequence[TensorAxis]) -> list[TensorAxis]:
        """Return the axes with starts and extents from the mask."""
        mask = self.access.mask
        limits = () if mask is None else self.analysis.bounds(mask)
        if mask is not None and clamps_of(mask, self.analysis):
            raise UnmappableError("its mask compares an index that is 0 from an end on")
        clamps = clamps_of(self.access.pointer, self.analysis)
        for clamp in clamps:
            if not isinstance(self.access, tile.Load) or not is_unseen(
                self.access, clamp, self.kernel, self.analysis
            ):
                raise UnmappableError(
                    "its index is 0 from an end on, and what it reads there may be stored",
                    "mask such elements of the load, or of the store",
                )
        if limits is None:
            raise UnmappableError(
                "its mask is no conjunction of indices that are compared with arguments"
            )
        other = self.access.other if isinstance(self.access, tile.Load) else None
        if mask is not None and not is_zero(other):
            raise UnmappableError(
                "masked elements become something else than 0",
                "load with other=0 and select afterwards",
            )
        by_number = {axis.tile_axis: axis for axis in axes}
        for limit in (*limits, *(limit for _, limit in clamps)):
            if limit.value is not None and limit.value < 0:
                continue
            number, sign = self._axis_of(limit)
            if sign < 0:
                self._add_lower(number, limit)
                continue
            axis = by_number[number]
            end, index = limit.split(self.analysis.is_launch)
            start = index - Polynomial.symbol(axis_symbol(number))
            if (axis.extents and axis.start != start) or axis.beyond is not None:
                raise UnmappableError(f"its mask compares two indices along axis {number}")
            if self._is_computed(start) and not axis.extents and axis.stride != ONE:
                by_number[number] = replace(axis, beyond=start + end)
                continue
            by_number[number] = replace(axis, start=start, extents=(*axis.extents, -end))
        return list(by_number.values())

    def _is_computed(self, start: Polynomial) -> bool:
        """Return whether a load's bound, the subtracted part, is computed by the kernel."""
        is_load = isinstance(self.access, tile.Load)
        return is_load and any(factor < 0 for _, factor in start.terms)

    def _axis_of(self, limit: Polynomial) -> tuple[int, int]:
        """Return the only axis in a limit, and the sign of its position."""
        axes = [symbol for symbol in limit.symbols if symbol < 0]
        if len(axes) != 1:
            subject = "several axes at once" if axes else "the same for a whole box"
            raise UnmappableError(f"a condition of its mask is about {subject}")
        sign = limit.coefficient_of(axes[0])
        if sign is None or sign.value not in (1, -1):
            raise UnmappableError("its mask compares multiples of an index")
        return -1 - axes[0], sign.value

    def _add_lower(self, number: int, limit: Polynomial) -> None:
        """Record a lower bound of the mask: `-index - 1` is below 0."""
        position = Polynomial.symbol(axis_symbol(number))
        self.at_least_zero.setdefault(number, []).append(-limit - ONE - position)

    # -- requirements ----------------------------------------------------------

    def _check_base(self, base: Value) -> None:
        info = self.kernel.params[base.index]
        if not isinstance(base.type, PointerType) or info.divisibility % TENSOR_ALIGNMENT_BYTES:
            raise UnmappableError(_NOT_ALIGNED.format(info.name), promise_multiples([info.name]))

    def _check_shape(self, axes: Sequence[TensorAxis]) -> None:
        size_bytes = self._size_bytes
        if axes[-1].box * size_bytes < MIN_ROW_BYTES:
            raise UnmappableError(f"its rows have less than {MIN_ROW_BYTES} bytes")
        for axis in axes[:-1]:
            if any(factor < 0 for _, factor in axis.stride.terms):
                raise UnmappableError("its address goes down along an axis")
            if not self._is_aligned(axis.stride):
                raise self._unaligned(axis.stride)
        if not self._is_aligned(axes[-1].start):
            raise UnmappableError("its rows are not known to begin at multiples of 16 bytes")
        for axis in axes:
            starts = () if axis.tile_axis is None else self.at_least_zero.get(axis.tile_axis, ())
            if any(start != axis.start for start in starts):
                raise UnmappableError(
                    f"its mask has a lower bound other than 0 on axis {axis.tile_axis}"
                )

    def _unaligned(self, stride: Polynomial) -> UnmappableError:
        """Return the error for a misaligned stride, with a remedy."""
        if stride.value is not None:
            return UnmappableError(f"it moves by {stride.value} elements along no axis")
        sources = [self.analysis.sources[symbol] for symbol in stride.symbols]
        values = [source for source in sources if isinstance(source, Value)]
        remedy = find_promises(self.kernel, values, lambda facts: self._is_aligned(stride, facts))
        return UnmappableError(_NOT_ALIGNED.format(self.text.of(stride)), remedy)

    def _is_argument(self, polynomial: Polynomial) -> bool:
        """Return whether a polynomial is a single launch argument."""
        symbols = polynomial.symbols
        if len(symbols) != 1 or polynomial != Polynomial.symbol(symbols[0]):
            return False
        source = self.analysis.sources[symbols[0]]
        return isinstance(source, Value) and source.owner is self.kernel.body

    @property
    def _size_bytes(self) -> int:
        pointer = element_of(self.access.pointer.type)
        assert isinstance(pointer, PointerType)
        return pointer.pointee.size_bytes

    def _is_aligned(self, polynomial: Polynomial, facts: AxisAnalysis | None = None) -> bool:
        """Return whether a number of elements is a multiple of 16 bytes.

        It must hold in all launches that keep the signature's promises.
        """
        divisor = gcd(
            *(
                factor * prod(self._divisor(symbol, facts or self.facts) for symbol in monomial)
                for monomial, factor in polynomial.terms
            )
        )
        return divisor * self._size_bytes % TENSOR_ALIGNMENT_BYTES == 0

    def _divisor(self, symbol: int, facts: AxisAnalysis) -> int:
        source = self.analysis.sources[symbol]
        return facts[source].divisibility[0] if isinstance(source, Value) else source.extent

    def _starts(self, axes: Sequence[TensorAxis]) -> dict[str, None]:
        """Return the guards on starts of boxes. Raises: UnmappableError if a start may be negative."""
        guards: dict[str, None] = {}
        signs = Signs(self.analysis)
        for axis in axes:
            for symbol in axis.start.symbols:
                source = self.analysis.sources[symbol]
                if isinstance(source, Wrapped) and source.divisor.value is None:
                    guards[f"{self.text.of(source.divisor)} > 0"] = None
                    guards[f"{self.text.factor(source.divisor)} % {source.extent} == 0"] = None
            # A copy to a tensor must not begin before it, even if masked there.
            is_load = isinstance(self.access, tile.Load)
            may_begin_before = is_load and axis.tile_axis in self.at_least_zero
            may_begin_before |= axis.is_cut
            if not may_begin_before and not signs.never_negative(axis.start):
                remedy = "compare it with 0 in the mask" if is_load else ""
                raise UnmappableError("an index may be negative", remedy)
        for value in signs.required:
            guards[f"{self.text.of(self.analysis.symbol(value))} >= 0"] = None
        return guards

    def _extent(self, axis: TensorAxis) -> Guarded:
        """Return the extent of an axis: its bound in the mask, or one beyond every box."""
        if not axis.extents:
            end = self.text.end_of_boxes(axis.start, axis.box)
            if end is None and axis.stride == ONE:
                raise UnmappableError("nothing says where its rows end", "mask what is beyond")
            return end or Guarded(str(OUT_OF_REACH))
        guards: list[str] = []
        for extent in axis.extents:
            in_pieces = axis.stride != ONE or self._is_aligned(extent)
            if extent.value is not None:
                if extent.value <= 0:
                    raise UnmappableError("its mask is never true")
                if not in_pieces:
                    raise UnmappableError("its rows do not end at a multiple of 16 bytes")
                continue
            guards.append(f"{self.text.of(extent)} > 0")
            if not self._is_i32(extent):
                guards.append(f"{self.text.of(extent)} <= {OUT_OF_REACH}")
            if not in_pieces:
                unit = TENSOR_ALIGNMENT_BYTES // self._size_bytes
                guards.append(f"{self.text.factor(extent)} % {unit} == 0")
        texts = [self.text.of(extent) for extent in axis.extents]
        least = texts[0] if len(texts) == 1 else f"min({', '.join(texts)})"
        return Guarded(least, tuple(guards))

    def _is_i64(self, symbol: int) -> bool:
        source = self.analysis.sources[symbol]
        return isinstance(source, Value) and source.type == I64

    def _is_i32(self, extent: Polynomial) -> bool:
        """Return whether an extent is a 32-bit argument."""
        symbols = extent.symbols
        source = self.analysis.sources[symbols[0]]
        is_plain = extent == Polynomial.symbol(symbols[0])
        return is_plain and isinstance(source, Value) and source.type == I32
