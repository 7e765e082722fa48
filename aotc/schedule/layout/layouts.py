"""Named constructors of layouts: blocked tiles, tensor cores and swizzled memory.

Each is a function returning a plain `LinearLayout`; nothing downstream can tell, or needs to know,
its constructor. Distributed layouts have the inputs `register`, `lane` (5 bits) and `warp`; shared
ones the input `offset`, in elements.

Invariant: every element of the tile is held somewhere; a distributed layout never spends a register
on a copy (lanes and warps may hold copies when the tile is smaller than they are).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from aotc.ir.diagnostics import IRError
from aotc.ir.layout import LinearLayout, log2_exact

WARP_LANES = 32
WARPGROUP_WARPS = 4
_MAX_WGMMA_N = 256
_MANY_COPIES = 32  # registers of a thread
_SWIZZLE_CHUNK_BYTES = 16
_SWIZZLE_ROWS_LOG2 = 3

# A bit of a coordinate: (axis, bit).
_CoordBit = tuple[int, int]


def _from_coord_bits(
    shape: Sequence[int],
    placed: Mapping[str, Sequence[_CoordBit | None]],
    repeat_order: Sequence[int],
) -> LinearLayout:
    """Give each input bit its coordinate bit; repeat in registers over the rest of the tile.

    A coordinate bit the tile does not have, or None, broadcasts a lane or warp bit and drops a
    register bit. Unassigned bits become registers, the axes in `repeat_order`.
    """
    bits = [log2_exact(extent) for extent in shape]
    shifts = [sum(bits[axis + 1 :]) for axis in range(len(bits))]
    columns: dict[str, list[int]] = {"register": [], "lane": [], "warp": []}
    placed_bits: list[_CoordBit] = []
    for name, coord_bits in placed.items():
        for coord_bit in coord_bits:
            if coord_bit is not None and coord_bit[1] < bits[coord_bit[0]]:
                placed_bits.append(coord_bit)
                columns[name].append(1 << (shifts[coord_bit[0]] + coord_bit[1]))
            elif name != "register":
                columns[name].append(0)
    for axis in repeat_order:
        for bit in range(bits[axis]):
            if (axis, bit) not in placed_bits:
                columns["register"].append(1 << (shifts[axis] + bit))
    outs = tuple((f"dim{axis}", count) for axis, count in enumerate(bits))
    return LinearLayout.from_columns(columns.items(), outs)


def _minor_first(rank: int) -> tuple[int, ...]:
    return tuple(range(rank - 1, -1, -1))


# ---- threads over a tile ----------------------------------------------------------------------


@lru_cache(maxsize=1024)
def blocked(
    shape: tuple[int, ...],
    elems_per_thread: tuple[int, ...],
    threads_per_warp: tuple[int, ...],
    warps: tuple[int, ...],
    order: tuple[int, ...],
) -> LinearLayout:
    """Return the layout with a box of neighbours per thread and boxes tiled by warps.

    All tuples have one entry an axis; `order` lists the axes from the fastest. Where the tile is
    smaller than all the threads, lanes and warps hold copies; where it is larger, the pattern
    repeats in further registers, the fastest axis first.

    Raises: IRError when a count is no power of two or `threads_per_warp` does not make a warp.
    Source: Triton's BlockedEncodingAttr, less its registers with copies.
    """
    rank = len(shape)
    if not len(elems_per_thread) == len(threads_per_warp) == len(warps) == rank:
        raise IRError(f"blocked layout of {shape} needs {rank} entries an argument")
    if sorted(order) != list(range(rank)):
        raise IRError(f"order {order} does not permute the axes of {shape}")
    if sum(map(log2_exact, threads_per_warp)) != log2_exact(WARP_LANES) and rank:
        raise IRError(f"threads_per_warp {threads_per_warp} is not {WARP_LANES} threads")
    bits_used = [0] * rank
    placed: dict[str, list[_CoordBit | None]] = {}
    counts = {"register": elems_per_thread, "lane": threads_per_warp, "warp": warps}
    for name, sizes in counts.items():
        placed[name] = []
        for axis in order:
            for _ in range(log2_exact(sizes[axis])):
                placed[name].append((axis, bits_used[axis]))
                bits_used[axis] += 1
    return _from_coord_bits(shape, placed, order)


def blocked_for(
    shape: tuple[int, ...],
    elems_per_thread: tuple[int, ...],
    num_warps: int,
    order: tuple[int, ...] | None = None,
) -> LinearLayout:
    """Return a blocked layout with lanes, then warps, on the fastest axes first.

    Threads an axis cannot use go to the next; the slowest takes the rest. `order` defaults to the
    last axis first.

    Source: Triton's BlockedEncodingAttr builder from a shape.
    """
    rank = len(shape)
    order = _minor_first(rank) if order is None else order
    if not rank:
        return replicated(shape, num_warps)
    lanes, warps_left = WARP_LANES, num_warps
    threads_left = lanes * num_warps
    threads = [1] * rank
    warps = [1] * rank
    for axis in order[:-1]:
        num_threads = max(1, min(threads_left, shape[axis] // elems_per_thread[axis]))
        threads[axis] = min(num_threads, lanes)
        warps[axis] = max(1, min(num_threads // threads[axis], warps_left))
        lanes //= threads[axis]
        warps_left //= warps[axis]
        threads_left //= num_threads
    threads[order[-1]] = lanes
    warps[order[-1]] = warps_left
    return blocked(shape, elems_per_thread, tuple(threads), tuple(warps), order)


def default_blocked(shape: tuple[int, ...], num_warps: int) -> LinearLayout:
    """Return the row-major blocked layout of one element a thread, repeated over the tile."""
    return blocked_for(shape, (1,) * len(shape), num_warps)


def replicated(shape: tuple[int, ...], num_warps: int) -> LinearLayout:
    """Return the layout with the whole tile in every thread, row-major in registers."""
    placed: dict[str, list[_CoordBit | None]] = {
        "lane": [None] * log2_exact(WARP_LANES),
        "warp": [None] * log2_exact(num_warps),
    }
    return _from_coord_bits(shape, placed, _minor_first(len(shape)))


def rows_in_registers(shape: tuple[int, ...], num_warps: int) -> LinearLayout:
    """Return a layout with the first axis on registers: each thread holds whole columns."""
    row = default_blocked(shape[1:] or (1,), num_warps)
    row_elems = math.prod(shape[1:])
    registers = [row_elems << bit for bit in range(log2_exact(shape[0]))]
    columns = {name: list(row.columns(name)) for name in row.in_dims}
    columns["register"] = [*columns["register"], *registers]
    outs = tuple((f"dim{axis}", log2_exact(size)) for axis, size in enumerate(shape))
    return LinearLayout.from_columns(columns.items(), outs)


def shared_among_warps(layout: LinearLayout, num_rest: int) -> LinearLayout:
    """Return the layout with warps sharing the elements they would hold copies of, if many.

    The highest `num_rest` register bits are divided, if they have more than a few elements.
    """
    registers, warps = list(layout.columns("register")), list(layout.columns("warp"))
    if 1 << num_rest < _MANY_COPIES:
        return layout
    for bit, column in enumerate(warps):
        if not column and num_rest:
            warps[bit] = registers.pop()
            num_rest -= 1
    return layout.with_columns("register", registers).with_columns("warp", warps)


def slice_of(parent: LinearLayout, axis: int) -> LinearLayout:
    """Return the layout of a tile reduced along `axis` of `parent`, without copies in registers."""
    return parent.reduce(axis).remove_zero_bases("register")


# ---- tensor-core fragments --------------------------------------------------------------------


def _warp_bits(counts: Sequence[tuple[int, int, int]]) -> list[_CoordBit | None]:
    """Return the coordinate bits of warps: for each (axis, first bit, count), fastest first.

    An axis of -1 is one this tile does not have: its warps hold copies.
    """
    return [
        None if axis < 0 else (axis, first + bit)
        for axis, first, count in counts
        for bit in range(log2_exact(count))
    ]


_QUAD_ROWS = ((0, 0), (0, 1), (0, 2))  # lane bits 2..4 count the rows of a fragment


def mma_v2(shape: tuple[int, ...], warps: tuple[int, ...], n_width_elems: int = 1) -> LinearLayout:
    """Return the accumulator layout of `mma.sync.m16n8k*`: 16x8 fragments, warps over the tile.

    `shape` is (M, N), or (batch, M, N); `warps` has the number along each axis, N counting fastest.
    A fragment is four registers a thread; fragments repeat along N, then M. The columns of a
    fragment are `n_width_elems` apart, as operand B was read (see `dot_operand`).

    Source: PTX ISA, "Matrix Fragments for mma.m16n8k16" (and k8, k32): accumulators C and D.
    """
    m, n, apart = len(shape) - 2, len(shape) - 1, log2_exact(n_width_elems)
    placed: dict[str, list[_CoordBit | None]] = {
        "register": [(n, apart), (m, 3)],
        "lane": [(n, apart + 1), (n, apart + 2), (m, 0), (m, 1), (m, 2)],
        "warp": _mma_warps(warps, {m: m, n: n}, apart),
    }
    return _from_coord_bits(shape, placed, _minor_first(len(shape)))


def _mma_warps(
    warps: tuple[int, ...], axes: Mapping[int, int], apart: int
) -> list[_CoordBit | None]:
    """Return the warp bits of a dot; `axes` maps M and N to this operand's axes."""
    m, n = len(warps) - 2, len(warps) - 1
    counts = [(axes.get(n, -1), 3 + apart, warps[n]), (axes.get(m, -1), 4, warps[m])]
    return _warp_bits([*counts, *((axis, 0, count) for axis, count in enumerate(warps[:m]))])


def dot_operand(
    operand: int,
    shape: tuple[int, ...],
    warps: tuple[int, ...],
    element_bits: int,
    k_width_elems: int | None = None,
    n_width_elems: int = 1,
) -> LinearLayout:
    """Return the layout of operand 0 (A, MxK) or 1 (B, KxN) of `mma.sync.m16n8k*`.

    `shape` may have a leading axis of batches; `warps` is the accumulator's. `k_width_elems` is the
    number of neighbours along K in a thread: those in a 32-bit register unless a narrower element
    shares the load (mixed precision). Fragments of k = 4*k_width repeat along K first, so the
    instruction's k may be any multiple of it: its registers are neighbours. `n_width_elems` is the
    number of neighbours along N of B in a thread. It is 1 unless elements narrower than 2 bytes are
    neighbours there in memory, and are moved by twos.

    Source: PTX ISA, "Matrix Fragments for mma.m16n8k8", "…k16", "…k32": operands A and B.
    """
    width_bits = log2_exact(k_width_elems or max(1, 32 // element_bits))
    first, second = len(shape) - 2, len(shape) - 1
    outer, k_axis = (first, second) if operand == 0 else (second, first)
    apart = 0 if operand == 0 else log2_exact(n_width_elems)
    rows: list[_CoordBit | None] = [(outer, apart + bit) for bit in range(3)]
    neighbours = [(outer, bit) for bit in range(apart)]
    placed: dict[str, list[_CoordBit | None]] = {
        "register": [*neighbours, *((k_axis, bit) for bit in range(width_bits))],
        "lane": [(k_axis, width_bits), (k_axis, width_bits + 1), *rows],
        "warp": _mma_warps(warps, {outer: outer}, apart),
    }
    if operand == 0:
        placed["register"].append((outer, 3))
    return _from_coord_bits(shape, placed, (k_axis, outer, *range(first - 1, -1, -1)))


def wgmma_accumulator(
    shape: tuple[int, int],
    warpgroups: tuple[int, int],
    instr_n: int | None = None,
    replicas: int = 1,
) -> LinearLayout:
    """Return the accumulator layout of `wgmma.mma_async.m64n{instr_n}k*`.

    `warpgroups` is (along M, along N), M counting faster; so many `replicas` of them hold the same. The
    four warps of a group hold 16 rows each. `instr_n` defaults to all columns of a group, at most 256.

    Source: PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16": D.
    """
    instr_n = instr_n or min(_MAX_WGMMA_N, shape[1] // warpgroups[1])
    placed: dict[str, list[_CoordBit | None]] = {
        "register": [(1, 0), (0, 3), *((1, bit) for bit in range(3, log2_exact(instr_n)))],
        "lane": [(1, 1), (1, 2), *_QUAD_ROWS],
        "warp": _warp_bits(
            [
                (0, 4, WARPGROUP_WARPS),
                (0, 6, warpgroups[0]),
                (1, log2_exact(instr_n), warpgroups[1]),
                (-1, 0, replicas),
            ]
        ),
    }
    return _from_coord_bits(shape, placed, (1, 0))


def wgmma_operand_a(
    shape: tuple[int, int], warpgroups: tuple[int, int], element_bits: int
) -> LinearLayout:
    """Return the layout of a `wgmma.mma_async` A operand (MxK) held in registers.

    Source: PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16" (k8, k32): A.
    """
    width_bits = log2_exact(32 // element_bits)
    placed: dict[str, list[_CoordBit | None]] = {
        "register": [*((1, bit) for bit in range(width_bits)), (0, 3)],
        "lane": [(1, width_bits), (1, width_bits + 1), *_QUAD_ROWS],
        "warp": _warp_bits(
            [(0, 4, WARPGROUP_WARPS), (0, 6, warpgroups[0]), (-1, 0, warpgroups[1])]
        ),
    }
    return _from_coord_bits(shape, placed, (1, 0))


# ---- shared memory ----------------------------------------------------------------------------


def row_major_shared(shape: tuple[int, ...], order: tuple[int, ...] | None = None) -> LinearLayout:
    """Return the shared layout without a swizzle; `order` lists the axes from the fastest."""
    return swizzled_shared(shape, order or _minor_first(len(shape)), 1, 1, 1)


def swizzled_shared(
    shape: tuple[int, ...], order: tuple[int, ...], vec: int, per_phase: int, max_phase: int
) -> LinearLayout:
    """Return the shared layout with the column's vector index XORed with the row's phase.

    Element (row, col), `order[0]` being the columns, is at `row * cols + (col ^ swizzle)` with
    `swizzle = vec * (row // per_phase % max_phase)`, cut to the row. All counts in elements.

    Source: Triton's SwizzledSharedEncodingAttr.
    """
    bits = [log2_exact(extent) for extent in shape]
    shifts = [sum(bits[axis + 1 :]) for axis in range(len(bits))]
    columns: list[int] = []
    for position, axis in enumerate(order):
        for bit in range(bits[axis]):
            column = 1 << (shifts[axis] + bit)
            if position == 1:
                swizzle = vec * ((1 << bit) // per_phase % max_phase)
                column |= swizzle % shape[order[0]] << shifts[order[0]]
            columns.append(column)
    outs = tuple((f"dim{axis}", count) for axis, count in enumerate(bits))
    return LinearLayout.from_columns([("offset", columns)], outs)


def nvmma_shared(
    shape: tuple[int, ...], element_bits: int, swizzle_bytes: int, *, transposed: bool = False
) -> LinearLayout:
    """Return the shared layout for TMA writes and WGMMA reads with this swizzle.

    Rows are `swizzle_bytes` long; a tile with longer rows is cut into slices of this width, one
    after the other. Within a row the 16-byte chunk's index is XORed with bits of the address above
    it. `transposed` makes the first of the last two axes the contiguous one.

    Raises: IRError for a swizzle other than 32, 64 or 128 bytes, or wider than a row. Source: PTX
    ISA, "Tensor swizzling modes" and "Strides" of wgmma's shared-memory matrices; CUDA driver API,
    CU_TENSOR_MAP_SWIZZLE_{32B,64B,128B}.
    """
    if swizzle_bytes not in (32, 64, 128):
        raise IRError(f"a swizzle is 32, 64 or 128 bytes, not {swizzle_bytes}")
    rank = len(shape)
    minor, major = (rank - 2, rank - 1) if transposed else (rank - 1, rank - 2)
    bits = [log2_exact(extent) for extent in shape]
    shifts = [sum(bits[axis + 1 :]) for axis in range(rank)]
    row_bits = log2_exact(swizzle_bytes * 8 // element_bits)
    if rank < 2 or row_bits > bits[minor]:
        raise IRError(f"{shape} of {element_bits} bits has no rows of {swizzle_bytes} bytes")
    chunk = shifts[minor] + log2_exact(_SWIZZLE_CHUNK_BYTES * 8 // element_bits)
    chunk_bits = log2_exact(swizzle_bytes // _SWIZZLE_CHUNK_BYTES)
    # A 128-byte line holds 128/swizzle_bytes rows; the lines, not the rows, drive the XOR.
    rows_per_line = _SWIZZLE_ROWS_LOG2 - chunk_bits
    columns = [1 << (shifts[minor] + bit) for bit in range(row_bits)]
    for bit in range(bits[major]):
        swizzle = 1 << (chunk + bit - rows_per_line) if 0 <= bit - rows_per_line < chunk_bits else 0
        columns.append(1 << (shifts[major] + bit) | swizzle)
    columns += [1 << (shifts[minor] + bit) for bit in range(row_bits, bits[minor])]
    for axis in range(rank - 3, -1, -1):
        columns += [1 << (shifts[axis] + bit) for bit in range(bits[axis])]
    outs = tuple((f"dim{axis}", count) for axis, count in enumerate(bits))
    return LinearLayout.from_columns([("offset", columns)], outs)


def tensor_shared(
    shape: tuple[int, ...], element_bits: int, box: tuple[int, ...], swizzle_bytes: int
) -> LinearLayout:
    """Return the shared layout of a tile copied in boxes by TMA, axes in tensor order.

    A box is row-major and in one piece, boxes follow each other row-major from the last axis. With
    a swizzle, bits 7 and up of the address are XORed into the chunk of 16 bytes in its span; the
    buffer starts at the pattern's start.

    Raises: IRError if a row of a box is longer than the swizzle's span. Source: PTX ISA, "Swizzling
    modes" of tensors.
    """
    if swizzle_bytes and box[-1] * element_bits > 8 * swizzle_bytes:
        raise IRError(f"rows of {box} of {element_bits} bits exceed {swizzle_bytes} bytes")
    bits = [log2_exact(extent) for extent in shape]
    inside = [log2_exact(extent) for extent in box]
    shifts = [sum(bits[axis + 1 :]) for axis in range(len(bits))]
    order = _minor_first(len(shape))
    plain = [1 << (shifts[axis] + bit) for axis in order for bit in range(inside[axis])]
    plain += [
        1 << (shifts[axis] + bit) for axis in order for bit in range(inside[axis], bits[axis])
    ]
    columns = list(plain)
    chunk = log2_exact(_SWIZZLE_CHUNK_BYTES * 8 // element_bits)
    for bit in range(log2_exact(swizzle_bytes // _SWIZZLE_CHUNK_BYTES) if swizzle_bytes else 0):
        line = chunk + _SWIZZLE_ROWS_LOG2 + bit
        if line < len(columns):
            columns[line] ^= plain[chunk + bit]
    outs = tuple((f"dim{axis}", count) for axis, count in enumerate(bits))
    return LinearLayout.from_columns([("offset", columns)], outs)
