"""Building and rewriting: an insertion point, and a worklist driver for local patterns.

Ops are built detached and placed by a `Builder`, so construction and placement are visible
separately. A pattern is a function from an op to its replacement values; the driver owns the
worklist, the erasing and the locations, so a pattern is only its idea.

A pattern may inspect its op, the producers of its operands and the users of its results. When one
of these changes, the op is tried again; farther ops are not watched.

Invariant: after `rewrite` no pattern applies to any op, and every new op carries the location of
the op it replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from aotc.ir.core import Block, Kernel, Op, OpT, Value, build
from aotc.ir.diagnostics import IRError, at
from aotc.ir.effects import Trait


class Builder:
    """Insert ops at one place: before `before`, or at the end of `block`."""

    def __init__(self, block: Block, before: Op | None = None) -> None:
        self.block = block
        self.before = before
        self.added: list[Op] = []

    @classmethod
    def before_op(cls, op: Op) -> Builder:
        """Return a builder inserting just before `op`."""
        if op.block is None:
            raise IRError(f"{op.opcode} is in no block", op.loc)
        return cls(op.block, op)

    @classmethod
    def after_op(cls, op: Op) -> Builder:
        """Return a builder inserting just after `op`."""
        if op.block is None:
            raise IRError(f"{op.opcode} is in no block", op.loc)
        return cls(op.block, op.next)

    def __call__(self, op: OpT) -> OpT:
        """Insert `op` and return it."""
        self.block.insert(op, self.before)
        self.added.append(op)
        return op


def copy_ops(
    ops: Iterable[Op], mapping: Mapping[Value, Value], builder: Builder
) -> dict[Value, Value]:
    """Place copies of `ops` with mapped operands; return `mapping` with their results added."""
    added = dict(mapping)
    for op in ops:
        builder(op.clone(added))
    return added


Pattern = Callable[[OpT, Builder], "Sequence[Value] | None"]

_MAX_REWRITES_PER_OP = 64


def append_carried(op: OpT, inits: Sequence[Value] = ()) -> OpT:
    """Replace a loop or branch by one around the same blocks with more results; return it.

    The blocks have the arguments for them and pass them on already; a loop starts them as `inits`,
    a branch has none.
    """
    blocks, op.blocks = op.blocks, ()
    extended = Builder.before_op(op)(
        build(type(op), [*op.slots, *inits], op.attributes, blocks, op.loc)
    )
    op.replace_with(extended.results[: len(op.results)])
    return extended


def pass_on(block: Block, values: Sequence[Value]) -> None:
    """Append values to the operands of a block's terminator."""
    end = block.terminator
    end.set_slots([*end.slots, *values])


def is_inside(owner: Op | Block, outer: Op) -> bool:
    """Return whether an op or block is nested in `outer`."""
    block = owner if isinstance(owner, Block) else owner.block
    while block is not None:
        if block.parent is outer:
            return True
        block = block.parent.block if isinstance(block.parent, Op) else None
    return False


def is_pure(op: Op) -> bool:
    """Return whether `op` and everything nested in it may be removed, duplicated or moved."""
    return _holds_throughout(op, lambda nested: nested.pure)


def is_trivially_dead(op: Op) -> bool:
    """Return whether nothing observes `op`: no result is used and it only reads."""
    for value in op.results:
        if value.users:
            return False
    return is_unobserved(op)


def is_unobserved(op: Op) -> bool:
    """Return whether `op` is there for its results alone: with all nested in it, it only reads."""
    return not op.terminator and _holds_throughout(op, _only_reads)


def _only_reads(op: Op) -> bool:
    if op.has_side_effects or op.has(Trait.MAY_NOT_END):
        return False
    return not getattr(op, "volatile", False)


def _holds_throughout(op: Op, predicate: Callable[[Op], bool]) -> bool:
    return predicate(op) and all(
        predicate(nested) for block in op.blocks for nested in block.walk()
    )


def erase_dead(op: Op) -> None:
    """Erase an op if nothing observes it, and then its otherwise unused producers."""
    worklist = [op]
    while worklist:
        candidate = worklist.pop()
        if candidate.block is not None and is_trivially_dead(candidate):
            worklist += _producers(candidate)
            candidate.erase()


def rewrite(kernel: Kernel, patterns: Mapping[type[Op], Sequence[Pattern[Op]]]) -> bool:
    """Apply `patterns`, keyed by op class, until none applies; return whether any did.

    Dead pure ops are removed on the way. Raises: IRError if the patterns do not converge.
    """
    worklist: dict[Op, None] = dict.fromkeys(kernel.walk())
    budget = _MAX_REWRITES_PER_OP * (len(worklist) + 16)
    changed = False
    while worklist:
        op, _ = worklist.popitem()
        if op.block is None:
            continue
        if is_trivially_dead(op):
            worklist.update(dict.fromkeys(_producers(op)))
            op.erase()
            changed = True
            continue
        candidates = patterns.get(type(op))
        if candidates is None:
            continue
        builder = Builder.before_op(op)
        with at(op.loc):
            for pattern in candidates:
                replacement = pattern(op, builder)
                if replacement is None and not builder.added:
                    continue
                worklist.update(dict.fromkeys(builder.added))
                builder.added.clear()
                budget -= 1
                if budget < 0:
                    raise IRError(f"rewriting does not converge at {op.opcode}", op.loc)
                if replacement is None:
                    continue
                users = [user for value in op.results for user in value.users]
                producers = _producers(op)
                op.replace_with(replacement)
                worklist.update(dict.fromkeys([*producers, *users]))
                changed = True
                break
    return changed


def _producers(op: Op) -> list[Op]:
    """Return the ops losing a user when `op` is erased with its nested ops."""
    nested = [inner for block in op.blocks for inner in block.walk()]
    return [value.op for user in (op, *nested) for value in user.operands if value.op is not None]
