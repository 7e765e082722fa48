"""The evaluator: one scope of Python code, its variables and its place in the source.

There is one evaluator for the kernel and for the code around it, whose globals, defaults and
configurations are computed on the host. Values are known now, and Python computes with them, or
at run time (a `Value`), and an op is emitted. Around kernels no op can be, so there is no other.
Which syntax a scope may use is its `Syntax`: a table of handlers, one for each kind of node.
The code around kernels has more of Python, and its loops run, where a kernel's are translated.

Calls are always inlined, so a `Frame` is made for each and its ops go where the caller's go. A
frame keeps the compiler's current location in step, so what a handler builds or refuses is
reported at the right place, with the calls that led there.

Invariants: `values` maps every variable that has been assigned on the current path; one that has
lost its value (a branch that was not taken, a loop that ended) maps to an `Unbound`. Evaluation
ends: statements, iterations and the depth of calls are bounded.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn, TypeAlias

from aotc.frontend.emitter import Emitter, HostEmitter, mistake
from aotc.frontend.language.constants import items_of
from aotc.frontend.python.globals import Globals
from aotc.frontend.python.unsupported import unsupported
from aotc.frontend.source import SourceFile
from aotc.frontend.values import Function, Operand
from aotc.ir.diagnostics import Loc, at, current_loc

_MAX_CALL_DEPTH = 40
_MAX_STEPS = 200_000
_TOO_DEEP = "this is nested too deeply to be translated"
_TOO_DEEP_REMEDY = "assign parts of it to variables, or move them to functions"


@dataclass(frozen=True)
class Captures:
    """Values of variables of the functions around the function `of` in `file`."""

    file: SourceFile
    of: tuple[str, ...]
    values: Mapping[str, Operand]

    def hold_in(self, file: SourceFile, outer: Sequence[str]) -> bool:
        """Return whether an outer function is around the one whose captures these are."""
        return file is self.file and self.of[: len(outer)] == (*outer,)


@dataclass(frozen=True)
class Returned:
    """Say that a path through a function has ended, and with what."""

    value: Operand


class LoopExit(Enum):
    """Say that an iteration of a loop around kernels has ended early."""

    BREAK = "break"
    CONTINUE = "continue"


@dataclass(frozen=True, eq=False)
class Bind:
    """Assign a value in the middle of a list of statements: one iteration of an unrolled loop."""

    target: ast.expr
    value: Operand
    loop: ast.For


Item: TypeAlias = "ast.stmt | Bind"
Flow: TypeAlias = "Returned | LoopExit | None"
ExpressionHandler: TypeAlias = "Callable[[Frame, ast.expr], Operand]"
StatementHandler: TypeAlias = "Callable[[Frame, ast.stmt, Sequence[Item]], Flow]"


@dataclass(frozen=True)
class Syntax:
    """Hold the handler of each kind of syntax that a scope may use."""

    expressions: Mapping[type[ast.AST], ExpressionHandler]
    statements: Mapping[type[object], StatementHandler]


class Steps:
    """Count statements and iterations, and refuse too many."""

    def __init__(self, message: str, remedy: str = "") -> None:
        self._left = _MAX_STEPS
        self._message = message
        self._remedy = remedy

    def count(self) -> None:
        """Count one. Raises: CompileError if there are too many."""
        self._left -= 1
        if self._left < 0:
            raise mistake(self._message, remedy=self._remedy)


class Program:
    """Hold what all frames of one translation share."""

    def __init__(
        self, kernel: Syntax, host: Syntax, target: str, facts: Mapping[str, object]
    ) -> None:
        self.globals = Globals(self.host_frame, target, facts)
        self.kernel_syntax = kernel
        self.host_syntax = host
        self.stack: list[Function] = []
        self.captures: Captures | None = None
        """Values that the functions around the kernel give to their variables."""
        self.emit: Emitter = HostEmitter()
        self.host_emit = self.emit
        self.host_steps = Steps("evaluating the globals of the kernel's file takes too long")
        self.kernel_steps = Steps(
            f"the kernel unrolls to more than {_MAX_STEPS} statements",
            "use `range` where `tl.static_range` repeats a long body",
        )

    def host_frame(self, file: SourceFile, values: Mapping[str, Operand] | None = None) -> Frame:
        """Return a frame for code around the kernels of a file, with these local variables."""
        loc = current_loc()
        site = loc.call_site if loc.file == file.path else loc
        call_site = site if site is not None and site.line else None
        return Frame(self, file, dict(values or {}), call_site, in_kernel=False)

    def remark_unset(self, name: Operand) -> None:
        """Say that a variable of the environment counts as unset."""
        self.emit.remark(f"os.environ[{name!r}] is read as unset; a build sees no environment")

    @contextmanager
    def calling(self, function: Function) -> Generator[None]:
        """Note a call. Raises: CompileError if calls are nested too deep.

        A function may call itself: constants and shapes, which are known here, can end that.
        """
        if len(self.stack) >= _MAX_CALL_DEPTH:
            self._refuse_depth(function)
        self.stack.append(function)
        try:
            yield
        finally:
            self.stack.pop()

    def _refuse_depth(self, function: Function) -> NoReturn:
        nodes = [function_on_stack.node for function_on_stack in self.stack]
        if function.node not in nodes:
            raise mistake(f"calls are nested more than {_MAX_CALL_DEPTH} deep")
        first = nodes.index(function.node)
        until = nodes.index(function.node, first + 1) if nodes.count(function.node) > 1 else None
        chain = [function_on_stack.qualname for function_on_stack in self.stack[:until]]
        raise mistake(
            f"{function.qualname} calls itself: {' → '.join([*chain, function.qualname])}, "
            f"more than {_MAX_CALL_DEPTH} calls deep",
            remedy="only what is constant, such as a shape, can end a recursion; use a loop",
        )


class Frame:
    """Evaluate code of `file`; `values` are its local variables by name.

    `function` is the function whose call this is, or None for the statements of a module.
    """

    def __init__(
        self,
        program: Program,
        file: SourceFile,
        values: dict[str, Operand],
        call_site: Loc | None,
        *,
        in_kernel: bool,
        function: Function | None = None,
    ) -> None:
        syntax = program.kernel_syntax if in_kernel else program.host_syntax
        self.program = program
        self.in_kernel = in_kernel
        self.emit = program.emit if in_kernel else program.host_emit
        self.count = (program.kernel_steps if in_kernel else program.host_steps).count
        self.function = function
        self.file = file
        self.values = values
        self.call_site = call_site
        self._expressions = syntax.expressions
        self._statements = syntax.statements
        self.constexprs: dict[str, ast.AST] = {}
        """The statement that declared each local constexpr."""
        self.declared: dict[str, None] = {}
        """Variables announced by a bare `x: tl.constexpr` and not assigned yet."""
        self.loop_depth = 0
        self.yielded: list[Operand] | None = None
        """What a generator around kernels has yielded so far; its caller gets it as a list."""

    @property
    def name(self) -> str:
        """What messages call this code."""
        return self.file.path if self.function is None else self.function.qualname

    def loc(self, node: ast.AST) -> Loc:
        """Return where `node` is, with the calls that led here."""
        function = "" if self.function is None else self.function.qualname
        return self.file.loc(node, self.call_site, function)

    def visit(self, node: ast.expr) -> Operand:
        """Return what an expression is. Raises: CompileError at the part that is wrong."""
        handler = self._expressions.get(type(node))
        if handler is None:
            raise unsupported(node, self.loc(node))
        if isinstance(node, ast.Name | ast.Constant):
            return handler(self, node)
        with at(self.loc(node)):
            return handler(self, node)

    def visit_items(self, nodes: Sequence[ast.expr]) -> list[Operand]:
        """Return what several expressions are; `*` unpacks one. Raises: CompileError."""
        items: list[Operand] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items += items_of(self.visit(node.value), "`*` unpacks a tuple")
            else:
                items.append(self.visit(node))
        return items

    def run(self, items: Sequence[Item]) -> Flow:
        """Run statements; return how the path ends, or None if it goes on after them."""
        for position, item in enumerate(items):
            self.count()
            node = item.loop if isinstance(item, Bind) else item
            handler = self._statements.get(type(item))
            # Only these ask for what follows, and there may be 100,000 statements.
            rest = items[position + 1 :] if isinstance(item, ast.If | ast.For) else ()
            with at(self.loc(node)):
                if handler is None:
                    raise unsupported(node, self.loc(node))
                try:
                    flow = handler(self, item, rest)  # pyright: ignore[reportArgumentType]
                except RecursionError:
                    raise mistake(_TOO_DEEP, remedy=_TOO_DEEP_REMEDY) from None
            if flow is not None:
                return flow
        return None

    def assigned(self, statement: ast.stmt, name: str) -> Operand:
        """Return what an assignment gives to `name`. Raises: CompileError."""
        self.run([statement])
        return self.values[name]
