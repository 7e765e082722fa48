"""Execute conversion plans literally in NumPy: registers of every thread, bytes of shared memory.

A register file is an integer array (warps, lanes, registers) of element numbers. The simulator
knows nothing of layouts and executes the plan's fields. It fails on anything hardware would get
wrong silently: two values stored to one address, reads of unwritten bytes, misaligned vectors, or
reads of another warp's bytes without a block barrier.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aotc.ir.layout import LinearLayout
from aotc.ir.layout_access import Access
from aotc.schedule.layout.conversions import (
    ConditionalSwap,
    Conversion,
    Identity,
    RegisterPermute,
    SharedExchange,
    WarpShuffle,
)

Registers = npt.NDArray[np.int64]
NOTHING = -1


def held_by(layout: LinearLayout) -> Registers:
    """Return the element number in every register of every thread."""
    return np.array(
        [
            [
                layout.table("register", lane=lane, warp=warp)
                for lane in range(layout.in_size("lane"))
            ]
            for warp in range(layout.in_size("warp"))
        ],
        dtype=np.int64,
    )


def execute(plan: Conversion, registers: Registers, element_bytes: int) -> Registers:
    """Return the destination's registers."""
    if isinstance(plan, Identity):
        return registers
    if isinstance(plan, RegisterPermute):
        return registers[:, :, list(plan.registers)]
    if isinstance(plan, WarpShuffle):
        return _shuffle(plan, registers)
    return _trip(plan, registers, element_bytes)


def _xor_columns(index: int, columns: tuple[int, ...]) -> int:
    out = 0
    for bit, column in enumerate(columns):
        out ^= column if index >> bit & 1 else 0
    return out


def _parity(index: int) -> int:
    return index.bit_count() & 1


def _swap(registers: Registers, swaps: tuple[ConditionalSwap, ...]) -> Registers:
    registers = registers.copy()
    for swap in swaps:
        exchanged = [r ^ swap.register_xor for r in range(registers.shape[2])]
        for warp in range(registers.shape[0]):
            for lane in range(registers.shape[1]):
                if _parity(lane & swap.lane_mask) ^ _parity(warp & swap.warp_mask):
                    registers[warp, lane] = registers[warp, lane, exchanged]
    return registers


def _shuffle(plan: WarpShuffle, registers: Registers) -> Registers:
    offered = _swap(registers, plan.send_swaps)
    num_warps, num_lanes, _ = registers.shape
    received = np.full((num_warps, num_lanes, len(plan.representative)), NOTHING)
    for entry in plan.rounds:
        for warp in range(num_warps):
            for lane in range(num_lanes):
                accept = sum(_parity(lane & m) << j for j, m in enumerate(plan.accept_masks))
                if accept != entry.accept:
                    continue
                giver = entry.lane_xor ^ _xor_columns(lane, plan.source_lane_columns)
                giver ^= _xor_columns(warp, plan.source_warp_columns)
                for sent, receive_pack in zip(plan.send_pack, plan.receive_pack, strict=True):
                    value = offered[warp, giver, entry.send_register ^ sent]
                    assert received[warp, lane, entry.receive_register ^ receive_pack] == NOTHING
                    received[warp, lane, entry.receive_register ^ receive_pack] = value
    return _swap(received, plan.receive_swaps)[:, :, list(plan.representative)]


def _trip(plan: SharedExchange, registers: Registers, element_bytes: int) -> Registers:
    if plan.store_matrix:
        count = registers.shape[2]
        registers = _exchange(registers, plan.store_matrix, element_bytes, count, to_rows=True)
    out = _trip_by_vectors(plan, registers, element_bytes)
    if plan.load_matrix:
        count = len(plan.representative)
        out = _exchange(out, plan.load_matrix, element_bytes, count, to_rows=False)
    return out[:, :, list(plan.representative)]


def _exchange(
    registers: Registers, mode: str, element_bytes: int, num_registers: int, *, to_rows: bool
) -> Registers:
    """Exchange elements within warps as matrix accesses do: fragments against rows of 16 bytes.

    `num_registers` counts a fragment's registers. A fragment's register is (element of its word,
    matrix of the access, access), a row's (element of the row, access), and lane `8 * matrix + row`
    has the row. Source: PTX ISA, `ldmatrix`.
    """
    num_warps, num_lanes, _ = registers.shape
    in_word, in_row = max(1, 4 // element_bytes), 16 // element_bytes
    in_unit = max(1, 2 // element_bytes)
    matrices = min(4, num_registers // in_word)
    accesses = num_registers // in_word // matrices
    rows = np.full((num_warps, num_lanes, accesses * in_row), NOTHING)
    if not to_rows:
        rows[:] = registers
    out = np.full((num_warps, num_lanes, num_registers), NOTHING)
    for lane in range(num_lanes):
        for register in range(num_registers):
            element, rest = register % in_word, register // in_word
            matrix, access = rest % matrices, rest // matrices
            row, column = lane // 4, lane % 4 * in_word + element
            if mode == "b16.trans":  # of units of 2 bytes, whole
                part = element % in_unit
                row, column = column // in_unit, row * in_unit + part
            coords = 8 * matrix + row, access * in_row + column
            if to_rows:
                rows[:, coords[0], coords[1]] = registers[:, lane, register]
            else:
                out[:, lane, register] = rows[:, coords[0], coords[1]]
    return rows if to_rows else out


def _trip_by_vectors(plan: SharedExchange, registers: Registers, element_bytes: int) -> Registers:
    num_warps, num_lanes, _ = registers.shape
    # The view of a matrix access may have more registers than the tile: idle lanes repeat rows.
    touched = [r for loads in plan.loads for access in loads for r in access.registers]
    size = max(len(plan.representative), max(touched) + 1)
    out = np.full((num_warps, num_lanes, size), NOTHING)
    assert len(plan.stores) == len(plan.loads)
    for stores, loads in zip(plan.stores, plan.loads, strict=True):
        shared = np.full(plan.scratch_bytes, NOTHING)
        writer = np.full(plan.scratch_bytes, NOTHING)
        for warp in range(num_warps):
            for lane in range(num_lanes):
                if lane & plan.store_skip_lanes or warp & plan.store_skip_warps:
                    continue
                base = _xor_columns(lane, plan.store_lane_columns)
                base ^= _xor_columns(warp, plan.store_warp_columns)
                for access in stores:
                    assert len(access.registers) == plan.store_vector_elems
                    assert not plan.store_matrix or _is_row(access)
                    for register, byte in _bytes(access, base, element_bytes):
                        for part in range(element_bytes):
                            value = registers[warp, lane, register] * element_bytes + part
                            assert shared[byte + part] == NOTHING, "stored twice"
                            shared[byte + part] = value
                            writer[byte + part] = warp
        for warp in range(num_warps):
            for lane in range(num_lanes):
                base = _xor_columns(lane, plan.load_lane_columns)
                base ^= _xor_columns(warp, plan.load_warp_columns)
                for access in loads:
                    assert len(access.registers) == plan.load_vector_elems
                    assert not plan.load_matrix or _is_row(access)
                    for register, byte in _bytes(access, base, element_bytes):
                        parts = shared[byte : byte + element_bytes]
                        assert parts[0] >= 0, "read before written"
                        assert parts[0] % element_bytes == 0
                        assert list(parts) == list(range(parts[0], parts[0] + element_bytes))
                        assert not plan.within_warp or writer[byte] == warp
                        assert out[warp, lane, register] == NOTHING
                        out[warp, lane, register] = parts[0] // element_bytes
    return out


def _is_row(access: Access) -> bool:
    """Return whether a view's registers are a matrix row in the hardware's order."""
    first = access.registers[0]
    return access.registers == tuple(range(first, first + len(access.registers)))


def _bytes(access: Access, base: int, element_bytes: int) -> list[tuple[int, int]]:
    """Return (register, first byte) of each element of a vector access."""
    start = (base ^ access.offset_elems) * element_bytes
    assert start % (len(access.registers) * element_bytes) == 0, "misaligned vector"
    return [(r, start + i * element_bytes) for i, r in enumerate(access.registers)]
