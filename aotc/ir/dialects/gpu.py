"""What the schedule makes explicit for the hardware: accesses, shared memory, barriers.

gpu IR is `arith`, `scf`, the shape ops of `tile`, and these; every tile in it has a layout. Each
op is one lowering rule, and what a rule needs to know (vector widths, offsets, which lanes talk)
stands in its attributes, so that it can be read in a dump and tested as text.

Invariant: no op here moves data between threads except those that say so by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Block, Op, Value, attribute, block, operand, operands, result, results
from aotc.ir.dialects.tile import check_access, check_combine, reduced, tile_type
from aotc.ir.layout import LinearLayout
from aotc.ir.types import U64, PointerType, ScalarType, SharedType, TileType, Type

# ---- global memory ----------------------------------------------------------------------------


class Load(Op, opcode="gpu.load", effect="read"):
    """Read global memory, `vector` elements an access.

    Registers `k*vector … k*vector+vector-1` of a thread are consecutive in memory, the first is
    aligned to the whole access, and they share one mask value. `prefetch_bytes` is what the L2
    cache should fetch at once, 0 leaves it the choice.
    """

    pointer: Value = operand()
    mask: Value | None = operand(default=None)
    other: Value | None = operand(default=None)
    vector: int = attribute(default=1)
    cache: str = attribute(default="")
    eviction: str = attribute(default="")
    volatile: bool = attribute(default=False)
    prefetch_bytes: int = attribute(default=0)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        return (check_access(self, self.pointer, self.mask, self.other),)


class Store(Op, opcode="gpu.store", effect="write"):
    """Write global memory, `vector` elements an access, under the terms of `gpu.load`.

    Threads that hold the same element write it once.
    """

    pointer: Value = operand()
    value: Value = operand()
    mask: Value | None = operand(default=None)
    vector: int = attribute(default=1)
    cache: str = attribute(default="")
    eviction: str = attribute(default="")

    def infer(self) -> Sequence[Type]:
        check_access(self, self.pointer, self.mask, self.value)
        return ()


# ---- layout conversions -----------------------------------------------------------------------


def _relaid(op: Op, value: Value, layout: LinearLayout) -> TileType:
    """Return the type of the tile `value` under `layout`."""
    source = tile_type(op, value)
    if layout.shape != source.shape:
        op.error(f"{layout} is not of {source.shape}")
    return source.with_layout(layout)


class Convert(Op, opcode="gpu.convert", pure=True):
    """The same tile under another layout.

    After `plan_conversions` only those are left in which every thread already holds what it
    needs, and lowering renames registers.
    """

    value: Value = operand()
    layout: LinearLayout = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        return (_relaid(self, self.value, self.layout),)


class ShuffleConvert(Op, opcode="gpu.shuffle_convert", pure=True):
    """The same tile under another layout, exchanged within each warp.

    `plan` is what `schedule.conversions` computed, in the plain form documented there.
    """

    value: Value = operand()
    layout: LinearLayout = attribute()
    plan: tuple[object, ...] = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        return (_relaid(self, self.value, self.layout),)


# ---- shared memory ----------------------------------------------------------------------------


class SharedAlloc(Op, opcode="gpu.shared_alloc", effect="write"):
    """A buffer in shared memory, at `offset_bytes` once `allocate_shared` has placed it."""

    element: ScalarType = attribute()
    shape: tuple[int, ...] = attribute()
    layout: LinearLayout = attribute()
    alignment_bytes: int = attribute(default=16)
    offset_bytes: int = attribute(default=-1)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        return (SharedType(self.element, self.shape, self.layout),)


def shared_type(op: Op, value: Value) -> SharedType:
    """Return the value's type, which must be a shared-memory buffer."""
    if not isinstance(value.type, SharedType):
        op.error(f"expected a shared buffer, got {value.type}")
    return value.type


class SharedStore(Op, opcode="gpu.shared_store", effect="write"):
    """Write a tile to shared memory, `vector` elements an access; no barrier is implied.

    The elements of an aligned run of `vector` offsets are one access; a thread holds all of them,
    in any of its registers. Threads that hold the same element write it once.
    """

    value: Value = operand()
    buffer: Value = operand()
    vector: int = attribute(default=1)

    def infer(self) -> Sequence[Type]:
        source, buffer = tile_type(self, self.value), shared_type(self, self.buffer)
        if source.shape != buffer.shape or memory_element(source) != buffer.element:
            self.error(f"{source} does not fit {buffer}")
        return ()


class SharedLoad(Op, opcode="gpu.shared_load", effect="read"):
    """Read a tile from shared memory under the terms of `gpu.shared_store`."""

    buffer: Value = operand()
    layout: LinearLayout = attribute()
    vector: int = attribute(default=1)
    element: ScalarType | PointerType | None = attribute(default=None)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        buffer = shared_type(self, self.buffer)
        if self.layout.shape != buffer.shape:
            self.error(f"{self.layout} is not of {buffer.shape}")
        return (TileType(self.element or buffer.element, buffer.shape, self.layout),)


def memory_element(kind: TileType) -> ScalarType:
    """Return the scalar that holds an element in shared memory: a pointer is its 64 bits."""
    return U64 if isinstance(kind.element, PointerType) else kind.element


class Barrier(Op, opcode="gpu.barrier", effect="readwrite"):
    """Wait for all threads of the block; accesses to shared and global memory do not cross it."""


# ---- reductions inside a warp -----------------------------------------------------------------


class Reduce(Op, opcode="gpu.reduce", pure=True):
    """`tile.reduce` along an axis of which every warp holds its part whole: no warp bit is on it.

    Registers are combined first, then lanes by butterfly shuffles, so every lane has the result.
    """

    inputs: Sequence[Value] = operands()
    axis: int = attribute()
    combine: Block = block()
    outs: Sequence[Value] = results()

    def infer(self) -> Sequence[Type]:
        types = check_combine(self, self.combine, self.inputs)
        self.expect(0 <= self.axis < len(types[0].shape), f"axis {self.axis} is out of range")
        return [reduced(kind, self.axis) for kind in types]


class Scan(Op, opcode="gpu.scan", pure=True):
    """`tile.scan` along an axis of which every warp holds its part whole.

    Along the axis, the low bits are on registers and the high ones on lanes, each in order. If
    `exclusive`, an element gets the combination of those before it, and the first, which has
    none before it, its own input.
    """

    inputs: Sequence[Value] = operands()
    axis: int = attribute()
    combine: Block = block()
    reverse: bool = attribute(default=False)
    exclusive: bool = attribute(default=False)
    outs: Sequence[Value] = results()

    def infer(self) -> Sequence[Type]:
        return check_combine(self, self.combine, self.inputs)
