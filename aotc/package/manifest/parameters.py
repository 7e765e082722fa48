"""Read the functions of a kernel source and their parameters, as far as a manifest needs them.

The manifest is checked before any kernel is compiled, so a misspelt argument is reported in
milliseconds and at the manifest's line. This only needs the names of the parameters and their
`tl.constexpr` annotations. The file is parsed with `ast`, never executed, and nothing in it is
resolved. The frontend reads the file again, in full, when a kernel is compiled.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from aotc.ir.diagnostics import CompileError, Loc
from aotc.python_source import parse_python


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter; one with a default may be left out of the manifest.

    A constexpr possibly computed by `@triton.heuristics` has a default.
    """

    name: str
    is_constexpr: bool
    has_default: bool
    may_be_computed: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the source and its parameters, in order.

    `outer` are the variables of the functions around it. A kernel has `@triton.jit`, and returns
    nothing.
    """

    name: str
    parameters: tuple[Parameter, ...]
    loc: Loc
    outer: tuple[str, ...] = ()
    is_kernel: bool = False

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        """Parameters passed at launch."""
        return tuple(p for p in self.parameters if not p.is_constexpr)

    @property
    def constexprs(self) -> tuple[Parameter, ...]:
        """Parameters fixed at compile time."""
        return tuple(p for p in self.parameters if p.is_constexpr)


def parse_functions(source: str, file: str) -> dict[str, Function]:
    """Parse the functions defined at module level, also under `if` and `try`.

    Kernels in functions and classes have dotted names, such as `make.kernel`. The last definition
    of a name counts, as in Python.

    Raises:
        CompileError: the text is not Python, or is nested too deeply to be parsed.
    """
    before, nul, _ = source.partition("\0")
    if nul:  # Python versions raise different exceptions for it, without a location
        line, col = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1)
        message = "expected Python source, got a NUL character"
        raise CompileError(message, Loc(file, line, col, col + 1))
    try:
        tree = parse_python(source, file)
    except SyntaxError as error:
        col = max(0, (error.offset or 1) - 1)
        loc = Loc(file, error.lineno or 1, col, col + 1)
        raise CompileError(f"expected Python source: {error.msg}", loc) from None
    except (RecursionError, MemoryError):
        # The parser does not report the position.
        message = f"expected Python source, {file} is nested too deeply to be parsed"
        raise CompileError(message, remedy="assign parts of expressions to variables") from None
    rebound = {
        target.id
        for node in _statements(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    definitions = _definitions(tree.body)
    functions = {node.name: _function(node, file, node.name in rebound) for node in definitions}
    for name, node in _aliases(tree.body):
        functions.setdefault(name, replace(_function(node, file, is_rebound=False), name=name))
    for name, node, around in _inner_kernels(tree.body, "", ()):
        function = _function(node, file, is_rebound=False)
        outer = tuple(variable for one in around for variable in _variables(one))
        functions.setdefault(name, replace(function, name=name, outer=outer))
    return functions


def _aliases(body: list[ast.stmt]) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield what `kernel = function` or `kernel = jit(function)` names, and the function at that point."""
    known: dict[str, ast.FunctionDef] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            known[node.name] = node
        elif isinstance(node, ast.Assign):
            value = node.value
            while isinstance(value, ast.Call) and value.args:
                value = value.args[0]
            function = known.get(value.id) if isinstance(value, ast.Name) else None
            for target in node.targets if function is not None else ():
                if isinstance(target, ast.Name) and function is not None:
                    yield target.id, function


def _inner_kernels(
    body: list[ast.stmt], prefix: str, around: tuple[ast.FunctionDef, ...]
) -> Iterator[tuple[str, ast.FunctionDef, tuple[ast.FunctionDef, ...]]]:
    """Yield the kernels in functions and classes, with their dotted names and those functions."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            name = f"{prefix}{node.name}"
            if prefix and isinstance(node, ast.FunctionDef) and _is_jit(node):
                yield name, node, around
            inner = (*around, node) if isinstance(node, ast.FunctionDef) else around
            yield from _inner_kernels(node.body, f"{name}.", inner)
        else:
            for block in ("body", "orelse", "finalbody"):
                children: list[ast.stmt] = getattr(node, block, [])
                yield from _inner_kernels(children, prefix, around)


def _variables(node: ast.FunctionDef) -> list[str]:
    """Return the parameters and variables of a function, in order."""
    args = node.args
    names = [one.arg for one in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    left: list[ast.AST] = [*reversed(node.body)]
    while left:
        one = left.pop()
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            names.append(one.id)
        if not isinstance(one, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            left += reversed([*ast.iter_child_nodes(one)])
    return list(dict.fromkeys(names))


def _is_jit(node: ast.FunctionDef) -> bool:
    """Return whether a decorator of a function is Triton's, by its name."""
    calls = (
        decorator.func if isinstance(decorator, ast.Call) else decorator
        for decorator in node.decorator_list
    )
    names = (
        decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")
        for decorator in calls
    )
    return any(name == "jit" for name in names)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements of a file, without their expressions."""
    worklist: list[ast.AST] = [tree]
    while worklist:
        node = worklist.pop()
        yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            children: list[ast.AST] | ast.expr = getattr(node, block, [])
            worklist += children if isinstance(children, list) else []


def _definitions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, (ast.If, ast.Try)):
            blocks = [node.body, node.orelse]
            if isinstance(node, ast.Try):
                blocks += [*(handler.body for handler in node.handlers), node.finalbody]
            for block in blocks:
                yield from _definitions(block)


def _function(node: ast.FunctionDef, file: str, is_rebound: bool) -> Function:  # noqa: FBT001
    args = node.args
    start = node.col_offset + len("def ")
    loc = Loc(file, node.lineno, start, start + len(node.name))
    positional = [*args.posonlyargs, *args.args]
    num_required = len(positional) - len(args.defaults)
    has_default = {arg.arg: index >= num_required for index, arg in enumerate(positional)}
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        has_default[arg.arg] = default is not None
    computed = None if is_rebound else _heuristics(node)
    parameters: list[Parameter] = []
    for arg in (*positional, *args.kwonlyargs):
        is_constexpr = _is_constexpr(arg.annotation)
        is_computed = is_constexpr and (computed is None or arg.arg in computed)
        has_value = has_default[arg.arg] or is_computed
        parameters.append(Parameter(arg.arg, is_constexpr, has_value, is_computed))
    is_kernel = _is_jit(node) and not _returns(node)
    return Function(node.name, tuple(parameters), loc, is_kernel=is_kernel)


def _returns(node: ast.FunctionDef) -> bool:
    """Return whether a function returns a value."""
    return any(
        isinstance(statement, ast.Return) and statement.value is not None
        for statement in _statements(node)
    )


def _heuristics(node: ast.FunctionDef) -> set[str] | None:
    """Return the parameters computed by `@triton.heuristics`.

    None if the text does not show them: values that are not literals, or an unknown decorator.
    """
    names: set[str] = set()
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name in ("jit", "autotune"):
            continue
        if name != "heuristics" or not isinstance(decorator, ast.Call):
            return None
        values = [*decorator.args, *(keyword.value for keyword in decorator.keywords)]
        for value in values:
            if not isinstance(value, ast.Dict):
                return None  # a name: the frontend resolves it and reports unresolved ones
            keys = [key.value for key in value.keys if isinstance(key, ast.Constant)]
            if len(keys) < len(value.keys):
                return None
            names |= {key for key in keys if isinstance(key, str)}
    return names


def _is_constexpr(annotation: ast.expr | None) -> bool:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value.strip().split(".")[-1] == "constexpr"
    if isinstance(annotation, ast.Attribute):
        return annotation.attr == "constexpr"
    return isinstance(annotation, ast.Name) and annotation.id == "constexpr"
