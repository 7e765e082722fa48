"""Distribute tiles of work over several consumer groups in ping-pong.

Each group runs whole iterations of the loop over tiles: the epilogue of one overlaps the mainloop
of the next. All run the same code, so a group goes through all iterations and skips those of the
others:

    for tile: if owner == group: wait for the order; multiply; pass the order on; epilogue
              owner = owner + 1 (mod groups)

The order is that of tiles: a group starts its mainloop when the one before has issued its last
MMA, so that they do not run in lockstep. Its operands then come from the rings that
all groups share, in program order. Loops that wait for each dot leave gaps that another group's
dots fill, and so need no order; nor do loads after the mainloop.

Invariant: each iteration is run once, by one group; no other group uses its values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aotc.ir.core import Block, Kernel, Op, Value, build
from aotc.ir.diagnostics import IRError, at
from aotc.ir.dialects import arith, cluster, gpu, mbarrier, roles, scf, tma, wgmma
from aotc.ir.effects import Resource, Trait
from aotc.ir.rewrite import Builder, append_carried
from aotc.ir.types import I32
from aotc.schedule.analysis.global_order import (
    accessed,
    accessed_pointer,
    fences,
    shared_roots,
    synchronizes,
    written_pointer,
)
from aotc.schedule.context import Schedule
from aotc.schedule.layout.layouts import WARPGROUP_WARPS
from aotc.schedule.remarks import Reason
from aotc.schedule.shared_memory.mbarrier_ring import MbarrierRing, RingPosition

# ---- whether ----------------------------------------------------------------------------------


def groups_obstacle(kernel: Kernel, schedule: Schedule, num_warps: int) -> str:
    """Return why one consumer group runs all tiles, or an empty string.

    `num_warps` is how many a CTA would have with all groups.
    """
    if not schedule.strategy.has_groups:
        return schedule.strategy.reason
    if kernel.num_warps % WARPGROUP_WARPS:
        return Reason.PARTIAL_WARPGROUPS(warps=kernel.num_warps)
    if num_warps > schedule.target.max_warps_per_block:
        return Reason.NO_ROOM_FOR_WARPS(warps=num_warps)
    if any(isinstance(op, tma.MakeTensorMap) for op in kernel.walk()):
        return Reason.MAKES_MAPS()
    if any(
        isinstance(op, cluster.ClusterPermute | cluster.ClusterTranspose) for op in kernel.walk()
    ):
        return Reason.EXCHANGES_TILES()
    loop = loop_of_tiles(kernel.body)
    if loop is None:
        return Reason.NO_TILE_LOOP()
    if loop.carried:
        return Reason.TILE_LOOP_CARRIES()
    return "" if kernel.is_persistent else _dependence(kernel, loop)


def loop_of_tiles(block: Block) -> scf.For | None:
    """Return the loop that contains all tensor loads of a kernel and further loops, or None."""
    holders = [op for op in block if _has_loads(op)]
    if len(holders) != 1 or not isinstance(holders[0], scf.For):
        return None
    nested = any(op.has(Trait.LOOP) for op in holders[0].body.walk())
    return holders[0] if nested else None


def _has_loads(op: Op) -> bool:
    return isinstance(op, tma.SyncLoad) or any(
        isinstance(inner, tma.SyncLoad) for block in op.blocks for inner in block.walk()
    )


def _dependence(kernel: Kernel, loop: scf.For) -> str:
    """Return why memory accesses forbid running tiles concurrently, or an empty string."""
    outside = [op for op in kernel.body if op is not loop]
    for op in fences(outside):
        if not op.has(Trait.DEPENDENT_LAUNCH):
            return Reason.OUTSIDE_TILE_LOOP(op=op.opcode)
    if any(getattr(op, "volatile", False) for op in loop.body.walk()):
        return Reason.VOLATILE_TILES()
    dependents = _dependents(loop)
    for op in fences(loop.body):
        if op.has(Trait.MAY_TRAP) or op.writes(Resource.OUTPUT) or isinstance(op, tma.ProxyFence):
            continue
        written = accessed(op, "write")
        if written is None or synchronizes(op):
            return Reason.ORDERED_TILES(op=op.opcode)
        if op.reads(Resource.GLOBAL):
            continue  # reductions commute
        if not any(value in dependents for value in getattr(op, "coords", ()) or [written]):
            return Reason.SAME_PLACE(op=op.opcode)
    for write in fences(loop.body):
        target = written_pointer(write)
        for op in loop.body.walk():
            pointer = accessed_pointer(op, "read")
            if target and pointer and shared_roots(pointer, target):
                return Reason.TILES_COMMUNICATE()
    return ""


def _dependents(loop: scf.For) -> dict[Value, None]:
    """Return the values of a loop's body that depend on its induction variable."""
    dependents = dict.fromkeys([loop.induction])
    size = 0
    while len(dependents) > size:
        size = len(dependents)
        for op in loop.body.walk():
            if not any(value in dependents for value in op.operands):
                continue
            outer = op.parent_op if op.terminator else op
            if outer is not None and outer is not loop:
                dependents.update(dict.fromkeys(outer.results))
                for block in outer.blocks:
                    dependents.update(dict.fromkeys(block.args))
    return dependents


# ---- how --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnTiles:
    """The index of the consumer group that runs the code, and the branch for its own tiles."""

    group: Value
    branch: scf.If


def distribute_tiles(consumers: Block, kernel: Kernel, builder: Builder) -> OwnTiles:
    """Let each consumer group run iterations of its own.

    The mbarriers between groups go to `builder`, which both roles see.
    """
    count = kernel.num_consumer_groups
    loop = loop_of_tiles(consumers)
    if loop is None or loop.carried:
        raise IRError(
            "the loop over tiles can no longer be divided among consumer groups", kernel.loc
        )
    first = Builder(consumers, consumers.first)
    group = first(roles.ConsumerGroup()).out
    zero = first(arith.Constant(0, I32)).out
    with at(loop.loc):
        owner = loop.body.add_arg(I32, "owner")
        branch = _under_branch(loop, group, owner)
        before = Builder.before_op(loop)
        begins = before(arith.Compare(group, zero, "eq")).out
        # The first tile waits for the phase before the first.
        parity = before(arith.Cast(begins, I32)).out
        phase = loop.body.add_arg(I32, "parity")
        _keep_order(branch.then, kernel, RingPosition(group, phase), builder)
        end = Builder.before_op(loop.body.terminator)
        flip = end(arith.Cast(branch.condition, I32)).out
        following = [end(gpu.NextStage(owner, count)).out, end(arith.Xor(phase, flip)).out]
        loop.body.terminator.set_slots(following)
        append_carried(loop, [zero, parity])
    return OwnTiles(group, branch)


def _under_branch(loop: scf.For, group: Value, owner: Value) -> scf.If:
    """Guard a loop's body by the condition that the iteration is the group's."""
    arms = Block(), Block()
    for op in list(loop.body):
        if not op.terminator:
            op.remove()
            arms[0].insert(op)
    for arm in arms:
        Builder(arm)(scf.Yield([]))
    builder = Builder.before_op(loop.body.terminator)
    mine = builder(arith.Compare(owner, group, "eq")).out
    return builder(build(scf.If, [mine], {}, arms, loop.loc))


def _keep_order(body: Block, kernel: Kernel, position: RingPosition, builder: Builder) -> None:
    """Delay a tile's dots until those of the tile before have been issued.

    That is a ring with a stage for each group: the one before it arrives at its mbarrier.
    """
    loop = ordered_loop(body)
    if loop is None:
        return
    num_warps = kernel.num_warps
    order = MbarrierRing(builder, kernel.num_consumer_groups, arrivals=num_warps)
    outer = next(op for op in (loop, *loop.ancestors()) if op.block is body)
    order.await_full(position, Builder.before_op(outer))
    for after in _ends(loop, body):
        following = after(gpu.SharedStage(order.full, position.index, 1)).out
        after(mbarrier.MbarrierArrive(following, num_warps))


def ordered_loop(body: Block) -> scf.For | None:
    """Return the loop with all dots of a tile, if they stay in flight; branches may enclose it."""
    dots = [op for op in body.walk() if isinstance(op, wgmma.Wgmma)]
    parents = list(dict.fromkeys(op.parent_op for op in dots))
    loop = parents[0] if len(parents) == 1 else None
    if not isinstance(loop, scf.For):
        return None
    around = [op for op in loop.ancestors() if any(block is body for block in _blocks(op))]
    in_flight = any(isinstance(op, wgmma.WgmmaWait) and op.pending for op in loop.body)
    return loop if in_flight and all(isinstance(op, scf.If) for op in around) else None


def _blocks(op: Op) -> Iterator[Block | None]:
    """Yield the blocks that contain an op, innermost first."""
    yield from (inner.block for inner in (op, *op.ancestors()))


def _ends(loop: scf.For, body: Block) -> Iterator[Builder]:
    """Yield a place after a loop, and one in each arm of a branch that does not run it."""
    yield Builder.after_op(loop)
    op: Op = loop
    while op.block is not body:
        branch = op.parent_op
        assert branch is not None
        for arm in branch.blocks:
            if arm is not op.block:
                yield Builder.before_op(arm.terminator)
        op = branch
