"""Fences of memory accesses, at a scope, and of proxies.

Source: PTX ISA, "Memory Consistency Model"; membar, fence.
"""

from __future__ import annotations

from aotc.verify.emulator.engine.context import Context
from aotc.verify.emulator.engine.registry import Execute, executes
from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.memory.vector_clocks import CTA, GLOBAL_PROXY, GPU, PROXIES, PROXY
from aotc.verify.emulator.memory_access.release_acquire import MemoryOrder
from aotc.verify.emulator.memory_access.spaces import SCOPES
from aotc.verify.emulator.synchronization.mbarrier import Mbarriers
from aotc.verify.emulator.syntax import Instruction

_FENCES = frozenset(("sc", "acq_rel", "acquire", "release", "mbarrier_init"))
_LEVELS = {"cta": CTA, "gl": GPU, "sys": GPU}
# Generic to asynchronous proxy, by the words after `.async`; tensor maps have their own rule.
_ASYNC_SPACES: dict[tuple[str, ...], tuple[int, ...]] = {
    (): PROXIES,
    ("global",): (GLOBAL_PROXY,),
    ("shared::cta",): (PROXY,),
    ("shared::cluster",): (PROXY,),
}
_OTHER_PROXIES = frozenset(("alias",))


@executes("membar")
def membar(instruction: Instruction) -> Execute:
    """Order memory accesses like `fence.sc`; `membar.proxy` is `fence.proxy`."""
    if instruction.modifiers[0] == "proxy":
        return _proxy_fence(instruction)
    if instruction.modifiers[0] not in _LEVELS:
        raise Unsupported(f"modifier .{instruction.modifiers[0]}")
    return _fence(_LEVELS[instruction.modifiers[0]], "sc")


@executes("fence")
def fence(instruction: Instruction) -> Execute:
    """Order memory accesses, or with `.proxy` accesses through different proxies."""
    kind, *rest = instruction.modifiers
    if kind == "proxy":
        return _proxy_fence(instruction)
    if kind not in _FENCES:
        raise Unsupported(f"modifier .{kind}")
    scope = max((SCOPES[word] for word in rest if word in SCOPES), default=GPU)
    run = _fence(scope, "sc" if kind == "mbarrier_init" else kind)
    return _of_mbarriers(run) if kind == "mbarrier_init" else run


def _fence(scope: int, kind: str) -> Execute:
    acquires, releases = kind != "release", kind != "acquire"

    def run(ctx: Context) -> None:
        order = ctx.machine.part(MemoryOrder)
        order.fence(ctx.lanes, scope, acquires=acquires, releases=releases)

    return run


def _of_mbarriers(run: Execute) -> Execute:
    def fence_mbarriers(ctx: Context) -> None:
        ctx.machine.part(Mbarriers).fence(ctx.lanes)
        run(ctx)

    return fence_mbarriers


def _proxy_fence(instruction: Instruction) -> Execute:
    kind = instruction.modifiers[1]
    if kind == "async":
        return _fence_async(instruction.modifiers[2:])
    if kind in _OTHER_PROXIES:
        return _fence(GPU, "sc")
    raise Unsupported(f"modifier .{kind}")


def _fence_async(space: tuple[str, ...]) -> Execute:
    if space not in _ASYNC_SPACES:
        raise Unsupported(f"modifier .{'.'.join(space)}")
    proxies = _ASYNC_SPACES[space]

    def run(ctx: Context) -> None:
        if PROXY in proxies:
            ctx.machine.part(Mbarriers).fence(ctx.lanes)
        ctx.machine.order.fence_proxy(ctx.lanes, proxies)

    return run
