"""Rules for `tile` and `scf` ops: shapes, memory, reductions, control flow.

`gpu` loads, stores, reductions and scans share the public functions here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from aotc.ir.core import Op
from aotc.ir.dialects import gpu, grid, scf, thread_copy, tile
from aotc.ir.types import PointerType, ScalarType, element_of
from aotc.verify.arrays import Array, reshape
from aotc.verify.interpreter.atomics import combine_rule, swap, update
from aotc.verify.interpreter.dot import dot
from aotc.verify.interpreter.numerics import dtype_of
from aotc.verify.interpreter.program import Program, Rule
from aotc.verify.printf import format_numbers

# ---- sources and shapes -----------------------------------------------------------------------


def _program_id(program: Program, op: tile.ProgramId) -> Array:
    return np.array(program.place[op.axis], np.int32)


def _block_rank(program: Program, op: grid.CtaRank) -> Array:
    del op
    return np.array(program.rank, np.int32)


def _num_programs(program: Program, op: tile.NumPrograms) -> Array:
    return np.array(program.grid[op.axis], np.int32)


def _arange(program: Program, op: tile.Arange) -> Array:
    del program
    return np.arange(op.start, op.end, dtype=np.int32)


def _to_shape(program: Program, op: tile.Splat | tile.Broadcast, value: Array) -> Array:
    del program
    return np.broadcast_to(value, op.shape)


def _expand_dims(program: Program, op: tile.ExpandDims, value: Array) -> Array:
    del program
    return np.expand_dims(value, op.axis)


def _reshape(program: Program, op: tile.Reshape, value: Array) -> Array:
    del program
    return reshape(value, op.shape)


def _trans(program: Program, op: tile.Trans, value: Array) -> Array:
    del program
    return np.transpose(value, op.order)


def _join(program: Program, op: Op, lhs: Array, rhs: Array) -> Array:
    del program, op
    return np.stack([lhs, rhs], axis=-1)


def _split(program: Program, op: Op, value: Array) -> Sequence[Array]:
    del program, op
    return value[..., 0], value[..., 1]


def _same(program: Program, op: Op, value: Array) -> Array:
    del program, op
    return value


# ---- memory -----------------------------------------------------------------------------------


AnyAtomicRmw = tile.AtomicRmw | gpu.AtomicRmw
AnyAtomicCas = tile.AtomicCas | gpu.AtomicCas
AnyCopy = gpu.AsyncCopy | thread_copy.SyncThreadLoad | thread_copy.ThreadLoad
Access = tile.Load | tile.Store | gpu.Load | gpu.Store | AnyCopy | AnyAtomicRmw | AnyAtomicCas


def pointee_of(op: Access) -> ScalarType:
    """Return the type of the elements in memory moved by `op`."""
    kind = element_of(op.pointer.type)
    assert isinstance(kind, PointerType)
    return kind.pointee


def load(
    program: Program,
    op: tile.Load | gpu.Load,
    pointer: Array,
    mask: Array | None,
    other: Array | None,
) -> Array:
    """Read memory; masked-off lanes get `other`, or poison."""
    element = pointee_of(op)
    if mask is None or (other is None and mask.all()):
        return reshape(program.memory.load(pointer, None, element), pointer.shape)
    if other is None:
        out = program.poison.fill(dtype_of(element), pointer.shape)
    else:
        out = np.array(other)
    out[mask] = program.memory.load(pointer, mask, element)
    return out


def store(
    program: Program,
    op: tile.Store | gpu.Store,
    pointer: Array,
    value: Array,
    mask: Array | None,
) -> None:
    """Write memory where the mask holds."""
    program.memory.store(pointer, value, mask, pointee_of(op))


# ---- atomics and matrix products --------------------------------------------------------------


def atomic_rmw(
    program: Program, op: AnyAtomicRmw, pointer: Array, value: Array, mask: Array | None
) -> Array:
    """Combine with memory where the mask holds; return the old contents, or poison."""
    element = pointee_of(op)
    lanes = np.ones(pointer.shape, bool) if mask is None else mask
    out = program.poison.fill(dtype_of(element), pointer.shape)
    combine = combine_rule(op.kind, element)
    values = np.broadcast_to(value, pointer.shape)[lanes]
    out[lanes] = update(program.memory, pointer[lanes], element, values, combine)
    return out


def atomic_cas(
    program: Program, op: AnyAtomicCas, pointer: Array, compare: Array, value: Array
) -> Array:
    """Compare and swap every element; return the old contents."""
    flat = (reshape(np.broadcast_to(operand, pointer.shape), -1) for operand in (compare, value))
    before = swap(program.memory, reshape(pointer, -1), pointee_of(op), *flat)
    return reshape(before, pointer.shape)


def matrix_product(
    program: Program, op: tile.Dot | gpu.Dot, a: Array, b: Array, acc: Array
) -> Array:
    """Multiply matrices and add; see `verify.matrix`. Unused columns are poison."""
    source, target = element_of(op.a.type), element_of(op.acc.type)
    assert isinstance(source, ScalarType)
    assert isinstance(target, ScalarType)
    out = dot(a, b, acc, source, target, op.input_precision)
    if isinstance(op, tile.Dot) and op.num_columns:
        out[:, op.num_columns :] = program.poison.fill(out.dtype, out[:, op.num_columns :].shape)
    return out


# ---- reductions -------------------------------------------------------------------------------

AnyReduce = tile.Reduce | gpu.Reduce
AnyScan = tile.Scan | gpu.Scan


def reduce(program: Program, op: AnyReduce, *inputs: Array) -> list[Array]:
    """Combine along an axis, halves with halves: a tree, as the hardware does."""
    values = [np.moveaxis(value, op.axis, 0) for value in inputs]
    while len(values[0]) > 1:
        half = len(values[0]) // 2
        values = program.run_block(
            op.combine, [*(v[:half] for v in values), *(v[half:] for v in values)]
        )
    return [np.asarray(value[0]) for value in values]


def scan(program: Program, op: AnyScan, *inputs: Array) -> list[Array]:
    """Combine with all elements before, in log2(extent) steps, each doubling the reach."""
    values = [np.moveaxis(value, op.axis, 0) for value in inputs]
    if op.reverse:
        values = [value[::-1] for value in values]
    first = [value[:1] for value in values]
    reach = 1
    while reach < len(values[0]):
        before = [value[:-reach] for value in values]
        after = [value[reach:] for value in values]
        combined = program.run_block(op.combine, [*before, *after])
        values = [
            np.concatenate([value[:reach], np.broadcast_to(new, value[reach:].shape)])
            for value, new in zip(values, combined, strict=True)
        ]
        reach *= 2
    if isinstance(op, gpu.Scan) and op.exclusive:
        values = [
            np.concatenate([head, value[:-1]]) for head, value in zip(first, values, strict=True)
        ]
    if op.reverse:
        values = [value[::-1] for value in values]
    return [np.moveaxis(value, 0, op.axis) for value in values]


# ---- facts ------------------------------------------------------------------------------------


def _assume(program: Program, op: Op, condition: Array) -> None:
    if not condition.all():
        raise program.error(op, "does not hold")


def _assert(program: Program, op: tile.Assert, condition: Array) -> None:
    if not condition.all():
        raise program.error(op, f"failed: {op.message}")


def _print(program: Program, op: tile.Print, *operands: Array) -> None:
    numbers = [int(element) for element in operands[:3]]
    value = operands[3] if op.value is not None else None
    if value is None:
        program.memory.printed.append(format_numbers(op.text, iter(numbers)))
        return
    for indices in itertools.product(*map(range, value.shape)):
        element: Any = value[indices]
        content = float(element) if value.dtype.kind == "f" else int(element)
        line = format_numbers(op.text, iter([*numbers, *indices, content]))
        program.memory.printed.append(line)


def _barrier(program: Program, op: Op) -> None:
    del op
    program.shared.barrier(for_producer=not program.has_roles)


def _nothing(program: Program, op: Op) -> None:
    """Do nothing: no other grid runs before or after this one."""
    del program, op


# ---- control flow -----------------------------------------------------------------------------


def _for(
    program: Program, op: scf.For, lower: Array, upper: Array, step: Array, *init: Array
) -> Sequence[Array]:
    if step.item() <= 0:
        raise program.error(op, f"has the step {step.item()}, which is not positive")
    carried: Sequence[Array] = init
    for index in range(lower.item(), upper.item(), step.item()):
        carried = program.run_block(op.body, [np.array(index, lower.dtype), *carried])
    return carried


def _if(program: Program, op: scf.If, condition: Array) -> Sequence[Array]:
    if condition.ndim == 0:
        return program.run_block(op.then if condition.item() else op.orelse, ())
    # In a combine block on whole arrays: both arms, element by element.
    arms = [program.run_block(arm, ()) for arm in (op.then, op.orelse)]
    then, orelse = arms
    return [np.where(condition, a, b) for a, b in zip(then, orelse, strict=True)]


def _while(program: Program, op: scf.While, *init: Array) -> Sequence[Array]:
    carried: Sequence[Array] = init
    while True:
        proceed, *passed = program.run_block(op.before, carried)
        if not proceed.item():
            return passed
        carried = program.run_block(op.after, passed)


def _ends_block(program: Program, op: Op, *operands: Array) -> None:
    del program, operands
    raise AssertionError(f"{op.opcode} is run by the block it ends")


TILE_RULES: dict[type[Op], Rule] = {
    tile.ProgramId: _program_id,
    tile.NumPrograms: _num_programs,
    tile.Arange: _arange,
    tile.Splat: _to_shape,
    tile.Broadcast: _to_shape,
    tile.ExpandDims: _expand_dims,
    tile.Reshape: _reshape,
    tile.Trans: _trans,
    tile.Join: _join,
    tile.Split: _split,
    tile.Load: load,
    tile.Store: store,
    tile.AtomicRmw: atomic_rmw,
    tile.AtomicCas: atomic_cas,
    tile.Dot: matrix_product,
    tile.Reduce: reduce,
    tile.Scan: scan,
    tile.Hint: _same,
    tile.Assume: _assume,
    tile.Assert: _assert,
    tile.Print: _print,
    tile.Barrier: _barrier,
    grid.CtaRank: _block_rank,
    grid.ClusterBarrier: _nothing,
    grid.GridWait: _nothing,
    grid.LaunchDependents: _nothing,
    scf.For: _for,
    scf.If: _if,
    scf.While: _while,
    scf.Yield: _ends_block,
    scf.Return: _ends_block,
    scf.Condition: _ends_block,
}
