from __future__ import annotations

import pytest

from aotc.ir.walks import Steps, reached, run

LONG = 20_000


def _depth(graph: dict[int, list[int]], key: int, depths: dict[int, int]) -> Steps[int]:
    if key not in depths:
        longest = 0
        for successor in graph.get(key, ()):
            longest = max(longest, 1 + (yield _depth(graph, successor, depths)))
        depths[key] = longest
    return depths[key]


def test_a_recursive_function_may_be_as_deep_as_its_input() -> None:
    chain = {number: [number + 1] for number in range(LONG)}
    assert run(_depth(chain, 0, {})) == LONG
    assert run(_depth({0: [1, 2], 1: [2], 2: [3]}, 0, {})) == 3


def test_an_error_leaves_what_was_entered_from_the_inside_out() -> None:
    left: list[int] = []

    def fail(number: int) -> Steps[int]:
        try:
            if number == 3:
                raise ValueError("at the end")
            return (yield fail(number + 1))
        finally:
            left.append(number)

    with pytest.raises(ValueError, match="at the end"):
        run(fail(0))
    assert left == [3, 2, 1, 0]


def test_what_is_reached_comes_once_and_depth_first() -> None:
    graph = {0: [1, 4], 1: [2, 3], 2: [3], 3: [0], 4: [3, 5]}
    assert list(reached([0], lambda key: graph.get(key, ()))) == [0, 1, 2, 3, 4, 5]
    assert list(reached([], lambda key: graph.get(key, ()))) == []
    assert sum(1 for _ in reached([0], lambda key: [key + 1] if key < LONG else [])) == LONG + 1
