"""`ldmatrix` and `stmatrix` against the rows at the lanes' addresses."""

import numpy as np
import pytest

from aotc.verify.emulator.errors import EmulationError
from tests.support.ptx_kernel import faults, run

# Each of 64 threads: %r2 its lane, %r3 its own 16-byte row in a rotated order, %rd20 its output.
HEAD = """
    and.b32 %r2, %r0, 31;
    shr.u32 %r4, %r0, 5;
    mad.lo.u32 %r5, %r2, 7, 3;
    and.b32 %r5, %r5, 31;
    mad.lo.u32 %r3, %r4, 512, %r1;
    mad.lo.u32 %r3, %r5, 16, %r3;
    mad.wide.u32 %rd20, %r0, 16, %rd0;
"""
FILL = """
    mad.lo.u32 %r6, %r0, 16, %r1;
    ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd20];
    st.shared.v4.b32 [%r6], {%r10, %r11, %r12, %r13};
    bar.sync 0;
"""
OUT = "\n    st.global.v4.b32 [%rd20], {%r10, %r11, %r12, %r13};"
REGISTERS = {1: "{%r10}", 2: "{%r10, %r11}", 4: "{%r10, %r11, %r12, %r13}"}
ROW_OF_LANE = (np.arange(32) * 7 + 3) % 32


def _matrices(data):
    """Return the 8x8 matrices at each warp's row addresses: (warps, 4, 8, 8)."""
    rows = data.view(np.uint16).reshape(2, 32, 8)
    return rows[:, ROW_OF_LANE].reshape(2, 4, 8, 8)


def _fragments(matrices):
    """Return each lane's registers (warps, 32, 4): lane 4r + c has columns 2c and 2c + 1 of row r."""
    pairs = np.ascontiguousarray(matrices).view(np.uint32).reshape(2, 4, 32)
    return pairs.transpose(0, 2, 1)


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("space", ["shared", "generic"])
def test_load(count, trans, space):
    data = np.random.default_rng(count).integers(0, 2**32, 64 * 4, np.uint32)
    address = "%r3" if space == "shared" else "%rd21"
    convert = "" if space == "shared" else "cvt.u64.u32 %rd21, %r3; cvta.shared.u64 %rd21, %rd21;"
    word = ".shared" if space == "shared" else ""
    load = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}{word}.b16 {REGISTERS[count]}, [{address}];"
    out = data.copy()
    run(HEAD + FILL + convert + load + OUT, out, threads=64)
    matrices = _matrices(data)
    expected = _fragments(matrices.swapaxes(2, 3) if trans else matrices)
    np.testing.assert_array_equal(out.reshape(2, 32, 4)[:, :, :count], expected[:, :, :count])


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_store(count, trans):
    data = np.random.default_rng(count).integers(0, 2**32, 64 * 4, np.uint32)
    store = f"""
    bar.sync 0;
    stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r3], {REGISTERS[count]};
    bar.sync 0;
    ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%r6];"""
    out = data.copy()
    run(HEAD + FILL + store + OUT, out, threads=64)
    expected = data.copy().reshape(2, 32, 4)
    lanes = data.reshape(2, 32, 4).transpose(0, 2, 1)  # (warps, matrices, lanes)
    matrices = np.ascontiguousarray(lanes).view(np.uint16).reshape(2, 4, 8, 8)
    if trans:
        matrices = matrices.swapaxes(2, 3)
    rows = np.ascontiguousarray(matrices).view(np.uint32).reshape(2, 32, 4)
    expected[:, ROW_OF_LANE[: 8 * count]] = rows[:, : 8 * count]
    np.testing.assert_array_equal(out.reshape(2, 32, 4), expected)


def test_lanes_beyond_the_rows_give_no_address():
    load = """
    setp.gt.u32 %p1, %r2, 7;
    @%p1 mov.b32 %r3, 1;
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r3];"""
    run(HEAD + FILL + load, np.zeros(256, np.uint32), threads=64)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ("or.b32 %r3, %r3, 8;\nand.b32 %r3, %r3, 1791;", "misaligned", "no multiple of 16 bytes"),
        ("add.u32 %r3, %r3, 4096;", "bounds", "out of bounds"),
        ("and.b32 %r9, %r0, 1; setp.eq.u32 %p1, %r9, 0; @%p1 bra L;", "convergence", "part of"),
    ],
)
def test_misuse(change, kind, message):
    load = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r3]; L:"
    faults(
        HEAD + FILL + change + load,
        np.zeros(256, np.uint32),
        kind=kind,
        match=message,
        threads=64,
    )


def test_rows_never_written_and_rows_of_another_warp():
    load = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r3];"
    faults(HEAD + load, np.zeros(256, np.uint32), kind="uninitialised", threads=64)
    swapped = FILL.replace("bar.sync 0;", "xor.b32 %r4, %r4, 1; mad.lo.u32 %r3, %r4, 512, %r1;")
    faults(HEAD + swapped + load, np.zeros(256, np.uint32), kind="race", threads=64)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r10, %r11}, [%r3];", "without .m8n8"),
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r10}, [%r3];", "1 registers for 2 matrices"),
        ("stmatrix.sync.aligned.m8n8.x8.shared.b16 [%r3], {%r10};", "modifiers x8"),
    ],
)
def test_other_forms_are_refused(text, message):
    with pytest.raises(EmulationError, match=message):
        run(HEAD + text, np.zeros(256, np.uint32), threads=64)
