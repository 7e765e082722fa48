"""The kernel being described: its source, its launches, and lines of the manifest."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from aotc.frontend import heuristic_problems, launch_heuristics
from aotc.frontend.python.resolve import decorator_call
from aotc.frontend.source import SourceFile
from aotc.frontend.survey.support import Survey
from aotc.ir.diagnostics import CompileError
from aotc.package.init.launches import Host, Launch
from aotc.package.init.nodes import defaults, parameters
from aotc.package.init.use import Uses
from aotc.package.manifest.parameters import Function


@dataclass(frozen=True, slots=True)
class Line:
    """A manifest value as TOML, with a note.

    `is_todo`: the value is a guess, and the note tells the user how to find the right one.
    `is_given`: the source states the value, and no alternative is tried.
    """

    value: str
    note: str = ""
    is_todo: bool = False
    is_given: bool = False

    @property
    def comment(self) -> str:
        """The line's comment."""
        if not self.note:
            return ""
        return f"  # TODO: {self.note}" if self.is_todo else f"  # {self.note}"


def todo(value: str, note: str) -> Line:
    """Return a line with a guessed value, marked TODO."""
    return Line(value, note, is_todo=True)


@dataclass
class Subject:
    """A kernel, with the facts its file gives."""

    survey: Survey
    file: SourceFile
    node: ast.FunctionDef
    function: Function
    uses: Uses
    launches: list[Launch]
    captures: Mapping[str, Line | None] = field(default_factory=dict[str, "Line | None"])
    """Variables captured from enclosing functions, with the value callers pass."""

    @cached_property
    def annotations(self) -> Mapping[str, str]:
        """The text of each parameter's annotation, without quotes."""
        texts: dict[str, str] = {}
        for parameter in parameters(self.node):
            note = parameter.annotation
            if isinstance(note, ast.Constant) and isinstance(note.value, str):
                texts[parameter.arg] = note.value
            elif note is not None:
                texts[parameter.arg] = ast.unparse(note)
        return texts

    @cached_property
    def defaults(self) -> Mapping[str, ast.expr]:
        """The defaults of parameters."""
        return defaults(self.node)

    @cached_property
    def computed(self) -> frozenset[str]:
        """The parameters computed by heuristics, at build or launch."""
        path, name, target = self.file.path, self.node.name, self.survey.target
        arguments = [parameter.name for parameter in self.function.arguments]
        constants = [parameter.name for parameter in self.function.constexprs]
        try:
            problems = heuristic_problems(path, name, target=target)
            launched = launch_heuristics(path, name, arguments, constants, target=target)
        except CompileError:
            return frozenset()
        return frozenset(name for name, why in problems.items() if not why) | frozenset(launched)

    @cached_property
    def module(self) -> Host:
        """The module around the kernel."""
        return Host(self.survey, self.file, None)

    @cached_property
    def unspecialized(self) -> frozenset[str]:
        """The parameters in Triton's `do_not_specialize` lists."""
        call = decorator_call(self.node, "jit")
        listed = [
            item.value
            for keyword in (call.keywords if call is not None else ())
            if keyword.arg is not None and keyword.arg.startswith("do_not_specialize")
            if isinstance(keyword.value, ast.List | ast.Tuple)
            for item in keyword.value.elts
            if isinstance(item, ast.Constant)
        ]
        names = [parameter.arg for parameter in parameters(self.node)]
        return frozenset(
            names[reference] if isinstance(reference, int) else str(reference)
            for reference in listed
        )

    def given(self, name: str) -> list[tuple[Host, ast.expr]]:
        """Return the expressions launches pass for a parameter, where visible."""
        return [
            (launch.host, launch.arguments[name])
            for launch in self.launches
            if name in launch.arguments
        ]

    def is_passed(self, name: str) -> bool:
        """Return whether any launch passes a parameter, or may pass it by `*args`."""
        return any(name in launch.arguments or not launch.is_whole for launch in self.launches)

    def default(self, name: str) -> object:
        """Return the value of a default. Raises: LookupError if there is none, or unknown."""
        if name not in self.defaults:
            raise LookupError
        return self.module.literal(self.defaults[name])
