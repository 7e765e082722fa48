"""Asynchronous stores and reductions to another block, completed at its mbarrier."""

import numpy as np
import pytest

from aotc.verify.emulator.errors import EmulationError
from tests.support.ptx_kernel import collect, faults, run

# Data at 0, an mbarrier at 512. Each thread of the first block sends to the second.
HEAD = """
    mov.u32 %r2, %cluster_ctarank;
    setp.eq.u32 %p1, %r0, 0;
    setp.eq.u32 %p3, %r2, 0;
    mad.lo.u32 %r3, %r0, {size}, %r1;
    st.shared.b32 [%r3], 1000;
    @%p1 mbarrier.init.shared.b64 [%r1+512], 1;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1+512], {count_bytes};
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    mapa.shared::cluster.u32 %r4, %r3, 1;
    mapa.shared::cluster.u32 %r5, %r1, 1;
    add.u32 %r6, %r0, 7;
    add.u32 %r7, %r0, 70;
    cvt.u64.u32 %rd20, %r6;
"""
TAIL = """
    mov.b32 %r63, 0;
    @%p3 bra END;
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r1+512], 0;
    @!%p2 bra WAIT;
    ld.shared.b32 %r63, [%r3];
END:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
"""
STORE = "@%p3 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
REDUCE = "@%p3 red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes"


def _run(line, size=4, count_bytes=None, tail=TAIL, **options):
    head = HEAD.format(size=size, count_bytes=32 * size if count_bytes is None else count_bytes)
    return collect(head + line + tail, grid=2, cluster=2, **options).reshape(2, 32)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("form", "value", "size"),
    [
        ("b32", "%r6", 4),
        ("u64", "%rd20", 8),
        ("v2.b32", "{%r6, %r7}", 8),
        ("v4.s32", "{%r6, %r7, %r7, %r7}", 16),
    ],
)
def test_store(form, value, size, seed):
    out = _run(f"{STORE}.{form} [%r4], {value}, [%r5+512];", size, seed=seed)
    np.testing.assert_array_equal(out[1], np.arange(32) + 7)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("add.u32", 1007 + np.arange(32)),
        ("max.s32", np.full(32, 1000)),
        ("min.u32", 7 + np.arange(32)),
        ("xor.b32", 1000 ^ (7 + np.arange(32))),
    ],
)
def test_reduce(operation, expected, seed):
    out = _run(f"{REDUCE}.{operation} [%r4], %r6, [%r5+512];", seed=seed)
    np.testing.assert_array_equal(out[1], expected)


def test_many_add_to_one():
    line = f"sub.u32 %r4, %r4, %r3; add.u32 %r4, %r4, %r1; {REDUCE}.add.u32 [%r4], %r6, [%r5+512];"
    out = _run(line)
    assert out[1, 0] == 1000 + sum(range(7, 39))


@pytest.mark.parametrize("seed", [0, 1])  # with others the bytes may have come before the poll
def test_reading_without_waiting(seed):
    head = HEAD.format(size=4, count_bytes=128)
    tail = TAIL.replace("@!%p2 bra WAIT;", "")
    body = head + f"{STORE}.b32 [%r4], %r6, [%r5+512];" + tail
    faults(body, kind=("in-flight", "race"), grid=2, cluster=2, seed=seed)


def test_too_few_bytes_come():
    head = HEAD.format(size=4, count_bytes=132)
    body = head + f"{STORE}.b32 [%r4], %r6, [%r5+512];" + TAIL
    faults(body, kind="deadlock", grid=2, cluster=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("st.async.global.b32 [%r1], %r0, [%r1];", "complete at an mbarrier"),
        (
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.b16 [%r1], %h0, [%r1];",
            "complete",
        ),
        (
            "red.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r0, [%r1];",
            "complete",
        ),
    ],
)
def test_other_forms_are_refused(text, message):
    with pytest.raises(EmulationError, match=message):
        run(text)


@pytest.mark.parametrize("form", [f"{STORE}.b32", f"{REDUCE}.add.u32"])
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 6, 10, 12, 17, 23, 34])
def test_a_block_waits_for_stores_to_it_before_it_ends(form, seed):
    """Also where they come before it has ended in this run, as with most of these seeds."""
    body = HEAD.format(size=4, count_bytes=128) + f"{form} [%r4], %r6, [%r5+512];"
    faults(body, kind="ended", match="cluster rank 1.*exited", grid=2, cluster=2, seed=seed)


@pytest.mark.parametrize("seed", range(4))
def test_a_block_may_end_after_a_remote_store(seed):
    tail = TAIL.replace("@%p3 bra END", "@%p3 ret").split("END:", maxsplit=1)[0]
    body = HEAD.format(size=4, count_bytes=128) + f"{STORE}.b32 [%r4], %r6, [%r5+512];"
    run(body + tail, grid=2, cluster=2, seed=seed)
