"""`wgmma`: asynchronous matrix multiplications by a warpgroup.

A warpgroup's warps meet where they start one (see `warpgroups.py`). Multiplications run in order,
at the latest when one warp waits for its group. That completes the rest of the warpgroup's share,
too: programs rely on it when one thread signals that an operand may be overwritten. Successive
multiplications into the same registers form a *chain*. Its sums live here, and move to a warp's
registers once the warp has waited for all of them.

Until then the registers are marked as in flight and hold the name of their result, chain and index,
which copies carry along. The engine refuses to access a register in flight; `SharedMemory` guards
operands in shared memory.

Sums of fp8 products have as few bits as on hardware (`fp8_sums.py`).

Invariant: sums are rounded to the result's type after each instruction, as in `mma_sync.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.verify.emulator.engine.context import Context
from aotc.verify.emulator.engine.registry import Execute, executes
from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.mma.wgmma_form import form_of
from aotc.verify.emulator.mma.wgmma_unit import WgmmaUnit
from aotc.verify.emulator.syntax import Immediate, Instruction

_SYNC = ("sync", "aligned")


@executes("wgmma")
def wgmma(instruction: Instruction) -> Execute:
    """Start, group, wait for or fence multiplications.

    Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
    """
    kind = instruction.modifiers[0]
    if kind not in _KINDS:
        raise Unsupported(f"the modifier .{kind}")
    if "sp" in instruction.modifiers:
        raise Unsupported("sparse matrices")
    if instruction.modifiers[1:3] != _SYNC:
        raise Unsupported("modifiers without .sync.aligned")
    return _KINDS[kind](instruction)


def _start(instruction: Instruction) -> Execute:
    form = form_of(instruction)

    def execute(ctx: Context) -> None:
        ctx.machine.part(WgmmaUnit).start(ctx, form)

    return execute


def _commit(instruction: Instruction) -> Execute:
    del instruction

    def execute(ctx: Context) -> None:
        ctx.require_whole_warps()
        ctx.machine.part(WgmmaUnit).commit(ctx.warps())

    return execute


def _wait(instruction: Instruction) -> Execute:
    (pending,) = instruction.operands
    if not isinstance(pending, Immediate):
        raise Unsupported("a count that is no constant")
    allowed = pending.value

    def execute(ctx: Context) -> None:
        ctx.require_whole_warps()
        ctx.machine.part(WgmmaUnit).wait(ctx.warps(), allowed)

    return execute


def _fence(instruction: Instruction) -> Execute:
    del instruction

    def execute(ctx: Context) -> None:
        ctx.require_whole_warps()
        ctx.machine.part(WgmmaUnit).fence(ctx)

    return execute


_KINDS: dict[str, Callable[[Instruction], Execute]] = {
    "mma_async": _start,
    "commit_group": _commit,
    "wait_group": _wait,
    "fence": _fence,
}
