"""Rules for `gpu.wgmma`: products whose results exist once waited for.

A product is computed when it starts, and the program gets a promise: an array of garbage whose
identity stands for the result. Loops and branches pass it on, and the wait replaces it by the
result. Reading a promise gives garbage, as on the GPU.

Invariant: bytes read by a product in flight are marked, and a write to them is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aotc.ir.core import Value
from aotc.ir.dialects import gpu, wgmma
from aotc.ir.types import PointerType, ScalarType, SharedType, TileType, element_of, shape_of
from aotc.verify.arrays import Array, reshape
from aotc.verify.interpreter.dot import dot
from aotc.verify.interpreter.numerics import dtype_of
from aotc.verify.interpreter.program import Program, Rules, scalar
from aotc.verify.interpreter.shared_memory import Transfer


@dataclass(frozen=True, eq=False)
class Product:
    """A product in flight: the promise, its result, and the bytes being read."""

    promise: Array
    result: Array
    reads: tuple[Transfer, ...]


def _start(
    program: Program,
    op: wgmma.Wgmma,
    a: Array,
    b: Array,
    acc: Array,
    accumulate: Array | None,
) -> Array:
    reads: list[Transfer] = []
    num_rows, num_columns = shape_of(op.acc.type)
    columns = op.num_columns or num_columns
    row, column = op.start or (0, 0)
    left = _operand(program, op.a, a, reads, (row, num_rows), axis=0)
    right = _operand(program, op.b, b, reads, (column, columns), axis=1)
    if op.size_k:
        part = slice(op.start_k, op.start_k + op.size_k)
        left = left[:, part] if isinstance(op.a.type, SharedType) else left
        right = right[part]
    source, target = element_of(op.b.type), element_of(op.acc.type)
    assert isinstance(source, ScalarType)
    assert isinstance(target, ScalarType)
    begins = accumulate is not None and not scalar(accumulate)
    products = [*program.finished, *program.products]
    start = np.zeros_like(acc) if begins else _resolved(products, acc)
    result = dot(left, right, start[:, :columns], source, target, op.input_precision)
    result = _first_columns(program, result, columns, acc.shape)
    promise = program.poison.fill(acc.dtype, acc.shape)
    program.products.append(Product(promise, result, tuple(reads)))
    return promise


def _operand(
    program: Program,
    value: Value,
    array: Array,
    reads: list[Transfer],
    part: tuple[int, int],
    *,
    axis: int,
) -> Array:
    """Return an operand; from a buffer, the part along an axis with a start and an extent.

    Reads of shared memory are added to `reads`.
    """
    if not isinstance(value.type, SharedType):
        return array
    start, extent = part
    addresses = reshape(array, value.type.shape)
    addresses = addresses.take(range(start, start + extent), axis)
    transfer, content = program.shared.start_read(
        reshape(addresses, -1), dtype_of(value.type.element)
    )
    reads.append(transfer)
    return reshape(content, addresses.shape)


def _first_columns(program: Program, value: Array, columns: int, shape: tuple[int, ...]) -> Array:
    """Return the first columns of a result of `shape`, with poison in the others."""
    whole = program.poison.fill(value.dtype, shape)
    whole[:, :columns] = value[:, :columns]
    return whole


def _resolved(products: Sequence[Product], value: Array) -> Array:
    """Return the result of a promise, or any other value itself."""
    return next((product.result for product in products if product.promise is value), value)


def _wait(program: Program, op: wgmma.WgmmaWait, *values: Array) -> list[Array]:
    count = max(0, len(program.products) - op.pending)
    completed, program.products = program.products[:count], program.products[count:]
    for product in completed:
        for transfer in product.reads:
            program.shared.finish_read(transfer)
    # A wait may cover products whose results another wait returns.
    finished = [*program.finished, *completed]
    outs = [_resolved(finished, value) for value in values]
    for number, columns in enumerate(op.num_columns):
        if columns and outs[number] is not values[number]:
            outs[number] = _first_columns(program, outs[number], columns, outs[number].shape)
    program.finished = [
        product for product in finished if all(product.promise is not value for value in values)
    ]
    return outs


def _undefined(program: Program, op: gpu.Undefined) -> Array:
    kind = op.type
    if isinstance(kind, PointerType):
        return np.array(0, np.int64)
    assert isinstance(kind, TileType)
    return program.poison.fill(dtype_of(kind.element), kind.shape)


PRODUCT_RULES: Rules = {
    wgmma.Wgmma: _start,
    wgmma.WgmmaWait: _wait,
    gpu.Undefined: _undefined,
}
