"""Whether several groups of consumers share a kernel's tiles of work, and how they take turns.

Each group runs whole iterations of the loop over tiles: while one brings its results to memory, the
next one multiplies. All run the same ops, so a group goes through all iterations and passes over
those of the others:

    for tile: if turn == group: wait for the order; multiply; give the order to the next; finish
              turn = turn + 1 (mod groups)

The order is that of tiles: a group starts to multiply when the one before has issued its last
product, so that they do not go in step. What a tile multiplies it then takes from the rings that
all groups share, in the order of the program. Loops that wait for each product have work between
products that another group's fill, and so no order; nor have fetches behind the products.

Invariant: an iteration is run once, by one group, and none is looked at by another group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aotc.ir.core import Block, Kernel, Op, Value, build
from aotc.ir.diagnostics import IRError, at
from aotc.ir.dialects import arith, gpu, grid, roles, scf, tile, tma, wgmma
from aotc.ir.rewrite import Builder, append_carried
from aotc.ir.types import I32
from aotc.schedule.analysis.global_order import fences, shared_roots, written_pointer
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import WARPGROUP_WARPS
from aotc.schedule.shared_memory.mbarriers import place_mbarrier

_READS = (gpu.Load, tile.Load, gpu.AsyncCopy)
_ORDERED = (gpu.Store, tile.Store, tma.TmaStore, tma.BulkStore)
_FREE = (tma.TmaReduce, tma.ProxyFence, tile.Assert, tile.Print)


# ---- whether ----------------------------------------------------------------------------------


def groups_obstacle(kernel: Kernel, schedule: Schedule, num_warps: int) -> str:
    """Return why one group of consumers runs all tiles, or an empty string.

    `num_warps` is how many a block would have with all groups.
    """
    if not schedule.strategy.has_groups:
        return schedule.strategy.reason
    if kernel.num_warps % WARPGROUP_WARPS:
        return f"{kernel.num_warps} warps are no whole warpgroups"
    if num_warps > schedule.target.max_warps_per_block:
        return f"a block has no room for {num_warps} warps"
    loop = loop_of_tiles(kernel.body)
    if loop is None:
        return "no loop holds all that is fetched, and loops of its own"
    if loop.carried:
        return "the loop over tiles carries values from one to the next"
    return "" if kernel.loops_programs else _dependence(kernel, loop)


def loop_of_tiles(block: Block) -> scf.For | None:
    """Return the loop that holds all fetches of a kernel and has loops inside, or None."""
    holders = [op for op in block if _fetches(op)]
    if len(holders) != 1 or not isinstance(holders[0], scf.For):
        return None
    nested = any(isinstance(op, scf.For | scf.While) for op in holders[0].body.walk())
    return holders[0] if nested else None


def _fetches(op: Op) -> bool:
    return isinstance(op, tma.Fetch) or any(
        isinstance(inner, tma.Fetch) for block in op.blocks for inner in block.walk()
    )


def _dependence(kernel: Kernel, loop: scf.For) -> str:
    """Return why tiles may not be run side by side, as far as memory goes, or an empty string."""
    outside = [op for op in kernel.body if op is not loop]
    for op in fences(outside):
        if not isinstance(op, grid.GridWait):
            return f"{op.opcode} is outside of the loop over tiles"
    if any(getattr(op, "volatile", False) for op in loop.body.walk()):
        return "a volatile load keeps tiles in order"
    moved = _dependents(loop)
    for op in fences(loop.body):
        if not isinstance(op, _ORDERED + _FREE):
            return f"{op.opcode} keeps tiles in order"
        if isinstance(op, _ORDERED):
            place = op.coords if isinstance(op, tma.TmaStore) else [op.pointer]
            if not any(value in moved for value in place):
                return f"{op.opcode} writes the same place in every tile"
    for write in fences(loop.body):
        target = written_pointer(write)
        for op in loop.body.walk():
            if target and isinstance(op, _READS) and shared_roots(op.pointer, target):
                return "a tile may read what another one writes"
    return ""


def _dependents(loop: scf.For) -> dict[Value, None]:
    """Return the values of a loop's body that depend on its induction variable."""
    found = dict.fromkeys([loop.induction])
    size = 0
    while len(found) > size:
        size = len(found)
        for op in loop.body.walk():
            if not any(value in found for value in op.operands):
                continue
            outer = op.parent_op if op.terminator else op
            if outer is not None and outer is not loop:
                found.update(dict.fromkeys(outer.results))
                for block in outer.blocks:
                    found.update(dict.fromkeys(block.args))
    return found


# ---- how --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupTurns:
    """Hold the number of the group that runs this, and the branch that it takes in its turns."""

    number: Value
    branch: scf.If


def take_turns(consumers: Block, kernel: Kernel, place: Builder) -> GroupTurns:
    """Let each group run iterations of its own.

    What the groups tell each other goes to `place`, which both roles see.
    """
    count = kernel.num_consumer_groups
    loop = loop_of_tiles(consumers)
    if loop is None or loop.carried:
        raise IRError("the loop over tiles cannot be shared out any more", kernel.loc)
    first = Builder(consumers, consumers.first)
    group = first(roles.ConsumerGroup()).out
    zero = first(arith.Constant(0, I32)).out
    with at(loop.loc):
        turn = loop.body.add_arg(I32, "turn")
        branch = _under_branch(loop, group, turn)
        before = Builder.before_op(loop)
        begins = before(arith.Compare(group, zero, "eq")).out
        # The first tile waits for the phase before the first.
        parity = before(arith.Cast(begins, I32)).out
        own = loop.body.add_arg(I32, "parity")
        _keep_order(branch.then, kernel, group, own, place)
        end = Builder.before_op(loop.body.terminator)
        flip = end(arith.Cast(branch.condition, I32)).out
        following = [end(gpu.NextSlot(turn, count)).out, end(arith.Xor(own, flip)).out]
        loop.body.terminator.set_slots(following)
        append_carried(loop, [zero, parity])
    return GroupTurns(group, branch)


def _under_branch(loop: scf.For, group: Value, turn: Value) -> scf.If:
    """Put a loop's body under the condition that it is the group's turn."""
    arms = Block(), Block()
    for op in list(loop.body):
        if not op.terminator:
            op.remove()
            arms[0].insert(op)
    for arm in arms:
        Builder(arm)(scf.Yield([]))
    place = Builder.before_op(loop.body.terminator)
    mine = place(arith.Compare(turn, group, "eq")).out
    return place(build(scf.If, [mine], {}, arms, loop.loc))


def _keep_order(body: Block, kernel: Kernel, group: Value, parity: Value, place: Builder) -> None:
    """Let a tile's products wait until those of the tile before have been issued."""
    loop = ordered_loop(body)
    if loop is None:
        return
    count, num_warps = kernel.num_consumer_groups, kernel.num_warps
    order = place_mbarrier(place, count)
    place(tma.MbarrierInit(order, num_warps))
    outer = next(op for op in (loop, *loop.ancestors()) if op.block is body)
    before = Builder.before_op(outer)
    before(tma.MbarrierWait(before(gpu.SharedSlot(order, group)).out, parity))
    for after in _ends(loop, body):
        following = after(gpu.SharedSlot(order, group, 1)).out
        after(tma.MbarrierArrive(following, num_warps))


def ordered_loop(body: Block) -> scf.For | None:
    """Return the loop that has all products of a tile, if they run on; it may be in branches."""
    products = [op for op in body.walk() if isinstance(op, wgmma.Wgmma)]
    parents = list(dict.fromkeys(op.parent_op for op in products))
    loop = parents[0] if len(parents) == 1 else None
    if not isinstance(loop, scf.For):
        return None
    around = [op for op in loop.ancestors() if any(block is body for block in _blocks(op))]
    runs_on = any(isinstance(op, wgmma.WgmmaWait) and op.pending for op in loop.body)
    return loop if runs_on and all(isinstance(op, scf.If) for op in around) else None


def _blocks(op: Op) -> Iterator[Block | None]:
    """Yield the blocks that an op is in, from the inside out."""
    yield from (each.block for each in (op, *op.ancestors()))


def _ends(loop: scf.For, body: Block) -> Iterator[Builder]:
    """Yield a place behind a loop, and one in each arm of a branch that does not run it."""
    yield Builder.after_op(loop)
    op: Op = loop
    while op.block is not body:
        branch = op.parent_op
        assert branch is not None
        for arm in branch.blocks:
            if arm is not op.block:
                yield Builder.before_op(arm.terminator)
        op = branch
