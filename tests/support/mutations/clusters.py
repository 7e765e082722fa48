"""Bugs in programs of several CTAs: copies and signals within the cluster."""

from __future__ import annotations

from aotc.ir.core import Kernel
from aotc.ir.dialects import arith, cluster, gpu, grid, mbarrier, tma
from aotc.ir.rewrite import Builder
from aotc.schedule.pipelining import expand_cluster_exchanges
from aotc.schedule.programs import split_across_cluster
from aotc.schedule.warp_roles import choose_warp_roles
from tests.support.mutations.plant import (
    Mutation,
    after_pass,
    each,
    found,
    in_ptx,
    replacing,
    without,
)

_LAST = "insert_barriers"


def _for_one_block(barrier: grid.ClusterBarrier) -> None:
    Builder.before_op(barrier)(gpu.Barrier())
    barrier.erase()


def _tell_one_block(arrival: mbarrier.MbarrierArrive) -> None:
    arrival.num_ctas = 1


def _await_one_block(barrier: mbarrier.MbarrierInit) -> None:
    barrier.count = min(barrier.count, 4)


def _as_the_first(rank: grid.CtaRank) -> None:
    rank.replace_with([Builder.before_op(rank)(arith.Constant(0, rank.out.type)).out])


def _expect_half(barrier: mbarrier.MbarrierInit) -> None:
    barrier.expected_bytes //= 2


def _on_one_mbarrier(kernel: Kernel) -> None:
    """Let the second exchange complete where the first does, a phase later."""
    waits, sends = found(kernel, mbarrier.MbarrierWait), found(kernel, grid.ClusterSend)
    first, second = sends[0].barrier, sends[1].barrier
    sends[1].replace_operand(second, first)
    waits[1].replace_operand(second, first)
    phase = Builder.before_op(waits[1])(arith.Constant(1, waits[1].parity.type)).out
    waits[1].replace_operand(waits[1].parity, phase)


def _told_early(kernel: Kernel) -> None:
    (read, *_), (arrival, *_) = found(kernel, gpu.SharedLoad), found(kernel, cluster.RemoteArrive)
    arrival.remove()
    Builder.before_op(read)(arrival)


def _tell_the_next(kernel: Kernel) -> None:
    first, second = found(kernel, cluster.RemoteArrive)
    ranks = first.cta, second.cta
    first.replace_operand(first.cta, ranks[1])
    second.replace_operand(second.cta, ranks[0])


_PLANTS = (
    (
        "CTAs copy for each other though nobody waits for room",
        "a copy into other CTAs is kept without a warp that loads",
        "multiply_a_block",
        replacing(choose_warp_roles, "_load_alone", lambda _: None),
    ),
    (
        "a part begins where no copy may write",
        "nobody asks how many bytes each CTA copies",
        "multiply_in_parts",
        replacing(split_across_cluster, "has_parts", lambda *_: True),
    ),
    (
        "a CTA copies to others before they are ready",
        "the barrier of the cluster is one of the CTA",
        "multiply_in_parts",
        after_pass(_LAST, each(grid.ClusterBarrier, _for_one_block)),
    ),
    (
        "a CTA ends while others arrive there",
        "the barrier of the cluster at the end is left out",
        "multiply_in_parts",
        after_pass(_LAST, without(grid.ClusterBarrier, -1)),
    ),
    (
        "only its own CTA is told that a stage is read",
        "an arrival does not go to every CTA that copies there",
        "multiply_in_parts",
        after_pass(_LAST, each(mbarrier.MbarrierArrive, _tell_one_block)),
    ),
    (
        "a stage is empty once one CTA has read it",
        "the barrier counts the warps of one CTA",
        "multiply_in_parts",
        after_pass(_LAST, each(mbarrier.MbarrierInit, _await_one_block)),
    ),
    (
        "every CTA computes the first one's part",
        "the CTA's index is left out of what it loads and stores",
        "multiply_a_block",
        after_pass("split_across_cluster", each(grid.CtaRank, _as_the_first)),
    ),
    (
        "a CTA sends before others have begun",
        "the wait for the cluster's first barrier is left out",
        "spread_rows",
        after_pass(_LAST, without(grid.ClusterWait, 0)),
    ),
    (
        "a CTA reads what others have not sent",
        "the wait at the mbarrier of an exchange is left out",
        "spread_rows",
        after_pass(_LAST, without(mbarrier.MbarrierWait, 0)),
    ),
    (
        "a CTA ends while others send to it",
        "the wait of the last exchange is left out",
        "spread_rows",
        after_pass(_LAST, without(mbarrier.MbarrierWait, -1)),
    ),
    (
        "an exchange is over when half of it has come",
        "the mbarrier expects the bytes of half the CTAs",
        "spread_rows",
        after_pass(_LAST, each(mbarrier.MbarrierInit, _expect_half)),
    ),
    (
        "what a fast CTA sends next counts for this exchange",
        "two exchanges complete at one mbarrier",
        "spread_rows",
        after_pass(_LAST, _on_one_mbarrier),
    ),
    (
        "others do not see the mbarrier that they send to",
        "the fence of a new mbarrier is left out before a relaxed arrival",
        "spread_rows",
        in_ptx(r"fence\.mbarrier_init\.release\.cluster;", ""),
    ),
    (
        "only the first CTA is sent to",
        "CTAs are addressed by a number that is always 0",
        "spread_rows",
        in_ptx(r"(mapa\.shared::cluster\.u32 \w+, %r\d+), %r\d+;", r"\1, 0;"),
    ),
    (
        "a CTA stores to others that have not read what came before",
        "the first barrier of an exchange in a loop is left out",
        "level_rows",
        after_pass(_LAST, without(grid.ClusterBarrier, 0)),
    ),
    (
        "a CTA reads in a loop what others have not stored",
        "the second barrier of an exchange in a loop is left out",
        "level_rows",
        after_pass(_LAST, without(grid.ClusterBarrier, 1)),
    ),
    (
        "a tile is sent over one that is not read yet",
        "the wait for an empty stage of the other CTA is left out",
        "pass_rows",
        after_pass(_LAST, without(mbarrier.MbarrierWait, 0)),
    ),
    (
        "a tile is read before it has come",
        "the wait for a full stage is left out",
        "pass_rows",
        after_pass(_LAST, without(mbarrier.MbarrierWait, -1)),
    ),
    (
        "the CTA that a tile came from is not told that it was read",
        "the arrival at another CTA is left out",
        "pass_rows",
        after_pass(_LAST, without(cluster.RemoteArrive, 0)),
    ),
    (
        "the wrong CTA is told that a tile was read",
        "an arrival goes to the CTA that the next tile goes to",
        "pass_rows",
        after_pass(_LAST, _tell_the_next),
    ),
    (
        "a tile is told to be read while it is being read",
        "the arrival stands ahead of the read",
        "pass_rows",
        after_pass(_LAST, _told_early),
    ),
    (
        "reads are not fenced from what is sent next",
        "the fence of the async proxy before an arrival is left out",
        "pass_rows",
        after_pass(_LAST, without(tma.ProxyFence, 0)),
    ),
    (
        "a tile is sent before the other CTA has begun",
        "the wait for the cluster's first barrier is left out before an exchange",
        "pass_rows",
        after_pass(_LAST, without(grid.ClusterWait, 0)),
    ),
    (
        "a CTA ends while others tell it of their reads",
        "the barrier of the cluster after the last exchange is left out",
        "pass_rows",
        after_pass(_LAST, without(grid.ClusterBarrier, -1)),
    ),
    (
        "a CTA reads a tile that is not stored yet",
        "the barrier of the cluster before a read is left out",
        "read_rows",
        after_pass(_LAST, without(grid.ClusterBarrier, 0)),
    ),
    (
        "a CTA ends while others read its tile",
        "the barrier of the cluster after the last read is left out",
        "read_rows",
        after_pass(_LAST, without(grid.ClusterBarrier, -1)),
    ),
    (
        "a tile is stored over one that others read",
        "tiles that others read have one buffer instead of two",
        "read_rows",
        replacing(expand_cluster_exchanges, "_NUM_STAGES", 1),
    ),
    (
        "every CTA reads its own tile",
        "the address of another CTA's shared memory is not mapped",
        "read_rows",
        in_ptx(r"mapa\.shared::cluster\.u32 (%r\d+), (%r\d+), %r\d+;", r"mov.u32 \1, \2;"),
    ),
)


_GRID_PLANTS = (
    (
        "a program reads what others have not stored",
        "the barrier of the grid is left out",
        after_pass(_LAST, without(grid.GridBarrier, 0)),
    ),
    (
        "a program overwrites what others have not read",
        "the second barrier of the grid is left out",
        after_pass(_LAST, without(grid.GridBarrier, 1)),
    ),
    (
        "a CTA counts itself in before its threads have come",
        "the barrier of the CTA before that of the grid is left out",
        in_ptx(r"bar\.sync \t?0;(?=(?:(?!bar\.sync)[\s\S])*?atom\.relaxed)", ""),
    ),
    (
        "threads go on before the one that waits for the grid",
        "the barrier of the CTA after that of the grid is left out",
        in_ptx(r"(done: \}\s*(?://[^\n]*\s*)*)bar\.sync \t?0;", r"\1"),
    ),
    (
        "others do not see what a program has written",
        "the fence before a program counts itself in is left out",
        in_ptx(r"fence\.acq_rel\.gpu;(?=\s*atom\.relaxed)", ""),
    ),
    (
        "a program does not see what others have written",
        "the fence after the wait for the grid is left out",
        in_ptx(r"(@more bra again;\s*)fence\.acq_rel\.gpu;", r"\1"),
    ),
    (
        "the first program goes on alone",
        "every program adds 1 to a counter that is to flip",
        in_ptx(r"selp\.b32 count, count, 1, more;", "selp.b32 count, 0x80000000, 1, more;"),
    ),
)


MUTATIONS = tuple(
    Mutation(name, stands_for, kernel, plant, "sm_90a")
    for name, stands_for, kernel, plant in (
        *_PLANTS,
        *((name, stands_for, "turn_pieces", plant) for name, stands_for, plant in _GRID_PLANTS),
    )
)
