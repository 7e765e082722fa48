"""cp.async: copied data, and faults of a missing wait."""

import numpy as np
import pytest

from aotc.verify.emulator.errors import EmulationError
from tests.support.ptx_kernel import collect, faults, run

COPY = """
    mul.wide.u32 %rd10, %r0, {size};
    add.s64 %rd10, %rd0, %rd10;
    mad.lo.u32 %r3, %r0, {size}, %r1;
    cp.async.{op}.shared.global [%r3], [%rd10], {operands};
"""
WAIT = "cp.async.commit_group; cp.async.wait_group 0;"
READ = "mad.lo.u32 %r4, %r0, {size}, %r1; ld.shared.b32 %r63, [%r4];"


def words(count, seed=0):
    return np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32)


def copy(size, operands=None, op=None):
    op = op or ("cg" if size == 16 else "ca")
    return COPY.format(size=size, op=op, operands=operands or size)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("size", [4, 8, 16])
def test_copies(size, seed):
    source = words(64 * size // 4)
    body = copy(size) + WAIT + READ.format(size=size)
    out = collect(body, source, threads=64, shared=64 * size, seed=seed)
    assert (out == source[:: size // 4]).all()


def test_ca_may_copy_16_and_hints_are_ignored():
    source = words(128)
    body = copy(16, op="ca").replace(
        "cp.async.ca.shared.global", "cp.async.ca.shared.global.L2::128B"
    )
    out = collect(body + "cp.async.wait_all;" + READ.format(size=16), source)
    assert (out == source[::4]).all()


@pytest.mark.parametrize("source_bytes", [0, 4, 7, 16])
def test_source_size_fills_up_with_zeros(source_bytes):
    source = words(32 * 4)
    body = f"mov.b32 %r9, {source_bytes};" + copy(16, "16, %r9") + WAIT
    body += "mad.lo.u32 %r4, %r0, 16, %r1; ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r4];"
    expected = source.view(np.uint8).reshape(32, 16).copy()
    expected[:, source_bytes:] = 0
    for word in range(4):
        out = collect(body + f"mov.b32 %r63, %r1{word};", source)
        assert (out == expected.view(np.uint32)[:, word]).all()


def test_ignored_source_may_be_anywhere():
    body = "setp.ge.u32 %p1, %r0, 10;" + copy(4, "4, %p1") + WAIT + READ.format(size=4)
    source = words(10)
    assert collect(body, source).tolist() == [*source.tolist(), *[0] * 22]
    body = "setp.lt.u32 %p1, %r0, 10; selp.b32 %r9, 4, 0, %p1;" + copy(4, "4, %r9")
    assert collect(body + WAIT + READ.format(size=4), source)[12] == 0


def test_an_out_of_bounds_source_is_found_at_issue():
    fault = faults(copy(4) + WAIT, words(31), kind="bounds", match="byte 124")
    assert fault.text.startswith("cp.async")


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_reading_a_copy_in_flight(seed):
    body = copy(4) + "cp.async.commit_group;" + READ.format(size=4)
    faults(body, words(32), kind="in-flight", match="was not waited for", seed=seed)


def test_writing_a_copy_in_flight():
    faults(copy(4) + "st.shared.b32 [%r3], 1;", words(32), kind="in-flight")
    faults(copy(4) + copy(4), words(32), kind="in-flight")


def test_waiting_for_the_wrong_group():
    second = copy(4).replace("[%r3]", "[%r3+128]") + "cp.async.commit_group;"
    issue = copy(4) + "cp.async.commit_group;" + second
    first, other = READ.format(size=4), READ.format(size=4).replace("[%r4]", "[%r4+128]")
    source = words(32)
    wait_all = "cp.async.wait_all;"
    assert (collect(issue + "cp.async.wait_group 1;" + first + wait_all, source) == source).all()
    assert (collect(issue + "cp.async.wait_group 0;" + other, source) == source).all()
    faults(issue + "cp.async.wait_group 1;" + other, source, kind="in-flight")
    faults(issue + "cp.async.wait_group 2;" + first, source, kind="in-flight")


def test_uncommitted_copies_are_not_waited_for_but_by_wait_all():
    source = words(32)
    faults(copy(4) + "cp.async.wait_group 0;" + READ.format(size=4), source, kind="in-flight")
    assert (collect(copy(4) + "cp.async.wait_all;" + READ.format(size=4), source) == source).all()


NEIGHBOUR = "xor.b32 %r5, %r0, 33; mad.lo.u32 %r4, %r5, 4, %r1; ld.shared.b32 %r63, [%r4];"


@pytest.mark.parametrize("seed", [0, 1])
def test_other_threads_need_a_barrier_after_the_wait(seed):
    source = words(64)
    body = copy(4) + WAIT
    out = collect(body + "bar.sync 0;" + NEIGHBOUR, source, threads=64, seed=seed)
    assert (out == source[np.arange(64) ^ 33]).all()
    early = ("race", "uninitialised", "in-flight")  # whichever the schedule meets first
    faults(body + NEIGHBOUR, source, kind=early if seed else "race", threads=64, seed=seed)


def test_barrier_before_the_wait_does_not_help():
    body = copy(4) + "cp.async.commit_group; bar.sync 0; cp.async.wait_group 0;" + NEIGHBOUR
    faults(body, words(64), kind="race", threads=64)


def test_overwriting_unordered_reads():
    body = "st.shared.b32 [%r3], %r0; bar.sync 0;" + NEIGHBOUR
    setup = "mad.lo.u32 %r3, %r0, 4, %r1;"
    faults(setup + body + copy(4), words(64), kind="race", threads=64)
    run(setup + body + "bar.sync 0;" + copy(4) + WAIT, words(64), threads=64)


def test_source_is_read_late():
    source = words(32)
    body = copy(4) + "st.global.b32 [%rd10], 5; " + WAIT + READ.format(size=4)
    assert (collect(body, source) == 5).all()


ARRIVE = """
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r1+1016], {count};
    bar.sync 0;
{copy}
    cp.async.mbarrier.arrive{noinc}.shared.b64 [%r1+1016];
{arrive}
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r1+1016], 0;
    @!%p2 bra WAIT;
"""


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("noinc", ["", ".noinc"])
def test_arrival_of_copies_at_an_mbarrier(noinc, seed):
    source = words(64)
    arrive = "" if noinc else "mbarrier.arrive.shared.b64 _, [%r1+1016];"
    body = ARRIVE.format(count=64, noinc=noinc, copy=copy(4), arrive=arrive) + NEIGHBOUR
    out = collect(body, source, threads=64, seed=seed)
    assert (out == source[np.arange(64) ^ 33]).all()


def test_arrival_before_the_copy_does_not_cover_it():
    body = ARRIVE.format(count=64, noinc=".noinc", copy="", arrive="") + copy(4) + NEIGHBOUR
    faults(body, words(64), kind="in-flight", threads=64)


@pytest.mark.parametrize("text", ["cp.async.ca.shared.global [%r1], [%rd0], 2;",
                                  "cp.async.cg.shared.global [%r1], [%rd0], 8;"])  # fmt: skip
def test_invalid_sizes(text):
    with pytest.raises(EmulationError, match="bytes"):
        run(text, words(4))


@pytest.mark.parametrize("addresses", ["[%r1+4], [%rd0]", "[%r1], [%rd0+4]"])
def test_misaligned(addresses):
    faults(f"cp.async.ca.shared.global {addresses}, 8;", words(8), kind="misaligned", threads=1)
