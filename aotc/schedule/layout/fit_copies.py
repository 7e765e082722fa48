"""Give a tile copied between two shared buffers the layout best for both.

`y.store(…, x.load(…).T)` reads a tile from a buffer as loaded and writes it to another for storing.
Nothing else uses the tile, so threads could hold it in any layout. So the ops in between, renamings
and elementwise arithmetic with constants, are done in the layout from `copy_layout`, if it is
better than both sides' layouts.

Invariant: the stored elements are unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import gpu, tile, tma
from aotc.ir.effects import Trait
from aotc.ir.layout import LinearLayout
from aotc.ir.rewrite import Builder
from aotc.ir.tiles import is_tile, is_uniform, uniform_in
from aotc.ir.types import SharedType, TileType, shape_of
from aotc.schedule.context import Schedule
from aotc.schedule.layout.copy_layout import copy_layout
from aotc.schedule.layout.tensor_copies import is_tensor_load, read_buffer
from aotc.target import Target


@dataclass(frozen=True)
class _Copy:
    """The ops of a copy: the read of a buffer, the steps in order, the store through another."""

    read: gpu.SharedLoad
    steps: tuple[Op, ...]
    store: tma.StagedTmaStore


def fit_copies(kernel: Kernel, schedule: Schedule) -> None:
    """Choose new layouts for the tiles of copies; see the module docstring."""
    for store in [op for op in kernel.walk() if isinstance(op, tma.StagedTmaStore)]:
        copy = _copy_to(store)
        if copy is not None:
            with at(store.loc):
                _fit(copy, schedule.target)


def _copy_to(store: tma.StagedTmaStore) -> _Copy | None:
    """Return the copy ending with a store, if any."""
    steps: list[Op] = []
    user, value = store, store.value
    while True:
        op = value.op
        if (
            op is None
            or op.block is not store.block
            or any(other_user is not user for other_user in value.users)
        ):
            return None
        if isinstance(op, gpu.SharedLoad):
            whole = type(op) is gpu.SharedLoad and not op.start and is_tensor_load(op.buffer)
            return _Copy(op, tuple(reversed(steps)), store) if whole else None
        sources = [operand for operand in dict.fromkeys(op.operands) if not is_uniform(operand)]
        if len(sources) != 1 or len(op.results) != 1 or not _is_step(op):
            return None
        steps.append(op)
        user, value = op, sources[0]


def _is_step(op: Op) -> bool:
    return op.has(Trait.ELEMENTWISE, Trait.SAME_VALUES) or isinstance(op, tile.Trans | tile.Reshape)


def _is_conversion(op: Op) -> bool:
    """Return whether an op does nothing but hand a tile to other threads."""
    return op.has(Trait.SAME_VALUES)


def _fit(copy: _Copy, target: Target) -> None:
    kinds = copy.read.buffer.type, copy.store.buffer.type
    assert isinstance(kinds[0], SharedType)
    assert isinstance(kinds[1], SharedType)
    buffers = kinds[0].layout, _as_read(copy, kinds[1].layout)
    bits = kinds[0].element.bits, kinds[1].element.bits
    layout = copy_layout(copy.read.layout, buffers, bits, target)
    if layout == copy.read.layout and not any(map(_is_conversion, copy.steps)):
        return
    value = read_buffer(copy.read.buffer, layout, target, Builder.before_op(copy.read))
    for step in copy.steps:
        if not _is_conversion(step):
            value = _in_new_layout(step, value, Builder.before_op(step))
    copy.store.replace_operand(copy.store.value, value)
    for op in (*reversed(copy.steps), copy.read):
        op.erase()


def _as_read(copy: _Copy, layout: LinearLayout) -> LinearLayout:
    """Return a written layout in terms of the tile read."""
    for step in reversed(copy.steps):
        if isinstance(step, tile.Trans):
            layout = layout.transpose(tuple(map(step.order.index, range(len(step.order)))))
        elif isinstance(step, tile.Reshape):
            layout = layout.reshape(shape_of(step.value.type))
    return layout


def _in_new_layout(step: Op, value: Value, builder: Builder) -> Value:
    """Return the result of a step on a value with a new layout."""
    kind = value.type
    assert isinstance(kind, TileType)
    assert kind.layout is not None
    mapping: dict[Value, Value] = {}
    for operand in step.operands:
        if is_uniform(operand):
            mapping[operand] = uniform_in(operand, kind.layout, builder)
        elif is_tile(operand):
            mapping[operand] = value
    return builder(step.clone(mapping)).results[0]
