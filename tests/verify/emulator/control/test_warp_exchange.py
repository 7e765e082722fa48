"""Shuffles, votes, matches and reductions over warps, against loops over lanes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.ptx_kernel import collect, faults, run

LANE = np.arange(32)
LOAD = "mul.wide.u32 %rd10, %r0, 4; add.s64 %rd10, %rd0, %rd10; ld.global.b32 %r10, [%rd10];"


def words(count=64, seed=0):
    return np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32)


def shuffled(mode, values, b, c):
    """Return values and predicates, as the PTX ISA's pseudo code has them."""
    results, inside = [], []
    for lane in range(32):
        segment, clamp, by = c >> 8 & 31, c & 31, b & 31
        last = (lane & segment) | (clamp & ~segment)
        first = lane & segment
        j = {
            "up": lane - by,
            "down": lane + by,
            "bfly": lane ^ by,
            "idx": first | (by & ~segment),
        }[mode]
        ok = j >= last if mode == "up" else j <= last
        results.append(values[j if ok else lane])
        inside.append(int(ok))
    return np.array(results), np.array(inside)


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@given(b=st.integers(0, 40), width=st.sampled_from([1, 2, 4, 8, 16, 32]), fixed=st.booleans())
@settings(max_examples=12, deadline=None)
def test_shuffle(mode, b, width, fixed):
    c = (32 - width) << 8 | (0 if mode == "up" else 31)
    values = words()
    operands = f"{b}, {c}" if fixed else "%r11, %r12"
    body = LOAD + f"mov.b32 %r11, {b}; mov.b32 %r12, {c};"
    body += f"shfl.sync.{mode}.b32 %r13|%p1, %r10, {operands}, -1; selp.b32 %r14, 1, 0, %p1;"
    out = collect(body + "mov.b32 %r63, %r13;", values, threads=64)
    flags = collect(body + "mov.b32 %r63, %r14;", values, threads=64)
    for warp in (0, 32):
        expected, inside = shuffled(mode, values[warp : warp + 32], b, c)
        assert (out[warp : warp + 32] == expected).all()
        assert (flags[warp : warp + 32] == inside).all()


def test_shuffle_index_differs_by_lane():
    values, index = words(32), np.random.default_rng(1).permutation(32).astype(np.uint32)
    body = (
        LOAD
        + "add.s64 %rd11, %rd1, %rd10; sub.s64 %rd11, %rd11, %rd0; ld.global.b32 %r11, [%rd11];"
    )
    out = collect(body + "shfl.sync.idx.b32 %r63, %r10, %r11, 31, -1;", values, index)
    assert (out == values[index]).all()


HALF = "setp.lt.u32 %p1, %r0, 16; @!%p1 bra END; "


def test_shuffle_in_half_a_warp():
    body = "mov.b32 %r63, 7; " + HALF + "shfl.sync.bfly.b32 %r63, %r0, 1, 31, 0xffff; END:"
    out = collect(body)
    assert (out == np.where(LANE < 16, LANE ^ 1, 7)).all()


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (HALF + "shfl.sync.bfly.b32 %r63, %r0, 1, 31, -1; END:", "waits for lane 16"),
        (HALF + "shfl.sync.bfly.b32 %r63, %r0, 1, 31, 0xfffe; END:", "lane 0, which is not in"),
        (HALF + "shfl.sync.bfly.b32 %r63, %r0, 16, 31, 0xffff; END:", "reads from lane 16"),
        (HALF + "vote.sync.any.pred %p2, %p1, -1; END:", "waits for lane 16"),
    ],
)
def test_lanes_missing(body, match):
    assert faults(body, kind="convergence", match=match).text


def test_nonexistent_lanes_are_not_waited_for():
    out = collect("shfl.sync.idx.b32 %r63, %r0, 3, 31, -1;", threads=20)
    assert (out == 3).all()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("ballot.b32 %r63", [0xFF, 0xFF000000]),
        ("any.pred %p2", [1, 1]),
        ("all.pred %p2", [0, 0]),
        ("uni.pred %p2", [0, 0]),
    ],
)
def test_vote(mode, expected):
    body = "setp.lt.u32 %p1, %r0, 8; setp.ge.or.u32 %p1, %r0, 56, %p1;"
    body += f"vote.sync.{mode}, %p1, -1;"
    if "pred" in mode:
        body += "selp.b32 %r63, 1, 0, %p2;"
    assert (collect(body, threads=64) == np.repeat(expected, 32)).all()


@pytest.mark.parametrize(("limit", "expected"), [(0, (0, 0, 1)), (32, (1, 1, 1)), (31, (1, 0, 0))])
def test_vote_at_its_bounds(limit, expected):
    body = f"setp.lt.u32 %p1, %r0, {limit};"
    for mode, want in zip(("any", "all", "uni"), expected, strict=True):
        out = collect(body + f"vote.sync.{mode}.pred %p2, %p1, -1; selp.b32 %r63, 1, 0, %p2;")
        assert (out == want).all()


def test_vote_of_a_negated_predicate():
    body = "setp.lt.u32 %p1, %r0, 8; vote.sync.ballot.b32 %r63, !%p1, -1;"
    assert (collect(body) == 0xFFFFFF00).all()


def test_active_mask_and_election():
    body = "mov.b32 %r63, 0; setp.gt.u32 %p1, %r0, 4; @!%p1 bra END; activemask.b32 %r63; END:"
    assert (collect(body) == np.where(LANE > 4, 0xFFFFFFE0, 0)).all()
    body = "elect.sync %r2|%p1, -1; selp.b32 %r63, 100, 0, %p1; add.u32 %r63, %r63, %r2;"
    assert (collect(body, threads=64) == np.tile(np.where(LANE == 0, 100, 0), 2)).all()
    body = """
    mov.b32 %r63, 0;
    setp.gt.u32 %p1, %r0, 4;
    @!%p1 bra END;
    elect.sync _|%p2, 0xffffffe0;
    selp.b32 %r63, 1, 0, %p2;
END:
"""
    assert (collect(body) == (LANE == 5)).all()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_lane_may_be_elected_in_random_order(seed):
    body = """
    elect.sync %r2|%p1, -1;
    elect.sync %r3|%p2, -1;
    setp.gt.u32 %p3, %r0, 127;
    mov.b32 %r4, 0;
    @!%p3 bra DONE;
    elect.sync %r4|_, 0xffffffff;
DONE:
    selp.b32 %r5, 32, 0, %p1;
    xor.b32 %r6, %r2, %r3;      // the same lane each time
    shl.b32 %r6, %r6, 8;
    or.b32 %r5, %r5, %r2;
    or.b32 %r63, %r5, %r6;
"""
    elected = collect(body, threads=256, seed=seed).reshape(8, 32)
    leaders = elected[:, 0] & 31
    expected = leaders[:, None] + 32 * (np.arange(32) == leaders[:, None])
    np.testing.assert_array_equal(elected, expected)
    assert len(set(leaders.tolist())) > 2


# The first warp's elected lane stores it, waits for it, and lets it be overwritten.
ELECTED = """
    shl.b32 %r2, %r0, 2;
    add.s32 %r2, %r1, %r2;
    st.shared.b32 [%r2], %r0;
    fence.proxy.async;
    bar.sync 0;
    shr.u32 %r3, %r0, 5;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra STORED;
    elect.sync _|%p2, 0xffffffff;
    @!%p2 bra ISSUED;
    cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 256;
    cp.async.bulk.commit_group;
ISSUED:
    bar.warp.sync 0xffffffff;
    {elect}
    @!%p3 bra WAITED;
    cp.async.bulk.wait_group 0;
WAITED:
    bar.warp.sync 0xffffffff;
STORED:
    bar.sync 0;
    st.shared.b32 [%r2], -1;
"""


@pytest.mark.parametrize("seed", range(5))
def test_the_elected_lane_waits_for_its_copies(seed):
    out = np.zeros(64, np.int32)
    body = ELECTED.format(elect="elect.sync _|%p3, 0xffffffff;")
    run(body, out, threads=64, seed=seed)
    np.testing.assert_array_equal(out, np.arange(64))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_another_lane_does_not_wait_for_them(seed):
    body = ELECTED.format(elect="setp.eq.u32 %p3, %r0, 0;")
    out = np.zeros(64, np.int32)
    faults(body, out, kind="in-flight", threads=64, seed=seed)
    run(body, out, threads=64, seed=0)  # in step the first lane is elected


@pytest.mark.parametrize("seed", [0, 1])
def test_match(seed):
    values = np.random.default_rng(seed).integers(0, 4, 64, dtype=np.uint32)
    out = collect(LOAD + "match.any.sync.b32 %r63, %r10, -1;", values, threads=64)
    for lane in range(64):
        warp = values[lane // 32 * 32 :][:32]
        assert out[lane] == sum(1 << i for i in range(32) if warp[i] == values[lane])


@pytest.mark.parametrize(("divisor", "expected"), [(64, 0xFFFFFFFF), (31, 0)])
def test_match_all(divisor, expected):
    body = f"div.u32 %r10, %r0, {divisor}; cvt.u64.u32 %rd10, %r10;"
    body += "match.all.sync.b64 %r63|%p1, %rd10, -1; selp.b32 %r11, 1, 0, %p1;"
    assert (collect(body) == expected).all()
    assert (collect(body + "mov.b32 %r63, %r11;") == (expected != 0)).all()


@pytest.mark.parametrize(
    ("kind", "reduce", "dtype"),
    [
        ("add.u32", np.add.reduce, "u4"),
        ("add.s32", np.add.reduce, "i4"),
        ("min.u32", np.minimum.reduce, "u4"),
        ("min.s32", np.minimum.reduce, "i4"),
        ("max.u32", np.maximum.reduce, "u4"),
        ("max.s32", np.maximum.reduce, "i4"),
        ("and.b32", np.bitwise_and.reduce, "u4"),
        ("or.b32", np.bitwise_or.reduce, "u4"),
        ("xor.b32", np.bitwise_xor.reduce, "u4"),
    ],
)
def test_redux(kind, reduce, dtype):
    values = words() & 0xFFFF00FF | 0x10000
    out = collect(LOAD + f"redux.sync.{kind} %r63, %r10, -1;", values, threads=64)
    for warp in (0, 32):
        expected = reduce(values[warp : warp + 32].view(dtype), dtype=dtype)
        assert (out[warp : warp + 32].view(dtype) == expected).all()
    part = "mov.b32 %r63, 0;" + LOAD + HALF + f"redux.sync.{kind} %r63, %r10, 0xffff; END:"
    out = collect(part, values)
    assert (out[:16].view(dtype) == reduce(values[:16].view(dtype), dtype=dtype)).all()


@pytest.mark.parametrize(
    ("flags", "values", "expected"),
    [
        ("min", [3.0, -2.0, 0.5], -2.0),
        ("max", [3.0, -2.0, 0.5], 3.0),
        ("min.abs", [3.0, -2.0, 0.5], 0.5),
        ("max.abs", [3.0, -4.0, 0.5], 4.0),
        ("min", [0.0, -0.0], -0.0),
        ("max", [-0.0, 0.0], 0.0),
        ("max", [np.nan, -1.0], -1.0),
        ("max.NaN", [np.nan, -1.0], np.nan),
        ("min", [np.nan], np.nan),
        ("min", [np.inf, -np.inf], -np.inf),
    ],
)
def test_redux_of_floats(flags, values, expected):
    bits = np.resize(np.array(values, np.float32), 32).view(np.uint32)
    out = collect(LOAD + f"redux.sync.{flags}.f32 %r63, %r10, -1;", bits)
    want = 0x7FFFFFFF if np.isnan(expected) else int(np.float32(expected).view(np.uint32))
    assert (out == want).all()
