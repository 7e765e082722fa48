"""Where the lanes of a warp may be apart: from each divergent branch to where lanes join again.

Since Volta lanes that part do not join where their paths meet. They join at `BSYNC Bn`, all that
were there at the `BSSY Bn` before, less those that have left by `BREAK Bn` or `EXIT`; and at a
`WARPSYNC` of all lanes. So each branch that lanes may take differently is followed both ways until
it is joined. What one side reaches is executed by a part of the warp; what both sides reach is
executed by either of them apart, one after the other, though it stands in the program once.

What makes a branch divergent depends on what registers hold (`variance.py`), and that on which
branches are divergent: lanes that took different ways hold different values. Both are found
together, starting from a warp that never parts.

Invariant: a path ends only where all lanes that were at the branch and have not left are awaited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from aotc.verify.sass.flow import Block, Graph
from aotc.verify.sass.instructions import (
    BRANCHES,
    COLLECTIVES,
    EXCHANGES,
    ISSUED_ONCE,
    WARPGROUP,
    is_uniform_branch,
    results,
    sources,
)
from aotc.verify.sass.text import Guard, Instruction
from aotc.verify.sass.variance import (
    DIFFERS,
    ONE_FALSE,
    ONE_TRUE,
    Values,
    constant,
    guard_differs,
    join,
    lut_rows,
    transfer,
)
from aotc.verify.sass.variance import written as written_by

Facts: TypeAlias = dict[str, bool]
"""Predicates that have one value in all lanes that took a path."""

_ALL_LANES: Final = 0xFFFFFFFF
_MAX_VISITS: Final = 16  # of a block on one side of a branch; then facts are dropped
_INNER: Final = -1
_IDLE: Final = frozenset({"EXIT", "NOP", "BRA", "KILL"})


@dataclass(slots=True)
class _State:
    """What holds where a block starts.

    `barriers` maps a barrier register, or one that keeps its value, to the address of the `BSSY`;
    `alone` holds the barriers that were in use when one lane was left alone, None if there are more.
    `breaks` are the barriers that lanes have left whose predicate has a value, and no branch on it
    has come since: those lanes are here with the others.
    """

    values: Values
    barriers: dict[str, int]
    alone: frozenset[int] | None
    breaks: frozenset[tuple[int, str, bool]] = frozenset()


class Visit(NamedTuple):
    """A block as one side of a branch reaches it; `origin` is the index of the visit before."""

    block: int
    origin: int


class _Start(NamedTuple):
    """Where a side sets out, with which barriers and what is known."""

    block: int
    barriers: dict[str, int]
    facts: Facts


@dataclass(slots=True)
class Side:
    """What one group of lanes reaches after a branch before it is joined with all others.

    It left for `target` from `origin`, the branch or a `BSYNC`. `reached` maps addresses of
    instructions to the visit; `joins` are where paths ended. `broken` are the barriers that some left
    by `BREAK`, `rejoined` what starts behind a `BSYNC` that did not await those.
    """

    origin: int
    target: int
    visits: list[Visit] = field(default_factory=list[Visit])
    reached: dict[int, int] = field(default_factory=dict[int, int])
    joins: dict[int, None] = field(default_factory=dict[int, None])
    broken: set[int] = field(default_factory=set[int])
    rejoined: dict[int, list[_Start]] = field(default_factory=dict[int, list[_Start]])

    def goes_on(self, graph: Graph) -> bool:
        """Whether lanes that came this way do more than to exit."""
        return any(
            each.name not in _IDLE
            for visit in self.visits
            for each in graph.blocks[visit.block].instructions
        )


@dataclass(frozen=True, slots=True)
class Divergence:
    """A branch that lanes may take differently, and what each part of the warp reaches."""

    branch: Instruction
    sides: tuple[Side, ...]


@dataclass(frozen=True, slots=True)
class Convergence:
    """The divergent branches of a function, in the order of their addresses, and `guarded`.

    Those are the addresses of instructions that, by their guard, some lanes of a warp may execute and
    others not.
    """

    divergences: tuple[Divergence, ...]
    guarded: frozenset[int]


def analyze(graph: Graph) -> Convergence:
    """Follow the lanes of a warp through a function."""
    return _Analysis(graph).run()


class _Analysis:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.states: list[_State | None] = [None] * len(graph.blocks)
        self.states[0] = _State({}, {}, None)
        # Registers that differ once lanes are joined there, because not all lanes wrote them.
        self.merged: dict[int, set[str]] = {}
        self.entered: dict[int, set[str]] = {}
        self.followed: dict[int, tuple[tuple[object, ...], Divergence]] = {}
        self.events = [
            tuple(each for each in block.instructions if _is_event(each)) for block in graph.blocks
        ]

    def run(self) -> Convergence:
        waiting = {0}
        while waiting:
            self._propagate(waiting)
            waiting = self._follow()
        found = tuple(self.followed[address][1] for address in sorted(self.followed))
        return Convergence(found, frozenset(self._guarded()))

    def _guarded(self) -> Iterator[int]:
        for block, events in zip(self.graph.blocks, self.events, strict=True):
            state = self.states[block.index]
            if state is None or not any(each.guard is not None for each in events):
                continue
            values = self._values(block, state)
            for each in block.instructions:
                if guard_differs(values, each) and state.alone is None:
                    yield each.address
                transfer(values, each)

    def _values(self, block: Block, state: _State) -> Values:
        """Return the values that registers have where a block starts."""
        return {**state.values, **dict.fromkeys(self.entered.get(block.index, ()), DIFFERS)}

    # ---------------------------------------------------------------------------- states of blocks

    def _propagate(self, waiting: set[int]) -> None:
        while waiting:
            index = min(waiting)
            waiting.discard(index)
            state = self.states[index]
            assert state is not None
            block = self.graph.blocks[index]
            after = self._after(block, state)
            for successor in dict.fromkeys(block.successors):
                reached = _along(block, successor, after)
                if self._enter(successor, reached):
                    waiting.add(successor)

    def _after(self, block: Block, state: _State) -> _State:
        values = self._values(block, state)
        barriers = dict(state.barriers)
        for each in block.instructions[:-1]:
            transfer(values, each)
            _move(barriers, each)
        last = block.last
        alone, breaks = state.alone, _still(state.breaks, block.instructions)
        token = barriers.get(last.operands[-1], _INNER) if last.operands else _INNER
        if last.name == "BSYNC":
            breaks = frozenset(each for each in breaks if each[0] != token)
        elif last.name == "BREAK" and last.guard is not None and token != _INNER:
            breaks |= {(token, last.guard.name, last.guard.is_negated)}
        if last.name == "WARPSYNC" or (last.name == "BSYNC" and alone and token in alone):
            alone = None
        transfer(values, last)
        _move(barriers, last)
        for name in self.merged.get(last.address, ()):
            values[name] = DIFFERS
        return _State(values, barriers, alone, breaks)

    def _enter(self, index: int, reached: _State) -> bool:
        """Join what reaches a block with what did before; return whether that changes anything."""
        known = self.states[index]
        if known is None:
            self.states[index] = reached
            return True
        values = join(known.values, reached.values)
        barriers = {
            name: token
            for name, token in known.barriers.items()
            if reached.barriers.get(name) == token
        }
        alone = known.alone
        if alone is not None:
            alone = None if reached.alone is None else alone | reached.alone
        joined = _State(values, barriers, alone, known.breaks | reached.breaks)
        if joined == known:
            return False
        self.states[index] = joined
        return True

    # ------------------------------------------------------------------------- divergent branches

    def _follow(self) -> set[int]:
        """Follow all branches that diverge; return the blocks whose state must be found again."""
        changed: set[int] = set()
        for block in self.graph.blocks:
            state = self.states[block.index]
            if state is None or not _may_diverge(block):
                continue
            before = self._before_last(block, state)
            if before.alone is not None or not _diverges(before.values, block.last):
                continue
            key = (*sorted(before.barriers.items()), None, *sorted(before.breaks))
            known = self.followed.get(block.last.address)
            if known is not None and known[0] == key:
                continue
            divergence = self._divergence(block, before)
            self.followed[block.last.address] = key, divergence
            changed |= self._differing(divergence)
        return changed

    def _before_last(self, block: Block, state: _State) -> _State:
        head = Block(block.index, block.instructions[:-1], (), None)
        if not head.instructions:
            return _State(self._values(block, state), state.barriers, state.alone, state.breaks)
        return self._after(head, state)

    def _differing(self, divergence: Divergence) -> set[int]:
        """Note which registers lanes may differ in once they meet; return the blocks concerned."""
        visited = [{visit.block for visit in side.visits} for side in divergence.sides]
        everywhere = set[int].intersection(*visited)
        written = {
            name
            for index in sorted(set[int].union(*visited) - everywhere)
            for each in self.graph.blocks[index].instructions
            for name in written_by(each)
        }
        changed: set[int] = set()
        if not written:
            return changed
        for address in [address for side in divergence.sides for address in side.joins]:
            known = self.merged.setdefault(address, set())
            if not written <= known:
                known |= written
                changed.add(self.graph.block_at(address).index)
        counts = Counter(index for blocks in visited for index in blocks)
        for index in [index for index, count in counts.items() if count > 1]:
            known = self.entered.setdefault(index, set())
            if not written <= known:
                known |= written
                changed.add(index)
        return {index for index in changed if self.states[index] is not None}

    def _divergence(self, block: Block, before: _State) -> Divergence:
        """Follow the sides of a branch to where its lanes are joined.

        Lanes that have left a barrier are not awaited at its BSYNC. The others are joined there, and go
        on as a group of their own.
        """
        broken = {token for token, *_ in before.breaks}
        while True:
            sides = [
                self._side(block.last.address, [_Start(target, before.barriers, facts)], broken)
                for target, facts in _ways(block)
                if target is not None
            ]
            behind: dict[int, None] = {}
            for side in sides:  # which grows
                for address, starts in side.rejoined.items():
                    if address not in behind:
                        behind[address] = None
                        sides.append(self._side(address, starts, broken))
            left = set[int]().union(*(side.broken for side in sides)) - broken
            if not left:
                return Divergence(block.last, tuple(sides))
            broken |= left

    def _side(self, origin: int, starts: list[_Start], broken: set[int]) -> Side:
        side = Side(origin, self.graph.blocks[starts[0].block].start)
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
            for target, learnt in walk.through(self.graph.blocks[index], self.events[index]):
                waiting.append((_Start(target, walk.barriers, learnt), at))
        return side


class _Walk:
    """One block, as the lanes of one side of a branch go through it."""

    def __init__(
        self, side: Side, visit: int, barriers: dict[str, int], facts: Facts, broken: set[int]
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
            token = self.barriers.pop(each.operands[0], _INNER)
            if token != _INNER:
                self.side.joins[each.address] = None
                if token in self.broken and block.next is not None:
                    start = _Start(block.next, self.barriers, {})
                    self.side.rejoined.setdefault(each.address, []).append(start)
                return True
        elif each.name == "BREAK":
            token = self.barriers.get(each.operands[-1], _INNER)
            if token != _INNER:
                self.side.broken.add(token)
                if certain:
                    self.barriers.pop(each.operands[-1])
        elif awaits_all_lanes(each):
            self.side.joins[each.address] = None
            return True
        elif each.name == "BSSY":
            self.barriers[each.operands[0]] = _INNER
        elif each.name == "BMOV":
            _BARRIER_RULES["BMOV"](self.barriers, each)
        else:
            for name in results(each):
                if name[0] == "R":
                    self.barriers.pop(name, None)
        return False


# ------------------------------------------------------------------------------------ instructions


def _is_event(instruction: Instruction) -> bool:
    """Whether a walk must look at an instruction."""
    return instruction.name in _FOLLOWED or any(name[0] == "P" for name in results(instruction))


def _set_barrier(barriers: dict[str, int], each: Instruction) -> None:
    barriers[each.operands[0]] = each.address


def _use_barrier(barriers: dict[str, int], each: Instruction) -> None:
    barriers.pop(each.operands[0], None)


def _leave_barrier(barriers: dict[str, int], each: Instruction) -> None:
    if each.guard is None:
        barriers.pop(each.operands[-1], None)


def _move_barrier(barriers: dict[str, int], each: Instruction) -> None:
    """Follow `BMOV B0, R1` and `BMOV R1, B0`."""
    if len(each.operands) < 2:
        return
    to, origin = each.operands[0], each.operands[1]
    if origin in barriers:
        barriers[to] = barriers[origin]
    else:
        barriers.pop(to, None)


_FOLLOWED: Final = frozenset(
    {
        *(*ISSUED_ONCE, *WARPGROUP, *COLLECTIVES, *EXCHANGES, *BRANCHES, "EXIT", "SYNCS", "BAR"),
        *("BSSY", "BSYNC", "BREAK", "BMOV", "WARPSYNC"),
    }
)
_BARRIER_RULES: Final = {
    "BSSY": _set_barrier,
    "BSYNC": _use_barrier,
    "BREAK": _leave_barrier,
    "BMOV": _move_barrier,
}


def _move(barriers: dict[str, int], each: Instruction) -> None:
    """Follow what an instruction does to barriers and to registers that keep one."""
    rule = _BARRIER_RULES.get(each.name)
    if rule is not None:
        rule(barriers, each)
    elif barriers and each.name[0] != "U":
        for name in results(each):
            barriers.pop(name, None)


def _still(
    breaks: frozenset[tuple[int, str, bool]], instructions: Iterable[Instruction]
) -> frozenset[tuple[int, str, bool]]:
    """Return breaks after instructions: no branch on a predicate that was written tells of them."""
    if not breaks:
        return breaks
    written = {name for each in instructions for name in results(each)}
    return frozenset((token, "" if name in written else name, n) for token, name, n in breaks)


def awaits_all_lanes(instruction: Instruction) -> bool:
    """Whether an instruction is a WARPSYNC of every lane of the warp."""
    if instruction.name != "WARPSYNC" or "COLLECTIVE" in instruction.modifiers:
        return False
    if "ALL" in instruction.modifiers:
        return True
    mask = constant(instruction.operands[0]) if instruction.operands else None
    return mask is not None and mask & _ALL_LANES == _ALL_LANES


def _may_diverge(block: Block) -> bool:
    last = block.last
    if last.name not in BRANCHES or is_uniform_branch(last) or "DIV" in last.modifiers:
        return False
    return last.guard is not None or last.name in ("BRX", "JMX")


def _diverges(values: Values, branch: Instruction) -> bool:
    if guard_differs(values, branch):
        return True
    is_indirect = branch.name in ("BRX", "JMX")
    return is_indirect and any(values.get(name, 0) for name in sources(branch))


def _along(block: Block, successor: int, after: _State) -> _State:
    """Return the state at a successor, by the value that the branch's guard has on the way there."""
    guard = block.last.guard
    if guard is None or block.last.name not in (*BRANCHES, "EXIT"):
        return after
    if is_uniform_branch(block.last) or len(set(block.successors)) < len(block.successors):
        return after
    is_true = (successor in block.taken) != guard.is_negated
    barriers, alone, breaks = after.barriers, after.alone, after.breaks
    for token, name, is_negated in after.breaks:
        if name == guard.name:
            breaks -= {(token, name, is_negated)}
            if is_true != is_negated:  # all lanes that come this way have left
                barriers = {key: held for key, held in barriers.items() if held != token}
    if alone is None and after.values.get(guard.name, 0) & (ONE_TRUE if is_true else ONE_FALSE):
        alone = frozenset(barriers.values())
    return _State(after.values, barriers, alone, breaks)


def _ways(block: Block) -> list[tuple[int | None, Facts]]:
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
    for target, learnt in _ways(block):
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
