"""Races in global memory: between threads of a CTA, between CTAs, and across scopes."""

import tracemalloc

import numpy as np
import pytest

from tests.support.ptx_kernel import faults, run

SEEDS = [0, 1, 2, 3]
ADDRESSES = """
    mov.u32 %r2, %ctaid.x;
    mul.wide.u32 %rd10, %r0, 4;
    add.s64 %rd11, %rd0, %rd10;      // an element of the first array for each thread
    mul.wide.u32 %rd12, %r2, 4;
    add.s64 %rd13, %rd0, %rd12;      // one for each CTA
"""
THERE_AND_BACK = (
    ADDRESSES
    + """
    st.global.b32 [%rd11], %r0;
    {between}
    xor.b32 %r3, %r0, {mask};
    mul.wide.u32 %rd14, %r3, 4;
    add.s64 %rd15, %rd0, %rd14;
    ld.global.b32 %r4, [%rd15];
    add.s64 %rd16, %rd1, %rd10;
    st.global.b32 [%rd16], %r4;
"""
)


def _back(between, mask, **options):
    body = THERE_AND_BACK.format(between=between, mask=mask)
    x, out = np.full(64, 99, np.int32), np.zeros(64, np.int32)
    run(body, x, out, threads=64, **options)
    return out


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("between", "mask"),
    [("bar.sync 0;", 63), ("bar.sync 0;", 1), ("bar.warp.sync -1;", 31), ("", 0)],
)
def test_a_store_is_loaded_back_after_a_barrier(between, mask, seed):
    expected = np.arange(64) ^ mask
    np.testing.assert_array_equal(_back(between, mask, seed=seed), expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("between", "mask"), [("", 63), ("", 1), ("bar.warp.sync -1;", 32), ("fence.acq_rel.gpu;", 1)]
)
def test_a_load_needs_a_barrier_after_another_threads_store(between, mask, seed):
    body = THERE_AND_BACK.format(between=between, mask=mask)
    x, out = np.full(64, 99, np.int32), np.zeros(64, np.int32)
    faults(body, x, out, kind="race", threads=64, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("barrier", ["", "bar.sync 0;"])
def test_overwriting_reads_needs_a_barrier(barrier, seed):
    body = f"""
    {ADDRESSES}
    xor.b32 %r3, %r0, 32;
    mul.wide.u32 %rd14, %r3, 4;
    add.s64 %rd15, %rd0, %rd14;
    ld.global.b32 %r4, [%rd15];
    {barrier}
    add.s32 %r4, %r4, 1;
    st.global.b32 [%rd11], %r4;
"""
    x = np.arange(64, dtype=np.int32)
    if barrier:
        run(body, x, threads=64, seed=seed)
        np.testing.assert_array_equal(x, (np.arange(64) ^ 32) + 1)
    else:
        faults(body, x, kind="race", threads=64, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_value_may_be_written_by_all(seed):
    body = """
    st.global.b32 [%rd0], 7;
    ld.global.b32 %r4, [%rd0];
"""
    x = np.zeros(1, np.int32)
    run(body, x, threads=64, grid=3, seed=seed)
    assert x.tolist() == [7]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("value", ["7", "%r2"])
def test_in_a_large_buffer_the_same_value_may_be_written_by_all(value, seed):
    """Its stamps are paged in order of first access; its bytes are not."""
    body = f"""
    mov.u32 %r2, %ctaid.x;
    st.global.b32 [%rd0+8388608], 0;
    st.global.b32 [%rd0+4194304], {value};
"""
    x = np.zeros(3 << 20, np.int32)
    x[1 << 20] = 7
    if value == "7":
        run(body, x, threads=1, grid=3, seed=seed)
        assert x[1 << 20] == 7
    else:
        faults(body, x, kind="race", threads=1, grid=3, seed=seed)


# ---- CTAs ---------------------------------------------------------------------------------------

NEIGHBOURS = (
    ADDRESSES
    + """
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra END;
    {first}
    add.s32 %r3, %r2, 1;
    and.b32 %r3, %r3, 3;
    mul.wide.u32 %rd14, %r3, 4;
    add.s64 %rd15, %rd0, %rd14;
    {second}
END:
"""
)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("st.global.b32 [%rd13], %r2;", "ld.global.b32 %r4, [%rd15];"),
        ("ld.global.b32 %r4, [%rd13];", "st.global.b32 [%rd15], %r3;"),
        ("st.global.b32 [%rd13], %r2;", "st.global.b32 [%rd15], 9;"),
        ("st.global.b32 [%rd13], %r2;", "red.relaxed.gpu.global.add.u32 [%rd15], 1;"),
        ("red.relaxed.gpu.global.add.u32 [%rd13], 1;", "ld.global.b32 %r4, [%rd15];"),
        (
            "red.relaxed.gpu.global.add.u32 [%rd13], 1;",
            "red.relaxed.cta.global.add.u32 [%rd15], 1;",
        ),
        ("st.volatile.global.b32 [%rd13], %r2;", "ld.global.b32 %r4, [%rd15];"),
        # Fences order nothing if nothing is handed over.
        ("st.global.b32 [%rd13], 5; fence.acq_rel.gpu;", "ld.global.b32 %r4, [%rd15];"),
    ],
)
def test_ctas_race(first, second, seed):
    x = np.full(4, 99, np.int32)
    body = NEIGHBOURS.format(first=first, second=second)
    faults(body, x, kind="race", threads=64, grid=4, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            "red.relaxed.gpu.global.add.u32 [%rd13], 1;",
            "red.relaxed.gpu.global.add.u32 [%rd15], 1;",
        ),
        (
            "st.relaxed.gpu.global.b32 [%rd13], %r2;",
            "ld.relaxed.gpu.global.b32 %r4, [%rd15];",
        ),
        ("ld.global.b32 %r4, [%rd13];", "ld.global.b32 %r4, [%rd15];"),
    ],
)
def test_ctas_do_not_race(first, second, seed):
    x = np.full(4, 99, np.int32)
    run(NEIGHBOURS.format(first=first, second=second), x, threads=64, grid=4, seed=seed)


FAR = 1 << 29  # elements of 4 bytes
ROWS = """
    mov.u32 %r2, %ctaid.x;
    mul.wide.u32 %rd12, %r2, {stride};
    add.s64 %rd13, %rd0, %rd12;
    st.global.b32 [%rd13], %r2;
"""


@pytest.mark.parametrize("stride", [FAR, 0])
def test_stamps_of_rows_far_apart_take_no_room_between_them(stride):
    x = np.zeros(FAR, np.int32)  # 2 GiB with two accessed pages
    tracemalloc.start()
    try:
        body = ROWS.format(stride=stride * 4 - 4 if stride else 0)
        if stride:
            run(body, x, threads=1, grid=2)
            assert x[-1] == 1
        else:
            faults(body, x, kind="race", threads=1, grid=2)
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()


def test_a_batch_races_with_the_one_before():
    body = "st.global.b32 [%rd0], 1; ld.global.b32 %r4, [%rd1]; mov.u32 %r5, %ctaid.x; st.global.b32 [%rd1], %r5;"
    x, y = np.zeros(1, np.int32), np.full(1, -1, np.int32)
    fault = faults(body, x, y, kind="race", threads=32, grid=1100, max_memory_bytes=1 << 20)
    assert "other CTAs" in fault.message or "of CTA" in fault.message


def test_the_other_access_is_named():
    body = NEIGHBOURS.format(
        first="st.global.b32 [%rd13], %r2;", second="ld.global.b32 %r4, [%rd15];"
    )
    fault = faults(body, np.full(4, 99, np.int32), kind="race", threads=64, grid=4)
    assert "of argument 0" in fault.message
    assert "which thread 0 of CTA " in fault.message
    assert "st.global.b32 [%rd13], %r2" in fault.notes[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_written_byte_is_not_read_through_the_texture_cache(seed):
    body = """
    mul.wide.u32 %rd10, %r0, 4;
    add.s64 %rd11, %rd0, %rd10;
    st.global.b32 [%rd11], %r0;
    ld.global.nc.b32 %r4, [%rd11];
"""
    x = np.full(32, 99, np.int32)
    faults(body, x, kind="race", match="non-coherent", seed=seed)


# ---- messages -----------------------------------------------------------------------------------

# CTA 0 leaves 42 for the others, who wait for a flag; both by one thread, data and flag by all.
MESSAGE = """
    mov.u32 %r2, %ctaid.x;
    mul.wide.u32 %rd10, %r0, 4;
    add.s64 %rd11, %rd0, %rd10;
    setp.eq.u32 %p3, %r0, 0;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra READER;
    st.global.b32 [%rd11], 42;
    bar.sync 0;
    {release}
    bra END;
READER:
    @!%p3 bra ARRIVED;
POLL:
    {acquire} %r3, [%rd1];
    setp.eq.u32 %p2, %r3, 0;
    @%p2 bra POLL;
    {after}
ARRIVED:
    bar.sync 0;
    ld.global.b32 %r4, [%rd11];
    add.s64 %rd12, %rd2, %rd10;
    st.global.b32 [%rd12], %r4;
END:
"""


def _message(release, acquire, after=""):
    return MESSAGE.format(release=release, acquire=acquire, after=after)


def _arrays():
    return np.zeros(64, np.int32), np.zeros(1, np.int32), np.zeros(64, np.int32)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("release", "acquire", "after"),
    [
        ("@%p3 st.release.gpu.global.b32 [%rd1], 1;", "ld.acquire.gpu.global.b32", ""),
        ("@%p3 st.release.sys.global.b32 [%rd1], 1;", "ld.acquire.gpu.global.b32", ""),
        (
            "fence.acq_rel.gpu; @%p3 st.relaxed.gpu.global.b32 [%rd1], 1;",
            "ld.relaxed.gpu.global.b32",
            "fence.acq_rel.gpu;",
        ),
        (
            "membar.gl; @%p3 st.volatile.global.b32 [%rd1], 1;",
            "ld.volatile.global.b32",
            "membar.gl;",
        ),
        ("@%p3 red.release.gpu.global.add.u32 [%rd1], 1;", "ld.acquire.gpu.global.b32", ""),
        (
            "fence.sc.gpu; @%p3 red.relaxed.gpu.global.add.u32 [%rd1], 1;",
            "ld.acquire.gpu.global.b32",
            "",
        ),
    ],
)
def test_a_message_arrives(release, acquire, after, seed):
    x, flag, out = _arrays()
    run(_message(release, acquire, after), x, flag, out, threads=64, grid=2, seed=seed)
    assert (out == 42).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("release", "acquire", "after"),
    [
        # One side does not order.
        ("@%p3 st.relaxed.gpu.global.b32 [%rd1], 1;", "ld.acquire.gpu.global.b32", ""),
        ("@%p3 st.release.gpu.global.b32 [%rd1], 1;", "ld.relaxed.gpu.global.b32", ""),
        # The fence is on the wrong side.
        (
            "@%p3 st.relaxed.gpu.global.b32 [%rd1], 1; fence.acq_rel.gpu;",
            "ld.relaxed.gpu.global.b32",
            "fence.acq_rel.gpu;",
        ),
        # One side does not reach the other.
        ("@%p3 st.release.cta.global.b32 [%rd1], 1;", "ld.acquire.gpu.global.b32", ""),
        ("@%p3 st.release.gpu.global.b32 [%rd1], 1;", "ld.acquire.cta.global.b32", ""),
        (
            "fence.acq_rel.cta; @%p3 st.relaxed.gpu.global.b32 [%rd1], 1;",
            "ld.relaxed.gpu.global.b32",
            "fence.acq_rel.gpu;",
        ),
        # The flag's store is weak.
        (
            "fence.acq_rel.gpu; @%p3 st.global.b32 [%rd1], 1;",
            "ld.volatile.global.b32",
            "fence.acq_rel.gpu;",
        ),
        # The release is at another location than the flag.
        (
            "@%p3 st.release.gpu.global.b32 [%rd0+252], 42; @%p3 st.relaxed.gpu.global.b32 [%rd1], 1;",
            "ld.acquire.gpu.global.b32",
            "",
        ),
    ],
)
def test_half_a_message_is_a_race(release, acquire, after, seed):
    x, flag, out = _arrays()
    faults(
        _message(release, acquire, after), x, flag, out, kind="race", threads=64, grid=2, seed=seed
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("missing", ["barrier", "none"])
def test_a_barrier_makes_a_release_cover_the_whole_cta(missing, seed):
    body = _message("@%p3 st.release.gpu.global.b32 [%rd1], 1;", "ld.acquire.gpu.global.b32")
    arrays = _arrays()
    if missing == "none":
        run(body, *arrays, threads=64, grid=2, seed=seed)
    else:
        body = body.replace("bar.sync 0;\n    @%p3", "@%p3", 1)
        faults(body, *arrays, kind="race", threads=64, grid=2, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_message_is_handed_on(seed):
    body = """
    mov.u32 %r2, %ctaid.x;
    setp.eq.u32 %p1, %r2, 0;
    @%p1 bra FIRST;
    mul.wide.u32 %rd10, %r2, 4;
    add.s64 %rd11, %rd1, %rd10;
POLL:
    ld.acquire.gpu.global.b32 %r3, [%rd11];
    setp.eq.u32 %p2, %r3, 0;
    @%p2 bra POLL;
    ld.global.b32 %r4, [%rd0];
    add.s64 %rd12, %rd2, %rd10;
    st.global.b32 [%rd12], %r4;
    st.release.gpu.global.b32 [%rd11+4], 1;
    bra END;
FIRST:
    st.global.b32 [%rd0], 42;
    st.release.gpu.global.b32 [%rd1+4], 1;
END:
"""
    body = "setp.ne.u32 %p9, %r0, 0; @%p9 bra END;\n" + body
    x, flags, out = np.zeros(1, np.int32), np.zeros(8, np.int32), np.zeros(4, np.int32)
    run(body, x, flags, out, threads=32, grid=4, seed=seed)
    assert out[1:].tolist() == [42] * 3
