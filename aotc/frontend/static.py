"""Evaluating what a file says outside its kernels: globals, defaults, configurations.

Kernels read constexpr globals that are often computed (`tl.constexpr(1 / math.log(2))`), pick
helpers by conditions, and list their configurations in comprehensions. This is an interpreter for
that much of Python: expressions, and functions made of assignments, `if`, `for`, `while` and
`return`. It runs on the syntax tree, imports nothing, and touches neither files nor environment:
`os.environ` is empty here, so a build means the same on every machine.

What comes from a module without source is an `External`: it may be passed around and compared by
identity, and any use of its value is an error that says so.

Invariant: evaluation ends. Steps are counted, and loops and sizes are bounded.
"""

from __future__ import annotations

import ast
from collections.abc import (
    Callable,
    Generator,
    ItemsView,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from contextlib import contextmanager
from typing import cast

from aotc.frontend.arguments import bind_arguments, default_expressions, parameters_of
from aotc.frontend.classes import initializer, record_type
from aotc.frontend.convert import missing
from aotc.frontend.dtypes import dtype_attribute
from aotc.frontend.emitter import mistake
from aotc.frontend.globals import Globals, not_known, truth_of, unwrap
from aotc.frontend.operators import BINARY, COMPARE, UNARY, compute
from aotc.frontend.python_names import PYTHON_METHODS, PYTHON_NAMES
from aotc.frontend.records import make_record, named_tuple
from aotc.frontend.resolve import bindings
from aotc.frontend.source import SourceFile
from aotc.frontend.values import (
    Class,
    Config,
    Constexpr,
    External,
    Function,
    Missing,
    Operand,
    RecordType,
    StaticCall,
    is_tuple,
    show,
    text_of,
)
from aotc.ir.diagnostics import at, current_loc, did_you_mean
from aotc.ir.types import PointerType, ScalarType, TileType

_MAX_CALLS = 50


class _Return(Exception):  # noqa: N818 - control flow
    def __init__(self, value: Operand) -> None:
        super().__init__()
        self.value = value


class _Break(Exception):  # noqa: N818 - control flow
    pass


class _Continue(Exception):  # noqa: N818 - control flow
    pass


class Closure:
    """Hold a lambda, with the evaluator whose names it sees."""

    def __init__(self, evaluator: Evaluator, node: ast.Lambda) -> None:
        self.evaluator = evaluator
        self.node = node


# ---- the interpreter --------------------------------------------------------------------------


class Evaluator:
    """Evaluate Python of one file; `names` are the local names of a function."""

    def __init__(
        self, module: Globals, file: SourceFile, names: dict[str, Operand] | None = None
    ) -> None:
        self.globals = module
        self.file = file
        self.names = {} if names is None else names

    @contextmanager
    def _at(self, node: ast.AST) -> Generator[None]:
        here = current_loc()
        site = here.call_site if here.file == self.file.path else here
        with at(self.file.loc(node, site if site and site.line else None)):
            yield

    # -- expressions -----------------------------------------------------------

    def evaluate(self, node: ast.expr) -> Operand:
        """Return the value of an expression. Raises: CompileError if it is not known."""
        self.globals.step()
        handler = _EXPRESSIONS.get(type(node))
        with self._at(node):
            if handler is None:
                raise mistake(
                    f"{type(node).__name__} is not evaluated outside kernels",
                    remedy="write the value out, or give it as a constant",
                )
            return handler(self, node)

    def visit_name(self, node: ast.Name) -> Operand:
        if node.id in self.names:
            return self.names[node.id]
        value = self.globals.lookup(self.file, node.id)
        if self.globals.is_known(value):
            return value
        if node.id in PYTHON_NAMES:
            return StaticCall(node.id, PYTHON_NAMES[node.id])
        raise mistake(
            f"{node.id} is not defined",
            remedy=did_you_mean(node.id, [*self.names, *bindings(self.file), *PYTHON_NAMES]),
        )

    def visit_constant(self, node: ast.Constant) -> Operand:
        return node.value

    def visit_attribute(self, node: ast.Attribute) -> Operand:
        owner = self.evaluate(node.value)
        if isinstance(owner, Constexpr):
            if node.attr == "value":
                return owner.value
            owner = owner.value
        if isinstance(owner, ScalarType | PointerType | TileType):
            return dtype_attribute(owner, node.attr)
        if node.attr in PYTHON_METHODS.get(type(owner), ()):
            return StaticCall(node.attr, getattr(owner, node.attr))
        return self.globals.member(owner, node.attr)

    def _wrapped(self, values: Sequence[Operand], result: Operand) -> Operand:
        return Constexpr(result) if any(isinstance(one, Constexpr) for one in values) else result

    def _compute(self, symbol: str, function: Callable[..., Operand], *values: Operand) -> Operand:
        plain = [one.value if isinstance(one, Constexpr) else one for one in values]
        for one in plain:
            if isinstance(one, External):
                raise not_known(one)
        lists = any(isinstance(one, list) for one in plain)
        if lists:
            plain = [
                tuple(cast("list[Operand]", one)) if isinstance(one, list) else one for one in plain
            ]
        result = compute(symbol, function, *plain)
        if lists and is_tuple(result):
            result = list(result)
        return self._wrapped(values, result)

    def visit_binary(self, node: ast.BinOp) -> Operand:
        op = BINARY.get(type(node.op))
        if op is None:
            raise mistake(f"the operator {type(node.op).__name__} is not evaluated")
        return self._compute(
            op.symbol, op.compute, self.evaluate(node.left), self.evaluate(node.right)
        )

    def visit_unary(self, node: ast.UnaryOp) -> Operand:
        op = UNARY[type(node.op)]
        operand = self.evaluate(node.operand)
        if isinstance(node.op, ast.Not):
            return self._wrapped([operand], not truth_of(operand))
        return self._compute(op.symbol, op.compute, operand)

    def visit_boolean(self, node: ast.BoolOp) -> Operand:
        wanted = isinstance(node.op, ast.Or)
        value: Operand = None
        for part in node.values:
            value = self.evaluate(part)
            if truth_of(value) is wanted:
                break
        return value

    def visit_compare(self, node: ast.Compare) -> Operand:
        left = self.evaluate(node.left)
        result: Operand = True
        for op, part in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(part)
            result = self._compare_two(op, left, right)
            if not truth_of(result):
                break
            left = right
        return result

    def _compare_two(self, op: ast.cmpop, left: Operand, right: Operand) -> Operand:
        known = COMPARE.get(type(op))
        if known is not None:
            return self._compute(known.symbol, known.compute, left, right)
        one, two = unwrap(left), unwrap(right)
        if isinstance(op, ast.Is | ast.IsNot):
            return (one is two or (one == two and one is not None)) is isinstance(op, ast.Is)
        for part in (one, two):
            if isinstance(part, External):
                raise not_known(part)
        if not isinstance(two, tuple | str | dict):
            raise mistake(f"`in` looks into a tuple, a dictionary or a string, got {show(two)}")
        container = cast("tuple[Operand, ...]", two)
        return (one in container) is isinstance(op, ast.In)

    def visit_conditional(self, node: ast.IfExp) -> Operand:
        return self.evaluate(node.body if truth_of(self.evaluate(node.test)) else node.orelse)

    def _items(self, nodes: Sequence[ast.expr]) -> list[Operand]:
        items: list[Operand] = []
        for one in nodes:
            if isinstance(one, ast.Starred):
                items.extend(self._iterate(self.evaluate(one.value)))
            else:
                items.append(self.evaluate(one))
        return items

    def visit_tuple(self, node: ast.Tuple) -> Operand:
        return tuple(self._items(node.elts))

    def visit_list(self, node: ast.List) -> Operand:
        return self._items(node.elts)

    def visit_dict(self, node: ast.Dict) -> Operand:
        made: dict[Operand, Operand] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            item = self.evaluate(value)
            if key is not None:
                made[self._key(self.evaluate(key))] = item
            elif isinstance(item, dict):
                made.update(cast("dict[Operand, Operand]", item))
        return made

    def _key(self, key: Operand) -> Operand:
        key = unwrap(key)
        if not isinstance(key, int | float | str | tuple | None):
            raise mistake(f"a key must be a constant, got {show(key)}")
        return key  # pyright: ignore[reportUnknownVariableType]

    def visit_subscript(self, node: ast.Subscript) -> Operand:
        whole = self.evaluate(node.value)
        owner = whole.value if isinstance(whole, Constexpr) else whole
        if isinstance(owner, External):
            raise not_known(owner)
        if isinstance(node.slice, ast.Slice):
            parts = [
                None if one is None else unwrap(self.evaluate(one))
                for one in (node.slice.lower, node.slice.upper, node.slice.step)
            ]
            index: Operand = slice(*parts)
        else:
            index = unwrap(self.evaluate(node.slice))
        if not isinstance(owner, tuple | list | dict | str):
            raise mistake(f"{show(owner)} has no items")
        try:
            return self._wrapped([whole], cast("dict[Operand, Operand]", owner)[index])
        except (KeyError, IndexError, TypeError) as error:
            raise mistake(f"there is no item {show(index)}: {error}") from error

    def visit_lambda(self, node: ast.Lambda) -> Operand:
        return Closure(self, node)

    def visit_format(self, node: ast.JoinedStr) -> Operand:
        parts: list[str] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = unwrap(self.evaluate(part.value))
                if isinstance(value, External):
                    raise not_known(value)
                parts.append(text_of(value))
            elif isinstance(part, ast.Constant):
                parts.append(str(part.value))
        return "".join(parts)

    def visit_comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Operand:
        return [self.evaluate(node.elt) for _ in self._generate(node.generators)]

    def visit_dict_comprehension(self, node: ast.DictComp) -> Operand:
        return {
            self._key(self.evaluate(node.key)): self.evaluate(node.value)
            for _ in self._generate(node.generators)
        }

    def _generate(self, generators: Sequence[ast.comprehension]) -> Generator[None]:
        if not generators:
            yield
            return
        first, rest = generators[0], generators[1:]
        for item in self._iterate(self.evaluate(first.iter)):
            self.globals.step()
            self.assign(first.target, item)
            if all(truth_of(self.evaluate(test)) for test in first.ifs):
                yield from self._generate(rest)

    def _iterate(self, value: Operand) -> list[Operand]:
        value = value.value if isinstance(value, Constexpr) else value
        if isinstance(value, External):
            raise not_known(value)
        if not isinstance(value, tuple | list | dict | str | range):
            raise mistake(f"cannot iterate over {show(value)}")
        return list(cast("Sequence[Operand]", value))

    # -- calls -----------------------------------------------------------------

    def visit_call(self, node: ast.Call) -> Operand:
        function = self.evaluate(node.func)
        args = self._items(node.args)
        kwargs: dict[str, Operand] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif isinstance(value, dict):
                kwargs.update(cast("dict[str, Operand]", value))
        return self.call(function, args, kwargs)

    def call(
        self, function: Operand, args: Sequence[Operand], kwargs: Mapping[str, Operand]
    ) -> Operand:
        """Call what an expression evaluated to. Raises: CompileError."""
        if isinstance(function, StaticCall):
            return self._call_static(function, args, kwargs)
        if isinstance(function, External):
            return self._call_external(function, args, kwargs)
        if isinstance(function, Closure):
            return self._call_closure(function, args)
        if isinstance(function, Function):
            return call_function(self.globals, function, args, kwargs)
        if isinstance(function, RecordType):
            return make_record(function, args, kwargs)
        if isinstance(function, Class):
            kind = record_type(self.globals, function)
            if kind is None or initializer(kind) is not None:
                return External(f"{function.qualname}()")
            return make_record(kind, args, kwargs)
        if isinstance(function, Missing):
            raise missing(function)
        raise mistake(f"{show(function)} cannot be called here")

    def _call_static(
        self, function: StaticCall, args: Sequence[Operand], kwargs: Mapping[str, Operand]
    ) -> Operand:
        if function.name == "tl.constexpr":
            value = unwrap(args[0]) if args else unwrap(kwargs.get("value"))
            if isinstance(value, External):
                raise not_known(value)
            return Constexpr(value)
        for one in args:
            if isinstance(one, External):
                raise not_known(one)
        plain = [one.value if isinstance(one, Constexpr) else one for one in args]
        try:
            result = function.call(*plain, **kwargs)
        except (TypeError, ValueError, KeyError, IndexError, ArithmeticError) as error:
            raise mistake(f"{function.name}(…) failed: {error}") from error
        if isinstance(result, KeysView | ValuesView | ItemsView):
            result = list(cast("Sequence[Operand]", result))
        return self._wrapped(args, result)

    def _call_external(
        self, function: External, args: Sequence[Operand], kwargs: Mapping[str, Operand]
    ) -> Operand:
        name = function.path.rpartition(".")[2]
        if name == "Config":
            values = cast("dict[str, Operand]", args[0] if args else kwargs.get("kwargs", {}))
            rest = {key: one for key, one in kwargs.items() if key not in ("kwargs", "pre_hook")}
            positional = dict(zip(("num_warps", "num_stages", "num_ctas"), args[1:], strict=False))
            return Config({**values, **positional, **rest})
        if function.path in ("torch.finfo", "torch.iinfo") and len(args) == 1:
            dtype = args[0].path if isinstance(args[0], External) else show(args[0])
            return External(f"{function.path}({dtype.removeprefix('torch.')})")
        if function.path == "collections.namedtuple":
            plain = {name: unwrap(one) for name, one in kwargs.items()}
            return named_tuple([unwrap(one) for one in args], plain)
        if function.path in ("os.environ.get", "os.getenv"):
            return args[1] if len(args) > 1 else kwargs.get("default")
        if len(args) == 1 and not kwargs and isinstance(args[0], Function):
            # `f = triton.jit(f)`, or a decorator called as a function.
            inner = args[0]
            if not name.endswith("jit"):
                return inner
            return Function(inner.file, inner.node, inner.qualname)
        return External(f"{function.path}()")

    def _call_closure(self, closure: Closure, args: Sequence[Operand]) -> Operand:
        outer, node = closure.evaluator, closure.node.args
        given = bind_arguments(parameters_of("the lambda", node), args, {})
        names = {**outer.names, **given}
        return Evaluator(self.globals, outer.file, names).evaluate(closure.node.body)

    # -- statements ------------------------------------------------------------

    def assign(self, target: ast.expr, value: Operand) -> None:
        """Bind the names of an assignment's target."""
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            items = self._iterate(value)
            if len(items) != len(target.elts):
                raise mistake(f"expected {len(target.elts)} values to unpack, got {len(items)}")
            for one, item in zip(target.elts, items, strict=True):
                self.assign(one, item)
        elif isinstance(target, ast.Subscript):
            owner = self.evaluate(target.value)
            if not isinstance(owner, dict | list):
                raise mistake(f"cannot assign to an item of {show(owner)}")
            key = self._key(self.evaluate(target.slice))
            cast("dict[Operand, Operand]", owner)[key] = value
        else:
            raise mistake(f"cannot assign to {type(target).__name__} here")

    def assigned(self, statement: ast.stmt, name: str) -> Operand:
        """Return what a module-level assignment gives to `name`."""
        self.run([statement])
        return self.names[name]

    def run(self, body: Sequence[ast.stmt]) -> None:
        """Run the statements of a function."""
        for statement in body:
            self.globals.step()
            handler = _STATEMENTS.get(type(statement))
            with self._at(statement):
                if handler is None:
                    raise mistake(f"the statement {type(statement).__name__} is not evaluated here")
                handler(self, statement)

    def run_assign(self, node: ast.Assign) -> None:
        value = self.evaluate(node.value)
        for target in node.targets:
            self.assign(target, value)

    def run_annotated(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value))

    def run_augmented(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Name):
            raise mistake("only a variable can be the target of this assignment here")
        left = self.visit_name(node.target)
        op = BINARY.get(type(node.op))
        if op is None:
            raise mistake(f"the operator {type(node.op).__name__} is not evaluated")
        self.names[node.target.id] = self._compute(
            op.symbol, op.compute, left, self.evaluate(node.value)
        )

    def run_if(self, node: ast.If) -> None:
        self.run(node.body if truth_of(self.evaluate(node.test)) else node.orelse)

    def run_for(self, node: ast.For) -> None:
        for item in self._iterate(self.evaluate(node.iter)):
            self.globals.step()
            self.assign(node.target, item)
            if self._turn(node.body):
                return
        self.run(node.orelse)

    def run_while(self, node: ast.While) -> None:
        while truth_of(self.evaluate(node.test)):
            if self._turn(node.body):
                return
        self.run(node.orelse)

    def _turn(self, body: Sequence[ast.stmt]) -> bool:
        """Run a loop's body once; return whether it broke out of the loop."""
        try:
            self.run(body)
        except _Break:
            return True
        except _Continue:
            pass
        return False

    def run_try(self, node: ast.Try) -> None:
        """Run what is tried. What can be evaluated raises nothing, and what cannot is a mistake."""
        for body in (node.body, node.orelse, node.finalbody):
            self.run(body)

    def run_return(self, node: ast.Return) -> None:
        raise _Return(None if node.value is None else self.evaluate(node.value))

    def run_break(self, _node: ast.Break) -> None:
        raise _Break

    def run_continue(self, _node: ast.Continue) -> None:
        raise _Continue

    def run_expression(self, node: ast.Expr) -> None:
        self.evaluate(node.value)

    def run_assert(self, node: ast.Assert) -> None:
        if not truth_of(self.evaluate(node.test)):
            raise mistake("an assertion failed while evaluating a function of constants")

    def run_raise(self, node: ast.Raise) -> None:
        detail = "" if node.exc is None else f": {ast.unparse(node.exc)}"
        raise mistake(f"an error is raised while evaluating a function of constants{detail}")

    def run_nothing(self, node: ast.stmt) -> None:
        pass


def call_function(
    module: Globals, function: Function, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    """Run a function of plain Python values. Raises: CompileError."""
    evaluator = Evaluator(module, function.file)
    node = function.node.args
    evaluator.names |= bind_arguments(parameters_of(function.qualname, node), args, kwargs)
    for name, default in default_expressions(node).items():
        if name not in evaluator.names:
            evaluator.names[name] = Evaluator(module, function.file).evaluate(default)
    module.depth += 1
    if module.depth > _MAX_CALLS:
        raise mistake(f"{function.qualname} is called more than {_MAX_CALLS} deep")
    try:
        evaluator.run(function.node.body)
    except _Return as returned:
        return returned.value
    except (_Break, _Continue):
        raise mistake(f"a break or continue outside a loop in {function.qualname}") from None
    finally:
        module.depth -= 1
    return None


# ---- tables --------------------------------------------------------------------------------------

_Handler = Callable[[Evaluator, ast.AST], Operand]

_EXPRESSIONS = cast(
    "dict[type[ast.AST], _Handler]",
    {
        ast.Constant: Evaluator.visit_constant,
        ast.Name: Evaluator.visit_name,
        ast.Attribute: Evaluator.visit_attribute,
        ast.BinOp: Evaluator.visit_binary,
        ast.UnaryOp: Evaluator.visit_unary,
        ast.BoolOp: Evaluator.visit_boolean,
        ast.Compare: Evaluator.visit_compare,
        ast.IfExp: Evaluator.visit_conditional,
        ast.Tuple: Evaluator.visit_tuple,
        ast.List: Evaluator.visit_list,
        ast.Set: Evaluator.visit_list,
        ast.Dict: Evaluator.visit_dict,
        ast.Subscript: Evaluator.visit_subscript,
        ast.Lambda: Evaluator.visit_lambda,
        ast.JoinedStr: Evaluator.visit_format,
        ast.ListComp: Evaluator.visit_comprehension,
        ast.GeneratorExp: Evaluator.visit_comprehension,
        ast.SetComp: Evaluator.visit_comprehension,
        ast.DictComp: Evaluator.visit_dict_comprehension,
        ast.Call: Evaluator.visit_call,
    },
)

_STATEMENTS = cast(
    "dict[type[ast.AST], _Handler]",
    {
        ast.Assign: Evaluator.run_assign,
        ast.AnnAssign: Evaluator.run_annotated,
        ast.AugAssign: Evaluator.run_augmented,
        ast.If: Evaluator.run_if,
        ast.For: Evaluator.run_for,
        ast.While: Evaluator.run_while,
        ast.Try: Evaluator.run_try,
        ast.Return: Evaluator.run_return,
        ast.Break: Evaluator.run_break,
        ast.Continue: Evaluator.run_continue,
        ast.Expr: Evaluator.run_expression,
        ast.Assert: Evaluator.run_assert,
        ast.Raise: Evaluator.run_raise,
        ast.Pass: Evaluator.run_nothing,
        ast.Import: Evaluator.run_nothing,
        ast.ImportFrom: Evaluator.run_nothing,
    },
)
