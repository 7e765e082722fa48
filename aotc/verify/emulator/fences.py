"""Fences, and the ordering that goes through memory: a release by one warp, an acquire by another.

A store, an atomic or a fence with release semantics lets later acquires of the same cluster see what
its lanes have done. Locations are not told apart, and a fence both releases and acquires, so a
program that fences too little is found, one that fences at the wrong location may not be.

Source: PTX ISA, "Memory Consistency Model"; membar, fence.
"""

from __future__ import annotations

from aotc.verify.emulator.context import Context, Machine
from aotc.verify.emulator.mbarrier import Mbarriers
from aotc.verify.emulator.order import Clocks, Lanes, lanes_array
from aotc.verify.emulator.registry import Execute, Unsupported, executes
from aotc.verify.emulator.syntax import Instruction

_FENCES = frozenset(("sc", "acq_rel", "acquire", "release", "mbarrier_init"))
_LEVELS = frozenset(("cta", "gl", "sys"))
# Between the generic and the asynchronous proxy; that of tensor maps has its own rule.
_ASYNC_PROXIES = frozenset(("async", "async::global", "async::shared"))
_OTHER_PROXIES = frozenset(("alias",))


class MemoryOrder:
    """Hold, for each cluster of a batch, what has been released through memory."""

    def __init__(self, machine: Machine) -> None:
        self._order = machine.order
        self._num_lanes = machine.num_blocks * machine.warps_per_block * 32
        self._lanes_per_cluster = machine.cluster_size * machine.warps_per_block * 32
        self._tokens = Clocks(machine.num_blocks // machine.cluster_size, machine.order.columns)

    def release(self, lanes: Lanes) -> None:
        """Let whoever acquires later see what lanes have done."""
        numbers = lanes_array(lanes, self._num_lanes)
        self._order.release(numbers, self._tokens, numbers // self._lanes_per_cluster)

    def acquire(self, lanes: Lanes) -> None:
        """Let lanes see what has been released."""
        numbers = lanes_array(lanes, self._num_lanes)
        self._order.acquire(numbers, self._tokens, numbers // self._lanes_per_cluster)


@executes("membar")
def membar(instruction: Instruction) -> Execute:
    """Order memory accesses, as `fence.sc`; `membar.proxy` is `fence.proxy`."""
    if instruction.modifiers[0] == "proxy":
        return _proxy_fence(instruction)
    if instruction.modifiers[0] not in _LEVELS:
        raise Unsupported(f"modifier .{instruction.modifiers[0]}")
    return _fence


@executes("fence")
def fence(instruction: Instruction) -> Execute:
    """Order memory accesses, or with `.proxy` those through different proxies."""
    if instruction.modifiers[0] == "proxy":
        return _proxy_fence(instruction)
    if instruction.modifiers[0] not in _FENCES:
        raise Unsupported(f"modifier .{instruction.modifiers[0]}")
    return _fence_mbarriers if instruction.modifiers[0] == "mbarrier_init" else _fence


def _fence_mbarriers(ctx: Context) -> None:
    ctx.machine.part(Mbarriers).fence(ctx.lanes)
    _fence(ctx)


def _fence(ctx: Context) -> None:
    memory = ctx.machine.part(MemoryOrder)
    memory.release(ctx.lanes)
    memory.acquire(ctx.lanes)


def _proxy_fence(instruction: Instruction) -> Execute:
    kind = instruction.modifiers[1]
    if kind in _ASYNC_PROXIES:
        return _fence_async
    if kind in _OTHER_PROXIES:
        return _fence
    raise Unsupported(f"modifier .{kind}")


def _fence_async(ctx: Context) -> None:
    ctx.machine.part(Mbarriers).fence(ctx.lanes)
    ctx.machine.order.fence_proxy(ctx.lanes)
