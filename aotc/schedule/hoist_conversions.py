"""Move layout conversions up through elementwise ops that make more bytes than they take.

A tile that was widened is cheaper to move before: an fp32 residual that was loaded as bf16, a mask
made of bytes. So the conversion of an elementwise result becomes conversions of its operands where
those have fewer bytes together; what is the same everywhere is made anew instead of moved.

Invariant: no value is computed in two layouts but the result of a cast, which costs little.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, tile
from aotc.ir.rewrite import Builder, rewrite
from aotc.ir.types import TileType
from aotc.schedule.context import Schedule
from aotc.schedule.homes import is_elementwise


def hoist_conversions(kernel: Kernel, schedule: Schedule) -> None:
    """Convert operands instead of results wherever that moves fewer bytes."""
    del schedule
    rewrite(kernel, {gpu.Convert: [_convert_operands]})


def _convert_operands(op: Op, place: Builder) -> Sequence[Value] | None:
    assert isinstance(op, gpu.Convert)
    made = op.value.op
    if made is None or not is_elementwise(made) or made.block is not op.block:
        return None
    if len(op.value.users) > 1 and not isinstance(made, arith.Cast):
        return None
    sources = dict.fromkeys(made.operands)
    if sum(map(_moved_bytes, sources)) >= _moved_bytes(op.value):
        return None
    mapping = {source: _converted(source, op, place) for source in sources}
    return [place(made.clone(mapping)).results[0]]


def _moved_bytes(value: Value) -> int:
    kind = value.type
    if not isinstance(kind, TileType) or isinstance(value.op, arith.Constant | tile.Splat):
        return 0
    return kind.num_elems * kind.element.size_bytes


def _converted(value: Value, op: gpu.Convert, place: Builder) -> Value:
    """Return `value` in the layout that `op` converts to."""
    made = value.op
    if isinstance(made, arith.Constant) and isinstance(made.type, TileType):
        return place(arith.Constant(made.value, made.type.with_layout(op.layout))).out
    if isinstance(made, tile.Splat):
        return place(tile.Splat(made.value, made.shape, op.layout)).out
    return place(gpu.Convert(value, op.layout)).out
