"""The verifier of the IR's structure, run before and after every pass.

Types agree with those inferred by ops, operands dominate their uses, use lists are exact, blocks
end in their terminator. The meaning of an op is checked where it is built.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import IRError
from aotc.ir.types import Type


def verify(kernel: Kernel) -> None:
    """Check `kernel`. Raises: IRError at the first op with a broken invariant."""
    if len(kernel.params) != len(kernel.body.args):
        raise IRError(
            f"kernel {kernel.name} has {len(kernel.params)} parameters described, "
            f"but its body takes {len(kernel.body.args)}",
            kernel.loc,
        )
    _verify_block(kernel.body, kernel, {})


def _verify_block(block: Block, parent: Op | Kernel, scope: dict[Value, None]) -> None:
    """Check a block where the values of `scope` are visible; leave `scope` as it was."""
    if block.parent is not parent:
        raise IRError("a nested block does not name its parent", parent.loc)
    if block.last is None or not block.last.terminator:
        loc = parent.loc if block.last is None else block.last.loc
        raise IRError("a block must end in a terminator", loc)
    depth = len(scope)
    for arg in block.args:
        if arg.owner is not block:
            raise IRError(f"a block has the argument {arg!r}, which another owns", parent.loc)
        _verify_users(arg, parent)
        scope[arg] = None
    previous: Op | None = None
    for op in block:
        if op.block is not block or op.prev is not previous:
            op.error("is linked wrongly into its block")
        if op.terminator and op is not block.last:
            op.error("is a terminator in the middle of a block")
        _verify_op(op, scope)
        previous = op
    if previous is not block.last:
        raise IRError("a block does not end in its last op", parent.loc)
    while len(scope) > depth:
        scope.popitem()


def _verify_op(op: Op, scope: dict[Value, None]) -> None:
    slots = op.slots
    for value in slots:
        if value is None:
            continue
        if value not in scope:
            op.error(f"uses {value!r}, which does not dominate it")
        if value.users.get(op) != slots.count(value):
            op.error(f"is missing from the use list of {value!r}")
    for nested in op.blocks:
        _verify_block(nested, op, scope)
    inferred = op.infer()
    results = op.results
    actual = [value.type for value in results]
    if actual != list(inferred):
        op.error(f"has result types {_show(actual)} but infers {_show(inferred)}")
    for value in results:
        if value.owner is not op:
            op.error("has a result owned by another op")
        _verify_users(value, op)
        scope[value] = None


def _verify_users(value: Value, owner: Op | Kernel) -> None:
    """Check that the listed users of `value` use it, and are themselves in a block."""
    for user in value.users:
        if value not in user.slots:
            raise IRError(f"{value!r} lists {user.opcode} as a user, but it is none", owner.loc)
        if user.block is None:
            raise IRError(f"{value!r} is used by {user.opcode}, which is in no block", owner.loc)


def _show(types: Sequence[Type]) -> str:
    return "(" + ", ".join(str(type_) for type_ in types) + ")"
