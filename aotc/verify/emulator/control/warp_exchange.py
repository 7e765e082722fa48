"""Exchanges within a warp: shuffles, votes, matches, `redux` and `elect`.

They exchange registers and order no memory: only `bar.warp.sync` orders a warp's memory accesses.

Source: PTX ISA, "shfl.sync", "vote.sync", "match.sync", "activemask", "redux.sync", "elect.sync".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import reshape, view
from aotc.verify.emulator.engine.context import Context, Machine
from aotc.verify.emulator.engine.registry import Execute, executes
from aotc.verify.emulator.errors import Misuse, Unsupported
from aotc.verify.emulator.memory.vector_clocks import Ints
from aotc.verify.emulator.syntax import Immediate, Instruction, Operand, Pair, Sink

Bools: TypeAlias = npt.NDArray[np.bool_]
Words: TypeAlias = npt.NDArray[Any]

_LANES = np.arange(32, dtype=np.int64)
_ALL = 0xFFFFFFFF


# ---- shuffles -----------------------------------------------------------------------------------

# The source lane, from the lane, b, the clamp and the segment's mask.
_SOURCES: dict[str, Callable[[Ints, Ints, Ints, Ints], Ints]] = {
    "up": lambda lane, b, clamp, segment: lane - b,  # noqa: ARG005 - a row of a table
    "down": lambda lane, b, clamp, segment: lane + b,  # noqa: ARG005
    "bfly": lambda lane, b, clamp, segment: lane ^ b,  # noqa: ARG005
    "idx": lambda lane, b, clamp, segment: lane & segment | b & ~segment,  # noqa: ARG005
}


@executes("shfl")
def shuffle(instruction: Instruction) -> Execute:
    """Read a register of another lane; the predicate tells whether it was in range."""
    if instruction.modifiers[0] != "sync" or instruction.modifiers[2] != "b32":
        raise Unsupported("shfl other than .sync and .b32")
    mode = instruction.modifiers[1]
    value, predicate = _split(instruction.operands[0])
    source, index, clamp, members = instruction.operands[1:]
    fixed = None
    if isinstance(index, Immediate) and isinstance(clamp, Immediate):
        fixed = _source_lanes(mode, np.array(index.value), np.array(clamp.value))

    def run(ctx: Context) -> None:
        whole = _check_members(ctx, members)
        registers = ctx.read_warps(source, 32)
        if fixed is None:
            b = ctx.read_warps(index, 32).astype(np.int64)
            c = ctx.read_warps(clamp, 32).astype(np.int64)
            lanes, inside = _source_lanes(mode, b, c)
            shuffled = np.take_along_axis(registers, lanes, axis=1)
        else:
            lanes, inside = fixed
            shuffled = registers.take(lanes, axis=1)
        if not whole:
            _check_sources(ctx, np.broadcast_to(lanes, registers.shape))
        ctx.write_warps(value, shuffled)
        if not isinstance(predicate, Sink):
            ctx.write_warps(predicate, np.broadcast_to(inside, registers.shape))

    return run


def _source_lanes(mode: str, index: Ints, clamp: Ints) -> tuple[Ints, Bools]:
    """Return each lane's source, itself if out of range, and the in-range mask."""
    b, bound, segment = index & 31, clamp & 31, clamp >> 8 & 31
    last = _LANES & segment | bound & ~segment
    lanes = _SOURCES[mode](_LANES, b, bound, segment)
    inside = lanes >= last if mode == "up" else lanes <= last
    return np.where(inside, lanes, _LANES), inside


def _check_sources(ctx: Context, lanes: Ints) -> None:
    """Check that active lanes read from active lanes."""
    active = ctx.active()
    bad = active & ~np.take_along_axis(active, lanes, axis=1)
    if bad.any():
        warp, lane = (int(i[0]) for i in np.nonzero(bad))
        raise Misuse(
            "convergence",
            f"reads from lane {int(lanes[warp, lane])}, which does not take part",
            lane=int(ctx.warps()[warp]) * 32 + lane,
        )


# ---- votes --------------------------------------------------------------------------------------


@executes("vote")
def vote(instruction: Instruction) -> Execute:
    """Combine a predicate over the lanes of a warp."""
    if instruction.modifiers[0] != "sync":
        raise Unsupported("vote other than .sync")
    mode = instruction.modifiers[1]
    result, source, members = instruction.operands

    def run(ctx: Context) -> None:
        _check_members(ctx, members)
        true = _packed(ctx.read_warps(source, 1) & ctx.active())[:, None]
        masks = ctx.read_warps(members, 32)
        if mode == "ballot":
            ctx.write_warps(result, true & masks)
        elif mode == "any":
            ctx.write_warps(result, true & masks != 0)
        elif mode == "all":
            ctx.write_warps(result, true & masks == masks)
        else:
            ctx.write_warps(result, (true & masks == masks) | (true & masks == 0))

    if mode not in ("ballot", "any", "all", "uni"):
        raise Unsupported(f"modifier .{mode}")
    return run


@executes("activemask")
def active_mask(instruction: Instruction) -> Execute:
    """Return the mask of lanes that execute this instruction together."""
    (result,) = instruction.operands

    def run(ctx: Context) -> None:
        masks = _packed(ctx.active())[:, None]
        ctx.write_warps(result, np.broadcast_to(masks, (len(masks), 32)))

    return run


class Leaders:
    """Rank the lanes of each warp for `elect`.

    PTX leaves the choice open. Hardware elects the same lane for a mask each time, and programs
    rely on it: the elected lane commits copies that an earlier elected lane issued. In step it is
    the first lane; in random order the schedule draws a ranking for each warp.
    """

    def __init__(self, machine: Machine) -> None:
        warps = machine.num_ctas * machine.warps_per_cta
        ranks = np.broadcast_to(np.arange(32, 0, -1), (warps, 32))
        self.ranks = machine.random.permuted(ranks, axis=1) if machine.is_shuffled else ranks
        self.of_all = self.ranks.argmax(axis=1).astype(np.uint32)


@executes("elect")
def elect(instruction: Instruction) -> Execute:
    """Elect one lane of a warp, the same each time for the same lanes."""
    value, predicate = _split(instruction.operands[0])
    members = instruction.operands[1]

    def run(ctx: Context) -> None:
        everyone, leaders, warps = (
            _check_members(ctx, members),
            ctx.machine.part(Leaders),
            ctx.warps(),
        )
        if everyone and isinstance(members, Immediate):
            leader = np.broadcast_to(leaders.of_all[warps][:, None], (len(warps), 32))
        else:
            masks = ctx.read_warps(members, 32)
            inside = (masks[:, :, None] >> _LANES.astype(np.uint32) & 1).astype(np.bool_)
            inside &= ctx.active()[:, None, :]
            leader = np.where(inside, leaders.ranks[warps][:, None, :], 0).argmax(axis=2)
        ctx.write_warps(value, leader.astype(np.uint32))
        ctx.write_warps(predicate, leader == _LANES)

    return run


# ---- comparisons and reductions over a warp -------------------------------------------------------


@executes("match")
def match(instruction: Instruction) -> Execute:
    """Return the mask of lanes with the same value, or whether all agree."""
    mode, kind = instruction.modifiers[0], instruction.modifiers[-1]
    if mode not in ("any", "all") or kind not in ("b32", "b64"):
        raise Unsupported(f"modifiers .{mode} and .{kind}")
    result, predicate = _split(instruction.operands[0])
    source, members = instruction.operands[1:]
    bits = int(kind[1:])

    def run(ctx: Context) -> None:
        _check_members(ctx, members)
        values = ctx.read_warps(source, bits)
        masks = ctx.read_warps(members, 32)
        same = values[:, :, None] == values[:, None, :]
        equal = reshape(_packed(reshape(same, -1, 32)), values.shape) & masks
        if mode == "all":
            agreed = equal == masks
            ctx.write_warps(predicate, agreed)
            equal = np.where(agreed, masks, 0).astype(np.uint32)
        ctx.write_warps(result, equal)

    return run


def _float_key(values: Words) -> Words:
    """Map floats to integers of the same order, -0 below +0; it is its own inverse."""
    signed = view(values, np.int32)
    return np.where(signed < 0, signed ^ 0x7FFFFFFF, signed)


# The ufunc, and its identity by type letter: u, s, b or f.
_REDUCTIONS: dict[str, tuple[np.ufunc, dict[str, int]]] = {
    "add": (np.add, {"u": 0, "s": 0}),
    "and": (np.bitwise_and, {"b": _ALL}),
    "or": (np.bitwise_or, {"b": 0}),
    "xor": (np.bitwise_xor, {"b": 0}),
    "max": (np.maximum, {"u": 0, "s": -(1 << 31), "f": -(1 << 31)}),
    "min": (np.minimum, {"u": _ALL, "s": (1 << 31) - 1, "f": (1 << 31) - 1}),
}
_NAN = 0x7FFFFFFF


@executes("redux")
def redux(instruction: Instruction) -> Execute:
    """Reduce a register over the lanes of a warp."""
    _, operation, *flags, kind = instruction.modifiers
    if operation not in _REDUCTIONS or kind[0] not in _REDUCTIONS[operation][1]:
        raise Unsupported(f"redux.{operation} of {kind}")
    if set(flags) - {"abs", "NaN"} or (flags and kind != "f32"):
        raise Unsupported(f"modifiers .{'.'.join(flags)}")
    ufunc, identities = _REDUCTIONS[operation]
    identity = identities[kind[0]]
    result, source, members = instruction.operands

    def run(ctx: Context) -> None:
        _check_members(ctx, members)
        values = ctx.read_warps(source, 32)
        masks = ctx.read_warps(members, 32)
        if kind != "f32":
            dtype = np.int32 if kind[0] == "s" else np.uint32
            reduced = _reduce(ufunc, view(values, dtype), masks, identity)
            ctx.write_warps(result, view(reduced, np.uint32))
            return
        if "abs" in flags:
            values = values & np.uint32(0x7FFFFFFF)
        is_nan = values & 0x7FFFFFFF > 0x7F800000
        keys = np.where(is_nan, identity, _float_key(values)).astype(np.int32)
        best = view(_float_key(_reduce(ufunc, keys, masks, identity)).astype(np.int32), np.uint32)
        nans = _packed(is_nan)[:, None] & masks
        nan = nans != 0 if "NaN" in flags else nans == masks
        ctx.write_warps(result, np.where(nan, np.uint32(_NAN), best))

    return run


def _reduce(ufunc: np.ufunc, values: Words, masks: Words, identity: int) -> Words:
    """Reduce values (n, 32) over the lanes in each lane's mask (n, 32): (n, 32)."""
    if (masks == _ALL).all():
        reduced = ufunc.reduce(values, axis=1, dtype=values.dtype)[:, None]
        return np.ascontiguousarray(np.broadcast_to(reduced, values.shape))
    inside = (masks[:, :, None] >> _LANES.astype(np.uint32) & 1).astype(np.bool_)
    chosen = np.where(inside, values[:, None, :], values.dtype.type(identity))
    return ufunc.reduce(chosen, axis=2, dtype=values.dtype)


# ---- members -------------------------------------------------------------------------------------


def _check_members(ctx: Context, members: Operand) -> bool:
    """Check that masks cover the active lanes, and name active lanes only.

    Returns whether all 32 lanes of each warp are active.
    """
    everyone = ctx.count == 32 * len(ctx.warps())
    if everyone and isinstance(members, Immediate) and members.value & _ALL == _ALL:
        return True
    active, masks = ctx.active(), ctx.read_warps(members, 32)
    outside = active & (masks >> _LANES.astype(np.uint32) & 1 == 0)
    if outside.any():
        warp, lane = (int(i[0]) for i in np.nonzero(outside))
        raise Misuse(
            "convergence",
            f"is executed by lane {lane}, which is not in its mask {int(masks[warp, lane]):#x}",
            lane=int(ctx.warps()[warp]) * 32 + lane,
        )
    present = _packed(active)[:, None]
    exited = ~_packed(ctx.alive())[:, None]
    missing = active & (masks & ~present & ~exited != 0)
    if missing.any():
        warp, lane = (int(i[0]) for i in np.nonzero(missing))
        absent = int(masks[warp, lane] & ~present[warp, 0] & ~exited[warp, 0])
        raise Misuse(
            "convergence",
            f"waits for lane {(absent & -absent).bit_length() - 1} of its mask "
            f"{int(masks[warp, lane]):#x}, which is elsewhere",
            lane=int(ctx.warps()[warp]) * 32 + lane,
        )
    return everyone


def _packed(lanes: Bools) -> npt.NDArray[np.uint32]:
    """Pack booleans (n, 32) into one word per row, lane 0 in the lowest bit: (n,)."""
    return view(np.packbits(lanes, axis=1, bitorder="little"), "<u4")[:, 0]


def _split(operand: Operand) -> tuple[Operand, Operand]:
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, Sink())
