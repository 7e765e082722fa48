"""Promises about values: `tl.multiple_of` and its like.

A promise holds for the value itself, not only for the call's result: Triton attaches it to the defining
op. So the call may be a statement, before or after other uses, and under other names.

A `tile.hint` follows the value's definition, or opens the branch or loop with the promise. All uses in its
scope take its result once the kernel is translated. Until then variables keep the original value, because
loops and branches compare variables by value.
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language.convert import static_int, to_value
from aotc.frontend.values import Operand, is_tuple, shape
from aotc.ir.core import Block, Op, Value
from aotc.ir.dialects import tile


def _checked_promise(
    emit: Emitter, operand: Operand, values: Operand, name: str
) -> tuple[Value, tuple[int, ...]]:
    value = to_value(emit, operand, f"a value for tl.{name}")
    items = values if is_tuple(values) else (values,)
    promised = tuple(static_int(item, f"each promise of tl.{name}") for item in items)
    num_axes = max(1, len(shape(value)))
    if len(promised) != num_axes:
        raise mistake(
            f"tl.{name} takes one number for each of {num_axes} axes, got {len(promised)}"
        )
    if any(item < 1 for item in promised):
        raise mistake(f"tl.{name} takes positive numbers, got {promised}")
    return value, promised


def _insert_hint(emit: Emitter, value: Value, make: Callable[[Value], tile.Hint]) -> Value:
    """Insert a hint after this block's earlier hints of the value."""
    while (emit.block, value) in emit.hints:
        value = emit.hints[emit.block, value].out
    hint = make(value)
    emit(hint, before=_op_after(emit.block, value))
    emit.hints[emit.block, value] = hint
    hint.out.hint = value.hint
    return hint.out


def _op_after(block: Block, value: Value) -> Op | None:
    """Return the first op of `block` after the definition of `value`; None is the block's end."""
    defined_here = value.op is not None and value.op.block is block
    return value.op.next if value.op is not None and defined_here else block.first


def attach_hints(emit: Emitter) -> None:
    """Let all uses of a hinted value take the hint's result, in the block of the hint and inside it."""
    for hint in emit.hints.values():
        value = hint.value
        for user in list(value.users):
            if user is not hint and _is_inside(user, hint.block):
                user.replace_operand(value, hint.out)


def _is_inside(op: Op, block: Block | None) -> bool:
    around = op.block
    while around is not None and around is not block:
        around = around.parent.block if isinstance(around.parent, Op) else None
    return around is not None


def multiple_of(emit: Emitter, input: Operand, values: Operand) -> Operand:  # noqa: A002
    """Promise: the first element of each run is a multiple of `values`."""
    if isinstance(input, int):
        return input
    value, promised = _checked_promise(emit, input, values, "multiple_of")
    return _insert_hint(emit, value, lambda part: tile.Hint(part, divisibility=promised))


def max_contiguous(emit: Emitter, input: Operand, values: Operand) -> Operand:  # noqa: A002
    """Promise runs of `values` consecutive elements."""
    value, promised = _checked_promise(emit, input, values, "max_contiguous")
    return _insert_hint(emit, value, lambda part: tile.Hint(part, contiguity=promised))


def max_constancy(emit: Emitter, input: Operand, values: Operand) -> Operand:  # noqa: A002
    """Promise runs of `values` equal elements."""
    value, promised = _checked_promise(emit, input, values, "max_constancy")
    return _insert_hint(emit, value, lambda part: tile.Hint(part, constancy=promised))


FUNCTIONS: dict[str, Callable[..., Operand]] = {
    "multiple_of": multiple_of,
    "max_contiguous": max_contiguous,
    "max_constancy": max_constancy,
}
