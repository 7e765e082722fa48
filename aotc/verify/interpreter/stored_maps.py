"""Rules for tensor maps stored by a kernel for later kernels.

They have the emulator's encoding and the interpreter's addresses; a comparison with other
memory must relocate them. The form of a map follows from the dtype and the tile alone, as in
`runtime_c/src/tensor_map.c` for hosts. It is derived here without the compiler.

Invariant: `cuTensorMapEncodeTiled` would encode every stored map.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from aotc.ir.dialects.map_store import PublishMap, StoreMap
from aotc.ir.types import U64, PointerType, ScalarType
from aotc.verify.arrays import Array, ones
from aotc.verify.emulator.async_copies.tensor_argument import PlacedTensor
from aotc.verify.emulator.async_copies.tensor_map import SIZE_BYTES
from aotc.verify.emulator.errors import EmulationError
from aotc.verify.interpreter.program import Program, scalar

ALIGNMENT_BYTES = 128  # of a slot: more than a read-only map needs
MAX_BOX_ELEMS = 256
_SPANS_BYTES = (128, 64, 32)


def form_of(element: ScalarType, block: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Return the box and the swizzle in bytes of maps for tiles of a dtype and shape."""
    row_bytes = block[-1] * element.size_bytes
    spans = _SPANS_BYTES if prod(block[:-1]) > 1 else ()
    swizzle_bytes = next((span for span in spans if span <= row_bytes), 0)
    row = swizzle_bytes // element.size_bytes or min(MAX_BOX_ELEMS, block[-1])
    return (*(min(MAX_BOX_ELEMS, extent) for extent in block[:-1]), row), swizzle_bytes


def store_map(program: Program, op: StoreMap, slot: Array, pointer: Array, *sizes: Array) -> None:
    """Store the map of a tensor, for tiles of the op's shape."""
    kind = op.pointer.type
    assert isinstance(kind, PointerType)
    assert isinstance(kind.pointee, ScalarType)
    _store(program, op, (slot, pointer, *sizes), kind.pointee, form_of(kind.pointee, op.shape))


def publish_map(
    program: Program, op: PublishMap, slot: Array, pointer: Array, template: Array, *sizes: Array
) -> None:
    """Store the map of a tensor, for boxes of the op's type."""
    del template
    form = op.type.box, op.type.swizzle_bytes
    _store(program, op, (slot, pointer, *sizes), op.type.element, form)


def _store(
    program: Program,
    op: StoreMap | PublishMap,
    operands: Sequence[Array],
    element: ScalarType,
    form: tuple[tuple[int, ...], int],
) -> None:
    slot, pointer, *sizes = (int(scalar(operand)) for operand in operands)
    box, swizzle_bytes = form
    rank = len(box)
    if slot % ALIGNMENT_BYTES:
        raise program.error(op, f"is to {slot:#x}, no multiple of {ALIGNMENT_BYTES}")
    strides = (*sizes[rank:], 1)
    no_content = np.empty(0, np.uint8)
    tensor = PlacedTensor(
        no_content, element.name, tuple(sizes[:rank]), strides, box, swizzle_bytes
    )
    try:
        encoded = tensor.encode_at(pointer, "the map")
    except EmulationError as error:
        refused = program.error(op, f"stores what no tensor map holds: {error}")
        refused.remedy = (
            "promise what the map needs: an address and rows that are multiples of 16 bytes, "
            'such as w = "i32:16"'
        )
        raise refused from error
    addresses = slot + np.arange(0, SIZE_BYTES, U64.size_bytes)
    words = np.frombuffer(encoded, np.uint64)
    program.memory.store(addresses, words, ones(len(addresses), np.bool_), U64)
    program.memory.stored_maps[slot] = None
