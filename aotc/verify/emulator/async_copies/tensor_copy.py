"""Tensor copies: boxes between global and shared memory, described by tensor maps.

Source: PTX ISA, "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor",
"cp.async.bulk.prefetch.tensor".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from aotc.verify.arrays import reshape, view
from aotc.verify.emulator.async_copies.bulk import REDUCTIONS, combine_global, reduction
from aotc.verify.emulator.async_copies.tensor_box import (
    Pieces,
    assemble,
    check_supported,
    flipped,
    pick,
    pieces_of,
    shared_chunks,
)
from aotc.verify.emulator.async_copies.tensor_map import TensorMap, TensorMapError
from aotc.verify.emulator.async_copies.tensor_maps import TensorMaps
from aotc.verify.emulator.async_copies.transfers import (
    COMPLETES,
    begin_each,
    copy_in,
    copy_out,
    ranks_of,
)
from aotc.verify.emulator.engine.context import Context
from aotc.verify.emulator.engine.registry import Execute, executes
from aotc.verify.emulator.errors import Misuse, Unsupported
from aotc.verify.emulator.memory.global_memory import Bytes
from aotc.verify.emulator.memory.shared_memory import Flight
from aotc.verify.emulator.memory.vector_clocks import Ints
from aotc.verify.emulator.synchronization.mbarrier import window_removed
from aotc.verify.emulator.syntax import Instruction, Operand, TensorAddress

_ALIGNMENT_BYTES = 128
_ROW_ALIGNMENT_BYTES = 16
_HINT, _MULTICAST = "L2::cache_hint", "multicast::cluster"
_BITWISE = ("and", "or", "xor")
_SHARED = ("shared::cluster", "shared::cta")


@dataclass(frozen=True)
class _Box:
    """Hold one lane's box: its tensor, its global pieces, its shared chunks."""

    lane: int
    map_address: int
    tensor: TensorMap
    pieces: Pieces
    chunks: Ints
    owners: Ints


def _rank(modifiers: Sequence[str]) -> int:
    dimensions = [word for word in modifiers if word in ("1d", "2d", "3d", "4d", "5d")]
    if len(dimensions) != 1:
        raise Unsupported("a number of dimensions is missing")
    return int(dimensions[0][0])


def _check_words(words: Sequence[str], expected: Sequence[str], optional: Sequence[str]) -> None:
    """Check the modifiers after the dimensions.

    Raises: Unsupported for others, such as the im2col modes.
    """
    for word in words:
        if word.startswith("im2col"):
            raise Unsupported(f"the mode .{word}")
        if word not in expected and word not in optional:
            raise Unsupported(f"the modifier .{word}")
    missing = [word for word in expected if word not in words]
    if missing:
        raise Unsupported(f"modifiers without .{missing[0]}")


def _boxes(
    ctx: Context, operand: TensorAddress, addresses: Sequence[int], rank: int, *, load: bool
) -> list[_Box]:
    """Return each lane's checked box, with its shared-memory `addresses`.

    Raises: Misuse for a broken or unpublished map, a box of another rank, misaligned shared memory,
    coordinates refused by hardware, and a tensor partly outside its buffer.
    """
    lanes, maps = ctx.lane_indices().tolist(), ctx.address(operand).tolist()
    read = [view(ctx.read(coordinate, 32), np.int32).tolist() for coordinate in operand.coordinates]
    return [
        _box(ctx, lane, where, address, [axis[index] for axis in read], rank, load=load)
        for index, (lane, where, address) in enumerate(zip(lanes, maps, addresses, strict=True))
    ]


def _box(
    ctx: Context,
    lane: int,
    where: int,
    address: int,
    coordinates: Sequence[int],
    rank: int,
    *,
    load: bool,
) -> _Box:
    maps = ctx.machine.part(TensorMaps)
    tensor = maps.read(lane, where)
    if not load:
        maps.check_store(lane, tensor)
    try:
        check_supported(tensor, load=load)
    except TensorMapError as error:
        raise Misuse("tensor-map", f"the tensor map breaks a rule: {error}", lane=lane) from None
    if tensor.rank != rank or len(coordinates) != rank:
        raise Misuse(
            "tensor-map",
            f"copies a box of {rank} dimensions, the tensor map has {tensor.rank}",
            lane=lane,
        )
    if address % _ALIGNMENT_BYTES:
        raise Misuse(
            "misaligned",
            f"a box at shared address {address:#x}, no multiple of {_ALIGNMENT_BYTES} bytes",
            lane=lane,
        )
    _check_coordinates(tensor, coordinates, lane, load=load)
    pieces = pieces_of(tensor, coordinates)
    owners = np.full(len(pieces.address), lane)
    ctx.machine.global_memory.check(pieces.address, pieces.size_bytes, owners, write=not load)
    shadow = ctx.machine.global_shadow
    shadow.check_copy(owners, pieces.address, pieces.size_bytes, writes=not load)
    return _Box(lane, where, tensor, pieces, shared_chunks(tensor, address), owners)


def _check_coordinates(
    tensor: TensorMap, coordinates: Sequence[int], lane: int, *, load: bool
) -> None:
    """Refuse coordinates on which an H200 reports an illegal instruction.

    Only a load may start before the tensor, and a box's rows start at multiples of 16 bytes.

    Raises: Misuse.
    """
    first_byte = coordinates[0] * tensor.element_bytes
    if first_byte % _ROW_ALIGNMENT_BYTES:
        raise Misuse(
            "misaligned",
            f"a box whose rows start at byte {first_byte} of the tensor's, "
            f"no multiple of {_ROW_ALIGNMENT_BYTES} bytes",
            lane=lane,
        )
    if not load and min(coordinates) < 0:
        raise Misuse(
            "tensor-map",
            "writes a box that starts before the tensor, at "
            f"{{{', '.join(map(str, coordinates))}}}; only loads may",
            lane=lane,
        )


def _tensor_address(operand: Operand) -> TensorAddress:
    if not isinstance(operand, TensorAddress):
        raise Unsupported("an operand that is no [map, {coordinates}]")
    return operand


@executes("cp.async.bulk.tensor")
def copy(instruction: Instruction) -> Execute:
    """Load or store a box.

    Raises: Unsupported for the im2col, gather and scatter modes.
    """
    words = instruction.modifiers[3:]
    rank = _rank(words)
    if len(words) < 3 or (words[1] != "global" and words[1] not in _SHARED):
        raise Unsupported("no direction")
    if words[1] == "global":
        _check_words(words[1:], ("global", "shared::cta", "bulk_group"), ("tile", _HINT))
        return _store(instruction, rank)
    _check_words(words[1:], (words[1], "global", COMPLETES), ("tile", _HINT, _MULTICAST))
    return _load(instruction, rank)


def _load(instruction: Instruction, rank: int) -> Execute:
    target, tensor_operand, mbarrier = instruction.operands[:3]
    source = _tensor_address(tensor_operand)
    multicast = _MULTICAST in instruction.modifiers

    def execute(ctx: Context) -> None:
        memory = ctx.machine.global_memory
        addresses = window_removed(ctx.address(target)).tolist()
        barriers = ctx.address(mbarrier).tolist()
        masks = ctx.read(instruction.operands[3], 16) if multicast else None
        boxes = _boxes(ctx, source, addresses, rank, load=True)
        flights: Sequence[Flight | None] = [None] * len(boxes)
        if masks is None:
            lanes = [box.lane for box in boxes]
            flights = begin_each(ctx, lanes, [box.chunks for box in boxes], writes=True)
        for index, box in enumerate(boxes):

            def fetch(box: _Box = box) -> Bytes:
                data = memory.read(box.pieces.address, box.pieces.size_bytes, box.owners)
                return flipped(box.tensor, box.chunks, assemble(box.tensor, box.pieces, data))

            copy = copy_in(
                ctx,
                box.lane,
                box.chunks,
                barriers[index],
                fetch,
                ranks=None if masks is None else ranks_of(int(masks[index])),
                flight=flights[index],
            )
            ctx.machine.part(TensorMaps).use(box.map_address, copy)

    return execute


def _store(instruction: Instruction, rank: int) -> Execute:
    def write_box(ctx: Context, box: _Box, data: Bytes) -> None:
        memory = ctx.machine.global_memory
        memory.write(box.pieces.address, pick(box.pieces, data), box.owners)

    return _copy_out(instruction, rank, write_box)


@executes("cp.reduce.async.bulk.tensor")
def reduce(instruction: Instruction) -> Execute:
    """Combine a box with the tensor's elements."""
    words = instruction.modifiers[4:]
    rank = _rank(words)
    operation = next((word for word in words if word in REDUCTIONS), "")
    expected = ("global", "shared::cta", "bulk_group", operation)
    _check_words(words[1:], expected, ("tile", _HINT))

    def write_box(ctx: Context, box: _Box, data: Bytes) -> None:
        tensor, pieces = box.tensor, box.pieces
        if tensor.element_type == "s64" and operation in _BITWISE:
            raise Misuse("tensor-map", "combines bits of a tensor of s64: hardware takes u64 alone")
        combine, size = reduction(instruction, operation, tensor.element_type, "global")
        steps = np.arange(0, pieces.size_bytes, size)
        where = (pieces.address[:, None] + steps).ravel()
        combine_global(ctx, box.lane, where, reshape(pick(pieces, data), -1, size), combine)

    return _copy_out(instruction, rank, write_box)


def _copy_out(
    instruction: Instruction, rank: int, write: Callable[[Context, _Box, Bytes], None]
) -> Execute:
    """Return a step that copies boxes out of shared memory and passes them to `write`."""
    target, source = _tensor_address(instruction.operands[0]), instruction.operands[1]

    def execute(ctx: Context) -> None:
        addresses = window_removed(ctx.address(source)).tolist()
        boxes = _boxes(ctx, target, addresses, rank, load=False)
        chunks = [box.chunks for box in boxes]
        flights = begin_each(ctx, [box.lane for box in boxes], chunks, writes=False)
        for box, flight in zip(boxes, flights, strict=True):
            copy = copy_out(ctx, box.lane, flight, lambda data, box=box: write(ctx, box, data))
            ctx.machine.part(TensorMaps).use(box.map_address, copy)

    return execute


@executes("cp.async.bulk.prefetch.tensor")
def prefetch(instruction: Instruction) -> Execute:
    """Do nothing: a hint to the cache.

    Raises: Unsupported for the im2col modes.
    """
    words = instruction.modifiers[4:]
    _rank(words)
    _check_words(words[1:], ("L2", "global"), ("tile", _HINT))

    def execute(ctx: Context) -> None:
        del ctx

    return execute
