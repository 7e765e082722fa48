"""Rules for loops, branches, assertions and the end of the kernel.

A loop has its test at the bottom and a guard before it. The guard is omitted if constant bounds
ensure a first iteration: an edge around the loop costs more than a branch, since ptxas would keep
two versions of the carried values.

Carried tiles whose registers are a base plus constants, typically advancing pointers, are carried
as their bases. This is valid if the body yields the same constants again; it is attempted, and if
it fails, the body is lowered once more with every register carried separately. Likewise, narrow
elements packed in 32-bit registers, such as fragments, are carried packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotc.backend import nvvm
from aotc.backend.integers import Registers
from aotc.backend.llvm_types import llvm_type
from aotc.backend.lower import Lowering, Results, lowers
from aotc.backend.packing import pack, packed_words, to_i32_words, unpack, word_shape
from aotc.ir.core import Value
from aotc.ir.dialects import opaque, scf, tile
from aotc.ir.types import ScalarType, element_of

_WORD_BITS = 32
_LEAST_BITS = 16  # of a register
_MULTIPROCESSOR_BITS = 16  # no GPU has as many multiprocessors as these count


@lowers(scf.Return)
def lower_return(ctx: Lowering, op: scf.Return) -> Results:
    """Lower the end of the kernel."""
    del op
    ctx.emit.effect("ret void")
    return []


# ---- loops ------------------------------------------------------------------------------------


class _Carried:
    """A carried value on the back edge: every register, or the bases they share.

    An address at a fixed distance from another one is carried as the other one.
    """

    def __init__(self, ctx: Lowering, value: Value, init: Registers, *, shared: bool) -> None:
        self.element = element_of(value.type)
        self.bits = self.element.bits
        self.kind = llvm_type(self.element)
        self.offsets = [0] * len(init)
        self.distances = [""] * len(init)
        if not shared:
            self.starts = ctx.operands(init, self.element)
            self.index = list(range(len(init)))
        else:
            bases = [ctx.ints.split(component) for component in init]
            # A constant has no base to share: it starts as itself.
            origins = [ctx.ints.origin(base) for base, _ in bases]
            self.distances = [distance for _, distance in origins]
            starts = [
                origin or str(offset)
                for (origin, _), (_, offset) in zip(origins, bases, strict=True)
            ]
            self.offsets = [offset if base else 0 for base, offset in bases]
            self.starts = list(dict.fromkeys(starts))
            self.index = [self.starts.index(start) for start in starts]
        self.phis = [ctx.emit.name() for _ in self.starts]

    def registers(self, ctx: Lowering) -> Registers:
        """Return the registers inside the loop."""
        return self.results(ctx, self.phis)

    def next_starts(self, ctx: Lowering, yielded: Registers) -> list[str] | None:
        """Return the next values of the phis, or None if the registers no longer fit them."""
        following: list[str | None] = [None] * len(self.starts)
        derivations = zip(self.index, self.distances, self.offsets, strict=True)
        for (phi, distance, offset), component in zip(derivations, yielded, strict=True):
            rebased = component
            if offset or distance:
                base, new_offset = ctx.ints.split(component)
                origin, new_distance = ctx.ints.origin(base)
                if not base or new_distance != distance:
                    return None
                rebased = ctx.ints.join(origin, new_offset - offset, self.bits)
            start = ctx.operand(rebased, self.element)
            if following[phi] not in (None, start):
                return None
            following[phi] = start
        return [start for start in following if start is not None]

    def results(self, ctx: Lowering, ends: Sequence[str]) -> Registers:
        """Return the registers after the loop, where `ends` are the phis' last values."""
        return tuple(
            ctx.ints.join(ctx.ints.move(ends[phi], distance), offset, self.bits)
            for phi, distance, offset in zip(self.index, self.distances, self.offsets, strict=True)
        )


class _CarriedPacked:
    """A carried value of packed elements on the back edge: as 32-bit registers."""

    kind = "i32"

    def __init__(self, ctx: Lowering, value: Value, words: list[str], num_registers: int) -> None:
        self.element = element_of(value.type)
        self.num_registers = num_registers
        self.starts = words
        self.phis = [ctx.emit.name() for _ in words]

    def registers(self, ctx: Lowering) -> Registers:
        """Return the registers inside the loop."""
        return self.results(ctx, self.phis)

    def next_starts(self, ctx: Lowering, yielded: Registers) -> list[str] | None:
        """Return the next values of the phis, or None if the registers no longer fit them."""
        return packed_words(ctx.emit, yielded, self.element)

    def results(self, ctx: Lowering, ends: Sequence[str]) -> Registers:
        """Return the registers after the loop, where `ends` are the phis' last values."""
        return tuple(unpack(ctx.emit, ends, self.element, self.num_registers))


def _carry(
    ctx: Lowering, value: Value, init: Registers, *, shared: bool
) -> _Carried | _CarriedPacked:
    """Choose how a value is carried; `shared` asks for fewer phis than it has registers."""
    words = packed_words(ctx.emit, init, element_of(value.type)) if shared else None
    if words is not None:
        return _CarriedPacked(ctx, value, words, len(init))
    return _Carried(ctx, value, init, shared=shared and _has_base(ctx, value))


@lowers(scf.For)
def lower_for(ctx: Lowering, op: scf.For) -> Results:
    """Lower a counted loop."""
    inits = [ctx.raw(value) for value in op.init]
    shared = [True] * len(inits)
    mark = ctx.emit.mark()
    while True:
        with ctx.emit.scope():
            attempt = _attempt_loop(ctx, op, inits, shared)
        if all(attempt.fits):
            return attempt.results
        shared = [share and fits for share, fits in zip(shared, attempt.fits, strict=True)]
        ctx.emit.rewind(mark)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A lowered loop: for each value, whether it could be carried as attempted."""

    fits: list[bool]
    results: Results


def _attempt_loop(
    ctx: Lowering, op: scf.For, inits: Sequence[Registers], shared: Sequence[bool]
) -> _Attempt:
    """Lower the loop; if the attempt fails, the caller discards it."""
    emit = ctx.emit
    kind = op.lower.type
    if not isinstance(kind, ScalarType):
        op.error("has an induction variable that is not an integer")
    lower, upper, step = (ctx.scalar(value) for value in (op.lower, op.upper, op.step))
    less_than = f"icmp {'s' if kind.is_signed else 'u'}lt {llvm_type(kind)}"
    carried = [
        _carry(ctx, value, init, shared=share)
        for value, init, share in zip(op.init, inits, shared, strict=True)
    ]
    last = _last_start(ctx, op, kind)
    head, exit_label, before = emit.new_label("loop"), emit.new_label("done"), emit.label
    skips = not _runs_surely(lower, upper)
    if skips:
        emit.branch_if(emit.value(f"{less_than} {lower}, {upper}"), head, exit_label)
    else:
        emit.branch(head)
    emit.start_block(head)
    phi_at = len(emit.lines)
    with emit.scope():
        induction = _induction(ctx, op, kind)
        ctx.bind(op.induction, (induction,))
        for arg, way in zip(op.carried, carried, strict=True):
            ctx.bind(arg, way.registers(ctx))
        yielded = ctx.lower_ops(op.body)
        following = [
            way.next_starts(ctx, registers) for way, registers in zip(carried, yielded, strict=True)
        ]
        again = emit.value(f"{less_than} {induction}, {last}")
        after = emit.value(f"add {llvm_type(kind)} {induction}, {step}")
        latch = emit.label
        emit.branch_if(again, head, exit_label, _loop_metadata(ctx, op))
    fits = [starts is not None for starts in following]
    if not all(fits):
        return _Attempt(fits, ())
    emit.lines[phi_at:phi_at] = [
        f"  {induction} = phi {llvm_type(kind)} [ {lower}, %{before} ], [ {after}, %{latch} ]",
        *_phis(carried, following, before, latch),
    ]
    emit.start_block(exit_label)
    return _Attempt(fits, _loop_results(ctx, carried, following, before if skips else "", latch))


def _has_base(ctx: Lowering, value: Value) -> bool:
    """Return whether registers of a value may share a base other than a constant."""
    element = element_of(value.type)
    if isinstance(element, ScalarType) and (element.is_float or element.is_bool):
        return False
    return any(ctx.ints.split(component)[0] for component in ctx.raw(value))


def _last_start(ctx: Lowering, op: scf.For, kind: ScalarType) -> str:
    """Return the exclusive bound on induction variables with another iteration.

    It is the upper bound minus the step. It is compared before the step is added, since the sum
    could wrap where the upper bound is near the end of its type.
    """
    upper, step = ctx.scalar(op.upper), ctx.scalar(op.step)
    if kind.is_signed and ctx.ints.is_non_negative(ctx.raw(op.lower)[0], kind.bits):
        # Inside the loop the upper bound exceeds the lower one: the difference cannot wrap.
        return ctx.operand(ctx.ints.sub(upper, step, kind.bits), kind)
    name, typed = f"llvm.{'s' if kind.is_signed else 'u'}sub.sat.i{kind.bits}", llvm_type(kind)
    return ctx.emit.call(typed, name, [(typed, upper), (typed, step)])


def _runs_surely(lower: str, upper: str) -> bool:
    literals = [text for text in (lower, upper) if text.lstrip("-").isdigit()]
    return len(literals) == 2 and int(lower) < int(upper)


def _induction(ctx: Lowering, op: scf.For, kind: ScalarType) -> str:
    """Name the induction variable, and record its known bits."""
    name = ctx.emit.name()
    lower, step = ctx.raw(op.lower)[0], ctx.raw(op.step)[0]
    zeros = min(ctx.ints.trailing_zeros(value, kind.bits) for value in (lower, step))
    possible = (1 << kind.bits) - (1 << zeros)
    if kind.is_signed and ctx.ints.is_non_negative(lower, kind.bits):
        # It only grows, and stays below an upper bound of the same type.
        possible &= (1 << (kind.bits - 1)) - 1
    return ctx.ints.learn(name, possible)


def _phis(
    carried: Sequence[_Carried | _CarriedPacked],
    following: Sequence[list[str] | None],
    before: str,
    latch: str,
) -> list[str]:
    return [
        f"  {phi} = phi {way.kind} [ {start}, %{before} ], [ {after}, %{latch} ]"
        for way, starts in zip(carried, following, strict=True)
        for phi, start, after in zip(way.phis, way.starts, starts or (), strict=True)
    ]


def _loop_results(
    ctx: Lowering,
    carried: Sequence[_Carried | _CarriedPacked],
    following: Sequence[list[str] | None],
    skipped_from: str,
    latch: str,
) -> Results:
    """Return the carried values after the loop: from the last iteration, or from before it."""
    last: list[list[str]] = []
    for way, starts in zip(carried, following, strict=True):
        ends = list(starts or ())
        if skipped_from:
            ends = [
                ctx.emit.fresh(f"phi {way.kind} [ {start}, %{skipped_from} ], [ {end}, %{latch} ]")
                for start, end in zip(way.starts, ends, strict=True)
            ]
        last.append(ends)
    # Not earlier: no phi may follow another instruction.
    return [way.results(ctx, ends) for way, ends in zip(carried, last, strict=True)]


def _loop_metadata(ctx: Lowering, op: scf.For) -> str:
    """Return the reference to the loop's hints, or "" if it has none."""
    if op.unroll == 0:
        return ""
    hint = '"llvm.loop.unroll.disable"'
    if op.unroll > 1:
        hint = f'"llvm.loop.unroll.count", i32 {op.unroll}'
    node = len(ctx.emit.metadata)
    ctx.emit.metadata += [
        f"!{node} = distinct !{{!{node}, !{node + 1}}}",
        f"!{node + 1} = !{{!{hint}}}",
    ]
    return f", !llvm.loop !{node}"


@lowers(scf.While)
def lower_while(ctx: Lowering, op: scf.While) -> Results:
    """Lower a loop with a condition."""
    emit = ctx.emit
    head, body, exit_label = (emit.new_label(stem) for stem in ("while", "do", "done"))
    entry = emit.label
    inits = [ctx.registers(value) for value in op.init]
    emit.branch(head)
    emit.start_block(head)
    phi_at = len(emit.lines)
    phis = [[emit.name() for _ in registers] for registers in inits]
    for arg, names in zip(op.before.args, phis, strict=True):
        ctx.bind(arg, tuple(names))
    # `before` dominates `after` and all code after the loop, so its values stay valid; the values
    # of `after` do not.
    passed = ctx.lower_ops(op.before)
    condition = ctx.operand(passed[0][0], element_of(op.before.terminator.operands[0].type))
    emit.branch_if(condition, body, exit_label)
    emit.start_block(body)
    with emit.scope():
        for arg, registers in zip(op.after.args, passed[1:], strict=True):
            ctx.bind(arg, registers)
        ctx.lower_ops(op.after)
        yielded = [ctx.registers(value) for value in op.after.terminator.operands]
    latch = emit.label
    emit.branch(head)
    emit.lines[phi_at:phi_at] = [
        f"  {name} = phi {llvm_type(element_of(value.type))} "
        f"[ {start}, %{entry} ], [ {after}, %{latch} ]"
        for value, names, starts, afters in zip(op.init, phis, inits, yielded, strict=True)
        for name, start, after in zip(names, starts, afters, strict=True)
    ]
    emit.start_block(exit_label)
    return passed[1:]


# ---- branches ---------------------------------------------------------------------------------


@lowers(scf.If)
def lower_if(ctx: Lowering, op: scf.If) -> Results:
    """Lower a branch."""
    emit = ctx.emit
    then, orelse, join = (emit.new_label(stem) for stem in ("then", "else", "join"))
    emit.branch_if(ctx.scalar(op.condition), then, orelse)
    arms: list[tuple[str, list[_Passed]]] = []
    for label, block in ((then, op.then), (orelse, op.orelse)):
        emit.start_block(label)
        with emit.scope():
            ctx.lower_ops(block)
            passed = [_pass_on(ctx, value) for value in block.terminator.operands]
        arms.append((emit.label, passed))
        emit.branch(join)
    emit.start_block(join)
    (then_end, yes), (else_end, no) = arms
    joined: list[tuple[list[str], bool]] = []
    for value, left, right in zip(op.outs, yes, no, strict=True):
        kind, ends = llvm_type(element_of(value.type)), (left.registers, right.registers)
        is_packed = left.words is not None and right.words is not None
        if left.words is not None and right.words is not None:
            kind, ends = "i32", (left.words, right.words)
        names = [
            a if a == b else emit.fresh(f"phi {kind} [ {a}, %{then_end} ], [ {b}, %{else_end} ]")
            for a, b in zip(*ends, strict=True)
        ]
        joined.append((names, is_packed))
    # Not earlier: no phi may follow another instruction.
    return [
        tuple(unpack(emit, names, element_of(value.type), len(passed.registers)))
        if is_packed
        else tuple(names)
        for value, passed, (names, is_packed) in zip(op.outs, yes, joined, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Passed:
    """The registers of a value at the end of an arm, and their packed words, if any."""

    registers: list[str]
    words: list[str] | None


def _pass_on(ctx: Lowering, value: Value) -> _Passed:
    return _Passed(
        ctx.registers(value),
        packed_words(ctx.emit, ctx.raw(value), element_of(value.type)),
    )


@lowers(opaque.OpaqueThreadId)
def lower_opaque_thread_id(ctx: Lowering, op: opaque.OpaqueThreadId) -> Results:
    """Read the thread id anew, opaque to LLVM."""
    if op.block is not ctx.kernel.body:
        op.error("is in a nested block")
    ctx.opaque_thread_id()
    return []


@lowers(opaque.Opaque)
def lower_opaque(ctx: Lowering, op: opaque.Opaque) -> Results:
    """Combine each word of a tile with an opaque zero, not before `after`.

    By an exclusive or: LLVM's strength reduction compares additions of one value with each other,
    128 of them in three times as long as all else.
    """
    emit, element = ctx.emit, element_of(op.value.type)
    zero = emit.value(f"lshr i32 {emit.fresh(nvvm.read_multiprocessor())}, {_MULTIPROCESSOR_BITS}")
    if op.after is not None:
        after = to_i32_words(emit, ctx.scalar(op.after), element_of(op.after.type))
        zero = emit.value(f"and i32 {zero}, {after[0]}")
    values = ctx.registers(op.value)
    bits, count = word_shape(element, len(values))
    bits = max(bits, _LEAST_BITS)
    if bits != _WORD_BITS:
        resize = "trunc" if bits < _WORD_BITS else "zext"
        zero = emit.value(f"{resize} i32 {zero} to i{bits}")
    per_word = len(values) // count
    elements: list[str] = []
    for start in range(0, len(values), per_word):
        words = packed_words(emit, values[start : start + per_word], element)
        words = words or pack(emit, values[start : start + per_word], element)
        opaque_words = [emit.value(f"xor i{bits} {word}, {zero}") for word in words]
        elements += unpack(emit, opaque_words, element, per_word)
    return [tuple(elements)]


# ---- assumptions and assertions -----------------------------------------------------------------


def _all_hold(ctx: Lowering, condition: Value) -> str:
    """Return an i1: whether the condition is true in every register of this thread."""
    out = "true"
    for register in dict.fromkeys(ctx.registers(condition)):
        if register != "true":
            out = register if out == "true" else ctx.emit.value(f"and i1 {out}, {register}")
    return out


@lowers(tile.Assume)
def lower_assume(ctx: Lowering, op: tile.Assume) -> Results:
    """Lower an assumption of the user."""
    ctx.emit.declare("void", "llvm.assume", ("i1",))
    ctx.emit.effect(f"call void @llvm.assume(i1 {_all_hold(ctx, op.condition)})")
    return []


@lowers(tile.Assert)
def lower_assert(ctx: Lowering, op: tile.Assert) -> Results:
    """Lower an assertion: a branch around a call that stops the kernel."""
    emit = ctx.emit
    holds = _all_hold(ctx, op.condition)
    if holds == "true":
        return []
    failed, passed = emit.new_label("failed"), emit.new_label("passed")
    emit.branch_if(holds, passed, failed)
    emit.start_block(failed)
    with emit.scope():
        file = op.loc.file.rsplit("/", 1)[-1]
        nvvm.assert_fail(emit, op.message, file, op.loc.line, ctx.kernel.name)
    emit.start_block(passed)
    return []
