"""What lanes reach on their way from a branch to where they are joined.

Paths are followed with what is known of predicates on them: lanes that took a branch because `P0` is
true will take the next one on `P0` as well. Predicates of the warp tell nothing, here: another group
of lanes may have written them since.

Invariant: a path ends only where all lanes that were at the branch and have not left are awaited.
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
"""Predicates that have one value in all lanes that took a path."""

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
    """A block as one side of a branch reaches it; `origin` is the index of the visit before."""

    block: int
    origin: int


class Start(NamedTuple):
    """Where a side sets out, with which barriers and what is known."""

    block: int
    barriers: Barriers
    facts: Facts


@dataclass(slots=True)
class Side:
    """What one group of lanes reaches after a branch before it is joined with all others.

    It left for `target` from `origin`, the branch or a `BSYNC`. `reached` maps addresses of
    instructions to the visit; `joins` are where paths ended. `broken` are the barriers that some left
    by `BREAK`, `rejoined` what starts after a `BSYNC` that did not await those.
    """

    origin: int
    target: int
    visits: list[Visit] = field(default_factory=list[Visit])
    reached: dict[int, int] = field(default_factory=dict[int, int])
    joins: dict[int, None] = field(default_factory=dict[int, None])
    broken: set[int] = field(default_factory=set[int])
    rejoined: dict[int, list[Start]] = field(default_factory=dict[int, list[Start]])

    def goes_on(self, graph: Graph) -> bool:
        """Whether lanes that came this way do more than to exit."""
        return any(
            each.name not in _IDLE
            for visit in self.visits
            for each in graph.blocks[visit.block].instructions
        )


def follow(
    graph: Graph, events: Events, origin: int, starts: list[Start], broken: set[int]
) -> Side:
    """Follow lanes that left `origin` to where they are joined; `broken` barriers do not await all."""
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
        at = len(side.visits) - 1
        walk = _Walk(side, at, dict(barriers), dict(facts), broken)
        for target, learnt in walk.through(graph.blocks[index], events[index]):
            waiting.append((Start(target, walk.barriers, learnt), at))
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
        """Go through a block; yield the blocks that come next, and what is known there."""
        for each in events:
            holds = _known(self.facts, each.guard)
            if holds is False:
                continue
            self.side.reached.setdefault(each.address, self.visit)
            if self._ends(block, each, certain=holds is True or each.guard is None):
                return
            _learn(self.facts, each)
        yield from _next(block, self.facts)

    def _ends(self, block: Block, each: Instruction, *, certain: bool) -> bool:
        """Follow what an instruction does to barriers; return whether lanes are joined there."""
        if each.name == "BSYNC":
            token = self.barriers.pop(each.operands[0], INNER)
            if token != INNER:
                self.side.joins[each.address] = None
                if token in self.broken and block.next is not None:
                    start = Start(block.next, self.barriers, {})
                    self.side.rejoined.setdefault(each.address, []).append(start)
                return True
        elif each.name == "BREAK":
            token = self.barriers.get(each.operands[-1], INNER)
            if token != INNER:
                self.side.broken.add(token)
                if certain:
                    self.barriers.pop(each.operands[-1])
        elif awaits_all_lanes(each):
            self.side.joins[each.address] = None
            return True
        elif each.name == "BSSY":
            self.barriers[each.operands[0]] = INNER
        else:
            move(self.barriers, each)
        return False


def ways(block: Block) -> list[tuple[int | None, Facts]]:
    """Return where a branch goes, and what is known of the lanes that go there; taken ways first."""
    last = block.last
    guard = last.guard
    if guard is None or guard.is_uniform:
        return [(target, {}) for target in block.successors]
    taken = {guard.name: not guard.is_negated}
    fallen = {guard.name: guard.is_negated}
    return [*((target, taken) for target in block.taken), (block.next, fallen)]


def _next(block: Block, facts: Facts) -> Iterator[tuple[int, Facts]]:
    last = block.last
    holds = _known(facts, last.guard)
    if holds is True and (last.name in BRANCHES or last.name == "EXIT"):
        yield from ((target, facts) for target in block.taken)
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
    """Return whether a guard holds for all lanes of a path, for none, or nobody knows."""
    if guard is None:
        return None
    if guard.name in ("PT", "UPT"):
        return not guard.is_negated
    value = facts.get(guard.name)
    return None if value is None else value != guard.is_negated


def _learn(facts: Facts, each: Instruction) -> None:
    """Change what is known of predicates to what is known after an instruction."""
    written = [name for name in results(each) if name in facts or name[0] == "P"]
    if each.name == "PLOP3" and (each.guard is None or _known(facts, each.guard)):
        outcome = _logic(facts, each)
        for name in written:
            facts.pop(name, None)
        if outcome is not None and written and each.operands[0] == written[0]:
            facts[written[0]] = outcome
        return
    for name in written:
        facts.pop(name, None)


def _logic(facts: Facts, each: Instruction) -> bool | None:
    """Return the first result of a PLOP3 if facts say what it is."""
    rows = lut_rows(each)
    for at, operand in enumerate(each.operands[2:5]):
        value = facts.get(operand.lstrip("!"))
        if value is not None:
            wanted = value != operand.startswith("!")
            rows = [row for row in rows if row[at] == wanted]
    outcomes = {row[3] for row in rows}
    return outcomes.pop() if len(outcomes) == 1 else None


def _is_event(instruction: Instruction) -> bool:
    """Whether a walk must look at an instruction."""
    return instruction.name in _FOLLOWED or any(name[0] == "P" for name in results(instruction))


def awaits_all_lanes(instruction: Instruction) -> bool:
    """Whether an instruction is a WARPSYNC of every lane of the warp."""
    if instruction.name != "WARPSYNC" or "COLLECTIVE" in instruction.modifiers:
        return False
    if "ALL" in instruction.modifiers:
        return True
    mask = constant(instruction.operands[0]) if instruction.operands else None
    return mask is not None and mask & _ALL_LANES == _ALL_LANES


def list_events(graph: Graph) -> Events:
    """Return the instructions that a walk must follow, block by block."""
    return tuple(
        tuple(each for each in block.instructions if _is_event(each)) for block in graph.blocks
    )
