"""Rules based on layouts: shapes, conversions, shared memory, reductions and scans.

Layouts are random, programs run in lockstep, and results are compared with NumPy's.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aotc.backend import emit_ptx
from aotc.ir import gf2
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import arith, gpu, tile
from aotc.ir.layout import LinearLayout
from aotc.ir.types import (
    BF16,
    FP8E4NV,
    FP16,
    FP32,
    FP64,
    I1,
    I8,
    I32,
    I64,
    U8,
    U32,
    U64,
    PointerType,
    ScalarType,
    TileType,
)
from tests.backend.programs import NUMPY, SM_90, Program, row_layout

SLOW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
RANDOM = np.random.default_rng(0)


def random_array(element: ScalarType, shape: tuple[int, ...]) -> Any:
    if element == I1:
        return RANDOM.integers(0, 2, shape).astype(np.bool_)
    if element.is_float:
        return RANDOM.integers(-64, 64, shape).astype(np.float64).astype(NUMPY[element.name])
    return RANDOM.integers(-100, 100, shape).astype(NUMPY[element.name])


def outs_of(shape: tuple[int, ...]) -> tuple[tuple[str, int], ...]:
    return tuple((f"dim{axis}", extent.bit_length() - 1) for axis, extent in enumerate(shape))


@st.composite
def thread_layouts(
    draw: st.DrawFn, shape: tuple[int, ...], num_warps: int, whole_axis: int | None = None
) -> LinearLayout:
    """A layout of the whole tile, in any bits, with replicas; no warps on `whole_axis`."""
    outs = outs_of(shape)
    num_bits = sum(bits for _, bits in outs)
    low = sum(bits for _, bits in outs[whole_axis + 1 :]) if whole_axis is not None else 0
    axis_bits = outs[whole_axis][1] if whole_axis is not None else 0
    axis_mask = ((1 << axis_bits) - 1) << low
    units = list(draw(st.permutations([1 << bit for bit in range(num_bits)])))
    warp_bits = num_warps.bit_length() - 1
    warps: list[int] = []
    for _ in range(warp_bits):
        candidates = [0, *(unit for unit in units if not unit & axis_mask)]
        warps.append(draw(st.sampled_from(candidates)))
        units = [unit for unit in units if unit != warps[-1]]
    inside = units + [0] * max(0, 5 - len(units))
    inside += draw(st.lists(st.sampled_from([0, *units]), max_size=2))
    inside = list(draw(st.permutations(inside)))
    for _ in range(draw(st.integers(0, 4))):
        into, of = draw(st.tuples(*[st.integers(0, len(inside) - 1)] * 2))
        if into != of:
            inside[into] ^= inside[of]
    return LinearLayout.from_columns(
        [("register", inside[5:]), ("lane", inside[:5]), ("warp", warps)], outs
    )


SHAPES = [(64,), (256,), (8, 16), (2, 4, 32), (4, 1, 16), (1,), (16, 2)]


# ---- sources and shapes -----------------------------------------------------------------------


@given(st.data(), st.sampled_from([(128,), (8,), (1,), (1024,)]), st.sampled_from([0, 3, 4096]))
@SLOW
def test_arange_is_the_layout(data, shape, start) -> None:
    program = Program(2)
    layout = data.draw(thread_layouts(shape, 2))
    program.store(program.add(tile.Arange(start, start + shape[0], layout)).out)
    assert np.array_equal(program.run()[0], np.arange(start, start + shape[0]))


@given(st.data(), st.sampled_from(SHAPES))
@SLOW
def test_transpose_reshape_join_split(data, shape) -> None:
    program = Program(2)
    value = program.load(I32, data.draw(thread_layouts(shape, 2)))
    order = data.draw(st.permutations(range(len(shape))))
    program.store(program.add(tile.Trans(value, tuple(order))).out)
    program.store(program.add(tile.ExpandDims(value, len(shape))).out)
    doubled = program.add(arith.Add(value, value)).out
    joined = program.add(tile.Join(value, doubled)).out
    program.store(joined)
    halves = program.add(tile.Split(joined))
    program.store(halves.lhs)
    program.store(halves.rhs)
    x = random_array(I32, shape)
    trans, expanded, pair, first, second = program.run(x)
    assert np.array_equal(trans, x.transpose(order))
    assert np.array_equal(expanded, x[..., None])
    assert np.array_equal(pair, np.stack([x, 2 * x], -1))
    assert np.array_equal(first, x)
    assert np.array_equal(second, 2 * x)


@given(st.data(), st.sampled_from([(8, 16), (2, 4, 32)]))
@SLOW
def test_broadcast(data, shape) -> None:
    layout = data.draw(thread_layouts(shape, 2))
    axis = data.draw(st.integers(0, len(shape) - 1))
    narrow = (*shape[:axis], 1, *shape[axis + 1 :])
    program = Program(2)
    value = program.load(FP32, layout.broadcast_source(narrow))
    program.store(program.add(tile.Broadcast(value, shape, layout)).out)
    x = random_array(FP32, narrow)
    assert np.array_equal(program.run(x)[0], np.broadcast_to(x, shape))


def test_programs_know_their_place_in_the_grid() -> None:
    program = Program()
    out = program.param(PointerType(I32), 16)
    index = program.add(tile.ProgramId(2)).out
    for axis in (1, 0):
        extent = program.add(tile.NumPrograms(axis)).out
        index = program.add(arith.Mul(index, extent)).out
        index = program.add(arith.Add(index, program.add(tile.ProgramId(axis)).out)).out
    program.add(gpu.Store(program.add(arith.AddPtr(out, index)).out, index))
    program.outputs.append((out, (2 * 3 * 5,)))
    assert np.array_equal(program.run(grid=(5, 3, 2))[0], np.arange(30))


@pytest.mark.parametrize(
    ("value", "element"), [(2**64 - 1, U64), (-(2**63), I64), (2**32 - 1, U32), (-1, I8)], ids=str
)
def test_extreme_constants(value, element) -> None:
    program = Program()
    kind = TileType(element, (32,), row_layout(32))
    constant = program.add(arith.Constant(value, kind)).out
    program.store(constant)
    program.store(program.add(arith.Add(constant, program.load(element, row_layout(32)))).out)
    first, second = program.run(np.zeros(32, NUMPY[element.name]))
    assert int(first[5]) == value
    assert int(second[5]) == value
    emit_ptx(program.llvm_ir(), SM_90)


# ---- conversions ------------------------------------------------------------------------------


@pytest.mark.parametrize(("axis", "count"), [(0, 1), (0, 2), (0, 4), (1, 2)])
def test_parts_of_a_tile_in_another_order(axis: int, count: int) -> None:
    """A tile is cut, and put together from its last part to its first."""
    layout = LinearLayout(
        {
            "register": [(0, 1), (0, 0), (8, 0), (0, 8), (16, 0)],
            "lane": [(1, 0), (2, 0), (0, 2), (0, 4), (4, 0)],
            "warp": [(0, 0)],
        },
        (32, 16),
    )
    data = RANDOM.integers(-99, 99, layout.shape).astype(np.int32)
    pieces = np.split(data, count, axis)
    program = Program(2)
    value = program.load(I32, layout)
    starts = [[0, 0] for _ in pieces]
    for number, start in enumerate(starts):
        start[axis] = number * pieces[0].shape[axis]
    parts = [program.add(gpu.Extract(value, tuple(start), pieces[0].shape)).out for start in starts]
    program.store(program.add(gpu.Concat(parts[::-1], axis, layout)).out)
    (out,) = program.run(data)
    assert (out == np.concatenate(pieces[::-1], axis)).all()


def test_parts_of_another_layout_are_refused() -> None:
    program = Program(1)
    value = program.load(I32, row_layout(64))
    with pytest.raises(IRError, match="no parts of"):
        gpu.Concat([value, value], 0, row_layout(128))
    with pytest.raises(IRError, match="no parts"):
        gpu.Concat([], 0, row_layout(128))


def test_convert_renames_registers() -> None:
    source = row_layout(128)
    permuted = source.with_columns("register", [2, 0, 1, 3])
    program = Program()
    program.store(program.add(gpu.Convert(program.load(I32, source), permuted)).out)
    x = random_array(I32, (128,))
    assert np.array_equal(program.run(x)[0], x)


def test_convert_between_threads_is_refused() -> None:
    source = row_layout(64)
    permuted = source.with_columns("lane", reversed(source.columns("lane")))
    program = Program()
    program.store(program.add(gpu.Convert(program.load(I32, source), permuted)).out)
    with pytest.raises(IRError, match="moves data between threads"):
        program.llvm_ir()


@given(st.data(), st.sampled_from(SHAPES), st.sampled_from([I1, I8, BF16, FP32, FP64]))
@SLOW
def test_through_shared_memory(data, shape, element) -> None:
    """Any layout to any other through an arbitrary bijective buffer, one element at a time."""
    num_bits = sum(bits for _, bits in outs_of(shape))
    offsets = list(data.draw(st.permutations([1 << bit for bit in range(num_bits)])))
    for _ in range(data.draw(st.integers(0, num_bits))):
        into, of = data.draw(st.tuples(*[st.integers(0, num_bits - 1)] * 2))
        if into != of:
            offsets[into] ^= offsets[of]
    buffer_layout = LinearLayout.from_columns([("offset", offsets)], outs_of(shape))
    program = Program(4)
    value = program.load(element, data.draw(thread_layouts(shape, 4)))
    buffer = program.add(gpu.SharedAlloc(element, shape, buffer_layout, offset_bytes=1040)).out
    program.add(gpu.SharedStore(value, buffer))
    program.add(gpu.Barrier())
    program.store(program.add(gpu.SharedLoad(buffer, data.draw(thread_layouts(shape, 4)))).out)
    x = random_array(element, shape)
    assert np.array_equal(program.run(x)[0], x)


@pytest.mark.parametrize("element", [I1, I8, FP16, FP32, FP64], ids=str)
@pytest.mark.parametrize("vector", [2, 4, 8, 16])
def test_shared_vectors(element, vector) -> None:
    """Vectors go in memory order, also when registers lie in another."""
    if vector * element.size_bytes > 16:
        return
    layout = row_layout(1024)
    shuffled = layout.with_columns("register", reversed(layout.columns("register")))
    linear = LinearLayout.from_columns([("offset", [1 << b for b in range(10)])], (("dim0", 10),))
    program = Program()
    value = program.load(element, shuffled)
    buffer = program.add(gpu.SharedAlloc(element, (1024,), linear, offset_bytes=16)).out
    program.add(gpu.SharedStore(value, buffer, vector=vector))
    program.add(gpu.Barrier())
    program.store(program.add(gpu.SharedLoad(buffer, layout, vector=vector)).out)
    x = random_array(element, (1024,))
    assert np.array_equal(program.run(x)[0], x)
    bits = min(32, 8 * vector * element.size_bytes) if element != FP64 else 64
    count = 8 * vector * element.size_bytes // bits
    name = f".v{count}.b{bits}" if count > 1 else f".b{bits}"
    assert f"st.shared{name} " in program.llvm_ir()


@pytest.mark.parametrize("element", [U8, I8, FP8E4NV], ids=str)
@pytest.mark.parametrize(
    ("vector", "lanes", "registers"),
    [
        (1, (1, 2, 128, 256, 512), (4, 8, 16, 32, 64)),
        (1, (2, 512, 256, 1, 128), (64, 32, 16, 8, 4)),
        (2, (2, 64, 128, 256, 512), (1, 4, 8, 16, 32)),
        (2, (64, 128, 256, 512, 2), (4, 8, 1, 16, 32)),
    ],
)
@pytest.mark.parametrize("swizzle", [0, 16, 48])
def test_neighbours_that_share_words_load_them_whole(
    element, vector, lanes, registers, swizzle
) -> None:
    """A lane has one or two bytes of each word, as in the fragments of dots: it loads 16 bytes, not one."""
    outs = (("dim0", 10),)
    layout = LinearLayout.from_columns([("register", registers), ("lane", lanes)], outs)
    offsets = [1 << bit for bit in range(10)]
    offsets[7] ^= swizzle
    buffer_layout = LinearLayout.from_columns([("offset", offsets)], outs)
    program = Program()
    value = program.load(element, row_layout(1024))
    buffer = program.add(gpu.SharedAlloc(element, (1024,), buffer_layout, offset_bytes=16)).out
    program.add(gpu.SharedStore(value, buffer))
    program.add(gpu.Barrier())
    program.store(program.add(gpu.SharedLoad(buffer, layout, vector=vector)).out)
    x = random_array(element, (1024,))
    assert np.array_equal(program.run(x)[0], x)
    text = program.llvm_ir()
    assert "ld.shared.v4.b32" in text
    assert "ld.shared.b8" not in text
    assert "ld.shared.b16" not in text


@pytest.mark.parametrize(
    ("lanes", "registers"),
    [
        ((4, 8, 16, 32, 64), (1, 2, 128, 256, 512)),  # words are those of one lane
        ((1, 2, 4, 8, 16), (32, 64, 128, 256, 512)),  # one word at each place
        ((1, 3, 128, 256, 512), (4, 8, 16, 32, 64)),  # bytes of a word in another order
    ],
)
def test_other_bytes_are_loaded_by_themselves(lanes, registers) -> None:
    outs = (("dim0", 10),)
    layout = LinearLayout.from_columns([("register", registers), ("lane", lanes)], outs)
    linear = LinearLayout.from_columns([("offset", [1 << bit for bit in range(10)])], outs)
    program = Program()
    value = program.load(I8, row_layout(1024))
    buffer = program.add(gpu.SharedAlloc(I8, (1024,), linear, offset_bytes=16)).out
    program.add(gpu.SharedStore(value, buffer))
    program.add(gpu.Barrier())
    program.store(program.add(gpu.SharedLoad(buffer, layout)).out)
    x = random_array(I8, (1024,))
    assert np.array_equal(program.run(x)[0], x)
    assert "ld.shared.v4.b32" not in program.llvm_ir()


def test_pointers_go_through_shared_memory_as_numbers() -> None:
    source, target = row_layout(128), row_layout(128).with_columns("register", [64, 1])
    target = target.with_columns("lane", [2, 4, 8, 16, 32])
    linear = LinearLayout.from_columns([("offset", [1 << b for b in range(7)])], (("dim0", 7),))
    program = Program()
    pointers = program.pointers(program.param(PointerType(FP32), 16), source)
    buffer = program.add(gpu.SharedAlloc(U64, (128,), linear, offset_bytes=0)).out
    program.add(gpu.SharedStore(pointers, buffer, vector=2))
    program.add(gpu.Barrier())
    loaded = program.add(gpu.SharedLoad(buffer, target, element=pointers.type.element)).out
    program.store(program.add(arith.Bitcast(loaded, U64)).out)
    want = (1 << 40) + 4 * np.arange(128, dtype=np.uint64)
    assert np.array_equal(program.run(1 << 40)[0], want)


def test_memory_accesses_keep_their_order_around_barriers() -> None:
    layout = row_layout(64)
    linear = LinearLayout.from_columns([("offset", [1 << b for b in range(6)])], (("dim0", 6),))
    program = Program()
    value = program.load(FP32, layout)
    buffer = program.add(gpu.SharedAlloc(FP32, (64,), linear, offset_bytes=0)).out
    for _ in range(2):
        program.add(gpu.SharedStore(value, buffer, vector=2))
        program.add(gpu.Barrier())
        value = program.add(gpu.SharedLoad(buffer, layout, vector=2)).out
        program.add(gpu.Barrier())
    program.store(value)
    ptx = emit_ptx(program.llvm_ir(), SM_90)
    names = re.findall(r"(ld\.shared|st\.shared|st\.global|bar(?:rier)?\S*sync)", ptx)
    trip = ["st.shared", "bar", "ld.shared", "bar"]
    assert [name if "." in name and "bar" not in name else "bar" for name in names] == [
        *trip,
        *trip,
        "st.global",
        "st.global",
    ]


def test_shared_vector_across_threads_is_refused() -> None:
    layout = row_layout(64)
    swapped = layout.with_columns("register", [32]).with_columns("lane", [1, 2, 4, 8, 16])
    linear = LinearLayout.from_columns([("offset", [1 << b for b in range(6)])], (("dim0", 6),))
    program = Program()
    value = program.load(FP32, swapped)
    buffer = program.add(gpu.SharedAlloc(FP32, (64,), linear, offset_bytes=0)).out
    program.add(gpu.SharedStore(value, buffer, vector=2))
    with pytest.raises(IRError, match="at misaligned offsets"):
        program.llvm_ir()


# ---- reductions -------------------------------------------------------------------------------


@given(st.data(), st.sampled_from(SHAPES), st.sampled_from([I32, U32, FP32, I64, FP16, FP64]))
@SLOW
def test_reduce_sums_every_element_once(data, shape, element) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    layout = data.draw(thread_layouts(shape, 4, axis))
    program = Program(4)
    combine = program.block(
        [element, element], lambda add, args: [add(arith.Add(args[0], args[1])).out]
    )
    reduced = program.add(gpu.Reduce([program.load(element, layout)], axis, combine))
    program.store(reduced.outs[0])
    x = random_array(element, shape)
    want = x.astype(np.float64 if element.is_float else np.int64).sum(axis)
    assert np.array_equal(program.run(x)[0], want.astype(x.dtype))


def test_few_partial_results_of_a_reduction_wait() -> None:
    program = Program()
    combine = program.block([FP32] * 2, lambda add, args: [add(arith.Add(*args)).out])
    value = program.load(FP32, row_layout(32 * 64))
    program.store(program.add(gpu.Reduce([value], 0, combine)).outs[0])
    sums = re.findall(r"(%\w+) = fadd contract float (%\w+), (%\w+)", program.llvm_ir())[:63]
    waiting: set[str] = set()
    most = 0
    for name, *operands in sums:
        waiting = waiting - set(operands) | {name}
        most = max(most, len(waiting))
    assert len(waiting) == 1, "all elements are summed in the thread first"
    assert most == 6


@given(st.data(), st.sampled_from([(64,), (8, 16), (2, 4, 32)]))
@SLOW
def test_argmax_reduces_pairs(data, shape) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    layout = data.draw(thread_layouts(shape, 2, axis))
    program = Program(2)

    def larger(add: Any, args: Any) -> list[Any]:
        greater = add(arith.Compare(args[0], args[2], "gt")).out
        equal = add(arith.Compare(args[0], args[2], "eq")).out
        earlier = add(arith.Compare(args[1], args[3], "lt")).out
        wins = add(arith.Or(greater, add(arith.And(equal, earlier)).out)).out
        return [add(arith.Select(wins, args[i], args[i + 2])).out for i in (0, 1)]

    combine = program.block([FP32, I32] * 2, larger)
    inputs = [program.load(FP32, layout), program.load(I32, layout)]
    for out in program.add(gpu.Reduce(inputs, axis, combine)).outs:
        program.store(out)
    x = random_array(FP32, shape)
    index = np.broadcast_to(
        np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))]), shape
    )
    best, where = program.run(x, index.astype(np.int32))
    assert np.array_equal(best, x.max(axis))
    assert np.array_equal(where, x.argmax(axis))


@pytest.mark.parametrize(
    ("cls", "want"),
    [
        (arith.Add, np.add), (arith.Min, np.minimum), (arith.Max, np.maximum),
        (arith.And, np.bitwise_and), (arith.Or, np.bitwise_or), (arith.Xor, np.bitwise_xor),
    ],
)  # fmt: skip
@pytest.mark.parametrize("element", [I32, U32], ids=str)
def test_whole_warps_of_integers_use_redux(cls, want, element) -> None:
    program = Program()
    combine = program.block([element] * 2, lambda add, args: [add(cls(*args)).out])
    value = program.load(element, row_layout(128))
    program.store(program.add(gpu.Reduce([value], 0, combine)).outs[0])
    x = random_array(element, (128,))
    assert program.run(x)[0] == want.reduce(x).astype(x.dtype)
    assert "redux.sync" in program.llvm_ir()
    assert "shfl" not in program.llvm_ir()


def test_part_of_a_warp_does_not_use_redux() -> None:
    program = Program()
    combine = program.block([I32] * 2, lambda add, args: [add(arith.Add(*args)).out])
    layout = row_layout(64).reshape((2, 32))
    program.store(program.add(gpu.Reduce([program.load(I32, layout)], 1, combine)).outs[0])
    x = random_array(I32, (2, 32))
    assert np.array_equal(program.run(x)[0], x.sum(1))
    assert "redux" not in program.llvm_ir()


@pytest.mark.parametrize("negative", [(), (5,), (64, 70), (0, 255), (191,)])
def test_each_warp_is_asked_by_itself_whether_all_is_true(negative) -> None:
    program = Program(4)
    layout = row_layout(256, 4)
    value = program.load(FP32, layout)
    zero = program.add(arith.Constant(0.0, value.type)).out
    holds = program.add(gpu.WarpAll(program.add(arith.Compare(value, zero, "ge")).out)).out
    chosen = program.add(arith.Select(program.splat(holds, layout), value, zero)).out
    program.store(chosen)
    x = np.arange(1, 257, dtype=np.float32)
    x[list(negative)] *= -1
    # Where the layout has the bits of a warp's index.
    warps = np.zeros(256, np.int64)
    for bit, column in enumerate(layout.columns("warp")):
        warps |= (np.arange(256) & column != 0) << bit
    clear = [bool((x[warps == warp] >= 0).all()) for warp in range(4)]
    assert np.array_equal(program.run(x)[0], np.where(np.array(clear)[warps], x, 0.0))


def test_reduction_across_warps_is_refused() -> None:
    program = Program(2)
    combine = program.block([I32] * 2, lambda add, args: [add(arith.Add(*args)).out])
    program.add(gpu.Reduce([program.load(I32, row_layout(256, 2))], 0, combine))
    with pytest.raises(IRError, match="not held whole by every warp"):
        program.llvm_ir()


# ---- scans ------------------------------------------------------------------------------------


@st.composite
def scan_layouts(draw: st.DrawFn, shape: tuple[int, ...], axis: int) -> LinearLayout:
    """Axis: low bits on registers, high ones on ascending lanes; everything else anywhere."""
    outs = outs_of(shape)
    low = sum(bits for _, bits in outs[axis + 1 :])
    along = [1 << (low + bit) for bit in range(outs[axis][1])]
    rest = [1 << b for b in range(sum(b for _, b in outs)) if 1 << b not in along]
    on_lanes = draw(st.integers(max(0, len(along) - 4), min(5, len(along))))
    lanes = along[len(along) - on_lanes :]
    registers = list(draw(st.permutations(along[: len(along) - on_lanes])))
    rest = list(draw(st.permutations([*rest, 0, 0, 0, 0, 0])))
    fill, left = rest[: 5 - on_lanes], rest[5 - on_lanes :]
    where = draw(st.permutations([True] * on_lanes + [False] * (5 - on_lanes)))
    ascending, remaining = iter(lanes), iter(fill)
    lane_columns = [next(ascending) if is_axis else next(remaining) for is_axis in where]
    warps, left = left[:1], left[1:]
    registers = list(draw(st.permutations([*registers, *(unit for unit in left if unit)])))
    return LinearLayout.from_columns(
        [("register", registers), ("lane", lane_columns), ("warp", warps)], outs
    )


@given(st.data(), st.sampled_from([(64,), (8, 16), (2, 4, 32), (1,), (2,)]), *[st.booleans()] * 2)
@SLOW
def test_scan_keeps_the_order(data, shape, reverse, exclusive) -> None:
    """The combination is not commutative, and an exclusive scan leaves the first element alone."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    layout = data.draw(scan_layouts(shape, axis))
    program = Program(2)

    def affine(add: Any, args: Any) -> list[Any]:
        # Composition of x -> a*x + b: associative, order matters.
        a = add(arith.Mul(args[0], args[2])).out
        b = add(arith.Add(add(arith.Mul(args[1], args[2])).out, args[3])).out
        return [a, b]

    inputs = [program.load(I32, layout), program.load(I32, layout)]
    combine = program.block([I32] * 4, affine)
    scan = program.add(gpu.Scan(inputs, axis, combine, reverse, exclusive))
    for out in scan.outs:
        program.store(out)
    a, b = random_array(I32, shape), random_array(I32, shape)
    arrays = [np.moveaxis(array, axis, 0).astype(object) for array in (a, b)]
    if reverse:
        arrays = [array[::-1] for array in arrays]
    want_a, want_b = [arrays[0][0]], [arrays[1][0]]
    for x, y in zip(arrays[0][1:], arrays[1][1:], strict=True):
        want_b.append(want_b[-1] * x + y)
        want_a.append(want_a[-1] * x)
    if exclusive:
        want_a, want_b = ([want[0], *want[:-1]] for want in (want_a, want_b))
    for actual, want in zip(program.run(a, b), (want_a, want_b), strict=True):
        array = np.array(want, dtype=object)  # of integers beyond 64 bits NumPy makes floats
        array = np.moveaxis(array[::-1] if reverse else array, 0, axis)
        wrapped = (array + 2**31) % 2**32 - 2**31
        assert np.array_equal(actual, wrapped.astype(np.int32))


def test_scan_against_the_order_of_lanes_is_refused() -> None:
    program = Program()
    layout = row_layout(32)
    layout = layout.with_columns("lane", reversed(layout.columns("lane")))
    combine = program.block([I32] * 2, lambda add, args: [add(arith.Add(*args)).out])
    program.add(gpu.Scan([program.load(I32, layout)], 0, combine))
    with pytest.raises(IRError, match="not in order"):
        program.llvm_ir()


def test_copies_are_stored_once() -> None:
    """A tile of 8 elements on 64 threads with broadcast registers: 8 stores, not 128."""
    layout = LinearLayout.from_columns(
        [("register", [0]), ("lane", [1, 0, 2, 0, 3]), ("warp", [4])], (("dim0", 3),)
    )
    assert gf2.rank(layout.all_columns()) == 3
    program = Program(2)
    program.store(program.add(tile.Arange(0, 8, layout)).out)
    assert np.array_equal(program.run()[0], np.arange(8))
    assert program.machine.stores == 8
