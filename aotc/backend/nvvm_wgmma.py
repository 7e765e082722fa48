"""Instructions of `wgmma`. Sections are of the PTX ISA manual, version 8.8.

LLVM has no intrinsic for these, and ptxas must see each accumulator in the same registers from its
first wgmma to the wait. So they are inline assembly with tied accumulators.

Invariant: as in `nvvm`; and no instruction is between the fence, the wgmmas and the commit of a
group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aotc.backend.emitter import Argument, Emitter

_CONSTRAINTS = {"float": "f", "i32": "r"}


@dataclass(frozen=True, slots=True)
class WgmmaKind:
    """A `wgmma`: `suffix` is its depth and types, `word` the type of an accumulator register.

    `tail` are the operands after scale-d: scales and, for 2-byte elements, transpositions.
    """

    suffix: str
    word: str
    tail: str


@dataclass(frozen=True, slots=True)
class WgmmaStep:
    """One instruction of a commit group, and its accumulator, `columns` wide.

    `a` and `b` are offsets from their matrices' descriptors; or `a` lists the words of the operand.
    `first` marks the first instruction of an accumulator; it may ignore the old value.
    """

    block: int
    columns: int
    a: int | Sequence[int]
    b: int
    first: bool


def wgmma(
    emit: Emitter,
    kind: WgmmaKind,
    steps: Sequence[WgmmaStep],
    acc: Sequence[Sequence[str]],
    a: str | Sequence[str],
    b: str,
    accumulate: str,
) -> list[list[str]]:
    """Issue wgmmas as one commit group; return their accumulators, valid after a wait.

    `acc` are the registers of each accumulator; `a` is an i64 matrix descriptor or i32 registers,
    `b` a matrix descriptor. Unless the i1 `accumulate` holds, the first wgmma of each accumulator
    ignores its old value.

    Source: PTX ISA 9.7.15.5.2 `wgmma.mma_async`, 9.7.15.7.1 `wgmma.fence`, 9.7.15.7.2
    `wgmma.commit_group`.
    """
    words = [(kind.word, word) for registers in acc for word in registers]
    is_fresh = all(word == "poison" for _, word in words)
    arguments = [("i64", a)] if isinstance(a, str) else [("i32", word) for word in a]
    letters = [*("l" if isinstance(a, str) else "r" * len(a)), "l", "b"]
    a_at = len(words) if is_fresh else 2 * len(words)
    b_at = a_at + len(arguments)
    arguments += [("i64", b), ("i1", accumulate)]
    starts = [sum(map(len, acc[:block])) for block in range(len(acc))]
    lines = ["{", "wgmma.fence.sync.aligned;"]
    left_at, right_at = _Descriptor("a", f"${a_at}"), _Descriptor("b", f"${b_at}")
    for step in steps:
        right = right_at.move(step.b, lines)
        if isinstance(step.a, int):
            left = left_at.move(step.a, lines)
        else:
            left = _group(a_at + word for word in step.a)
        start = starts[step.block]
        result = _group(range(start, start + len(acc[step.block])))
        scale = f"${b_at + 1}" if step.first else "1"
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{step.columns}{kind.suffix} "
            f"{result}, {left}, {right}, {scale}{kind.tail};"
        )
    lines += ["wgmma.commit_group.sync.aligned;", "}"]
    text = " ".join(lines)
    out = _tied(emit, text, words, arguments, letters, is_fresh=is_fresh)
    return [
        out[start : start + len(registers)] for start, registers in zip(starts, acc, strict=True)
    ]


@dataclass(slots=True)
class _Descriptor:
    """A matrix descriptor, stepped through the matrix.

    Each step adds to the low word of the previous one, which has the address, in registers of its
    own. If two are written to the same registers, ptxas 13.5 may take them for one and issue one
    wgmma for both. If each starts from the first one again, it copies the high word for each, or
    adds 64 bits with constants in registers: more instructions between one wgmma and the next.
    """

    name: str
    register: str
    offset: int = 0
    count: int = 0

    def move(self, offset: int, lines: list[str]) -> str:
        """Write the descriptor's step to an offset from the first; return its register."""
        if offset != self.offset:
            self.count += 1
            name = f"{self.name}{self.count}"
            lines.append(
                f".reg .b64 {name}; .reg .b32 {name}l, {name}h, {name}m; mov.b64 {{{name}l, {name}h}}, {self.register}; "
                f"add.s32 {name}m, {name}l, {offset - self.offset}; mov.b64 {name}, {{{name}m, {name}h}};"
            )
            self.register, self.offset = name, offset
        return self.register


def opaque_false(emit: Emitter) -> str:
    """Return a false i1, opaque to LLVM and ptxas: whether a grid has no CTAs.

    Source: PTX ISA 10.8 `%nctaid`.
    """
    text = "{ .reg .b32 n; mov.u32 n, %nctaid.x; setp.eq.u32 $0, n, 0; }"
    return emit.fresh(f'call i1 asm "{text}", "=b"()')


def wgmma_wait(emit: Emitter, num_pending: int, words: Sequence[Argument]) -> list[str]:
    """Wait until at most the newest `num_pending` commit groups are in flight.

    Return the accumulators, now valid.

    Source: PTX ISA 9.7.15.7.3 `wgmma.wait_group`.
    """
    text = f"wgmma.wait_group.sync.aligned {num_pending};"
    return _tied(emit, text, words, (), ())


def _group(operands: Iterable[int]) -> str:
    return "{" + ", ".join(f"${operand}" for operand in operands) + "}"


def _tied(
    emit: Emitter,
    text: str,
    words: Sequence[Argument],
    arguments: Sequence[Argument],
    letters: Sequence[str],
    *,
    is_fresh: bool = False,
) -> list[str]:
    """Write convergent inline assembly to update `words`, its first operands; return them.

    Each word is both an output and a tied input, or an output alone if all `is_fresh`; the
    read-only operands follow all of these.
    """
    mark = "=&" if is_fresh else "="
    changed = [f"{mark}{_CONSTRAINTS[kind]}" for kind, _ in words]
    tied: Sequence[Argument] = () if is_fresh else words
    constraints = ",".join([*changed, *map(str, range(len(tied))), *letters])
    shown = ", ".join(f"{kind} {operand}" for kind, operand in (*tied, *arguments))
    returned = emit.struct([kind for kind, _ in words])
    out = emit.fresh(
        f'call {returned} asm sideeffect "{text}", "{constraints}"({shown}) convergent'
    )
    return [emit.fresh(f"extractvalue {returned} {out}, {index}") for index in range(len(words))]
