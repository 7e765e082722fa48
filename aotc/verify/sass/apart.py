"""Check instructions within reach of diverged lanes of a warp.

An asynchronous instruction of the uniform datapath is issued once for each group of lanes
there, whatever its guard: two groups copy twice, and an mbarrier's byte count is wrong for
ever. A single group, part of the warp, is right: one elected lane issues like this. An
instruction that needs the whole warp is right in neither case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from aotc.verify.sass.convergence import Convergence, Divergence
from aotc.verify.sass.findings import Finding, Kind, Step
from aotc.verify.sass.flow import Graph
from aotc.verify.sass.instructions import (
    COLLECTIVES,
    EXCHANGES,
    WARPGROUP,
    is_issued_once,
)
from aotc.verify.sass.text import Instruction
from aotc.verify.sass.walk import Side, awaits_all_lanes


def _is_of(names: frozenset[str]) -> Callable[[Instruction], bool]:
    def is_of(instruction: Instruction) -> bool:
        return instruction.name in names

    return is_of


class _Rule(NamedTuple):
    """The required convergence for instructions of a kind.

    With `needs_all`, a part of the warp must not execute the instruction; with `awaits_all`,
    parts may reach it separately.
    """

    kind: Kind
    applies: Callable[[Instruction], bool]
    needs_all: bool
    meaning: str
    awaits_all: bool = False


_RULES: Final = (
    _Rule(
        "issued apart",
        is_issued_once,
        needs_all=False,
        meaning="it is issued once for each group of lanes that gets here, and two do",
    ),
    _Rule(
        "warpgroup apart",
        _is_of(WARPGROUP),
        needs_all=True,
        meaning="the warps of a warpgroup must be whole here, and the lanes of one are apart",
    ),
    _Rule(
        "barrier apart",
        _is_of(frozenset({"BAR"})),
        needs_all=True,
        meaning="a barrier counts whole warps, and lanes of one get here apart",
    ),
    _Rule(
        "collective apart",
        _is_of(COLLECTIVES),
        needs_all=True,
        meaning="each lane's part is needed by others, and lanes get here apart",
    ),
    _Rule(
        "barrier apart",
        awaits_all_lanes,
        needs_all=True,
        meaning="it awaits all lanes of the warp, and some of them never come here",
        awaits_all=True,
    ),
    _Rule(
        "collective apart",
        _is_of(EXCHANGES),
        needs_all=False,
        meaning="it takes place among the lanes that are here, and two groups get here apart",
    ),
)


def find_apart(graph: Graph, convergence: Convergence) -> Iterator[Finding]:
    """Yield a finding for each instruction whose rule diverged lanes violate."""
    ruled = [
        (instruction, rule)
        for block in graph.blocks
        for instruction in block.instructions
        for rule in _RULES
        if rule.applies(instruction)
    ]
    for instruction, rule in ruled:
        if rule.needs_all and instruction.address in convergence.guarded:
            meaning = "its guard holds in some lanes of a warp and may fail in others"
            yield Finding(
                rule.kind, instruction.address, instruction.text, meaning, (), instruction.source
            )
            continue
        for divergence in convergence.divergences:
            ways = _ways(graph, divergence, instruction, rule)
            if ways:
                yield Finding(
                    rule.kind,
                    instruction.address,
                    instruction.text,
                    rule.meaning,
                    ways,
                    instruction.source,
                )
                break


def _ways(
    graph: Graph, divergence: Divergence, instruction: Instruction, rule: _Rule
) -> tuple[tuple[Step, ...], ...]:
    """Return the ways lanes reach an instruction after a branch, if they violate its rule."""
    sides = divergence.sides
    arriving = [side for side in sides if instruction.address in side.reached]
    if rule.awaits_all:
        arriving = [side for side in arriving if instruction.address in side.joins]
    is_apart = len(arriving) > 1 and not rule.awaits_all
    absent = [side for side in sides if side not in arriving and side.goes_on(graph)]
    if is_apart or (rule.needs_all and arriving and absent):
        return tuple(_way(graph, side, instruction.address) for side in arriving)
    return ()


def _way(graph: Graph, side: Side, address: int) -> tuple[Step, ...]:
    """Return the branches by which one side reaches an address, without mere fall-through."""
    blocks: list[int] = []
    visit = side.reached[address]
    while visit >= 0:
        blocks.append(side.visits[visit].block)
        visit = side.visits[visit].origin
    blocks.reverse()
    steps = [Step(side.origin, side.target)]
    for before, after in pairwise(blocks):
        if graph.blocks[before].next != after or before + 1 != after:
            steps.append(Step(graph.blocks[before].last.address, graph.blocks[after].start))
    return tuple(steps)
