"""Loads and stores of every space, and address conversions."""

import numpy as np
import pytest

from aotc.verify.emulator.errors import EmulationError
from tests.support.ptx_kernel import collect, faults, run

OWN = "mad.wide.u32 %rd10, %r0, {size}, %rd0;"


def numbers(dtype, count=64, seed=0):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    return rng.integers(info.min, info.max, count, dtype=dtype, endpoint=True)


@pytest.mark.parametrize(
    "modifiers", ["", ".nc", ".nc.L1::no_allocate.L2::128B", ".ca", ".volatile"]
)
@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4"])
def test_load_extends_to_the_register(dtype, modifiers):
    array = numbers(dtype)
    kind = ("s" if dtype[0] == "i" else "u") + str(8 * int(dtype[1]))
    space = f"volatile.global.{kind}" if modifiers == ".volatile" else f"global{modifiers}.{kind}"
    body = OWN.format(size=dtype[1]) + f"ld.{space} %r63, [%rd10];"
    out = collect(body, array, threads=64)
    assert (out == array.astype(np.int64).astype(np.uint32)).all()


def test_signed_load_into_64_bits():
    array = numbers("i4")
    out = collect(OWN.format(size=4) + "ld.global.s32 %rd63, [%rd10];", array, threads=64, bits=64)
    assert (out.view(np.int64) == array).all()


def test_b8_fills_up_with_zeros():
    array = numbers("u1")
    out = collect(OWN.format(size=1) + "ld.global.b8 %h31, [%rd10];", array, threads=64, bits=16)
    assert (out == array).all()


@pytest.mark.parametrize(("width", "count"), [(32, 2), (32, 4), (64, 2), (16, 4), (8, 2), (8, 4)])
def test_vector_round_trip(width, count):
    size = width * count // 8
    source, target = numbers("u1", size * 64), np.zeros(size * 64, np.uint8)
    letter = {8: "%h", 16: "%h", 32: "%r1", 64: "%rd2"}[width]
    vector = "{" + ", ".join(f"{letter}{i}" for i in range(count)) + "}"
    body = f"""
    mad.wide.u32 %rd10, %r0, {size}, %rd0;
    mad.wide.u32 %rd11, %r0, {size}, %rd1;
    ld.global.v{count}.b{width} {vector}, [%rd10];
    st.global.v{count}.b{width} [%rd11], {vector};
"""
    run(body, source, target, threads=64)
    assert (source == target).all()


def test_v8():
    source, target = numbers("u4", 8 * 32), np.zeros(8 * 32, np.uint32)
    vector = "{" + ", ".join(f"%r1{i}" for i in range(8)) + "}"
    body = f"""
    mad.wide.u32 %rd10, %r0, 32, %rd0;
    mad.wide.u32 %rd11, %r0, 32, %rd1;
    ld.global.v8.b32 {vector}, [%rd10];
    st.global.v8.b32 [%rd11], {vector};
"""
    run(body, source, target)
    assert (source == target).all()


def test_store_takes_the_low_bits():
    target = np.zeros(64, np.uint8)
    run("add.u32 %r2, %r0, 0x300; cvt.u64.u32 %rd11, %r0; add.s64 %rd10, %rd0, %rd11;"
        "st.global.u8 [%rd10], %r2;", target, threads=64)  # fmt: skip
    assert (target == np.arange(64)).all()


def test_predicated_lanes_leave_memory_and_registers_alone():
    array = np.arange(10, dtype=np.uint32)
    body = "mov.b32 %r63, 77; setp.lt.u32 %p1, %r0, 10; " + OWN.format(size=4)
    out = collect(body + "@%p1 ld.global.b32 %r63, [%rd10];", array)
    assert (out == [*range(10), *[77] * 22]).all()
    run(body + "@!%p1 bra END; st.global.b32 [%rd10], 5; END:", array)
    assert (array == 5).all()


def test_bounds_name_the_array_and_the_thread():
    fault = faults(
        OWN.format(size=4) + "ld.global.b32 %r2, [%rd10];",
        np.zeros(30, np.float32),
        kind="bounds",
        match="byte 120 of .*120 bytes",
    )
    assert fault.thread == 30


def test_misaligned_vector():
    body = "ld.global.v2.b32 {%r2, %r3}, [%rd0+4];"
    faults(body, np.zeros(4, np.uint32), kind="misaligned", match="multiple of 8")


def test_lanes_store_different_values_to_one_address():
    target = np.zeros(1, np.uint32)
    faults("st.global.b32 [%rd0], %r0;", target, kind="race", match="same time")
    run("st.relaxed.gpu.global.b32 [%rd0], %r0;", target)
    run("st.global.b32 [%rd0], 6;", target)
    assert target[0] == 6


def test_local_memory():
    body = """
    mov.b64 %rd10, depot;
    cvta.local.u64 %rd11, %rd10;
    st.local.b32 [%rd10+8], %r0;
    ld.b32 %r63, [%rd11+8];
"""
    assert (collect(body, threads=64) == np.arange(64)).all()
    faults("mov.b64 %rd10, depot; ld.local.b32 %r2, [%rd10];", kind="uninitialised")
    faults("mov.b64 %rd10, depot; ld.local.b32 %r2, [%rd10+64];", kind="bounds")


def test_generic_addresses_of_several_spaces_at_once():
    array = np.arange(32, dtype=np.uint32) + 1000
    body = """
    mov.b64 %rd10, depot;
    cvta.local.u64 %rd11, %rd10;
    st.local.b32 [%rd10], 1;
    cvt.u64.u32 %rd12, %r1;
    cvta.shared.u64 %rd13, %rd12;
    mul.wide.u32 %rd14, %r0, 4;
    add.s64 %rd13, %rd13, %rd14;
    add.u32 %r2, %r0, 2000;
    st.b32 [%rd13], %r2;
    add.s64 %rd15, %rd0, %rd14;
    setp.lt.u32 %p1, %r0, 10;
    selp.b64 %rd15, %rd13, %rd15, %p1;
    setp.gt.u32 %p2, %r0, 20;
    selp.b64 %rd15, %rd11, %rd15, %p2;
    ld.b32 %r3, [%rd15];
    st.b32 [%rd15], %r0;
    ld.b32 %r4, [%rd15];
    mad.lo.u32 %r63, %r3, 100, %r4;
"""
    lane = np.arange(32)
    first = np.where(lane < 10, 2000 + lane, np.where(lane > 20, 1, 1000 + lane))
    assert (collect(body, array) == first * 100 + lane).all()
    assert (array[10:21] == lane[10:21]).all()


@pytest.mark.parametrize(("space", "expected"), [("global", 0), ("shared", 1), ("local", 2)])
def test_isspacep(space, expected):
    body = f"""
    mov.b64 %rd10, depot;
    cvta.local.u64 %rd12, %rd10;
    cvt.u64.u32 %rd10, %r1;
    cvta.shared.u64 %rd11, %rd10;
    mov.b64 %rd10, %rd0;
    setp.eq.u32 %p1, %r0, 1;
    selp.b64 %rd10, %rd11, %rd10, %p1;
    setp.eq.u32 %p1, %r0, 2;
    selp.b64 %rd10, %rd12, %rd10, %p1;
    isspacep.{space} %p2, %rd10;
    selp.b32 %r63, 1, 0, %p2;
"""
    out = collect(body, np.zeros(1, np.uint32), threads=3)
    assert out.tolist() == [int(i == expected) for i in range(3)]


@pytest.mark.parametrize("other", [0, 1])
@pytest.mark.parametrize("space", ["shared", "shared::cta", "shared::cluster", "global"])
def test_isspacep_of_an_address_in_the_cluster(space, other):
    body = f"""
    mov.u32 %r2, %cluster_ctarank;
    xor.b32 %r2, %r2, {other};
    cvt.u64.u32 %rd10, %r1;
    cvta.shared.u64 %rd10, %rd10;
    mapa.u64 %rd11, %rd10, %r2;
    isspacep.{space} %p2, %rd11;
    selp.b32 %r63, 1, 0, %p2;
"""
    inside = space == "shared::cluster" or (space != "global" and not other)
    assert (collect(body, threads=1, grid=4, cluster=2) == int(inside)).all()


def test_cvta_to_undoes_cvta():
    body = """
    cvt.u64.u32 %rd10, %r1;
    cvta.shared.u64 %rd11, %rd10;
    cvta.to.shared.u64 %rd12, %rd11;
    sub.s64 %rd63, %rd12, %rd10;
"""
    assert (collect(body, bits=64) == 0).all()


def test_generic_address_of_a_parameter():
    body = """
    mov.b64 %rd10, k_param_0;
    cvta.param.u64 %rd11, %rd10;
    ld.b32 %r63, [%rd11+4];
"""
    assert (collect(body, (5 << 32) + 6, threads=1) == 5).all()
    faults(body + "st.b32 [%rd11], 1;", 0, kind="misuse", match="param memory, which is read-only")
    faults(body.replace("+4", "+8"), 0, kind="bounds", match="the parameters")


@pytest.mark.parametrize("space", ["", ".global", ".shared"])
def test_null_pointer(space):
    faults(f"ld{space}.b32 %r2, [%rd0];", 0, kind="bounds")


def test_hints_do_nothing():
    array = numbers("u4", 32)
    body = (
        OWN.format(size=4)
        + """
    createpolicy.fractional.L2::evict_last.b64 %rd11, 1.0;
    prefetch.global.L2 [%rd10];
    ld.global.L1::evict_last.L2::cache_hint.b32 %r63, [%rd10], %rd11;
    st.global.L2::cache_hint.b32 [%rd10], %r63, %rd11;
"""
    )
    assert (collect(body, array) == array).all()


def test_read_only_array():
    array = np.zeros(4, np.uint32)
    array.flags.writeable = False
    faults("st.global.b32 [%rd0], 1;", array, kind="read-only")


@pytest.mark.parametrize(
    "text", ["ld.global.banana.b32 %r2, [%rd0];", "ld.global.b128 %rd1, [%rd0];"]
)
def test_unknown_modifier_is_named(text):
    with pytest.raises(EmulationError, match="banana|128"):
        run(text, np.zeros(8, np.uint32))
