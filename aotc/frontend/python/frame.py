"""Evaluate one scope of Python code: the frame of a kernel or host function.

One evaluator serves the kernel and the host code around it (globals, defaults, configs).
A constant is computed by Python; a run-time operand is a `Value`, and computing with it emits an
op. Host code has constants only. The `Syntax` of a scope is a table of handlers, one per node
kind. Host code supports more of Python, and its loops run, while a kernel's are translated.

Calls are always inlined: each gets its own `Frame`, emitting into the caller's block. A frame
keeps the compiler's current location up to date, so ops and errors carry the right location and
call chain.

Invariants: `values` maps every variable assigned on the current path. A variable without a value
(set in an untaken branch or a finished loop) maps to an `Unbound`. Evaluation terminates:
statements, iterations and call depth are bounded.
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
    """Captured outer variables of the function at the dotted `path` in `file`."""

    file: SourceFile
    path: tuple[str, ...]
    values: Mapping[str, Operand]

    def hold_in(self, file: SourceFile, outer: Sequence[str]) -> bool:
        """Return whether the captures belong to code nested in the function `outer`."""
        return file is self.file and self.path[: len(outer)] == (*outer,)


@dataclass(frozen=True)
class Returned:
    """End of a path through a function, with the returned value."""

    value: Operand


class LoopExit(Enum):
    """Early end of an iteration of a host loop."""

    BREAK = "break"
    CONTINUE = "continue"


@dataclass(frozen=True, eq=False)
class Bind:
    """Pseudo-statement binding a loop variable: starts an iteration of an unrolled loop."""

    target: ast.expr
    value: Operand
    loop: ast.For


Item: TypeAlias = "ast.stmt | Bind"
Flow: TypeAlias = "Returned | LoopExit | None"
ExpressionHandler: TypeAlias = "Callable[[Frame, ast.expr], Operand]"
StatementHandler: TypeAlias = "Callable[[Frame, ast.stmt, Sequence[Item]], Flow]"


@dataclass(frozen=True)
class Syntax:
    """Handlers of the syntax allowed in a scope, by node type."""

    expressions: Mapping[type[ast.AST], ExpressionHandler]
    statements: Mapping[type[object], StatementHandler]


class Steps:
    """Bounded counter of statements and iterations."""

    def __init__(self, message: str, remedy: str = "") -> None:
        self._left = _MAX_STEPS
        self._message = message
        self._remedy = remedy

    def count(self) -> None:
        """Count one step. Raises: CompileError past the limit."""
        self._left -= 1
        if self._left < 0:
            raise mistake(self._message, remedy=self._remedy)


class Program:
    """State shared by all frames of one translation."""

    def __init__(
        self, kernel: Syntax, host: Syntax, target: str, facts: Mapping[str, object]
    ) -> None:
        self.globals = Globals(self.host_frame, target, facts)
        self.kernel_syntax = kernel
        self.host_syntax = host
        self.stack: list[Function] = []
        self.captures: Captures | None = None
        """Captured outer variables of the kernel."""
        self.emit: Emitter = HostEmitter()
        self.host_emit = self.emit
        self.host_steps = Steps("evaluating the globals of the kernel's file takes too long")
        self.kernel_steps = Steps(
            f"the kernel unrolls to more than {_MAX_STEPS} statements",
            "use `range` where `tl.static_range` repeats a long body",
        )

    def host_frame(self, file: SourceFile, values: Mapping[str, Operand] | None = None) -> Frame:
        """Return a frame for host code of a file, with local variables `values`."""
        loc = current_loc()
        site = loc.call_site if loc.file == file.path else loc
        call_site = site if site is not None and site.line else None
        return Frame(self, file, dict(values or {}), call_site, in_kernel=False)

    def remark_unset(self, name: Operand) -> None:
        """Remark on an environment variable read as unset."""
        self.emit.remark(f"os.environ[{name!r}] is read as unset; a build sees no environment")

    @contextmanager
    def calling(self, function: Function) -> Generator[None]:
        """Push a call on the stack. Raises: CompileError if calls nest too deep.

        A function may recurse: constants and shapes can end the recursion.
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
    """Evaluator of code in `file`; `values` are its local variables by name.

    `function` is the called function, or None at module level.
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
        """The declaring statement of each local constexpr."""
        self.declared: dict[str, None] = {}
        """Variables announced by a bare `x: tl.constexpr` and not assigned yet."""
        self.loop_depth = 0
        self.yielded: list[Operand] | None = None
        """Values yielded so far by a host generator; its caller gets them as a list."""

    @property
    def name(self) -> str:
        """The function or file name, for messages."""
        return self.file.path if self.function is None else self.function.qualname

    def loc(self, node: ast.AST) -> Loc:
        """Return the location of `node`, with its call chain."""
        function = "" if self.function is None else self.function.qualname
        return self.file.loc(node, self.call_site, function)

    def visit(self, node: ast.expr) -> Operand:
        """Evaluate an expression. Raises: CompileError at the faulty part."""
        handler = self._expressions.get(type(node))
        if handler is None:
            raise unsupported(node, self.loc(node))
        if isinstance(node, ast.Name | ast.Constant):
            return handler(self, node)
        with at(self.loc(node)):
            return handler(self, node)

    def visit_items(self, nodes: Sequence[ast.expr]) -> list[Operand]:
        """Evaluate several expressions; `*` unpacks one. Raises: CompileError."""
        items: list[Operand] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items += items_of(self.visit(node.value), "`*` unpacks a tuple")
            else:
                items.append(self.visit(node))
        return items

    def run(self, items: Sequence[Item]) -> Flow:
        """Run statements; return the end of the path, or None if it continues."""
        for position, item in enumerate(items):
            self.count()
            node = item.loop if isinstance(item, Bind) else item
            handler = self._statements.get(type(item))
            # Only `if` and `for` use the rest; slicing for every one of 100,000 statements is slow.
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
        """Run an assignment and return the value of `name`. Raises: CompileError."""
        self.run([statement])
        return self.values[name]
