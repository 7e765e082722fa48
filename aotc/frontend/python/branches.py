"""`if` statements: those that constants decide, and branches at run time.

An `if` that decides about returning hands the statements that follow it to both of its branches: what
follows `if done: return` is the other branch, so every function is a tree of nested blocks.

A chain of `elif` nests a block for each link. A long one is cut into groups: a flag says that no link of a
group was taken, and the next group stands in a branch on that, behind the first and not inside it. So blocks
nest no deeper than a group is long.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from aotc.frontend.emitter import mistake
from aotc.frontend.language.constants import truth_of
from aotc.frontend.language.convert import constant
from aotc.frontend.python.expressions import scalar_truth
from aotc.frontend.python.frame import Flow, Frame, Item, Returned
from aotc.frontend.python.merge import fill_in, merge, merge_returned, stand_in
from aotc.frontend.python.scope import has_return, names_assigned_by, nested
from aotc.frontend.values import Operand, Unbound, is_tuple
from aotc.ir.core import Block, Value
from aotc.ir.diagnostics import CompileError, at
from aotc.ir.types import I1

_MAX_NESTED_LINKS = 48
_LINKS_OF_A_GROUP = 16
_UNDECIDED = " undecided"
"""The variable, of no name that a source can have, that says that no link so far was taken."""


def translate_if(frame: Frame, node: ast.If, rest: Sequence[Item]) -> Flow:
    """Translate an `if`, with the statements that follow it."""
    while True:
        with at(frame.loc(node)):
            condition = frame.visit(node.test)
            if isinstance(condition, Value):
                return _run_time_if(frame, node, scalar_truth(frame, condition), rest)
            live = node.body if truth_of(condition) else node.orelse
            if len(live) != 1 or not isinstance(live[0], ast.If):
                # A `return` under a run-time condition inside needs what follows.
                if frame.in_kernel and any(has_return(statement) for statement in live):
                    return _end(frame.run([*live, *rest]))
                return frame.run(live)
        node = live[0]
        frame.count()


def _run_time_if(frame: Frame, node: ast.If, truth: Value, rest: Sequence[Item]) -> Flow:
    if not has_return(node) or not _may_return(frame, [node]):
        if _is_long(frame, _tests(node)):
            _branch_in_groups(frame, node, truth)
        else:
            _branch(frame, node, truth)
        return None
    if frame.loop_depth:
        raise mistake(
            "a `return` cannot leave a run-time loop",
            remedy="set a flag in the loop and return after it",
        )
    if _is_long(frame, _returning_tests(frame, node, rest)):
        return Returned(_return_in_groups(frame, node, truth, rest))
    return Returned(_branch_to_return(frame, node, truth, rest))


def _end(flow: Flow) -> Returned:
    """Return how a path that ran to the end of its function ended."""
    return flow if isinstance(flow, Returned) else Returned(None)


def _may_return(frame: Frame, body: Sequence[ast.stmt]) -> bool:
    """Return whether a `return` can be reached, leaving out arms that constants rule out."""
    changed: dict[str, None] = {}
    # What is left of each block, and the statement that the block is in: no recursion, chains are long.
    waiting: list[tuple[list[ast.stmt], ast.stmt | None]] = [(list(body), None)]
    while waiting:
        block, owner = waiting[-1]
        if not block:
            waiting.pop()
            changed.update(dict.fromkeys(names_assigned_by([owner] if owner else [])))
            continue
        statement = block.pop(0)
        if isinstance(statement, ast.Return):
            return True
        if has_return(statement):
            arms = _live_arms(frame, statement, changed) if isinstance(statement, ast.If) else None
            waiting.append((list(nested(statement) if arms is None else arms), statement))
        else:
            changed.update(dict.fromkeys(names_assigned_by([statement])))
    return False


def _live_arms(frame: Frame, node: ast.If, changed: dict[str, None]) -> Sequence[ast.stmt] | None:
    """Return the arm that constants select; None if the condition is for run time."""
    constants = {
        name: value
        for name, value in frame.values.items()
        if not isinstance(value, Value | Unbound) and name not in changed
    }
    if any(
        isinstance(part, ast.Name) and part.id in frame.values and part.id not in constants
        for part in ast.walk(node.test)
    ):
        return None
    try:
        condition = frame.program.host_frame(frame.file, constants).visit(node.test)
        return node.body if truth_of(condition) else node.orelse
    except CompileError:
        return None


def _branch(frame: Frame, node: ast.If, truth: Value) -> None:
    """Translate a run-time `if` after which the function goes on."""
    before = dict(frame.values)
    sides: list[tuple[Block, dict[str, Operand]]] = []
    for body in (node.body, node.orelse):
        frame.values = dict(before)
        with frame.emit.into(Block()) as block:
            _run(frame, body)
        sides.append((block, frame.values))
    frame.values = merge(frame, truth, before, sides, node)


def _run(frame: Frame, body: Sequence[ast.stmt]) -> None:
    if frame.run(body) is not None:
        raise mistake("this `return` was not expected; please report the kernel")


def _branch_to_return(frame: Frame, node: ast.If, truth: Value, rest: Sequence[Item]) -> Operand:
    """Translate a run-time `if` that may return: what follows it goes into both branches."""
    before = dict(frame.values)
    sides: list[tuple[Block, Operand]] = []
    for body in (node.body, node.orelse):
        frame.values = dict(before)
        with frame.emit.into(Block()) as block:
            flow = _end(frame.run([*body, *rest]))
        sides.append((block, flow.value))
    return merge_returned(frame, truth, sides)


# ---- long chains ------------------------------------------------------------------------------


def _elif(node: ast.If) -> ast.If | None:
    """Return the `elif` of an `if`, or None."""
    only = node.orelse[0] if len(node.orelse) == 1 else None
    return only if isinstance(only, ast.If) else None


def _next_return(
    frame: Frame, node: ast.If, rest: Sequence[Item]
) -> tuple[ast.If, Sequence[Item]] | None:
    """Return the `if` that comes next where `node` is not taken, with what follows, if it may return."""
    items = [*node.orelse, *rest]
    first = items[0] if items else None
    if isinstance(first, ast.If) and has_return(first) and _may_return(frame, [first]):
        return first, items[1:]
    return None


def _is_long(frame: Frame, tests: Iterable[ast.expr]) -> bool:
    """Return whether a chain has so many links that it is cut; one that assigns in a test cannot be."""
    count = 0
    for test in tests:
        if any(isinstance(part, ast.NamedExpr) for part in ast.walk(test)):
            return False
        count += 1
    return frame.emit.depth + count > _MAX_NESTED_LINKS


def _tests(node: ast.If) -> Iterator[ast.expr]:
    link: ast.If | None = node
    while link is not None:
        yield link.test
        link = _elif(link)


def _returning_tests(frame: Frame, node: ast.If, rest: Sequence[Item]) -> Iterator[ast.expr]:
    link: tuple[ast.If, Sequence[Item]] | None = (node, rest)
    while link is not None:
        yield link[0].test
        link = _next_return(frame, *link)


def _flag(frame: Frame, *, is_undecided: bool) -> Value:
    return constant(frame.emit, is_undecided, I1)


def _branch_in_groups(frame: Frame, node: ast.If, truth: Value) -> None:
    """Translate a long chain after which the function goes on."""
    before = dict(frame.values)
    cut = _group(frame, node, truth, _LINKS_OF_A_GROUP)
    while cut is not None:
        undecided, decided = frame.values[_UNDECIDED], frame.values
        assert isinstance(undecided, Value)
        frame.values = dict(before)
        with frame.emit.into(Block()) as then:
            cut = _link(frame, cut, _LINKS_OF_A_GROUP)
        then_values = frame.values
        with frame.emit.into(Block()) as orelse:
            decided[_UNDECIDED] = _flag(frame, is_undecided=False)
        sides = [(then, then_values), (orelse, decided)]
        frame.values = merge(frame, undecided, before, sides, node, _UNDECIDED)
    frame.values.pop(_UNDECIDED, None)


def _link(frame: Frame, node: ast.If, left: int) -> ast.If | None:
    """Translate a chain from a link on, in a branch of its own; return where it is cut."""
    while True:
        frame.count()
        with at(frame.loc(node)):
            condition = frame.visit(node.test)
            if isinstance(condition, Value):
                return _group(frame, node, scalar_truth(frame, condition), left)
            live = node.body if truth_of(condition) else node.orelse
        link = None if live is node.body else _elif(node)
        if link is None:
            _run(frame, live)
            frame.values[_UNDECIDED] = _flag(frame, is_undecided=False)
            return None
        node = link


def _group(frame: Frame, node: ast.If, truth: Value, left: int) -> ast.If | None:
    """Translate at most `left` links, one in the other; return the link where the chain is cut."""
    before = dict(frame.values)
    with frame.emit.into(Block()) as then:
        _run(frame, node.body)
        frame.values[_UNDECIDED] = _flag(frame, is_undecided=False)
    then_values, frame.values = frame.values, dict(before)
    link = _elif(node)
    cut = link if left == 1 else None
    with frame.emit.into(Block()) as orelse:
        if cut is not None:
            fill_in(frame, names_assigned_by(node.body), then_values)
            frame.values[_UNDECIDED] = _flag(frame, is_undecided=True)
        elif link is not None:
            cut = _link(frame, link, left - 1)
        else:
            _run(frame, node.orelse)
            frame.values[_UNDECIDED] = _flag(frame, is_undecided=False)
    sides = [(then, then_values), (orelse, frame.values)]
    frame.values = merge(frame, truth, before, sides, node, _UNDECIDED)
    return cut


@dataclass(frozen=True)
class _Ended:
    """What a chain that returns has returned so far, and where it is cut if it is undecided."""

    value: Operand
    undecided: Operand
    cut: tuple[ast.If, Sequence[Item]] | None


def _return_in_groups(frame: Frame, node: ast.If, truth: Value, rest: Sequence[Item]) -> Operand:
    """Translate a long chain that returns, and all that follows it."""
    before = dict(frame.values)
    ended = _returning_group(frame, node, truth, rest, _LINKS_OF_A_GROUP)
    while ended.cut is not None:
        undecided = ended.undecided
        assert isinstance(undecided, Value)
        frame.values = dict(before)
        with frame.emit.into(Block()) as then:
            more = _returning_link(frame, *ended.cut, _LINKS_OF_A_GROUP)
        with frame.emit.into(Block()) as orelse:
            decided = ended.value, _flag(frame, is_undecided=False)
        ended = _merged(frame, undecided, then, more, orelse, decided)
    return ended.value


def _returning_link(frame: Frame, node: ast.If, rest: Sequence[Item], left: int) -> _Ended:
    """Translate a chain that returns from a link on, in a branch of its own."""
    while True:
        frame.count()
        with at(frame.loc(node)):
            condition = frame.visit(node.test)
            if isinstance(condition, Value):
                return _returning_group(frame, node, scalar_truth(frame, condition), rest, left)
        is_taken = truth_of(condition)
        link = None if is_taken else _next_return(frame, node, rest)
        if link is None:
            flow = _end(frame.run([*(node.body if is_taken else node.orelse), *rest]))
            return _Ended(flow.value, _flag(frame, is_undecided=False), None)
        node, rest = link


def _returning_group(
    frame: Frame, node: ast.If, truth: Value, rest: Sequence[Item], left: int
) -> _Ended:
    """Translate at most `left` links that return, one in the other."""
    before = dict(frame.values)
    with frame.emit.into(Block()) as then:
        value = _end(frame.run([*node.body, *rest])).value
        then_returned = value, _flag(frame, is_undecided=False)
    frame.values = dict(before)
    link = _next_return(frame, node, rest)
    with frame.emit.into(Block()) as orelse:
        if link is not None and left == 1:
            flag = _flag(frame, is_undecided=True)
            other = _Ended(stand_in(frame, value), flag, link)
        elif link is not None:
            other = _returning_link(frame, *link, left - 1)
        else:
            flow = _end(frame.run([*node.orelse, *rest]))
            other = _Ended(flow.value, _flag(frame, is_undecided=False), None)
    return _merged(frame, truth, orelse, other, then, then_returned, is_first=False)


def _merged(
    frame: Frame,
    truth: Value,
    block: Block,
    ended: _Ended,
    other: Block,
    decided: tuple[Operand, Operand],
    *,
    is_first: bool = True,
) -> _Ended:
    """Merge a side that may be cut, the first or the second one, with one that has returned."""
    sides: list[tuple[Block, Operand]] = [(block, (ended.value, ended.undecided)), (other, decided)]
    merged = merge_returned(frame, truth, sides if is_first else sides[::-1])
    assert is_tuple(merged)
    value, undecided = merged
    return _Ended(value, undecided, ended.cut)
