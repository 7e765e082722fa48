"""Sink indices into the branches that use them, each to its first use there.

Addresses that both branches of an `if` use are computed ahead of it in the source. Left there,
those of a branch's stores are live while all that it loads and computes is, two registers for each
access. LLVM sinks what a single branch uses, and nothing that both do.

Invariant: only pure ops on indices move, and none is run more often than before.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import scf
from aotc.ir.rewrite import Builder
from aotc.schedule.analysis.global_order import free_operands
from aotc.schedule.cleanup.recompute_addresses import Indices
from aotc.schedule.context import Schedule


def sink_into_branches(kernel: Kernel, schedule: Schedule) -> None:
    """Move index tiles that nothing but one `if` uses into its branches."""
    del schedule
    indices = Indices()
    # An outer `if` comes before those in it, which may sink further what it got.
    orders: dict[Block, dict[Op, int]] = {}
    for branch in [op for op in kernel.walk() if isinstance(op, scf.If)]:
        block = branch.block
        assert block is not None
        if block not in orders:  # from now on ops only leave it
            orders[block] = {op: number for number, op in enumerate(block)}
        _sink_all(branch, orders[block], indices)


def _sink_all(branch: scf.If, order: dict[Op, int], indices: Indices) -> None:
    """Sink what a branch uses, and then what that is computed from."""
    latest: list[tuple[int, Op]] = []
    marks: dict[Op, None] = {}

    def visit(values: Iterable[Value]) -> None:
        for op in (value.op for value in values):
            if op in order and op not in marks:
                marks[op] = None
                heapq.heappush(latest, (-order[op], op))

    visit(free_operands(branch))
    while latest:
        # Users come before their operands, whose only users they may be by then.
        op = heapq.heappop(latest)[1]
        if len(op.results) == 1 and indices.is_index(op.results[0]):
            operands = op.operands
            if _sink(op.results[0], op, branch):
                visit(operands)


def _sink(value: Value, op: Op, branch: scf.If) -> bool:
    """Sink the op that defines a value into the branches that use it, unless something else does."""
    uses = _places(value, branch)
    if not uses:
        return False
    for block in branch.blocks:
        inside = {user: inner for user, inner in uses.items() if inner.block is block}
        holders = dict.fromkeys(inside.values())
        first = next((inner for inner in block if inner in holders), None) if inside else None
        if first is not None:
            sunk = Builder.before_op(first)(op.clone({})).results[0]
            for user in inside:
                user.replace_operand(value, sunk)
    op.erase()
    return True


def _places(value: Value, branch: scf.If) -> dict[Op, Op]:
    """Return, for each user, the op of the branch's blocks that is or contains it; none if one has none.

    What a block yields outlives the block, so that is no use inside of it.
    """
    uses: dict[Op, Op] = {}
    for user in value.users:
        around = (user, *user.ancestors())
        enclosing = next((e for e in around if e.block in branch.blocks and not e.terminator), None)
        if enclosing is None:
            return {}
        uses[user] = enclosing
    return uses
