"""8x8 matrices between registers and shared memory: `ldmatrix` and `stmatrix`.

Each of one, two or four 8x8 matrices of 16-bit elements is eight rows of 16 bytes; eight lanes
supply their addresses. In registers, lane 4r + c has elements 2c and 2c + 1 of row r, or of column
r with `.trans`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotc.verify.arrays import Array, reshape, view
from aotc.verify.emulator.engine.context import Context
from aotc.verify.emulator.engine.registry import Execute, Loads, executes, loads
from aotc.verify.emulator.errors import Misuse, Unsupported
from aotc.verify.emulator.memory.global_memory import SHARED_WINDOW
from aotc.verify.emulator.memory.vector_clocks import Ints
from aotc.verify.emulator.mma.fragments import WARP_LANES, operand_a
from aotc.verify.emulator.syntax import Instruction, Operand, elements_of

_ROWS, _ROW_BYTES = 8, 16
_COUNTS = {"x1": 1, "x2": 2, "x4": 4}
_SPACES = frozenset({"shared", "shared::cta"})
_FRAGMENT = operand_a(8, 8, 16)


def _form(instruction: Instruction) -> tuple[int, bool]:
    """Return the number of matrices, and whether they are transposed.

    Raises: Unsupported for shapes and types of later hardware.
    """
    words = list(instruction.modifiers)
    for expected in ("sync", "aligned", "m8n8", "b16"):
        if expected not in words:
            raise Unsupported(f"modifiers without .{expected}")
        words.remove(expected)
    counts = [word for word in words if word in _COUNTS]
    rest = [word for word in words if word not in _COUNTS and word not in _SPACES]
    if len(counts) != 1 or rest not in ([], ["trans"]):
        raise Unsupported(f"modifiers {'.'.join(words)}")
    return _COUNTS[counts[0]], rest == ["trans"]


def _rows(ctx: Context, operand: Operand, count: int) -> tuple[Ints, Ints]:
    """Return the address-supplying lanes and the row addresses: (warps * 8 * count,) each."""
    lanes, rows = _rows_at(ctx, ctx.address(operand)[None], count)
    return lanes, rows[0]


def _rows_at(ctx: Context, address: Ints, count: int) -> tuple[Ints, Ints]:
    """Return the address-supplying lanes (n,), and the row addresses (k, n) of `address`."""
    ctx.require_whole_warps()
    num_warps = len(ctx.warps())
    if ctx.count != num_warps * WARP_LANES:
        raise Misuse("convergence", f"{ctx.instruction.mnemonic} needs all 32 lanes of a warp")
    if int(address.min()) >= SHARED_WINDOW:
        address = address - SHARED_WINDOW
    lanes = reshape(np.asarray(ctx.lane_indices()), num_warps, WARP_LANES)[:, : _ROWS * count]
    rows = reshape(address, len(address), num_warps, WARP_LANES)[:, :, : _ROWS * count]
    return reshape(lanes, -1), reshape(rows, len(address), -1)


def _oriented(elements: Array, *, transposed: bool) -> Array:
    return np.swapaxes(elements, -1, -2) if transposed else elements


@executes("ldmatrix")
def ldmatrix(instruction: Instruction) -> Execute:
    """Load 8x8 matrices of 16-bit elements, one register per lane and matrix.

    Source: PTX ISA, "Warp-level matrix load instruction: ldmatrix".
    """
    count, transposed = _form(instruction)
    target, source = instruction.operands
    registers = elements_of(target)
    if len(registers) != count:
        raise Unsupported(f"{len(registers)} registers for {count} matrices")

    def execute(ctx: Context) -> None:
        lanes, address = _rows(ctx, source, count)
        data = ctx.machine.shared.load(lanes, address, _ROW_BYTES, ctx.instruction)
        matrices = reshape(view(data, np.uint16), -1, count, _ROWS, _ROWS)
        oriented = reshape(_oriented(matrices, transposed=transposed), -1, _ROWS, _ROWS)
        ctx.write_each(registers, reshape(_FRAGMENT.scatter(oriented), -1, count, WARP_LANES))

    return execute


@loads("ldmatrix")
def ldmatrices(instruction: Instruction) -> Loads:
    """Execute several `ldmatrix` at once."""
    count, transposed = _form(instruction)

    def read(ctx: Context, address: Ints, instructions: Sequence[Instruction]) -> Array:
        lanes, rows = _rows_at(ctx, address, count)
        data = ctx.machine.shared.load_each(lanes, rows, _ROW_BYTES, instructions)
        matrices = reshape(view(data, np.uint16), -1, _ROWS, _ROWS)
        words = _FRAGMENT.scatter(_oriented(matrices, transposed=transposed))
        registers = reshape(words, len(address), -1, count, WARP_LANES)
        return reshape(np.swapaxes(registers, 1, 2), len(address), count, -1)

    return read


@executes("stmatrix")
def stmatrix(instruction: Instruction) -> Execute:
    """Store 8x8 matrices of 16-bit elements, one register per lane and matrix.

    Source: PTX ISA, "Warp-level matrix store instruction: stmatrix".
    """
    count, transposed = _form(instruction)
    target, source = instruction.operands
    registers = elements_of(source)
    if len(registers) != count:
        raise Unsupported(f"{len(registers)} registers for {count} matrices")

    def execute(ctx: Context) -> None:
        lanes, address = _rows(ctx, target, count)
        words = reshape(ctx.read_each(registers, 32), -1, 1, WARP_LANES)
        stacked = _oriented(_FRAGMENT.gather(words), transposed=transposed)
        data = reshape(view(np.ascontiguousarray(stacked), np.uint8), -1, _ROW_BYTES)
        ctx.machine.shared.store(lanes, address, data, ctx.instruction)

    return execute
