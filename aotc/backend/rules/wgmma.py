"""Rules for `wgmma`: matrix descriptors, registers and the order of instructions.

`ir.wgmma_tiling` derives the instructions from the layouts. The loop over K is outermost, as in the
rule of `mma.sync`. A descriptor has an address in units of 16 bytes. So steps along K, M and N are
constants added to the descriptor of the operand's first element.
"""

from __future__ import annotations

from aotc.backend import nvvm, nvvm_wgmma
from aotc.backend.llvm_types import constant, llvm_type
from aotc.backend.lower import (
    LANE_BITS,
    SHARED,
    WARP_SIZE,
    WARPGROUP_SIZE,
    Lowering,
    Results,
    layout_of,
    lowers,
    num_registers,
)
from aotc.backend.nvvm_wgmma import WgmmaKind, WgmmaStep
from aotc.backend.packing import pack, unpack
from aotc.backend.rules.arith import scalar_element
from aotc.ir.core import Value
from aotc.ir.dialects import gpu, wgmma
from aotc.ir.types import (
    BF16,
    FP8E4NV,
    FP8E5,
    FP16,
    FP32,
    I8,
    I32,
    U8,
    ElementType,
    PointerType,
    SharedType,
    element_of,
)
from aotc.ir.wgmma_tiling import AccumulatorTile, MatrixInMemory, WgmmaTiling, tile_wgmma

_OPERANDS: dict[ElementType, str] = {
    BF16: "bf16",
    FP16: "f16",
    FP32: "tf32",
    FP8E4NV: "e4m3",
    FP8E5: "e5m2",
    I8: "s8",
    U8: "u8",
}
_RESULTS: dict[ElementType, str] = {FP16: "f16", FP32: "f32", I32: "s32"}
_GROUP_BITS = 2  # bits of a warp's index within its warpgroup
_UNIT_BITS = 4  # log2 of a descriptor's address unit
_OWN_ADDRESS_MASK = (1 << 24) - 1


@lowers(gpu.Undefined)
def lower_undefined(ctx: Lowering, op: gpu.Undefined) -> Results:
    """Lower a tile of undefined elements.

    16-bit elements are unpacked from zero registers: the dot that ignores them, and a loop that
    carries them, use packed registers.
    """
    if isinstance(op.type, PointerType):
        return [("poison",)]
    element, count = scalar_element(op, op.out), num_registers(op.out.type)
    if element.bits >= 32:
        return [("poison",) * count]
    words, rest = divmod(count * element.bits, 32)
    if rest:
        return [(constant(0, element),) * count]
    return [tuple(unpack(ctx.emit, ["0"] * words, element, count))]


@lowers(wgmma.Wgmma)
def lower_wgmma(ctx: Lowering, op: wgmma.Wgmma) -> Results:
    """Lower a dot of a warpgroup to one commit group."""
    tiling = _tiling(op)
    acc_registers = ctx.registers(op.acc)
    acc = [_open(ctx, op.acc, tile, acc_registers) for tile in tiling.acc_tiles]
    a, words = _operand_a(ctx, op, tiling)
    b = _descriptor(ctx, op.b, tiling.b, tiling.warp_columns)
    accumulate = "true" if op.accumulate is None else ctx.scalar(op.accumulate)
    if accumulate == "false" and not isinstance(op.acc.op, gpu.Undefined):
        # It begins in the registers of another result; ptxas would move it elsewhere.
        accumulate = nvvm_wgmma.opaque_false(ctx.emit)
    row, column = op.start or (0, 0)
    first = op.start_k // tiling.k
    end = first + op.size_k // tiling.k if op.size_k else tiling.num_steps
    # An operand in registers has this part of K alone.
    steps = [
        WgmmaStep(
            number,
            tile.columns,
            _start(tiling.a, row + tile.row, tiling.k * step)
            if tiling.a
            else words[tile.row, tile.column, step - first],
            _start(tiling.b, column + tile.column, tiling.k * step),
            first=step == first and accumulate != "true",
        )
        for step in range(first, end)
        for number, tile in enumerate(tiling.acc_tiles)
    ]
    out = nvvm_wgmma.wgmma(ctx.emit, _kind(op, tiling), steps, acc, a, b, accumulate)
    registers = list(acc_registers)
    for tile, results in zip(tiling.acc_tiles, out, strict=True):
        _close(ctx, op.acc, tile, results, registers)
    return [tuple(registers)]


@lowers(wgmma.WgmmaWait)
def lower_wait(ctx: Lowering, op: wgmma.WgmmaWait) -> Results:
    """Lower the wait for dots; the accumulators pass through in their registers."""
    written_registers = [
        _written_registers(value, num_columns)
        for value, num_columns in zip(
            op.values, op.num_columns or [0] * len(op.values), strict=True
        )
    ]
    packed = [_words(ctx, *pair) for pair in zip(op.values, written_registers, strict=True)]
    flat = [
        (_word_type(value), word)
        for value, words in zip(op.values, packed, strict=True)
        for word in words
    ]
    waited = iter(nvvm_wgmma.wgmma_wait(ctx.emit, op.pending, flat))
    results: list[tuple[str, ...]] = []
    for value, written, words in zip(op.values, written_registers, packed, strict=True):
        registers = ctx.registers(value)
        finished = _unpacked(ctx, value, [next(waited) for _ in words], len(written))
        for register, word in zip(written, finished, strict=True):
            registers[register] = word
        results.append(tuple(registers))
    return results


def _tiling(op: wgmma.Wgmma) -> WgmmaTiling:
    in_memory = isinstance(op.a.type, SharedType)
    a = op.a.type.layout if isinstance(op.a.type, SharedType) else layout_of(op.a.type)
    b = gpu.shared_type(op, op.b)
    layouts = a, b.layout, layout_of(op.acc.type)
    return tile_wgmma(*layouts, b.element.bits, op.num_columns, in_memory=in_memory)


def _kind(op: wgmma.Wgmma, tiling: WgmmaTiling) -> WgmmaKind:
    types = [element_of(value.type) for value in (op.acc, op.a, op.b)]
    names = _RESULTS[types[0]], _OPERANDS[types[1]], _OPERANDS[types[2]]
    scales = [] if types[0] == I32 else ["1", "1"]
    if types[1].bits == 16:
        scales += [str(int(matrix.rows_contiguous)) for matrix in (tiling.a, tiling.b) if matrix]
    tail = "".join(f", {matrix}" for matrix in scales)
    return WgmmaKind(f"k{tiling.k}.{'.'.join(names)}", _word_type(op.acc), tail)


# ---- operands ---------------------------------------------------------------------------------


def _operand_a(
    ctx: Lowering, op: wgmma.Wgmma, tiling: WgmmaTiling
) -> tuple[str | list[str], dict[tuple[int, int, int], list[int]]]:
    """Return A's matrix descriptor, or its registers and the ones each instruction reads."""
    if tiling.a is not None:
        return _descriptor(ctx, op.a, tiling.a, tiling.warp_rows), {}
    registers, element = ctx.registers(op.a), element_of(op.a.type)
    indices: dict[tuple[int, ...], int] = {}
    words: list[str] = []
    reads: dict[tuple[int, int, int], list[int]] = {}
    for tile in tiling.acc_tiles:
        for step, fragment in enumerate(tile.a):
            for word in fragment:
                if word not in indices:
                    indices[word] = len(words)
                    words += pack(ctx.emit, [registers[r] for r in word], element)
            reads[tile.row, tile.column, step] = [indices[word] for word in fragment]
    return words, reads


def _descriptor(
    ctx: Lowering, buffer: Value, matrix: MatrixInMemory, warps: tuple[int, ...]
) -> str:
    """Return the descriptor of a matrix at the warpgroup's part."""
    ctx.uses_shared = True
    # The four warps of a warpgroup share one address.
    row_bytes = [matrix.start_bytes(row, 0) for row in warps[_GROUP_BITS:]]
    group_bytes = ctx.ints.linear(ctx.thread, [0] * (LANE_BITS + _GROUP_BITS) + row_bytes)
    address = f"ptrtoint (ptr addrspace(3) {SHARED} to i32)"
    if ctx.kernel.num_ctas > 1:
        # In a cluster, addresses contain the CTA's rank, in bits of another descriptor field.
        address = ctx.emit.thread_value(f"and i32 {address}, {_OWN_ADDRESS_MASK}")
    if group_bytes:
        address = ctx.emit.thread_value(f"add i32 {group_bytes}, {address}")
    stage, first = ctx.ints.split(ctx.raw(buffer)[0])
    if stage:
        address = ctx.emit.value(f"add i32 {stage}, {address}")
    units = ctx.emit.value(f"lshr i32 {address}, {_UNIT_BITS}")
    wide = ctx.emit.value(f"zext i32 {units} to i64")
    constant = matrix.descriptor + (first >> _UNIT_BITS)
    return ctx.emit.value(f"add i64 {wide}, {constant}")


def _start(matrix: MatrixInMemory, row: int, k: int) -> int:
    return matrix.start_bytes(row, k) >> _UNIT_BITS


# ---- results ----------------------------------------------------------------------------------


def _word_type(value: Value) -> str:
    element = element_of(value.type)
    return llvm_type(element) if element.bits == 32 else "i32"


def _written_registers(value: Value, num_columns: int) -> list[int]:
    """Return the accumulator registers written by wgmma, for its first `num_columns`."""
    if not num_columns:
        return list(range(num_registers(value.type)))
    coords = layout_of(value.type).coords_table("register")
    return [register for register, (_, column) in enumerate(coords) if column < num_columns]


def _words(ctx: Lowering, value: Value, written: list[int]) -> list[str]:
    """Return an accumulator as the 32-bit registers of wgmma, packed if it is fp16."""
    registers, element = ctx.registers(value), element_of(value.type)
    values = [registers[register] for register in written]
    return values if element.bits == 32 else pack(ctx.emit, values, element)


def _unpacked(ctx: Lowering, value: Value, words: list[str], count: int) -> list[str]:
    element = element_of(value.type)
    return words if element.bits == 32 else unpack(ctx.emit, words, element, count)


def _open(ctx: Lowering, value: Value, tile: AccumulatorTile, registers: list[str]) -> list[str]:
    values, element = [registers[register] for register in tile.acc], element_of(value.type)
    if element.bits == 32:
        return values
    return pack(ctx.emit, values, element)


def _close(
    ctx: Lowering, value: Value, tile: AccumulatorTile, words: list[str], registers: list[str]
) -> None:
    element = element_of(value.type)
    values = words if element.bits == 32 else unpack(ctx.emit, words, element, len(tile.acc))
    for register, word in zip(tile.acc, values, strict=True):
        registers[register] = word


@lowers(wgmma.Turn)
def lower_turn(ctx: Lowering, op: wgmma.Turn) -> Results:
    """Lower a turn of two warpgroups: each waits at its own barrier for the other's arrival."""
    op.expect(
        ctx.kernel.num_warps == 2 * WARPGROUP_SIZE // WARP_SIZE, "turns are of two warpgroups"
    )
    number = ctx.emit.thread_value(f"udiv i32 {ctx.thread}, {WARPGROUP_SIZE}")
    if op.kind == "begin":
        # The first warpgroup arrives at an unused barrier: without a branch for ptxas to predicate.
        barrier = ctx.emit.thread_value(f"add i32 {number}, {nvvm.NamedBarrier.TURN - 1:d}")
    elif op.kind == "take":
        barrier = ctx.emit.thread_value(f"add i32 {number}, {nvvm.NamedBarrier.TURN:d}")
    else:
        barrier = ctx.emit.thread_value(f"sub i32 {nvvm.NamedBarrier.TURN + 1:d}, {number}")
    wait = nvvm.barrier if op.kind == "take" else nvvm.arrive
    wait(ctx.emit, 2 * WARPGROUP_SIZE, barrier)
    return []
