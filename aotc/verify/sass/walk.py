"""Walk the code between a branch and the reconvergence of its lanes.

Paths carry known predicates: lanes that took a branch because `P0` is true take the next one on
`P0` as well. Predicates of the warp carry no information here: another group of lanes may have
written them since.

Invariant: a path ends only where all remaining lanes of the branch are awaited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from aotc.verify.sass.barriers import INNER, Barriers, move
from aotc.verify.sass.flow import Block, Graph
from aotc.verify.sass.instructions import (
    BRANCHES,
    COLLECTIVES,
    EXCHANGES,
    ISSUED_ONCE,
    WARPGROUP,
    is_uniform_branch,
    results,
)
from aotc.verify.sass.text import Guard, Instruction
from aotc.verify.sass.variance import constant, lut_rows

Facts: TypeAlias = dict[str, bool]
"""Predicates with one value in all lanes on a path."""

Events: TypeAlias = tuple[tuple[Instruction, ...], ...]

_ALL_LANES: Final = 0xFFFFFFFF
_MAX_VISITS: Final = 16  # of a block on one side of a branch; then facts are dropped
_IDLE: Final = frozenset({"EXIT", "NOP", "BRA", "KILL"})
_FOLLOWED: Final = frozenset(
    {
        *(*ISSUED_ONCE, *WARPGROUP, *COLLECTIVES, *EXCHANGES, *BRANCHES, "EXIT", "SYNCS", "BAR"),
        *("BSSY", "BSYNC", "BREAK", "BMOV", "WARPSYNC"),
    }
)


class Visit(NamedTuple):
    """A block reached by one side of a branch; `origin` is the index of the visit before."""

    block: int
    origin: int


class Start(NamedTuple):
    """The start of a path: its block, its barriers, and its known predicates."""

    block: int
    barriers: Barriers
    facts: Facts


@dataclass(slots=True)
class Side:
    """The code reached by one group of lanes between a branch and reconvergence.

    It left for `target` from `origin`, the branch or a `BSYNC`. `reached` maps addresses of
    instructions to the visit; `joins` are the ends of paths. `broken` are the barriers that
    some left by `BREAK`; `rejoined` are the starts after a `BSYNC` that did not await those
    lanes.
    """

    origin: int
    target: int
    visits: list[Visit] = field(default_factory=list[Visit])
    reached: dict[int, int] = field(default_factory=dict[int, int])
    joins: dict[int, None] = field(default_factory=dict[int, None])
    broken: set[int] = field(default_factory=set[int])
    rejoined: dict[int, list[Start]] = field(default_factory=dict[int, list[Start]])

    def goes_on(self, graph: Graph) -> bool:
        """Return whether lanes on this side do more than exit."""
        return any(
            instruction.name not in _IDLE
            for visit in self.visits
            for instruction in graph.blocks[visit.block].instructions
        )


def follow(
    graph: Graph, events: Events, origin: int, starts: list[Start], broken: set[int]
) -> Side:
    """Follow lanes from `origin` to their reconvergence; `broken` barriers do not await all."""
    side = Side(origin, graph.blocks[starts[0].block].start)
    seen: set[tuple[object, ...]] = set()
    counts: Counter[int] = Counter()
    waiting = [(start, -1) for start in starts]
    while waiting:
        (index, barriers, facts), before = waiting.pop()
        counts[index] += 1
        if counts[index] > _MAX_VISITS:
            facts = {}
        key = (index, *sorted(barriers.items()), None, *sorted(facts.items()))
        if key in seen:
            continue
        seen.add(key)
        side.visits.append(Visit(index, before))
        visit = len(side.visits) - 1
        walk = _Walk(side, visit, dict(barriers), dict(facts), broken)
        for target, learnt in walk.through(graph.blocks[index], events[index]):
            waiting.append((Start(target, walk.barriers, learnt), visit))
    return side


class _Walk:
    """One block, as the lanes of one side of a branch go through it."""

    def __init__(
        self, side: Side, visit: int, barriers: Barriers, facts: Facts, broken: set[int]
    ) -> None:
        self.side = side
        self.visit = visit
        self.barriers = barriers
        self.facts = facts
        self.broken = broken

    def through(self, block: Block, events: Iterable[Instruction]) -> Iterator[tuple[int, Facts]]:
        """Go through a block; yield its successors, each with its known predicates."""
        for instruction in events:
            holds = _known(self.facts, instruction.guard)
            if holds is False:
                continue
            self.side.reached.setdefault(instruction.address, self.visit)
            if self._ends(block, instruction, certain=holds is True or instruction.guard is None):
                return
            _learn(self.facts, instruction)
        yield from _next(block, self.facts)

    def _ends(self, block: Block, instruction: Instruction, *, certain: bool) -> bool:
        """Follow an instruction's effect on barriers; return whether lanes reconverge there."""
        if instruction.name == "BSYNC":
            token = self.barriers.pop(instruction.operands[0], INNER)
            if token != INNER:
                self.side.joins[instruction.address] = None
                if token in self.broken and block.next is not None:
                    start = Start(block.next, self.barriers, {})
                    self.side.rejoined.setdefault(instruction.address, []).append(start)
                return True
        elif instruction.name == "BREAK":
            token = self.barriers.get(instruction.operands[-1], INNER)
            if token != INNER:
                self.side.broken.add(token)
                if certain:
                    self.barriers.pop(instruction.operands[-1])
        elif awaits_all_lanes(instruction):
            self.side.joins[instruction.address] = None
            return True
        elif instruction.name == "BSSY":
            self.barriers[instruction.operands[0]] = INNER
        else:
            move(self.barriers, instruction)
        return False


def ways(block: Block) -> list[tuple[int | None, Facts]]:
    """Return a branch's targets, each with its lanes' known predicates; taken ones first."""
    last = block.last
    guard = last.guard
    if guard is None or guard.is_uniform:
        return [(target, {}) for target in block.successors]
    holding = {guard.name: not guard.is_negated}
    fallen = {guard.name: guard.is_negated}
    return [*((target, holding) for target in block.branch_targets), (block.next, fallen)]


def _next(block: Block, facts: Facts) -> Iterator[tuple[int, Facts]]:
    last = block.last
    holds = _known(facts, last.guard)
    if holds is True and (last.name in BRANCHES or last.name == "EXIT"):
        yield from ((target, facts) for target in block.branch_targets)
        return
    if holds is False or last.name not in BRANCHES:
        if block.next is not None:
            following = facts
            if last.name == "EXIT" and last.guard is not None and not last.guard.is_uniform:
                following = {**facts, last.guard.name: last.guard.is_negated}
            yield block.next, following
        return
    for target, learnt in ways(block):
        if target is not None:
            yield target, facts if is_uniform_branch(last) else {**facts, **learnt}


def _known(facts: Facts, guard: Guard | None) -> bool | None:
    """Return whether a guard holds for all lanes of a path or for none; None if unknown."""
    if guard is None:
        return None
    if guard.name in ("PT", "UPT"):
        return not guard.is_negated
    value = facts.get(guard.name)
    return None if value is None else value != guard.is_negated


def _learn(facts: Facts, instruction: Instruction) -> None:
    """Update the known predicates by the effect of an instruction."""
    written = [name for name in results(instruction) if name in facts or name[0] == "P"]
    if instruction.name == "PLOP3" and (
        instruction.guard is None or _known(facts, instruction.guard)
    ):
        outcome = _logic(facts, instruction)
        for name in written:
            facts.pop(name, None)
        if outcome is not None and written and instruction.operands[0] == written[0]:
            facts[written[0]] = outcome
        return
    for name in written:
        facts.pop(name, None)


def _logic(facts: Facts, instruction: Instruction) -> bool | None:
    """Return the first result of a PLOP3 if the known predicates determine it."""
    rows = lut_rows(instruction)
    for position, operand in enumerate(instruction.operands[2:5]):
        value = facts.get(operand.lstrip("!"))
        if value is not None:
            bit = value != operand.startswith("!")
            rows = [row for row in rows if row[position] == bit]
    outcomes = {row[3] for row in rows}
    return outcomes.pop() if len(outcomes) == 1 else None


def _is_event(instruction: Instruction) -> bool:
    """Return whether a walk must look at an instruction."""
    return instruction.name in _FOLLOWED or any(name[0] == "P" for name in results(instruction))


def awaits_all_lanes(instruction: Instruction) -> bool:
    """Return whether an instruction is a WARPSYNC of every lane of the warp."""
    if instruction.name != "WARPSYNC" or "COLLECTIVE" in instruction.modifiers:
        return False
    if "ALL" in instruction.modifiers:
        return True
    mask = constant(instruction.operands[0]) if instruction.operands else None
    return mask is not None and mask & _ALL_LANES == _ALL_LANES


def list_events(graph: Graph) -> Events:
    """Return the instructions to follow in a walk, block by block."""
    return tuple(
        tuple(instruction for instruction in block.instructions if _is_event(instruction))
        for block in graph.blocks
    )
