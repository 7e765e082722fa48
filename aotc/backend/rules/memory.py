"""Rules for global memory: one instruction for each vector of registers.

Masks are predicates, never branches: a masked-off lane does not access memory. Addresses keep their
constant part separate, so it becomes the immediate of the instruction. Copies of a register are
loaded once, and a store is made by one of the threads with the same element.
"""

from __future__ import annotations

from dataclasses import replace

from aotc.backend import nvvm_memory
from aotc.backend.integers import Component
from aotc.backend.llvm_types import constant
from aotc.backend.lower import Lowering, Results, lowers, num_registers
from aotc.backend.packing import pack, unpack, word_shape
from aotc.backend.thread_map import both, first_holders, is_first_holder
from aotc.ir.core import Value
from aotc.ir.dialects import gpu
from aotc.ir.layout import LinearLayout
from aotc.ir.types import PointerType, ScalarType, TileType, element_of

_MAX_IMMEDIATE = 1 << 31
_EVICTION = ("", "evict_normal", "evict_first", "evict_last")
_LOAD_CACHE = ("", "ca", "cg", "cv", "cs")
_STORE_CACHE = ("", "wb", "cg", "cs", "wt")

Access = gpu.Load | gpu.Store | gpu.AtomicRmw


@lowers(gpu.Load)
def lower_load(ctx: Lowering, op: gpu.Load) -> Results:
    """Lower a load from global memory."""
    element, layout = access_place(ctx, op, op.pointer)
    access = _access(ctx, op, element, _LOAD_CACHE, op.volatile)
    access = replace(access, prefetch_bytes=op.prefetch_bytes)
    masks, fallbacks = access_masks(ctx, op), _others(ctx, op, element)
    addresses = ctx.raw(op.pointer)
    loaded: dict[int, str] = {}
    holders = [0] if layout is None else first_holders(layout, op.constancy)
    for head in range(0, len(holders), op.vector):
        group = range(head, head + op.vector)
        if holders[head] != head:
            loaded.update((register, loaded[holders[register]]) for register in group)
            continue
        mask = masks[head]
        if mask == "false":
            loaded.update((register, fallbacks[register]) for register in group)
            continue
        predicate = "" if mask == "true" else mask
        initial = pack(ctx.emit, [fallbacks[r] for r in group], element) if predicate else []
        words = nvvm_memory.load(
            ctx.emit,
            global_address(ctx, addresses[head]),
            replace(access, predicate=predicate),
            initial,
        )
        loaded.update(zip(group, unpack(ctx.emit, words, element, op.vector), strict=True))
    return [tuple(loaded[register] for register in range(len(holders)))]


@lowers(gpu.Store)
def lower_store(ctx: Lowering, op: gpu.Store) -> Results:
    """Lower a store to global memory."""
    element, layout = access_place(ctx, op, op.pointer)
    access = _access(ctx, op, element, _STORE_CACHE, volatile=False)
    masks, addresses, values = access_masks(ctx, op), ctx.raw(op.pointer), ctx.registers(op.value)
    mine = is_first_holder(ctx, layout)
    holders = [0] if layout is None else first_holders(layout)
    for head in range(0, len(holders), op.vector):
        if holders[head] != head or masks[head] == "false":
            continue
        words = pack(ctx.emit, values[head : head + op.vector], element)
        nvvm_memory.store(
            ctx.emit,
            global_address(ctx, addresses[head]),
            replace(access, predicate=both(ctx, masks[head], mine)),
            words,
        )
    return []


def access_place(
    ctx: Lowering, op: Access, pointer: Value
) -> tuple[ScalarType, LinearLayout | None]:
    """Return the element type and the layout of an access; no layout for a scalar one."""
    pointee = element_of(pointer.type)
    if not isinstance(pointee, PointerType):
        op.error("does not go through a pointer")
    layout = pointer.type.layout if isinstance(pointer.type, TileType) else None
    registers = 1 if layout is None else layout.in_size("register")
    size = pointee.pointee.size_bytes * op.vector
    if registers % op.vector or size > ctx.target.max_global_access_bytes or size & (size - 1):
        op.error(f"accesses {op.vector} of {registers} registers, {size} bytes, at once")
    return pointee.pointee, layout


def global_address(ctx: Lowering, pointer: Component) -> nvvm_memory.Address:
    """Return the address of an access; a too large offset is added to the base."""
    base, offset = ctx.ints.split(pointer)
    if not -_MAX_IMMEDIATE <= offset < _MAX_IMMEDIATE:
        base, offset = ctx.ints.materialize_pointer(pointer), 0
    return nvvm_memory.Address("global", base, offset)


def access_masks(ctx: Lowering, op: Access) -> list[str]:
    """Return the mask of each register, "true" without a mask."""
    if op.mask is None:
        return ["true"] * num_registers(op.pointer.type)
    return ctx.registers(op.mask)


def _others(ctx: Lowering, op: gpu.Load, element: ScalarType) -> list[str]:
    if op.other is not None:
        return ctx.registers(op.other)
    return [constant(0, element)] * num_registers(op.out.type)


def _access(
    ctx: Lowering,
    op: gpu.Load | gpu.Store,
    element: ScalarType,
    known_caches: tuple[str, ...],
    volatile: bool,  # noqa: FBT001 - an attribute of the op, passed on
) -> nvvm_memory.Access:
    """Return the access without its predicate.

    PTX does not allow a cache operator together with an L1 eviction priority; an L2 policy with the
    same effect as the priority can be combined with both.
    """
    if op.cache not in known_caches or op.eviction not in _EVICTION:
        op.error(f"has unknown modifiers {op.cache!r}, {op.eviction!r}")
    bits, count = word_shape(element, op.vector)
    cache = op.cache and f".{op.cache}"
    modifiers, policy = cache, ""
    if volatile:
        modifiers = ""
    else:
        policy = l2_policy(ctx, op.eviction)
        if policy:
            modifiers = cache or f".L1::{op.eviction}"
    return nvvm_memory.Access(bits, count, modifiers=modifiers, policy=policy, volatile=volatile)


def l2_policy(ctx: Lowering, eviction: str) -> str:
    """Return the operand of the L2 cache policy for an eviction priority, or "" for the default."""
    if eviction in ("evict_first", "evict_last"):
        return nvvm_memory.create_policy(ctx.emit, eviction)
    return ""
