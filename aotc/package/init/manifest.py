"""Write a manifest for the kernels of sources, from what the sources say.

Each kernel's table is read back by the manifest's own reader before it is written. One that the
reader refuses is written as a comment, with what it says, so that the rest can be used.

Invariant: what is written can be read, and a value that the source does not tell has a TODO.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aotc.frontend import autotune_configs
from aotc.frontend.globals import describe_function
from aotc.frontend.resolve import dotted_name, function_names
from aotc.frontend.support import Survey
from aotc.ir import expression
from aotc.ir.diagnostics import CompileError, DiagnosticError, printable
from aotc.ir.expression import ExpressionError
from aotc.package.check import CheckedKernel, check
from aotc.package.init.arguments import Signature, signature_of
from aotc.package.init.constants import Constants, constants_of, default_line
from aotc.package.init.grid import grid_of
from aotc.package.init.launches import launches_of
from aotc.package.init.subject import Line, Subject
from aotc.package.init.uses import parameter_names, uses_of
from aotc.package.manifest import parse, read_function
from aotc.package.toml_text import toml

_HEAD = """\
# Written from the sources: check what is said here against what launches pass.
# - Pointers that share a type variable have the same dtype at a launch; keep the dtypes you need.
# - ":16?" builds a variant for multiples of 16 and one for the rest; ":16" promises it.
# - A stride that is always 1 is "i32=1": without that, rows are not known to be dense.
"""
_INDENT = re.compile(r"^(?=.)", re.MULTILINE)


@dataclass
class Written:
    """A manifest's text, and what it leaves to the reader."""

    text: str
    num_kernels: int = 0
    num_todos: int = 0
    refused: list[str] = field(default_factory=list[str])


def write_manifest(paths: Sequence[str], output: str, targets: Sequence[str]) -> Written:
    """Return a manifest at `output` for all kernels of files and folders.

    Raises: CompileError if a path is not there, or a file is not Python.
    """
    checked = check(paths, targets[0], 1)
    if checked.unread:
        raise CompileError(checked.unread[0].removeprefix("error: "))
    if not checked.kernels:
        raise CompileError(
            f"expected kernels in {', '.join(paths)}, got none",
            remedy="a kernel is a function with @triton.jit that no other one calls",
        )
    folder = os.path.dirname(output) or "."  # noqa: PTH120 - paths stay as they were given
    survey = Survey(targets[0])
    head = _package(paths, targets)
    names: set[str] = set()
    written = Written(f"{_HEAD}\n{head}")
    for kernel in checked.kernels:
        table = _table(survey, kernel, folder, names)
        text, problem = _readable(head, table, output)
        written.text += f"\n{text}"
        written.num_kernels += not problem
        written.refused += [f"{kernel.name} ({kernel.file}:{kernel.line}): {problem}"] * bool(
            problem
        )
    written.num_todos = written.text.count("# TODO: ")
    return written


def _package(paths: Sequence[str], targets: Sequence[str]) -> str:
    stem = Path(paths[0]).resolve().stem
    name = re.sub(r"\W", "_", stem, flags=re.ASCII)
    name = name if name[:1].isalpha() else f"kernels_{name}"
    listed = ", ".join(f'"{one}"' for one in targets)
    return f'[package]\nname = "{name}"\nversion = "0.1.0"\ntargets = [{listed}]\n'


# ---- one kernel -------------------------------------------------------------------------------


@dataclass
class _Table:
    """The table of one kernel, or why there is none."""

    head: list[str] = field(default_factory=list[str])
    grid: list[str] = field(default_factory=list[str])
    rest: list[str] = field(default_factory=list[str])
    problem: str = ""

    def text(self, *, with_grid: bool = True) -> str:
        return "\n".join([*self.head, *(self.grid if with_grid else []), *self.rest]) + "\n"


def _readable(head: str, table: _Table, output: str) -> tuple[str, str]:
    """Return the text of a table that can be read, and why it is a comment if it is one."""
    problem = table.problem
    for with_grid in () if problem else (True, False):
        text = table.text(with_grid=with_grid)
        try:
            parse(f"{head}\n{text}", output)
        except DiagnosticError as error:
            problem = error.message
        else:
            return text, ""
    reason = f"TODO: {problem}\n"
    return _INDENT.sub("# ", printable(reason + table.text())), problem


def _table(survey: Survey, kernel: CheckedKernel, folder: str, names: set[str]) -> _Table:
    source = f"{os.path.relpath(kernel.file, folder)}:{kernel.name}"
    table = _Table([f"source = {toml(Path(source).as_posix())}"])
    table.head.insert(0, "[[kernel]]")
    try:
        subject = _subject(survey, kernel)
    except DiagnosticError as error:
        table.problem = error.message
        return table
    name = _unique(kernel, names)
    if name != kernel.name:
        table.head.append(f"name = {toml(name)}")
    for one in kernel.missing:
        when = f", only if {one.when}" if one.when else ""
        todo = "" if kernel.is_supported else "TODO: "
        table.head.append(f"# {todo}{one.message} ({one.file}:{one.line}{when})")
    _fill(table, subject, kernel)
    return table


def _subject(survey: Survey, kernel: CheckedKernel) -> Subject:
    file = survey.globals.open(kernel.file)
    if "." in kernel.name or kernel.name not in function_names(file):
        message = f"{kernel.name} is no function of its module, which a manifest can name"
        raise CompileError(message, remedy="move it to the level of the module")
    function = read_function(kernel.file, kernel.name)
    node = next(
        one
        for one in _functions(file.tree)
        if one.name == kernel.name and kernel.line in (one.lineno, function.loc.line)
    )
    described = describe_function(file, node, kernel.name)
    launches = launches_of(survey, file, kernel.name, parameter_names(node))
    if not launches and any(isinstance(one, ast.Return) and one.value for one in ast.walk(node)):
        raise CompileError(f"{kernel.name} returns a value: it is for other kernels to call")
    return Subject(survey, file, node, function, uses_of(survey, described), launches)


def _unique(kernel: CheckedKernel, names: set[str]) -> str:
    stem = re.sub(r"\W", "_", Path(kernel.file).stem, flags=re.ASCII)
    tried = [kernel.name, f"{stem}_{kernel.name}"]
    tried += [f"{stem}_{kernel.name}_{at}" for at in range(2, len(names) + 3)]
    name = next(one for one in tried if one not in names)
    names.add(name)
    return name


def _fill(table: _Table, subject: Subject, kernel: CheckedKernel) -> None:
    signature = signature_of(subject)
    tuned, problem = _tuned(subject, kernel)
    integers = signature.integers()
    constants = constants_of(subject, tuned or (), is_tuned=tuned is not None, integers=integers)
    for name in sorted(constants.counts & integers):
        signature.lines[name] = Line('"i32"')
    _add_grid(table, subject, signature, constants, tuned or ())
    rest = table.rest
    if problem:
        rest.append(f"# TODO: list the configs: {problem}")
    if constants.where:
        rest.append(f"where = {toml(' and '.join(constants.where))}")
    if any("?" in one.value for one in signature.lines.values()):
        rest.append('guards = "together"')
    if tuned is not None:
        rest.append('configs = "autotune"')
    rest.append("[kernel.signature]")
    for name, reason in signature.left_out.items():
        rest.append(f"# {name}: {reason}")
    rest += _lines(signature.lines)
    types = {
        name: Line(f"[{', '.join(map(toml, dtypes))}]") for name, dtypes in signature.types.items()
    }
    for title, lines in (
        ("types", types),
        ("constants", constants.constants),
        ("choices", constants.choices),
        ("configs", constants.configs),
    ):
        if lines:
            rest += [f"[kernel.{title}]", *_lines(lines)]


def _tuned(subject: Subject, kernel: CheckedKernel) -> tuple[set[str] | None, str]:
    """Return what the autotuner sets, None if there is none, and why it cannot be read."""
    try:
        configs = autotune_configs(kernel.file, kernel.name, target=subject.survey.target)
    except CompileError as error:
        return None, error.message if _is_tuned(subject) else ""
    return {name for one in configs for name in one}, ""


def _add_grid(
    table: _Table,
    subject: Subject,
    signature: Signature,
    constants: Constants,
    tuned: Sequence[str] | set[str],
) -> None:
    """Add the grid that all launches agree on; what it was where it cannot be said."""
    if not subject.launches:
        return
    defaults = {
        one.name: line
        for one in subject.function.constexprs
        if (line := default_line(subject, one.name)) is not None
    }
    given = {*constants.constants, *constants.choices, *constants.configs, *tuned}
    names = {*signature.integers(), *given, *defaults}
    grids = [grid_of(one, names) for one in subject.launches]
    first = grids[0]
    if first is None or any(one != first for one in grids):
        table.grid.append("# grid: callers give it; launches here use other values too")
        return
    table.grid.append(f"grid = [{', '.join(map(toml, first))}]")
    for text in first:
        for name in _names(text):
            if name in defaults and name not in given:
                constants.constants[name] = defaults[name]


def _names(text: str) -> Sequence[str]:
    try:
        return list(expression.free_names(expression.parse(text)))
    except ExpressionError:
        return ()


def _is_tuned(subject: Subject) -> bool:
    """Return whether a decorator lists configs."""
    calls = [one for one in subject.node.decorator_list if isinstance(one, ast.Call)]
    return any(
        dotted_name(one.func).endswith("autotune")
        or any(key.arg == "configs" for key in one.keywords)
        for one in calls
    )


def _lines(lines: Mapping[str, Line]) -> list[str]:
    return [f"{name} = {one.value}{one.comment}" for name, one in lines.items()]


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
