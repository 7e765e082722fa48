"""Spilled registers that are stored and loaded in loops: where they cost most."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aotc.verify.sass.findings import Finding
from aotc.verify.sass.flow import Graph

_LOCAL: Final = frozenset({"STL", "LDL"})


def find_spills(graph: Graph) -> Iterator[Finding]:
    """Yield a finding at the first access to local memory of each block of a loop."""
    local = [
        block.index
        for block in graph.blocks
        if any(each.name in _LOCAL for each in block.instructions)
    ]
    for index in local:
        if not _is_in_loop(graph, index):
            continue
        accesses = [each for each in graph.blocks[index].instructions if each.name in _LOCAL]
        first = accesses[0]
        meaning = f"{len(accesses)} accesses to spilled registers in a block of a loop"
        yield Finding("spill in a loop", first.address, first.text, meaning, (), first.source)


def _is_in_loop(graph: Graph, index: int) -> bool:
    seen: set[int] = set()
    waiting = list(graph.blocks[index].successors)
    while waiting:
        at = waiting.pop()
        if at == index:
            return True
        if at not in seen:
            seen.add(at)
            waiting += graph.blocks[at].successors
    return False
