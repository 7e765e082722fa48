"""Sink index tiles into the branches that use them, each to its first use there.

Kernels compute addresses used by both arms of an `if` ahead of it. Left there, store addresses stay live
through an arm's loads and computation, two registers for each access. LLVM sinks values used in one arm
only.

Invariant: only pure index ops move, and none runs more often than before.
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
    """Move index tiles used only in one `if` into its arms."""
    del schedule
    indices = Indices()
    # Outer `if`s first: nested ones may sink the same ops further.
    orders: dict[Block, dict[Op, int]] = {}
    for branch in [op for op in kernel.walk() if isinstance(op, scf.If)]:
        block = branch.block
        assert block is not None
        if block not in orders:  # from now on ops only leave it
            orders[block] = {op: number for number, op in enumerate(block)}
        _sink_all(branch, orders[block], indices)


def _sink_all(branch: scf.If, order: dict[Op, int], indices: Indices) -> None:
    """Sink a branch's operands, then transitively their own."""
    latest: list[tuple[int, Op]] = []
    marks: dict[Op, None] = {}

    def visit(values: Iterable[Value]) -> None:
        for op in (value.op for value in values):
            if op in order and op not in marks:
                marks[op] = None
                heapq.heappush(latest, (-order[op], op))

    visit(free_operands(branch))
    while latest:
        # Users before operands: sinking a user may leave its operand only uses in the branch.
        op = heapq.heappop(latest)[1]
        if len(op.results) == 1 and indices.is_index(op.results[0]):
            operands = op.operands
            if _sink(op.results[0], op, branch):
                visit(operands)


def _sink(value: Value, op: Op, branch: scf.If) -> bool:
    """Sink a value's op into the arms that use it, unless it is used elsewhere."""
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
    """Map each user to the op of the branch's blocks around it; empty if a user is elsewhere.

    A yielded value outlives the block, so a yield counts as elsewhere.
    """
    uses: dict[Op, Op] = {}
    for user in value.users:
        around = (user, *user.ancestors())
        enclosing = next((e for e in around if e.block in branch.blocks and not e.terminator), None)
        if enclosing is None:
            return {}
        uses[user] = enclosing
    return uses
