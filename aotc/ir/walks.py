"""Walks along values and ops: their depth is the program's, so none of them recurses.

A chain of operations is as long as a source or an unrolled loop makes it, and Python's stack is not.
Nested blocks are another matter: the frontend bounds their depth.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

from aotc.ir.core import Op, Value
from aotc.ir.effects import Trait

KeyT = TypeVar("KeyT")
AnswerT = TypeVar("AnswerT")

Steps: TypeAlias = Generator["Steps[Any]", Any, AnswerT]
"""A call of a recursive function that yields calls of its own, and is sent what they return."""


def run(call: Steps[AnswerT]) -> AnswerT:
    """Run a recursive generator on an explicit stack.

    In place of a recursive call, it yields the call: `left = yield depth(op.lhs)`.
    """
    stack: list[Steps[Any]] = [call]
    answer: Any = None
    try:
        while stack:
            try:
                stack.append(stack[-1].send(answer))
                answer = None
            except StopIteration as end:  # noqa: PERF203 - how a generator returns
                stack.pop()
                answer = end.value
    finally:
        # After an error: close the suspended calls from the inside out.
        for suspended in reversed(stack):
            suspended.close()
    return answer


def reached(start: Iterable[KeyT], neighbours: Callable[[KeyT], Iterable[KeyT]]) -> Iterator[KeyT]:
    """Yield the keys reachable from `start` along `neighbours`, each once, depth first."""
    marks: dict[KeyT, None] = {}
    stack = [iter(start)]
    while stack:
        for key in stack[-1]:
            if key not in marks:
                marks[key] = None
                yield key
                stack.append(iter(neighbours(key)))
                break
        else:
            stack.pop()


def users_through_views(buffer: Value) -> Iterator[Op]:
    """Yield the users of a buffer and of its views, including the ops that make the views."""
    return reached(buffer.users, lambda op: op.results[0].users if op.has(Trait.ALIAS) else ())
