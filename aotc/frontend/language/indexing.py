"""Data-dependent indexing: gather and histogram."""

from __future__ import annotations

from collections.abc import Callable

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language.convert import broadcast_to, cast, static_axis, static_int, to_value
from aotc.frontend.values import Operand, element, shape, show
from aotc.ir.core import Value
from aotc.ir.dialects import indexing
from aotc.ir.types import I1, I32, U32, ScalarType, TileType


def _integers(value: Value) -> bool:
    kind = element(value)
    return isinstance(value.type, TileType) and isinstance(kind, ScalarType) and kind.is_int


def gather(emit: Emitter, src: Operand, index: Operand, axis: Operand) -> Value:
    """Gather elements of `src` by `index` along an axis, modulo its extent."""
    source, indices = to_value(emit, src, "a tile"), to_value(emit, index, "a tile of indices")
    if not isinstance(source.type, TileType) or not isinstance(element(source), ScalarType):
        raise mistake(f"tl.gather takes a tile of numbers, got {show(source)}")
    if not _integers(indices) or element(indices) == I1:
        raise mistake(
            f"the index of tl.gather must be a tile of integers, got {show(indices)}",
            remedy="cast it with .to(tl.int32)",
        )
    source_shape, index_shape = shape(source), shape(indices)
    if len(source_shape) != len(index_shape):
        raise mistake(
            f"tl.gather takes a tile and an index of as many axes, got {show(source)} and "
            f"{show(indices)}",
            remedy="add axes of extent 1 with [:, None] or [None, :], and tl.broadcast_to",
        )
    along = static_axis(axis, len(source_shape))
    for i, (source_extent, index_extent) in enumerate(zip(source_shape, index_shape, strict=True)):
        if i != along and source_extent != index_extent:
            raise mistake(
                f"the index of tl.gather must have the extents of the tile on all axes but "
                f"{along}: axis {i} has {index_extent} and not {source_extent}, of {show(source)}",
                remedy="repeat the index, or the tile, with tl.broadcast_to",
            )
    return emit(indexing.Gather(source, cast(emit, indices, I32), along)).out


def histogram(
    emit: Emitter,
    input: Operand,  # noqa: A002 - Triton's parameter name
    num_bins: Operand,
    mask: Operand = None,
) -> Value:
    """Return the counts of 0, 1, …, `num_bins` - 1 in a tile of one axis, as int32."""
    value = to_value(emit, input, "a tile of integers")
    if len(shape(value)) != 1:
        raise mistake(
            f"tl.histogram takes a tile of one axis, got {show(value)}", remedy="use tl.ravel"
        )
    if element(value) not in (I32, U32):
        raise mistake(
            f"tl.histogram takes int32 or uint32, got {show(value)}",
            remedy="cast with .to(tl.int32)",
        )
    bins = static_int(num_bins, "num_bins")
    if bins < 1 or bins & (bins - 1):
        raise mistake(
            f"num_bins must be a power of two, got {bins}",
            remedy="round up with triton.next_power_of_2 and leave the last bins",
        )
    chosen = None
    if mask is not None:
        chosen = broadcast_to(emit, to_value(emit, mask, "a mask"), shape(value))
        if element(chosen) != I1:
            raise mistake(
                f"the mask of tl.histogram must be int1, got {show(chosen)}",
                remedy="compare with zero: `mask != 0`",
            )
    return emit(indexing.Histogram(value, bins, chosen)).out


FUNCTIONS: dict[str, Callable[..., Operand]] = {"gather": gather, "histogram": histogram}
