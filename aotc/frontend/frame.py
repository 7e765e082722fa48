"""One call of a function that is being translated: its variables, its place in the source.

Calls are always inlined, so a `Frame` is made for each and its ops go where the caller's go.
`expressions.py` and `statements.py` hold one handler for each kind of syntax; a frame dispatches
to them and keeps the compiler's current location in step, so what a handler builds or refuses
is reported at the right place, with the calls that led there.

Invariant: `values` maps every variable that has been assigned on the current path; one that has
lost its value (a branch that was not taken, a loop that ended) maps to an `Unbound`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.globals import Globals
from aotc.frontend.unsupported import unsupported
from aotc.frontend.values import Function, Operand
from aotc.ir.diagnostics import Loc, at

_MAX_CALL_DEPTH = 40
_MAX_STATEMENTS = 200_000
_TOO_DEEP = "this is nested too deeply to be translated"
_TOO_DEEP_REMEDY = "assign parts of it to variables, or move them to functions"


@dataclass(frozen=True)
class Returned:
    """Say that a path through a function has ended, and with what."""

    value: Operand


@dataclass(frozen=True, eq=False)
class Bind:
    """Assign a value in the middle of a list of statements: one turn of an unrolled loop."""

    target: ast.expr
    value: Operand
    loop: ast.For


Item: TypeAlias = "ast.stmt | Bind"
Flow: TypeAlias = "Returned | None"
ExpressionHandler: TypeAlias = "Callable[[Frame, ast.expr], Operand]"
StatementHandler: TypeAlias = "Callable[[Frame, ast.stmt, Sequence[Item]], Flow]"


class Program:
    """Hold what all frames of one translation share."""

    def __init__(
        self,
        module: Globals,
        expressions: Mapping[type[ast.AST], ExpressionHandler],
        statements: Mapping[type[object], StatementHandler],
    ) -> None:
        self.globals = module
        self.expressions = expressions
        self.statements = statements
        self.stack: list[Function] = []
        self.num_statements = 0
        self.emit: Emitter

    def enter(self, function: Function) -> None:
        """Note a call. Raises: CompileError if calls are nested too deep.

        A function may call itself: constants and shapes, which are known here, can end that.
        """
        if len(self.stack) >= _MAX_CALL_DEPTH:
            self._refuse_depth(function)
        self.stack.append(function)

    def _refuse_depth(self, function: Function) -> NoReturn:
        nodes = [one.node for one in self.stack]
        if function.node not in nodes:
            raise mistake(f"calls are nested more than {_MAX_CALL_DEPTH} deep")
        first = nodes.index(function.node)
        until = nodes.index(function.node, first + 1) if nodes.count(function.node) > 1 else None
        chain = [one.qualname for one in self.stack[:until]]
        raise mistake(
            f"{function.qualname} calls itself: {' → '.join([*chain, function.qualname])}, "
            f"more than {_MAX_CALL_DEPTH} calls deep",
            remedy="only what is constant, such as a shape, can end a recursion; use a loop",
        )

    def count(self) -> None:
        """Count a statement. Raises: CompileError if unrolling has got out of hand."""
        self.num_statements += 1
        if self.num_statements > _MAX_STATEMENTS:
            raise mistake(
                f"the kernel unrolls to more than {_MAX_STATEMENTS} statements",
                remedy="use `range` where `tl.static_range` repeats a long body",
            )


class Frame:
    """Translate one call of `function`; `values` are its arguments by name."""

    def __init__(
        self,
        program: Program,
        function: Function,
        values: dict[str, Operand],
        call_site: Loc | None,
    ) -> None:
        self.program = program
        self.emit = program.emit
        self.function = function
        self.file = function.file
        self.values = values
        self.call_site = call_site
        self.constexprs: dict[str, ast.AST] = {}
        """The statement that declared each local constexpr."""
        self.declared: dict[str, None] = {}
        """Variables announced by a bare `x: tl.constexpr` and not assigned yet."""
        self.loop_depth = 0

    def loc(self, node: ast.AST) -> Loc:
        """Return where `node` is, with the calls that led here."""
        return self.file.loc(node, self.call_site)

    def visit(self, node: ast.expr) -> Operand:
        """Return what an expression is. Raises: CompileError at the part that is wrong."""
        handler = self.program.expressions.get(type(node))
        if handler is None:
            raise unsupported(node, self.loc(node))
        if isinstance(node, ast.Name | ast.Constant):
            return handler(self, node)
        with at(self.loc(node)):
            return handler(self, node)

    def run(self, items: Sequence[Item]) -> Flow:
        """Translate statements; return how the path ends, or None if it goes on after them."""
        for position, item in enumerate(items):
            self.program.count()
            node = item.loop if isinstance(item, Bind) else item
            handler = self.program.statements.get(type(item))
            with at(self.loc(node)):
                if handler is None:
                    raise unsupported(node, self.loc(node))
                try:
                    flow = handler(self, item, items[position + 1 :])  # pyright: ignore[reportArgumentType]
                except RecursionError:
                    raise mistake(_TOO_DEEP, remedy=_TOO_DEEP_REMEDY) from None
            if flow is not None:
                return flow
        return None
