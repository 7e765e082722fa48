"""PTX memory instructions: loads, stores, `cp.async`, matrices, atomics, fences, policies.

Each is inline assembly, with the address as base and immediate offset, so ptxas sees the form
chosen by the rules. Sections are of the PTX ISA manual, version 8.8. TMA and mbarriers are in
`nvvm_tensor`.

Invariant: memory accesses are `sideeffect`, so LLVM keeps the order in which rules emit them.
Matrix accesses, executed by the lanes of a warp together, are `convergent` too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from aotc.backend.emitter import Emitter

Space = Literal["global", "shared", "shared::cluster"]

_CONSTRAINTS = {8: "h", 16: "h", 32: "r", 64: "l"}
_ADDRESS = {
    "global": ("ptr addrspace(1)", "l"),
    "shared": ("i32", "r"),
    "shared::cluster": ("i32", "r"),
}

# ---- loads and stores -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Address:
    """The address of an access: a base operand and an immediate offset."""

    space: Space
    base: str
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Access:
    """The form of an access: `count` words of `bits` each, under a predicate, with modifiers.

    `predicate` "" is always true. `policy` is the operand of an L2 cache policy, or "".
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
    address_index = len(constraints)
    constraints.append(pointer_letter)
    arguments.append(f"{pointer} {address.base}")
    words = ", ".join(f"${index}" for index in range(count))
    text = f"{access.mnemonic('ld', address.space)} {{{words}}}, [${address_index}+{address.offset_bytes}]"
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
    """Complete an access with policy and predicate; return the asm call without its type."""
    if access.policy:
        text += f", ${len(constraints)}"
        constraints.append("l")
        arguments.append(f"i64 {access.policy}")
    if access.predicate:
        text = f"@${len(constraints)} {text}"
        constraints.append("b")
        arguments.append(f"i1 {access.predicate}")
    return f'asm sideeffect "{text};", "{",".join(constraints)}"({", ".join(arguments)})'


def add_address(emit: Emitter, address: str, distance_bytes: str) -> str:
    """Return a global address moved by an i64 operand.

    As assembly: LLVM's strength reduction would split the sum of a loop-varying and a
    loop-invariant term, and keep one invariant per register.

    Source: PTX ISA 9.7.1.1 `add`.
    """
    kind = _ADDRESS["global"][0]
    arguments = f"{kind} {address}, i64 {distance_bytes}"
    return emit.value(f'call {kind} asm "add.s64 $0, $1, $2;", "=l,l,l"({arguments})')


@dataclass(frozen=True, slots=True)
class AsyncAccess:
    """The form of a copy from global to shared memory: its size, and modifiers as in `Access`.

    `bypass_l1` is allowed for copies of 16 bytes only.
    """

    size_bytes: int
    predicate: str = ""
    bypass_l1: bool = False
    policy: str = ""
    prefetch_bytes: int = 0


def async_copy(
    emit: Emitter, target: Address, source: Address, access: AsyncAccess, ignored: str
) -> None:
    """Start a copy from global to shared memory; it writes zeros if `ignored`, an i1 or "", holds.

    Source: PTX ISA 9.7.9.25.3.1 `cp.async`.
    """
    constraints = [_ADDRESS[address.space][1] for address in (target, source)]
    arguments = [f"{_ADDRESS[address.space][0]} {address.base}" for address in (target, source)]
    hint = ".L2::cache_hint" if access.policy else ""
    if access.prefetch_bytes:
        hint += f".L2::{access.prefetch_bytes}B"
    text = f"cp.async.{'cg' if access.bypass_l1 else 'ca'}.shared.global{hint} "
    text += f"[$0+{target.offset_bytes}], [$1+{source.offset_bytes}], {access.size_bytes}"
    for operand, kind, letter in (
        (ignored, "i1", "b"),
        (access.policy, "i64", "l"),
    ):
        if operand:
            text += f", ${len(constraints)}"
            constraints.append(letter)
            arguments.append(f"{kind} {operand}")
    if access.predicate:
        text = f"@${len(constraints)} {text}"
        constraints.append("b")
        arguments.append(f"i1 {access.predicate}")
    shown = ", ".join(arguments)
    emit.effect(f'call void asm sideeffect "{text};", "{",".join(constraints)}"({shown})')


def arrive_when_copied(emit: Emitter, barrier: Address) -> None:
    """Let this thread arrive at an mbarrier once all copies it has started have landed.

    The phase's count includes this arrival. Source: PTX ISA 9.7.13.15.14
    `cp.async.mbarrier.arrive`.
    """
    text = f"cp.async.mbarrier.arrive.noinc.shared.b64 [$0+{barrier.offset_bytes}];"
    emit.effect(f'call void asm sideeffect "{text}", "r"(i32 {barrier.base})')


def async_commit(emit: Emitter) -> None:
    """Close a commit group of this thread's copies since the last one.

    Source: PTX ISA 9.7.9.25.3.2 `cp.async.commit_group`.
    """
    emit.effect('call void asm sideeffect "cp.async.commit_group;", ""()')


def async_wait(emit: Emitter, num_pending: int) -> None:
    """Wait until at most the newest `num_pending` commit groups of this thread are pending.

    Source: PTX ISA 9.7.9.25.3.3 `cp.async.wait_group`.
    """
    emit.effect(f'call void asm sideeffect "cp.async.wait_group {num_pending};", ""()')


def load_matrix(emit: Emitter, address: Address, mode: str, count: int) -> list[str]:
    """Load `count` 8x8 matrices from shared memory; return a lane's i32 words.

    Lane `8*i + r` gives the address of row `r` of matrix `i`; `mode` is "b16" or "b16.trans".

    Source: PTX ISA 9.7.14.5.15 `ldmatrix`.
    """
    words = ", ".join(f"${index}" for index in range(count))
    mnemonic = _matrix_mnemonic("ldmatrix", mode, count)
    text = f"{mnemonic} {{{words}}}, [${count}+{address.offset_bytes}];"
    returned = "i32" if count == 1 else "{" + ", ".join(["i32"] * count) + "}"
    constraints = ",".join(["=r"] * count + ["r"])
    asm = f'asm sideeffect "{text}", "{constraints}"(i32 {address.base}) convergent'
    loaded = emit.fresh(f"call {returned} {asm}")
    if count == 1:
        return [loaded]
    return [emit.value(f"extractvalue {returned} {loaded}, {index}") for index in range(count)]


def store_matrix(emit: Emitter, address: Address, mode: str, words: Sequence[str]) -> None:
    """Store 8x8 matrices to shared memory from a lane's i32 words: `load_matrix` reversed.

    Source: PTX ISA 9.7.14.5.16 `stmatrix`.
    """
    shown = ", ".join(f"${index + 1}" for index in range(len(words)))
    mnemonic = _matrix_mnemonic("stmatrix", mode, len(words))
    text = f"{mnemonic} [$0+{address.offset_bytes}], {{{shown}}};"
    arguments = ", ".join(f"i32 {operand}" for operand in (address.base, *words))
    constraints = ",".join(["r"] * (len(words) + 1))
    emit.effect(f'call void asm sideeffect "{text}", "{constraints}"({arguments}) convergent')


def _matrix_mnemonic(opcode: str, mode: str, count: int) -> str:
    trans = ".trans" if mode == "b16.trans" else ""
    return f"{opcode}.sync.aligned.m8n8.x{count}{trans}.shared.b16"


# ---- atomics ----------------------------------------------------------------------------------

_BF16_ONES = 0x3F803F80


@dataclass(frozen=True, slots=True)
class Atomic:
    """The form of an atomic: `count` words of `bits` each, under a predicate, with a scope.

    `operation` is the instruction's, with the element type, such as "add.noftz.f16x2".
    """

    operation: str
    bits: int
    count: int = 1
    predicate: str = ""
    scope: str = "gpu"


def atomic(
    emit: Emitter,
    address: Address,
    how: Atomic,
    *operands: Sequence[str],
    initial: Sequence[str] | None = None,
) -> list[str]:
    """Update words in memory; return the old ones, or `initial` where the predicate is false.

    Each of `operands` has one word for each word of the update. Without `initial`, nothing is
    returned. The atomic is relaxed: it orders no other access.

    Source: PTX ISA 9.7.13.5 `atom`, 9.7.13.7 `red`.
    """
    letter, kind = _CONSTRAINTS[how.bits], f"i{how.bits}"
    is_read = initial is not None
    has_result = is_read or how.operation.startswith(("exch", "cas"))  # `red` lacks these
    vector = f".v{how.count}" if how.count > 1 else ""
    stem, _, element = how.operation.rpartition(".")
    opcode = "atom" if has_result else "red"
    text = f"{opcode}.relaxed.{how.scope}.{address.space}.{stem}{vector}.{element} "
    constraints = [f"={letter}"] * how.count if is_read else []
    arguments: list[str] = []
    if is_read:
        text += f"{_group(0, how.count)}, "
        if how.predicate:
            constraints += [str(index) for index in range(how.count)]
            arguments += [f"{kind} {word}" for word in initial]
    elif has_result:
        text += "_, "
    pointer, pointer_letter = _ADDRESS[address.space]
    arguments.append(f"{pointer} {address.base}")
    text += f"[${len(constraints)}+{address.offset_bytes}]"
    constraints.append(pointer_letter)
    for words in operands:
        text += f", {_group(len(constraints), how.count)}"
        constraints += [letter] * how.count
        arguments += [f"{kind} {word}" for word in words]
    if how.predicate:
        text = f"@${len(constraints)} {text}"
        constraints.append("b")
        arguments.append(f"i1 {how.predicate}")
    call = f'asm sideeffect "{text};", "{",".join(constraints)}"({", ".join(arguments)})'
    if not is_read:
        emit.effect(f"call void {call}")
        return []
    if how.count == 1:
        return [emit.fresh(f"call {kind} {call}")]
    returned = "{" + ", ".join([kind] * how.count) + "}"
    before = emit.fresh(f"call {returned} {call}")
    return [emit.value(f"extractvalue {returned} {before}, {index}") for index in range(how.count)]


def _group(start: int, count: int) -> str:
    """Return operands `start`, `start + 1`, … as one word or a vector."""
    words = ", ".join(f"${index}" for index in range(start, start + count))
    return words if count == 1 else f"{{{words}}}"


def atomic_add_bf16x2(
    emit: Emitter, address: Address, words: Sequence[str], predicate: str, scope: str
) -> str:
    """Add to a pair of bf16 where the target has no instruction for it; return the old pair.

    `words` are the pair to add and a mask of the bits to change. A compare-and-swap loop repeats
    until no other thread intervened. Returns an i32, 0 if the predicate is false.

    Source: PTX ISA 9.7.13.5 `atom.cas`, 9.7.4.4 `fma.rn.bf16x2`.
    """
    space, memory = address.space, f"[$1+{address.offset_bytes}]"
    text = (
        "{ .reg .pred again; .reg .b32 sum, seen, ones; "
        f"mov.b32 $0, 0; @!$4 bra done; mov.b32 ones, {_BF16_ONES}; "
        f"ld.relaxed.{scope}.{space}.b32 $0, {memory}; "
        "retry: fma.rn.bf16x2 sum, $0, ones, $2; "
        # Bits of `sum` under the mask $3, the old bits elsewhere.
        "lop3.b32 sum, sum, $0, $3, 0xE4; "
        f"atom.relaxed.{scope}.{space}.cas.b32 seen, {memory}, $0, sum; "
        "setp.ne.b32 again, seen, $0; mov.b32 $0, seen; @again bra retry; done: }"
    )
    pointer, letter = _ADDRESS[space]
    addend, mask = words
    return emit.fresh(
        f'call i32 asm sideeffect "{text}", "=&r,{letter},r,r,b"({pointer} {address.base}, '
        f"i32 {addend}, i32 {mask}, i1 {predicate or 'true'})"
    )


def atomic_pick_half(
    emit: Emitter, address: Address, word: str, operation: str, predicate: str, scope: str
) -> str:
    """Keep the `operation`, such as "max.bf16", of an element in memory and `word`; return the old one.

    There is no instruction for one element of 16 bits. Returns an i16, 0 if the predicate is false.

    Source: PTX ISA 9.7.13.5 `atom.cas`, 9.7.4.7 `min`, `max`: a number beats NaN.
    """
    space, cell = address.space, f"[$1+{address.offset_bytes}]"
    text = (
        "{ .reg .pred again; .reg .b16 next, seen; mov.b16 $0, 0; @!$3 bra done; "
        f"ld.relaxed.{scope}.{space}.b16 $0, {cell}; "
        f"retry: {operation} next, $0, $2; "
        f"atom.relaxed.{scope}.{space}.cas.b16 seen, {cell}, $0, next; "
        "setp.ne.s16 again, seen, $0; mov.b16 $0, seen; @again bra retry; done: }"
    )
    pointer, letter = _ADDRESS[space]
    return emit.fresh(
        f'call i16 asm sideeffect "{text}", "=&h,{letter},h,b"({pointer} {address.base}, '
        f"i16 {word}, i1 {predicate or 'true'})"
    )


def fence(emit: Emitter, scope: str) -> None:
    """Order this thread's earlier accesses, and writes it has observed, before its later ones.

    Source: PTX ISA 9.7.13.4 `fence.acq_rel`.
    """
    emit.effect(f'call void asm sideeffect "fence.acq_rel.{scope};", ""()')


def create_policy(emit: Emitter, priority: str) -> str:
    """Return an L2 cache policy with one `priority`, such as "evict_first", for all accesses.

    Source: PTX ISA 9.7.9.18 `createpolicy`.
    """
    text = f"createpolicy.fractional.L2::{priority}.b64 $0, 1.0;"
    return emit.thread_value(f'call i64 asm "{text}", "=l"()')
