"""Rules for shared memory: buffers, their stores and loads, and barriers.

All buffers are in the kernel's one dynamic array, at offsets assigned by the schedule. Two layouts
determine the offset of a register: the tile's gives its element, and the inverse of the buffer's
gives the offset of the element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aotc.backend import nvvm, nvvm_convert, nvvm_memory
from aotc.backend.integers import Affine, Component
from aotc.backend.llvm_types import constant, llvm_type
from aotc.backend.lower import (
    SHARED,
    WARP_SIZE,
    WARPGROUP_SIZE,
    Lowering,
    Results,
    layout_of,
    lowers,
)
from aotc.backend.packing import pack, unpack, word_shape
from aotc.backend.thread_map import (
    first_holders,
    is_first_holder,
    redundant_threads,
    thread_columns,
)
from aotc.ir import gf2
from aotc.ir.core import Op, Value
from aotc.ir.dialects import gpu, mbarrier, tile
from aotc.ir.layout import LinearLayout, log2_exact
from aotc.ir.matrix_access import MatrixMode, check_runs, matrix_view, word_registers
from aotc.ir.sub_tile import within

_WORD_BYTES = 4
_SHARED_ADDRESS_BITS = 18


@lowers(gpu.SharedAlloc)
def lower_alloc(ctx: Lowering, op: gpu.SharedAlloc) -> Results:
    """Lower a buffer: its constant offset, plus this consumer group's."""
    if op.offset_bytes < 0:
        op.error("has no offset: shared memory was not allocated")
    ctx.uses_shared = True
    base = ""
    if ctx.group:
        base = ctx.emit.thread_value(f"mul i32 {ctx.group}, {op.group_bytes}")
        low = op.group_bytes & -op.group_bytes
        ctx.ints.learn(base, (1 << _SHARED_ADDRESS_BITS) - low)
    return [(Affine(base, op.offset_bytes),)]


@lowers(gpu.SharedTrans)
def lower_trans(ctx: Lowering, op: gpu.SharedTrans) -> Results:
    """Lower a transposed view: the same bytes."""
    return [ctx.raw(op.buffer)]


@lowers(gpu.Barrier, tile.Barrier)
def lower_barrier(ctx: Lowering, op: gpu.Barrier | tile.Barrier) -> Results:
    """Lower a barrier of the CTA, or of each warpgroup."""
    emit = ctx.emit
    if isinstance(op, gpu.Barrier) and op.warpgroup:
        number = emit.thread_value(f"udiv i32 {ctx.thread}, {WARPGROUP_SIZE}")
        if ctx.group:
            size = WARP_SIZE * ctx.kernel.num_warps // WARPGROUP_SIZE
            group_base = emit.thread_value(f"mul i32 {ctx.group}, {size}")
            number = emit.thread_value(f"add i32 {number}, {group_base}")
        number = emit.thread_value(f"add i32 {number}, {nvvm.NamedBarrier.WARPGROUP:d}")
        nvvm.barrier(emit, WARPGROUP_SIZE, number)
    elif ctx.group:
        number = emit.thread_value(f"add i32 {ctx.group}, {nvvm.NamedBarrier.CONSUMER_GROUP:d}")
        nvvm.barrier(emit, ctx.barrier_threads, number)
    else:
        nvvm.barrier(emit, ctx.barrier_threads)
    return []


@lowers(gpu.SharedStore)
def lower_store(ctx: Lowering, op: gpu.SharedStore) -> Results:
    """Lower a store to shared memory."""
    layout = layout_of(op.value.type)
    kind = tile.tile_type(op, op.value)
    values = ctx.registers(op.value)
    if op.matrix:
        for address, words in _matrices(ctx, op, layout, op.matrix):
            packed = [pack(ctx.emit, [values[r] for r in word], kind.element)[0] for word in words]
            nvvm_memory.store_matrix(ctx.emit, address, op.matrix, packed)
        return []
    bits, count = word_shape(kind.element, op.vector)
    access = nvvm_memory.Access(bits, count, predicate=is_first_holder(ctx, layout))
    for address, registers in shared_vectors(ctx, op, op.buffer, layout, op.vector):
        words = pack(ctx.emit, [values[register] for register in registers], kind.element)
        nvvm_memory.store(ctx.emit, address, access, words)
    return []


@lowers(gpu.SharedLoad, gpu.MaskedSharedLoad)
def lower_load(ctx: Lowering, op: gpu.SharedLoad) -> Results:
    """Lower a load from shared memory."""
    kind = tile.tile_type(op, op.out)
    layout = within(op.layout, gpu.shared_type(op, op.buffer).shape)
    loaded: dict[int, Component] = {}
    if op.matrix:
        for address, words in _matrices(ctx, op, layout, op.matrix, op.start):
            packed = nvvm_memory.load_matrix(ctx.emit, address, op.matrix, len(words))
            for registers, word in zip(words, packed, strict=True):
                values = unpack(ctx.emit, [word], kind.element, len(registers))
                loaded.update(zip(registers, values, strict=True))
        return [tuple(loaded[register] for register in range(len(loaded)))]
    pieces = None if isinstance(op, gpu.MaskedSharedLoad) else _word_pieces(ctx, op, layout)
    if pieces is not None:
        loaded.update(pieces)
        return [tuple(loaded[register] for register in first_holders(layout))]
    access = nvvm_memory.Access(*word_shape(kind.element, op.vector))
    for address, registers in shared_vectors(ctx, op, op.buffer, layout, op.vector, op.start):
        words = _read(ctx, op, address, access, registers)
        values = unpack(ctx.emit, words, kind.element, op.vector)
        loaded.update(zip(registers, values, strict=True))
    return [tuple(loaded[register] for register in first_holders(layout))]


def _word_pieces(
    ctx: Lowering, op: gpu.SharedLoad, layout: LinearLayout
) -> dict[int, Component] | None:
    """Load one or two bytes for each lane as whole words shared by neighbouring lanes.

    Runs in a fragment of bytes are short. So it is read in pieces of 8 or 16 bytes, and a lane
    takes its bytes of each word by a permutation. Returns None if this does not save loads.
    """
    shared, element = gpu.shared_type(op, op.buffer), tile.tile_type(op, op.out).element
    bits = log2_exact(op.vector)
    if element.size_bytes > 1 or llvm_type(element) == "i1" or op.vector > 2 or op.start:
        return None
    positions = layout.invert_and_compose(shared.layout)
    threads, offsets = thread_columns(positions), gf2.span_table(positions.columns("register"))
    words: dict[int, dict[int, int]] = {}
    for register, holder in enumerate(first_holders(layout)):
        if holder == register:
            offset = offsets[register]
            words.setdefault(offset >> bits << bits, {})[offset & (op.vector - 1)] = register
    inner = [column & _WORD_BYTES - 1 for column in threads]
    count = min(4, len(words))
    while count > 1 and not _is_run([*words], [*threads], count):
        count //= 2
    if count < 2 or sorted(filter(None, inner)) != [1, 2][bits:] or not _are_whole(threads):
        return None
    base = ctx.ints.linear(ctx.thread, [column & -_WORD_BYTES for column in threads])
    lane = ctx.ints.linear(ctx.thread, inner)
    selector = ctx.emit.thread_value(f"mul i32 {lane}, {(1, 0x11)[bits]}")
    selector = ctx.emit.thread_value(f"or i32 {selector}, {(0x4440, 0x4410)[bits]}")
    stage, first = ctx.ints.split(ctx.raw(op.buffer)[0])
    access = nvvm_memory.Access(32, count)
    loaded: dict[int, Component] = {}
    for start in words:
        if start & (count * _WORD_BYTES - 1):
            continue
        address = _address(ctx, ctx.ints.xor_constant(base, start), stage, first)
        for index, word in enumerate(nvvm_memory.load(ctx.emit, address, access, ())):
            permuted = nvvm_convert.permute_bytes(ctx.emit, word, "0", selector)
            ctx.ints.learn(permuted, (1 << 8 * op.vector) - 1)
            for byte_index, register in words[start + _WORD_BYTES * index].items():
                shifted = (
                    ctx.emit.value(f"lshr i32 {permuted}, {8 * byte_index}")
                    if byte_index
                    else permuted
                )
                kind = llvm_type(element)
                byte = ctx.emit.value(f"trunc i32 {shifted} to i8")
                if kind != "i8":
                    byte = ctx.emit.value(f"bitcast i8 {byte} to {kind}")
                ctx.emit.parts[byte] = (permuted, byte_index)
                loaded[register] = byte
    return loaded


def _is_run(words: Sequence[int], threads: Sequence[int], count: int) -> bool:
    """Return whether words come in aligned runs of so many, for all threads."""
    size_bytes = count * _WORD_BYTES
    offsets = {*words}
    return not any(column & (size_bytes - 1) & -_WORD_BYTES for column in threads) and all(
        start + _WORD_BYTES * index in offsets
        for start in {word & -size_bytes for word in words}
        for index in range(count)
    )


def _are_whole(threads: Sequence[int]) -> bool:
    """Return whether each bit of the thread id moves within a word, or by whole words."""
    return all(column < _WORD_BYTES or not column & (_WORD_BYTES - 1) for column in threads)


def _read(
    ctx: Lowering,
    op: gpu.SharedLoad,
    address: nvvm_memory.Address,
    access: nvvm_memory.Access,
    registers: Sequence[int],
) -> list[str]:
    """Return the words of one access, or the replacements of masked-off ones."""
    if not isinstance(op, gpu.MaskedSharedLoad) or op.mask is None:
        return nvvm_memory.load(ctx.emit, address, access, ())
    element = gpu.memory_element(tile.tile_type(op, op.out))
    fallbacks = [constant(0, element)] * len(registers)
    if op.other is not None:
        fallbacks = [ctx.registers(op.other)[register] for register in registers]
    mask = ctx.registers(op.mask)[registers[0]]
    initial = pack(ctx.emit, fallbacks, element)
    if mask == "false":
        return initial
    predicate = "" if mask == "true" else mask
    return nvvm_memory.load(ctx.emit, address, replace(access, predicate=predicate), initial)


def _matrices(
    ctx: Lowering,
    op: gpu.SharedStore | gpu.SharedLoad,
    layout: LinearLayout,
    mode: MatrixMode,
    start: Sequence[int] = (),
) -> list[tuple[nvvm_memory.Address, list[tuple[int, ...]]]]:
    """Return the matrix accesses of a tile: row addresses, and registers by word."""
    shared = gpu.shared_type(op, op.buffer)
    element_bits = 8 * shared.element.size_bytes
    view = matrix_view(layout, element_bits, mode)
    if view is None:
        op.error(f"{layout} has no matrices for {mode}")
    check_runs(view, shared.layout, op.vector)
    if isinstance(op, gpu.SharedStore) and redundant_threads(ctx, layout):
        op.error("stores matrices that have copies in several threads")
    return [
        (address, word_registers(layout, element_bits, registers[0]))
        for address, registers in shared_vectors(ctx, op, op.buffer, view, op.vector, start)
    ]


def shared_vectors(
    ctx: Lowering,
    op: Op,
    buffer: Value,
    layout: LinearLayout,
    vector: int,
    start: Sequence[int] = (),
) -> list[tuple[nvvm_memory.Address, list[int]]]:
    """Return the accesses to a tile: their addresses, and their registers in memory order.

    `layout` has the buffer's shape, or the shape of a part of it at `start`. Copies of lower
    registers are left out.
    """
    shared = gpu.shared_type(op, buffer)
    vector_bits = log2_exact(vector)
    shift = log2_exact(shared.element.size_bytes)
    positions = layout.invert_and_compose(shared.layout)
    threads = [column << shift for column in thread_columns(positions)]
    origin = 0
    if start:
        origin = gf2.Span(shared.layout.columns("offset")).solve(shared.layout.pack(start)) or 0
    offsets = gf2.span_table(positions.columns("register"), origin)
    if any(offset_bytes & ((vector << shift) - 1) for offset_bytes in (*threads, origin << shift)):
        op.error(f"threads start vectors of {vector} elements at misaligned offsets")
    groups: dict[int, dict[int, int]] = {}
    for register, holder in enumerate(first_holders(layout)):
        if holder == register:
            offset = offsets[register]
            groups.setdefault(offset >> vector_bits, {})[offset & (vector - 1)] = register
    base = ctx.ints.linear(ctx.thread, threads)
    stage, first = ctx.ints.split(ctx.raw(buffer)[0])
    accesses: list[tuple[nvvm_memory.Address, list[int]]] = []
    for group, members in groups.items():
        if len(members) != vector:
            op.error(f"a thread holds {len(members)} of a vector of {vector} elements")
        offset_bytes = ctx.ints.xor_constant(base, group << vector_bits + shift)
        address = _address(ctx, offset_bytes, stage, first)
        accesses.append((address, [members[index] for index in range(vector)]))
    return accesses


def shared_parts(
    ctx: Lowering, op: Op, buffer: Value, layout: LinearLayout, vector: int, rank: Component
) -> list[tuple[nvvm_memory.Address, str, list[int]]]:
    """Return the accesses to store element i of the first axis to CTA i, as its element `rank`.

    For each: the address in this CTA, the number i, and the registers in memory order. In the
    buffer elements of the first axis lie one after the other.
    """
    shared = gpu.shared_type(op, buffer)
    shift = log2_exact(shared.element.size_bytes)
    positions = layout.invert_and_compose(shared.layout)
    part_bits = len(shared.layout.columns("offset")) - log2_exact(layout.shape[0])
    inside = (1 << part_bits) - 1
    base = ctx.ints.linear(
        ctx.thread, [(column & inside) << shift for column in thread_columns(positions)]
    )
    owner = ctx.ints.linear(
        ctx.thread, [column >> part_bits for column in thread_columns(positions)]
    )
    start = ctx.ints.mul(rank, Affine("", 1 << part_bits + shift), 32)
    stage, first = ctx.ints.split(ctx.ints.add(ctx.raw(buffer)[0], start, 32))
    offsets = gf2.span_table(positions.columns("register"))
    registers = {
        offsets[register]: register
        for register, holder in enumerate(first_holders(layout))
        if holder == register
    }
    accesses: list[tuple[nvvm_memory.Address, str, list[int]]] = []
    for offset in registers:
        if offset % vector == 0:
            part_offset = ctx.ints.xor_constant(base, (offset & inside) << shift)
            address = _address(ctx, part_offset, stage, first)
            cta = ctx.ints.materialize(ctx.ints.xor_constant(owner, offset >> part_bits), 32)
            accesses.append(
                (address, cta, [registers[offset + column] for column in range(vector)])
            )
    return accesses


def register_offsets(
    ctx: Lowering, layout: LinearLayout, shared: LinearLayout, size_bytes: int
) -> list[Component]:
    """Return the byte offset in a buffer of the element of each register."""
    shift, positions = log2_exact(size_bytes), layout.invert_and_compose(shared)
    base = ctx.ints.linear(ctx.thread, [column << shift for column in thread_columns(positions)])
    offsets = gf2.span_table(positions.columns("register"))
    return [ctx.ints.xor_constant(base, offset << shift) for offset in offsets]


def buffer_address(
    ctx: Lowering, buffer: Value, offset_bytes: Component | int = 0
) -> nvvm_memory.Address:
    """Return the address `offset_bytes` bytes into a buffer."""
    stage, first = ctx.ints.split(ctx.raw(buffer)[0])
    return _address(
        ctx,
        Affine("", offset_bytes) if isinstance(offset_bytes, int) else offset_bytes,
        stage,
        first,
    )


def mbarrier_address(ctx: Lowering, barrier: Value, warp_stride: int) -> nvvm_memory.Address:
    """Return the address of a mbarrier, or of the warp's own, so many mbarriers after the one before it."""
    address = buffer_address(ctx, barrier)
    if not warp_stride:
        return address
    stride_bytes = warp_stride * mbarrier.MBARRIER_BYTES
    return moved(ctx, address, ctx.emit.thread_value(f"mul i32 {ctx.warp}, {stride_bytes}"))


def moved(ctx: Lowering, address: nvvm_memory.Address, offset_bytes: str) -> nvvm_memory.Address:
    """Return an address plus `offset_bytes`, a run-time value."""
    base = ctx.emit.value(f"add i32 {address.base}, {offset_bytes}")
    return replace(address, base=base)


def _address(ctx: Lowering, offset_bytes: Component, stage: str, start: int) -> nvvm_memory.Address:
    """Return the address `offset_bytes` bytes into the buffer at `stage` plus `start`."""
    ctx.uses_shared = True
    base, offset = ctx.ints.split(offset_bytes)
    array = f"ptrtoint (ptr addrspace(3) {SHARED} to i32)"
    if base:
        # The array is aligned to 1024 bytes only, so this must be an add, not an or.
        array = ctx.emit.thread_value(f"add i32 {base}, {array}")
    if stage:
        array = ctx.emit.value(f"add i32 {stage}, {array}")
    return nvvm_memory.Address("shared", array, start + offset)
