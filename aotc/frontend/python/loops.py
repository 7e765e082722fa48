"""Translate loops: unrolled, counted (`scf.for`) and conditional (`scf.while`).

A run-time loop carries the variables assigned in its body and defined before it. The body is
translated once with block arguments in their place. Loop-invariant arguments are then pruned.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aotc.frontend.emitter import mistake
from aotc.frontend.language.arguments import bind_arguments
from aotc.frontend.language.builtins import PYTHON_RANGE
from aotc.frontend.language.constants import items_of, truth_of
from aotc.frontend.language.convert import cast, static_bool, static_int, to_scalar, to_value
from aotc.frontend.language.promotion import integer_type
from aotc.frontend.python.expressions import bind, scalar_truth
from aotc.frontend.python.frame import Bind, Flow, Frame, Item, LoopExit, Returned
from aotc.frontend.python.merge import carried_names, check_carried, leaves, rebuild
from aotc.frontend.python.scope import first_return, has_return, names_assigned_by
from aotc.frontend.values import Loop, Operand, Parameters, Unbound, element, show
from aotc.ir.core import Block, Value
from aotc.ir.dialects import arith, scf
from aotc.ir.types import ScalarType, Type

_MAX_UNROLLED = 1 << 16
_BOUNDS = ("start", "end", "step")


# ---- for --------------------------------------------------------------------------------------


def translate_for(frame: Frame, node: ast.For, rest: Sequence[Item]) -> Flow:
    """Translate a `for`: over constants it is unrolled, else it becomes an `scf.for`."""
    if frame.in_kernel:
        refuse_else(node)
    call = node.iter
    if not isinstance(call, ast.Call):
        return _unroll(frame, node, _items(frame.visit(call)), rest)
    loop = frame.visit(call.func)
    if not isinstance(loop, Loop):
        return _unroll(frame, node, _items(frame.visit(call)), rest)
    bounds, hints = loop_arguments(frame, loop, call)
    if loop.is_static:
        numbers = [static_int(bound, f"each argument of {loop.name}") for bound in bounds]
        return _unroll(frame, node, _static_range(numbers), rest)
    refuse_return(frame, node)
    _counted(frame, node, counter_name(node), bounds, hints)
    return None


def refuse_else(node: ast.For | ast.While) -> None:
    """Refuse an `else` after a kernel's loop. Raises: CompileError."""
    if node.orelse:
        raise mistake("`else` after a loop is not part of the kernel language")


def counter_name(node: ast.For) -> str:
    """Return the counter variable of a loop over a range. Raises: CompileError."""
    if not isinstance(node.target, ast.Name):
        raise mistake("a loop over a range counts in one variable")
    return node.target.id


def refuse_return(frame: Frame, node: ast.For | ast.While) -> None:
    """Refuse a `return` in a loop at run time. Raises: CompileError."""
    statement = first_return(node.body)
    if statement is not None:
        raise mistake(
            "a `return` cannot leave a run-time loop",
            remedy="set a flag in the loop and return after it",
            loc=frame.loc(statement),
        )


def _items(operand: Operand) -> Sequence[Operand]:
    return items_of(operand, "a `for` goes over range, tl.range, tl.static_range or a tuple")


def _static_range(numbers: Sequence[int]) -> Sequence[int]:
    if numbers[2] == 0:
        raise mistake("the step of a range cannot be zero")
    values = range(*numbers)
    if len(values) > _MAX_UNROLLED:
        raise mistake(
            f"tl.static_range would repeat the body {len(values)} times",
            remedy="use `range`, which is a loop at run time",
        )
    return values


def loop_arguments(
    frame: Frame, loop: Loop, call: ast.Call
) -> tuple[list[Operand], dict[str, Operand]]:
    """Return start, end and step, and the hints by name. Raises: CompileError."""
    if any(isinstance(arg, ast.Starred) for arg in call.args):
        raise mistake(f"{loop.name} takes its bounds one by one")
    args = [frame.visit(arg) for arg in call.args]
    kwargs = {keyword.arg or "**": frame.visit(keyword.value) for keyword in call.keywords}
    num_positional_only = len(_BOUNDS) if loop is PYTHON_RANGE else 0
    parameters = Parameters(
        loop.name,
        _BOUNDS,
        ("end",),
        keyword_only=loop.hints,
        num_positional_only=num_positional_only,
    )
    # As in Python's `range`, a single bound is the end.
    values = bind_arguments(parameters, [0, *args] if len(args) == 1 else args, kwargs)
    bounds = [values.get("start", 0), values["end"], values.get("step", 1)]
    return bounds, {name: value for name, value in values.items() if name in loop.hints}


def _unroll(frame: Frame, node: ast.For, items: Sequence[Operand], rest: Sequence[Item]) -> Flow:
    """Repeat the body for every item."""
    if frame.in_kernel and any(has_return(statement) for statement in node.body):
        # A run-time `return` needs the statements after the loop: append them to the body.
        repeated: list[Item] = []
        for value in items:
            repeated += [Bind(node.target, value, node), *node.body]
        flow = frame.run([*repeated, *rest])
        return Returned(None) if flow is None else flow
    with frame.emit.unrolling(frame.loc(node), len(items)):
        for value in items:
            frame.count()
            bind(frame, node.target, value)
            flow = frame.run(node.body)
            if isinstance(flow, Returned):
                return flow
            if flow is LoopExit.BREAK:
                return None
    return frame.run(node.orelse)


def _counted(
    frame: Frame,
    node: ast.For,
    name: str,
    bounds: Sequence[Operand],
    hints: Mapping[str, Operand],
) -> None:
    emit = frame.emit
    lower, upper, step = bounds
    backwards = isinstance(step, int) and step < 0
    if isinstance(step, int):
        if step == 0:
            raise mistake("the step of a range cannot be zero")
        step = abs(step)
    if backwards:
        # Counting down from `lower` to `upper` is counting up and mirroring.
        lower, upper = upper, lower
    low, high, stride = _promoted_bounds(frame, lower, upper, step)
    body = Block([low.type], [name])
    counter = body.args[0]
    state = _State(frame, [n for n in names_assigned_by(node.body) if n != name], body)
    with emit.into(body):
        if backwards:
            counter = emit(arith.Add(emit(arith.Sub(high, counter)).out, low)).out
        state.enter({name: counter})
        state.run(node)
        pruned = state.prune([body])
        emit(scf.Yield(pruned.yields))
    loop = emit(scf.For(low, high, stride, pruned.inits, body, **_hint_attributes(hints)))
    state.leave(loop.outs, node, name)


def _promoted_bounds(frame: Frame, *bounds: Operand) -> tuple[Value, ...]:
    values = [
        to_scalar(frame.emit, to_value(frame.emit, bound, "an integer bound")) for bound in bounds
    ]
    kind: ScalarType | None = None
    for value in values:
        scalar = element(value)
        if not isinstance(scalar, ScalarType) or not scalar.is_int:
            raise mistake(
                f"the bounds and step of a range are integers, got {show(value)}",
                remedy="cast with .to(tl.int32)",
            )
        kind = scalar if kind is None else integer_type(kind, scalar)
    return tuple(values if kind is None else [cast(frame.emit, value, kind) for value in values])


def _hint_attributes(hints: Mapping[str, Operand]) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for name, value in hints.items():
        if value is None or name == "disable_licm":
            continue
        if name == "num_stages":
            attributes["num_stages"] = static_int(value, name)
        elif name == "loop_unroll_factor":
            attributes["unroll"] = static_int(value, name)
        else:
            attributes[name] = static_bool(value, name)
    return attributes


# ---- while ------------------------------------------------------------------------------------


def translate_while(frame: Frame, node: ast.While, rest: Sequence[Item]) -> Flow:
    """Translate a `while` into an `scf.while`; a constant false condition emits nothing."""
    del rest
    refuse_else(node)
    refuse_return(frame, node)
    emit = frame.emit
    before, after = Block(), Block()
    state = _State(frame, names_assigned_by([node.test, *node.body]), before)
    with emit.into(before):
        state.enter({})
        condition = frame.visit(node.test)
        if not isinstance(condition, Value):
            _constant_condition(condition)
            state.abandon()
            return None
        truth = scalar_truth(frame, condition)
    state.reenter(after)
    with emit.into(after):
        state.run(node)
        pruned = state.prune([before, after])
        emit(scf.Yield(pruned.yields))
    before.insert(scf.Condition(pruned.replaced.get(truth, truth), pruned.passed))
    loop = emit(scf.While(pruned.inits, before, after))
    state.leave(loop.outs, node, None)
    return None


def _constant_condition(condition: Operand) -> None:
    if truth_of(condition):
        raise mistake(
            "the condition of this `while` is always true, so it would never end",
            remedy="loop on a variable that the body changes; a constexpr never does",
        )


def run_while(frame: Frame, node: ast.While, rest: Sequence[Item]) -> Flow:
    """Run a host `while`, with constant conditions."""
    del rest
    while truth_of(frame.visit(node.test)):
        frame.count()
        flow = frame.run(node.body)
        if isinstance(flow, Returned):
            return flow
        if flow is LoopExit.BREAK:
            return None
    return frame.run(node.orelse)


# ---- carried variables ------------------------------------------------------------------------


@dataclass(frozen=True)
class _PrunedState:
    """Carried values after pruning, by position among the candidates."""

    positions: Sequence[int]
    inits: Sequence[Value]
    passed: Sequence[Value]
    yields: Sequence[Value]
    replaced: Mapping[Value, Value]
    """The replacement of each pruned block argument."""


class _State:
    """Variables of a loop: before it, in its blocks, and after it."""

    def __init__(self, frame: Frame, names: Sequence[str], block: Block) -> None:
        self.frame = frame
        self.names = list(names)
        self.before = dict(frame.values)
        self.carried = carried_names(frame, names)
        self.inits = [value for name in self.carried for value in leaves(self.before[name])]
        self.hints = [name for name in self.carried for _ in leaves(self.before[name])]
        self.block = block
        self.args = self._add_args(block)
        self.entries = self.args
        """The arguments of the first block; of a `while`, the condition's block."""
        self.passed = self.args
        """The values passed from the first block to the second."""
        self.pruned_state = _PrunedState((), (), (), (), {})

    def _add_args(self, block: Block) -> list[Value]:
        types: list[Type] = [value.type for value in self.inits]
        return [block.add_arg(type_, hint) for type_, hint in zip(types, self.hints, strict=True)]

    def enter(self, values: Mapping[str, Operand]) -> None:
        """Start an iteration: the carried variables are the block's arguments."""
        self._bind_args(self.args)
        for name, value in values.items():
            self.frame.values[name] = value

    def _bind_args(self, args: Sequence[Value]) -> None:
        values = iter(args)
        self.frame.values = dict(self.before)
        for name in self.carried:
            self.frame.values[name] = rebuild(self.before[name], values)

    def reenter(self, block: Block) -> None:
        """Enter the body of a `while` with the values passed by its condition."""
        self.passed = self._carried_values()
        self.args = self._add_args(block)
        self._bind_args(self.args)

    def _carried_values(self) -> list[Value]:
        return [value for name in self.carried for value in leaves(self.frame.values[name])]

    def run(self, node: ast.For | ast.While) -> None:
        """Translate the body once and check the types of carried variables."""
        self.frame.loop_depth += 1
        self.frame.run(node.body)
        self.frame.loop_depth -= 1
        check_carried(self.frame, self.before, self.names, self.carried)

    def prune(self, blocks: Sequence[Block]) -> _PrunedState:
        """Drop loop-invariant variables."""
        yields = self._carried_values()
        is_invariant = [
            new is arg and passed is entry
            for new, arg, passed, entry in zip(
                yields, self.args, self.passed, self.entries, strict=True
            )
        ]
        replaced: dict[Value, Value] = {}
        for block in blocks:
            offset = len(block.args) - len(self.inits)
            for position in reversed(range(len(self.inits))):
                if is_invariant[position]:
                    arg = block.args.pop(offset + position)
                    arg.replace_all_uses_with(self.inits[position])
                    replaced[arg] = self.inits[position]
            for index, arg in enumerate(block.args):
                arg.index = index
        positions = [i for i, invariant in enumerate(is_invariant) if not invariant]

        def pick(values: Sequence[Value]) -> list[Value]:
            return [replaced.get(values[i], values[i]) for i in positions]

        self.pruned_state = _PrunedState(
            positions, pick(self.inits), pick(self.passed), pick(yields), replaced
        )
        return self.pruned_state

    def leave(self, outs: Sequence[Value], node: ast.For | ast.While, counter: str | None) -> None:
        """Set the variables to their values after the loop."""
        values = list(self.inits)
        for position, out in zip(self.pruned_state.positions, outs, strict=True):
            values[position] = out
            out.hint = self.hints[position]
        frame = self.frame
        frame.values = dict(self.before)
        remaining = iter(values)
        for name in self.carried:
            frame.values[name] = rebuild(self.before[name], remaining)
        where = f"the loop in line {node.lineno}"
        for name in self.names:
            if name not in self.before:
                frame.values[name] = Unbound(f"is set only inside {where}", frame.loc(node))
        if counter is not None:
            frame.values[counter] = Unbound(f"counts {where}, which has ended", frame.loc(node))

    def abandon(self) -> None:
        """Drop the translated condition and restore the variables."""
        self.frame.values = self.before
        for op in self.block:
            op.set_slots(())
