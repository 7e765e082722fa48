"""Rules for control flow: loops, branches, assertions, hints."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from aotc.backend import assemble, disassemble, emit_ptx
from aotc.ir.core import Block
from aotc.ir.dialects import arith, gpu, opaque, scf, tile
from aotc.ir.rewrite import Builder
from aotc.ir.types import BF16, FP16, FP32, I1, I8, I32, I64, SCALARS, PointerType, TileType
from aotc.target import TARGETS
from tests.backend.programs import NUMPY, SM_90, Program, row_layout

LAYOUT = row_layout(64)
TILE = TileType(I32, (64,), LAYOUT)


def constant(program: Program, value: int, kind: Any = I32) -> Any:
    return program.add(arith.Constant(value, kind)).out


def sum_loop(unroll: int = 0, kind: Any = I32) -> Program:
    """Return a program summing a scalar and a tile over a loop with bounds as arguments."""
    program = Program()
    bounds = [program.param(kind) for _ in range(3)]
    inits = [constant(program, 0, kind), program.load(I32, LAYOUT)]

    def body(add: Any, args: Any) -> list[Any]:
        doubled = add(arith.Add(args[2], args[2])).out
        return [add(arith.Add(args[1], args[0])).out, doubled]

    block = program.block([kind, kind, TILE], body)
    for out in program.add(scf.For(*bounds, inits, block, unroll=unroll)).outs:
        program.store(out)
    return program


@pytest.mark.parametrize(
    "bounds", [(0, 5, 1), (3, 4, 1), (0, 0, 1), (5, 3, 1), (-7, 8, 3), (0, 9, 4)]
)
@pytest.mark.parametrize("kind", [I32, I64])
def test_for(bounds, kind) -> None:
    x = np.arange(64, dtype=np.int32)
    total, doubled = sum_loop(kind=kind).run(*bounds, x)
    assert total == sum(range(*bounds))
    assert np.array_equal(doubled, x << len(range(*bounds)))


def test_unsigned_bounds_compare_unsigned() -> None:
    start, end = 2**31 - 1, 2**31 + 2
    total, _ = sum_loop(kind=SCALARS["u32"]).run(start, end, 1, np.zeros(64, np.int32))
    assert total == sum(range(start, end)) % 2**32


@pytest.mark.parametrize(
    ("kind", "bounds"),
    [
        (I32, (0, 2**31 - 1, 2**30)),
        (I32, (2**31 - 3, 2**31 - 1, 1)),
        (I32, (-(2**31), -(2**31) + 3, 2**20)),
        (SCALARS["u32"], (0, 5, 16)),
        (SCALARS["u32"], (2**32 - 9, 2**32 - 1, 4)),
    ],
)
def test_bounds_at_the_ends_of_the_type_do_not_wrap(kind, bounds) -> None:
    total, doubled = sum_loop(kind=kind).run(*bounds, np.ones(64, np.int32))
    assert int(total) % 2**32 == sum(range(*bounds)) % 2**32
    assert doubled[0] == 1 << len(range(*bounds))
    emit_ptx(sum_loop(kind=kind).llvm_ir(), SM_90)


def test_constant_bounds_need_no_guard() -> None:
    program = Program()
    lower, upper, step = (constant(program, value) for value in (0, 8, 2))
    block = program.block([I32, I32], lambda add, args: [add(arith.Add(args[1], args[0])).out])
    program.store(program.add(scf.For(lower, upper, step, [lower], block)).outs[0])
    text = program.llvm_ir()
    assert text.count("br i1") == 1
    assert program.run()[0] == 12


@pytest.mark.parametrize(("unroll", "hint"), [(1, "nounroll"), (0, "")])
def test_unroll_hint_reaches_ptx(unroll, hint) -> None:
    ptx = emit_ptx(sum_loop(unroll).llvm_ir(), SM_90)
    assert (".pragma" in ptx) == bool(hint)
    assert hint in ptx


def test_the_index_is_known_to_be_a_multiple_of_the_step() -> None:
    """`x + i + arange` inside a loop over blocks: one widened index for all vectors."""
    layout = row_layout(1024)
    program = Program()
    x, n = program.param(PointerType(FP32), 16), program.param(I32)
    zero = program.add(arith.Constant(0.0, TileType(FP32, (1024,), layout))).out

    def body(add: Any, args: Any) -> list[Any]:
        index = add(tile.Arange(0, 1024, layout)).out
        index = add(arith.Add(add(tile.Splat(args[0], (1024,), layout)).out, index)).out
        pointers = add(arith.AddPtr(add(tile.Splat(x, (1024,), layout)).out, index)).out
        return [add(arith.Add(args[1], add(gpu.Load(pointers, vector=4)).out)).out]

    block = program.block([I32, zero.type], body)
    bounds = [constant(program, 0), n, constant(program, 1024)]
    program.store(program.add(scf.For(*bounds, [zero], block)).outs[0])
    text = program.llvm_ir()
    assert text.count("zext nneg") == 2  # in the loop, and for the store after it
    program.inputs.append(x)
    data = np.random.default_rng(0).standard_normal(2048).astype(np.float32)
    assert np.array_equal(program.run(data, 2048)[0], data[:1024] + data[1024:])


def test_nested_loops_with_pointers_that_do_not_keep_their_shape() -> None:
    """Pointers without a common base are carried register by register."""
    layout = row_layout(128)
    program = Program()
    source = program.param(PointerType(I32), 16)
    pointers = program.pointers(source, layout)
    lower, upper, step = (constant(program, value) for value in (0, 2, 1))

    def outer(add: Any, args: Any) -> list[Any]:
        loaded = add(gpu.Load(args[1])).out  # the offset differs from register to register

        def inner(add: Any, args: Any) -> list[Any]:
            return [add(arith.Add(args[1], loaded)).out]

        zeros = add(arith.Constant(0, TileType(I32, (128,), layout))).out
        block = program.block([I32, zeros.type], inner)
        offset = add(scf.For(lower, upper, step, [zeros], block)).outs[0]
        return [add(arith.AddPtr(args[1], offset)).out]

    block = program.block([I32, pointers.type], outer)
    loop_pointers = program.add(scf.For(lower, upper, step, [pointers], block)).outs[0]
    program.store(program.add(gpu.Load(loop_pointers)).out)
    program.inputs.append(source)
    x = np.zeros(512, np.int32)
    x[:128] = np.arange(128) % 3
    want = []
    for start in range(128):
        address = start
        for _ in range(2):
            address += 2 * x[address]
        want.append(x[address])
    assert np.array_equal(program.run(x)[0], want)


def collatz() -> Program:
    program = Program()
    start = program.param(I32)
    zero, unit, two, three = (constant(program, value) for value in range(4))
    before = Block([I32, I32])
    unfinished = Builder(before)(arith.Compare(before.args[0], unit, "ne")).out
    steps = Builder(before)(arith.Add(before.args[1], unit)).out
    Builder(before)(scf.Condition(unfinished, [before.args[0], steps]))

    def after(add: Any, args: Any) -> list[Any]:
        odd = add(arith.Compare(add(arith.Rem(args[0], two)).out, unit, "eq")).out
        then = program.block([], lambda add, _: [
            add(arith.Add(add(arith.Mul(args[0], three)).out, unit)).out
        ])  # fmt: skip
        orelse = program.block([], lambda add, _: [add(arith.Div(args[0], two)).out])
        return [add(scf.If(odd, then, orelse)).outs[0], args[1]]

    loop = program.add(scf.While([start, zero], before, program.block([I32, I32], after)))
    for out in loop.outs:
        program.store(out)
    return program


@pytest.mark.parametrize("start", [1, 2, 7, 27])
def test_while_and_if(start) -> None:
    steps, n = 1, start
    while n != 1:
        steps, n = steps + 1, 3 * n + 1 if n % 2 else n // 2
    last, counted = collatz().run(start)
    assert (last, counted) == (1, steps)


def test_values_of_one_arm_are_not_reused_in_the_other() -> None:
    program = Program()
    flag, x = program.param(I1), program.param(I32)
    arms = [program.block([], lambda add, _: [add(arith.Mul(x, x)).out, x]) for _ in range(2)]
    branch = program.add(scf.If(flag, *arms))
    program.store(program.add(arith.Mul(x, x)).out)
    for out in branch.outs:
        program.store(out)
    assert [int(a) for a in program.run(1, 6)] == [36, 36, 6]
    emit_ptx(program.llvm_ir(), SM_90)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_branch_passes_on_packed_elements_as_words(is_first: bool) -> None:
    program = Program()
    flag = program.param(I1)
    loaded = [program.load(FP32, LAYOUT) for _ in range(2)]
    tiles = [program.add(arith.Cast(loaded_tile, FP16)).out for loaded_tile in loaded]
    arms = [program.block([], lambda _, __, x=tile: [x, flag]) for tile in tiles]
    for out in program.add(scf.If(flag, *arms)).outs:
        program.store(out)
    text = program.llvm_ir()
    assert "phi i32" in text
    assert "phi half" not in text
    arrays = [np.arange(64, dtype=np.float32) + start for start in (0, 1000)]
    chosen, _ = program.run(int(is_first), *arrays)
    np.testing.assert_array_equal(chosen, arrays[not is_first])


def test_assert_passes_or_stops() -> None:
    program = Program()
    limit = program.param(I32)
    index = program.add(tile.Arange(0, 64, LAYOUT)).out
    inside = program.add(arith.Compare(index, program.splat(limit, LAYOUT), "lt")).out
    program.add(tile.Assert(inside, 'index "too" large: ü'))
    program.store(index)
    assert program.run(64)[0][63] == 63
    with pytest.raises(AssertionError, match=r"not uniform|failed"):
        program.run(63)
    for target in (TARGETS["sm_80"], SM_90):
        assembly = assemble(emit_ptx(program.llvm_ir(target), target), target)
        assert "__assertfail" in disassemble(assembly.cubin)


def test_assumptions_and_barriers_are_written() -> None:
    program = Program(2)
    n = program.param(I32)
    positive = program.add(arith.Compare(n, constant(program, 0), "gt")).out
    program.add(tile.Assume(positive))
    program.add(tile.Barrier())
    program.add(gpu.Barrier())
    text = program.llvm_ir()
    assert "call void @llvm.assume(i1 %" in text
    ptx = emit_ptx(text, SM_90)
    assert ptx.count("bar.sync") + ptx.count("barrier.sync") == 2


@pytest.mark.parametrize("kind", [I8, FP16, BF16, FP32, I64], ids=str)
@pytest.mark.parametrize("size", [32, 64, 256])
def test_an_opaque_tile_is_the_same_but_not_known_to_be(kind: Any, size: int) -> None:
    program = Program()
    value = program.load(kind, row_layout(size))
    after = program.param(FP32)
    program.store(program.add(opaque.Opaque(value, after)).out)
    random = np.random.default_rng(size).integers(-99, 99, size)
    data = random.astype(NUMPY[kind.name])
    np.testing.assert_array_equal(program.run(data, -1.5)[0], data)
    sass = disassemble(assemble(emit_ptx(program.llvm_ir(), SM_90), SM_90).cubin)
    assert len(re.findall(r"SR_VIRTUALSMID", sass)) == 1
    words = max(1, size // 32 * min(kind.bits, 32) // 32)
    assert len(re.findall(r"\bLOP3\b", sass)) >= words
