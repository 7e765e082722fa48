"""Fences for loads from global memory: ops no load may cross.

Two parameters may alias (a kernel is often launched in place) unless the signature promises
otherwise for one. So a load and a write keep their order unless they are provably disjoint. A
barrier of the user's orders everything, and so does an assertion: it may imply the bounds of later
accesses.

An op on an mbarrier tells other threads about completed accesses, or waits for them, so it is a
fence as well.

Printed output tells how far a program came, so loads stay on their side of it.

Invariant: any op declared to write or order global memory or output, or to use an mbarrier, is a
fence.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, tile
from aotc.ir.effects import AccessKind, Resource, Trait
from aotc.ir.parameter_access import pointer_roots
from aotc.ir.params import ParamInfo
from aotc.ir.rewrite import is_inside
from aotc.ir.types import PointerType, element_of

_ORDERING = (Resource.GLOBAL, Resource.MBARRIER, Resource.OUTPUT)


def fences(ops: Iterable[Op]) -> Iterator[Op]:
    """Yield the fences for loads among ops and their nested ops."""
    for op in ops:
        for nested in (op, *(inner for block in op.blocks for inner in block.walk())):
            if any(nested.effects_on(resource, "write", "order") for resource in _ORDERING):
                yield nested


def may_precede(first: Op, second: Op) -> bool:
    """Return whether `first` comes before `second` in some run of the kernel."""
    around = [first, *first.ancestors()]
    inside = [second, *second.ancestors()]
    if any(op.has(Trait.LOOP) and op in around for op in inside):
        return True  # in an earlier iteration
    blocks = {op.block: op for op in around}
    for op in inside:
        if op.block in blocks and blocks[op.block] is not op:
            return stands_before(blocks[op.block], op)
    return False


def stands_before(first: Op, second: Op) -> bool:
    """Return whether an op comes before another one of its block, or is it."""
    op: Op | None = first
    while op is not None and op is not second:
        op = op.next
    return op is second


def synchronizes(op: Op) -> bool:
    """Return whether an op orders its threads' accesses with other threads', or may write anywhere.

    An assertion orders only accesses possibly out of bounds. A wait for the previous grid orders
    its writes, and every pass keeps those on their side. A proxy fence concerns one thread.
    """
    if not op.effects or op.has(Trait.MAY_TRAP, Trait.DEPENDENT_LAUNCH):
        return False
    changes = op.effects_on(Resource.GLOBAL, "write", "order", proxy="generic")
    if op.has(Trait.ATOMIC):
        return not is_reduction(op)
    return bool(changes) and accessed(op) is None


def keeps_order(barrier: Op) -> bool:
    """Return whether a barrier orders anything before it.

    A barrier of a CTA does not if none of its threads has written before, nor waited for other
    programs by a volatile load.
    """
    if not isinstance(barrier, tile.Barrier | gpu.Barrier):
        return True
    around = [barrier, *barrier.ancestors()]
    body = around[-1].block
    assert body is not None
    return any(
        (op.writes(Resource.GLOBAL) or getattr(op, "volatile", False)) and may_precede(op, barrier)
        for op in body.walk()
    )


def is_reduction(op: Op) -> bool:
    """Return whether an atomic only changes memory: relaxed, with an unused result."""
    is_relaxed = getattr(op, "sem", "relaxed") == "relaxed"  # gpu ops stand beside their fences
    return is_relaxed and not any(value.users for value in op.results)


def accessed(op: Op, *access: AccessKind) -> Value | None:
    """Return the pointer, descriptor or tensor map of an op's global access."""
    if not op.effects:
        return None
    for effect in op.effects_on(Resource.GLOBAL, *(access or ("read", "write"))):
        if effect.of:
            return getattr(op, effect.of)
    return None


def accessed_pointer(op: Op, *access: AccessKind) -> Value | None:
    """Return the pointers of an op's global access, if it is one by pointers."""
    root = accessed(op, *access)
    return root if root is not None and is_pointer(root) else None


def is_pointer(value: Value) -> bool:
    """Return whether a value is a pointer, or a tile of them."""
    return isinstance(element_of(value.type), PointerType)


def written_pointer(fence: Op) -> Value | None:
    """Return the pointers a fence writes through, or None if it orders all memory."""
    return accessed_pointer(fence, "write")


def shared_roots(left: Value, right: Value) -> list[Value]:
    """Return the common origins of two pointers.

    Pointers of unknown origin may all alias.
    """
    roots = pointer_roots(left)
    unknown = any(not _is_parameter(root) for root in roots)
    return [
        root
        for root in pointer_roots(right)
        if root in roots or (unknown and not _is_parameter(root))
    ]


def is_promised_apart(left: Value | None, right: Value | None) -> bool:
    """Return whether the signature promises that two pointers are of different arguments."""
    if left is None or right is None:
        return False
    sides = [list(map(_parameter, pointer_roots(value))) for value in (left, right)]
    return all(
        first is not None
        and second is not None
        and first.argument != second.argument
        and (first.noalias or second.noalias)
        for first, second in itertools.product(*sides)
    )


def _is_parameter(root: Value) -> bool:
    return isinstance(root.owner, Block) and isinstance(root.owner.parent, Kernel)


def _parameter(root: Value) -> ParamInfo | None:
    """Return the parameter of a root, or None."""
    kernel = root.owner.parent if isinstance(root.owner, Block) else None
    return kernel.params[root.index] if isinstance(kernel, Kernel) else None


def root_names(pointer: Value) -> str:
    """Return the names of a pointer's parameters, for a remark."""
    names = [root.hint or "a computed pointer" for root in pointer_roots(pointer)]
    return " and ".join(dict.fromkeys(names))


def free_operands(op: Op) -> Iterator[Value]:
    """Yield the values used but not defined by an op and its nested ops."""
    yield from op.operands
    for block in op.blocks:
        for inner in block.walk():
            yield from (value for value in inner.operands if not is_inside(value.owner, op))


def is_zero(value: Value | None) -> bool:
    """Return whether a value is absent, or a constant with all bits clear."""
    if value is None:
        return True
    op = value.op
    return isinstance(op, arith.Constant) and str(op.value) in ("0", "0.0", "False")
