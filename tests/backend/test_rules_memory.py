"""Rules for global memory: vectors, masks, addresses, modifiers, and who stores."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.backend import assemble, disassemble, emit_ptx, lower_kernel
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import arith, gpu, scf, tile
from aotc.ir.layout import LinearLayout
from aotc.ir.text import parse_kernel
from aotc.ir.types import FP32, FP64, I1, I8, I32, I64, SCALARS, PointerType, TileType
from aotc.target import TARGETS
from tests.backend.programs import NUMPY, SM_90, Program, row_layout
from tests.support.checks import check, without_checks

ADD = """
#0 = #ll<register=[[1],[2],[512]] lane=[[4],[8],[16],[32],[64]] warp=[[128],[256]] : [1024]>
kernel @add(%x: *fp32 {divisibility = 16}, %y: *fp32 {divisibility = 16}, %o: *fp32 {divisibility = 16}, %n: i32 {divisibility = 16}) {num_warps = 4} {
  %pid = tile.program_id {axis = 0} : i32
  %c = arith.constant {value = 1024, type = i32} : i32
  %s = arith.mul(%pid, %c) : i32
  %ar = tile.arange {start = 0, end = 1024, layout = #0} : tile<1024xi32, #0>
  %ss = tile.splat(%s) {shape = [1024], layout = #0} : tile<1024xi32, #0>
  %of = arith.add(%ss, %ar) : tile<1024xi32, #0>
  %nn = tile.splat(%n) {shape = [1024], layout = #0} : tile<1024xi32, #0>
  %m = arith.compare(%of, %nn) {predicate = "lt"} : tile<1024xi1, #0>
  %xs = tile.splat(%x) {shape = [1024], layout = #0} : tile<1024x*fp32, #0>
  %xp = arith.addptr(%xs, %of) : tile<1024x*fp32, #0>
  %xv = gpu.load(%xp, %m, _) {vector = 4} : tile<1024xfp32, #0>
  %ys = tile.splat(%y) {shape = [1024], layout = #0} : tile<1024x*fp32, #0>
  %yp = arith.addptr(%ys, %of) : tile<1024x*fp32, #0>
  %yv = gpu.load(%yp, %m, _) {vector = 4} : tile<1024xfp32, #0>
  %r = arith.add(%xv, %yv) : tile<1024xfp32, #0>
  %os = tile.splat(%o) {shape = [1024], layout = #0} : tile<1024x*fp32, #0>
  %op = arith.addptr(%os, %of) : tile<1024x*fp32, #0>
  gpu.store(%op, %r, %m) {vector = 4}
  scf.return
}
// CHECK: .visible .entry add(
// CHECK: .reqntid 128
// CHECK: shl.b32 [[T:%r[0-9]+]], %r{{[0-9]+}}, 2;
// CHECK: shl.b32 [[P:%r[0-9]+]], %r{{[0-9]+}}, 10;
// CHECK: or.b32 [[A:%r[0-9]+]], [[P]], [[T]];
// CHECK: or.b32 [[B:%r[0-9]+]], [[A]], 512;
// CHECK: setp.lt.s32 [[M0:%p[0-9]+]], [[A]],
// CHECK: setp.lt.s32 [[M1:%p[0-9]+]], [[B]],
// CHECK: mul.wide.s32 [[W:%rd[0-9]+]], [[A]], 4;
// CHECK: add.s64 [[X:%rd[0-9]+]], {{.*}}, [[W]];
// CHECK: @[[M0]] ld.global.v4.b32 {{.*}}, [[[X]]+0];
// CHECK: @[[M1]] ld.global.v4.b32 {{.*}}, [[[X]]+2048];
// CHECK: @[[M1]] st.global.v4.b32 [{{.*}}+2048],
"""


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_vector_add_is_what_one_would_write(target) -> None:
    """16-byte accesses, one address for each pointer, constants as immediate offsets."""
    ptx = emit_ptx(lower_kernel(parse_kernel(without_checks(ADD)), target).llvm_ir, target)
    check(ADD.replace("[[[X]]+", "{{\\[}}[[X]]+"), ptx)
    assembly = assemble(ptx, target)
    assert assembly.registers <= 32
    assert (assembly.spill_bytes, assembly.stack_bytes, assembly.warnings) == (0, 0, ())
    sass = disassemble(assembly.cubin)
    assert sass.count("LDG.E.128") == 4
    assert sass.count("STG.E.128") == 2
    assert "+0x800]" in sass


@pytest.mark.parametrize("element", list(SCALARS.values()), ids=str)
@pytest.mark.parametrize("vector", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("masked", [False, True])
def test_vectors_of_every_type(element, vector, masked) -> None:
    if vector * element.size_bytes > 16:
        return
    num_elems = 32 * vector * 2
    layout = row_layout(num_elems)
    program = Program()
    source = program.param(PointerType(element), 16)
    sink = program.param(PointerType(element), 16)
    mask = other = None
    if masked:
        limit = program.param(I32, 16)
        index = program.add(tile.Arange(0, num_elems, layout)).out
        mask = program.add(arith.Compare(index, program.splat(limit, layout), "lt")).out
        kind = TileType(element, layout.shape, layout)
        other = program.add(arith.Constant(1 if element.is_int else 1.0, kind)).out
    loaded = program.add(gpu.Load(program.pointers(source, layout), mask, other, vector)).out
    program.add(gpu.Store(program.pointers(sink, layout), loaded, None, vector))
    program.inputs.append(source)
    program.outputs.append((sink, (num_elems,)))
    dtype = np.dtype(NUMPY[element.name])
    random = np.random.default_rng(0)
    x = random.integers(0, 2 if element == I1 else 100, num_elems).astype(np.int8).astype(dtype)
    keep = num_elems - 16 if masked else num_elems
    out = program.run(x, *([keep] if masked else []))[0]
    want = x.copy()
    want[keep:] = 1
    assert np.array_equal(out.view(np.uint8), want.view(np.uint8))
    assert program.machine.loads == keep // vector
    assert program.machine.stores == num_elems // vector


def test_masked_lanes_touch_no_memory() -> None:
    """The pointers of masked lanes go far outside: the machine would refuse the access."""
    layout = row_layout(128)
    program = Program()
    value = program.param(PointerType(FP32), 16)
    limit = program.param(I32)
    index = program.add(tile.Arange(0, 128, layout)).out
    mask = program.add(arith.Compare(index, program.splat(limit, layout), "lt")).out
    pointers = program.pointers(value, layout)
    loaded = program.add(gpu.Load(pointers, mask)).out
    doubled = program.add(arith.Add(loaded, loaded)).out
    program.add(gpu.Store(pointers, doubled, mask))
    program.store(loaded)
    program.inputs.append(value)
    x = np.arange(1, 38, dtype=np.float32)
    out = program.run(x, 37)[0]
    assert np.array_equal(out, [*x, *[0.0] * 91])


def test_constant_masks_need_no_predicate() -> None:
    layout = row_layout(64)
    program = Program()
    pointers = program.pointers(program.param(PointerType(FP32)), layout)
    kind = TileType(I1, (64,), layout)
    yes, no = (program.add(arith.Constant(value, kind)).out for value in (True, False))
    loaded = program.add(gpu.Load(pointers, yes)).out
    masked_load = program.add(gpu.Load(pointers, no)).out
    program.add(gpu.Store(pointers, loaded, yes))
    program.add(gpu.Store(pointers, masked_load, no))
    text = program.llvm_ir()
    assert text.count("ld.global") == 2
    assert text.count("st.global") == 2
    assert "@$" not in text


def test_scalars_are_loaded_by_all_and_stored_by_one() -> None:
    program = Program(4)
    source = program.param(PointerType(I64), 16)
    flag = program.param(I1)
    sink = program.param(PointerType(I64), 16)
    loaded = program.add(gpu.Load(source)).out
    program.add(gpu.Store(sink, loaded, flag))
    program.inputs.append(source)
    program.outputs.append((sink, (1,)))
    assert program.run(np.array([77]), 1)[0] == 77
    assert program.machine.stores == 1
    program.run(np.array([77]), 0)
    assert program.machine.stores == 0


@pytest.mark.parametrize(
    ("cache", "eviction", "volatile", "load", "store"),
    [
        ("ca", "", False, "ld.global.ca.v4.b32", ""),
        ("cg", "", False, "ld.global.cg.v4.b32", "st.global.cg.v4.b32"),
        ("cs", "", False, "ld.global.cs.v4.b32", "st.global.cs.v4.b32"),
        ("cv", "", False, "ld.global.cv.v4.b32", ""),
        ("wb", "", False, "", "st.global.wb.v4.b32"),
        ("wt", "", False, "", "st.global.wt.v4.b32"),
        ("", "evict_normal", False, "ld.global.v4.b32", "st.global.v4.b32"),
        *(
            ("", e, False, f"ld.global.L1::{e}.L2::cache_hint.v4.b32",
             f"st.global.L1::{e}.L2::cache_hint.v4.b32")
            for e in ("evict_first", "evict_last")
        ),
        ("cg", "evict_first", False, "ld.global.cg.L2::cache_hint.v4.b32",
         "st.global.cg.L2::cache_hint.v4.b32"),
        ("", "", True, "ld.volatile.global.v4.b32", ""),
    ],
)  # fmt: skip
def test_modifiers_assemble_everywhere(cache, eviction, volatile, load, store) -> None:
    layout = row_layout(128)
    program = Program()
    pointers = program.pointers(program.param(PointerType(FP32), 16), layout)
    value = program.add(arith.Constant(1.0, TileType(FP32, (128,), layout))).out
    if load:
        value = program.add(
            gpu.Load(pointers, vector=4, cache=cache, eviction=eviction, volatile=volatile)
        ).out
    if store:
        program.add(gpu.Store(pointers, value, vector=4, cache=cache, eviction=eviction))
    text = program.llvm_ir()
    assert load in text
    assert store in text
    for target in (TARGETS["sm_80"], TARGETS["sm_90a"], TARGETS["sm_120a"]):
        assemble(emit_ptx(program.llvm_ir(target), target), target)


def test_unknown_modifiers_and_widths_are_named() -> None:
    layout = row_layout(128)
    for cache, vector, message in (
        (".zz", 1, "unknown modifiers '.zz'"),
        ("", 8, "32 bytes, at once"),
    ):
        program = Program()
        pointers = program.pointers(program.param(PointerType(FP32), 16), layout)
        program.add(gpu.Load(pointers, vector=vector, cache=cache))
        with pytest.raises(IRError, match=message):
            program.llvm_ir()


# ---- addresses --------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 5, 2**31 - 64])
@pytest.mark.parametrize("kind", [I32, SCALARS["u32"], I64])
def test_offsets_wrap_before_they_widen(start, kind) -> None:
    """`start + arange` wraps in 32 bits; the wrapped number is added to the pointer."""
    layout = row_layout(128)
    program = Program()
    scalar = program.param(kind)
    index = program.add(tile.Arange(0, 128, layout)).out
    index = program.add(arith.Cast(index, kind)).out
    index = program.add(arith.Add(program.splat(scalar, layout), index)).out
    pointer = program.splat(program.param(PointerType(FP32)), layout)
    pointers_out = program.add(arith.AddPtr(pointer, index)).out
    program.store(program.add(arith.Bitcast(pointers_out, SCALARS["u64"])).out)
    base = 1 << 40
    actual = program.run(start, base)[0]
    numbers = (np.arange(128, dtype=np.int64) + start).astype(NUMPY[kind.name])
    want = base + 4 * numbers.astype(np.int64)
    assert np.array_equal(actual, want.astype(np.uint64))


def test_offsets_too_large_for_an_immediate_are_added() -> None:
    program = Program()
    pointer = program.param(PointerType(FP64))
    far = program.add(arith.Constant(2**40, I64)).out
    near = program.add(arith.Constant(-(2**28), I64)).out
    for offset in (far, near):
        program.store(program.add(gpu.Load(program.add(arith.AddPtr(pointer, offset)).out)).out)
    text = program.llvm_ir()
    assert "[$1+0]" in text
    assert f"[$1+{-(2**31)}]" in text
    assemble(emit_ptx(text, SM_90), SM_90)


def test_row_pointers_share_their_base() -> None:
    """`x + row * stride + arange`: one address, every vector an immediate."""
    layout = row_layout(1024)
    program = Program()
    x, stride = program.param(PointerType(FP32), 16), program.param(I32)
    row = program.add(arith.Mul(program.add(tile.ProgramId(0)).out, stride)).out
    start = program.add(arith.AddPtr(x, row)).out
    value = program.add(gpu.Load(program.pointers(start, layout), vector=4)).out
    program.add(gpu.Store(program.pointers(start, layout), value, vector=4))
    text = program.llvm_ir()
    assert text.count("getelementptr") == 2
    assert [f"+{16 * i}]" in text for i in range(8)] == [True] * 8


def test_pointers_that_a_loop_moves_share_their_base() -> None:
    """A carried pointer tile costs one 64-bit register, not one for each element."""
    layout = row_layout(1024)
    program = Program()
    kind = TileType(FP32, (1024,), layout)
    start = program.pointers(program.param(PointerType(FP32), 16), layout)
    zero = program.add(arith.Constant(0.0, kind)).out
    lower, upper, step = (program.add(arith.Constant(v, I32)).out for v in (0, 4, 1))
    stride = program.add(arith.Constant(1024, TileType(I32, (1024,), layout))).out

    def body(add, args):
        loaded = add(gpu.Load(args[1], vector=4)).out
        return [add(arith.AddPtr(args[1], stride)).out, add(arith.Add(args[2], loaded)).out]

    block = program.block([I32, start.type, kind], body)
    loop = program.add(scf.For(lower, upper, step, [start, zero], block))
    program.store(loop.outs[1])
    program.inputs.append(program.body.args[0])
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    text = program.llvm_ir()
    assert text.count("phi ptr") == 1
    assert text.count("phi float") == 32
    want = np.zeros(1024, np.float32)
    for part in x.reshape(4, 1024):
        want += part
    assert np.array_equal(program.run(x)[0], want)


def test_copies_in_registers_are_loaded_once() -> None:
    layout = LinearLayout.from_columns(
        [("register", [0, 32]), ("lane", [1, 2, 4, 8, 16]), ("warp", [])], (("dim0", 6),)
    )
    program = Program()
    program.store(program.load(FP64, layout))
    x = np.arange(64.0)
    assert np.array_equal(program.run(x)[0], x)
    assert program.machine.loads == 64
    assert program.machine.stores == 64


def test_blackwell_moves_32_bytes() -> None:
    layout = row_layout(512)
    program = Program()
    pointers = program.pointers(program.param(PointerType(FP32), 32), layout)
    loaded = program.add(gpu.Load(pointers, vector=8)).out
    program.add(gpu.Store(pointers, loaded, vector=8))
    target = TARGETS["sm_100a"]
    sass = disassemble(assemble(emit_ptx(program.llvm_ir(target), target), target).cubin)
    assert "256" in sass
    with pytest.raises(IRError, match="32 bytes, at once"):
        program.llvm_ir(SM_90)


def test_stores_of_bytes_pack_into_words() -> None:
    layout = row_layout(512)
    program = Program()
    sink = program.param(PointerType(I8), 16)
    index = program.add(tile.Arange(0, 512, layout)).out
    narrow = program.add(arith.Cast(index, I8)).out
    program.add(gpu.Store(program.pointers(sink, layout), narrow, None, 16))
    program.outputs.append((sink, (512,)))
    assert np.array_equal(program.run()[0], np.arange(512).astype(np.int8))
    sass = disassemble(assemble(emit_ptx(program.llvm_ir(), SM_90), SM_90).cubin)
    assert "STG.E.128" in sass
