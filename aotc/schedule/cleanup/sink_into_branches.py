"""Sink indices into the branches that use them, each to its first use there.

Addresses that both branches of an `if` use are computed ahead of it in the source. Left there,
those of a branch's stores are live while all that it loads and computes is, two registers for each
access. LLVM sinks what a single branch uses, and nothing that both do.

Invariant: only pure ops on indices move, and none is run more often than before.
"""

from __future__ import annotations

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import scf
from aotc.ir.rewrite import Builder
from aotc.schedule.cleanup.recompute_addresses import Indices
from aotc.schedule.context import Schedule


def sink_into_branches(kernel: Kernel, schedule: Schedule) -> None:
    """Move index tiles that nothing but one `if` uses into its branches."""
    del schedule
    indices = Indices()
    # An outer `if` comes before those in it, which may sink further what it got.
    for branch in [op for op in kernel.walk() if isinstance(op, scf.If)]:
        op = branch.prev
        # Users come before their operands, whose only users they may be by then.
        while op is not None:
            before = op.prev
            if len(op.results) == 1 and indices.is_index(op.results[0]):
                _sink(op.results[0], op, branch)
            op = before


def _sink(value: Value, op: Op, branch: scf.If) -> None:
    """Sink the op that defines a value into the branches that use it, unless something else does."""
    users = list(value.users)
    places = {block: _places(users, block) for block in branch.blocks}
    if not users or sum(len(each) for each in places.values()) < len(users):
        return
    for block, inside in places.items():
        first = next((each for each in block if each in inside.values()), None)
        if first is not None:
            made = Builder.before_op(first)(op.clone({})).results[0]
            for user in inside:
                user.replace_operand(value, made)
    op.erase()


def _places(users: list[Op], block: Block) -> dict[Op, Op]:
    """Return, for each user inside a block, the op of that block that is or contains it.

    What a block yields outlives the block, so that is no use inside of it.
    """
    places: dict[Op, Op] = {}
    for user in users:
        for each in (user, *user.ancestors()):
            if each.block is block and not each.terminator:
                places[user] = each
    return places
