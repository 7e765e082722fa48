"""A kernel ready to run: segments, each a straight run of steps and its end.

A segment ends with its basic block, or at an instruction that may hold lanes back. With preemption,
it also ends after every synchronising instruction; the order of plain accesses is unobservable
unless they race, which shadows find in any order.

Invariant: lanes enter segments at their start only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotc.verify.emulator.compute.registry import COMPUTES
from aotc.verify.emulator.engine.compute_steps import Step
from aotc.verify.emulator.engine.decode import Decoder
from aotc.verify.emulator.engine.terminators import END_RULES, End, Site, end_of, falls_through
from aotc.verify.emulator.errors import EmulationError, Unsupported
from aotc.verify.emulator.syntax import Immediate, Instruction, Operand
from aotc.verify.emulator.text.cfg import Cfg, nests_of
from aotc.verify.emulator.text.effects import destination_count

SPIN_ROUNDS = 1 << 12
"""Rounds per trip of a loop that may be polling; a trip of another loop counts 1.

In step, a group may be that many rounds ahead of one at a higher program counter.
"""
_STRONG = frozenset(("volatile", "relaxed", "acquire", "mmio"))
# Atomic operations that may leave memory unchanged.
_CHANGES_NOTHING = frozenset(("cas", "exch", "or", "and", "min", "max"))
# Instructions on registers only, or on memory in ways that shadows check in any order.
_PLAIN = frozenset(
    (
        *("ldmatrix", "stmatrix", "movmatrix", "mma", "cvta", "isspacep", "mapa", "getctarank"),
        *("prefetch", "prefetchu", "createpolicy", "setmaxnreg"),
    )
)
# A loop with any of these makes progress.
_WORK = frozenset(("st", "red", "cp", "stmatrix", "mma", "wgmma"))


@dataclass(frozen=True, slots=True)
class Segment:
    """Hold instructions up to `stop`, exclusive; the last may be in `end`.

    `meets` marks a segment that only lets the warps of warpgroups meet.
    """

    stop: int
    length: int
    steps: tuple[Step, ...]
    end: End
    meets: bool = False


class Code:
    """Decode a kernel into segments, keyed by their first instruction.

    Raises: EmulationError for an unsupported instruction.
    """

    def __init__(
        self, instructions: Sequence[Instruction], cfg: Cfg, decoder: Decoder, *, preempt: bool
    ) -> None:
        self.instructions = instructions
        self.length = len(instructions)
        self._preempt = preempt
        self._rounds: dict[tuple[int, int], int] = {}
        self._nests = {
            pc: nest
            for block, nest in zip(cfg.blocks, nests_of(cfg), strict=True)
            for pc in range(block.start, block.stop)
        }
        self.segments: dict[int, Segment] = {}
        for block in cfg.blocks:
            start = block.start
            straight: list[Instruction] = []
            for index in range(block.start, block.stop):
                site = Site(instructions[index], index, block.reconvergence, decoder)
                end = self._end(site)
                if end is None:
                    straight.append(site.instruction)
                if end is None and (index + 1 == block.stop or self._preempts(site.instruction)):
                    end = falls_through(index + 1)
                if end is not None:
                    stop = index + 1
                    steps = decoder.steps(straight)
                    meets = not straight and site.instruction.opcode == "wgmma"
                    self.segments[start] = Segment(stop, stop - start, steps, end, meets)
                    start, straight = stop, []

    def rounds(self, start: int, stop: int) -> int:
        """Return the rounds of a jump from `stop` back to `start`.

        A loop may be polling if it reads memory that others write, and writes none itself.
        """
        key = (start, stop)
        if key not in self._rounds:
            body = self.instructions[start : stop + 1]
            # A poller of global memory forwards its finding to its CTA through shared memory.
            polls = any(self._polls_memory(instruction) for instruction in body)
            may_poll = polls or any(map(_may_poll, body))
            works = any(
                instruction.opcode in _WORK and not (polls and "shared" in instruction.modifiers)
                for instruction in body
            )
            self._rounds[key] = SPIN_ROUNDS if may_poll and not works else 1
        return self._rounds[key]

    def trips(self, trips: tuple[int, ...], start: int, stop: int) -> tuple[int, ...]:
        """Return the trip counts of the loops around `stop`, after moving there from `start`.

        `trips` are those of the loops around `start`, outermost first.
        """
        before, after = self._nests.get(start, ()), self._nests.get(stop, ())
        if not after:
            return ()
        counts: list[int] = []
        for loop, other, count in zip(after, before, trips, strict=False):
            if loop is not other:
                break
            counts.append(count + (loop.entry == stop))
            if loop.entry == stop:
                break
        return (*counts, *[0] * (len(after) - len(counts)))

    def progress(self, pc: int, trips: tuple[int, ...]) -> tuple[int, ...]:
        """Return a sort key of the progress at `pc`: smaller is further behind.

        Within one loop, fewer trips are behind, and being in a loop is behind having left it.
        Instructions before the loop's entry come last in it.
        """
        if not trips:
            return (pc,)
        nest = self._nests[pc]
        positions = (*(loop.first for loop in nest[1:]), pc)
        key: list[int] = []
        for loop, count, position in zip(nest, trips, positions, strict=True):
            key += (loop.first, count, position < loop.entry)
        return (*key, pc)

    def _polls_memory(self, instruction: Instruction) -> bool:
        """Return whether an instruction may be polling memory that others write."""
        if instruction.opcode == "ld":
            return not _STRONG.isdisjoint(instruction.modifiers)
        if instruction.opcode != "atom":
            return False
        return not _CHANGES_NOTHING.isdisjoint(instruction.modifiers) or self._is_zero(
            instruction.operands[2]
        )

    def _is_zero(self, operand: Operand) -> bool:
        """Return whether an operand is known to be 0, as in an addition that only reads."""
        if isinstance(operand, Immediate):
            return operand.value == 0
        writes = [
            instruction
            for instruction in self.instructions
            if operand in instruction.operands[: destination_count(instruction)]
        ]
        return bool(writes) and all(
            instruction.opcode == "mov"
            and instruction.guard is None
            and instruction.operands[1] == Immediate(0)
            for instruction in writes
        )

    def _end(self, site: Site) -> End | None:
        instruction = site.instruction
        try:
            return end_of(site)
        except Unsupported as error:
            raise EmulationError(
                f"unsupported instruction {instruction.mnemonic}: {error}",
                line=instruction.line,
                text=instruction.text,
            ) from None

    def _preempts(self, instruction: Instruction) -> bool:
        return (
            self._preempt
            and instruction.opcode not in COMPUTES
            and instruction.opcode not in END_RULES
            and not _is_plain(instruction)
        )


def _is_plain(instruction: Instruction) -> bool:
    """Return whether the time of an instruction is unobservable in a race-free program."""
    words = instruction.modifiers
    match instruction.opcode:
        case "ld" | "ldu" | "st":
            return _STRONG.isdisjoint(words) and "release" not in words
        case "cp":
            return bool(words) and words[1:2] in (("ca",), ("cg",))
        case opcode:
            return opcode in _PLAIN


def _may_poll(instruction: Instruction) -> bool:
    """Return whether an instruction may be a poll, or a pause between polls."""
    if instruction.opcode == "mbarrier":
        return instruction.modifiers[0] in ("test_wait", "try_wait")
    return instruction.opcode == "nanosleep"
