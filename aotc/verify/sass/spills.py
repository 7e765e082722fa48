"""Find accesses to spilled registers in loops, where they cost most."""

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
        if any(instruction.name in _LOCAL for instruction in block.instructions)
    ]
    for index in local:
        if not _is_in_loop(graph, index):
            continue
        accesses = [
            instruction
            for instruction in graph.blocks[index].instructions
            if instruction.name in _LOCAL
        ]
        first = accesses[0]
        meaning = f"{len(accesses)} accesses to spilled registers in a block of a loop"
        yield Finding("spill in a loop", first.address, first.text, meaning, (), first.source)


def _is_in_loop(graph: Graph, index: int) -> bool:
    seen: set[int] = set()
    waiting = list(graph.blocks[index].successors)
    while waiting:
        block = waiting.pop()
        if block == index:
            return True
        if block not in seen:
            seen.add(block)
            waiting += graph.blocks[block].successors
    return False
