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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn, cast

from aotc.frontend import source
from aotc.frontend.builtins import ALIASES, MODULES, module_member, unknown_member
from aotc.frontend.emitter import fail
from aotc.frontend.operators import BINARY, COMPARE, UNARY, compute
from aotc.frontend.resolve import (
    Binding,
    bindings,
    decorator_names,
    find_module,
)
from aotc.frontend.source import SourceFile
from aotc.frontend.values import (
    Config,
    Constexpr,
    DType,
    External,
    Function,
    Missing,
    Module,
    Operand,
    StaticCall,
    UserModule,
    show,
    show_type,
)
from aotc.ir.diagnostics import CompileError, Loc, at, current_loc, did_you_mean
from aotc.ir.types import PointerType, ScalarType, TileType

_MAX_STEPS = 200_000
_MAX_ITEMS = 1 << 16
_MAX_CALLS = 50
_UNKNOWN_NAME = object()


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


class Globals:
    """Answer what module-level names are, for every file that one translation reads."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.files: dict[str, SourceFile] = {}
        self._known: dict[tuple[str, str], Operand] = {}
        self._in_progress: dict[tuple[str, str], None] = {}
        self.steps = 0
        self.depth = 0

    def open(self, path: str) -> SourceFile:
        """Return the parsed file at `path` and note that it was read."""
        known = self.files.get(path)
        if known is None:
            known = self.files[path] = source.load(path)
        return known

    def step(self) -> None:
        """Count one step of evaluation. Raises: CompileError when there are too many."""
        self.steps += 1
        if self.steps > _MAX_STEPS:
            fail("evaluating the globals of the kernel's file takes too long")

    # -- names -----------------------------------------------------------------

    def lookup(self, file: SourceFile, name: str) -> Operand:
        """Return the value of a module-level name; see `is_known`. Raises: CompileError."""
        key = (file.path, name)
        if key in self._known:
            return self._known[key]
        if key in self._in_progress:
            fail(f"the global {name} is defined by itself")
        self._in_progress[key] = None
        try:
            value = self._lookup(file, name)
        finally:
            del self._in_progress[key]
        self._known[key] = value
        return value

    @staticmethod
    def is_known(value: Operand) -> bool:
        """Return whether `lookup` found a definition."""
        return value is not _UNKNOWN_NAME

    def _lookup(self, file: SourceFile, name: str) -> Operand:
        listed = bindings(file).get(name, ())
        possible = [one for one in listed if self._guards_hold(file, one) is not False]
        chosen = [one for one in possible if self._guards_hold(file, one)] or possible
        firm = [one for one in chosen if not one.is_fallback]
        for binding in (*reversed(firm), *(one for one in reversed(chosen) if one.is_fallback)):
            value = self._bound(file, name, binding)
            if not isinstance(value, External) or len(chosen) == 1:
                return value
        if chosen:
            return self._bound(file, name, chosen[-1])
        for star in bindings(file).get("*", ()):
            value = self._imported(file, star, name)
            if self.is_known(value):
                return value
        return _UNKNOWN_NAME

    def _guards_hold(self, file: SourceFile, binding: Binding) -> bool | None:
        """Return whether a binding's conditions hold; None if that is not known."""
        known = True
        for test, outcome in binding.guards:
            try:
                held = truth_of(Evaluator(self, file).evaluate(test))
            except CompileError:
                known = False
                continue
            if held is not outcome:
                return False
        return True if known else None

    def _bound(self, file: SourceFile, name: str, binding: Binding) -> Operand:
        statement = binding.statement
        if binding.alias is not None:
            return self._imported(file, binding, name)
        if isinstance(statement, ast.FunctionDef):
            return describe_function(file, statement, statement.name)
        if isinstance(statement, ast.ClassDef):
            return External(f"{file.path}:{name}")
        evaluator = Evaluator(self, file)
        with at(file.loc(statement, current_loc())):
            return evaluator.assigned(statement, name)

    def _imported(self, file: SourceFile, binding: Binding, name: str) -> Operand:
        alias, statement = binding.alias, binding.statement
        if alias is None:
            return _UNKNOWN_NAME
        if isinstance(statement, ast.Import):
            dotted = alias.name if alias.asname else alias.name.partition(".")[0]
            return self.module(file, dotted, 0)
        if not isinstance(statement, ast.ImportFrom):
            return _UNKNOWN_NAME
        origin, level = statement.module or "", statement.level
        wanted = name if alias.name == "*" else alias.name
        if origin == "__future__":
            return External(f"__future__.{wanted}")
        parent = self.module(file, origin, level)
        if isinstance(parent, External):
            submodule = self.module(file, f"{origin}.{wanted}".strip("."), level)
            if not isinstance(submodule, External):
                return submodule
            return _UNKNOWN_NAME if alias.name == "*" else External(f"{parent.path}.{wanted}")
        if alias.name == "*":
            return self._star_member(parent, wanted)
        if isinstance(parent, Module) and wanted not in MODULES[parent.name]:
            # Fine as long as nothing uses it; a kernel that does gets the error there.
            return External(f"{parent.name}.{wanted}")
        with at(file.loc(statement, current_loc())):
            return self.member(parent, wanted)

    def _star_member(self, parent: Operand, name: str) -> Operand:
        if isinstance(parent, UserModule):
            return self.lookup(parent.file, name)
        if isinstance(parent, Module):
            return MODULES[parent.name].get(name, _UNKNOWN_NAME)
        return _UNKNOWN_NAME

    # -- modules ---------------------------------------------------------------

    def module(self, importer: SourceFile, name: str, level: int) -> Operand:
        """Return the module an import names."""
        if not level:
            known = ALIASES.get(name, name)
            if known in MODULES:
                return Module(known)
        path = find_module(importer, name, level) if name or level else None
        return UserModule(self.open(path)) if path else External("." * level + name)

    def member(self, owner: Operand, name: str) -> Operand:
        """Return an attribute of a module or of an unknown object. Raises: CompileError."""
        if isinstance(owner, Module):
            return module_member(owner, name)
        if isinstance(owner, UserModule):
            value = self.lookup(owner.file, name)
            if self.is_known(value):
                return value
            path = find_module(owner.file, name, 1) if owner.file.is_package else None
            if path is not None:
                return UserModule(self.open(path))
            unknown_member(owner.file.path, name, bindings(owner.file))
        if isinstance(owner, External):
            return External(f"{owner.path}.{name}")
        fail(f"{show(owner)} has no attribute {name!r}")


def describe_function(file: SourceFile, node: ast.FunctionDef, qualname: str) -> Function:
    """Return a function of a file, with what its decorators say of it."""
    names = decorator_names(node)
    return Function(
        file,
        node,
        qualname,
        is_jit=any(name.endswith("jit") for name in names),
        is_constexpr="constexpr_function" in names,
    )


def unwrap(value: Operand) -> Operand:
    """Return a constant without its `tl.constexpr`, with lists as tuples."""
    if isinstance(value, Constexpr):
        return unwrap(value.value)
    if isinstance(value, tuple | list):
        items = cast("Sequence[Operand]", value)
        return tuple(unwrap(item) for item in items)
    return value


def truth_of(value: Operand) -> bool:
    """Return the truth of a constant. Raises: CompileError if it is not known."""
    value = unwrap(value)
    if isinstance(value, External):
        _not_known(value)
    if isinstance(value, bool | int | float | str | tuple | dict) or value is None:
        return bool(value)  # pyright: ignore[reportUnknownArgumentType]
    return True


def _not_known(value: External) -> NoReturn:
    fail(
        f"{value.path} is not known without running the file",
        remedy="give the value as a `tl.constexpr` argument of the kernel, or write it out",
    )


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
    def _at(self, node: ast.AST) -> Iterator[None]:
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
                fail(
                    f"{type(node).__name__} is not evaluated outside kernels",
                    remedy="write the value out, or give it as a constant",
                )
            return handler(self, node)

    def _name(self, node: ast.Name) -> Operand:
        if node.id in self.names:
            return self.names[node.id]
        value = self.globals.lookup(self.file, node.id)
        if self.globals.is_known(value):
            return value
        if node.id in _PYTHON:
            return StaticCall(node.id, _PYTHON[node.id])
        fail(
            f"{node.id} is not defined",
            remedy=did_you_mean(node.id, [*self.names, *bindings(self.file), *_PYTHON]),
        )

    def _constant(self, node: ast.Constant) -> Operand:
        return node.value

    def _attribute(self, node: ast.Attribute) -> Operand:
        owner = self.evaluate(node.value)
        if isinstance(owner, Constexpr):
            if node.attr == "value":
                return owner.value
            owner = owner.value
        if isinstance(owner, ScalarType | PointerType | TileType):
            return dtype_attribute(owner, node.attr)
        method = _METHODS.get((type(owner), node.attr))
        if method is not None:
            return StaticCall(node.attr, lambda *args: method(owner, *args))
        return self.globals.member(owner, node.attr)

    def _wrapped(self, values: Sequence[Operand], result: Operand) -> Operand:
        return Constexpr(result) if any(isinstance(one, Constexpr) for one in values) else result

    def _compute(self, symbol: str, function: Callable[..., Operand], *values: Operand) -> Operand:
        plain = [one.value if isinstance(one, Constexpr) else one for one in values]
        for one in plain:
            if isinstance(one, External):
                _not_known(one)
        lists = any(isinstance(one, list) for one in plain)
        if lists:
            plain = [tuple(cast("list[Operand]", one)) if isinstance(one, list) else one
                     for one in plain]
        result = compute(symbol, function, *plain)
        if lists and isinstance(result, tuple):
            result = list(cast("tuple[Operand, ...]", result))
        return self._wrapped(values, result)

    def _binary(self, node: ast.BinOp) -> Operand:
        op = BINARY.get(type(node.op))
        if op is None:
            fail(f"the operator {type(node.op).__name__} is not evaluated")
        return self._compute(
            op.symbol, op.compute, self.evaluate(node.left), self.evaluate(node.right)
        )

    def _unary(self, node: ast.UnaryOp) -> Operand:
        op = UNARY[type(node.op)]
        operand = self.evaluate(node.operand)
        if isinstance(node.op, ast.Not):
            return self._wrapped([operand], not truth_of(operand))
        return self._compute(op.symbol, op.compute, operand)

    def _boolean(self, node: ast.BoolOp) -> Operand:
        wanted = isinstance(node.op, ast.Or)
        value: Operand = None
        for part in node.values:
            value = self.evaluate(part)
            if truth_of(value) is wanted:
                break
        return value

    def _compare(self, node: ast.Compare) -> Operand:
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
                _not_known(part)
        if not isinstance(two, tuple | str | dict):
            fail(f"`in` looks into a tuple, a dictionary or a string, got {show(two)}")
        container = cast("tuple[Operand, ...]", two)
        return (one in container) is isinstance(op, ast.In)

    def _conditional(self, node: ast.IfExp) -> Operand:
        return self.evaluate(node.body if truth_of(self.evaluate(node.test)) else node.orelse)

    def _items(self, nodes: Sequence[ast.expr]) -> list[Operand]:
        items: list[Operand] = []
        for one in nodes:
            if isinstance(one, ast.Starred):
                items.extend(self._iterate(self.evaluate(one.value)))
            else:
                items.append(self.evaluate(one))
        return items

    def _tuple(self, node: ast.Tuple) -> Operand:
        return tuple(self._items(node.elts))

    def _list(self, node: ast.List) -> Operand:
        return self._items(node.elts)

    def _dict(self, node: ast.Dict) -> Operand:
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
            fail(f"a key must be a constant, got {show(key)}")
        return key  # pyright: ignore[reportUnknownVariableType]

    def _subscript(self, node: ast.Subscript) -> Operand:
        owner = self.evaluate(node.value)
        if isinstance(owner, Constexpr):
            owner = owner.value
        if isinstance(owner, External):
            _not_known(owner)
        if isinstance(node.slice, ast.Slice):
            parts = [
                None if one is None else unwrap(self.evaluate(one))
                for one in (node.slice.lower, node.slice.upper, node.slice.step)
            ]
            index: Operand = slice(*parts)
        else:
            index = unwrap(self.evaluate(node.slice))
        if not isinstance(owner, tuple | list | dict | str):
            fail(f"{show(owner)} has no items")
        try:
            return cast("dict[Operand, Operand]", owner)[index]
        except (KeyError, IndexError, TypeError) as error:
            fail(f"there is no item {show(index)}: {error}")

    def _lambda(self, node: ast.Lambda) -> Operand:
        return Closure(self, node)

    def _format(self, node: ast.JoinedStr) -> Operand:
        parts: list[str] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = unwrap(self.evaluate(part.value))
                if isinstance(value, External):
                    _not_known(value)
                parts.append(text_of(value))
            elif isinstance(part, ast.Constant):
                parts.append(str(part.value))
        return "".join(parts)

    def _comprehension(
        self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp
    ) -> Operand:
        return [self.evaluate(node.elt) for _ in self._generate(node.generators)]

    def _dict_comprehension(self, node: ast.DictComp) -> Operand:
        return {
            self._key(self.evaluate(node.key)): self.evaluate(node.value)
            for _ in self._generate(node.generators)
        }

    def _generate(self, generators: Sequence[ast.comprehension]) -> Iterator[None]:
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
            _not_known(value)
        if not isinstance(value, tuple | list | dict | str | range):
            fail(f"cannot iterate over {show(value)}")
        return list(cast("Sequence[Operand]", value))

    # -- calls -----------------------------------------------------------------

    def _call(self, node: ast.Call) -> Operand:
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
        if isinstance(function, Missing):
            fail(f"aotc does not have tl.{function.name} yet")
        fail(f"{show(function)} cannot be called here")

    def _call_static(
        self, function: StaticCall, args: Sequence[Operand], kwargs: Mapping[str, Operand]
    ) -> Operand:
        if function.name == "tl.constexpr":
            value = unwrap(args[0]) if args else unwrap(kwargs.get("value"))
            if isinstance(value, External):
                _not_known(value)
            return Constexpr(value)
        for one in args:
            if isinstance(one, External):
                _not_known(one)
        plain = [one.value if isinstance(one, Constexpr) else one for one in args]
        try:
            result = function.call(*plain, **kwargs)
        except (TypeError, ValueError, KeyError, IndexError, ArithmeticError) as error:
            fail(f"{function.name}(…) failed: {error}")
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
        parameters = [one.arg for one in closure.node.args.args]
        if len(parameters) != len(args):
            fail(f"the lambda takes {len(parameters)} arguments, got {len(args)}")
        outer = closure.evaluator
        names = {**outer.names, **dict(zip(parameters, args, strict=True))}
        return Evaluator(self.globals, outer.file, names).evaluate(closure.node.body)

    # -- statements ------------------------------------------------------------

    def assign(self, target: ast.expr, value: Operand) -> None:
        """Bind the names of an assignment's target."""
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            items = self._iterate(value)
            if len(items) != len(target.elts):
                fail(f"expected {len(target.elts)} values to unpack, got {len(items)}")
            for one, item in zip(target.elts, items, strict=True):
                self.assign(one, item)
        elif isinstance(target, ast.Subscript):
            owner = self.evaluate(target.value)
            if not isinstance(owner, dict | list):
                fail(f"cannot assign to an item of {show(owner)}")
            key = self._key(self.evaluate(target.slice))
            cast("dict[Operand, Operand]", owner)[key] = value
        else:
            fail(f"cannot assign to {type(target).__name__} here")

    def assigned(self, statement: ast.stmt, name: str) -> Operand:
        """Return what a module-level assignment gives to `name`."""
        self.run([statement])
        value = self.names[name]
        if isinstance(statement, ast.AnnAssign) and is_constexpr_annotation(statement.annotation):
            return value if isinstance(value, Constexpr) else Constexpr(unwrap(value))
        return value

    def run(self, body: Sequence[ast.stmt]) -> None:
        """Run the statements of a function."""
        for statement in body:
            self.globals.step()
            handler = _STATEMENTS.get(type(statement))
            with self._at(statement):
                if handler is None:
                    fail(f"the statement {type(statement).__name__} is not evaluated here")
                handler(self, statement)

    def _assign(self, node: ast.Assign) -> None:
        value = self.evaluate(node.value)
        for target in node.targets:
            self.assign(target, value)

    def _annotated(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value))

    def _augmented(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Name):
            fail("only a variable can be the target of this assignment here")
        left = self._name(node.target)
        op = BINARY.get(type(node.op))
        if op is None:
            fail(f"the operator {type(node.op).__name__} is not evaluated")
        self.names[node.target.id] = self._compute(
            op.symbol, op.compute, left, self.evaluate(node.value)
        )

    def _if(self, node: ast.If) -> None:
        self.run(node.body if truth_of(self.evaluate(node.test)) else node.orelse)

    def _for(self, node: ast.For) -> None:
        for item in self._iterate(self.evaluate(node.iter)):
            self.globals.step()
            self.assign(node.target, item)
            try:
                self.run(node.body)
            except _Continue:
                continue
            except _Break:
                return
        self.run(node.orelse)

    def _while(self, node: ast.While) -> None:
        while truth_of(self.evaluate(node.test)):
            try:
                self.run(node.body)
            except _Continue:
                continue
            except _Break:
                return

    def _return(self, node: ast.Return) -> None:
        raise _Return(None if node.value is None else self.evaluate(node.value))

    def _break(self, node: ast.Break) -> None:
        raise _Break

    def _continue(self, node: ast.Continue) -> None:
        raise _Continue

    def _expression(self, node: ast.Expr) -> None:
        self.evaluate(node.value)

    def _assert(self, node: ast.Assert) -> None:
        if not truth_of(self.evaluate(node.test)):
            fail("an assertion failed while evaluating a function of constants")

    def _raise(self, node: ast.Raise) -> None:
        detail = "" if node.exc is None else f": {ast.unparse(node.exc)}"
        fail(f"an error is raised while evaluating a function of constants{detail}")

    def _nothing(self, node: ast.stmt) -> None:
        pass


def call_function(
    module: Globals, function: Function, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    """Run a function of plain Python values. Raises: CompileError."""
    evaluator = Evaluator(module, function.file)
    names = evaluator.names
    parameters = function.node.args
    listed = [one.arg for one in (*parameters.posonlyargs, *parameters.args)]
    if len(args) > len(listed):
        fail(f"{function.qualname} takes {len(listed)} arguments, got {len(args)}")
    defaults = dict(zip(listed[::-1], parameters.defaults[::-1], strict=False))
    defaults |= {
        one.arg: default
        for one, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
        if default is not None
    }
    names.update(zip(listed, args, strict=False))
    names.update(kwargs)
    for name in (*listed, *(one.arg for one in parameters.kwonlyargs)):
        if name in names:
            continue
        if name not in defaults:
            fail(f"{function.qualname} is missing the argument {name!r}")
        names[name] = Evaluator(module, function.file).evaluate(defaults[name])
    module.depth += 1
    if module.depth > _MAX_CALLS:
        fail(f"{function.qualname} is called more than {_MAX_CALLS} deep")
    try:
        evaluator.run(function.node.body)
    except _Return as returned:
        return returned.value
    except (_Break, _Continue):
        fail(f"a break or continue outside a loop in {function.qualname}")
    finally:
        module.depth -= 1
    return None


# ---- dtypes -----------------------------------------------------------------------------------


def dtype_attribute(dtype: DType, name: str) -> Operand:
    """Return an attribute of a dtype, as a kernel asks for it. Raises: CompileError."""
    scalar = dtype.element if isinstance(dtype, TileType) else dtype
    table = _TYPE_ATTRIBUTES if isinstance(dtype, TileType) else {}
    pointer = _POINTER_ATTRIBUTES if isinstance(scalar, PointerType) else {}
    known = {**_DTYPE_ATTRIBUTES, **pointer, **table}
    if name in known:
        return known[name](dtype)
    if name.startswith("is_"):
        answer = _dtype_question(dtype, name.removeprefix("is_"))
        if answer is not None:
            return StaticCall(name, lambda: answer)
    fail(
        f"the type {show_type(dtype)} has no attribute {name!r}",
        remedy=did_you_mean(name, [*known, *(f"is_{one}" for one in _QUESTIONS)]),
    )


def _dtype_question(dtype: DType, name: str) -> bool | None:
    if name == "block":
        return isinstance(dtype, TileType)
    scalar = dtype.element if isinstance(dtype, TileType) else dtype
    if isinstance(scalar, PointerType):
        return name == "ptr" if name in _QUESTIONS or name == "const" else None
    if isinstance(dtype, TileType):
        # A tile's type is no scalar type, so Triton answers no to most; asking the element is
        # what every such question means.
        return _dtype_question(scalar, name)
    question = _QUESTIONS.get(name)
    return None if question is None else question(scalar)


_QUESTIONS: dict[str, Callable[[ScalarType], bool]] = {
    "ptr": lambda dtype: False,
    "const": lambda dtype: False,
    "block": lambda dtype: False,
    "floating": lambda dtype: dtype.is_float,
    "standard_floating": lambda dtype: dtype.is_float and dtype.bits > 8,  # noqa: PLR2004 - fp8
    "int": lambda dtype: dtype.is_int,
    "int_signed": lambda dtype: dtype.is_signed,
    "int_unsigned": lambda dtype: dtype.is_int and not dtype.is_signed,
    "bool": lambda dtype: dtype.is_bool,
    "fp8": lambda dtype: dtype.is_float and dtype.bits == 8,  # noqa: PLR2004 - fp8
    **{
        name: (lambda dtype, name=name: dtype.name == name)
        for name in ("fp8e4nv", "fp8e5", "fp16", "bf16", "fp32", "fp64")
    },
    **{
        f"{word}{bits}": (lambda dtype, name=f"{letter}{bits}": dtype.name == name)
        for word, letter in (("int", "i"), ("uint", "u"))
        for bits in (8, 16, 32, 64)
    },
    "int1": lambda dtype: dtype.is_bool,
    "fp8e4b15": lambda dtype: False,
    "fp8e4b8": lambda dtype: False,
    "fp8e5b16": lambda dtype: False,
}


def _scalar(dtype: DType) -> ScalarType | PointerType:
    return dtype.element if isinstance(dtype, TileType) else dtype


def _pointee(dtype: DType) -> Operand:
    scalar = _scalar(dtype)
    return scalar.pointee if isinstance(scalar, PointerType) else scalar


def _triton_name(dtype: DType) -> str:
    """Triton names a dtype `fp16` or `int32`, and prints it as `float16` or `int32`."""
    name = show_type(dtype)
    return dtype.name if isinstance(dtype, ScalarType) and dtype.is_float else name


_DTYPE_ATTRIBUTES: dict[str, Callable[[DType], Operand]] = {
    "scalar": _scalar,
    "dtype": _scalar,
    "primitive_bitwidth": lambda dtype: _scalar(dtype).bits,
    "int_bitwidth": lambda dtype: _scalar(dtype).bits,
    "itemsize": lambda dtype: _scalar(dtype).bits // 8,
    "fp_mantissa_width": lambda dtype: getattr(_scalar(dtype), "mantissa_bits", 0),
    "name": _triton_name,
    "value": lambda dtype: dtype,
    "type": lambda dtype: dtype,
}

_POINTER_ATTRIBUTES: dict[str, Callable[[DType], Operand]] = {"element_ty": _pointee}

_TYPE_ATTRIBUTES: dict[str, Callable[[DType], Operand]] = {
    "element_ty": _scalar,
    "shape": lambda dtype: dtype.shape if isinstance(dtype, TileType) else (),
    "numel": lambda dtype: dtype.num_elems if isinstance(dtype, TileType) else 1,
}


def text_of(value: Operand) -> str:
    """Return a constant as an f-string shows it."""
    if isinstance(value, ScalarType | PointerType | TileType):
        return _triton_name(value)
    return str(value)


def is_constexpr_annotation(node: ast.expr | None) -> bool:
    """Return whether an annotation says `tl.constexpr`, also as a string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.rpartition(".")[2] == "constexpr"
    if isinstance(node, ast.Subscript):
        return is_constexpr_annotation(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr == "constexpr"
    return isinstance(node, ast.Name) and node.id == "constexpr"


# ---- tables -----------------------------------------------------------------------------------


def _bounded_range(*args: int) -> range:
    made = range(*args)
    if len(made) > _MAX_ITEMS:
        fail(f"a range of {len(made)} items is too long")
    return made


def _isinstance(value: Operand, kinds: Operand) -> bool:
    """Answer for constants: which of Python's types a value has."""
    wanted = kinds if isinstance(kinds, tuple) else (kinds,)
    names = {one.name for one in wanted if isinstance(one, StaticCall)}
    return type(value).__name__ in names


def _has_attribute(owner: Operand, name: Operand) -> bool:
    if isinstance(owner, Module):
        found = MODULES[owner.name].get(str(name))
        return found is not None and not isinstance(found, Missing)
    if isinstance(owner, External):
        _not_known(owner)
    return False


_PYTHON: dict[str, Callable[..., Operand]] = {
    "abs": abs,
    "all": all,
    "any": any,
    "bool": bool,
    "dict": dict,
    "enumerate": lambda items: [(i, one) for i, one in enumerate(items)],
    "float": float,
    "getattr": lambda owner, name, default=None: default,
    "hasattr": _has_attribute,
    "int": int,
    "isinstance": _isinstance,
    "len": len,
    "list": lambda items=(): list(items),
    "max": max,
    "min": min,
    "range": _bounded_range,
    "reversed": lambda items: list(items)[::-1],
    "round": round,
    "set": lambda items=(): list(dict.fromkeys(items)),
    "sorted": sorted,
    "str": lambda value="": text_of(value),
    "sum": sum,
    "tuple": lambda items=(): tuple(items),
    "zip": lambda *items: [*zip(*items)],  # noqa: B905 - Python's own zip
    "print": lambda *args, **kwargs: None,
}

_METHODS: dict[tuple[type, str], Callable[..., Operand]] = {
    (dict, "get"): lambda owner, key, default=None: owner.get(key, default),
    (dict, "items"): lambda owner: list(owner.items()),
    (dict, "keys"): lambda owner: list(owner.keys()),
    (dict, "values"): lambda owner: list(owner.values()),
    (dict, "update"): lambda owner, other: owner.update(other),
    (dict, "copy"): lambda owner: dict(owner),
    (list, "append"): lambda owner, item: owner.append(item),
    (list, "extend"): lambda owner, items: owner.extend(items),
    (list, "copy"): lambda owner: list(owner),
    (str, "startswith"): lambda owner, prefix: owner.startswith(prefix),
    (str, "endswith"): lambda owner, suffix: owner.endswith(suffix),
    (str, "lower"): lambda owner: owner.lower(),
    (str, "upper"): lambda owner: owner.upper(),
    (str, "strip"): lambda owner: owner.strip(),
    (str, "split"): lambda owner, separator=None: owner.split(separator),
    (int, "bit_length"): lambda owner: owner.bit_length(),
}

_Handler = Callable[[Evaluator, ast.AST], Operand]

_EXPRESSIONS = cast(
    "dict[type[ast.AST], _Handler]",
    {
        ast.Constant: Evaluator._constant,
        ast.Name: Evaluator._name,
        ast.Attribute: Evaluator._attribute,
        ast.BinOp: Evaluator._binary,
        ast.UnaryOp: Evaluator._unary,
        ast.BoolOp: Evaluator._boolean,
        ast.Compare: Evaluator._compare,
        ast.IfExp: Evaluator._conditional,
        ast.Tuple: Evaluator._tuple,
        ast.List: Evaluator._list,
        ast.Set: Evaluator._list,
        ast.Dict: Evaluator._dict,
        ast.Subscript: Evaluator._subscript,
        ast.Lambda: Evaluator._lambda,
        ast.JoinedStr: Evaluator._format,
        ast.ListComp: Evaluator._comprehension,
        ast.GeneratorExp: Evaluator._comprehension,
        ast.SetComp: Evaluator._comprehension,
        ast.DictComp: Evaluator._dict_comprehension,
        ast.Call: Evaluator._call,
    },
)

_STATEMENTS = cast(
    "dict[type[ast.AST], _Handler]",
    {
        ast.Assign: Evaluator._assign,
        ast.AnnAssign: Evaluator._annotated,
        ast.AugAssign: Evaluator._augmented,
        ast.If: Evaluator._if,
        ast.For: Evaluator._for,
        ast.While: Evaluator._while,
        ast.Return: Evaluator._return,
        ast.Break: Evaluator._break,
        ast.Continue: Evaluator._continue,
        ast.Expr: Evaluator._expression,
        ast.Assert: Evaluator._assert,
        ast.Raise: Evaluator._raise,
        ast.Pass: Evaluator._nothing,
        ast.Import: Evaluator._nothing,
        ast.ImportFrom: Evaluator._nothing,
    },
)

__all__ = [
    "Evaluator",
    "Globals",
    "Loc",
    "call_function",
    "describe_function",
    "dtype_attribute",
    "is_constexpr_annotation",
    "text_of",
    "truth_of",
    "unwrap",
]
