"""Minimum vertex cuts of small graphs: the cheapest nodes on all paths from a start to an end.

By the theorem of Ford and Fulkerson the cost of a minimum cut is the maximum flow. Paths are
augmented one by one, the shortest first. Graphs are of a kernel's tiles, some hundred nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from itertools import pairwise
from typing import Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)

_INFINITE = 1 << 40


class Graph(Generic[Node]):
    """Hold nodes with costs, edges, and where paths start and end."""

    def __init__(self) -> None:
        self.capacity: dict[object, dict[object, int]] = {"start": {}, "end": {}}
        self.nodes: dict[Node, None] = {}

    def add_node(self, node: Node, cost: int | None) -> None:
        """Add a node, with the cost of cutting it; None if it cannot be cut."""
        self.nodes[node] = None
        self._connect((node, "in"), (node, "out"), _INFINITE if cost is None else cost)

    def add_edge(self, source: Node, target: Node) -> None:
        """Let paths go from one node to another."""
        self._connect((source, "out"), (target, "in"), _INFINITE)

    def add_start(self, node: Node) -> None:
        """Let paths start at a node."""
        self._connect("start", (node, "in"), _INFINITE)

    def add_end(self, node: Node) -> None:
        """Let paths end at a node."""
        self._connect((node, "out"), "end", _INFINITE)

    def minimum_cut(self) -> list[Node]:
        """Return the nodes of a cheapest cut: of several, the one nearest to the ends.

        A free node is in the cut if some path has no other node of the cut.
        """
        while path := self._augmenting_path():
            steps = list(pairwise(path))
            amount = min(self.capacity[tail][head] for tail, head in steps)
            for tail, head in steps:
                self.capacity[tail][head] -= amount
                self.capacity[head][tail] = self.capacity[head].get(tail, 0) + amount
        reaching = self._vertices_before_end()
        return [
            node
            for node in self.nodes
            if (node, "in") not in reaching and (node, "out") in reaching
        ]

    def _connect(self, tail: object, head: object, amount: int) -> None:
        self.capacity.setdefault(tail, {})[head] = amount
        self.capacity.setdefault(head, {}).setdefault(tail, 0)

    def _augmenting_path(self) -> list[object]:
        before: dict[object, object] = {"start": None}
        queue: deque[object] = deque(["start"])
        while queue:
            vertex = queue.popleft()
            for after, amount in self.capacity[vertex].items():
                if amount > 0 and after not in before:
                    before[after] = vertex
                    if after == "end":
                        return _path_to(after, before)
                    queue.append(after)
        return []

    def _vertices_before_end(self) -> dict[object, None]:
        """Return from where the end can still be reached."""
        reaching: dict[object, None] = {"end": None}
        queue: deque[object] = deque(["end"])
        while queue:
            vertex = queue.popleft()
            for before in self.capacity[vertex]:
                if before not in reaching and self.capacity[before].get(vertex, 0) > 0:
                    reaching[before] = None
                    queue.append(before)
        return reaching


def _path_to(end: object, before: dict[object, object]) -> list[object]:
    path: list[object] = []
    vertex: object = end
    while vertex is not None:
        path.append(vertex)
        vertex = before[vertex]
    return path[::-1]
