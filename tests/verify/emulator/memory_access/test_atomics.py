"""Atomic operations against loops over lanes."""

import numpy as np
import pytest

from tests.support.ptx_kernel import collect, faults, run

LOAD = "mul.wide.u32 %rd10, %r0, 4; add.s64 %rd10, %rd0, %rd10; ld.global.b32 %r10, [%rd10];"
MASK = (1 << 32) - 1


def words(count=64, seed=0):
    return np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32)


def signed(value):
    return value - (1 << 32) if value >> 31 else value


OPERATIONS = {
    "add.u32": lambda old, b: (old + b) & MASK,
    "add.s32": lambda old, b: (old + b) & MASK,
    "min.u32": min,
    "max.u32": max,
    "min.s32": lambda old, b: min(old, b, key=signed),
    "max.s32": lambda old, b: max(old, b, key=signed),
    "and.b32": lambda old, b: old & b,
    "or.b32": lambda old, b: old | b,
    "xor.b32": lambda old, b: old ^ b,
    "exch.b32": lambda old, b: b,
    "inc.u32": lambda old, b: 0 if old >= b else old + 1,
    "dec.u32": lambda old, b: b if old == 0 or old > b else old - 1,
}


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_lanes_at_one_address_take_turns(name, space):
    values = words() if name not in ("inc.u32", "dec.u32") else words() % 5
    cell = np.array([0x80000003, 0], np.uint32)
    body = LOAD + "and.b32 %r11, %r0, 1; mul.wide.u32 %rd11, %r11, 4; add.s64 %rd12, %rd1, %rd11;"
    if space == "shared":
        body += "cvt.u32.u64 %r12, %rd11; add.u32 %r13, %r12, %r1; ld.global.b32 %r14, [%rd12];"
        body += "st.shared.b32 [%r13], %r14; bar.sync 0;"
        body += f"atom.shared.{name} %r63, [%r13], %r10;"
        body += "bar.sync 0; ld.shared.b32 %r14, [%r13]; st.global.b32 [%rd12], %r14;"
    else:
        body += f"atom.acq_rel.gpu.global.{name} %r63, [%rd12], %r10;"
    start = cell.tolist()
    if space == "shared":  # both warps store the cells, and must agree
        body = body.replace("st.global.b32 [%rd12]", "@%p1 st.global.b32 [%rd12]")
        body = "setp.lt.u32 %p1, %r0, 2;" + body.replace(
            "ld.global.b32 %r14", "ld.global.nc.b32 %r14"
        )
    old = collect(body, values, cell, threads=64)
    for lane in range(64):
        assert old[lane] == start[lane & 1]
        start[lane & 1] = OPERATIONS[name](start[lane & 1], int(values[lane]))
    assert cell.tolist() == start


def test_compare_and_swap_lets_one_win():
    cell = np.array([7], np.uint32)
    body = "add.u32 %r2, %r0, 100; atom.global.cas.b32 %r63, [%rd0], 7, %r2;"
    old = collect(body, cell)
    assert old.tolist() == [7, *[100] * 31]
    assert cell[0] == 100


@pytest.mark.parametrize("operation", ["add.u64", "max.s64", "xor.b64", "exch.b64"])
def test_64_bits(operation):
    cell = np.array([1 << 40], np.uint64)
    body = "cvt.u64.u32 %rd10, %r0; add.s64 %rd10, %rd10, 0x7fffffffff;"
    old = collect(body + f"atom.global.{operation} %rd63, [%rd0], %rd10;", cell, bits=64)
    expected, seen = 1 << 40, []
    for lane in range(32):
        b = lane + 0x7FFFFFFFFF
        seen.append(expected)
        expected = {
            "add.u64": expected + b,
            "max.s64": max(expected, b),
            "xor.b64": expected ^ b,
            "exch.b64": b,
        }[operation]
    assert old.tolist() == seen
    assert cell[0] == expected


def test_float_additions_round_one_after_the_other():
    values = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    cell = np.array([1e3], np.float32)
    run(LOAD + "red.global.add.f32 [%rd1], %r10;", values, cell, threads=64)
    expected = np.float32(1e3)
    for value in values:
        expected += value
    assert cell[0] == expected


def test_global_float_addition_flushes_subnormals_and_shared_does_not():
    tiny = np.array([2e-40], np.float32)
    run("ld.global.b32 %r2, [%rd0]; red.global.add.f32 [%rd0], %r2;", tiny, threads=1)
    assert tiny[0] == 0
    tiny[0] = 2e-40
    body = "ld.global.b32 %r2, [%rd0]; st.shared.b32 [%r1], %r2; red.shared.add.f32 [%r1], %r2;"
    run(body + "ld.shared.b32 %r3, [%r1]; st.global.b32 [%rd0], %r3;", tiny, threads=1)
    assert tiny[0] == np.float32(2e-40) * 2


SIGNALLING, QUIET, OTHER = 0xFFF0000000000001, 0xFFF8000000000001, 0x7FF8000000000002


@pytest.mark.parametrize(
    ("space", "want"),
    [
        # Old and value: NaN and 1, 1 and NaN, two NaN, infinities of either sign.
        ("global", [SIGNALLING, SIGNALLING, OTHER, 0xFFF8000000000000]),
        ("shared", [QUIET, QUIET, QUIET, 0xFFF8000000000000]),
    ],
)
def test_nan_of_f64(space, want):
    unit, infinity = 0x3FF0000000000000, 0x7FF0000000000000
    old = np.array([SIGNALLING, unit, SIGNALLING, infinity], np.uint64)
    value = np.array([unit, SIGNALLING, OTHER, infinity | 1 << 63], np.uint64)
    body = """
    mul.wide.u32 %rd10, %r0, 8; add.s64 %rd11, %rd1, %rd10; add.s64 %rd10, %rd0, %rd10;
    ld.global.b64 %rd12, [%rd11]; mad.lo.u32 %r2, %r0, 8, %r1;
    ld.global.b64 %rd13, [%rd10]; st.shared.b64 [%r2], %rd13;"""
    if space == "global":
        body += "red.global.add.f64 [%rd10], %rd12;"
    else:
        body += "red.shared.add.f64 [%r2], %rd12; ld.shared.b64 %rd13, [%r2];"
        body += "st.global.b64 [%rd10], %rd13;"
    run(body, old, value, threads=4)
    assert [hex(word) for word in old.tolist()] == [hex(word) for word in want]


def test_f64():
    cell = np.array([0.1])
    body = "mov.f64 %rd10, 0d3FB999999999999A; red.global.add.f64 [%rd0], %rd10;"
    run(body, cell, threads=3)
    assert cell[0] == 0.1 + 0.1 + 0.1 + 0.1


def test_f16_and_pairs():
    cell = np.array([1.0, 2.0], np.float16)
    run("mov.b16 %h1, 0x3c00; red.global.add.noftz.f16 [%rd0], %h1;", cell, threads=3)
    assert cell.tolist() == [4.0, 2.0]
    run("mov.b32 %r2, 0x40003c00; red.global.add.noftz.f16x2 [%rd0], %r2;", cell, threads=3)
    assert cell.tolist() == [7.0, 8.0]
    pair = np.array([0x3F80, 0x4000], np.uint16)  # bf16 1 and 2
    run("mov.b32 %r2, 0x3f803f80; red.global.add.noftz.bf16x2 [%rd0], %r2;", pair, threads=2)
    assert pair.tolist() == [0x4040, 0x4080]


def test_vector():
    cells = np.array([1, 2, 3, 4], np.float32)
    body = "cvt.rn.f32.u32 %r2, %r0; mov.f32 %r3, 0f3F800000;"
    body += "red.global.v4.f32.add [%rd0], {%r2, %r3, %r2, %r3};"
    run(body, cells, threads=4)
    assert cells.tolist() == [7, 6, 9, 8]


def test_only_active_lanes():
    cell = np.zeros(1, np.uint32)
    run("setp.lt.u32 %p1, %r0, 5; @%p1 red.global.add.u32 [%rd0], 1;", cell, threads=64, grid=3)
    assert cell[0] == 15


def test_generic_address():
    cell = np.zeros(1, np.uint32)
    run("red.relaxed.sys.add.u32 [%rd0], 2;", cell)
    assert cell[0] == 64


@pytest.mark.parametrize(("address", "kind"), [("[%rd0+4]", "bounds"), ("[%rd0+2]", "misaligned")])
def test_address(address, kind):
    faults(f"red.global.add.u32 {address}, 1;", np.zeros(1, np.uint32), kind=kind)


def test_uninitialised_shared_memory():
    faults("atom.shared.add.u32 %r2, [%r1], 1;", kind="uninitialised")


def test_ticket_lock_orders_shared_memory():
    lock = """
    setp.eq.u32 %p1, %r0, 0;
    @%p1 st.shared.b32 [%r1], 0;
    @%p1 st.shared.b32 [%r1+4], 0;
    bar.sync 0;
    and.b32 %r2, %r0, 31;
    setp.ne.u32 %p2, %r2, 0;
    @%p2 bra END;
AGAIN:
    atom.acquire.cta.shared.cas.b32 %r3, [%r1], 0, 1;
    setp.ne.u32 %p3, %r3, 0;
    @%p3 bra AGAIN;
    ld.shared.b32 %r4, [%r1+4];
    add.u32 %r4, %r4, 1;
    st.shared.b32 [%r1+4], %r4;
    {release}
END:
    bar.sync 0;
    ld.shared.b32 %r63, [%r1+4];
"""
    for seed in (0, 1, 2):
        free = "atom.release.cta.shared.exch.b32 %r5, [%r1], 0;"
        assert (collect(lock.format(release=free), threads=128, seed=seed) == 4).all()
    fenced = "membar.cta; atom.shared.exch.b32 %r5, [%r1], 0;"
    assert (collect(lock.format(release=fenced), threads=128) == 4).all()
    faults(lock.format(release="atom.relaxed.cta.shared.exch.b32 %r5, [%r1], 0;"),
           kind="race", threads=128)  # fmt: skip
