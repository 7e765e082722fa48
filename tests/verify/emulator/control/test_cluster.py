"""Addresses in a cluster, register pools, and instructions without effect here."""

import numpy as np
import pytest

from aotc.verify.emulator.errors import EmulationError
from tests.support.ptx_kernel import collect, faults, run

SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
RANK = "mov.u32 %r2, %cluster_ctarank;"


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("generic", [False, True])
def test_reading_the_next_block(generic, seed):
    """Each block of four writes its rank and reads the next one's, twice over."""
    if generic:
        get = """
        cvt.u64.u32 %rd20, %r1; cvta.shared.u64 %rd20, %rd20;
        mapa.u64 %rd21, %rd20, %r4; getctarank.u64 %r6, %rd21;
        mul.wide.u32 %rd22, %r0, 4; add.u64 %rd21, %rd21, %rd22; ld.b32 %r7, [%rd21];"""
    else:
        get = """
        mapa.shared::cluster.u32 %r5, %r1, %r4; getctarank.shared::cluster.u32 %r6, %r5;
        mad.lo.u32 %r5, %r0, 4, %r5; ld.shared::cluster.b32 %r7, [%r5];"""
    body = f"""
    {RANK}
    mad.lo.u32 %r3, %r0, 4, %r1;
    mad.lo.u32 %r8, %r2, 100, %r0;
    st.shared.b32 [%r3], %r8;
    {SYNC}
    add.u32 %r4, %r2, 1;
    and.b32 %r4, %r4, 3;
    {get}
    mad.lo.u32 %r63, %r6, 10000, %r7;
    {SYNC}"""
    out = collect(body, grid=8, cluster=4, seed=seed).reshape(8, 32)
    following = (np.arange(8) + 1) % 4
    expected = following[:, None] * 10000 + following[:, None] * 100 + np.arange(32)
    np.testing.assert_array_equal(out, expected)


def test_own_addresses_have_the_own_rank():
    out = collect("getctarank.shared::cluster.u32 %r63, %r1;", grid=4, cluster=2)
    assert (out.reshape(4, 32) == np.array([[0], [1], [0], [1]])).all()


def test_own_addresses_differ_between_ctas():
    """Code that assumes addresses start at 0 fails in a cluster, as on a GPU."""
    out = collect("shr.u32 %r63, %r1, 24;", grid=4, cluster=2).reshape(4, 32)
    assert len(set(out[:2].flat)) == 2
    assert (out[:2] == out[2:]).all()
    assert not collect("shr.u32 %r63, %r1, 24;", grid=2).any()


def test_a_rank_outside_the_cluster():
    body = f"{RANK} mapa.shared::cluster.u32 %r5, %r1, 2;"
    fault = faults(body, kind="cluster", match="CTA 2 of a cluster of 2", grid=2, cluster=2)
    assert fault.text.startswith("mapa")


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("waits", [True, False])
def test_memory_of_a_block_that_has_ended(waits: bool, seed: int) -> None:
    body = f"""
    {RANK}
    setp.eq.u32 %p1, %r2, 0;
    @%p1 bra STORE;
    {SYNC if waits else ""}
    ret;
    STORE:
    bar.sync 0;
    mapa.shared::cluster.u32 %r5, %r1, 1;
    mad.lo.u32 %r5, %r0, 4, %r5;
    st.shared::cluster.b32 [%r5], %r0;
    {SYNC if waits else ""}"""
    if waits:
        run(body, grid=2, cluster=2, seed=seed)
    else:
        faults(body, kind="ended", match="cluster rank 1.*exited", grid=2, cluster=2, seed=seed)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("access", "verb"),
    [
        ("st.shared::cluster.b32 [%r5], %r0;", "store"),
        ("ld.shared::cluster.b32 %r6, [%r5];", "load"),
        ("atom.shared::cluster.add.u32 %r6, [%r5], 1;", "atomic"),
        ("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];", "arrival"),
    ],
    ids=lambda text: text.split(".")[0],
)
def test_a_block_sees_each_access_to_its_memory_before_it_ends(
    access: str, verb: str, seed: int
) -> None:
    """Whichever of the two came first in this run."""
    first = (
        "mbarrier.init.shared::cta.b64 [%r1], 64;"
        if verb == "arrival"
        else "st.shared.b32 [%r1], 0;"
    )
    body = f"""
    {RANK}
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra MADE;
    {first}
    MADE:
    {SYNC}
    setp.eq.u32 %p1, %r2, 0;
    @%p1 bra ACCESS;
    {{}}
    ret;
    ACCESS:
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra DONE;
    mapa.shared::cluster.u32 %r5, %r1, 1;
    {access}
    DONE:
    {{}}"""
    run(body.format(SYNC, SYNC), grid=2, cluster=2, seed=seed)
    faults(
        body.format("", ""),
        kind="ended",
        match="cluster rank 1.*exited",
        grid=2,
        cluster=2,
        seed=seed,
    )


def test_a_store_to_another_block_needs_a_barrier():
    body = f"""
    {RANK}
    xor.b32 %r4, %r2, 1;
    mapa.shared::cluster.u32 %r5, %r1, %r4;
    st.shared.b32 [%r1], %r2;
    {{barrier}}
    st.shared::cluster.b32 [%r5], %r4;
    {SYNC}"""
    run(body.format(barrier=SYNC), grid=2, cluster=2)
    other = body.replace("[%r5], %r4", "[%r5], %r2")
    faults(other.format(barrier=""), kind="race", grid=2, cluster=2)


# ---- register pools -------------------------------------------------------------------------------

GROUP = "shr.u32 %r2, %r0, 7; setp.eq.u32 %p1, %r2, 0; @%p1 bra PRODUCER;"
ROLES = (
    GROUP
    + """
    setmaxnreg.inc.sync.aligned.u32 {more};
    bra END;
PRODUCER:
    setmaxnreg.dec.sync.aligned.u32 {fewer};
END:
    bar.sync 0;
"""
)


@pytest.mark.parametrize(("fewer", "more"), [(40, 232), (24, 240), (168, 168)])
def test_registers_move_between_warpgroups(fewer, more):
    run(ROLES.format(fewer=fewer, more=more), threads=384)


@pytest.mark.parametrize(("fewer", "more"), [(48, 232), (24, 248)])
def test_more_registers_than_there_are(fewer, more):
    faults(
        ROLES.format(fewer=fewer, more=more),
        kind="setmaxnreg",
        match="would wait for ever",
        threads=384,
    )


def test_changes_in_the_wrong_direction():
    twice = "setmaxnreg.dec.sync.aligned.u32 40; setmaxnreg.dec.sync.aligned.u32 48;"
    faults(twice, kind="setmaxnreg", match="decreases .* to 48, it has 40", threads=128)
    down = "setmaxnreg.inc.sync.aligned.u32 48; setmaxnreg.inc.sync.aligned.u32 40;"
    faults(down, kind="setmaxnreg", match="increases .* to 40, it has 48", threads=128)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("setmaxnreg.inc.sync.aligned.u32 20;", "multiple of 8"),
        ("setmaxnreg.inc.sync.aligned.u32 44;", "multiple of 8"),
        ("setmaxnreg.inc.sync.aligned.u32 %r0;", "no constant|not a constant"),
        ("setmaxnreg.same.sync.aligned.u32 40;", "other than"),
        ("griddepcontrol.begin;", "other than"),
        ("multimem.red.add.u32 [%rd1], %r0;", "several GPUs"),
        ("mapa.shared.u32 %r5, %r1, 2;", "other than"),
    ],
)
def test_other_forms_are_refused(text, message):
    with pytest.raises(EmulationError, match=message):
        run(text, threads=128)


def test_dependent_launches_do_nothing():
    out = collect("griddepcontrol.wait; mov.b32 %r63, 7; griddepcontrol.launch_dependents;")
    assert (out == 7).all()
