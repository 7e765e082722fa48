"""Evaluate a function without argument types, to find unsupported features.

Parameters, local variables and values computed from them are `UNKNOWN`. Names, attributes, calls
and loops are resolved by the functions of `frontend.python`. Their handler tables define the
supported syntax, so nothing is listed twice.

Invariant: `translate` also refuses everything refused here, once it reaches the line.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias
from typing import cast as type_cast

from aotc.frontend.emitter import mistake
from aotc.frontend.language.arguments import bind_arguments, parameters_of
from aotc.frontend.language.builtins import DESCRIPTOR_METHODS, METHODS
from aotc.frontend.language.constants import not_known, truth_of
from aotc.frontend.language.convert import missing
from aotc.frontend.language.operators import BINARY
from aotc.frontend.python.calls import CALLERS, REFLECTION, call_operand, refuse_plain
from aotc.frontend.python.classes import record_type
from aotc.frontend.python.expressions import EXPRESSIONS, bind
from aotc.frontend.python.frame import (
    ExpressionHandler,
    Flow,
    Frame,
    Item,
    Program,
    Returned,
    StatementHandler,
)
from aotc.frontend.python.loops import counter_name, loop_arguments, refuse_else, refuse_return
from aotc.frontend.python.names import VALUE_MEMBERS, attribute_of, visit_name
from aotc.frontend.python.resolve import class_fields, class_statement
from aotc.frontend.python.scope import is_docstring
from aotc.frontend.python.statements import STATEMENTS, augmented
from aotc.frontend.python.unsupported import unsupported
from aotc.frontend.values import (
    Builtin,
    Class,
    External,
    Function,
    Loop,
    Missing,
    Operand,
    StaticCall,
)
from aotc.ir.diagnostics import CompileError, at

Key: TypeAlias = tuple[str, int]
"""Location of a function: file path and line."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One use of an unsupported feature, with the `message` of a build.

    `when` is the enclosing condition on constants of the kernel, or "".
    """

    feature: str
    file: str
    line: int
    message: str
    when: str = ""


class _Unknown:
    """Placeholder for a value of unknown type."""

    def __repr__(self) -> str:
        return "a value"


@dataclass(frozen=True)
class _Method:
    """Method of a value of unknown type: one of `functions`."""

    functions: tuple[Builtin, ...]


UNKNOWN = _Unknown()


@dataclass
class Findings:
    """Refusals, callees and context of one function."""

    refusals: dict[Refusal, None] = field(default_factory=dict[Refusal, None])
    uses: dict[Key, Function] = field(default_factory=dict[Key, Function])
    classes: list[Class] = field(default_factory=list[Class])
    constants: frozenset[str] = frozenset()
    captures: list[str] = field(default_factory=list[str])
    conditions: tuple[str, ...] = ()


class Untyped(Program):
    """A program for untyped evaluation; `findings` belong to the current function."""

    findings: Findings


def key_of(function: Function) -> Key:
    """Return the location of a function as a key."""
    return function.file.path, function.node.lineno


# ---- findings ---------------------------------------------------------------------------------


def _findings(frame: Frame) -> Findings:
    return type_cast("Untyped", frame.program).findings


def refuse(frame: Frame, node: ast.AST, error: CompileError) -> None:
    """Record the error of a build at `node`."""
    line = frame.loc(node).line
    findings = _findings(frame)
    when = " and ".join(findings.conditions)
    findings.refusals[Refusal(error.feature, frame.file.path, line, error.message, when)] = None


def _record_use(frame: Frame, value: Operand) -> Operand:
    """Record a jit function or class reached by a name or attribute."""
    findings = _findings(frame)
    if isinstance(value, Function) and value.is_jit:
        findings.uses[key_of(value)] = value
    elif isinstance(value, Class):
        findings.classes.append(value)
    return value


# ---- expressions ------------------------------------------------------------------------------


def _evaluate(frame: Frame, node: ast.expr) -> Operand:
    """Evaluate a part of an expression; record refusals in it."""
    try:
        return frame.visit(node)
    except CompileError as error:
        refuse(frame, node, error)
        return UNKNOWN


def _evaluate_value(frame: Frame, node: ast.expr) -> Operand:
    """Evaluate an expression used as a value: unknown objects are refused."""
    value = _evaluate(frame, node)
    if isinstance(value, External):
        refuse(frame, node, not_known(value))
    elif isinstance(value, Missing):
        refuse(frame, node, missing(value))
    return value


def _evaluate_all(frame: Frame, nodes: Sequence[ast.expr]) -> list[Operand]:
    return [_evaluate_value(frame, n.value if isinstance(n, ast.Starred) else n) for n in nodes]


def _evaluate_operands(frame: Frame, node: ast.expr) -> Operand:
    """Evaluate all operands of an expression."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.comprehension):
            _evaluate_all(frame, (child.iter, *child.ifs))
        elif isinstance(child, ast.expr) and not isinstance(node, ast.Constant):
            _evaluate_value(frame, child)
    return UNKNOWN


def _constant(frame: Frame, node: ast.Constant) -> Operand:
    return EXPRESSIONS[ast.Constant](frame, node)


def _format(frame: Frame, node: ast.JoinedStr) -> Operand:
    _evaluate_all(
        frame, [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
    )
    return UNKNOWN


def _name(frame: Frame, node: ast.Name) -> Operand:
    if node.id in frame.values:
        return UNKNOWN
    return _record_use(frame, visit_name(frame, node))


def _attribute(frame: Frame, node: ast.Attribute) -> Operand:
    owner = _evaluate(frame, node.value)
    if isinstance(owner, _Unknown | _Method):
        return _attribute_of_unknown(frame, node.attr)
    return _record_use(frame, attribute_of(frame, owner, node.attr))


def _attribute_of_unknown(frame: Frame, name: str) -> Operand:
    """Evaluate an attribute of an unknown value. Raises: CompileError if no type has it."""
    for owner in _findings(frame).classes:
        statement = class_statement(owner.node, name)
        if isinstance(statement, ast.FunctionDef):
            _record_use(
                frame,
                frame.program.globals.describe(owner.file, statement, f"{owner.qualname}.{name}"),
            )
        if statement is not None or name in class_fields(owner.node):
            return UNKNOWN
    methods = (METHODS.get(name), DESCRIPTOR_METHODS.get(name))
    functions = tuple(method for method in methods if isinstance(method, Builtin))
    if functions:
        return _Method(functions)
    for method in methods:
        if isinstance(method, Missing):
            raise missing(method)
    if name in VALUE_MEMBERS:
        return UNKNOWN
    raise mistake(f"a value has no attribute {name!r}", feature=f"the attribute {name!r}")


def _binary(frame: Frame, node: ast.BinOp) -> Operand:
    # Walk the spine of a long sum, as in `expressions.py`.
    part: ast.expr = node
    while isinstance(part, ast.BinOp):
        if type(part.op) not in BINARY:
            refuse(frame, part, unsupported(part.op))
        _evaluate_value(frame, part.right)
        part = part.left
    _evaluate_value(frame, part)
    return UNKNOWN


def _boolean(frame: Frame, node: ast.BoolOp) -> Operand:
    for part in node.values:
        _evaluate_value(frame, part)
        if _truth(frame, part) is isinstance(node.op, ast.Or):
            break
    return UNKNOWN


def _compare(frame: Frame, node: ast.Compare) -> Operand:
    if any(not isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
        return _evaluate_operands(frame, node)
    for part in (node.left, *node.comparators):
        value = _evaluate(frame, part)
        # An unsupported dtype compares unequal to the dtype of any value.
        if isinstance(value, External):
            refuse(frame, part, not_known(value))
    return UNKNOWN


def _conditional(frame: Frame, node: ast.IfExp) -> Operand:
    _evaluate_value(frame, node.test)
    truth = _truth(frame, node.test)
    if truth is not None:
        return _evaluate_value(frame, node.body if truth else node.orelse)
    with _condition_scope(frame, node.test) as arm:
        for part, outcome in ((node.body, True), (node.orelse, False)):
            arm(outcome)
            _evaluate_value(frame, part)
    return UNKNOWN


@contextmanager
def _condition_scope(frame: Frame, test: ast.expr) -> Generator[Callable[[bool], None]]:
    """Add a condition on constants to the refusals in each of its arms.

    Yields a function starting an arm. Refusals in both arms hold for every constant.
    """
    findings = _findings(frame)
    outer, before = findings.refusals, findings.conditions
    names = [part.id for part in ast.walk(test) if isinstance(part, ast.Name)]
    is_known = findings.constants.issuperset(part for part in names if part in frame.values)
    text = ast.unparse(test) if is_known else ""
    arms: list[dict[Refusal, None]] = []

    def begin(outcome: bool) -> None:  # noqa: FBT001 - which arm it is
        arms.append({})
        findings.refusals = arms[-1]
        if is_known:
            findings.conditions = (*before, text if outcome else f"not ({text})")

    try:
        yield begin
    finally:
        findings.refusals, findings.conditions = outer, before
        always = is_known and all(arms)
        for refusal in (refusal for arm in arms for refusal in arm):
            outer[replace(refusal, when=" and ".join(before)) if always else refusal] = None


def _truth(frame: Frame, node: ast.expr) -> bool | None:
    """Evaluate a condition on module constants; None if it depends on other values."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        truth = _truth(frame, node.operand)
        return None if truth is None else not truth
    if isinstance(node, ast.BoolOp):
        decides = isinstance(node.op, ast.Or)
        truths = [_truth(frame, part) for part in node.values]
        if decides in truths:
            return decides
        return None if None in truths else not decides
    if any(isinstance(part, ast.Name) and part.id in frame.values for part in ast.walk(node)):
        return None
    try:
        return truth_of(frame.program.host_frame(frame.file).visit(node))
    except CompileError:
        return None


def _call(frame: Frame, node: ast.Call) -> Operand:
    if isinstance(node.func, ast.Name) and node.func.id in REFLECTION:
        return _reflection(frame, node)
    function = _evaluate(frame, node.func)
    if isinstance(function, External):
        return call_operand(frame, function, [_evaluate(frame, arg) for arg in node.args], {})
    if isinstance(function, StaticCall) and function.name == "tl.constexpr" and node.args:
        return _evaluate(frame, node.args[0])
    args = _evaluate_all(frame, node.args)
    kwargs = {
        keyword.arg or "**": _evaluate_value(frame, keyword.value) for keyword in node.keywords
    }
    is_spread = "**" in kwargs or any(isinstance(arg, ast.Starred) for arg in node.args)
    if isinstance(function, _Unknown):
        return UNKNOWN
    if isinstance(function, _Method):
        _bind_any(function, args, kwargs, is_spread=is_spread)
        return UNKNOWN
    if isinstance(function, Builtin) and not is_spread:
        bind_arguments(function.parameters, args, kwargs)
    elif isinstance(function, Function):
        refuse_plain(function)
        parameters = parameters_of(function.qualname, function.node.args)
        if not is_spread:
            bind_arguments(parameters, args, kwargs)
    elif _is_refused(frame, function):
        call_operand(frame, function, (), {})
    return UNKNOWN


def _is_refused(frame: Frame, function: Operand) -> bool:
    """Return whether a call is refused for any arguments."""
    if isinstance(function, Class):
        return record_type(frame.program.globals, function) is None
    return type(function) not in CALLERS or isinstance(function, Loop | Missing)


def _bind_any(
    method: _Method, args: list[Operand], kwargs: dict[str, Operand], *, is_spread: bool
) -> None:
    """Bind the arguments of a method. Raises: CompileError if none of the functions takes them."""
    if is_spread:
        return
    *earlier, last = method.functions
    for function in earlier:
        with suppress(CompileError):
            bind_arguments(function.parameters, [UNKNOWN, *args], kwargs)
            return
    bind_arguments(last.parameters, [UNKNOWN, *args], kwargs)


def _lambda(frame: Frame, node: ast.Lambda) -> Operand:
    outer = dict(frame.values)
    args = node.args
    frame.values |= {
        parameter.arg: UNKNOWN for parameter in (*args.posonlyargs, *args.args, *args.kwonlyargs)
    }
    _evaluate_value(frame, node.body)
    frame.values = outer
    return UNKNOWN


def _reflection(frame: Frame, node: ast.Call) -> Operand:
    """Evaluate `isinstance(x, …)` and similar calls; `getattr` of a module is an attribute."""
    subject, *rest = [_evaluate(frame, arg) for arg in node.args] or [UNKNOWN]
    is_attribute = isinstance(node.func, ast.Name) and node.func.id == "getattr"
    if not is_attribute or not rest or not isinstance(rest[0], str):
        return UNKNOWN
    if isinstance(subject, _Unknown | _Method):
        return _attribute_of_unknown(frame, rest[0]) if len(rest) == 1 else UNKNOWN
    try:
        return _record_use(frame, attribute_of(frame, subject, rest[0]))
    except CompileError:
        if len(rest) == 1:
            raise
        return rest[1]


_SPECIAL_EXPRESSIONS = type_cast(
    "dict[type[ast.AST], ExpressionHandler]",
    {
        ast.Constant: _constant,
        ast.Name: _name,
        ast.Attribute: _attribute,
        ast.BinOp: _binary,
        ast.BoolOp: _boolean,
        ast.Compare: _compare,
        ast.IfExp: _conditional,
        ast.Call: _call,
        ast.JoinedStr: _format,
        ast.Lambda: _lambda,
    },
)
UNTYPED_EXPRESSIONS = {
    kind: _SPECIAL_EXPRESSIONS.get(kind, _evaluate_operands) for kind in EXPRESSIONS
}


# ---- statements -------------------------------------------------------------------------------


def run(frame: Frame, nodes: Sequence[ast.stmt]) -> Flow:
    """Run statements; a refused one does not stop the others."""
    for node in nodes:
        try:
            flow = frame.run([node])
        except CompileError as error:
            refuse(frame, node, error)
            continue
        if flow is not None:
            return flow
    return None


def _simple_statement(frame: Frame, node: ast.stmt, _rest: Sequence[Item]) -> Flow:
    """Evaluate the expressions of a simple statement."""
    if not is_docstring(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                _evaluate_value(frame, child)
    return None


def _ignore(frame: Frame, node: ast.stmt, _rest: Sequence[Item]) -> Flow:
    del frame, node


def _assign(frame: Frame, node: ast.Assign, _rest: Sequence[Item]) -> Flow:
    _evaluate_value(frame, node.value)
    for target in node.targets:
        _target(frame, target)
    return None


def _annotated_assign(frame: Frame, node: ast.AnnAssign, _rest: Sequence[Item]) -> Flow:
    if node.value is not None:
        _evaluate_value(frame, node.value)
        _target(frame, node.target)
    return None


def _augmented_assign(frame: Frame, node: ast.AugAssign, _rest: Sequence[Item]) -> Flow:
    _evaluate_value(frame, node.value)
    augmented(node)
    return None


def _target(frame: Frame, target: ast.expr) -> None:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            if isinstance(element, ast.Starred):
                raise unsupported(element)
            _target(frame, element)
    elif not (isinstance(target, ast.Attribute) and _is_init(frame)):
        bind(frame, target, UNKNOWN)


def _is_init(frame: Frame) -> bool:
    """Return whether the function is an `__init__`, setting the fields of an aggregate."""
    return frame.function is not None and frame.function.node.name == "__init__"


def _return(frame: Frame, node: ast.Return, _rest: Sequence[Item]) -> Flow:
    if node.value is not None:
        _evaluate_value(frame, node.value)
    return Returned(UNKNOWN)


def _if(frame: Frame, node: ast.If, _rest: Sequence[Item]) -> Flow:
    """Run an `if` and its `elif`s in a loop: a long chain would overflow Python's stack."""
    flows: list[Flow] = []
    with ExitStack() as conditions:
        while True:
            live = _if_link(frame, node, flows, conditions)
            if len(live) != 1 or not isinstance(live[0], ast.If):
                flows.append(run(frame, live))
                break
            node = live[0]
    return flows[0] if None not in flows else None


def _if_link(
    frame: Frame, node: ast.If, flows: list[Flow], conditions: ExitStack
) -> Sequence[ast.stmt]:
    """Evaluate a test and its guarded body; return the statements left to run."""
    frame.count()
    with at(frame.loc(node)):
        try:
            _evaluate_value(frame, node.test)
            truth = _truth(frame, node.test)
        except CompileError as error:
            refuse(frame, node, error)
            return ()
        if truth is not None:
            return node.body if truth else node.orelse
        arm = conditions.enter_context(_condition_scope(frame, node.test))
        arm(True)  # noqa: FBT003 - as there
        flows.append(run(frame, node.body))
        arm(False)  # noqa: FBT003
    return node.orelse


def _for(frame: Frame, node: ast.For, _rest: Sequence[Item]) -> Flow:
    refuse_else(node)
    call = node.iter
    loop = _evaluate(frame, call.func) if isinstance(call, ast.Call) else UNKNOWN
    if isinstance(call, ast.Call) and isinstance(loop, Loop):
        loop_arguments(frame, loop, call)
        if not loop.is_static:
            refuse_return(frame, node)
            counter_name(node)
    else:
        _evaluate_value(frame, call)
    _target(frame, node.target)
    run(frame, node.body)
    return None


def _while(frame: Frame, node: ast.While, _rest: Sequence[Item]) -> Flow:
    refuse_else(node)
    refuse_return(frame, node)
    _evaluate_value(frame, node.test)
    if _truth(frame, node.test) is not False:
        run(frame, node.body)
    return None


_SPECIAL_STATEMENTS = type_cast(
    "dict[type[object], StatementHandler]",
    {
        ast.Assign: _assign,
        ast.AnnAssign: _annotated_assign,
        ast.AugAssign: _augmented_assign,
        # Types and constants decide whether it is reached.
        ast.Raise: _ignore,
        ast.Return: _return,
        ast.If: _if,
        ast.For: _for,
        ast.While: _while,
    },
)
UNTYPED_STATEMENTS = {kind: _SPECIAL_STATEMENTS.get(kind, _simple_statement) for kind in STATEMENTS}
