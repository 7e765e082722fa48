"""Order that goes through memory: release, acquire and fences."""

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
