"""Instruction text of tensor copies, of the barriers that await them, and of their proxy.

Sections are those of the PTX ISA manual, version 8.8, as in `nvvm.py`. One thread of a block issues
these, which is a predicate here and never a branch; the map is its generic address.

Invariant: everything here is `sideeffect`, so LLVM keeps the order in which rules wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotc.backend.emitter import Emitter
from aotc.backend.nvvm import Address


@dataclass(frozen=True, slots=True)
class TensorCopy:
    """Say what a copy moves: the box at `coords`, i32 operands, innermost first, of a map.

    `issuer` is the i1 that is set in the thread that issues it.
    """

    tensor: str
    coords: Sequence[str]
    buffer: Address
    issuer: str


class _Asm:
    """Collect the operands of one asm call while its text is written."""

    def __init__(self) -> None:
        self.constraints: list[str] = []
        self.arguments: list[str] = []

    def operand(self, letter: str, kind: str, value: str) -> str:
        """Add an operand and return how the text names it."""
        self.constraints.append(letter)
        self.arguments.append(f"{kind} {value}")
        return f"${len(self.constraints) - 1}"

    def address(self, address: Address) -> str:
        return f"[{self.operand('r', 'i32', address.base)}+{address.offset_bytes}]"

    def box(self, copy: TensorCopy) -> str:
        tensor = self.operand("l", "ptr", copy.tensor)
        coords = ", ".join(self.operand("r", "i32", coord) for coord in copy.coords)
        return f"[{tensor}, {{{coords}}}]"

    def emit(self, emit: Emitter, text: str, issuer: str = "") -> None:
        if issuer:
            text = f"@{self.operand('b', 'i1', issuer)} {text}"
        shown = ", ".join(self.arguments)
        emit.effect(f'call void asm sideeffect "{text}", "{",".join(self.constraints)}"({shown})')


# ---- copies -----------------------------------------------------------------------------------


def tensor_load(emit: Emitter, copy: TensorCopy, barrier: Address, policy: str) -> None:
    """Start to copy a box to shared memory; its bytes complete at a mbarrier.

    `policy` is the operand of an L2 cache policy, or "".

    Source: PTX ISA 9.7.9.27.5.2 `cp.async.bulk.tensor`.
    """
    asm, hint = _Asm(), ".L2::cache_hint" if policy else ""
    text = f"cp.async.bulk.tensor.{len(copy.coords)}d.shared::cluster.global.tile"
    text += f".mbarrier::complete_tx::bytes{hint} {asm.address(copy.buffer)}, {asm.box(copy)}"
    text += f", {asm.address(barrier)}"
    if policy:
        text += f", {asm.operand('l', 'i64', policy)}"
    asm.emit(emit, f"{text};", copy.issuer)


def tensor_store(emit: Emitter, copy: TensorCopy, reduction: str = "") -> None:
    """Start to copy a box from shared memory, or to combine it by `reduction`: "add", "min", ….

    Source: PTX ISA 9.7.9.27.5.2 `cp.async.bulk.tensor`, 9.7.9.27.5.3 `cp.reduce.async.bulk.tensor`.
    """
    asm = _Asm()
    text = "cp.reduce.async" if reduction else "cp.async"
    text += f".bulk.tensor.{len(copy.coords)}d.global.shared::cta"
    text += f".{reduction}.tile.bulk_group" if reduction else ".tile.bulk_group"
    asm.emit(emit, f"{text} {asm.box(copy)}, {asm.address(copy.buffer)};", copy.issuer)


def commit_stores(emit: Emitter, issuer: str) -> None:
    """Make a group of the stores and reductions that this thread started since the last one.

    Source: PTX ISA 9.7.9.25.4.1 `cp.async.bulk.commit_group`.
    """
    _Asm().emit(emit, "cp.async.bulk.commit_group;", issuer)


def wait_stores(emit: Emitter, num_pending: int, issuer: str, *, written: bool) -> None:
    """Wait until at most the newest `num_pending` groups have not read shared memory, or written.

    Source: PTX ISA 9.7.9.25.4.2 `cp.async.bulk.wait_group`.
    """
    read = "" if written else ".read"
    _Asm().emit(emit, f"cp.async.bulk.wait_group{read} {num_pending};", issuer)


def proxy_fence(emit: Emitter, *, whole: bool) -> None:
    """Order this thread's accesses through the generic proxy before those through the async one.

    Source: PTX ISA 9.7.13.4 `fence.proxy.async`.
    """
    space = "" if whole else ".shared::cta"
    emit.effect(f'call void asm sideeffect "fence.proxy.async{space};", ""()')


# ---- mbarriers --------------------------------------------------------------------------------


def mbarrier_init(emit: Emitter, barrier: Address, count: int, issuer: str) -> None:
    """Make a mbarrier that expects `count` arrivals a phase, for copies to see too.

    Source: PTX ISA 9.7.13.15.9 `mbarrier.init`, 9.7.13.4 `fence.mbarrier_init`.
    """
    asm = _Asm()
    asm.emit(emit, f"mbarrier.init.shared::cta.b64 {asm.address(barrier)}, {count};", issuer)
    emit.effect('call void asm sideeffect "fence.mbarrier_init.release.cluster;", ""()')


def mbarrier_expect(
    emit: Emitter, barrier: Address, num_bytes: int, issuer: str, *, arrive: bool
) -> None:
    """Let the phase of a mbarrier wait for bytes of copies, and arrive at it.

    Source: PTX ISA 9.7.13.15.11 `mbarrier.expect_tx`, 9.7.13.15.13 `mbarrier.arrive`.
    """
    asm = _Asm()
    opcode = "mbarrier.arrive.expect_tx.shared::cta.b64 _," if arrive else _EXPECT
    asm.emit(emit, f"{opcode} {asm.address(barrier)}, {num_bytes};", issuer)


_EXPECT = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64"


def mbarrier_wait(emit: Emitter, barrier: Address, parity: str) -> None:
    """Wait until the phase of this parity, an i32 operand, has ended.

    Source: PTX ISA 9.7.13.15.16 `mbarrier.try_wait`.
    """
    asm = _Asm()
    place, phase = asm.address(barrier), asm.operand("r", "i32", parity)
    asm.emit(
        emit,
        "{ .reg .pred done; again: "
        f"mbarrier.try_wait.parity.shared::cta.b64 done, {place}, {phase}; "
        "@!done bra again; }",
    )
