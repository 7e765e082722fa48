"""Rules for layout conversions inside a warp.

`gpu.convert` renames registers. `gpu.shuffle_convert` executes a plan literally: swap registers in
some threads, exchange words between lanes, swap again. The plan's tuples have the fields of
`WarpShuffle` in the conversion planner, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from aotc.backend import nvvm
from aotc.backend.llvm_types import llvm_type
from aotc.backend.lower import LANE_BITS, Lowering, Results, layout_of, lowers
from aotc.backend.packing import from_i32_words, pack, to_i32_words, unpack
from aotc.backend.thread_map import rename
from aotc.ir.dialects import gpu, tile
from aotc.ir.types import ElementType


class _Swap(NamedTuple):
    """Swap registers `r` and `r ^ register_xor` in threads with odd parity under a mask."""

    lane_mask: int
    warp_mask: int
    register_xor: int


class _Round(NamedTuple):
    """Send the pack at `send_register`, receive one into the pack at `receive_register`."""

    send_register: int
    receive_register: int
    lane_xor: int
    accept: int


class _Plan(NamedTuple):
    send_pack: tuple[int, ...]
    receive_pack: tuple[int, ...]
    send_swaps: tuple[tuple[int, int, int], ...]
    rounds: tuple[tuple[int, int, int, int], ...]
    source_lane_columns: tuple[int, ...]
    source_warp_columns: tuple[int, ...]
    accept_masks: tuple[int, ...]
    receive_swaps: tuple[tuple[int, int, int], ...]
    representative: tuple[int, ...]
    cost: int

    @property
    def is_butterfly(self) -> bool:
        """True if each round exchanges with the own lane XOR a constant."""
        identity = tuple(1 << bit for bit in range(len(self.source_lane_columns)))
        return self.source_lane_columns == identity and not any(self.source_warp_columns)


@lowers(gpu.Convert)
def lower_convert(ctx: Lowering, op: gpu.Convert) -> Results:
    """Lower a conversion within each thread."""
    return [rename(op, ctx.raw(op.value), layout_of(op.value.type), op.layout)]


@lowers(gpu.ShuffleConvert)
def lower_shuffle(ctx: Lowering, op: gpu.ShuffleConvert) -> Results:
    """Lower a conversion by shuffles, as planned."""
    plan = _Plan._make(cast("tuple[Any, ...]", op.plan))
    element = tile.tile_type(op, op.value).element
    sent = _swapped(ctx, ctx.registers(op.value), plan.send_swaps, element)
    source_lane = "" if plan.is_butterfly else _source_lane(ctx, plan)
    acceptance = _linear_thread_value(ctx, plan.accept_masks) if plan.accept_masks else ""
    received: dict[int, str] = {}
    for step in map(_Round._make, plan.rounds):
        offered = [sent[step.send_register ^ part] for part in plan.send_pack]
        exchanged = _exchange(ctx, offered, element, source_lane, step.lane_xor)
        accepts = ""
        if acceptance:
            accepts = ctx.emit.thread_value(f"icmp eq i32 {acceptance}, {step.accept}")
        for part, value in zip(plan.receive_pack, exchanged, strict=True):
            register = step.receive_register ^ part
            received[register] = _choose(ctx, accepts, value, received.get(register), element)
    swapped = _swapped(ctx, received, plan.receive_swaps, element)
    return [tuple(swapped[register] for register in plan.representative)]


def _choose(ctx: Lowering, condition: str, yes: str, no: str | None, element: ElementType) -> str:
    if not condition or no is None or yes == no:
        return yes
    kind = llvm_type(element)
    return ctx.emit.value(f"select i1 {condition}, {kind} {yes}, {kind} {no}")


def _swapped(
    ctx: Lowering,
    registers: Sequence[str] | dict[int, str],
    swaps: Sequence[tuple[int, int, int]],
    element: ElementType,
) -> dict[int, str]:
    """Return the registers after conditional swaps, in order."""
    current = registers if isinstance(registers, dict) else dict(enumerate(registers))
    for swap in map(_Swap._make, swaps):
        odd = _parity(ctx, swap.lane_mask | swap.warp_mask << LANE_BITS)
        current = {
            register: _choose(ctx, odd, current[register ^ swap.register_xor], value, element)
            for register, value in current.items()
        }
    return current


def _parity(ctx: Lowering, mask: int) -> str:
    """Return an i1: whether the thread has an odd number of the bits of `mask`."""
    if mask & (mask - 1):
        masked = ctx.emit.thread_value(f"and i32 {ctx.thread}, {mask}")
        ctx.emit.declare("i32", "llvm.ctpop.i32", ("i32",))
        count = ctx.emit.thread_value(f"call i32 @llvm.ctpop.i32(i32 {masked})")
        bit = ctx.emit.thread_value(f"and i32 {count}, 1")
    else:
        bit = ctx.emit.thread_value(f"and i32 {ctx.thread}, {mask}")
    return ctx.emit.thread_value(f"icmp ne i32 {bit}, 0")


def _linear_thread_value(ctx: Lowering, lane_masks: Sequence[int]) -> str:
    """Return the i32 with bit `j` the parity of `lane & lane_masks[j]`."""
    columns = [
        sum((mask >> bit & 1) << index for index, mask in enumerate(lane_masks))
        for bit in range(LANE_BITS)
    ]
    return ctx.ints.linear(ctx.thread, columns) or "0"


def _source_lane(ctx: Lowering, plan: _Plan) -> str:
    """Return the source lane in a round with `lane_xor` 0."""
    lanes = list(plan.source_lane_columns)
    lanes += [0] * (LANE_BITS - len(lanes))
    return ctx.ints.linear(ctx.thread, [*lanes, *plan.source_warp_columns]) or "0"


def _exchange(
    ctx: Lowering, offered: Sequence[str], element: ElementType, source_lane: str, lane_xor: int
) -> list[str]:
    """Exchange elements between lanes, in one word of up to 32 bits, or two of one element."""
    if not source_lane and lane_xor == 0:
        return list(offered)
    emit = ctx.emit

    def move(word: str) -> str:
        if not source_lane:
            return nvvm.shuffle(emit, "bfly", word, str(lane_xor))
        lane = source_lane
        if lane_xor:
            lane = ctx.ints.materialize(ctx.ints.xor_constant(source_lane, lane_xor), 32)
        return nvvm.shuffle(emit, "idx", word, lane)

    if len(offered) == 1:
        words = [move(word) for word in to_i32_words(emit, offered[0], element)]
        return [from_i32_words(emit, words, element)]
    words = pack(emit, offered, element)
    bits = 8 * element.size_bytes * len(offered)
    if bits == 16:
        exchanged = move(emit.value(f"zext i16 {words[0]} to i32"))
        return unpack(emit, [emit.value(f"trunc i32 {exchanged} to i16")], element, len(offered))
    return unpack(emit, [move(word) for word in words], element, len(offered))
