"""Order through memory: release, acquire and fences."""

import numpy as np
import pytest

from tests.support.ptx_kernel import collect, faults

MESSAGE = """
    setp.eq.u32 %p1, %r0, 0;
    @%p1 st.shared.b32 [%r1], 0;
    bar.sync 0;
    setp.ne.u32 %p2, %r0, 0;
    @%p2 bra READER;
    st.shared.b32 [%r1+4], 42;
    {release}
    mov.b32 %r63, 42;
    bra END;
READER:
    {acquire} %r3, [%r1];
    setp.eq.u32 %p3, %r3, 0;
    @%p3 bra READER;
    {fence}
    ld.shared.b32 %r63, [%r1+4];
END:
"""
RELEASE = "st.release.cta.shared.b32 [%r1], 1;"
ACQUIRE = "ld.acquire.cta.shared.b32"


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("release", "acquire", "fence"),
    [
        (RELEASE, ACQUIRE, ""),
        ("fence.acq_rel.cta; st.relaxed.cta.shared.b32 [%r1], 1;", ACQUIRE, ""),
        (RELEASE, "ld.relaxed.cta.shared.b32", "fence.acq_rel.cta;"),
        ("membar.cta; st.volatile.shared.b32 [%r1], 1;", "ld.volatile.shared.b32", "membar.cta;"),
        (
            "fence.sc.cta; st.volatile.shared.b32 [%r1], 1;",
            "ld.volatile.shared.b32",
            "fence.sc.cta;",
        ),
    ],
)
def test_message(release, acquire, fence, seed):
    body = MESSAGE.format(release=release, acquire=acquire, fence=fence)
    assert (collect(body, threads=64, seed=seed) == 42).all()


@pytest.mark.parametrize(
    ("release", "acquire"),
    [
        ("st.relaxed.cta.shared.b32 [%r1], 1;", ACQUIRE),
        (RELEASE, "ld.relaxed.cta.shared.b32"),
        ("st.volatile.shared.b32 [%r1], 1;", "ld.volatile.shared.b32"),
        ("st.shared.b32 [%r1], 1;", "ld.shared.b32"),
    ],
)
def test_half_a_message_is_a_race(release, acquire):
    body = MESSAGE.format(release=release, acquire=acquire, fence="")
    faults(body, kind="race", threads=64)


WRITTEN_THEN_COPIED = """
    setp.eq.u32 %p1, %r0, 0;
    mad.wide.u32 %rd20, %r0, 16, %rd0;
    @%p1 mbarrier.init.shared.b64 [%r1+1024], 1;
    fence.mbarrier_init.release.cluster;
    st.global.v4.b32 [%rd20], {{%r0, %r0, %r0, %r0}};
    {before}
    bar.sync 0;
    {after}
    @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd30, [%r1+1024], 512;
    @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd0], 512, \
[%r1+1024];
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p3, [%r1+1024], 0;
    @!%p3 bra WAIT;
    mad.lo.u32 %r2, %r0, 16, %r1;
    ld.shared.b32 %r63, [%r2];
"""


def _copied(before="", after=""):
    body = WRITTEN_THEN_COPIED.format(before=before, after=after)
    return collect(body, np.zeros(128, np.uint32), shared=1040)


@pytest.mark.parametrize("space", ["", ".global"])
def test_a_copy_reads_fenced_stores(space):
    """The writers fence before the barrier, or the copying thread after it."""
    fence = f"fence.proxy.async{space};"
    for out in (_copied(before=fence), _copied(after=fence)):
        np.testing.assert_array_equal(out, np.arange(32))


@pytest.mark.parametrize(
    "fence", ["", "fence.proxy.async.shared::cta;", "fence.sc.sys;", "fence.proxy.alias;"]
)
def test_a_copy_of_unfenced_stores_is_a_fault(fence):
    body = WRITTEN_THEN_COPIED.format(before=fence, after=fence)
    args = np.zeros(128, np.uint32), np.zeros(32, np.uint32)
    faults(body, *args, kind="proxy", match="of global memory", shared=1040)


def test_a_store_racing_with_a_copy():
    body = WRITTEN_THEN_COPIED.format(before="fence.proxy.async;", after="")
    body = body.replace("bar.sync 0;", "")
    args = np.zeros(256, np.uint32), np.zeros(64, np.uint32)
    faults(body.replace("512", "1024"), *args, kind="race", threads=64, shared=1040)
