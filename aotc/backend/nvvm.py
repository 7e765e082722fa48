"""PTX instruction text: one function for each instruction that rules use by name.

Rules compute on layouts and decide which instructions there are; these functions spell them, as
intrinsics or as inline assembly. Sections are those of the PTX ISA manual, version 8.8.

Invariant: an instruction that several threads must execute together is `convergent`, and one that
accesses memory is `sideeffect`, so LLVM keeps the order in which rules emit them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from aotc.backend.emitter import Argument, Emitter

Space = Literal["global", "shared"]
ShuffleMode = Literal["bfly", "up", "down", "idx"]

_FULL_WARP = -1
_LAST_LANE = 31
_CONSTRAINTS = {8: "h", 16: "h", 32: "r", 64: "l"}
_ADDRESS = {"global": ("ptr addrspace(1)", "l"), "shared": ("i32", "r")}

# ---- memory -----------------------------------------------------------------------------------


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
    constraints = [_ADDRESS[each.space][1] for each in (target, source)]
    arguments = [f"{_ADDRESS[each.space][0]} {each.base}" for each in (target, source)]
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


def async_commit(emit: Emitter) -> None:
    """Close a commit group of the copies that this thread started since the last one.

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

    `words` are the pair to add and a mask of the bits that may change. A compare-and-swap loop
    repeats until no other thread intervened. Returns an i32, 0 if the predicate is false.


    Source: PTX ISA 9.7.13.5 `atom.cas`, 9.7.4.4 `fma.rn.bf16x2`.
    """
    space, place = address.space, f"[$1+{address.offset_bytes}]"
    text = (
        "{ .reg .pred again; .reg .b32 sum, seen, ones; "
        f"mov.b32 $0, 0; @!$4 bra done; mov.b32 ones, {_BF16_ONES}; "
        f"ld.relaxed.{scope}.{space}.b32 $0, {place}; "
        "retry: fma.rn.bf16x2 sum, $0, ones, $2; "
        # Bits of `sum` under the mask $3, of what was there elsewhere.
        "lop3.b32 sum, sum, $0, $3, 0xE4; "
        f"atom.relaxed.{scope}.{space}.cas.b32 seen, {place}, $0, sum; "
        "setp.ne.b32 again, seen, $0; mov.b32 $0, seen; @again bra retry; done: }"
    )
    pointer, letter = _ADDRESS[space]
    addend, mask = words
    return emit.fresh(
        f'call i32 asm sideeffect "{text}", "=&r,{letter},r,r,b"({pointer} {address.base}, '
        f"i32 {addend}, i32 {mask}, i1 {predicate or 'true'})"
    )


def fence(emit: Emitter, scope: str) -> None:
    """Order this thread's earlier accesses, and writes it has observed, before its later ones.

    Source: PTX ISA 9.7.13.4 `fence.acq_rel`.
    """
    emit.effect(f'call void asm sideeffect "fence.acq_rel.{scope};", ""()')


def create_policy(emit: Emitter, priority: str) -> str:
    """Return an L2 cache policy that treats all accesses with `priority`, such as "evict_first".

    Source: PTX ISA 9.7.9.18 `createpolicy`.
    """
    text = f"createpolicy.fractional.L2::{priority}.b64 $0, 1.0;"
    return emit.thread_value(f'call i64 asm "{text}", "=l"()')


def barrier(emit: Emitter, num_threads: int = 0, number: str = "1") -> None:
    """Wait for all threads of the CTA, or for `num_threads` at a named barrier.

    `number` is the named barrier, an i32 operand: 1 for the CTA's first threads, from 2 on for
    warpgroups, from 10 on for consumer groups.

    Source: PTX ISA 9.7.13.1 `barrier.cta.sync`.
    """
    name, arguments = "llvm.nvvm.barrier.cta.sync.aligned.all", [("i32", "0")]
    if num_threads:
        name = "llvm.nvvm.barrier.cta.sync.aligned.count"
        arguments = [("i32", number), ("i32", str(num_threads))]
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
    """Return the text of a read of the thread id that LLVM cannot merge with another one.

    Source: PTX ISA 10.1 `%tid`.
    """
    return 'call i32 asm sideeffect "mov.u32 $0, %tid.x;", "=r"()'


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


# ---- dots -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mma:
    """An `mma.sync`: LLVM's name, and the types of a word of A or B and of the accumulator."""

    suffix: str
    operand_type: str
    acc_type: str


def _hidden(emit: Emitter, word: str, kind: str) -> str:
    """Return a 32-bit word, hidden from ptxas's constant propagation if it is a constant.

    Source: PTX ISA 10.7 `%nctaid`, which is less than 2**31.
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

    Constant fragments are hidden from ptxas 13.5, which miscompiles them: -2.0 in both halves
    becomes a negated operand that is right in one half only, and the upper half of an fp8 zero
    0xC0.

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
    places: list[int] = []
    for kind, _ in values:
        size = 4 if kind == "i32" else 8
        places.append(-(-end // size) * size)
        end = places[-1] + size
    buffer = emit.buffer(max(end, 8))
    for place, (kind, operand) in zip(places, values, strict=True):
        address = emit.fresh(f"getelementptr i8, ptr {buffer}, i32 {place}")
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
