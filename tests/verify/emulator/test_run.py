"""Launching: arguments, dimensions, batches, limits, and the clear error for each mistake."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.verify.emulator.arguments import ParameterBlock
from aotc.verify.emulator.errors import EmulationError, Fault
from aotc.verify.emulator.memory.global_memory import GlobalMemory
from aotc.verify.emulator.run import emulate
from tests.support.ptx_kernel import collect, faults, ptx, run

COPY = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry copy(.param .u64 x, .param .u64 out, .param .u32 n, .param .u8 add)
{limits}
{{
    .reg .pred %p<2>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [out];
    ld.param.u32 %r1, [n];
    ld.param.u8 %r2, [add];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra done;
    mul.wide.u32 %rd3, %r6, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.u32 %r7, [%rd4];
    add.u32 %r8, %r7, %r2;
    st.global.u32 [%rd5], %r8;
done:
    ret;
}}
"""
SIMPLE = COPY.format(limits="")
RNG = np.random.default_rng(5)


def arrays(count):
    return RNG.integers(0, 1000, count, np.uint32), np.full(count, 0xA5A5, np.uint32)


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("threads", [1, 31, 32, 33, 256])
@pytest.mark.parametrize("count", [1, 97, 1000])
def test_copy(count, threads, seed):
    x, out = arrays(count)
    emulate(SIMPLE, -(-count // threads), [x, out, count, 3], cta_threads=threads, seed=seed)
    np.testing.assert_array_equal(out, x + 3)


@pytest.mark.parametrize("grid", [0, (0, 1), (2, 0, 3)])
def test_an_empty_grid_runs_nothing(grid):
    x, out = arrays(4)
    assert emulate(SIMPLE, grid, [x, out, 4, 3], cta_threads=4).lane_instructions == 0
    assert (out == 0xA5A5).all()


def test_statistics_count_lanes_and_warps():
    x, out = arrays(70)
    statistics = emulate(SIMPLE, 2, [x, out, 70, 3], cta_threads=40)
    # 10 up to the branch, 6 behind it for the 70 threads in range, and the exit.
    assert statistics.lane_instructions == 80 * 10 + 70 * 6 + 80
    # The second CTA's second warp has all its threads out of range.
    assert statistics.warp_instructions == 4 * 10 + 3 * 6 + 4
    assert statistics.batches == 1


def test_batches_fit_the_memory_limit():
    x, out = arrays(2048)
    once = emulate(SIMPLE, 32, [x, out, 2048, 1], cta_threads=64)
    assert once.batches == 1
    out[:] = 0
    several = emulate(SIMPLE, 32, [x, out, 2048, 1], cta_threads=64, max_memory_bytes=60_000)
    assert several.batches > 3
    np.testing.assert_array_equal(out, x + 1)
    assert several.lane_instructions == once.lane_instructions


def test_a_cta_over_the_memory_limit():
    x, out = arrays(4)
    with pytest.raises(EmulationError, match=r"a CTA needs [\d,]+ bytes .* at most 9,000"):
        emulate(SIMPLE, 1, [x, out, 4, 3], cta_threads=64, max_memory_bytes=9000)


def test_three_dimensions():
    body = """
        mov.u32 %r4, %tid.y; mov.u32 %r5, %tid.z; mov.u32 %r6, %ctaid.y; mov.u32 %r7, %nctaid.z;
        mad.lo.u32 %r8, %r5, 10, %r4; mad.lo.u32 %r9, %r6, 100, %r8; mad.lo.u32 %r10, %r7, 1000, %r9;
        mov.u32 %r11, %tid.x; mad.lo.u32 %r12, %r4, 3, %r11; mad.lo.u32 %r12, %r5, 6, %r12;
        mov.u32 %r13, %ctaid.x; mov.u32 %r14, %ctaid.z;
        mad.lo.u32 %r15, %r14, 2, %r6; mad.lo.u32 %r15, %r15, 2, %r13;
        mad.lo.u32 %r16, %r15, 12, %r12; mad.wide.u32 %rd5, %r16, 4, %rd0;
        st.global.b32 [%rd5], %r10;
    """
    out = np.zeros((2, 2, 2, 2, 2, 3), np.uint32)  # ctaid z y x, tid z y x
    text = ptx(body, 1, threads="3, 2, 2")
    emulate(text, (2, 2, 2), [out])
    index = np.indices(out.shape)
    np.testing.assert_array_equal(out, index[4] + 10 * index[3] + 100 * index[1] + 2000)


def test_special_registers():
    values = {
        "%laneid": np.arange(64) % 32,
        "%warpid": np.arange(64) // 32,
        "%nwarpid": 2,
        "%ntid.x": 64,
        "%ntid.y": 1,
        "%nctaid.x": 1,
        "%lanemask_lt": (1 << np.arange(64) % 32) - 1,
        "%lanemask_le": (2 << np.arange(64) % 32) - 1,
        "%lanemask_eq": 1 << np.arange(64) % 32,
        "%lanemask_gt": 0xFFFFFFFF & ~((2 << np.arange(64) % 32) - 1),
        "%lanemask_ge": 0xFFFFFFFF & ~((1 << np.arange(64) % 32) - 1),
        "%cluster_ctarank": 0,
        "%cluster_nctarank": 1,
        "%dynamic_smem_size": 256,
        "%total_smem_size": 1024 + 256,
    }
    for name, expected in values.items():
        out = collect(f"mov.u32 %r63, {name};", threads=64, shared_bytes=256)
        np.testing.assert_array_equal(out, np.broadcast_to(expected, 64), err_msg=name)


def test_clocks_advance():
    body = "mov.u32 %r4, %clock; bar.sync 0; mov.u64 %rd4, %clock64; cvt.u32.u64 %r5, %rd4;"
    out = collect(body + "sub.u32 %r63, %r5, %r4;")
    assert (out > 0).all()
    assert (out < 100).all()


def test_static_shared_memory_lies_below_dynamic():
    store = "mov.b32 %r4, more; sub.u32 %r5, %r4, %r1; st.global.b32 [%rd0], %r5;"
    out = np.zeros(1, np.uint32)
    text = ptx(store, 1, threads=1, shared=100).replace(
        ".visible", ".extern .shared .align 64 .b8 more[];\n.visible"
    )
    emulate(text, 1, [out], shared_bytes=64)
    assert out[0] == 128


def test_variables_of_the_module():
    head = ".global .align 4 .b32 table[3] = {7, 8, 9};\n.const .align 4 .b32 more[2] = {1, -1};\n"
    body = """
        mov.b64 %rd1, table; ld.global.b32 %r4, [%rd1+8];
        ld.const.b32 %r5, [more+4];
        add.s32 %r6, %r4, %r5;
        st.global.b32 [%rd0], %r6;
    """
    out = np.zeros(1, np.int32)
    emulate(ptx(body, 1, threads=1).replace(".visible", head + ".visible"), 1, [out])
    assert out[0] == 9 - 1


def test_clusters_of_two_dimensions():
    names = [f"%{n}.{axis}" for n in ("ctaid", "clusterid", "cluster_ctaid") for axis in "xy"]
    names += ["%cluster_ctarank", "%nclusterid.x", "%cluster_nctaid.y", "%cluster_nctarank"]
    stores = "".join(
        f"mov.u32 %r{9 + i}, {name}; st.global.b32 [%rd2+{4 * i}], %r{9 + i};"
        for i, name in enumerate(names)
    )
    row = "mov.u32 %r4, %ctaid.y; mov.u32 %r5, %ctaid.x; mad.lo.u32 %r6, %r4, 4, %r5;"
    out = np.zeros((6, 4, len(names)), np.uint32)
    run(
        f"{row} mad.wide.u32 %rd2, %r6, {4 * len(names)}, %rd0; {stores}",
        out,
        threads=1,
        grid=(4, 6),
        cluster=(2, 3),
    )
    y, x = np.indices((6, 4))
    columns = [x, y, x // 2, y // 3, x % 2, y % 3, y % 3 * 2 + x % 2, 2, 3, 6]
    for name, actual, expected in zip(names, np.moveaxis(out, -1, 0), columns, strict=True):
        np.testing.assert_array_equal(actual, np.broadcast_to(expected, (6, 4)), err_msg=name)


def test_bank_conflicts_are_counted_by_line_if_asked_for():
    body = """
        mad.lo.u32 %r4, %r0, 128, %r1;
        st.shared.b32 [%r4], %r0;
        mad.lo.u32 %r5, %r0, 4, %r1;
        st.shared.b32 [%r5+4096], %r0;
    """
    assert run(body, shared=8192).conflicts == {}
    text = ptx(body, 0, shared=8192)
    counted = run(body, shared=8192, grid=3, count_conflicts=True).conflicts
    lines = {text.splitlines()[line - 1].strip(): count for line, count in counted.items()}
    assert lines["st.shared.b32 [%r4], %r0;"].excess == 31
    assert lines["st.shared.b32 [%r5+4096], %r0;"].excess == 0


def test_variables_move_from_launch_to_launch():
    # The two arguments take one buffer or two, and the table comes behind them.
    head = ".global .align 4 .b32 table[2] = {7, 8};\n"
    body = "mov.b64 %rd2, table; ld.global.b32 %r4, [%rd2+4]; st.global.b32 [%rd1], %r4;"
    text = ptx(body, 2, threads=1).replace(".visible", head + ".visible")
    x, y = np.zeros(1, np.int32), np.zeros(1, np.int32)
    for first, second in ((x, x), (x, y), (y, x), (y, y)):
        second[0] = 0
        emulate(text, 1, [first, second])
        assert second[0] == 8


# ---- arguments ----------------------------------------------------------------------------------

PASS_ON = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry pass_on(.param .u64 out, .param .b{bits} value)
.reqntid 1
{{
    .reg .b{bits} %v;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [out];
    ld.param.b{bits} %v, [value];
    st.global.b{bits} [%rd1], %v;
    ret;
}}
"""


@pytest.mark.parametrize(
    ("bits", "value", "expected"),
    [
        (32, -1, b"\xff\xff\xff\xff"),
        (32, 0xFFFFFFFF, b"\xff\xff\xff\xff"),
        (32, 1.5, np.float32(1.5).tobytes()),
        (64, 1.5, np.float64(1.5).tobytes()),
        (64, -(2**63), b"\0\0\0\0\0\0\0\x80"),
        (16, np.float16(0.1), np.float16(0.1).tobytes()),
        (16, b"\x12\x34", b"\x12\x34"),
        (32, True, b"\1\0\0\0"),
        (64, np.uint64(2**64 - 1), b"\xff" * 8),
    ],
)
def test_scalars(bits, value, expected):
    out = np.zeros(8, np.uint8)
    emulate(PASS_ON.format(bits=bits), 1, [out, value])
    assert out.tobytes()[: bits // 8] == expected


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([1, 2, 3], "copy takes 4 arguments, got 3"),
        ([1, 2, np.zeros(3), 0], "argument 2 is an array, but parameter n has 4 bytes"),
        ([1, 2, 1 << 32, 0], "argument 2 is 4294967296, which does not fit the 4 bytes of n"),
        ([1, 2, 3, -129], "argument 3 is -129"),
        ([1, 2, np.int64(3), 0], "argument 2 has 8 bytes, and parameter n has 4"),
        ([1, 2, 3, 1.5], "argument 3 is a float; parameter add has 1 bytes"),
        ([1, 2, "3", 0], "argument 2 is a str"),
    ],
)
def test_wrong_arguments(args, message):
    with pytest.raises(EmulationError, match=message):
        emulate(SIMPLE, 1, args, cta_threads=32)


def test_read_only_and_masked_arrays():
    x, out = arrays(32)
    out.flags.writeable = False
    with pytest.raises(Fault, match="argument 1"):
        emulate(SIMPLE, 1, [x, out, 32, 3], cta_threads=32)
    out = out.copy()
    mask = np.arange(32) < 20
    with pytest.raises(Fault, match="byte 80 of argument 0"):
        emulate(SIMPLE, 1, [x, out, 32, 3], cta_threads=32, readable={0: mask})
    with pytest.raises(Fault, match="byte 80 of argument 1"):
        emulate(SIMPLE, 1, [x, out, 32, 3], cta_threads=32, writable={1: mask})
    emulate(SIMPLE, 1, [x, out, 20, 3], cta_threads=32, readable={0: mask}, writable={1: mask})
    np.testing.assert_array_equal(out[:20], x[:20] + 3)


def test_out_of_bounds_names_the_place():
    x, out = arrays(32)
    with pytest.raises(Fault, match=r"byte 128 of argument 0") as caught:
        emulate(SIMPLE, 2, [x, out, 33, 3], cta_threads=32)
    assert (caught.value.cta, caught.value.thread) == ((1, 0, 0), 0)


# ---- dimensions and texts -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "options", "message"),
    [
        ("", {}, "copy does not say how many threads a CTA has"),
        ("", {"cta_threads": 1025}, "a CTA has 1 to 1024 threads, got 1025"),
        ("", {"cta_threads": 0}, "a CTA has 1 to 1024 threads, got 0"),
        (".reqntid 64", {"cta_threads": 32}, r"requires CTAs of \(64, 1, 1\) threads"),
        (".reqnctapercluster 2", {"cta_threads": 32}, "no multiple of clusters"),
        (".reqnctapercluster 2", {"cta_threads": 32, "cluster": 3}, "requires clusters of"),
        ("", {"cta_threads": 32, "kernel": "other"}, "there is no kernel other; the text has copy"),
        (
            "",
            {"cta_threads": (1, 2, 3, 4)},
            "the threads of a CTA must be one to three whole numbers",
        ),
    ],
)
def test_wrong_launches(limits, options, message):
    x, out = arrays(4)
    with pytest.raises(EmulationError, match=message):
        emulate(COPY.format(limits=limits), 3, [x, out, 4, 0], **options)


@pytest.mark.parametrize("grid", [(1, 65536), (1, 1, 65536), (2**31,), (-1,), (1, 1, 1, 1), ()])
def test_wrong_grids(grid):
    x, out = arrays(4)
    with pytest.raises(EmulationError, match="grid"):
        emulate(SIMPLE, grid, [x, out, 4, 0], cta_threads=32)


def test_the_kernel_must_be_unambiguous():
    with pytest.raises(EmulationError, match="which kernel is to run"):
        emulate(SIMPLE + SIMPLE.replace("copy", "twin"), 1, [])
    x, out = arrays(4)
    two_kernels = SIMPLE + SIMPLE[SIMPLE.index(".visible") :].replace("copy", "twin")
    emulate(two_kernels, 1, [x, out, 4, 3], cta_threads=32, kernel="twin")
    np.testing.assert_array_equal(out, x + 3)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("frobnicate.b32 %r4, %r5;", "unsupported instruction frobnicate.b32: the opcode"),
        ("add.odd.s32 %r4, %r0, %r0;", "unsupported instruction add.odd.s32: modifier .odd"),
        ("bar.odd 0;", "unsupported instruction bar.odd"),
        ("bar.arrive 0;", "names no number of threads"),
        ("barrier.cluster.odd;", "unsupported instruction barrier.cluster.odd"),
        ("call.uni printf, ();", "only __assertfail and vprintf can be called"),
        ("bra l; l: add.f128 %r1, %r2, %r3;", "unsupported instruction add.f128"),
    ],
)
def test_unsupported_instructions_are_named_before_anything_runs(body, message):
    flag = np.zeros(1, np.int32)
    with pytest.raises(EmulationError, match=message) as caught:
        run("st.global.b32 [%rd0], 1;" + body, flag)
    assert caught.value.line > 0
    assert flag[0] == 0


def test_an_assertion_shows_its_message():
    strings = (
        ".global .align 1 .b8 s0[4] = {110, 62, 48};\n"
        ".global .align 1 .b8 s1[5] = {107, 46, 112, 121};\n"
    )
    body = """
        setp.ne.u32 %p1, %r0, 9;
        @%p1 bra fine;
        {
        .param .b64 param0; .param .b64 param1; .param .b32 param2;
        mov.b64 %rd4, s0;
        st.param.b64 [param0], %rd4;
        mov.b64 %rd5, s1;
        st.param.b64 [param1], %rd5;
        st.param.b32 [param2], 17;
        call.uni __assertfail, (param0, param1, param2);
        }
        trap;
    fine:
    """
    text = ptx(body, 0).replace(".visible", strings + ".visible")
    with pytest.raises(Fault, match="k.py:17: assertion failed: n>0") as caught:
        emulate(text, 1, [])
    assert (caught.value.kind, caught.value.thread) == ("assert", 9)


def test_the_same_seed_gives_the_same_schedule():
    # The last one wins: the race is intended, so it uses atomics.
    body = "atom.global.exch.b32 %r4, [%rd0], %r0; bar.sync 0;" * 3

    def winner(seed):
        out = np.zeros(1, np.int32)
        run(body, out, threads=256, seed=seed)
        return int(out[0])

    winners = [winner(seed) for seed in range(1, 9)]
    assert winners == [winner(seed) for seed in range(1, 9)]
    assert len(set(winners)) > 1


def test_a_missing_barrier_shows_as_a_result_under_a_seed():
    # In step each warp's write is seen by the other; at random it is not always.
    body = """
        shl.b32 %r4, %r0, 2;
        cvt.u64.u32 %rd4, %r4;
        add.s64 %rd4, %rd4, %rd0;
        st.relaxed.gpu.global.b32 [%rd4], 1;
        xor.b32 %r5, %r4, 128;
        cvt.u64.u32 %rd5, %r5;
        add.s64 %rd5, %rd5, %rd0;
        ld.relaxed.gpu.global.b32 %r63, [%rd5];
    """
    sums = set()
    for seed in range(10):
        sums.add(int(collect(body, np.zeros(64, np.int32), threads=64, seed=seed).sum()))
    assert 64 in sums
    assert len(sums) > 1


def test_local_memory_is_of_each_thread():
    body = """
        mov.b64 %rd4, depot;
        st.local.b32 [%rd4+8], %r0;
        ld.local.b32 %r63, [%rd4+8];
    """
    np.testing.assert_array_equal(collect(body, threads=64), np.arange(64))


def test_faults_name_thread_and_cta_of_any_batch():
    body = "mov.u32 %r4, %ctaid.x; setp.eq.u32 %p1, %r4, 5; @%p1 trap;"
    fault = faults(body, kind="trap", grid=7, threads=40, max_memory_bytes=60_000)
    assert (fault.cta, fault.thread) == ((5, 0, 0), 0)


def test_launches_beside_each_other_have_grids_and_parameters_of_their_own():
    """Of three grids, one empty, each CTA reads the parameters and the extents of its own."""
    body = """
    mov.u32 %r10, %ctaid.x; mov.u32 %r11, %nctaid.x; mov.u32 %r12, %ctaid.y; mov.u32 %r13, %nctaid.y;
    mad.lo.u32 %r14, %r12, %r11, %r10;
    mad.lo.u32 %r14, %r14, 32, %r0;
    mul.wide.u32 %rd10, %r14, 4;
    add.u64 %rd10, %rd10, %rd0;
    mad.lo.u32 %r15, %r11, 10, %r13;
    cvt.u64.u32 %rd11, %r15;
    add.u64 %rd11, %rd11, %rd1;
    cvt.u32.u64 %r15, %rd11;
    st.global.u32 [%rd10], %r15;
"""
    memory, grids = GlobalMemory(), [(2, 3), (0, 1), (5, 1)]
    outs = [np.zeros(32 * x * y, np.uint32) for x, y in grids]
    params = tuple(
        memory.add(f"out{index}", out).to_bytes(8, "little") + (100 * index).to_bytes(8, "little")
        for index, out in enumerate(outs)
    )
    for seed in (0, 3):
        block = ParameterBlock(params, memory)
        statistics = emulate(ptx(body, 2), grids[0], block, more_grids=grids[1:], seed=seed)
        assert statistics.batches == 1
        for index, ((x, y), out) in enumerate(zip(grids, outs, strict=True)):
            assert (out == 10 * x + y + 100 * index).all()
            out[:] = 0


def test_launches_beside_each_other_do_not_reach_each_others_memory():
    body = "add.u64 %rd1, %rd0, %rd1; st.global.u32 [%rd1], %r0;"
    memory = GlobalMemory()
    first, second = (memory.add(name, np.zeros(1, np.uint32)) for name in ("first", "second"))
    params = tuple(
        address.to_bytes(8, "little") + distance.to_bytes(8, "little")
        for address, distance in ((first, 0), (second, 4))
    )
    block = ParameterBlock(params, memory)
    with pytest.raises(Fault, match="4 bytes at byte 4 of second"):
        emulate(ptx(body, 2, threads=1), 1, block, more_grids=[1])
