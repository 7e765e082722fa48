"""PTX instruction text: barriers, shuffles, MMAs, arithmetic, special registers, printing.

Rules compute on layouts and choose the instructions. These functions spell them, as intrinsics or
as inline assembly. Sections are of the PTX ISA manual, version 8.8.

Memory accesses are in `nvvm_memory`. TMA, clusters, `wgmma` and conversions have files of their
own.

Invariant: an instruction executed by several threads together is `convergent`, and one with an
effect is `sideeffect`, so LLVM keeps the order in which rules emit them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from aotc.backend.emitter import Argument, Emitter

ShuffleMode = Literal["bfly", "up", "down", "idx"]

_FULL_WARP = -1
_LAST_LANE = 31

# ---- barriers, and registers of a warpgroup ----------------------------------------------------


class NamedBarrier(IntEnum):
    """The first of each kind of named barrier; a CTA has 16, and 8 warpgroups at most.

    Barrier 0 is for all threads.
    """

    FIRST_THREADS = 1
    WARPGROUP = 2
    CONSUMER_GROUP = 10
    TURN = 14  # of two warpgroups


def barrier(
    emit: Emitter, num_threads: int = 0, number: str = f"{NamedBarrier.FIRST_THREADS:d}"
) -> None:
    """Wait for all threads of the CTA, or for `num_threads` at a named barrier, an i32 operand.

    Source: PTX ISA 9.7.13.1 `barrier.cta.sync`.
    """
    name, arguments = "llvm.nvvm.barrier.cta.sync.aligned.all", [("i32", "0")]
    if num_threads:
        name = "llvm.nvvm.barrier.cta.sync.aligned.count"
        arguments = [("i32", number), ("i32", str(num_threads))]
    emit.effect(emit.call_text("void", name, arguments))


def arrive(emit: Emitter, num_threads: int, number: str) -> None:
    """Arrive at a named barrier without waiting; it counts `num_threads`, waiting ones included.

    Source: PTX ISA 9.7.13.1 `barrier.cta.arrive`.
    """
    arguments = [("i32", number), ("i32", str(num_threads))]
    name = "llvm.nvvm.barrier.cta.arrive.aligned.count"
    emit.effect(emit.call_text("void", name, arguments))


def increase_registers(emit: Emitter, count: int) -> None:
    """Raise the registers per thread of a warpgroup to `count`.

    Source: PTX ISA 9.7.19.5 `setmaxnreg`.
    """
    name = "llvm.nvvm.setmaxnreg.inc.sync.aligned.u32"
    emit.effect(emit.call_text("void", name, [("i32", str(count))]))


def decrease_registers(emit: Emitter, count: int) -> None:
    """Lower the registers per thread of a warpgroup to `count`.

    Source: PTX ISA 9.7.19.5 `setmaxnreg`.
    """
    name = "llvm.nvvm.setmaxnreg.dec.sync.aligned.u32"
    emit.effect(emit.call_text("void", name, [("i32", str(count))]))


def warp_barrier(emit: Emitter) -> None:
    """Wait for all lanes of the warp, ordering their accesses before it and after it.

    Source: PTX ISA 9.7.13.2 `bar.warp.sync`.
    """
    emit.effect(emit.call_text("void", "llvm.nvvm.bar.warp.sync", [("i32", "-1")]))


# ---- thread id ----------------------------------------------------------------------------------


def read_thread() -> str:
    """Return the text of a read of the thread id, never merged by LLVM.

    Source: PTX ISA 10.1 `%tid`.
    """
    return 'call i32 asm sideeffect "mov.u32 $0, %tid.x;", "=r"()'


def read_multiprocessor() -> str:
    """Return the text of a read of the multiprocessor's number, unbounded to ptxas.

    Source: PTX ISA 10.10 `%smid`.
    """
    return 'call i32 asm sideeffect "mov.u32 $0, %smid;", "=r"()'


# ---- exchange within a warp -------------------------------------------------------------------


def shuffle(emit: Emitter, mode: ShuffleMode, word: str, lane: str) -> str:
    """Return the i32 `word` of another lane: this lane XOR, minus or plus `lane`, or `lane` itself.

    Source: PTX ISA 9.7.9.6 `shfl.sync`.
    """
    clamp = 0 if mode == "up" else _LAST_LANE
    arguments = [("i32", str(_FULL_WARP)), ("i32", word), ("i32", lane), ("i32", str(clamp))]
    return emit.call("i32", f"llvm.nvvm.shfl.sync.{mode}.i32", arguments)


def first_lane(emit: Emitter, word: str) -> str:
    """Broadcast the first lane's i32 `word` to all lanes of the warp.

    Source: PTX ISA 9.7.9.6 `shfl.sync`.
    """
    arguments = [("i32", str(_FULL_WARP)), ("i32", word), ("i32", "0"), ("i32", str(_LAST_LANE))]
    return emit.call_text("i32", "llvm.nvvm.shfl.sync.idx.i32", arguments)


def redux(emit: Emitter, kind: str, word: str) -> str:
    """Combine the i32 words of all lanes by `kind`: add, min, umin, max, umax, and, or, xor.

    Source: PTX ISA 9.7.13.7 `redux.sync`.
    """
    arguments = [("i32", word), ("i32", str(_FULL_WARP))]
    return emit.call("i32", f"llvm.nvvm.redux.sync.{kind}", arguments)


def vote_all(emit: Emitter, value: str) -> str:
    """Return whether the i1 `value` is true in all lanes of the warp.

    Source: PTX ISA 9.7.13.9 `vote.sync`.
    """
    return emit.call("i1", "llvm.nvvm.vote.all.sync", [("i32", str(_FULL_WARP)), ("i1", value)])


# ---- dots -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mma:
    """An `mma.sync`: LLVM's name, and the types of a word of A or B and of the accumulator."""

    suffix: str
    operand_type: str
    acc_type: str


def _hidden(emit: Emitter, word: str, kind: str) -> str:
    """Return a 32-bit word, hidden from ptxas's constant propagation if it is a constant.

    Source: PTX ISA 10.7 `%nctaid`, less than 2**31.
    """
    if kind not in ("i32", "<2 x half>") or not emit.is_constant(word):
        return word
    text = "{ mov.u32 $0, %nctaid.x; shr.u32 $0, $0, 31; }"
    zero = emit.thread_value(f'call i32 asm sideeffect "{text}", "=r"()')
    if kind == "i32":
        return emit.value(f"or i32 {word}, {zero}")
    bits = emit.value(f"bitcast {kind} {word} to i32")
    return emit.value(f"bitcast i32 {emit.value(f'or i32 {bits}, {zero}')} to {kind}")


def mma(
    emit: Emitter, kind: Mma, a: Sequence[str], b: Sequence[str], acc: Sequence[str]
) -> list[str]:
    """Issue an MMA; return the accumulator's registers.

    Constant fragments are hidden from ptxas 13.5, which miscompiles them. -2.0 in both halves
    becomes a negated operand, right in one half only; so does the upper half of an fp8 zero 0xC0.

    Source: PTX ISA 9.7.14.5 `mma.sync`.
    """
    a, b = ([_hidden(emit, word, kind.operand_type) for word in words] for words in (a, b))
    returned = "{" + ", ".join([kind.acc_type] * len(acc)) + "}"
    callee = f"llvm.nvvm.mma.{kind.suffix}"
    operands = [kind.operand_type] * (len(a) + len(b)) + [kind.acc_type] * len(acc)
    emit.declare(returned, callee, operands)
    shown = ", ".join(
        f"{type_} {operand}" for type_, operand in zip(operands, (*a, *b, *acc), strict=True)
    )
    out = emit.fresh(f"call {returned} @{callee}({shown})")
    return [emit.value(f"extractvalue {returned} {out}, {i}") for i in range(len(acc))]


# ---- floating point ---------------------------------------------------------------------------


def ex2(emit: Emitter, value: str) -> str:
    """Return 2 to the power of a float, within 2 ulp; subnormals are flushed.

    Source: PTX ISA 9.7.3.20 `ex2.approx.ftz`.
    """
    return emit.call("float", "llvm.nvvm.ex2.approx.ftz.f32", [("float", value)])


def sqrt_approx(emit: Emitter, value: str) -> str:
    """Return the square root of a float, within 1 ulp; subnormals are flushed.

    Source: PTX ISA 9.7.3.16 `sqrt.approx.ftz`.
    """
    return emit.call("float", "llvm.nvvm.sqrt.approx.ftz.f", [("float", value)])


def sqrt_rn(emit: Emitter, value: str, *, double: bool) -> str:
    """Return the correctly rounded square root.

    Source: PTX ISA 9.7.3.16 `sqrt.rn`.
    """
    kind, suffix = ("double", "d") if double else ("float", "f")
    return emit.call(kind, f"llvm.nvvm.sqrt.rn.{suffix}", [(kind, value)])


def rsqrt(emit: Emitter, value: str) -> str:
    """Return the reciprocal square root of a float, within 2 ulp; subnormals are flushed.

    Source: PTX ISA 9.7.3.17 `rsqrt.approx.ftz`.
    """
    return emit.call("float", "llvm.nvvm.rsqrt.approx.ftz.f", [("float", value)])


def div_full(emit: Emitter, left: str, right: str) -> str:
    """Return the quotient of floats, within 2 ulp over the whole range.

    Source: PTX ISA 9.7.3.8 `div.full`.
    """
    return emit.call("float", "llvm.nvvm.div.full", [("float", left), ("float", right)])


# ---- integers ---------------------------------------------------------------------------------


def mul_high(emit: Emitter, left: str, right: str, bits: int, *, signed: bool) -> str:
    """Return the high half of the full product of integers of 16, 32 or 64 bits.

    Source: PTX ISA 9.7.1.3 `mul.hi`.
    """
    stem = {16: "s", 32: "i", 64: "ll"}[bits]
    kind = f"i{bits}"
    name = f"llvm.nvvm.mulhi.{stem if signed else 'u' + stem}"
    return emit.call(kind, name, [(kind, left), (kind, right)])


# ---- special registers, printing and assertions -------------------------------------------------


def cta_id(emit: Emitter, axis: int) -> str:
    """Return the index of the CTA along a grid axis.

    Source: PTX ISA 10.7 `%ctaid`.
    """
    return _special_register(emit, f"ctaid.{'xyz'[axis]}")


def num_ctas(emit: Emitter, axis: int) -> str:
    """Return the number of CTAs along a grid axis.

    Source: PTX ISA 10.8 `%nctaid`.
    """
    return _special_register(emit, f"nctaid.{'xyz'[axis]}")


def cluster_id(emit: Emitter, axis: int) -> str:
    """Return the index of the CTA's cluster along a grid axis.

    Source: PTX ISA 10.12 `%clusterid`.
    """
    return _special_register(emit, f"clusterid.{'xyz'[axis]}")


def num_clusters(emit: Emitter, axis: int) -> str:
    """Return the number of clusters along a grid axis.

    Source: PTX ISA 10.13 `%nclusterid`.
    """
    return _special_register(emit, f"nclusterid.{'xyz'[axis]}")


def _special_register(emit: Emitter, name: str) -> str:
    callee = f"llvm.nvvm.read.ptx.sreg.{name}"
    emit.declare("i32", callee, ())
    return emit.thread_value(f"call i32 @{callee}()")


def print_values(emit: Emitter, text: str, values: Sequence[Argument]) -> None:
    """Print numbers of 32 and 64 bits on the host, through a buffer of naturally aligned values.

    Source: CUDA Programming Guide, "Formatted Output"; CUDA's `vprintf`.
    """
    end = 0
    offsets: list[int] = []
    for kind, _ in values:
        size = 4 if kind == "i32" else 8
        offsets.append(-(-end // size) * size)
        end = offsets[-1] + size
    buffer = emit.buffer(max(end, 8))
    for offset, (kind, operand) in zip(offsets, values, strict=True):
        address = emit.fresh(f"getelementptr i8, ptr {buffer}, i32 {offset}")
        emit.effect(f"store {kind} {operand}, ptr {address}")
    shown = f"addrspacecast (ptr addrspace(1) {emit.string(text)} to ptr)"
    emit.fresh(emit.call_text("i32", "vprintf", [("ptr", shown), ("ptr", buffer)]))


def assert_fail(emit: Emitter, message: str, file: str, line: int, function: str) -> None:
    """Report a failed assertion to the host and stop the kernel.

    Source: CUDA Programming Guide, "Assertion"; PTX ISA 9.7.19.1 `trap`.
    """
    message, file, function = (
        f"addrspacecast (ptr addrspace(1) {emit.string(text)} to ptr)"
        for text in (message, file, function)
    )
    arguments = [("ptr", message), ("ptr", file), ("i32", str(line)), ("ptr", function)]
    emit.effect(emit.call_text("void", "__assertfail", [*arguments, ("i64", "1")]))
    emit.effect(emit.call_text("void", "llvm.trap"))
    emit.effect("unreachable")
