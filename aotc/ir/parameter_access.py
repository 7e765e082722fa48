"""Memory access of a kernel, by pointer parameter.

Every pointer of a load, store or update is traced back through address arithmetic, shapes, branches
and loops to parameters. So a header can say `const`, and a launcher can refuse to write to a
read-only tensor.

Invariant: the access holds for every launch. A pointer of unknown origin (loaded, or made from an
integer) adds none to any parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import scf
from aotc.ir.effects import Resource, Trait
from aotc.ir.types import DescriptorType, PointerType, element_of

Access = Literal["unknown", "read", "write", "both"]

_NUMBERS: tuple[Access, ...] = ("unknown", "read", "write", "both")
_READ, _WRITE = 1, 2
_MOVES = (Trait.ELEMENTWISE, Trait.SAME_VALUES, Trait.SHAPE_ONLY, Trait.ALIAS)


def parameter_access(kernel: Kernel) -> dict[str, Access]:
    """Return the access to the memory of each pointer or descriptor parameter.

    A parameter neither read nor written is "read": it is not written.
    """
    pointers = {
        arg: info.name
        for arg, info in zip(kernel.body.args, kernel.params, strict=True)
        if isinstance(arg.type, PointerType | DescriptorType)
    }
    access = dict.fromkeys(pointers, 0)
    for op in kernel.walk():
        for effect in op.effects_on(Resource.GLOBAL, "read", "write"):
            if not effect.of and not op.operands:
                continue  # it may access memory anywhere, but no pointer leads there
            for root in pointer_roots(getattr(op, effect.of)) if effect.of else (None,):
                if root not in access:
                    return dict.fromkeys(pointers.values(), "unknown")
                access[root] |= _READ if effect.access == "read" else _WRITE
    return {pointers[arg]: _NUMBERS[bits or _READ] for arg, bits in access.items()}


def union(left: Access, right: Access) -> Access:
    """Return how memory is used by two builds of a kernel together."""
    if "unknown" in (left, right):
        return "unknown"
    return _NUMBERS[_NUMBERS.index(left) | _NUMBERS.index(right)]


def pointer_roots(pointer: Value) -> list[Value]:
    """Return the origins of a pointer, as far back as they can be traced."""
    roots: dict[Value, None] = {}
    seen: dict[Value, None] = {}
    worklist = [pointer]
    while worklist:
        value = worklist.pop()
        if value in seen:
            continue
        seen[value] = None
        sources = _sources(value)
        if sources is None:
            roots[value] = None
        else:
            worklist += sources
    return list(roots)


def _sources(value: Value) -> list[Value] | None:
    """Return the pointers `value` is derived from; None if it is an origin."""
    op = value.op
    if op is None:
        owner = value.owner
        parent = None if isinstance(owner, Op) else owner.parent
        rule = _ARGUMENTS.get(type(parent)) if isinstance(parent, Op) else None
        return rule(parent, value) if rule is not None and isinstance(parent, Op) else None
    if isinstance(op, scf.For | scf.If | scf.While):
        return _results(op, value.index)
    if op.has(*_MOVES):
        return [
            operand for operand in op.operands if isinstance(element_of(operand.type), PointerType)
        ] or None
    return None


def _results(op: scf.For | scf.If | scf.While, index: int) -> list[Value]:
    if isinstance(op, scf.For):
        return [_present(op.init[index]), op.body.terminator.operands[index]]
    if isinstance(op, scf.If):
        return [block.terminator.operands[index] for block in op.blocks]
    return [op.before.terminator.operands[1 + index]]


def _for_argument(op: Op, value: Value) -> list[Value]:
    assert isinstance(op, scf.For)
    index = value.index - 1
    return [_present(op.init[index]), op.body.terminator.operands[index]]


def _while_argument(op: Op, value: Value) -> list[Value]:
    assert isinstance(op, scf.While)
    if value.owner is op.before:
        return [_present(op.init[value.index]), op.after.terminator.operands[value.index]]
    return [op.before.terminator.operands[1 + value.index]]


_ARGUMENTS: dict[type[Op], Callable[[Op, Value], list[Value]]] = {
    scf.For: _for_argument,
    scf.While: _while_argument,
}


def _present(value: Value | None) -> Value:
    assert value is not None
    return value
