"""Hoist layout conversions above elementwise ops whose operands have fewer bytes than the result.

A tile that was widened is cheaper to convert before: an fp32 residual that was loaded as bf16, a
mask made of bytes. So the conversion of an elementwise result becomes conversions of its operands
where those have fewer bytes together; splats are recomputed instead of converted. A
tensor load's tile is in shared memory, where every layout can be read from: it moves nothing, and
neither does what is computed from it alone.

Invariant: no value is computed in two layouts but the result of a cast, which costs little.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, tile
from aotc.ir.effects import Trait
from aotc.ir.layout import LinearLayout
from aotc.ir.rewrite import Builder, is_pure, rewrite
from aotc.ir.tiles import is_elementwise, is_uniform, tile_shape, uniform_in
from aotc.ir.types import TileType
from aotc.schedule.context import Schedule
from aotc.schedule.layout.required_layouts import operand_layouts
from aotc.schedule.layout.tensor_copies import is_tensor_load


def hoist_conversions(kernel: Kernel, schedule: Schedule) -> None:
    """Convert operands instead of results wherever that moves fewer bytes."""
    del schedule
    rewrite(kernel, {gpu.Convert: [_convert_operands]})


def _convert_operands(op: Op, place: Builder) -> Sequence[Value] | None:
    assert isinstance(op, gpu.Convert)
    made = op.value.op
    if made is None or not _is_made_alone(op.value):
        return None
    if _moved_by_operands(made) >= _bytes(op.value):
        return None
    if isinstance(made, tile.Broadcast):
        source = _converted(made.value, op.layout.broadcast_source(tile_shape(made.value)), place)
        return [place(tile.Broadcast(source, made.shape, op.layout)).out]
    layouts = operand_layouts(made, op.layout)
    mapping = {
        source: _converted(source, layout, place)
        for source, layout in zip(made.operands, layouts, strict=True)
    }
    again = place(made.clone(mapping)).results[0]
    kind = again.type
    assert isinstance(kind, TileType)
    return [again if kind.layout == op.layout else place(gpu.Convert(again, op.layout)).out]


def _is_made_alone(value: Value) -> bool:
    """Return whether `value` has one user, so that its layout concerns no other."""
    op = value.op
    if op is None or not (is_elementwise(op) or op.has(Trait.VIEW) or op.has(Trait.BROADCAST)):
        return False
    # What a hoisted conversion leaves behind may still be there, unused.
    return sum(map(_is_needed, value.users)) == 1 or isinstance(op, arith.Cast)


def _is_needed(op: Op) -> bool:
    """Return whether what an op does is seen, or what is computed with its results."""
    if op.terminator or not is_pure(op):
        return True
    return any(_is_needed(user) for value in op.results for user in value.users)


def _moved_bytes(value: Value) -> int:
    """Return the fewest bytes that converting `value`, or what it is computed from, moves."""
    if not isinstance(value.type, TileType) or _is_read_again(value):
        return 0
    size_bytes, made = _bytes(value), value.op
    if made is None or not _is_made_alone(value):
        return size_bytes
    return min(size_bytes, _moved_by_operands(made))


def _moved_by_operands(op: Op) -> int:
    return sum(map(_moved_bytes, dict.fromkeys(op.operands)))


def _bytes(value: Value) -> int:
    kind = value.type
    assert isinstance(kind, TileType)
    return kind.num_elems * kind.element.size_bytes


def _is_read_again(value: Value) -> bool:
    """Return whether `value` can be computed in another layout without moving anything."""
    op = value.op
    if isinstance(op, gpu.SharedLoad):
        return is_tensor_load(op.buffer)
    if not isinstance(value.type, TileType) or is_uniform(value) or isinstance(op, tile.Arange):
        return True
    return op is not None and _is_made_alone(value) and all(map(_is_read_again, op.operands))


def _converted(value: Value, layout: LinearLayout, place: Builder) -> Value:
    """Return `value` in a layout."""
    if not isinstance(value.type, TileType):
        return value
    if is_uniform(value):
        return uniform_in(value, layout, place)
    if isinstance(value.op, tile.Arange):
        return place(tile.Arange(value.op.start, value.op.end, layout)).out
    return place(gpu.Convert(value, layout)).out
