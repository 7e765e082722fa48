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
from collections.abc import Iterator
from dataclasses import dataclass

from aotc.verify.sass.barriers import INNER, Barriers, Breaks, move, still
from aotc.verify.sass.flow import Block, Graph
from aotc.verify.sass.instructions import BRANCHES, is_uniform_branch, sources
from aotc.verify.sass.text import Instruction
from aotc.verify.sass.variance import (
    DIFFERS,
    ONE_FALSE,
    ONE_TRUE,
    Values,
    guard_differs,
    join,
    transfer,
)
from aotc.verify.sass.variance import written as written_by
from aotc.verify.sass.walk import Side, Start, follow, list_events, ways


@dataclass(slots=True)
class _State:
    """What holds where a block starts.

    `barriers` maps a barrier register, or one that keeps its value, to the address of the `BSSY`;
    `alone` holds the barriers that were in use when one lane was left alone, None if there are more.
    `breaks` are the barriers that lanes have left whose predicate has a value, and no branch on it
    has come since: those lanes are here with the others.
    """

    values: Values
    barriers: Barriers
    alone: frozenset[int] | None
    breaks: Breaks = frozenset()


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
        self.events = list_events(graph)

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
            move(barriers, each)
        last = block.last
        alone, breaks = state.alone, still(state.breaks, block.instructions)
        token = barriers.get(last.operands[-1], INNER) if last.operands else INNER
        if last.name == "BSYNC":
            breaks = frozenset(each for each in breaks if each[0] != token)
        elif last.name == "BREAK" and last.guard is not None and token != INNER:
            breaks |= {(token, last.guard.name, last.guard.is_negated)}
        if last.name == "WARPSYNC" or (last.name == "BSYNC" and alone and token in alone):
            alone = None
        transfer(values, last)
        move(barriers, last)
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
            starts = [
                Start(target, before.barriers, facts)
                for target, facts in ways(block)
                if target is not None
            ]
            sides = [
                follow(self.graph, self.events, block.last.address, [start], broken)
                for start in starts
            ]
            restarted: dict[int, None] = {}
            for side in sides:  # which grows
                for address, joined in side.rejoined.items():
                    if address not in restarted:
                        restarted[address] = None
                        sides.append(follow(self.graph, self.events, address, joined, broken))
            left = set[int]().union(*(side.broken for side in sides)) - broken
            if not left:
                return Divergence(block.last, tuple(sides))
            broken |= left


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
