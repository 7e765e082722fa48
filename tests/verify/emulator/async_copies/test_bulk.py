"""Bulk copies of consecutive bytes: into, out of and between CTAs' shared memory, and reductions."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.verify.emulator.errors import EmulationError
from tests.support.ptx_kernel import faults, run

BARRIER = 1024
SHARED = 1040
LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
INIT = f"""
    setp.eq.u32 %p1, %r0, 0;
    mad.lo.u32 %r2, %r0, 16, %r1;
    mov.u32 %r3, %ctaid.x;
    @%p1 mbarrier.init.shared.b64 [%r1+{BARRIER}], 1;
    fence.mbarrier_init.release.cluster;
    bar.sync 0;
"""
WAIT = f"""
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r1+{BARRIER}], 0;
    @!%p2 bra WAIT;
"""
# Threads move 16 bytes each between shared memory and row `block` of the 1024-byte rows at %rd1.
PLACE = "mad.lo.u32 %r4, %r3, 1024, 0; mad.lo.u32 %r4, %r0, 16, %r4; cvt.u64.u32 %rd20, %r4;"
TO_GLOBAL = """
    ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r2];
    add.u64 %rd20, %rd20, %rd1;
    st.global.v4.b32 [%rd20], {%r10, %r11, %r12, %r13};
"""
TO_SHARED = """
    add.u64 %rd20, %rd20, %rd1;
    ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd20];
    st.shared.v4.b32 [%r2], {%r10, %r11, %r12, %r13};
    fence.proxy.async.shared::cta;
    bar.sync 0;
"""


def expect(count_bytes):
    return f"@%p1 mbarrier.arrive.expect_tx.shared.b64 %rd30, [%r1+{BARRIER}], {count_bytes};"


def _random(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, shape, np.uint32)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("target", ["shared::cluster", "shared::cta"])
def test_load(seed, target):
    data, out = _random(256), np.zeros(256, np.uint32)
    load = LOAD.replace("shared::cluster", target)
    body = f"""
    {INIT} {PLACE} {expect(1024)}
    @%p1 {load} [%r1], [%rd0], 1024, [%r1+{BARRIER}];
    {WAIT} {TO_GLOBAL}"""
    run(body, data, out, threads=64, shared=SHARED, seed=seed)
    np.testing.assert_array_equal(out, data)


def test_ctas_waiting_for_copies_stay_in_step():
    """A copy that one CTA waits for completes for all: the group count equals a single CTA's."""
    body = f"""
    {INIT} {PLACE} {expect(1024)}
    @%p1 {LOAD} [%r1], [%rd0], 1024, [%r1+{BARRIER}];
    {WAIT} {TO_GLOBAL}"""
    steps: list[int] = []
    for ctas in (1, 5):
        data, out = _random(256), np.zeros((ctas, 256), np.uint32)
        steps.append(run(body, data, out, threads=64, shared=SHARED, grid=ctas).steps)
        np.testing.assert_array_equal(out, np.tile(data, (ctas, 1)))
    assert steps[0] == steps[1]


@pytest.mark.parametrize("fence", ["", "@!%p1 fence.proxy.async;"])
def test_a_copy_does_not_see_an_unfenced_mbarrier(fence):
    data, out = _random(256), np.zeros(256, np.uint32)
    init = INIT.replace("fence.mbarrier_init.release.cluster;", fence)
    body = f"""
    {init} {PLACE} {expect(1024)}
    @%p1 {LOAD} [%r1], [%rd0], 1024, [%r1+{BARRIER}];
    {WAIT} {TO_GLOBAL}"""
    launch = {"threads": 64, "shared": SHARED}
    faults(body, data, out, kind="proxy", match="no fence after its making", **launch)
    run(body.replace("bar.sync 0;", "fence.proxy.async; bar.sync 0;", 1), data, out, **launch)
    np.testing.assert_array_equal(out, data)


def test_several_loads_complete_one_phase():
    data, out = _random(256), np.zeros(256, np.uint32)
    loads = "\n".join(
        f"@%p1 {LOAD} [%r1+{offset}], [%rd0+{1024 - 256 - offset}], 256, [%r1+{BARRIER}];"
        for offset in range(0, 1024, 256)
    )
    body = f"{INIT} {PLACE} {expect(1024)} {loads} {WAIT} {TO_GLOBAL}"
    for seed in range(3):
        run(body, data, out, threads=64, shared=SHARED, seed=seed)
        np.testing.assert_array_equal(out.reshape(4, 64), data.reshape(4, 64)[::-1])


@pytest.mark.parametrize("read", ["", ".read"])
def test_store(read):
    out, data = np.zeros(256, np.uint32), _random(256)
    body = f"""
    {INIT} {PLACE} {TO_SHARED}
    @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd0+64], [%r1+32], 512;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group{read} 0;"""
    run(body, out, data, threads=64, shared=SHARED)
    expected = np.zeros(256, np.uint32)
    expected[16:144] = data[8:136]
    np.testing.assert_array_equal(out, expected)


def test_a_wait_for_reads_does_not_cover_writes():
    """A wait for the copies makes their writes visible; a wait for `.read` may not."""
    store = "cp.async.bulk.global.shared::cta.bulk_group"
    body = f"""
    {INIT} {PLACE} {TO_SHARED}
    @!%p1 bra DONE;
    {store} [%rd0], [%r1], 512;
    cp.async.bulk.commit_group;
    {store} [%rd0+512], [%r1+512], 512;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_groupWHICH;
    ld.global.b32 %r20, [%rd0+508];
    ld.global.b32 %r21, [%rd0+1020];
    st.global.v2.b32 [%rd0+1024], {{%r20, %r21}};
    cp.async.bulk.wait_group.read 0;
    DONE:"""
    data = _random(256) | 1

    def found(wait: str) -> list[set[bool]]:
        """Return whether each of the two copies is found to have written, over several runs."""
        seen = []
        for seed in range(40):
            out = np.zeros(258, np.uint32)
            run(body.replace("WHICH", wait), out, data, threads=64, shared=SHARED, seed=seed)
            np.testing.assert_array_equal(out[:256], data)  # in the end
            seen.append(out[256:] != 0)
        return [set(column) for column in zip(*seen, strict=True)]

    assert found(" 0") == [{True}, {True}]
    for wait in (" 1", ".read 0; cp.async.bulk.wait_group 1"):
        first, second = found(wait)
        assert first == {True}
        assert False in second
    assert all(False in outcomes for outcomes in found(".read 0"))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_to_the_other_block(seed):
    """Each of two CTAs sends its bytes to the other, and waits for the other's."""
    data = _random(2, 256)
    out = np.zeros((2, 256), np.uint32)
    copy = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    body = f"""
    {INIT} {PLACE}
    mov.b64 %rd21, %rd20;
    {TO_SHARED.replace("%rd1", "%rd0")}
    {expect(512)}
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    xor.b32 %r5, %r3, 1;
    mapa.shared::cluster.u32 %r6, %r1, %r5;
    add.u32 %r7, %r6, {BARRIER};
    add.u32 %r8, %r6, 512;
    @%p1 {copy} [%r8], [%r1], 512, [%r7];
    {WAIT}
    mov.b64 %rd20, %rd21;
    {TO_GLOBAL}
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;"""
    run(body, data, out, threads=64, shared=SHARED, grid=2, cluster=2, seed=seed)
    np.testing.assert_array_equal(out[:, :128], data[:, :128])
    np.testing.assert_array_equal(out[:, 128:], data[::-1, :128])


REDUCTIONS = [
    ("add", "u32", np.uint32, np.add),
    ("add", "f32", np.float32, np.add),
    ("add.noftz", "f16", np.float16, np.add),
    ("min", "s32", np.int32, np.minimum),
    ("max", "s64", np.int64, np.maximum),
    ("or", "b32", np.uint32, np.bitwise_or),
    ("xor", "b64", np.uint64, np.bitwise_xor),
]


@pytest.mark.parametrize(("operation", "name", "dtype", "function"), REDUCTIONS)
def test_reduce_to_global(operation, name, dtype, function):
    rng = np.random.default_rng(1)
    size = np.dtype(dtype).itemsize
    old, data = ((rng.standard_normal(1024 // size) * 99).astype(dtype) for _ in range(2))
    out = old.copy()
    body = f"""
    {INIT} {PLACE} {TO_SHARED}
    @%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}.{name} [%rd0], [%r1], 512;
    @%p1 cp.async.bulk.commit_group;
    @%p1 cp.async.bulk.wait_group 0;"""
    run(body, out, data, threads=64, shared=SHARED)
    half = 512 // size
    np.testing.assert_array_equal(out[:half], function(old, data)[:half])
    np.testing.assert_array_equal(out[half:], old[half:])


def test_sums_of_f32_keep_subnormals_and_atomics_do_not():
    subnormal = np.full(128, 0x7FFFFF, np.uint32)
    out = subnormal.copy()
    body = f"""
    {INIT} {PLACE} {TO_SHARED}
    @%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd0], [%r1], 256;
    @%p1 cp.async.bulk.commit_group;
    @%p1 cp.async.bulk.wait_group 0;"""
    run(body, out, np.tile(subnormal, 8), threads=64, shared=SHARED)
    assert (out[:64] == 0xFFFFFE).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_both_blocks_add_to_the_first(seed):
    data = _random(2, 256)
    out = np.zeros((2, 256), np.uint32)
    add = "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32"
    body = f"""
    {INIT} {PLACE}
    mov.b64 %rd21, %rd20;
    {TO_SHARED.replace("%rd1", "%rd0")}
    {expect(1024)}
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    mapa.shared::cluster.u32 %r6, %r1, 0;
    add.u32 %r7, %r6, {BARRIER};
    add.u32 %r8, %r6, 512;
    @%p1 {add} [%r8], [%r1], 512, [%r7];
    setp.ne.u32 %p3, %r3, 0;
    @%p3 bra END;
    {WAIT}
    mov.b64 %rd20, %rd21;
    {TO_GLOBAL}
    END:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;"""
    run(body, data, out, threads=64, shared=SHARED, grid=2, cluster=2, seed=seed)
    expected = data[0].copy()
    expected[128:] += data[0, :128] + data[1, :128]
    np.testing.assert_array_equal(out[0], expected)


def test_prefetch_does_nothing():
    run("cp.async.bulk.prefetch.L2.global [%rd0], 64;", np.zeros(4, np.uint32))


@pytest.mark.parametrize(
    ("size", "target", "source", "kind"),
    [
        (24, 0, 0, "misaligned"),
        (32, 8, 0, "misaligned"),
        (32, 0, 8, "misaligned"),
        (16, 1024, 0, "mbarrier"),
        (32, 1040, 0, "bounds"),
        (32, 0, 1008, "bounds"),
    ],
)
def test_misplaced_loads(size, target, source, kind):
    load = f"@%p1 {LOAD} [%r1+{target}], [%rd0+{source}], {size}, [%r1+{BARRIER}];"
    body = f"{INIT} {expect(size)} {load} {WAIT}"
    faults(body, np.zeros(256, np.uint32), kind=kind, threads=64, shared=SHARED)


def test_a_store_not_waited_for_may_not_be_overwritten():
    store = "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 512;"
    commit = "@%p1 cp.async.bulk.commit_group;"
    late = "\n@%p1 st.shared.b32 [%r1+508], %r0;"
    body = f"{INIT} {PLACE} {TO_SHARED} {store} {commit}"
    args = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    options = {"threads": 64, "shared": SHARED}
    run(body + "@%p1 cp.async.bulk.wait_group.read 0;" + late, *args, **options)
    faults(body + late, *args, kind="in-flight", **options)
    # An uncommitted group is not waited for.
    open_group = f"{INIT} {PLACE} {TO_SHARED} {store} @%p1 cp.async.bulk.wait_group 0;"
    faults(open_group + late, *args, kind="in-flight", **options)


def test_a_load_over_unordered_reads():
    """Their reads need a barrier before the copy, and a fence before the barrier."""
    read, fence = "ld.shared.b32 %r20, [%r2];", "fence.proxy.async.shared::cta;"
    load = f"{expect(512)} @%p1 {LOAD} [%r1], [%rd0], 512, [%r1+{BARRIER}];{WAIT}"
    args = _random(256), _random(256)
    options = {"threads": 64, "shared": SHARED}
    start = f"{INIT} {PLACE} {TO_SHARED} {read}"
    run(f"{start} {fence} bar.sync 0; {load}", *args, **options)
    faults(f"{start} {fence} {load}", *args, kind="race", **options)
    faults(f"{start} bar.sync 0; {load}", *args, kind="proxy", **options)
    run(f"{start} bar.sync 0; {fence} bar.sync 0; {load}", *args, **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{LOAD}.ignore_oob [%r1], [%rd0], 16, [%r1];", "ignore_oob"),
        ("cp.async.bulk.shared::cluster.global [%r1], [%rd0], 16, [%r1];", "no .mbarrier"),
        ("cp.async.bulk.global.global.bulk_group [%rd0], [%rd0], 16;", "from .global to .global"),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.u32 [%rd0], [%r1], 16;", "operation"),
        ("multimem.cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 16;", "several GPUs"),
    ],
)
def test_other_forms_are_refused(text, message):
    with pytest.raises(EmulationError, match=message):
        run(text, np.zeros(4, np.uint32))
