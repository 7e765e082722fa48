"""Mbarriers: phases, counts, bytes, order, and their misuse."""

import numpy as np
import pytest

from tests.support.ptx_kernel import collect, faults, run

INIT = """
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r1], {count};
    bar.sync 0;
"""
WAIT = """
WAIT{name}:
    mbarrier.{kind}_wait.parity.shared.b64 %p2, [%r1], {parity};
    @!%p2 bra WAIT{name};
"""
ARRIVE = "mbarrier.arrive.shared.b64 %rd20, [%r1];"


def wait(parity=0, name="A", kind="try"):
    return WAIT.format(parity=parity, name=name, kind=kind)


# The first warp writes, the second waits and reads the data.
PRODUCE = """
    setp.lt.u32 %p3, %r0, 32;
    mad.lo.u32 %r3, %r0, 4, %r1;
    @!%p3 bra CONSUMER;
    st.shared.b32 [%r3+16], %r0;
    {arrive}
    mov.b32 %r63, %r0;
    bra END;
CONSUMER:
    {wait}
    ld.shared.b32 %r63, [%r3+-112];
END:
"""


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", ["try", "test"])
def test_handing_over(kind, seed):
    body = INIT.format(count=32) + PRODUCE.format(arrive=ARRIVE, wait=wait(kind=kind))
    out = collect(body, threads=64, grid=3, seed=seed)
    assert (out == np.tile(np.arange(64) % 32, 3)).all()


def test_one_elected_arrival_needs_a_warp_sync_before():
    elected = "setp.eq.u32 %p4, %r0, 0; @%p4 mbarrier.arrive.shared.b64 _, [%r1];"
    good = PRODUCE.format(arrive="bar.warp.sync -1;" + elected, wait=wait())
    out = collect(INIT.format(count=1) + good, threads=64)
    assert (out == np.arange(64) % 32).all()
    bad = PRODUCE.format(arrive=elected, wait=wait())
    faults(INIT.format(count=1) + bad, kind="race", threads=64, match="which thread 1 wrote")


def test_one_elected_wait_needs_a_warp_sync_after():
    elected = "setp.ne.u32 %p4, %r0, 32; @%p4 bra SKIP;" + wait() + "SKIP:"
    good = PRODUCE.format(arrive=ARRIVE, wait=elected + "bar.warp.sync -1;")
    assert (collect(INIT.format(count=32) + good, threads=64) == np.arange(64) % 32).all()
    bad = PRODUCE.format(arrive=ARRIVE, wait=elected)
    faults(INIT.format(count=32) + bad, kind="race", threads=64)


def test_relaxed_arrival_or_wait_orders_nothing():
    relaxed = "mbarrier.arrive.relaxed.cta.shared.b64 _, [%r1];"
    body = INIT.format(count=32) + PRODUCE.format(arrive=relaxed, wait=wait())
    faults(body, kind="race", threads=64)


def test_wrong_parity():
    body = INIT.format(count=32) + PRODUCE.format(arrive=ARRIVE, wait=wait(parity=1))
    # In step the producer comes first: its phase is over, and the wait is for the one after it.
    faults(body, kind="deadlock", threads=64)


def test_phase_before_the_first_counts_as_complete():
    assert (collect(INIT.format(count=1) + wait(parity=1) + "mov.b32 %r63, 3;") == 3).all()


def test_not_waiting_is_a_race():
    body = INIT.format(count=32) + PRODUCE.format(arrive=ARRIVE, wait="")
    faults(body, kind="race", threads=64)


def test_wait_does_not_cover_arrivals_of_the_phase_after():
    # In step, the third warp waits for the first phase when the second has arrived in the next.
    body = (
        INIT.format(count=32)
        + f"""
    mov.b32 %r63, 0;
    mad.lo.u32 %r3, %r0, 4, %r1;
    setp.lt.u32 %p3, %r0, 32;
    @%p3 mbarrier.arrive.shared.b64 _, [%r1];
    @%p3 bra END;
    setp.ge.u32 %p4, %r0, 64;
    @%p4 bra THIRD;
    {wait(name="SECOND")}
    st.shared.b32 [%r3], %r0;
    bar.warp.sync -1;
    setp.lt.u32 %p5, %r0, 48;
    @%p5 mbarrier.arrive.shared.b64 _, [%r1];
    bra END;
THIRD:
    {wait(name="THIRD")}
    ld.shared.b32 %r63, [%r3+-128];
END:
"""
    )
    faults(body, kind="race", threads=96)


def test_slot_handed_back_and_forth():
    """A ring of one stage, five rounds: full and empty barriers with running parity."""
    body = """
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r1], 32;
    @%p1 mbarrier.init.shared.b64 [%r1+8], 32;
    bar.sync 0;
    mov.b32 %r10, 0;
    mov.b32 %r63, 0;
    mad.lo.u32 %r3, %r0, 4, %r1;
    setp.lt.u32 %p3, %r0, 32;
    @!%p3 bra CONSUMER;
PRODUCER:
    and.b32 %r11, %r10, 1;
    xor.b32 %r12, %r11, 1;
EMPTY:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r1+8], {empty};
    @!%p2 bra EMPTY;
    mad.lo.u32 %r13, %r10, 100, %r0;
    st.shared.b32 [%r3+16], %r13;
    mbarrier.arrive.shared.b64 _, [%r1];
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p4, %r10, 5;
    @%p4 bra PRODUCER;
    bra END;
CONSUMER:
    and.b32 %r11, %r10, 1;
FULL:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r1], %r11;
    @!%p2 bra FULL;
    ld.shared.b32 %r14, [%r3+-112];
    add.u32 %r63, %r63, %r14;
    mbarrier.arrive.shared.b64 _, [%r1+8];
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p4, %r10, 5;
    @%p4 bra CONSUMER;
END:
"""
    for seed in range(4):
        out = collect(body.format(empty="%r12"), threads=64, seed=seed)
        assert (out[32:] == 1000 + 5 * np.arange(32)).all()
    faults(body.format(empty="%r11"), kind="deadlock", threads=64)


def test_waiting_without_arrival_is_a_deadlock():
    faults(INIT.format(count=33) + ARRIVE + wait(), kind="deadlock", match="wait")


def test_states_and_pending_counts():
    body = (
        INIT.format(count=40)
        + """
    mbarrier.arrive.shared.b64 %rd20, [%r1], 1;
    mbarrier.pending_count.b64 %r10, %rd20;
    mbarrier.test_wait.shared.b64 %p2, [%r1], %rd20;
    selp.b32 %r63, 100, 0, %p2;
    add.u32 %r63, %r63, %r10;
"""
    )
    assert (collect(body) == 40 - np.arange(32)).all()
    full_phase = body.replace("40;", "32;").replace(
        "1;\n    mbarrier.pending", "1;\n    bar.sync 0;\n    mbarrier.pending"
    )
    assert (collect(full_phase) == 132 - np.arange(32)).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_question_is_no_deadlock(seed):
    body = (
        INIT.format(count=2)
        + """
    mov.b32 %r63, 0;
    mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 0;
    @%p2 add.u32 %r63, %r63, 1;
    mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 1;
    @%p2 add.u32 %r63, %r63, 10;
    mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 0;
    @%p2 bra NEVER;
    add.u32 %r63, %r63, 100;
NEVER:
"""
    )
    assert (collect(body, threads=64, seed=seed) == 110).all()


def test_arrival_with_a_count_and_several_phases_at_once():
    body = INIT.format(count=4) + "mbarrier.arrive.shared.b64 _, [%r1], 2;" + wait(1, "B")
    run(body, threads=32)  # 32 lanes complete 16 phases: the last one is odd
    faults(body.replace("2;", "3;"), kind="mbarrier", match="more often")


@pytest.mark.parametrize("instruction", ["expect_tx", "arrive.expect_tx"])
def test_bytes(instruction):
    start = INIT.format(count=1) + "setp.ne.u32 %p3, %r0, 0; @%p3 bra JOIN;"
    expect = {
        "expect_tx": "mbarrier.expect_tx.relaxed.cta.shared.b64 [%r1], 64;"
        "mbarrier.arrive.shared.b64 _, [%r1];",
        "arrive.expect_tx": "mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 64;",
    }[instruction]
    come = "mbarrier.complete_tx.relaxed.cta.shared.b64 [%r1], {};"
    run(start + expect + come.format(64) + "JOIN:" + wait())
    run(start + come.format(64) + expect + "JOIN:" + wait())
    short = faults(start + expect + come.format(63) + "JOIN:" + wait(), kind="deadlock")
    assert "try_wait" in short.text
    early = start + come.format(64) + ARRIVE + "JOIN:" + wait()
    faults(early, kind="deadlock")
    fault = faults(start + expect + ARRIVE + "JOIN:", kind="mbarrier", match="more often")
    assert "64 bytes outstanding" in fault.notes[0]


def test_too_many_bytes():
    body = INIT.format(count=1) + "mbarrier.expect_tx.relaxed.cta.shared.b64 [%r1], 1048575;"
    run(body, threads=1)
    faults(body, kind="mbarrier", threads=2, match="2097150 bytes")


def test_arrive_drop_lowers_the_next_phases():
    body = (
        INIT.format(count=32)
        + """
    setp.lt.u32 %p3, %r0, 30;
    @%p3 mbarrier.arrive_drop.shared.b64 _, [%r1];
    @!%p3 mbarrier.arrive.shared.b64 _, [%r1];
    bar.sync 0;
    @!%p3 mbarrier.arrive.shared.b64 _, [%r1];
    bar.sync 0;
    mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 1;
    selp.b32 %r63, 1, 0, %p2;
"""
    )
    assert (collect(body) == 1).all()


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (ARRIVE, "none has been initialised"),
        ("mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 0;", "none has been initialised"),
        ("mbarrier.init.shared.b64 [%r1], 1;", "twice"),
        (INIT.format(count=1) + "@%p1 mbarrier.init.shared.b64 [%r1], 1;", "twice"),
        (INIT.format(count=0), "count 0"),
        (INIT.format(count=1 << 20), "count 1048576"),
        (
            INIT.format(count=2) + "@%p1 " + ARRIVE + "@%p1 mbarrier.inval.shared.b64 [%r1];",
            "in use",
        ),
        (
            INIT.format(count=2) + "@%p1 mbarrier.inval.shared.b64 [%r1]; bar.sync 0;" + ARRIVE,
            "none",
        ),
        (INIT.format(count=2) + "@%p1 st.shared.b32 [%r1+4], 1;", "where an mbarrier lives"),
        (INIT.format(count=2) + "@%p1 ld.shared.b64 %rd20, [%r1];", "where an mbarrier lives"),
    ],
)
def test_misuse(body, match):
    faults(body, kind="mbarrier", match=match)


def test_misaligned_and_outside():
    faults("mbarrier.init.shared.b64 [%r1+4], 1;", kind="misaligned", threads=1)
    faults("mbarrier.init.shared.b64 [%r1+1024], 1;", kind="bounds", threads=1)


def test_memory_may_be_used_after_inval_and_made_a_barrier_again():
    body = (
        INIT.format(count=32)
        + """
    @%p1 mbarrier.inval.shared.b64 [%r1];
    @%p1 st.shared.b32 [%r1], 1;
    @%p1 mbarrier.init.shared.b64 [%r1], 32;
    bar.sync 0;
"""
    )
    run(body + ARRIVE + wait())


def test_barrier_must_be_seen_to_be_initialised():
    body = "setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared.b64 [%r1], 64;"
    fault = faults(body + ARRIVE, kind="race", threads=64, match="thread 0 initialised")
    assert "mbarrier.init" in fault.notes[0]


def test_arrival_at_another_block():
    body = """
    mov.u32 %r10, %cluster_ctarank;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r1], 32;
    {sync}
    xor.b32 %r11, %r10, 1;
    mapa.shared::cluster.u32 %r12, %r1, %r11;
    mad.lo.u32 %r13, %r0, 4, %r12;
    mad.lo.u32 %r14, %r0, 4, %r1;
    mad.lo.u32 %r15, %r10, 100, %r0;
    st.shared::cluster.b32 [%r13+16], %r15;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];
WAIT:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra WAIT;
    ld.shared.b32 %r63, [%r14+16];
    {sync}
"""
    sync = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    for seed in (0, 1):
        out = collect(body.format(sync=sync), grid=4, cluster=2, seed=seed)
        assert (out.reshape(4, 32) == np.arange(32) + np.array([[100], [0], [100], [0]])).all()
