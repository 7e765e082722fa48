"""All instruction text: one function for each PTX instruction that rules use by name.

Rules do arithmetic on layouts and say what is to happen; how it is spelled, as an intrinsic or as
inline assembly, stands here. Sections are those of the PTX ISA manual, version 8.8.

Invariant: what several threads must run together is `convergent`, and what touches memory is
`sideeffect`, so LLVM keeps the order in which rules wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from aotc.backend.emitter import Emitter

Space = Literal["global", "shared"]
ShuffleMode = Literal["bfly", "up", "down", "idx"]

_FULL_WARP = -1
_LAST_LANE = 31
_CONSTRAINTS = {8: "h", 16: "h", 32: "r", 64: "l"}
_ADDRESS = {"global": ("ptr addrspace(1)", "l"), "shared": ("i32", "r")}

# ---- memory -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Address:
    """Say where an access goes: a base operand and a constant that becomes an immediate."""

    space: Space
    base: str
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Access:
    """Say how an access goes: `count` words of `bits` each, under a predicate, with modifiers.

    `predicate` "" always goes ahead. `policy` is the operand of an L2 cache policy, or "".
    `prefetch_bytes` is a hint of 64, 128 or 256 to the L2 cache, or 0.
    """

    bits: int
    count: int
    predicate: str = ""
    modifiers: str = ""
    policy: str = ""
    volatile: bool = False
    prefetch_bytes: int = 0

    @property
    def register_type(self) -> str:
        """LLVM type of a word in a register: PTX has no 8-bit registers."""
        return f"i{max(16, self.bits)}"

    def mnemonic(self, opcode: str, space: Space) -> str:
        """Return the instruction's name with all its suffixes."""
        hint = ".L2::cache_hint" if self.policy else ""
        if self.prefetch_bytes:
            hint += f".L2::{self.prefetch_bytes}B"
        volatile = ".volatile" if self.volatile else ""
        vector = f".v{self.count}" if self.count > 1 else ""
        return f"{opcode}{volatile}.{space}{self.modifiers}{hint}{vector}.b{self.bits}"


def load(emit: Emitter, address: Address, access: Access, initial: Sequence[str]) -> list[str]:
    """Return the words read, or `initial` where the predicate is false.

    Source: PTX ISA 9.7.9.8 `ld`.
    """
    kind, count = access.register_type, access.count
    letter = _CONSTRAINTS[access.bits]
    pointer, pointer_letter = _ADDRESS[address.space]
    constraints = [f"={letter}"] * count
    arguments: list[str] = []
    if access.predicate:
        constraints += [str(index) for index in range(count)]
        arguments += [f"{kind} {word}" for word in initial]
    at = len(constraints)
    constraints.append(pointer_letter)
    arguments.append(f"{pointer} {address.base}")
    words = ", ".join(f"${index}" for index in range(count))
    text = f"{access.mnemonic('ld', address.space)} {{{words}}}, [${at}+{address.offset_bytes}]"
    text = _finish(text, access, constraints, arguments)
    returned = kind if count == 1 else "{" + ", ".join([kind] * count) + "}"
    loaded = emit.fresh(f"call {returned} {text}")
    if count == 1:
        return [loaded]
    return [emit.value(f"extractvalue {returned} {loaded}, {index}") for index in range(count)]


def store(emit: Emitter, address: Address, access: Access, words: Sequence[str]) -> None:
    """Write words if the predicate holds.

    Source: PTX ISA 9.7.9.11 `st`.
    """
    pointer, pointer_letter = _ADDRESS[address.space]
    letter = _CONSTRAINTS[access.bits]
    constraints = [pointer_letter, *[letter] * access.count]
    arguments = [f"{pointer} {address.base}", *(f"{access.register_type} {w}" for w in words)]
    shown = ", ".join(f"${index + 1}" for index in range(access.count))
    text = f"{access.mnemonic('st', address.space)} [$0+{address.offset_bytes}], {{{shown}}}"
    emit.effect(f"call void {_finish(text, access, constraints, arguments)}")


def _finish(text: str, access: Access, constraints: list[str], arguments: list[str]) -> str:
    """Add policy and predicate to the text of an access; return the asm call after its type."""
    if access.policy:
        text += f", ${len(constraints)}"
        constraints.append("l")
        arguments.append(f"i64 {access.policy}")
    if access.predicate:
        text = f"@${len(constraints)} {text}"
        constraints.append("b")
        arguments.append(f"i1 {access.predicate}")
    return f'asm sideeffect "{text};", "{",".join(constraints)}"({", ".join(arguments)})'


def create_policy(emit: Emitter, priority: str) -> str:
    """Return an L2 cache policy that treats all accesses with `priority`, such as "evict_first".

    Source: PTX ISA 9.7.9.18 `createpolicy`.
    """
    text = f"createpolicy.fractional.L2::{priority}.b64 $0, 1.0;"
    return emit.thread_value(f'call i64 asm "{text}", "=l"()')


def barrier(emit: Emitter) -> None:
    """Wait for all threads of the block.

    Source: PTX ISA 9.7.13.1 `barrier.cta.sync`.
    """
    emit.effect(emit.call_text("void", "llvm.nvvm.barrier.cta.sync.aligned.all", [("i32", "0")]))


# ---- exchange within a warp -------------------------------------------------------------------


def shuffle(emit: Emitter, mode: ShuffleMode, word: str, lane: str) -> str:
    """Return the i32 `word` of another lane: XOR, minus, plus or equal `lane`.

    Source: PTX ISA 9.7.9.6 `shfl.sync`.
    """
    clamp = 0 if mode == "up" else _LAST_LANE
    arguments = [("i32", str(_FULL_WARP)), ("i32", word), ("i32", lane), ("i32", str(clamp))]
    return emit.call("i32", f"llvm.nvvm.shfl.sync.{mode}.i32", arguments)


def redux(emit: Emitter, kind: str, word: str) -> str:
    """Return the i32 words of all lanes combined by `kind`: add, min, umin, max, umax, and, or, xor.

    Source: PTX ISA 9.7.13.7 `redux.sync`.
    """
    arguments = [("i32", word), ("i32", str(_FULL_WARP))]
    return emit.call("i32", f"llvm.nvvm.redux.sync.{kind}", arguments)


# ---- floating point ---------------------------------------------------------------------------


def ex2(emit: Emitter, value: str) -> str:
    """Return 2 to the power of a float, within 2 ulp; subnormals count as zero.

    Source: PTX ISA 9.7.3.20 `ex2.approx.ftz`.
    """
    return emit.call("float", "llvm.nvvm.ex2.approx.ftz.f32", [("float", value)])


def sqrt_approx(emit: Emitter, value: str) -> str:
    """Return the square root of a float, within 1 ulp, subnormals as zero.

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
    """Return the reciprocal square root of a float, within 2 ulp, subnormals as zero.

    Source: PTX ISA 9.7.3.17 `rsqrt.approx.ftz`.
    """
    return emit.call("float", "llvm.nvvm.rsqrt.approx.ftz.f", [("float", value)])


def div_full(emit: Emitter, left: str, right: str) -> str:
    """Return the quotient of floats, within 2 ulp over the whole range.

    Source: PTX ISA 9.7.3.8 `div.full`.
    """
    return emit.call("float", "llvm.nvvm.div.full", [("float", left), ("float", right)])


# ---- conversions ------------------------------------------------------------------------------


def round_pair(emit: Emitter, low: str, high: str, kind: str, rounding: str) -> str:
    """Return two floats rounded to `<2 x kind>`; rounding is rn or rz.

    Source: PTX ISA 9.7.9.21 `cvt`.
    """
    stem = {"half": "f16x2", "bfloat": "bf16x2"}[kind]
    return emit.call(
        f"<2 x {kind}>", f"llvm.nvvm.ff2{stem}.{rounding}", [("float", high), ("float", low)]
    )


def round_to_zero_half(emit: Emitter, value: str) -> str:
    """Return a float rounded towards zero to half, as the i16 of its bits.

    Source: PTX ISA 9.7.9.21 `cvt.rz.f16.f32`.
    """
    return emit.value(f'call i16 asm "cvt.rz.f16.f32 $0, $1;", "=h,f"(float {value})')


def pack_fp8(emit: Emitter, low: str, high: str, kind: str) -> str:
    """Return two floats rounded to nearest fp8 and saturated: an i16, `low` in its low byte.

    Source: PTX ISA 9.7.9.21 `cvt.rn.satfinite.e4m3x2.f32`.
    """
    return emit.call("i16", f"llvm.nvvm.ff.to.{kind}x2.rn", [("float", high), ("float", low)])


def unpack_fp8(emit: Emitter, pair: str, kind: str) -> str:
    """Return the two fp8 numbers of an i16 as `<2 x half>`, exactly.

    Source: PTX ISA 9.7.9.21 `cvt.rn.f16x2.e4m3x2`.
    """
    return emit.call("<2 x half>", f"llvm.nvvm.{kind}x2.to.f16x2.rn", [("i16", pair)])


# ---- integers ---------------------------------------------------------------------------------


def mul_high(emit: Emitter, left: str, right: str, bits: int, *, signed: bool) -> str:
    """Return the high half of the full product of integers of 16, 32 or 64 bits.

    Source: PTX ISA 9.7.1.3 `mul.hi`.
    """
    stem = {16: "s", 32: "i", 64: "ll"}[bits]
    kind = f"i{bits}"
    name = f"llvm.nvvm.mulhi.{stem if signed else 'u' + stem}"
    return emit.call(kind, name, [(kind, left), (kind, right)])


# ---- the rest ---------------------------------------------------------------------------------


def program_id(emit: Emitter, axis: int) -> str:
    """Return the index of the block along a grid axis.

    Source: PTX ISA 10.7 `%ctaid`.
    """
    return _special_register(emit, f"ctaid.{'xyz'[axis]}")


def num_programs(emit: Emitter, axis: int) -> str:
    """Return the number of blocks along a grid axis.

    Source: PTX ISA 10.8 `%nctaid`.
    """
    return _special_register(emit, f"nctaid.{'xyz'[axis]}")


def _special_register(emit: Emitter, name: str) -> str:
    callee = f"llvm.nvvm.read.ptx.sreg.{name}"
    emit.declare("i32", callee, ())
    return emit.thread_value(f"call i32 @{callee}()")


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
