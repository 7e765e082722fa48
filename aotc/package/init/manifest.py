"""Write a manifest for the kernels of source files.

Each kernel's table is compiled to PTX before it is written; guesses are revised until it compiles.
A table with errors becomes a comment with the reason, and the rest stays usable.

Invariant: every table in the output builds, and every guessed value has a TODO.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from aotc.frontend import autotune_configs
from aotc.frontend.python.globals import describe_function
from aotc.frontend.python.resolve import dotted_name
from aotc.frontend.survey.support import Survey
from aotc.ir import expression
from aotc.ir.diagnostics import CompileError, DiagnosticError, did_you_mean, one_line, printable
from aotc.ir.expression import ExpressionError
from aotc.ir.types import SCALARS
from aotc.package.init.arguments import Signature, signature_of
from aotc.package.init.captures import (
    move_captures,
    passed_captures,
    with_captures,
    with_constants,
)
from aotc.package.init.constants import BLOCK, DTYPES, Constants, constants_of, default_line
from aotc.package.init.draft import Draft, as_list
from aotc.package.init.grid import grid_of
from aotc.package.init.launches import launches_of
from aotc.package.init.nodes import parameter_names
from aotc.package.init.search import settle, widen
from aotc.package.init.subject import Line, Subject
from aotc.package.init.trial import Trial
from aotc.package.init.uses import uses_of
from aotc.package.inspect.survey import CheckedKernel, check, unnamed_lines
from aotc.package.manifest.read import read_function
from aotc.package.manifest.toml_text import toml

_HEAD = """\
# Written from the sources: check what is said here against what launches pass.
# - Pointers that share a type variable have the same dtype at a launch; keep the dtypes you need.
# - ":16?" builds a variant for multiples of 16 and one for the rest; ":16" promises it.
# - A stride that is always 1 is "i32=1": without that, rows are not known to be dense.
"""
_FEW_VARIANTS, _MOST_VARIANTS = 32, 4096
_FEW_PROGRAMS = 2
_INDENT = re.compile(r"^(?=.)", re.MULTILINE)


@dataclass
class Written:
    """A manifest's text, and the work left to the reader.

    `refused` kernels are comments in the text; `unnamed` are makers of kernels without a name.
    """

    text: str
    num_kernels: int = 0
    num_todos: int = 0
    refused: list[str] = field(default_factory=list[str])
    unnamed: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Wanted:
    """The variants to request: `dtypes` of data, and with `all` every combination."""

    dtypes: tuple[str, ...] = ()
    all: bool = False


def write_manifest(
    paths: Sequence[str], output: str, targets: Sequence[str], selection: Wanted | None = None
) -> Written:
    """Return a manifest at `output` for all kernels of files and folders.

    Raises: CompileError if a path is not there, a file is not Python, or no kernel can be built.
    """
    for dtype in selection.dtypes if selection is not None else ():
        if dtype not in SCALARS:
            remedy = did_you_mean(dtype, SCALARS) or f"one of {', '.join(SCALARS)}"
            raise CompileError(f"expected a dtype, got {dtype!r}", remedy=remedy)
    checked = check(paths, targets[0], 1)
    if checked.unread:
        raise CompileError(checked.unread[0].removeprefix("error: "))
    if not checked.kernels:
        usual = (
            "a kernel is a function with @triton.jit that no other one calls, and returns nothing"
        )
        raise CompileError(
            f"expected kernels in {', '.join(paths)}, got none",
            remedy="; ".join(unnamed_lines(checked.unnamed)) or usual,
        )
    folder = os.path.dirname(output) or "."  # noqa: PTH120 - paths stay as they were given
    survey = Survey(targets[0])
    head = _package(paths, targets)
    names: set[str] = set()
    written = Written(f"{_HEAD}\n{head}", unnamed=unnamed_lines(checked.unnamed))
    written.text += "".join(f"# {printable(maker)}\n" for maker in written.unnamed)
    trial = Trial(head, output, targets)
    for kernel in checked.kernels:
        draft = _draft(survey, kernel, folder, names, selection or Wanted())
        text, problem = _built(draft, trial, selection or Wanted())
        written.text += f"\n{text}"
        written.num_kernels += not problem
        written.refused += [f"{kernel.name} ({kernel.file}:{kernel.line}): {problem}"] * bool(
            problem
        )
    if not written.num_kernels:
        message = "expected a kernel that builds, got none: " + "; ".join(written.refused)
        raise CompileError(message, remedy="`aotc check` lists what each of them lacks")
    written.num_todos = written.text.count("# TODO: ")
    return written


@dataclass(frozen=True, slots=True)
class Guessed:
    """A manifest of one kernel, and its guesses as `NAME = VALUE`, with their reasons."""

    text: str
    guesses: tuple[str, ...]


def guessed_manifest(source: str, name: str, output: str, target: str) -> Guessed | None:
    """Return a manifest at `output` for one kernel of a source, None if no guess builds.

    Raises: CompileError.
    """
    checked = check([source], target, 1)
    kernel = next((kernel for kernel in checked.kernels if kernel.name == name), None)
    if kernel is None:
        return None
    folder = os.path.dirname(output) or "."  # noqa: PTH120 - as above
    head = _package([source], [target])
    draft = _draft(Survey(target), kernel, folder, set(), Wanted())
    if draft.problem or settle(draft, Trial(head, output, [target])) is not None:
        return None
    guesses = tuple(
        one_line(f"{line_name} = {line.value}{line.comment.replace('TODO: ', '')}")
        for section in ("signature", "types", "captures", "constants", "choices", "configs")
        for line_name, line in draft.sections[section].items()
    )
    return Guessed(f"{head}\n{draft.text({})}", guesses)


def _package(paths: Sequence[str], targets: Sequence[str]) -> str:
    stem = Path(paths[0]).resolve().stem
    name = re.sub(r"\W", "_", stem, flags=re.ASCII)
    name = name if name[:1].isalpha() else f"kernels_{name}"
    listed = ", ".join(f'"{target}"' for target in targets)
    return f'[package]\nname = "{name}"\nversion = "0.1.0"\ntargets = [{listed}]\n'


# ---- one kernel -------------------------------------------------------------------------------


def _built(draft: Draft, trial: Trial, selection: Wanted) -> tuple[str, str]:
    """Return a table's text and its problem; with a problem, the text is a comment."""
    problem = draft.problem
    if not problem:
        failed = settle(draft, trial)
        if failed is None:
            widen(draft, trial, _MOST_VARIANTS if selection.all else _FEW_VARIANTS)
            return draft.text(), ""
        location = f" ({failed.loc.file}:{failed.line})" if failed.loc is not None else ""
        problem = f"{failed.message}{location}"
    reason = f"TODO: {problem}\n"
    return _INDENT.sub("# ", printable(reason + draft.text())), problem


def _draft(
    survey: Survey, kernel: CheckedKernel, folder: str, names: set[str], selection: Wanted
) -> Draft:
    source = f"{os.path.relpath(kernel.file, folder)}:{kernel.name}"
    draft = Draft(["[[kernel]]", f"source = {toml(Path(source).as_posix())}"])
    try:
        subject = _subject(survey, kernel)
    except DiagnosticError as error:
        draft.problem = error.message
        return draft
    name = _unique(kernel, names)
    if name != kernel.name.rpartition(".")[2]:
        draft.head.append(f"name = {toml(name)}")
    for feature in kernel.missing:
        when = f", only if {feature.when}" if feature.when else ""
        todo = "" if kernel.is_supported else "TODO: "
        draft.head.append(f"# {todo}{feature.message} ({feature.file}:{feature.line}{when})")
    _fill(draft, subject, kernel, selection)
    return draft


def _subject(survey: Survey, kernel: CheckedKernel) -> Subject:
    file = survey.globals.open(kernel.file)
    function = read_function(kernel.file, kernel.name)
    node = next(
        function_node
        for function_node in _functions(file.tree)
        if function_node.lineno == kernel.line
    )
    name = kernel.name.rpartition(".")[2]
    launches = launches_of(survey, file, name, parameter_names(node))
    if not launches and any(
        isinstance(child, ast.Return) and child.value for child in ast.walk(node)
    ):
        raise CompileError(f"{kernel.name} returns a value: it is for other kernels to call")
    names = kernel.captures
    node, function = with_captures(node, names), with_constants(function, names)
    uses = uses_of(survey, describe_function(file, node, kernel.name))
    passed = passed_captures(survey, file, kernel.name, names)
    captures = {name: passed.get(name) for name in names}
    return Subject(survey, file, node, function, uses, launches, captures)


def _unique(kernel: CheckedKernel, names: set[str]) -> str:
    stem = re.sub(r"\W", "_", Path(kernel.file).stem, flags=re.ASCII)
    function_name = kernel.name.rpartition(".")[2]
    tried = [function_name, f"{stem}_{function_name}"]
    tried += [f"{stem}_{function_name}_{index}" for index in range(2, len(names) + 3)]
    name = next(candidate for candidate in tried if candidate not in names)
    names.add(name)
    return name


def _fill(draft: Draft, subject: Subject, kernel: CheckedKernel, selection: Wanted) -> None:
    signature = signature_of(subject, selection.dtypes, has_all=selection.all)
    tuned, problem = _tuned(subject, kernel)
    integers = signature.integers()
    dtypes = selection.dtypes or (DTYPES if selection.all else DTYPES[:1])
    constants = constants_of(
        subject, tuned or (), is_tuned=tuned is not None, integers=integers, dtypes=dtypes
    )
    for name in sorted(constants.counts & integers):
        signature.lines[name] = Line('"i32"')
    captures = move_captures(constants, subject.captures)
    _add_grid(draft, subject, signature, constants, tuned or ())
    if problem:
        draft.notes.append(f"# TODO: list the configs: {problem}")
    draft.where = constants.where
    draft.is_autotuned = tuned is not None
    draft.computed = tuple(sorted(subject.computed))
    draft.tuned = tuple(sorted(tuned or ()))
    draft.left_out = signature.left_out
    draft.sections = {
        "signature": signature.lines,
        "types": {
            name: Line(as_list(listed), is_given=listed == selection.dtypes)
            for name, listed in signature.types.items()
        },
        "captures": captures,
        "constants": constants.constants,
        "choices": constants.choices,
        "configs": constants.configs,
    }


def _tuned(subject: Subject, kernel: CheckedKernel) -> tuple[set[str] | None, str]:
    """Return the names set by the autotuner (None without one), and the reading error."""
    try:
        configs = autotune_configs(kernel.file, kernel.name, target=subject.survey.target)
    except CompileError as error:
        return None, error.message if _is_tuned(subject) else ""
    return {name for config in configs for name in config}, ""


def _add_grid(
    draft: Draft,
    subject: Subject,
    signature: Signature,
    constants: Constants,
    tuned: Sequence[str] | set[str],
) -> None:
    """Add the grid shared by all launches, else a comment."""
    if not subject.launches:
        return
    defaults = {
        constexpr.name: line
        for constexpr in subject.function.constexprs
        if (line := default_line(subject, constexpr.name)) is not None
    }
    constant_names = {*constants.constants, *constants.choices, *constants.configs, *tuned}
    names = {*signature.integers(), *constant_names, *defaults}
    grids = [grid_of(grid, names) for grid in subject.launches]
    first = grids[0]
    if first is None or any(grid != first for grid in grids):
        draft.grid.append("# grid: callers give it; launches here use other values too")
        return
    draft.grid.append(f"grid = [{', '.join(map(toml, first))}]")
    for text in first:
        if len(first) > 1:
            _guess_fewer(constants, text.split(" * "))
        for name in _names(text):
            if name in defaults and name not in constant_names:
                constants.constants[name] = defaults[name]


def _guess_fewer(constants: Constants, factors: Sequence[str]) -> None:
    """Guess few programs along an axis (such as heads), to keep verification cheap."""
    for name in factors:
        for lines in (constants.constants, constants.configs):
            line = lines.get(name)
            if line is not None and line.is_todo and line.value.strip("[]") == str(BLOCK):
                lines[name] = replace(
                    line, value=line.value.replace(str(BLOCK), str(_FEW_PROGRAMS))
                )


def _names(text: str) -> Sequence[str]:
    try:
        return list(expression.free_names(expression.parse(text)))
    except ExpressionError:
        return ()


def _is_tuned(subject: Subject) -> bool:
    """Return whether a decorator lists configs."""
    calls = [call for call in subject.node.decorator_list if isinstance(call, ast.Call)]
    return any(
        dotted_name(call.func).endswith("autotune")
        or any(key.arg == "configs" for key in call.keywords)
        for call in calls
    )


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
