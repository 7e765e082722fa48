"""Find divergent branches, and the code between each branch and the reconvergence of its lanes.

Since Volta, diverged lanes do not reconverge where their paths meet. They reconverge at `BSYNC
Bn`, which awaits the lanes present at its `BSSY Bn`, less those that left by `BREAK Bn` or
`EXIT`; and at a `WARPSYNC` of all lanes. So each possibly divergent branch is
followed both ways until it reconverges. Code reached by one side is executed by a part of the
warp. Code reached by both sides is executed by each separately, one after the other.

A branch diverges depending on the contents of registers (`variance.py`), and these depend on
divergent branches: lanes on different paths hold different values. Both are computed together,
as a fixed point from a converged warp.

Invariant: a path ends only where all remaining lanes of the branch are awaited.
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
    """The state at the start of a block.

    `barriers` maps a barrier register, or one with its saved value, to the address of the
    `BSSY`. `alone` holds the barriers in use when one lane was left alone, None with more
    lanes. `breaks` are the barriers that lanes left under a predicate which is still valid,
    with no branch on it since: those lanes are here with the others.
    """

    values: Values
    barriers: Barriers
    alone: frozenset[int] | None
    breaks: Breaks = frozenset()


@dataclass(frozen=True, slots=True)
class Divergence:
    """A divergent branch, and the code reached by each part of the warp."""

    branch: Instruction
    sides: tuple[Side, ...]


@dataclass(frozen=True, slots=True)
class Convergence:
    """The divergent branches of a function, in the order of their addresses, and `guarded`.

    These are the addresses of instructions whose guard may differ between lanes of a
    warp.
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
        # Registers with differing values after reconvergence there: not all lanes wrote them.
        self.merged: dict[int, set[str]] = {}
        self.entered: dict[int, set[str]] = {}
        self.followed: dict[int, tuple[tuple[object, ...], Divergence]] = {}
        self.events = list_events(graph)

    def run(self) -> Convergence:
        waiting = {0}
        while waiting:
            self._propagate(waiting)
            waiting = self._follow()
        divergences = tuple(self.followed[address][1] for address in sorted(self.followed))
        return Convergence(divergences, frozenset(self._guarded()))

    def _guarded(self) -> Iterator[int]:
        for block, events in zip(self.graph.blocks, self.events, strict=True):
            state = self.states[block.index]
            if state is None or not any(instruction.guard is not None for instruction in events):
                continue
            values = self._values(block, state)
            for instruction in block.instructions:
                if guard_differs(values, instruction) and state.alone is None:
                    yield instruction.address
                transfer(values, instruction)

    def _values(self, block: Block, state: _State) -> Values:
        """Return the values of registers at the start of a block."""
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
        for instruction in block.instructions[:-1]:
            transfer(values, instruction)
            move(barriers, instruction)
        last = block.last
        alone, breaks = state.alone, still(state.breaks, block.instructions)
        token = barriers.get(last.operands[-1], INNER) if last.operands else INNER
        if last.name == "BSYNC":
            breaks = frozenset(instruction for instruction in breaks if instruction[0] != token)
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
        """Join a state into the one at a block's entry; return whether it changed."""
        state = self.states[index]
        if state is None:
            self.states[index] = reached
            return True
        values = join(state.values, reached.values)
        barriers = {
            name: token
            for name, token in state.barriers.items()
            if reached.barriers.get(name) == token
        }
        alone = state.alone
        if alone is not None:
            alone = None if reached.alone is None else alone | reached.alone
        joined = _State(values, barriers, alone, state.breaks | reached.breaks)
        if joined == state:
            return False
        self.states[index] = joined
        return True

    # ------------------------------------------------------------------------- divergent branches

    def _follow(self) -> set[int]:
        """Follow all divergent branches; return the blocks whose state must be recomputed."""
        changed: set[int] = set()
        for block in self.graph.blocks:
            state = self.states[block.index]
            if state is None or not _may_diverge(block):
                continue
            before = self._before_last(block, state)
            if before.alone is not None or not _diverges(before.values, block.last):
                continue
            key = (*sorted(before.barriers.items()), None, *sorted(before.breaks))
            previous = self.followed.get(block.last.address)
            if previous is not None and previous[0] == key:
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
        """Record the registers differing after reconvergence; return the affected blocks."""
        visited = [{visit.block for visit in side.visits} for side in divergence.sides]
        everywhere = set[int].intersection(*visited)
        written = {
            name
            for index in sorted(set[int].union(*visited) - everywhere)
            for instruction in self.graph.blocks[index].instructions
            for name in written_by(instruction)
        }
        changed: set[int] = set()
        if not written:
            return changed
        for address in [address for side in divergence.sides for address in side.joins]:
            differing = self.merged.setdefault(address, set())
            if not written <= differing:
                differing |= written
                changed.add(self.graph.block_at(address).index)
        counts = Counter(index for blocks in visited for index in blocks)
        for index in [index for index, count in counts.items() if count > 1]:
            differing = self.entered.setdefault(index, set())
            if not written <= differing:
                differing |= written
                changed.add(index)
        return {index for index in changed if self.states[index] is not None}

    def _divergence(self, block: Block, before: _State) -> Divergence:
        """Follow the sides of a branch to their reconvergence.

        Lanes that left a barrier are not awaited at its BSYNC. The others reconverge there, and
        continue as a group of their own.
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
            for side in sides:  # grows in the loop
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
    """Return the state at a successor, given the guard's value on the edge."""
    guard = block.last.guard
    if guard is None or block.last.name not in (*BRANCHES, "EXIT"):
        return after
    if is_uniform_branch(block.last) or len(set(block.successors)) < len(block.successors):
        return after
    is_true = (successor in block.branch_targets) != guard.is_negated
    barriers, alone, breaks = after.barriers, after.alone, after.breaks
    for token, name, is_negated in after.breaks:
        if name == guard.name:
            breaks -= {(token, name, is_negated)}
            if is_true != is_negated:  # all lanes on this edge have left
                barriers = {key: value for key, value in barriers.items() if value != token}
    if alone is None and after.values.get(guard.name, 0) & (ONE_TRUE if is_true else ONE_FALSE):
        alone = frozenset(barriers.values())
    return _State(after.values, barriers, alone, breaks)
