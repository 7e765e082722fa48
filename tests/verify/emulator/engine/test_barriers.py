"""Barriers of CTAs, warps and clusters: their waits, and every detected misuse."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.verify.emulator.errors import Fault
from tests.support.ptx_kernel import collect, faults, run

SEEDS = [0, 1, 2, 3]

# Each thread writes its number, and reads its mirror image's from the other warps' part.
EXCHANGE = """
    shl.b32 %r4, %r0, 2;
    add.s32 %r4, %r4, %r1;
    st.shared.b32 [%r4], %r0;
    {barrier}
    sub.s32 %r5, {last}, %r0;
    shl.b32 %r6, %r5, 2;
    add.s32 %r6, %r6, %r1;
    ld.shared.b32 %r63, [%r6];
"""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("threads", [32, 64, 100, 256])
@pytest.mark.parametrize(
    "barrier",
    ["bar.sync 0;", "barrier.sync.aligned 3;", "barrier.cta.sync 15;", "bar.sync 1, {all};"],
)
def test_exchange(barrier, threads, seed):
    text = barrier.format(all=-(-threads // 32) * 32)
    body = EXCHANGE.format(barrier=text, last=threads - 1)
    out = collect(body, threads=threads, grid=3, seed=seed)
    np.testing.assert_array_equal(out, np.tile(np.arange(threads)[::-1], 3))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_missing_barrier_is_found(seed):
    # In step, all write before any reads, but no wait orders them.
    body = EXCHANGE.format(barrier="", last=63)
    with pytest.raises(Fault) as caught:
        run(body, threads=64, seed=seed)
    assert caught.value.kind in ({"race"} if seed == 0 else {"race", "uninitialised"})


# ---- producers and consumers --------------------------------------------------------------------

PRODUCER_CONSUMER = """
    mov.b32 %r10, 0;
    mov.b32 %r12, 0;
    setp.lt.u32 %p1, %r0, 32;
    shl.b32 %r4, %r0, 2;
    and.b32 %r5, %r4, 127;
    add.s32 %r5, %r5, %r1;
    @%p1 bra produce;
consume:
    bar.sync 1, 96;
    ld.shared.b32 %r11, [%r5];
    add.s32 %r12, %r12, %r11;
    bar.arrive 2, 96;
    add.s32 %r10, %r10, 1;
    setp.lt.u32 %p2, %r10, 5;
    @%p2 bra consume;
    bra done;
produce:
    setp.eq.u32 %p3, %r10, 0;
    @%p3 bra fill;
    bar.sync 2, 96;
fill:
    mad.lo.u32 %r11, %r10, 100, %r0;
    st.shared.b32 [%r5], %r11;
    bar.arrive 1, 96;
    add.s32 %r10, %r10, 1;
    setp.lt.u32 %p2, %r10, 5;
    @%p2 bra produce;
    bar.sync 2, 96;
done:
    mov.b32 %r63, %r12;
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_named_barriers_of_producer_and_consumers(seed):
    lane = np.arange(32)
    consumed = 100 * sum(range(5)) + 5 * lane
    out = collect(PRODUCER_CONSUMER, threads=96, seed=seed, grid=2)
    np.testing.assert_array_equal(out, np.tile(np.concatenate([0 * lane, consumed, consumed]), 2))


def test_a_producer_that_does_not_wait_races():
    body = PRODUCER_CONSUMER.replace("    bar.sync 2, 96;\nfill", "fill").replace(
        "    bar.sync 2, 96;\ndone", "done"
    )
    assert body != PRODUCER_CONSUMER
    faults(body, kind="race", threads=96)


ARRIVE_AND_SYNC = """
    setp.lt.u32 %p1, %r0, 32;
    @%p1 bra arrive;
    {before_sync}
    bar.sync 1, 64;
    {after_sync}
    bra done;
arrive:
    {before_arrive}
    bar.arrive 1, 64;
    {after_arrive}
done:
"""


@pytest.mark.parametrize(
    ("statements", "races"),
    [
        (
            {"before_arrive": "st.shared.b32 [%r1], 1;", "after_sync": "ld.shared.b32 %r4, [%r1];"},
            False,
        ),
        # An arrival releases nothing later, and without a wait it acquires nothing.
        (
            {"after_arrive": "st.shared.b32 [%r1], 1;", "after_sync": "st.shared.b32 [%r1], 2;"},
            True,
        ),
        (
            {"before_sync": "st.shared.b32 [%r1], 1;", "after_arrive": "st.shared.b32 [%r1], 2;"},
            True,
        ),
    ],
)
def test_an_arrival_releases_earlier_accesses_only(statements, races):
    names = ("before_sync", "after_sync", "before_arrive", "after_arrive")
    body = ARRIVE_AND_SYNC.format(**{name: statements.get(name, "") for name in names})
    if races:
        faults(body, kind="race", threads=64)
    else:
        run(body, threads=64)


def test_warps_part_at_barriers_of_their_own():
    body = """
        shr.u32 %r4, %r0, 6;
        add.s32 %r5, %r4, 1;
        bar.sync %r5, 64;
        mov.b32 %r63, %r5;
    """
    out = collect(body, threads=128)
    np.testing.assert_array_equal(out, 1 + np.arange(128) // 64)


SHARED_BARRIER = """
    shr.u32 %r4, %r0, 6;
    setp.eq.u32 %p1, %r4, 0;
    @!%p1 bra second;
    bar.sync 1, 64;
{first}
    bra done;
second:
{between}
    bar.sync 1, 64;
done:
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_sharing_a_barrier_may_be_confused(seed):
    """In any order, each group may have been released with a warp of the other."""
    body = SHARED_BARRIER.format(first="", between="")
    match = "barrier 1, where warp [0-3] of its CTA has been|more than 64 threads arrive"
    faults(body, kind="barrier", match=match, threads=128, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_may_share_a_barrier_one_after_the_other(seed):
    body = SHARED_BARRIER.format(first="bar.arrive 2, 128;", between="bar.sync 2, 128;")
    run(body, threads=128, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_producer_and_consumers_are_ordered_among_other_warps(seed):
    """By the barriers themselves: who arrives at one has waited at the other."""
    skip_others = "setp.ge.u32 %p1, %r0, 96; @%p1 bra done;"
    run(skip_others + PRODUCER_CONSUMER.replace("mov.b32 %r63, %r12;", ""), threads=160, seed=seed)


def test_a_wait_is_needed_between_two_arrivals():
    """Else the second arrival may count in place of a warp not there yet."""
    body = """
        setp.lt.u32 %p1, %r0, 32;
        @!%p1 bra wait;
        bar.arrive 1, 64;
        {between}
        bar.arrive 1, 64;
        bra done;
    wait:
        setp.ge.u32 %p2, %r0, 64;
        @%p2 bra done;
        bar.sync 1, 64;
        {after}
        bar.sync 1, 64;
    done:
    """
    run(body.format(between="bar.sync 2, 64;", after="bar.arrive 2, 64;"), threads=128)
    faults(body.format(between="", after=""), kind="barrier", threads=128)


@pytest.mark.parametrize("seed", SEEDS)
def test_reductions(seed):
    body = """
        and.b32 %r4, %r0, 3;
        setp.eq.u32 %p1, %r4, 0;
        setp.lt.u32 %p2, %r0, 96;
        bar.red.popc.u32 %r5, 0, %p1;
        barrier.cta.red.and.aligned.pred %p3, 1, 96, %p2;
        bar.red.or.pred %p4, 0, !%p2;
        selp.b32 %r6, 100, 0, %p3;
        selp.b32 %r7, 1000, 0, %p4;
        add.s32 %r63, %r5, %r6;
        add.s32 %r63, %r63, %r7;
    """
    np.testing.assert_array_equal(collect(body, threads=96, seed=seed, grid=2), 24 + 100)


def test_lanes_arrive_one_by_one_without_aligned():
    body = """
        setp.lt.u32 %p1, %r0, 10;
        @%p1 bra first;
        barrier.cta.sync 0;
        mov.b32 %r63, 1;
        bra done;
    first:
        barrier.cta.sync 0;
        mov.b32 %r63, 2;
    done:
    """
    out = collect(body, threads=64)
    np.testing.assert_array_equal(out, np.where(np.arange(64) < 10, 2, 1))


def test_exited_lanes_of_a_warp_are_not_waited_for():
    body = "setp.lt.u32 %p1, %r0, 10; @%p1 exit; bar.sync 0; mov.b32 %r63, 1;"
    out = collect(body, threads=64)
    np.testing.assert_array_equal(out, np.where(np.arange(64) < 10, 0xA5, 1))


def test_lanes_that_exit_later_complete_their_warp():
    body = """
        setp.lt.u32 %p1, %r0, 10;
        @%p1 bra leave;
        barrier.cta.sync 0;
        mov.b32 %r63, 1;
        bra done;
    leave:
        mov.b32 %r4, 0;
        exit;
    done:
    """
    out = collect(body, threads=32)
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 10, 0xA5, 1))


# ---- misuse -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_warps_that_exit_are_waited_for(seed):
    body = "setp.lt.u32 %p1, %r0, 32; @%p1 exit; bar.sync 0;"
    fault = faults(body, kind="deadlock", threads=96, seed=seed)
    assert fault.text == "bar.sync 0"
    where = f"waits at barrier 0, where 64 of 96 threads are: line {fault.line}: bar.sync 0"
    assert fault.notes == tuple(f"warp {warp} of CTA (0, 0, 0) {where}" for warp in (1, 2))


def test_two_barriers_wait_for_each_other():
    body = """
        setp.lt.u32 %p1, %r0, 32;
        @%p1 bra one;
        bar.sync 2;
        bra done;
    one:
        bar.sync 1;
    done:
    """
    fault = faults(body, kind="deadlock", threads=64)
    assert [note[:6] for note in fault.notes] == ["warp 0", "warp 1"]
    assert "barrier 1, where 32 of 64" in fault.notes[0]
    assert "barrier 2, where 32 of 64" in fault.notes[1]


def test_an_unanswered_poll():
    body = """
        setp.eq.u32 %p1, %r0, 0;
        @%p1 mbarrier.init.shared.b64 [smem], 1;
        bar.sync 0;
    wait:
        mbarrier.try_wait.parity.shared.b64 %p2, [smem], 0;
        @%p2 bra done;
        bra wait;
    done:
    """
    fault = faults(body, kind="deadlock", threads=64)
    assert "try_wait" in fault.text
    waits = "warp 1 of CTA (0, 0, 0) waits for the mbarrier at byte 0 of "
    assert fault.notes[1].startswith(waits)
    assert "in phase 0 with 1 of 1 arrivals and 0 bytes outstanding" in fault.notes[1]


@pytest.mark.parametrize(
    ("body", "kind", "match"),
    [
        ("bar.sync 16;", "misuse", "there is no barrier 16"),
        ("bar.sync 0, 33;", "misuse", "33 threads can not meet"),
        ("bar.sync 0, 128;", "misuse", "128 threads can not meet"),
        ("bar.arrive 0, 0;", "misuse", "0 threads can not meet"),
        (
            "setp.lt.u32 %p1, %r0, 32; @%p1 bar.arrive 0, 64; @%p1 bar.arrive 0, 64;",
            "barrier",
            "arrives at barrier 0 again",
        ),
        (
            "setp.lt.u32 %p1, %r0, 32; @%p1 bar.arrive 0, 64; @!%p1 bar.sync 0, 32;",
            "barrier",
            "count 32 threads here, and 64 where others",
        ),
        ("setp.eq.u32 %p1, %r0, 1; @%p1 bar.sync 0;", "convergence", "part of a warp"),
        (
            "setp.eq.u32 %p1, %r0, 1; @%p1 bra l; barrier.sync.aligned 0; l:",
            "convergence",
            "part of a warp",
        ),
        ("bar.warp.sync 1;", "misuse", "not in its own mask"),
        ("barrier.cluster.wait.aligned;", "misuse", "without having arrived"),
        ("barrier.cluster.arrive; barrier.cluster.arrive;", "misuse", "arrives twice"),
    ],
)
def test_misuse(body, kind, match):
    faults(body, kind=kind, match=match, threads=64)


# ---- warps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_lanes_on_different_ways_meet_at_a_warp_barrier(seed):
    body = """
        shl.b32 %r4, %r0, 2;
        add.s32 %r4, %r4, %r1;
        and.b32 %r5, %r0, 1;
        setp.eq.u32 %p1, %r5, 0;
        @%p1 bra even;
        bar.warp.sync 0xffffffff;
        ld.shared.b32 %r63, [%r4+-4];
        bra done;
    even:
        st.shared.b32 [%r4], %r0;
        bar.warp.sync 0xffffffff;
        mov.b32 %r63, 99;
    done:
    """
    lane = np.arange(32)
    out = collect(body, seed=seed)
    np.testing.assert_array_equal(out, np.where(lane % 2, lane - 1, 99))


def test_a_warp_barrier_of_some_lanes():
    body = """
        setp.lt.u32 %p1, %r0, 4;
        @%p1 bra few;
        bra done;
    few:
        bar.warp.sync 15;
    done:
        mov.b32 %r63, 1;
    """
    np.testing.assert_array_equal(collect(body), 1)


def test_masks_that_disagree():
    body = """
        setp.lt.u32 %p1, %r0, 4;
        @%p1 bra few;
        bar.warp.sync -1;
        bra done;
    few:
        bar.warp.sync 31;
    done:
    """
    faults(body, kind="barrier", match="different masks")


def test_a_lane_that_never_comes():
    body = "setp.eq.u32 %p1, %r0, 3; @%p1 bra l; bar.warp.sync -1; ret; l: bar.sync 0;"
    faults(body, kind="convergence", match="part of a warp")


def test_exit_completes_a_warp_barrier():
    body = """
        setp.lt.u32 %p1, %r0, 4;
        @%p1 bra leave;
        bar.warp.sync -1;
        mov.b32 %r63, 1;
        bra done;
    leave:
        mov.b32 %r4, 1;
        exit;
    done:
    """
    np.testing.assert_array_equal(collect(body), np.where(np.arange(32) < 4, 0xA5, 1))


# ---- clusters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_of_a_cluster_meet(seed):
    # Each block writes its rank to the other block's memory, then reads its own.
    body = """
        mov.u32 %r4, %cluster_ctarank;
        xor.b32 %r5, %r4, 1;
        mapa.shared::cluster.u32 %r6, %r1, %r5;
        shl.b32 %r7, %r0, 2;
        add.s32 %r8, %r6, %r7;
        add.s32 %r9, %r1, %r7;
        st.shared::cluster.b32 [%r8], %r4;
        barrier.cluster.arrive.release.aligned;
        barrier.cluster.wait.acquire.aligned;
        ld.shared.b32 %r10, [%r9];
        mov.u32 %r11, %clusterid.x;
        mad.lo.u32 %r63, %r11, 10, %r10;
    """
    out = collect(body, threads=64, grid=6, cluster=2, seed=seed)
    expected = [10 * cluster + 1 - rank for cluster in range(3) for rank in range(2)]
    np.testing.assert_array_equal(out, np.repeat(expected, 64))


def test_a_block_that_never_arrives():
    body = """
        mov.u32 %r4, %cluster_ctarank;
        setp.eq.u32 %p1, %r4, 1;
        @%p1 bra stay;
        barrier.cluster.arrive;
        barrier.cluster.wait;
        bra done;
    stay:
        setp.lt.u32 %p2, %r0, 32;
        @%p2 bar.sync 0;
    done:
    """
    fault = faults(body, kind="deadlock", threads=64, grid=2, cluster=2)
    assert ["cluster" in note for note in fault.notes] == [True, True, False]
    assert fault.notes[2].startswith("warp 0 of CTA (1, 0, 0) waits at barrier 0")


def test_blocks_that_have_exited_are_not_waited_for():
    body = """
        mov.u32 %r4, %cluster_ctarank;
        setp.eq.u32 %p1, %r4, 1;
        @%p1 exit;
        barrier.cluster.arrive;
        barrier.cluster.wait;
        mov.b32 %r63, 1;
    """
    out = collect(body, threads=32, grid=2, cluster=2)
    np.testing.assert_array_equal(out, np.repeat([1, 0xA5], 32))


def test_relaxed_arrivals_order_nothing():
    body = """
        mov.u32 %r4, %cluster_ctarank;
        setp.eq.u32 %p1, %r4, 0;
        mapa.shared::cluster.u32 %r6, %r1, 1;
        setp.eq.and.u32 %p2, %r0, 0, %p1;
        @%p2 st.shared::cluster.b32 [%r6], 7;
        barrier.cluster.arrive.relaxed;
        barrier.cluster.wait;
        @!%p1 ld.shared.b32 %r5, [%r1];
    """
    faults(body, kind="race", threads=32, grid=2, cluster=2)
    run(body.replace(".relaxed", ""), threads=32, grid=2, cluster=2)


@pytest.mark.parametrize(
    ("fence", "before"),
    [
        ("fence.acq_rel.cluster;", True),
        ("fence.acq_rel.cluster;", False),
        ("fence.acq_rel.cta;", True),
    ],
)
def test_a_relaxed_arrival_releases_accesses_before_a_cluster_fence(fence: str, before: bool):
    store = "@%p2 st.shared::cluster.b32 [%r6], 7;"
    body = f"""
        mov.u32 %r4, %cluster_ctarank;
        setp.eq.u32 %p1, %r4, 0;
        mapa.shared::cluster.u32 %r6, %r1, 1;
        setp.eq.and.u32 %p2, %r0, 0, %p1;
        {f"{store} {fence}" if before else f"{fence} {store}"}
        barrier.cluster.arrive.relaxed;
        barrier.cluster.wait;
        setp.eq.u32 %p3, %r0, 0;
        setp.eq.and.u32 %p4, %r4, 1, %p3;
        @%p4 ld.shared.b32 %r5, [%r1];
    """
    launch = {"threads": 32, "grid": 2, "cluster": 2}
    if before and "cluster" in fence:
        run(body, **launch)
    else:
        faults(body, kind="race", **launch)
