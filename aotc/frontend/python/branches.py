"""Translate `if` statements, decided by constants or at run time.

A run-time `if` containing a `return` takes the statements after it into both of its branches.
After `if done: return`, the rest of the function is the other branch, so every function is a
tree of nested blocks.

A chain of `elif` nests one block per link. A long chain is cut into groups. Each group sets a
flag when it takes no link, and the next group follows in a branch on the flag, outside the
first group. Blocks then nest no deeper than one group.
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
_GROUP_SIZE = 16
_UNDECIDED = " undecided"
"""Flag variable: no link was taken so far. The space keeps it apart from names of the source."""


def translate_if(frame: Frame, node: ast.If, rest: Sequence[Item]) -> Flow:
    """Translate an `if` and the statements after it."""
    while True:
        with at(frame.loc(node)):
            condition = frame.visit(node.test)
            if isinstance(condition, Value):
                return _run_time_if(frame, node, scalar_truth(frame, condition), rest)
            live = node.body if truth_of(condition) else node.orelse
            if len(live) != 1 or not isinstance(live[0], ast.If):
                # A nested run-time `return` needs the statements after the `if`.
                if frame.in_kernel and any(has_return(statement) for statement in live):
                    return _end_of_function(frame.run([*live, *rest]))
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


def _end_of_function(flow: Flow) -> Returned:
    """Return the flow at a function's end; falling off the end returns None."""
    return flow if isinstance(flow, Returned) else Returned(None)


def _may_return(frame: Frame, body: Sequence[ast.stmt]) -> bool:
    """Return whether a `return` is reachable; arms ruled out by constants do not count."""
    changed: dict[str, None] = {}
    # Remaining statements of each open block, with its owner: long chains forbid recursion.
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
    """Return the arm selected by constants; None for a run-time condition."""
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
    """Translate a run-time `if` without a `return`."""
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
    """Translate a run-time `if` with a `return`: the rest goes into both branches."""
    before = dict(frame.values)
    sides: list[tuple[Block, Operand]] = []
    for body in (node.body, node.orelse):
        frame.values = dict(before)
        with frame.emit.into(Block()) as block:
            flow = _end_of_function(frame.run([*body, *rest]))
        sides.append((block, flow.value))
    return merge_returned(frame, truth, sides)


# ---- long chains ------------------------------------------------------------------------------


def _elif(node: ast.If) -> ast.If | None:
    """Return the `elif` of an `if`, or None."""
    statement = node.orelse[0] if len(node.orelse) == 1 else None
    return statement if isinstance(statement, ast.If) else None


def _next_return(
    frame: Frame, node: ast.If, rest: Sequence[Item]
) -> tuple[ast.If, Sequence[Item]] | None:
    """Return the next `if` in the untaken arm of `node`, if it may return, and its remainder."""
    items = [*node.orelse, *rest]
    first = items[0] if items else None
    if isinstance(first, ast.If) and has_return(first) and _may_return(frame, [first]):
        return first, items[1:]
    return None


def _is_long(frame: Frame, tests: Iterable[ast.expr]) -> bool:
    """Return whether a chain is cut into groups: too many links, and no walrus in a test."""
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
    """Translate a long chain without a `return`."""
    before = dict(frame.values)
    cut = _translate_group(frame, node, truth, _GROUP_SIZE)
    while cut is not None:
        undecided, decided = frame.values[_UNDECIDED], frame.values
        assert isinstance(undecided, Value)
        frame.values = dict(before)
        with frame.emit.into(Block()) as then:
            cut = _translate_link(frame, cut, _GROUP_SIZE)
        then_values = frame.values
        with frame.emit.into(Block()) as orelse:
            decided[_UNDECIDED] = _flag(frame, is_undecided=False)
        sides = [(then, then_values), (orelse, decided)]
        frame.values = merge(frame, undecided, before, sides, node, _UNDECIDED)
    frame.values.pop(_UNDECIDED, None)


def _translate_link(frame: Frame, node: ast.If, max_links: int) -> ast.If | None:
    """Translate a chain from one link on, in its own branch; return the cut."""
    while True:
        frame.count()
        with at(frame.loc(node)):
            condition = frame.visit(node.test)
            if isinstance(condition, Value):
                return _translate_group(frame, node, scalar_truth(frame, condition), max_links)
            live = node.body if truth_of(condition) else node.orelse
        link = None if live is node.body else _elif(node)
        if link is None:
            _run(frame, live)
            frame.values[_UNDECIDED] = _flag(frame, is_undecided=False)
            return None
        node = link


def _translate_group(frame: Frame, node: ast.If, truth: Value, max_links: int) -> ast.If | None:
    """Translate at most `max_links` nested links; return the link at the cut."""
    before = dict(frame.values)
    with frame.emit.into(Block()) as then:
        _run(frame, node.body)
        frame.values[_UNDECIDED] = _flag(frame, is_undecided=False)
    then_values, frame.values = frame.values, dict(before)
    link = _elif(node)
    cut = link if max_links == 1 else None
    with frame.emit.into(Block()) as orelse:
        if cut is not None:
            fill_in(frame, names_assigned_by(node.body), then_values)
            frame.values[_UNDECIDED] = _flag(frame, is_undecided=True)
        elif link is not None:
            cut = _translate_link(frame, link, max_links - 1)
        else:
            _run(frame, node.orelse)
            frame.values[_UNDECIDED] = _flag(frame, is_undecided=False)
    sides = [(then, then_values), (orelse, frame.values)]
    frame.values = merge(frame, truth, before, sides, node, _UNDECIDED)
    return cut


@dataclass(frozen=True)
class _PartialReturn:
    """Value returned so far by a returning chain, and its cut if still undecided."""

    value: Operand
    undecided: Operand
    cut: tuple[ast.If, Sequence[Item]] | None


def _return_in_groups(frame: Frame, node: ast.If, truth: Value, rest: Sequence[Item]) -> Operand:
    """Translate a long returning chain and the rest of the function."""
    before = dict(frame.values)
    partial_return = _translate_returning_group(frame, node, truth, rest, _GROUP_SIZE)
    while partial_return.cut is not None:
        undecided = partial_return.undecided
        assert isinstance(undecided, Value)
        frame.values = dict(before)
        with frame.emit.into(Block()) as then:
            next_return = _translate_returning_link(frame, *partial_return.cut, _GROUP_SIZE)
        with frame.emit.into(Block()) as orelse:
            decided = partial_return.value, _flag(frame, is_undecided=False)
        partial_return = _merged(frame, undecided, then, next_return, orelse, decided)
    return partial_return.value


def _translate_returning_link(
    frame: Frame, node: ast.If, rest: Sequence[Item], max_links: int
) -> _PartialReturn:
    """Translate a returning chain from one link on, in its own branch."""
    while True:
        frame.count()
        with at(frame.loc(node)):
            condition = frame.visit(node.test)
            if isinstance(condition, Value):
                return _translate_returning_group(
                    frame, node, scalar_truth(frame, condition), rest, max_links
                )
        is_taken = truth_of(condition)
        link = None if is_taken else _next_return(frame, node, rest)
        if link is None:
            flow = _end_of_function(frame.run([*(node.body if is_taken else node.orelse), *rest]))
            return _PartialReturn(flow.value, _flag(frame, is_undecided=False), None)
        node, rest = link


def _translate_returning_group(
    frame: Frame, node: ast.If, truth: Value, rest: Sequence[Item], max_links: int
) -> _PartialReturn:
    """Translate at most `max_links` nested returning links."""
    before = dict(frame.values)
    with frame.emit.into(Block()) as then:
        value = _end_of_function(frame.run([*node.body, *rest])).value
        then_returned = value, _flag(frame, is_undecided=False)
    frame.values = dict(before)
    link = _next_return(frame, node, rest)
    with frame.emit.into(Block()) as orelse:
        if link is not None and max_links == 1:
            flag = _flag(frame, is_undecided=True)
            other = _PartialReturn(stand_in(frame, value), flag, link)
        elif link is not None:
            other = _translate_returning_link(frame, *link, max_links - 1)
        else:
            flow = _end_of_function(frame.run([*node.orelse, *rest]))
            other = _PartialReturn(flow.value, _flag(frame, is_undecided=False), None)
    return _merged(frame, truth, orelse, other, then, then_returned, is_first=False)


def _merged(
    frame: Frame,
    truth: Value,
    block: Block,
    partial_return: _PartialReturn,
    other: Block,
    decided: tuple[Operand, Operand],
    *,
    is_first: bool = True,
) -> _PartialReturn:
    """Merge a side with a possible cut (first or second) with a side already returned."""
    sides: list[tuple[Block, Operand]] = [
        (block, (partial_return.value, partial_return.undecided)),
        (other, decided),
    ]
    merged = merge_returned(frame, truth, sides if is_first else sides[::-1])
    assert is_tuple(merged)
    value, undecided = merged
    return _PartialReturn(value, undecided, partial_return.cut)
