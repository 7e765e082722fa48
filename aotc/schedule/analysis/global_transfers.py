"""Transfers between global memory and a CTA: bytes, from where, and how far ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aotc.ir import expression
from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, scf, thread_copy, tile, tma
from aotc.ir.effects import Trait
from aotc.ir.expression import Expression, ExpressionError
from aotc.ir.types import SharedType, TensorMapType, TileType
from aotc.ir.walks import reached
from aotc.schedule.analysis.launch_values import LaunchValues, Number, joined
from aotc.schedule.analysis.op_costs import size_bytes
from aotc.work import Part, Transfer

_VIEWS = (Trait.SHAPE_ONLY, Trait.SAME_VALUES)


class GlobalTransfers:
    """The transfers of the ops of a kernel."""

    def __init__(self, kernel: Kernel, values: LaunchValues) -> None:
        self._kernel = kernel
        self._values = values

    def of(self, op: Op, loop: scf.For | None) -> tuple[Transfer, ...]:
        """Return the transfers of an op in an iteration of the loop around it."""
        match op:
            case tma.TmaLoad():
                return (self._boxed(op.tensor, op.buffer, op.coords, loop, op.num_parts),)
            case tma.TmaStore() | tma.TmaReduce():
                return (self._boxed(op.tensor, op.buffer, op.coords, loop, is_store=True),)
            case tma.BulkLoad():
                return (self._addressed(op.pointer, None, size_bytes(op.buffer), loop, op.buffer),)
            case tma.BulkStore():
                size = size_bytes(op.buffer)
                return (self._addressed(op.pointer, None, size, loop, is_store=True),)
            case gpu.AsyncCopy() | thread_copy.ThreadLoad() | thread_copy.SyncThreadLoad():
                size = size_bytes(op.buffer)
                return (self._addressed(op.pointer, op.mask, size, loop, op.buffer),)
            case gpu.Load():
                return (self._addressed(op.pointer, op.mask, size_bytes(op.pointer), loop),)
            case gpu.Store():
                size = size_bytes(op.pointer)
                return (self._addressed(op.pointer, op.mask, size, loop, is_store=True),)
            case gpu.AtomicRmw():
                size = 2 * size_bytes(op.pointer)
                return (self._addressed(op.pointer, op.mask, size, loop, is_store=True),)
            case _:
                return ()

    def _boxed(
        self,
        tensor: Value,
        buffer: Value,
        coords: Sequence[Value],
        loop: scf.For | None,
        num_parts: int = 1,
        *,
        is_store: bool = False,
    ) -> Transfer:
        """Return the transfer of a box; elements outside of the tensor are not moved."""
        kind, memory = tensor.type, buffer.type
        assert isinstance(kind, TensorMapType)
        assert isinstance(memory, SharedType)
        numbers = [self._values[coord] for coord in coords]
        parts: list[Part] = []
        box = (*(1,) * (len(numbers) - len(memory.shape)), *memory.shape)
        for number, bound, extent in zip(numbers, self._shape(tensor), box, strict=False):
            if number is not None and bound is not None and extent > 1:
                _note(parts, number, Number(bound), extent)
        return Transfer(
            self._argument(tensor),
            size_bytes(buffer) // num_parts,
            is_store,
            _texts(numbers),
            any(_moves(number, loop) for number in numbers),
            _num_stages(buffer),
            tuple(parts),
        )

    def _addressed(
        self,
        pointer: Value,
        mask: Value | None,
        size: int,
        loop: scf.For | None,
        buffer: Value | None = None,
        *,
        is_store: bool = False,
    ) -> Transfer:
        number = self._values[pointer]
        parts: list[Part] = []
        if mask is not None:
            self._add_bounds(mask, parts)
        return Transfer(
            "" if number is None else number.pointer,
            size,
            is_store,
            _texts([number]),
            _moves(number, loop),
            0 if buffer is None else _num_stages(buffer),
            tuple(parts),
        )

    def _add_bounds(self, mask: Value, parts: list[Part]) -> None:
        """Record, for each axis bounded by a mask, the elements inside at the first iteration."""
        for condition in _conjuncts(mask):
            op = condition.op
            if isinstance(op, arith.Compare) and op.predicate in ("lt", "gt"):
                sides = (op.lhs, op.rhs) if op.predicate == "lt" else (op.rhs, op.lhs)
                below, bound = (self._values[side] for side in sides)
                extent = _extent(sides[0])
                if below is not None and bound is not None and extent > 1:
                    _note(parts, below, bound, extent)

    def _argument(self, tensor: Value) -> str:
        if tensor.owner is not self._kernel.body:
            return ""
        return self._kernel.params[tensor.index].argument

    def _shape(self, tensor: Value) -> list[Expression | None]:
        """Return the extents of the tensor of a map parameter."""
        if tensor.owner is not self._kernel.body:
            return []
        info = self._kernel.params[tensor.index]
        assert isinstance(tensor.type, TensorMapType)
        axes = range(len(tensor.type.box))
        texts = info.tensor.shape if info.tensor else [f"{info.argument}.shape[{a}]" for a in axes]
        return [_parsed(text) for text in texts]


def _parsed(text: str) -> Expression | None:
    try:
        return expression.parse(text)
    except ExpressionError:
        return None


def _note(parts: list[Part], below: Number, bound: Number, extent: int) -> None:
    """Record the number of elements from `below` on that are inside of `bound`.

    Where a loop walks along the axis, it is the number in all iterations: the last one is cut off.
    """
    left = joined("-", Number(bound.root), Number(below.root)).root
    walks = below.loop is not None and below.step == extent
    part = Part(expression.to_text(left), extent, walks)
    if part not in parts:
        parts.append(part)


def _texts(numbers: Sequence[Number | None]) -> tuple[str, ...]:
    texts = [expression.to_text(number.root) for number in numbers if number is not None]
    return tuple(texts) if len(texts) == len(numbers) else ()


def _moves(number: Number | None, loop: scf.For | None) -> bool:
    """Return whether an iteration of the loop accesses other bytes than the one before."""
    if loop is None:
        return False
    return number is None or (number.loop is loop and number.step != 0)


def _conjuncts(mask: Value) -> Iterator[Value]:
    """Yield the conditions that are all true where a mask is, the first operand's first."""
    return (value for value in reached([mask], _joined) if not isinstance(value.op, arith.And))


def _joined(condition: Value) -> Sequence[Value]:
    op = condition.op
    if isinstance(op, arith.And):
        return (op.lhs, op.rhs)
    return op.operands[:1] if op is not None and op.has(*_VIEWS) else ()


def _extent(value: Value) -> int:
    """Return the number of consecutive indices in a tile, 1 if unknown."""
    ranges = (part.op for part in reached([value], _added) if isinstance(part.op, tile.Arange))
    return max((op.end - op.start for op in ranges), default=1)


def _added(index: Value) -> Sequence[Value]:
    """Return the operands that give an index its consecutive numbers."""
    op = index.op
    if isinstance(op, arith.Add | arith.Sub):
        return (op.lhs, op.rhs)
    is_view = op is not None and (op.has(*_VIEWS) or isinstance(op, arith.Cast))
    return (
        op.operands[:1] if op is not None and is_view and isinstance(index.type, TileType) else ()
    )


def _num_stages(buffer: Value) -> int:
    """Return the number of stages of a stage's buffer."""
    op = buffer.op
    while isinstance(op, gpu.SharedStage | gpu.SharedTrans):
        buffer = op.buffer
        op = buffer.op
    assert isinstance(buffer.type, SharedType)
    return buffer.type.num_stages
