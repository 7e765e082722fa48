"""Minimum vertex cuts against all sets of nodes of small random graphs."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from aotc.schedule.analysis.minimum_cut import Graph

NODES = 6


def is_cut(cut: set[int], edges: list[tuple[int, int]], starts: list[int], ends: list[int]) -> bool:
    """Return whether every path from a start to an end meets one of the nodes."""
    reached = {node for node in starts if node not in cut}
    for _ in range(NODES):
        reached |= {two for source, two in edges if source in reached and two not in cut}
    return reached.isdisjoint(ends)


@given(
    st.lists(st.integers(0, 9), min_size=NODES, max_size=NODES),
    st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), max_size=14),
    st.lists(st.integers(0, NODES - 1), max_size=3, unique=True),
    st.lists(st.integers(0, NODES - 1), max_size=3, unique=True),
)
def test_it_is_a_cut_and_none_is_cheaper(
    costs: list[int], pairs: list[tuple[int, int]], starts: list[int], ends: list[int]
) -> None:
    edges = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
    graph = Graph[int]()
    for node, cost in enumerate(costs):
        graph.add_node(node, cost)
    for edge in edges:
        graph.add_edge(*edge)
    for node in starts:
        graph.add_start(node)
    for node in ends:
        graph.add_end(node)
    cut = set(graph.minimum_cut())
    assert is_cut(cut, edges, starts, ends)
    every = chain.from_iterable(combinations(range(NODES), count) for count in range(NODES + 1))
    cheapest = min(
        sum(costs[node] for node in nodes)
        for nodes in every
        if is_cut(set(nodes), edges, starts, ends)
    )
    assert sum(costs[node] for node in cut) == cheapest


def test_what_cannot_be_cut_is_not() -> None:
    graph = Graph[str]()
    graph.add_node("load", 3)
    graph.add_node("renamed", None)
    graph.add_edge("load", "renamed")
    graph.add_start("load")
    graph.add_end("renamed")
    assert graph.minimum_cut() == ["load"]


def test_of_equal_cuts_the_later_one_is_taken() -> None:
    """It minimizes recomputation."""
    graph = Graph[str]()
    for node in ("load", "sum"):
        graph.add_node(node, 4)
    graph.add_edge("load", "sum")
    graph.add_start("load")
    graph.add_end("sum")
    assert graph.minimum_cut() == ["sum"]
