"""Instructions of `wgmma`. Sections are those of the PTX ISA manual, version 8.8.

LLVM has no intrinsic for these, and ptxas must see each accumulator in the same registers from
its first wgmma to the wait, so they are inline assembly with tied accumulators.

Invariant: as in `nvvm`; and no instruction is between the fence, the wgmmas and the commit of a
group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from aotc.backend.emitter import Argument, Emitter

_CONSTRAINTS = {"float": "f", "i32": "r"}
_FEWEST_STEPS = 4  # of a loop


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
    """One instruction of a commit group, and the accumulator that it updates, so many columns wide.

    `a` and `b` are offsets from their matrices' descriptors; or `a` lists the words that hold it.
    `first` marks the first instruction of an accumulator, which may ignore the old value.
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
    *,
    waits: bool = False,
    is_brief: bool = False,
) -> list[list[str]]:
    """Issue wgmmas as one commit group; return their accumulators, valid after a wait, also in it if it `waits`.

    `acc` are the registers of each accumulator; `a` is an i64 matrix descriptor or i32 registers,
    `b` a matrix descriptor. Unless the i1 `accumulate` holds, the first wgmma of each accumulator
    ignores its old value. If `is_brief`, steps that are alike are a loop, with a group for each: that
    is for what runs once, since a wgmma takes ptxas about as long as 40 other instructions.

    Source: PTX ISA 9.7.15.5.2 `wgmma.mma_async`, 9.7.15.7.1 `wgmma.fence`, 9.7.15.7.2
    `wgmma.commit_group`.
    """
    words = [(kind.word, word) for each in acc for word in each]
    is_fresh = all(word == "poison" for _, word in words)
    arguments = [("i64", a)] if isinstance(a, str) else [("i32", word) for word in a]
    letters = [*("l" if isinstance(a, str) else "r" * len(a)), "l", "b"]
    a_at = len(words) if is_fresh else 2 * len(words)
    b_at = a_at + len(arguments)
    arguments += [("i64", b), ("i1", accumulate)]
    starts = [sum(map(len, acc[:block])) for block in range(len(acc))]
    results = [_group(range(at, at + len(each))) for at, each in zip(starts, acc, strict=True)]
    places = _Places(kind, results, a_at, b_at)
    loop = _Loop.over(steps, len(acc)) if is_brief and accumulate == "false" else None
    lines = places.unrolled(steps) if loop is None else places.in_loop(loop)
    text = " ".join(["{", *lines, *([_wait(0)] if waits else []), "}"])
    out = _tied(emit, text, words, arguments, letters, is_fresh=is_fresh)
    return [out[start : start + len(each)] for start, each in zip(starts, acc, strict=True)]


@dataclass(frozen=True, slots=True)
class _Loop:
    """Steps over K as a loop: each issues `body`, and moves descriptors of A and B.

    They move by `moves` after each step, but by `jumps` where the number of steps done is a multiple of `period`,
    a power of two; there is no such number if that is 0.
    """

    body: Sequence[WgmmaStep]
    num_steps: int
    moves: tuple[int, int]
    jumps: tuple[int, int]
    period: int

    @classmethod
    def over(cls, steps: Sequence[WgmmaStep], num_blocks: int) -> _Loop | None:
        """Return the loop over steps, K outermost and a block within, or None if they are not alike."""
        rounds = [steps[at : at + num_blocks] for at in range(0, len(steps), num_blocks)]
        if len(rounds) < _FEWEST_STEPS or not all(isinstance(step.a, int) for step in steps):
            return None
        places = [[(int(step.a), step.b) for step in each] for each in rounds]  # type: ignore[arg-type]
        moves = [
            {(a[0] - b[0], a[1] - b[1]) for a, b in zip(after, before, strict=True)}
            for before, after in pairwise(places)
        ]
        if any(len(each) > 1 for each in moves):
            return None  # blocks move differently
        by = [next(iter(each)) for each in moves]
        period = next((at for at, each in enumerate(by, 1) if each != by[0]), 0)
        jump = by[period - 1]
        is_regular = all(
            each == (jump if period and at % period == 0 else by[0])
            for at, each in enumerate(by, 1)
        )
        if not is_regular or period & (period - 1):
            return None
        return cls(rounds[0], len(rounds), by[0], jump, period)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the operands of a group are in its assembly: `results` of blocks, A, B and `accumulate`."""

    kind: WgmmaKind
    results: Sequence[str]
    a_at: int
    b_at: int

    def unrolled(self, steps: Sequence[WgmmaStep]) -> list[str]:
        """Return the instructions of a group."""
        lines = ["wgmma.fence.sync.aligned;"]
        left, right = _Descriptor("a", f"${self.a_at}"), _Descriptor("b", f"${self.b_at}")
        for step in steps:
            scale = f"${self.b_at + 1}" if step.first else "1"
            lines += self._issue(step, left, right, scale)
        return [*lines, "wgmma.commit_group.sync.aligned;"]

    def in_loop(self, loop: _Loop) -> list[str]:
        """Return the instructions of a loop whose first step ignores what accumulators hold."""
        lines = [
            ".reg .pred later, more, jumps; .reg .b32 n, t, al, ah, bl, bh; .reg .b64 a, b;",
            f"mov.b32 n, 0; mov.b64 {{al, ah}}, ${self.a_at}; mov.b64 {{bl, bh}}, ${self.b_at};",
            "step: mov.b64 a, {al, ah}; mov.b64 b, {bl, bh}; setp.ne.u32 later, n, 0;",
            "wgmma.fence.sync.aligned;",
        ]
        left, right = _Descriptor("a", "a"), _Descriptor("b", "b")
        for step in loop.body:
            lines += self._issue(step, left, right, "later")
        lines.append(
            f"wgmma.commit_group.sync.aligned; add.u32 n, n, 1; setp.lt.u32 more, n, {loop.num_steps};"
        )
        if loop.period:
            lines.append(f"and.b32 t, n, {loop.period - 1}; setp.eq.u32 jumps, t, 0;")
        taken = None
        for low, move, jump in zip(("al", "bl"), loop.moves, loop.jumps, strict=True):
            if jump != move and taken != (jump, move):
                taken = jump, move
                lines.append(f"selp.b32 t, {jump}, {move}, jumps;")
            lines.append(f"add.s32 {low}, {low}, {move if jump == move else 't'};")
        return [*lines, "@more bra.uni step;"]

    def _issue(
        self, step: WgmmaStep, left: _Descriptor, right: _Descriptor, scale: str
    ) -> list[str]:
        """Return one wgmma, after what makes its descriptors."""
        lines: list[str] = []
        b = right.move(step.b, lines)
        if isinstance(step.a, int):
            a = left.move(step.a, lines)
        else:
            a = _group(self.a_at + word for word in step.a)
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{step.columns}{self.kind.suffix} "
            f"{self.results[step.block]}, {a}, {b}, {scale}{self.kind.tail};"
        )
        return lines


@dataclass(slots=True)
class _Descriptor:
    """A matrix descriptor on its way through the matrix.

    Each step adds to the low word of the one before, where the address is, in registers of its own. Where
    two are written to the same registers, ptxas 13.5 may take them for one and issue one wgmma for both;
    and it copies the high word for each that starts from the first one again, or adds 64 bits with constants
    in registers: more instructions between one wgmma and the next.
    """

    name: str
    register: str
    offset: int = 0
    count: int = 0

    def move(self, offset: int, lines: list[str]) -> str:
        """Write what makes the descriptor at an offset from the first; return its register."""
        if offset != self.offset:
            self.count += 1
            at = f"{self.name}{self.count}"
            lines.append(
                f".reg .b64 {at}; .reg .b32 {at}l, {at}h, {at}m; mov.b64 {{{at}l, {at}h}}, {self.register}; "
                f"add.s32 {at}m, {at}l, {offset - self.offset}; mov.b64 {at}, {{{at}m, {at}h}};"
            )
            self.register, self.offset = at, offset
        return self.register


def opaque_false(emit: Emitter) -> str:
    """Return an i1 that never holds, which neither LLVM nor ptxas can tell: that a grid has no CTAs.

    Source: PTX ISA 10.8 `%nctaid`.
    """
    text = "{ .reg .b32 n; mov.u32 n, %nctaid.x; setp.eq.u32 $0, n, 0; }"
    return emit.fresh(f'call i1 asm "{text}", "=b"()')


def wgmma_wait(emit: Emitter, num_pending: int, words: Sequence[Argument]) -> list[str]:
    """Wait until at most the newest `num_pending` commit groups are in flight.

    Return the accumulators, now valid.

    Source: PTX ISA 9.7.15.7.3 `wgmma.wait_group`.
    """
    return _tied(emit, _wait(num_pending), words, (), ())


def _wait(num_pending: int) -> str:
    return f"wgmma.wait_group.sync.aligned {num_pending};"


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
    """Write convergent inline assembly that updates `words`, its first operands; return them.

    Each word is both an output and a tied input, or an output alone if all `is_fresh`; the read-only operands
    follow all of these.
    """
    mark = "=&" if is_fresh else "="
    changed = [f"{mark}{_CONSTRAINTS[kind]}" for kind, _ in words]
    tied = [] if is_fresh else words
    constraints = ",".join([*changed, *map(str, range(len(tied))), *letters])
    shown = ", ".join(f"{kind} {operand}" for kind, operand in (*tied, *arguments))
    returned = emit.struct([kind for kind, _ in words])
    out = emit.fresh(
        f'call {returned} asm sideeffect "{text}", "{constraints}"({shown}) convergent'
    )
    return [emit.fresh(f"extractvalue {returned} {out}, {index}") for index in range(len(words))]
