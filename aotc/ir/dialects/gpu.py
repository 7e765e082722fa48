"""Ops that make the hardware explicit: accesses, shared memory, barriers.

gpu IR is `arith`, `scf`, the shape ops of `tile`, and these; every tile in it has a layout. Each op
has one lowering rule. Vector widths, offsets and lanes are attributes, so a dump shows them and
tests can state them as text.

Invariant: only ops that say so by name move data between threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aotc.ir.core import Block, Op, Value, attribute, block, operand, operands, result, results
from aotc.ir.dialects.tile import (
    AtomicKind,
    AtomicScope,
    InputPrecision,
    check_access,
    check_atomic,
    check_combine,
    check_dot,
    check_scope,
    reduced,
    tile_type,
)
from aotc.ir.effects import Resource, Trait, allocates, orders, reads, starts, writes
from aotc.ir.fragments import fragments
from aotc.ir.layout import LinearLayout
from aotc.ir.matrix_access import MatrixMode
from aotc.ir.sub_tile import sub_tile
from aotc.ir.types import (
    I1,
    I32,
    U64,
    PointerType,
    ScalarType,
    SharedType,
    TileType,
    Type,
    element_of,
    with_element,
)

# ---- global memory ----------------------------------------------------------------------------


class Load(Op, opcode="gpu.load", effects=(reads(Resource.GLOBAL, of="pointer"),)):
    """Read global memory, `vector` elements an access.

    Registers `k*vector … k*vector+vector-1` of a thread are consecutive in memory, the first is
    aligned to the whole access, and they share one mask value. `prefetch_bytes` is the L2 prefetch
    size; 0 leaves it to the cache. In aligned runs of `constancy` elements along each axis, address,
    mask and `other` are the same; a thread loads such elements once.
    """

    pointer: Value = operand()
    mask: Value | None = operand(default=None)
    other: Value | None = operand(default=None)
    vector: int = attribute(default=1)
    cache: str = attribute(default="")
    eviction: str = attribute(default="")
    volatile: bool = attribute(default=False)
    prefetch_bytes: int = attribute(default=0)
    constancy: tuple[int, ...] = attribute(default=())
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        return (check_access(self, self.pointer, self.mask, self.other),)


class Store(Op, opcode="gpu.store", effects=(writes(Resource.GLOBAL, of="pointer"),)):
    """Write global memory, `vector` elements an access, under the terms of `gpu.load`.

    An element held by several threads is written once.
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


# ---- atomics ----------------------------------------------------------------------------------


class AtomicRmw(
    Op,
    opcode="gpu.atomic_rmw",
    effects=(
        reads(Resource.GLOBAL, of="pointer"),
        writes(Resource.GLOBAL, of="pointer"),
    ),
    traits=(Trait.ATOMIC,),
):
    """Update memory as `tile.atomic_rmw` without ordering, `vector` elements an access.

    Registers go together under the terms of `gpu.load`, each still updated by itself. If several
    threads hold an element, the first makes the update and has the result; in the others the result
    is undefined.
    """

    pointer: Value = operand()
    value: Value = operand()
    kind: AtomicKind = attribute()
    mask: Value | None = operand(default=None)
    scope: AtomicScope = attribute(default="gpu")
    vector: int = attribute(default=1)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        content = check_access(self, self.pointer, self.mask, self.value)
        check_atomic(self, self.kind, content, self.scope)
        return (tile_type(self, self.value),)


class AtomicCas(
    Op,
    opcode="gpu.atomic_cas",
    effects=(
        reads(Resource.GLOBAL, of="pointer"),
        writes(Resource.GLOBAL, of="pointer"),
    ),
    traits=(Trait.ATOMIC,),
):
    """`tile.atomic_cas` under the terms of `gpu.atomic_rmw`, one element an access."""

    pointer: Value = operand()
    compare: Value = operand()
    value: Value = operand()
    scope: AtomicScope = attribute(default="gpu")
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        content = check_access(self, self.pointer, None, self.value)
        check_atomic(self, "cas", content, self.scope)
        self.expect(self.compare.type == content, f"compares {self.compare.type} with {content}")
        return (tile_type(self, self.value),)


class Fence(
    Op,
    opcode="gpu.fence",
    effects=(
        orders(Resource.GLOBAL),
        orders(Resource.SHARED),
    ),
):
    """Order the accesses to memory of each thread, as the threads of `scope` see them.

    Its earlier writes and reads, and the writes it has seen, come before all it does afterwards.
    """

    scope: AtomicScope = attribute(default="gpu")

    def infer(self) -> Sequence[Type]:
        check_scope(self, self.scope)
        return ()


# ---- layout conversions -----------------------------------------------------------------------


def _with_layout(op: Op, value: Value, layout: LinearLayout) -> TileType:
    """Return the type of the tile `value` under `layout`."""
    source = tile_type(op, value)
    if layout.shape != source.shape:
        op.error(f"{layout} is not of {source.shape}")
    return source.with_layout(layout)


class Convert(Op, opcode="gpu.convert", pure=True, traits=(Trait.SAME_VALUES,)):
    """The same tile under another layout.

    `plan_conversions` leaves only conversions within a thread, lowered by renaming registers.
    """

    value: Value = operand()
    layout: LinearLayout = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        return (_with_layout(self, self.value, self.layout),)


class ShuffleConvert(Op, opcode="gpu.shuffle_convert", pure=True, traits=(Trait.SAME_VALUES,)):
    """The same tile under another layout, exchanged within each warp.

    `plan` comes from `schedule.layout.conversions`, in the plain form documented there.
    """

    value: Value = operand()
    layout: LinearLayout = attribute()
    plan: tuple[object, ...] = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        return (_with_layout(self, self.value, self.layout),)


# ---- shared memory ----------------------------------------------------------------------------


class SharedAlloc(
    Op,
    opcode="gpu.shared_alloc",
    effects=(allocates(Resource.SHARED),),
    traits=(Trait.NO_INSTRUCTION,),
):
    """A buffer in shared memory, at `offset_bytes` once `allocate_shared` has placed it.

    A buffer of several stages is accessed through `gpu.shared_stage` only. Where several consumer
    groups allocate it, each has its own, `group_bytes` after the one of the previous group. The
    last `unused_bytes` of a stage are not allocated, see `SharedType`.
    """

    element: ScalarType = attribute()
    shape: tuple[int, ...] = attribute()
    layout: LinearLayout = attribute()
    alignment_bytes: int = attribute(default=16)
    offset_bytes: int = attribute(default=-1)
    num_stages: int = attribute(default=1)
    group_bytes: int = attribute(default=0)
    unused_bytes: int = attribute(default=0)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        self.expect(self.num_stages > 0, f"{self.num_stages} stages")
        kind = SharedType(self.element, self.shape, self.layout, self.num_stages)
        fits = 0 <= self.unused_bytes < kind.stage_bytes
        self.expect(fits, f"{self.unused_bytes} unused bytes of {kind}")
        kind = replace(kind, unused_bytes=self.unused_bytes)
        if self.num_stages > 1:
            kind = replace(kind, padding_bytes=-kind.stage_bytes % self.alignment_bytes)
        return (kind,)


def shared_type(op: Op, value: Value) -> SharedType:
    """Return the type of a one-stage shared buffer. Raises: IRError for any other value."""
    if not isinstance(value.type, SharedType) or value.type.num_stages != 1:
        op.error(f"expected a shared buffer of one stage, got {value.type}")
    return value.type


class SharedStore(Op, opcode="gpu.shared_store", effects=(writes(Resource.SHARED, of="buffer"),)):
    """Write a tile to shared memory, `vector` elements an access; no barrier is implied.

    The elements of an aligned run of `vector` offsets are one access; a thread holds all of them,
    in any of its registers. An element held by several threads is written once. With `matrix`, the
    lanes of a warp exchange elements on the way, and the terms of `ir.matrix_access` hold.
    """

    value: Value = operand()
    buffer: Value = operand()
    vector: int = attribute(default=1)
    matrix: MatrixMode = attribute(default="")

    def infer(self) -> Sequence[Type]:
        source, buffer = tile_type(self, self.value), shared_type(self, self.buffer)
        if source.shape != buffer.shape or memory_element(source) != buffer.element:
            self.error(f"{source} does not fit {buffer}")
        return ()


class SharedLoad(Op, opcode="gpu.shared_load", effects=(reads(Resource.SHARED, of="buffer"),)):
    """Read a tile from shared memory under the terms of `gpu.shared_store`.

    With a `start`, read the part of the buffer's tile from there on, of the layout's shape.
    """

    buffer: Value = operand()
    layout: LinearLayout = attribute()
    vector: int = attribute(default=1)
    matrix: MatrixMode = attribute(default="")
    element: ScalarType | PointerType | None = attribute(default=None)
    start: tuple[int, ...] = attribute(default=())
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        buffer = shared_type(self, self.buffer)
        shape = self.layout.shape
        if self.start:
            check_part(self, buffer.shape, shape, self.start)
        elif shape != buffer.shape:
            self.error(f"{self.layout} is not of {buffer.shape}")
        return (TileType(self.element or buffer.element, shape, self.layout),)


class MaskedSharedLoad(
    SharedLoad, opcode="gpu.masked_shared_load", effects=(reads(Resource.SHARED, of="buffer"),)
):
    """Read the elements of a tile that are not masked off; the rest is `other`, or 0.

    The elements of an access share one mask value.
    """

    mask: Value | None = operand(default=None)
    other: Value | None = operand(default=None)

    def infer(self) -> Sequence[Type]:
        (kind,) = super().infer()
        for value, expected in ((self.mask, with_element(kind, I1)), (self.other, kind)):
            if value is not None:
                self.expect(value.type == expected, f"{value.type} instead of {expected}")
        self.expect(not self.matrix, "masks are for elements, not for matrices")
        return (kind,)


def check_part(
    op: Op, whole: tuple[int, ...], part: tuple[int, ...], start: tuple[int, ...]
) -> None:
    """Check that the part of shape `part` at `start` lies in a tile, aligned to its size."""
    op.expect(len(whole) == len(part) == len(start), f"{part} at {start} is no part of {whole}")
    for extent, size, first in zip(whole, part, start, strict=True):
        fits = size <= extent and first % size == 0 and first + size <= extent
        op.expect(fits, f"{part} at {start} is no part of {whole}")


class Extract(Op, opcode="gpu.extract", pure=True, traits=(Trait.SHAPE_ONLY,)):
    """The part of a tile at `start`; every thread holds its share already."""

    value: Value = operand()
    start: tuple[int, ...] = attribute()
    shape: tuple[int, ...] = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        source = tile_type(self, self.value)
        check_part(self, source.shape, self.shape, self.start)
        if source.layout is None:
            return (replace(source, shape=self.shape),)
        layout = sub_tile(source.layout, self.shape)
        if layout is None:
            self.error(f"threads hold different shares of parts of {self.shape}")
        return (replace(source, shape=self.shape, layout=layout),)


class Concat(Op, opcode="gpu.concat", pure=True, traits=(Trait.SHAPE_ONLY,)):
    """The tile of `layout` made of these parts along `axis`, in order: threads hold them alike."""

    parts: Sequence[Value] = operands()
    axis: int = attribute()
    layout: LinearLayout = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        self.expect(len(self.parts) > 0, "no parts")
        first = tile_type(self, self.parts[0])
        alike = all(part.type == first for part in self.parts)
        self.expect(alike and 0 <= self.axis < len(first.shape), "parts of several shapes")
        size = first.shape[self.axis] * len(self.parts)
        shape = (*first.shape[: self.axis], size, *first.shape[self.axis + 1 :])
        part_layout = sub_tile(self.layout, first.shape) if self.layout.shape == shape else None
        if part_layout is None or part_layout != first.layout:
            self.error(f"{self.layout} has no parts of {first}")
        return (replace(first, shape=shape, layout=self.layout),)


def memory_element(kind: TileType) -> ScalarType:
    """Return the scalar type of an element in shared memory: u64 for a pointer."""
    return U64 if isinstance(kind.element, PointerType) else kind.element


class Barrier(
    Op,
    opcode="gpu.barrier",
    effects=(
        orders(Resource.GLOBAL),
        orders(Resource.SHARED),
    ),
    traits=(Trait.BARRIER,),
):
    """Wait for all threads of the CTA; accesses to shared and global memory do not cross it.

    With `warpgroup`, each warpgroup waits for its own threads.
    """

    warpgroup: bool = attribute(default=False)


# ---- dots -------------------------------------------------------------------------------------


class Undefined(Op, opcode="gpu.undefined", pure=True, traits=(Trait.SOURCE,)):
    """Return a tile of undefined elements, or an undefined pointer: no instruction is emitted."""

    type: Type = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        return (self.type,)


class Dot(Op, opcode="gpu.dot", pure=True, traits=(Trait.DOT,)):
    """`tile.dot` on operands in the registers of the instruction.

    With the `shape` (m, n, k) of an `mma.sync`, layouts are its fragments (`ir.fragments`). Without
    one, each thread multiplies and adds its own registers: of A all of K for the rows, of B all of
    K for the columns of its part of the accumulator.
    """

    a: Value = operand()
    b: Value = operand()
    acc: Value = operand()
    shape: tuple[int, ...] = attribute(default=())
    input_precision: InputPrecision = attribute(default="tf32")
    max_num_imprecise_acc: int = attribute(default=0)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        out = check_dot(self, self.a, self.b, self.acc, self.input_precision)
        is_one = self.input_precision in ("tf32", "ieee")
        self.expect(is_one, f"{self.input_precision} is several dots")
        a, b = tile_type(self, self.a), tile_type(self, self.b)
        if self.shape and a.layout is not None and b.layout is not None and out.layout is not None:
            self.expect(len(self.shape) == 3, f"{self.shape} is not (m, n, k)")
            fragments(self.shape, a.layout, b.layout, out.layout, a.element.bits)
        return (out,)


# ---- multistage buffers -----------------------------------------------------------------------


class SharedStage(Op, opcode="gpu.shared_stage", pure=True, traits=(Trait.ALIAS,)):
    """Return stage `(index + ahead) % num_stages` of a buffer, of a stage index `index`."""

    buffer: Value = operand()
    index: Value = operand()
    ahead: int = attribute(default=0)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        if not isinstance(self.buffer.type, SharedType):
            self.error(f"expected a shared buffer, got {self.buffer.type}")
        self.expect(self.index.type == I32, f"the index is {self.index.type}, not i32")
        count = self.buffer.type.num_stages
        self.expect(0 <= self.ahead < count, f"{self.ahead} ahead in {count} stages")
        return (replace(self.buffer.type, num_stages=1, padding_bytes=0),)


class SharedTrans(Op, opcode="gpu.shared_trans", pure=True, traits=(Trait.ALIAS,)):
    """The same buffer with its axes in another order: result axis `i` is axis `order[i]`."""

    buffer: Value = operand()
    order: tuple[int, ...] = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        kind = shared_type(self, self.buffer)
        axes = list(range(len(kind.shape)))
        self.expect(sorted(self.order) == axes, f"{self.order} does not permute {len(axes)} axes")
        shape = tuple(kind.shape[axis] for axis in self.order)
        return (replace(kind, shape=shape, layout=kind.layout.transpose(self.order)),)


class NextStage(Op, opcode="gpu.next_stage", pure=True):
    """Return a later stage index: `(index + ahead) % num_stages`."""

    index: Value = operand()
    num_stages: int = attribute()
    ahead: int = attribute(default=1)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        self.expect(self.index.type == I32, f"the index is {self.index.type}, not i32")
        self.expect(self.num_stages > 0, f"{self.num_stages} stages")
        fits = 0 <= self.ahead <= self.num_stages
        self.expect(fits, f"{self.ahead} ahead in {self.num_stages} stages")
        return (I32,)


class AsyncCopy(
    Op,
    opcode="gpu.async_copy",
    effects=(
        reads(Resource.GLOBAL, of="pointer"),
        writes(Resource.SHARED, of="buffer"),
        starts(Resource.COPIES),
    ),
):
    """Issue the copy of a tile from global to shared memory, `vector` elements an access.

    Registers `k*vector … k*vector+vector-1` of the pointers are consecutive in both memories,
    aligned to the access of 4, 8 or 16 bytes, and share one mask value. Elements masked off become
    zero; unless `enabled`, all do. The copy is complete, for its issuing thread, after an
    `async_wait` that covers its commit group. Until then no thread touches these bytes.
    """

    pointer: Value = operand()
    buffer: Value = operand()
    mask: Value | None = operand(default=None)
    enabled: Value | None = operand(default=None)
    vector: int = attribute(default=1)
    cache: str = attribute(default="")
    eviction: str = attribute(default="")
    prefetch_bytes: int = attribute(default=0)

    def infer(self) -> Sequence[Type]:
        content, buffer = check_access(self, self.pointer, self.mask, None), self.buffer.type
        shared_type(self, self.buffer)
        if not isinstance(content, TileType) or not isinstance(buffer, SharedType):
            self.error(f"copies {content} to {buffer}")
        if (content.shape, content.element) != (buffer.shape, buffer.element):
            self.error(f"{content} does not fit {buffer}")
        if self.enabled is not None and self.enabled.type != I1:
            self.error(f"enabled is {self.enabled.type}, not i1")
        size_bytes = self.vector * buffer.element.size_bytes
        self.expect(size_bytes in (4, 8, 16), f"copies {size_bytes} bytes at a time")
        return ()


class AsyncCommit(Op, opcode="gpu.async_commit", effects=(writes(Resource.COPIES),)):
    """Commit each thread's copies since the last commit, even none, as one group."""


class AsyncWait(
    Op,
    opcode="gpu.async_wait",
    effects=(
        orders(Resource.COPIES),
        orders(Resource.SHARED),
    ),
):
    """Let each thread wait until at most its newest `pending` commit groups are in flight.

    A barrier makes the copied data visible to the other threads.
    """

    pending: int = attribute()

    def infer(self) -> Sequence[Type]:
        self.expect(self.pending >= 0, f"{self.pending} pending groups")
        return ()


# ---- reductions inside a warp -----------------------------------------------------------------


class Reduce(Op, opcode="gpu.reduce", pure=True):
    """`tile.reduce` along an axis without warp bits.

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


class WarpAll(Op, opcode="gpu.warp_all", pure=True):
    """True in a warp if all elements that its threads hold are true.

    A branch on it is uniform in a warp, so warps exchange nothing in the branch. An interpreter may
    ask all warps at once: users must be right either way.
    """

    value: Value = operand()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        self.expect(element_of(self.value.type) == I1, f"the operand is {self.value.type}")
        return (I1,)


class Scan(Op, opcode="gpu.scan", pure=True):
    """`tile.scan` along an axis without warp bits.

    Along the axis, the low bits are on registers and the high ones on lanes, each in order. If
    `exclusive`, an element gets the combination of all elements before it. The first, which has
    none before it, gets its own input.
    """

    inputs: Sequence[Value] = operands()
    axis: int = attribute()
    combine: Block = block()
    reverse: bool = attribute(default=False)
    exclusive: bool = attribute(default=False)
    outs: Sequence[Value] = results()

    def infer(self) -> Sequence[Type]:
        return check_combine(self, self.combine, self.inputs)
