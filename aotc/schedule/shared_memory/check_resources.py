"""Reject kernels over the target's resource limits before code generation.

Shared memory is known once buffers have offsets, and register pressure once tiles have layouts. Generating
code for a kernel too large for any CTA, or spilling most of its values, takes minutes for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import TypeVar

from aotc.ir.core import Kernel
from aotc.ir.diagnostics import CompileError, Loc, ResourceError
from aotc.ir.dialects import gpu
from aotc.ir.types import SharedType, TileType
from aotc.limits import CompileLimits
from aotc.schedule.analysis.live_registers import find_peak, place_text
from aotc.schedule.analysis.register_budget import COMFORTABLE_REGISTERS, registers_of_thread
from aotc.target import Target

_LISTED = 3

_KeyT = TypeVar("_KeyT")


def check_resources(kernel: Kernel, target: Target, limits: CompileLimits) -> bool:
    """Return whether a kernel's tiles may fit a thread's registers.

    Above twice the registers available, ptxas is sure to spill; below, it may or may not, as this is an
    estimate. Raises: ResourceError if no CTA fits the target, or compiling is hopeless.
    """
    if kernel.shared_bytes > target.max_shared_bytes:
        raise _too_much_shared(kernel, target)
    peak = find_peak(kernel)
    if peak.registers > limits.live_registers:
        message = (
            f"{peak}; a thread has at most {registers_of_thread(kernel, target)}, and the limit "
            f"live_registers is {limits.live_registers}"
        )
        raise ResourceError(
            message, peak.loc, remedy=register_remedy(kernel, target, peak.registers)
        )
    return peak.registers <= 2 * registers_of_thread(kernel, target)


def register_remedy(kernel: Kernel, target: Target, registers: int) -> str:
    """Return a remedy for a kernel whose tiles take too many registers of a thread."""
    remedies: list[str] = []
    if kernel.maxnreg and kernel.maxnreg < target.max_registers_per_thread:
        remedies.append("a higher maxnreg")
    warps = 2 * kernel.num_warps
    # With still more warps a thread has fewer registers as well.
    while 32 * warps * target.max_registers_per_thread <= target.registers_per_sm:
        if registers * kernel.num_warps // warps <= COMFORTABLE_REGISTERS:
            remedies.append(f"num_warps = {warps}")
            break
        warps *= 2
    if kernel.num_consumer_groups > 1:
        remedies.append("fewer consumer groups (num_consumer_groups)")
    remedies += ["smaller tiles", "a loop over parts of them"]
    return ", ".join(remedies[:-1]) + f" or {remedies[-1]}"


def check_instructions(kernel: Kernel, count: int, limits: CompileLimits) -> None:
    """Raise CompileError if a kernel of gpu IR has too many instructions."""
    if count <= limits.instructions:
        return
    weights: dict[Loc, int] = {}
    for op in kernel.walk():
        types = [value.type for value in (*op.results, *op.operands)]
        sizes = [
            t.layout.in_size("register") for t in types if isinstance(t, TileType) and t.layout
        ]
        weights[op.loc] = weights.get(op.loc, 0) + max(sizes, default=1)
    loc, _ = _largest(weights.items())[0]
    message = (
        f"the kernel is {count} instructions for each thread, most of them from here; "
        f"the limit instructions is {limits.instructions}"
    )
    raise CompileError(message, loc, remedy=large_remedy())


def large_remedy() -> str:
    """Return a remedy for a kernel too large to compile."""
    return (
        "smaller tiles, more warps, or `range` where `tl.static_range` repeats a body; "
        "limits can be raised in [kernel.limits]"
    )


def _too_much_shared(kernel: Kernel, target: Target) -> ResourceError:
    """Return the error for a kernel over the shared-memory limit."""
    buffers: dict[tuple[str, Loc], int] = {}
    for op in kernel.walk():
        if isinstance(op, gpu.SharedAlloc):
            assert isinstance(op.out.type, SharedType)
            kind = op.out.type
            tile = "x".join([*map(str, kind.shape), str(kind.element)])
            if kind.num_stages > 1:
                tile = f"{kind.num_stages} stages of {tile}"
            buffers[tile, op.loc] = buffers.get((tile, op.loc), 0) + kind.size_bytes
    listed = _largest(buffers.items())[:_LISTED]
    largest = ", ".join(
        f"{tile} at {place_text(loc)} ({size} bytes)" for (tile, loc), size in listed
    )
    message = (
        f"{kernel.shared_bytes} bytes of shared memory, the limit is {target.max_shared_bytes}: "
        f"{largest}"
    )
    return ResourceError(message, kernel.loc, remedy="smaller tiles")


def _largest(items: Iterable[tuple[_KeyT, int]]) -> list[tuple[_KeyT, int]]:
    return sorted(items, key=itemgetter(1), reverse=True)
