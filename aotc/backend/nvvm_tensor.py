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

    def number(self, value: str) -> str:
        """Add an i32 operand unless it is a constant; return how the text names it."""
        return value if value.isdecimal() else self.operand("r", "i32", value)

    def box(self, copy: TensorCopy) -> str:
        tensor = self.operand("l", "ptr", copy.tensor)
        coords = ", ".join(self.operand("r", "i32", coord) for coord in copy.coords)
        return f"[{tensor}, {{{coords}}}]"

    def emit_all(self, emit: Emitter, lines: Sequence[str], issuer: str) -> None:
        """Emit instructions for one thread: it branches once, where ptxas would for each of them."""
        if issuer:
            skip = f"@!{self.operand('b', 'i1', issuer)} bra others;"
            lines = ["{", skip, *lines, "others:", "}"]
        self.emit(emit, " ".join(lines))

    def emit(self, emit: Emitter, text: str, issuer: str = "") -> None:
        if issuer:
            text = f"@{self.operand('b', 'i1', issuer)} {text}"
        shown = ", ".join(self.arguments)
        emit.effect(f'call void asm sideeffect "{text}", "{",".join(self.constraints)}"({shown})')


# ---- copies -----------------------------------------------------------------------------------


def tensor_load(
    emit: Emitter, copy: TensorCopy, barrier: Address, policy: str, blocks: int = 0
) -> None:
    """Start to copy a box to shared memory; its bytes complete at a mbarrier.

    `policy` is the operand of an L2 cache policy, or "". With a mask of `blocks` of the cluster the
    box goes to each of them, and its bytes complete at the mbarrier of each.

    Source: PTX ISA 9.7.9.27.5.2 `cp.async.bulk.tensor`.
    """
    asm, hint = _Asm(), ".L2::cache_hint" if policy else ""
    text = f"cp.async.bulk.tensor.{len(copy.coords)}d.shared::cluster.global.tile"
    text += f".mbarrier::complete_tx::bytes{'.multicast::cluster' if blocks else ''}"
    text += f"{hint} {asm.address(copy.buffer)}, {asm.box(copy)}"
    text += f", {asm.address(barrier)}"
    if blocks:
        text += f", {asm.operand('h', 'i16', str(blocks))}"
    if policy:
        text += f", {asm.operand('l', 'i64', policy)}"
    asm.emit(emit, f"{text};", copy.issuer)


def bulk_load(
    emit: Emitter,
    source: Address,
    target: Address,
    size_bytes: str,
    barrier: Address,
    policy: str,
    issuer: str,
) -> None:
    """Start to copy bytes, an i32 operand, from global to shared memory; as `tensor_load` else.

    Source: PTX ISA 9.7.9.25.4.1 `cp.async.bulk`.
    """
    asm, hint = _Asm(), ".L2::cache_hint" if policy else ""
    text = f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{hint} "
    text += f"{asm.address(target)}, [{asm.operand('l', 'ptr addrspace(1)', source.base)}"
    text += f"{source.offset_bytes:+}], {asm.number(size_bytes)}, {asm.address(barrier)}"
    if policy:
        text += f", {asm.operand('l', 'i64', policy)}"
    asm.emit(emit, f"{text};", issuer)


def bulk_store(
    emit: Emitter, target: Address, source: Address, size_bytes: str, issuer: str
) -> None:
    """Start to copy bytes, an i32 operand, from shared to global memory; in a group as `tensor_store`.

    Source: PTX ISA 9.7.9.25.4.1 `cp.async.bulk`.
    """
    asm = _Asm()
    text = "cp.async.bulk.global.shared::cta.bulk_group "
    text += f"[{asm.operand('l', 'ptr addrspace(1)', target.base)}{target.offset_bytes:+}], "
    text += f"{asm.address(source)}, {asm.number(size_bytes)}"
    asm.emit(emit, f"{text};", issuer)


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


def prefetch_maps(emit: Emitter, tensors: Sequence[str], issuer: str) -> None:
    """Let the maps among a kernel's parameters be fetched ahead of the first copies that need them.

    Source: PTX ISA 9.7.9.16 `prefetch`.
    """
    asm = _Asm()
    lines = [f"prefetch.tensormap [{asm.operand('l', 'ptr', tensor)}];" for tensor in tensors]
    asm.emit_all(emit, lines, issuer)


# ---- maps in memory ---------------------------------------------------------------------------


def generic_address(emit: Emitter, pointer: str) -> str:
    """Return the generic address of a global one.

    Source: PTX ISA 9.7.9.20 `cvta`.
    """
    return emit.value(f"addrspacecast ptr addrspace(1) {pointer} to ptr")


def acquire_map(emit: Emitter, tensor: str) -> None:
    """Let copies of this thread use a map in global memory that the host, or a kernel, wrote.

    Source: PTX ISA 9.7.13.4 `fence.proxy.tensormap`.
    """
    asm = _Asm()
    text = f"fence.proxy.tensormap::generic.acquire.sys [{asm.operand('l', 'ptr', tensor)}], 128;"
    asm.emit(emit, text)


# ---- mbarriers --------------------------------------------------------------------------------


def mbarrier_init(emit: Emitter, barriers: Sequence[Address], count: int, issuer: str) -> None:
    """Make mbarriers that expect `count` arrivals a phase, for copies to see too.

    Source: PTX ISA 9.7.13.15.9 `mbarrier.init`, 9.7.13.4 `fence.mbarrier_init`.
    """
    asm = _Asm()
    opcode = "mbarrier.init.shared::cta.b64"
    lines = [f"{opcode} {asm.address(barrier)}, {count};" for barrier in barriers]
    asm.emit_all(emit, lines, issuer)
    emit.effect('call void asm sideeffect "fence.mbarrier_init.release.cluster;", ""()')


def mbarrier_expect(
    emit: Emitter, barrier: Address, num_bytes: str, issuer: str, *, arrive: bool
) -> None:
    """Let the phase of a mbarrier wait for bytes of copies, an i32 operand, and arrive at it.

    Source: PTX ISA 9.7.13.15.11 `mbarrier.expect_tx`, 9.7.13.15.13 `mbarrier.arrive`.
    """
    asm = _Asm()
    opcode = "mbarrier.arrive.expect_tx.shared::cta.b64 _," if arrive else _EXPECT
    place = asm.address(barrier)
    asm.emit(emit, f"{opcode} {place}, {asm.number(num_bytes)};", issuer)


def mbarrier_arrive(emit: Emitter, barrier: Address, enabled: str, block: str = "") -> None:
    """Arrive at a mbarrier if the i1 `enabled` is set; at that of a `block` of the cluster, an i32.

    Source: PTX ISA 9.7.13.15.13 `mbarrier.arrive`, 9.7.9.23 `mapa`.
    """
    asm = _Asm()
    if not block:
        asm.emit(emit, f"mbarrier.arrive.shared::cta.b64 _, {asm.address(barrier)};", enabled)
        return
    base, when = asm.operand("r", "i32", barrier.base), asm.operand("b", "i1", enabled)
    text = f"@{when} mapa.shared::cluster.u32 there, {base}, {asm.operand('r', 'i32', block)}; "
    # Of cluster scope it would wait for all writes of the thread, and there are none to see.
    text += f"@{when} mbarrier.arrive.shared::cluster.b64 _, [there+{barrier.offset_bytes}];"
    asm.emit(emit, f"{{ .reg .b32 there; {text} }}")


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
