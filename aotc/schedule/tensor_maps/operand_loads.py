"""Select loads of dot operands through pointers for replacement by tensor copies.

Loads in loops are candidates. If some of these become tensor copies, so do operand loads before or after
the loop, since a producer warp can issue them ahead of its program. Tensor copies do not see the kernel's
own writes, so a load possibly after such a write stays.

Invariant: a load accepted by `check_load_order` may be issued at any time before its use.
"""

from __future__ import annotations

from collections.abc import Iterator

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import scf, tile
from aotc.ir.effects import Trait
from aotc.ir.parameter_access import pointer_roots
from aotc.ir.types import element_of
from aotc.schedule.analysis.affine import axis_names, axis_symbol
from aotc.schedule.analysis.global_order import (
    accessed,
    is_promised_apart,
    keeps_order,
    may_precede,
    root_names,
    stands_before,
    synchronizes,
)
from aotc.schedule.context import Schedule
from aotc.schedule.layout.wgmma_layouts import wgmma_layouts
from aotc.schedule.tensor_maps.pointer_box import TensorBox, UnmappableError


def operands_in_loops(kernel: Kernel) -> Iterator[tuple[tile.Load, tile.Dot]]:
    """Yield loads of dot operands in loops, each with its dot."""
    return (pair for pair in _operands(kernel) if _is_in_loop(pair[0]))


def operands_outside(kernel: Kernel) -> Iterator[tuple[tile.Load, tile.Dot]]:
    """Yield loads of dot operands outside of loops, such as the queries of attention."""
    return (pair for pair in _operands(kernel) if not _is_in_loop(pair[0]))


def _operands(kernel: Kernel) -> Iterator[tuple[tile.Load, tile.Dot]]:
    dots: dict[tile.Load, tile.Dot] = {}
    for op in kernel.walk():
        if isinstance(op, tile.Dot):
            for operand in (op.a, op.b):
                load = _renamed(operand).op
                if isinstance(load, tile.Load):
                    dots.setdefault(load, op)
    yield from dots.items()


def _is_in_loop(op: Op) -> bool:
    return any(isinstance(outer, scf.For) for outer in op.ancestors())


def _renamed(value: Value) -> Value:
    """Return the source of a value behind ops that only rename indices."""
    while value.op is not None and value.op.has(Trait.VIEW):
        value = value.op.operands[0]
    return value


def check_dot(load: tile.Load, dot: tile.Dot, box: TensorBox, schedule: Schedule) -> None:
    """Refuse an operand if its dot cannot read a tensor copy's order of elements.

    wgmma takes operands of other than two bytes with K contiguous only; threads
    transpose others on their way to shared memory. Raises: UnmappableError.
    """
    if element_of(load.out.type).bits == 16:
        return
    if wgmma_layouts(dot, schedule.config.num_warps, schedule.target) is None:
        return
    for operand, k_axis in ((dot.a, 1), (dot.b, 0)):
        axis = _axis_in(operand, load, box)
        if axis is not None and axis != k_axis:
            raise UnmappableError("its dot needs elements along K to be contiguous")


def _axis_in(operand: Value, load: tile.Load, box: TensorBox) -> int | None:
    """Return an operand's axis along the load's contiguous axis, or None for another load."""
    views: list[Op] = []
    while operand.op is not load:
        if operand.op is None or not operand.op.has(Trait.VIEW):
            return None
        views.append(operand.op)
        operand = operand.op.operands[0]
    axis = box.axes[-1].tile_axis
    for view in reversed(views):
        names = axis_names(view)
        if axis is None or names is None:
            return None
        axis = -1 - names[axis_symbol(axis)]
    return axis


def check_load_order(load: tile.Load, kernel: Kernel) -> None:
    """Refuse a load that may read the kernel's earlier writes. Raises: UnmappableError."""
    if load.volatile or load.cache == ".cv":
        raise UnmappableError("it is volatile")
    roots = pointer_roots(load.pointer)
    for op in kernel.walk():
        if getattr(op, "volatile", False) and may_precede(op, load):
            raise UnmappableError("a volatile load before it may wait for other programs to write")
        pointer = accessed(op, "write")
        if pointer is None:
            if synchronizes(op) and may_precede(op, load) and keeps_order(op):
                raise UnmappableError(
                    f"{op.opcode} comes before it, and what was written before that"
                )
        elif any(root in roots for root in pointer_roots(pointer)):
            raise UnmappableError("the kernel writes through it, too")
        elif may_precede(op, load) and not _is_promised(op, load, pointer):
            name = root_names(pointer)
            raise UnmappableError(
                f"the kernel writes through {name} before, which may be the same memory",
                f"noalias of {name} in the signature promises that it is not",
            )


def _is_promised(write: Op, load: tile.Load, pointer: Value) -> bool:
    """Return whether a write is promised not to alias a load.

    `num_stages` of `tl.range` promises it too, for writes of earlier iterations only: iterations do not
    depend on each other through different arguments.
    """
    if is_promised_apart(load.pointer, pointer):
        return True
    around = [write, *write.ancestors()]
    by_block = {op.block: op for op in around}
    for op in (load, *load.ancestors()):
        is_shared_loop = op.has(Trait.LOOP) and op in around
        if is_shared_loop and not (isinstance(op, scf.For) and op.num_stages):
            return False
        sibling = by_block.get(op.block)
        if sibling is not None and sibling is not op and stands_before(sibling, op):
            return False
    return True
