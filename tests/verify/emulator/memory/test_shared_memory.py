"""Faults found by shared memory's shadow, and accesses it accepts."""

import numpy as np
import pytest

from tests.support.ptx_kernel import collect, faults, run

# Thread t writes its word; %r3 is its address, %r5 the address for thread t ^ 124 / 4 = t ^ 31.
WRITE = """
    shl.b32 %r2, %r0, 2;
    add.u32 %r3, %r1, %r2;
    xor.b32 %r4, %r2, 124;
    add.u32 %r5, %r1, %r4;
    st.shared.b32 [%r3], %r0;
"""
READ_OTHER = "ld.shared.b32 %r63, [%r5];"


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("sync", ["bar.sync 0;", "bar.warp.sync -1;"])
def test_synchronised_exchange(sync, seed):
    out = collect(WRITE + sync + READ_OTHER, threads=64, grid=3, seed=seed)
    assert (out == np.tile(np.arange(64) ^ 31, 3)).all()


def test_missing_synchronisation_names_both_places():
    fault = faults(WRITE + READ_OTHER, kind="race", threads=64)
    assert fault.text.startswith("ld.shared")
    assert "st.shared.b32 [%r3], %r0" in fault.notes[0]
    assert "byte 124 of 1024 bytes of shared memory, which thread 31 wrote" in fault.message


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_missing_synchronisation_is_found_in_any_schedule(seed):
    body = WRITE + "xor.b32 %r6, %r2, 128; add.u32 %r5, %r1, %r6;" + READ_OTHER
    faults(body, kind=("race", "uninitialised"), threads=64, seed=seed)


def test_warp_sync_does_not_order_warps():
    body = WRITE + "bar.warp.sync -1; xor.b32 %r6, %r2, 128; add.u32 %r5, %r1, %r6;" + READ_OTHER
    faults(body, kind="race", threads=64)


def test_overwriting_another_warps_unordered_reads():
    body = WRITE + "bar.sync 0;" + READ_OTHER + "\nst.shared.b32 [%r3], %r63;"
    fault = faults(body, kind="race", threads=64, match="which thread .* read")
    assert "ld.shared" in fault.notes[0]
    run(WRITE + "bar.sync 0;" + READ_OTHER + "bar.sync 0; st.shared.b32 [%r3], %r63;", threads=64)


def test_own_accesses_are_in_order():
    body = WRITE + "ld.shared.b32 %r6, [%r3]; add.u32 %r6, %r6, 1; st.shared.b32 [%r3], %r6;"
    out = collect(body + "ld.shared.b32 %r63, [%r3];", threads=64)
    assert (out == np.arange(64) + 1).all()


def test_two_warps_writing_different_values():
    body = "shl.b32 %r2, %r0, 2; and.b32 %r2, %r2, 127; add.u32 %r3, %r1, %r2;"
    faults(body + "st.shared.b32 [%r3], %r0;", kind="race", threads=64, match="same time")
    # In different steps, too.
    late = "setp.lt.u32 %p1, %r0, 32; @%p1 bra L; add.u32 %r0, %r0, 1; L: "
    faults(body + late + "st.shared.b32 [%r3], %r0;", kind="race", threads=64)


def test_writing_the_same_value_twice_is_forgiven():
    body = (
        "shl.b32 %r2, %r0, 2; and.b32 %r2, %r2, 127; add.u32 %r3, %r1, %r2; and.b32 %r4, %r0, 31;"
    )
    body += "st.shared.b32 [%r3], %r4; bar.sync 0; ld.shared.b32 %r63, [%r3];"
    assert (collect(body, threads=64, seed=5) == np.arange(64) % 32).all()


def test_never_written():
    fault = faults("ld.shared.b32 %r2, [%r1+8];", kind="uninitialised")
    assert "byte 8 of 1024" in fault.message
    # Part of a vector.
    body = "st.shared.b32 [%r1], 1; ld.shared.v2.b32 {%r2, %r3}, [%r1];"
    assert "byte 4" in faults(body, kind="uninitialised").message


def test_never_written_may_hold_noise():
    body = "shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; ld.shared.b32 %r63, [%r3];"
    runs = [collect(body, seed=seed, reads_unwritten=True) for seed in (0, 0, 1)]
    assert (runs[0] == runs[1]).all()
    assert (runs[0] != runs[2]).any()
    assert len(set(runs[0].tolist())) > 16
    # Written bytes are no noise, and order still counts.
    body = "st.shared.b32 [%r1], 5; bar.sync 0; ld.shared.b32 %r63, [%r1];"
    assert (collect(body, reads_unwritten=True) == 5).all()
    late = "setp.lt.u32 %p1, %r0, 32; @%p1 st.shared.b32 [%r1], 1; ld.shared.b32 %r63, [%r1];"
    faults(late, kind="race", threads=64, reads_unwritten=True)


def test_granules_are_as_small_as_accesses():
    body = """
    add.u32 %r3, %r1, %r0;
    cvt.u16.u32 %h1, %r0;
    st.shared.b8 [%r3], %h1;
    ld.shared.u8 %r63, [%r3];
"""
    assert (collect(body, threads=64) == np.arange(64)).all()
    other = body + "xor.b32 %r4, %r0, 1; add.u32 %r5, %r1, %r4; ld.shared.u8 %r63, [%r5];"
    faults(other, kind="race", threads=64)


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("[%r1+1024]", "bounds"),
        ("[%r1+-4]", "bounds"),
        ("[%r1+2]", "misaligned"),
        ("[%r1+1000000]", "bounds"),
    ],
)
def test_address(address, kind):
    fault = faults(f"st.shared.b32 {address}, %r0;", kind=kind, threads=1)
    assert "of 1024 bytes of shared memory" in fault.message


def test_last_word():
    body = "st.shared.b32 [%r1+1020], 7; ld.shared.b32 %r63, [%r1+1020];"
    assert collect(body, threads=1)[0] == 7


def test_vectors_and_all_widths():
    body = """
    mad.lo.u32 %r3, %r0, 16, %r1;
    add.u32 %r10, %r0, 100;
    add.u32 %r11, %r0, 200;
    add.u32 %r12, %r0, 300;
    st.shared.v4.b32 [%r3], {%r0, %r10, %r11, %r12};
    ld.shared.v2.b64 {%rd10, %rd11}, [%r3];
    shr.u64 %rd11, %rd11, 32;
    cvt.u32.u64 %r63, %rd11;
"""
    assert (collect(body, threads=32) == np.arange(32) + 300).all()


def test_generic_address_reaches_shared_memory():
    body = """
    cvt.u64.u32 %rd10, %r1;
    cvta.shared.u64 %rd11, %rd10;
    mul.wide.u32 %rd12, %r0, 4;
    add.s64 %rd13, %rd11, %rd12;
    st.b32 [%rd13], %r0;
    ld.b32 %r63, [%rd13];
"""
    assert (collect(body) == np.arange(32)).all()


def test_atomics_of_warps_do_not_race_but_a_plain_read_does():
    start = "setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.b32 [%r1], 0; bar.sync 0;"
    add = "atom.shared.add.u32 %r63, [%r1], 1;"
    out = collect(start + add, threads=64, seed=3)
    assert sorted(out) == list(range(64))
    faults(start + add + "ld.shared.b32 %r2, [%r1];", kind="race", threads=64)
    run(start + add + "ld.volatile.shared.b32 %r2, [%r1];", threads=64)
    total = collect(start + add + "bar.sync 0; ld.shared.b32 %r63, [%r1];", threads=64)
    assert (total == 64).all()


def test_blocks_do_not_share():
    body = "mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r0, 4, %r1; st.shared.b32 [%r3], %r2;"
    body += "bar.sync 0; ld.shared.b32 %r63, [%r3];"
    assert (collect(body, grid=5) == np.repeat(np.arange(5), 32)).all()


def test_no_shared_memory_at_all():
    assert "of 0 bytes" in faults("st.shared.b32 [%r1], 0;", kind="bounds", shared=0).message


CLUSTER = """
    mov.u32 %r10, %cluster_ctarank;
    xor.b32 %r11, %r10, 1;
    mapa.shared::cluster.u32 %r12, %r1, %r11;
    mad.lo.u32 %r3, %r0, 4, %r1;
    mad.lo.u32 %r13, %r0, 4, %r12;
    mad.lo.u32 %r14, %r10, 100, %r0;
    st.shared.b32 [%r3], %r14;
    {sync}
    ld.shared::cluster.b32 %r63, [%r13];
    {end}
"""
CLUSTER_SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


def test_ctas_of_a_cluster_read_each_other():
    body = CLUSTER.format(sync=CLUSTER_SYNC, end=CLUSTER_SYNC)
    out = collect(body, grid=4, cluster=2)
    other = np.array([100, 0, 100, 0]).repeat(32) + np.tile(np.arange(32), 4)
    assert (out == other).all()


def test_own_and_other_blocks_in_one_access():
    pick = "setp.lt.u32 %p1, %r0, 16; selp.b32 %r13, %r3, %r13, %p1; " + CLUSTER_SYNC
    out = collect(CLUSTER.format(sync=pick, end=CLUSTER_SYNC), grid=2, cluster=2)
    lane = np.arange(32)
    own_values = np.where(lane < 16, 0, 100) + lane
    assert (out.reshape(2, 32) == [own_values, 100 - own_values + 2 * lane]).all()


def test_cluster_barrier_missing():
    body = CLUSTER.format(sync="bar.sync 0;", end="")
    assert "cluster rank" in faults(body, kind="race", grid=2, cluster=2).message


def test_rank_outside_the_cluster():
    body = "add.u32 %r2, %r1, 0x3000000; st.shared::cluster.b32 [%r2], 0;"
    faults(body, kind="bounds", grid=2, cluster=2)
