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


@dataclass(slots=True)
class _State:
    """What holds where a block starts.

    `barriers` maps a barrier register, or one that keeps its value, to the address of the `BSSY`;
    `alone` holds the barriers that were in use when one lane was left alone, None if there are more.
    """

    values: Values
    barriers: dict[str, int]
    alone: frozenset[int] | None


class Visit(NamedTuple):
    """A block as one side of a branch reaches it; `origin` is the index of the visit before."""

    block: int
    origin: int


@dataclass(slots=True)
class Side:
    """What the lanes that went one way at a branch reach before they are joined.

    `reached` maps addresses of instructions to the visit; `joins` are where paths ended joined.
    """

    target: int
    visits: list[Visit] = field(default_factory=list[Visit])
    reached: dict[int, int] = field(default_factory=dict[int, int])
    joins: dict[int, None] = field(default_factory=dict[int, None])
    broken: set[int] = field(default_factory=set[int])

    @property
    def goes_on(self) -> bool:
        """Whether lanes that came this way do more than to exit."""
        return bool(self.joins) or bool(self.reached)


@dataclass(frozen=True, slots=True)
class Divergence:
    """A branch that lanes may take differently, and what either part of the warp reaches."""

    branch: Instruction
    taken: Side
    fallen: Side


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
                reached = _along(block, successor, after, state)
                if self._enter(successor, reached):
                    waiting.add(successor)

    def _after(self, block: Block, state: _State) -> _State:
        values = self._values(block, state)
        barriers = dict(state.barriers)
        alone = state.alone
        for each in block.instructions:
            transfer(values, each)
            if each.name in _BARRIER_RULES:
                token = barriers.get(each.operands[0]) if each.name == "BSYNC" else None
                _BARRIER_RULES[each.name](barriers, each)
                if token is not None and alone is not None and token in alone:
                    alone = None
            elif barriers and each.name[0] != "U":
                for name in results(each):
                    barriers.pop(name, None)
        if block.last.name == "WARPSYNC":
            alone = None
        for name in self.merged.get(block.last.address, ()):
            values[name] = DIFFERS
        return _State(values, barriers, alone)

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
        if (values, barriers, alone) == (known.values, known.barriers, known.alone):
            return False
        self.states[index] = _State(values, barriers, alone)
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
            key = (*sorted(before.barriers.items()),)
            known = self.followed.get(block.last.address)
            if known is not None and known[0] == key:
                continue
            divergence = self._divergence(block, before.barriers)
            self.followed[block.last.address] = key, divergence
            changed |= self._differing(divergence)
        return changed

    def _before_last(self, block: Block, state: _State) -> _State:
        head = Block(block.index, block.instructions[:-1], (), None)
        if not head.instructions:
            return _State(self._values(block, state), state.barriers, state.alone)
        return self._after(head, state)

    def _differing(self, divergence: Divergence) -> set[int]:
        """Note which registers lanes may differ in once they meet; return the blocks concerned."""
        taken = {visit.block for visit in divergence.taken.visits}
        fallen = {visit.block for visit in divergence.fallen.visits}
        written = {
            name
            for index in taken ^ fallen
            for each in self.graph.blocks[index].instructions
            for name in written_by(each)
        }
        changed: set[int] = set()
        if not written:
            return changed
        for address in (*divergence.taken.joins, *divergence.fallen.joins):
            known = self.merged.setdefault(address, set())
            if not written <= known:
                known |= written
                changed.add(self.graph.block_at(address).index)
        for index in taken & fallen:
            known = self.entered.setdefault(index, set())
            if not written <= known:
                known |= written
                changed.add(index)
        return {index for index in changed if self.states[index] is not None}

    def _divergence(self, block: Block, barriers: dict[str, int]) -> Divergence:
        """Follow both sides of a branch to where its lanes are joined."""
        broken: set[int] = set()
        while True:
            sides = [
                self._side(block, target, facts, barriers, broken)
                for target, facts in _ways(block)
            ]
            left = set[int]().union(*(side.broken for side in sides)) - broken
            if not left:
                return Divergence(block.last, sides[0], _united(sides[1:]))
            broken |= left  # some lanes no longer come there: others do not wait for them

    def _side(
        self,
        block: Block,
        target: int | None,
        facts: Facts,
        barriers: dict[str, int],
        broken: set[int],
    ) -> Side:
        side = Side(-1 if target is None else self.graph.blocks[target].start)
        if target is None:
            return side
        seen: set[tuple[object, ...]] = set()
        counts: dict[int, int] = {}
        waiting: list[tuple[int, int, dict[str, int], Facts]] = [(target, -1, barriers, facts)]
        while waiting:
            index, origin, held, known = waiting.pop()
            counts[index] = counts.get(index, 0) + 1
            if counts[index] > _MAX_VISITS:
                known = {}
            key = (index, *sorted(held.items()), None, *sorted(known.items()))
            if key in seen:
                continue
            seen.add(key)
            side.visits.append(Visit(index, origin))
            at = len(side.visits) - 1
            walk = _Walk(side, at, dict(held), dict(known), broken)
            for following in walk.through(self.graph.blocks[index], self.events[index]):
                waiting.append((following[0], at, walk.barriers, following[1]))
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

    def through(
        self, block: Block, events: Iterable[Instruction]
    ) -> Iterator[tuple[int, Facts]]:
        """Go through a block; yield the blocks that come next, and what is known there."""
        for each in events:
            holds = _known(self.facts, each.guard)
            if holds is False:
                continue
            self.side.reached.setdefault(each.address, self.visit)
            if self._ends(each, certain=holds is True or each.guard is None):
                return
            _learn(self.facts, each)
        yield from _next(block, self.facts)

    def _ends(self, each: Instruction, *, certain: bool) -> bool:
        """Follow what an instruction does to barriers; return whether lanes are joined there."""
        if each.name == "BSYNC":
            token = self.barriers.pop(each.operands[0], _INNER)
            if token != _INNER and token not in self.broken:
                self.side.joins[each.address] = None
                return True
        elif each.name == "BREAK":
            token = self.barriers.get(each.operands[-1], _INNER)
            if token != _INNER:
                self.side.broken.add(token)
                if certain:
                    self.barriers.pop(each.operands[-1])
        elif each.name == "WARPSYNC" and _awaits_all(each):
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
        *("BSSY", "BSYNC", "BREAK", "BMOV", "WARPSYNC", "ELECT"),
    }
)
_BARRIER_RULES: Final = {"BSSY": _set_barrier, "BSYNC": _use_barrier, "BMOV": _move_barrier}


def _awaits_all(instruction: Instruction) -> bool:
    """Whether a WARPSYNC awaits every lane of the warp."""
    if "COLLECTIVE" in instruction.modifiers:
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
    return is_indirect and bool(values.get(branch.operands[0], 0))


def _along(block: Block, successor: int, after: _State, before: _State) -> _State:
    """Return the state at a successor: where a branch leaves one lane alone, it is alone there."""
    guard = block.last.guard
    if guard is None or after.alone is not None or block.last.name not in (*BRANCHES, "EXIT"):
        return after
    if is_uniform_branch(block.last) or len(set(block.successors)) < len(block.successors):
        return after
    del before
    held = after.values.get(guard.name, 0)
    is_taken = successor in block.taken
    is_true = is_taken != guard.is_negated
    if held & (ONE_TRUE if is_true else ONE_FALSE):
        return _State(after.values, after.barriers, frozenset(after.barriers.values()))
    return after


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


def _united(sides: list[Side]) -> Side:
    """Return all ways but the first of a branch as one; a branch without a second one goes nowhere."""
    if len(sides) == 1:
        return sides[0]
    united = Side(sides[0].target if sides else -1)
    for side in sides:
        offset = len(united.visits)
        united.visits += [
            Visit(v.block, v.origin + offset if v.origin >= 0 else -1) for v in side.visits
        ]
        for address, visit in side.reached.items():
            united.reached.setdefault(address, visit + offset)
        united.joins |= side.joins
    return united
