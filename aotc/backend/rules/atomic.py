"""Rules for atomics: one instruction for each vector of registers, and fences.

An update with an unused result is a `red`, which does not wait for an answer. Atomics are relaxed:
the schedule emits the ordering fences and barriers, one fence for a whole tile instead of one for
each of its elements.

Minimum and maximum of floats use integer instructions. The bits of positive floats rise with their
value and the bits of negative ones fall, so the sign picks a signed or an unsigned instruction.
"""

from __future__ import annotations

from dataclasses import replace

from aotc.backend import nvvm_memory
from aotc.backend.integers import Component
from aotc.backend.llvm_types import GLOBAL_POINTER, constant
from aotc.backend.lower import Lowering, Results, layout_of, lowers
from aotc.backend.packing import pack, unpack, word_shape
from aotc.backend.rules.memory import access_masks, access_place, global_address
from aotc.backend.thread_map import both, first_holders, is_first_holder
from aotc.ir.dialects import gpu, tile
from aotc.ir.types import BF16, ScalarType
from aotc.target import Feature

_HALF_TYPES = {"fp16": "f16", "bf16": "bf16"}
# The operation for a negative value, on its bits as an unsigned integer.
_REVERSED = {"max": "min", "min": "max"}


@lowers(gpu.AtomicRmw)
def lower_rmw(ctx: Lowering, op: gpu.AtomicRmw) -> Results:
    """Lower an atomic update."""
    element, layout = access_place(ctx, op, op.pointer)
    masks, addresses, values = access_masks(ctx, op), ctx.raw(op.pointer), ctx.registers(op.value)
    mine = is_first_holder(ctx, layout)
    holders = [0] if layout is None else first_holders(layout)
    before: dict[int, str] = dict.fromkeys(range(len(holders)), constant(0, element))
    for head in range(0, len(holders), op.vector):
        group = range(head, head + op.vector)
        if holders[head] != head:
            before.update((register, before[holders[register]]) for register in group)
        elif masks[head] != "false":
            words = pack(ctx.emit, [values[register] for register in group], element)
            predicate = both(ctx, masks[head], mine)
            read = _update(ctx, op, element, addresses[head], words, predicate)
            if read:
                elements = unpack(ctx.emit, read, element, op.vector)
                before.update(zip(group, elements, strict=True))
    return [tuple(before[register] for register in range(len(holders)))]


@lowers(gpu.AtomicCas)
def lower_cas(ctx: Lowering, op: gpu.AtomicCas) -> Results:
    """Lower an atomic compare-and-swap."""
    kind, layout = tile.tile_type(op, op.value), layout_of(op.value.type)
    bits, _ = word_shape(kind.element, 1)
    how = nvvm_memory.Atomic(f"cas.b{bits}", bits, 1, is_first_holder(ctx, layout), op.scope)
    compares, values = (
        [pack(ctx.emit, [operand_words], kind.element) for operand_words in ctx.registers(operand)]
        for operand in (op.compare, op.value)
    )
    addresses, holders = ctx.raw(op.pointer), first_holders(layout)
    before: list[str] = []
    for register, holder in enumerate(holders):
        if holder != register:
            before.append(before[holder])
            continue
        address, words = global_address(ctx, addresses[register]), (compares, values)
        operands = (operand_words[register] for operand_words in words)
        # The old value is read even if unused: `red` has no compare-and-swap.
        read = nvvm_memory.atomic(ctx.emit, address, how, *operands, initial=["0"])
        before += unpack(ctx.emit, read, kind.element, 1)
    return [tuple(before)]


@lowers(gpu.Fence)
def lower_fence(ctx: Lowering, op: gpu.Fence) -> Results:
    """Lower a fence."""
    nvvm_memory.fence(ctx.emit, op.scope)
    return []


def _update(
    ctx: Lowering,
    op: gpu.AtomicRmw,
    element: ScalarType,
    pointer: Component,
    words: list[str],
    predicate: str,
) -> list[str]:
    """Update the words at a pointer; return the old ones, or nothing if unused."""
    if element.bits == 16 and op.kind in _REVERSED:
        address, (word,) = global_address(ctx, pointer), words
        pick = f"{op.kind}.{_HALF_TYPES[element.name]}"
        return [nvvm_memory.atomic_pick_half(ctx.emit, address, word, pick, predicate, op.scope)]
    if element == BF16 and Feature.BF16_ATOMICS not in ctx.target.features:
        return [_add_bf16(ctx, op, pointer, words[0], predicate)]
    address = global_address(ctx, pointer)
    bits, count = word_shape(element, op.vector)
    initial = ["0"] * count if op.out.users else None
    how = nvvm_memory.Atomic("", bits, count, predicate, op.scope)
    if not element.is_float or op.kind not in _REVERSED:
        how = replace(how, operation=_operation(op, element, bits))
        return nvvm_memory.atomic(ctx.emit, address, how, words, initial=initial)
    (word,) = words
    negative = ctx.emit.value(f"icmp slt i{bits} {word}, 0")
    positive = ctx.emit.value(f"xor i1 {negative}, true")
    for operation, sign in ((f"{op.kind}.s", positive), (f"{_REVERSED[op.kind]}.u", negative)):
        condition = both(ctx, predicate or "true", sign)
        how = replace(how, operation=f"{operation}{bits}", predicate=condition)
        # Only one of the two executes; the second passes on the result of the first.
        read = nvvm_memory.atomic(ctx.emit, address, how, words, initial=initial)
        initial = read or None
    return initial or []


def _operation(op: gpu.AtomicRmw, element: ScalarType, bits: int) -> str:
    """Return the instruction's name for an update of words of `bits` each."""
    if op.kind == "xchg":
        return f"exch.b{bits}"
    if op.kind in ("and", "or", "xor"):
        return f"{op.kind}.b{bits}"
    if op.kind == "add":
        if element.bits == 16:
            return f"add.noftz.{_HALF_TYPES[element.name]}{'x2' if bits == 32 else ''}"
        return f"add.{'f' if element.is_float else 'u'}{bits}"
    return f"{op.kind}.{'s' if element.is_signed else 'u'}{bits}"


def _add_bf16(
    ctx: Lowering, op: gpu.AtomicRmw, pointer: Component, word: str, predicate: str
) -> str:
    """Add one bf16 or an aligned pair without an instruction for it; return the old value."""
    emit = ctx.emit
    if op.vector == 2:
        return nvvm_memory.atomic_add_bf16x2(
            emit, global_address(ctx, pointer), (word, "-1"), predicate, op.scope
        )
    if op.vector != 1:
        op.error(f"adds {op.vector} bf16 at once")
    target = ctx.ints.materialize_pointer(pointer)
    odd = emit.value(f"and i64 {emit.value(f'ptrtoint {GLOBAL_POINTER} {target} to i64')}, 2")
    back = emit.value(f"sub i64 0, {odd}")
    aligned = emit.value(f"getelementptr i8, {GLOBAL_POINTER} {target}, i64 {back}")
    shift = emit.value(f"shl i32 {emit.value(f'trunc i64 {odd} to i32')}, 3")
    addend = emit.value(f"shl i32 {emit.value(f'zext i16 {word} to i32')}, {shift}")
    mask = emit.value(f"shl i32 65535, {shift}")
    address = nvvm_memory.Address("global", aligned)
    pair = nvvm_memory.atomic_add_bf16x2(emit, address, (addend, mask), predicate, op.scope)
    return emit.value(f"trunc i32 {emit.value(f'lshr i32 {pair}, {shift}')} to i16")
