"""Merge the variables of two branches, or of the iterations of a loop.

Run-time values become results of an `scf.if`; their types must agree, as in Triton. Tuples merge
item by item. Constants must be equal, since no run-time value can select between two.

A variable set in one branch only becomes `Unbound`, with the reason for a later error.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence

from aotc.frontend.emitter import mistake
from aotc.frontend.language.convert import bitcast, constant, to_value
from aotc.frontend.python.frame import Frame
from aotc.frontend.python.scope import names_assigned_by
from aotc.frontend.values import (
    BlockPointer,
    Operand,
    Record,
    Unbound,
    element,
    is_descriptor,
    is_tuple,
    shape,
    show,
    with_items,
)
from aotc.ir.core import Block, Value
from aotc.ir.diagnostics import CompileError
from aotc.ir.dialects import scf
from aotc.ir.types import U64, PointerType, ScalarType, TileType

_Side = tuple[Block, dict[str, Operand]]


def leaves(operand: Operand) -> Iterator[Value]:
    """Yield the run-time values in an operand, tuples included, in order."""
    if isinstance(operand, Value):
        yield operand
    elif isinstance(operand, BlockPointer):
        yield from operand.parts
    elif is_tuple(operand):
        for item in operand:
            yield from leaves(item)


def rebuild(operand: Operand, values: Iterator[Value]) -> Operand:
    """Return `operand` with its run-time values replaced, in order."""
    if isinstance(operand, Value):
        return next(values)
    if isinstance(operand, BlockPointer):
        return operand.with_parts([next(values) for _ in operand.parts])
    if is_tuple(operand):
        return with_items(operand, (rebuild(item, values) for item in operand))
    return operand


def same(left: Operand, right: Operand) -> bool:
    """Return whether two operands are the same values and constants."""
    if isinstance(left, BlockPointer) and isinstance(right, BlockPointer):
        return left.block == right.block and all(map(same, left.parts, right.parts))
    if is_tuple(left) and is_tuple(right):
        left_items, right_items = left, right
        has_same_fields = len(left_items) == len(right_items) and _kind_of(left_items) is _kind_of(
            right_items
        )
        return has_same_fields and all(map(same, left_items, right_items))
    if isinstance(left, Value) or isinstance(right, Value):
        return left is right
    return left is right or (type(left) is type(right) and left == right)


def merge(
    frame: Frame,
    truth: Value,
    before: dict[str, Operand],
    sides: Sequence[_Side],
    node: ast.If,
    *extra_names: str,
) -> dict[str, Operand]:
    """Emit the `scf.if` of the two translated branches of `node`; return the variables after.

    `extra_names` are merged in addition to the assigned names.
    """
    (then, then_values), (orelse, else_values) = sides
    after = dict(before)
    merged: dict[str, Operand] = {}
    for name in (*names_assigned_by([*node.body, *node.orelse]), *extra_names):
        then_value = then_values.get(name, _UNSET)
        else_value = else_values.get(name, _UNSET)
        if isinstance(then_value, Unbound) or isinstance(else_value, Unbound):
            if name in before or then_value is not else_value:
                after[name] = _unbound_after(frame, name, node, then_value, else_value)
            continue
        if same(then_value, else_value):
            after[name] = then_value
            continue
        _check_branches(name, before.get(name, _UNSET), then_value, else_value)
        merged[name] = then_value
    pairs = [
        (then_leaf, else_leaf)
        for name in merged
        for then_leaf, else_leaf in zip(
            leaves(then_values[name]), leaves(else_values[name]), strict=True
        )
    ]
    then.insert(scf.Yield([then_leaf for then_leaf, _ in pairs]))
    orelse.insert(scf.Yield([else_leaf for _, else_leaf in pairs]))
    outs = iter(frame.emit(scf.If(truth, then, orelse)).outs)
    for name, template in merged.items():
        after[name] = rebuild(template, outs)
        for value in leaves(after[name]):
            value.hint = name.strip()
    return after


def fill_in(frame: Frame, names: Sequence[str], like: Mapping[str, Operand]) -> None:
    """Give variables an unused value of the type in `like`, where theirs does not match."""
    for name in names:
        template, current = like.get(name, _UNSET), frame.values.get(name, _UNSET)
        if isinstance(template, Unbound):
            continue
        if isinstance(current, Unbound) or _mismatch(template, current) is not None:
            frame.values[name] = stand_in(frame, template)


def stand_in(frame: Frame, like: Operand) -> Operand:
    """Return a dummy value of the same type; a constant is returned unchanged."""
    if is_tuple(like):
        return with_items(like, (stand_in(frame, item) for item in like))
    if isinstance(like, BlockPointer):
        return like.with_parts([_zero(frame, part) for part in like.parts])
    return _zero(frame, like) if isinstance(like, Value) else like


def _zero(frame: Frame, like: Value) -> Value:
    if is_descriptor(like):
        raise mistake("a chain of so many `elif` cannot choose between descriptors")
    kind, extents = element(like), shape(like)
    if isinstance(kind, PointerType):
        return bitcast(frame.emit, constant(frame.emit, 0, U64, extents), kind)
    return constant(frame.emit, 0, kind, extents)


_UNSET = Unbound("is not set on every path")


def _unbound_after(
    frame: Frame, name: str, node: ast.If, then: Operand, orelse: Operand
) -> Operand:
    del name
    line = node.lineno
    if isinstance(then, Unbound) and isinstance(orelse, Unbound):
        return then
    side = "false" if isinstance(then, Unbound) else "true"
    return Unbound(f"is set only if the condition in line {line} is {side}", frame.loc(node))


def _check_branches(name: str, before: Operand, then: Operand, orelse: Operand) -> None:
    """Check the types of a variable's two values. Raises: CompileError on a mismatch."""
    mismatch = _mismatch(then, orelse)
    if mismatch is None:
        return
    if before is not _UNSET and not isinstance(before, Unbound) and same(before, orelse):
        raise mistake(
            f"{name} is {_kind(before)} before this `if`, but {_kind(then)} in its branch",
            remedy="a variable keeps its type through a run-time `if`: cast one with .to(...)",
        )
    raise mistake(
        f"{name} is {_kind(then)} in one branch of this `if`, and {_kind(orelse)} in the other",
        remedy="a variable keeps its type through a run-time `if`: cast one with .to(...)",
    )


def _kind(operand: Operand) -> str:
    return show(operand) if isinstance(operand, Value) else f"the constant {show(operand)}"


def _kind_of(items: tuple[Operand, ...]) -> object:
    return items.kind if isinstance(items, Record) else None


def _mismatch(left: Operand, right: Operand) -> tuple[Operand, Operand] | None:
    """Return the first mismatched parts of two operands, or None."""
    if isinstance(left, Value) and isinstance(right, Value):
        return None if left.type == right.type else (left, right)
    if isinstance(left, BlockPointer) and isinstance(right, BlockPointer):
        has_same_type = (left.base.type, left.block) == (right.base.type, right.block)
        return None if has_same_type else (left, right)
    if is_tuple(left) and is_tuple(right):
        left_items, right_items = left, right
        if len(left_items) != len(right_items) or _kind_of(left_items) is not _kind_of(right_items):
            return left, right  # pyright: ignore[reportUnknownVariableType]
        for a, b in zip(left_items, right_items, strict=True):
            mismatch = _mismatch(a, b)
            if mismatch is not None:
                return mismatch
        return None
    return None if same(left, right) else (left, right)


# ---- returned values --------------------------------------------------------------------------


def merge_returned(frame: Frame, truth: Value, sides: Sequence[tuple[Block, Operand]]) -> Operand:
    """Emit the `scf.if` of two returning branches; return the merged result."""

    def mismatch(then_value: Operand, else_value: Operand) -> CompileError:
        return mistake(
            f"{frame.name} returns {_show_result(then_value)} on one path and {_show_result(else_value)} on another",
            remedy="every path of a function must return one type: cast with .to(...)",
        )

    return _merge_results(frame, truth, sides, mismatch)


def merge_chosen(frame: Frame, truth: Value, sides: Sequence[tuple[Block, Operand]]) -> Operand:
    """Emit the `scf.if` of a run-time `a if c else b`; two void calls give None."""
    (_, then_operand), (_, else_operand) = sides

    def mismatch(then_value: Operand, else_value: Operand) -> CompileError:
        return mistake(
            "both sides of a run-time `if … else` must have one type, "
            f"got {_show_result(then_value)} and {_show_result(else_value)}",
            remedy="cast one of them with .to(...), or use tl.where",
        )

    if (then_operand is None) != (else_operand is None):
        raise mismatch(then_operand, else_operand)
    return _merge_results(frame, truth, sides, mismatch)


def _merge_results(
    frame: Frame,
    truth: Value,
    sides: Sequence[tuple[Block, Operand]],
    mismatch: Callable[[Operand, Operand], CompileError],
) -> Operand:
    (then, then_value), (orelse, else_value) = sides
    then_value, else_value = _unify(frame, then, then_value, orelse, else_value, mismatch)
    then.insert(scf.Yield(list(leaves(then_value))))
    orelse.insert(scf.Yield(list(leaves(else_value))))
    outs = frame.emit(scf.If(truth, then, orelse)).outs
    return rebuild(then_value, iter(outs))


def _unify(
    frame: Frame,
    then: Block,
    left: Operand,
    orelse: Block,
    right: Operand,
    mismatch: Callable[[Operand, Operand], CompileError],
) -> tuple[Operand, Operand]:
    """Unify two returned operands: different numbers become run-time scalars."""
    if isinstance(left, BlockPointer) and _mismatch(left, right) is None:
        return left, right
    if is_tuple(left) and is_tuple(right):
        then_part, else_part = left, right
        if len(then_part) == len(else_part) and _kind_of(then_part) is _kind_of(else_part):
            pairs = [
                _unify(frame, then, a, orelse, b, mismatch)
                for a, b in zip(then_part, else_part, strict=True)
            ]
            return with_items(then_part, (a for a, _ in pairs)), with_items(
                else_part, (b for _, b in pairs)
            )
    if not isinstance(left, Value) and not isinstance(right, Value) and same(left, right):
        return left, right
    then_part, else_part = _materialized(frame, then, left), _materialized(frame, orelse, right)
    if else_part is None:
        return then_part, _undefined_result(frame, orelse, then_part)
    if then_part is None:
        return _undefined_result(frame, then, else_part), else_part
    if (
        isinstance(then_part, Value)
        and isinstance(else_part, Value)
        and then_part.type == else_part.type
    ):
        return then_part, else_part
    raise mismatch(then_part, else_part)


def _undefined_result(frame: Frame, block: Block, like: Operand) -> Operand:
    """Return a dummy result for a path without one: undefined, as in Triton."""
    if is_tuple(like):
        return with_items(like, (_undefined_result(frame, block, item) for item in like))
    scalar = element(like) if isinstance(like, Value) else None
    if not isinstance(like, Value) or not isinstance(scalar, ScalarType):
        raise mistake(
            f"{frame.name} returns {_show_result(like)} on one path and nothing on another",
            remedy="return something on every path",
        )
    with frame.emit.into(block):
        extents = like.type.shape if isinstance(like.type, TileType) else ()
        return constant(frame.emit, 0, scalar, extents)


def _materialized(frame: Frame, block: Block, operand: Operand) -> Operand:
    if not isinstance(operand, int | float):
        return operand
    with frame.emit.into(block):
        return to_value(frame.emit, operand)


def _show_result(operand: Operand) -> str:
    return "nothing" if operand is None else show(operand)


# ---- loops ------------------------------------------------------------------------------------


def carried_names(frame: Frame, names: Sequence[str]) -> list[str]:
    """Return the assigned variables holding run-time values before the loop."""
    return [name for name in names if any(True for _ in leaves(frame.values.get(name)))]


def check_carried(
    frame: Frame, before: dict[str, Operand], names: Sequence[str], carried: Sequence[str]
) -> None:
    """Check types of loop variables after the body. Raises: CompileError on a change."""
    for name in names:
        if name not in before or isinstance(before[name], Unbound):
            continue
        old, new = before[name], frame.values[name]
        if name in carried:
            mismatch = None if isinstance(new, Unbound) else _mismatch(old, new)
            if isinstance(new, Unbound):
                raise mistake(
                    f"{name} has no value at the end of this loop's body: it {new.reason}"
                )
            if mismatch is not None:
                _type_changed(name, old, new)
        elif not same(old, new):
            _constant_changed(name, old, new)


def _type_changed(name: str, old: Operand, new: Operand) -> None:
    raise mistake(
        f"{name} is {show(old)} before this loop, but {show(new)} after its body",
        remedy="a variable that a loop carries keeps its type and shape: start it as what the "
        "body makes of it, or cast in the body",
    )


def _constant_changed(name: str, old: Operand, new: Operand) -> None:
    raise mistake(
        f"{name} is the constant {show(old)} before this loop, and the loop makes it {show(new)}",
        remedy=f"start with a run-time value: assign {name} to a variable that is not a "
        "constexpr before the loop",
    )
