"""Survey the kernels of files and folders: the supported ones, and the missing features.

A kernel is a `@triton.jit` function without callers and without a return value, or one launched in
its file. Its features are those of its own body and of all functions reachable from it, in any file.
`aotc.frontend.survey.support` analyzes each function once; this module joins the results.

A text search skips files without kernels, the majority of a package. The rest are analyzed in
worker processes, several neighbouring files per task, since they import the same files.

Invariant: the outcome depends on the files, never on the number of processes or their order.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from aotc.frontend.survey.support import FunctionSupport, Survey, UnnamedKernel
from aotc.frontend.survey.untyped import Key, Refusal
from aotc.ir.diagnostics import CompileError, one_line
from aotc.package.builder.workers import Done, Failure, Job, run_all
from aotc.regular_file import MAX_SOURCE_BYTES, read_regular

_FILES_PER_TASK = 16
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class CheckedKernel:
    """A kernel and its unsupported features, in the order of its functions.

    `captures` are variables of enclosing functions; a manifest must give their values.
    """

    file: str
    name: str
    line: int
    missing: tuple[Refusal, ...] = ()
    captures: tuple[str, ...] = ()

    @property
    def is_supported(self) -> bool:
        """True if it can be built, at least for some values of its constants."""
        return all(feature.when for feature in self.missing)


@dataclass
class Checked:
    """The outcome of a check; `unread` are the errors of files failing to parse.

    `unnamed` kernels are created at run time: by decorators of scalar functions, or by `triton.jit(…)`.
    """

    num_files: int
    kernels: list[CheckedKernel] = field(default_factory=list[CheckedKernel])
    unnamed: list[UnnamedKernel] = field(default_factory=list[UnnamedKernel])
    unread: list[str] = field(default_factory=list[str])
    failures: list[Failure] = field(default_factory=list[Failure])

    @property
    def features(self) -> dict[str, int]:
        """The number of kernels using each missing feature, the most used first."""
        counts: dict[str, int] = {}
        for kernel in self.kernels:
            for feature in dict.fromkeys(refusal.feature for refusal in kernel.missing):
                counts[feature] = counts.get(feature, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @property
    def is_right(self) -> bool:
        """True if every file was read and every kernel is supported."""
        wrong = self.unread or self.failures
        return not wrong and all(kernel.is_supported for kernel in self.kernels)

    @property
    def is_whole(self) -> bool:
        """True if there are kernels, and a manifest can name all of them."""
        return bool(self.kernels) and not self.unnamed


@dataclass(frozen=True, slots=True)
class Answer:
    """One process's results for its files."""

    functions: tuple[FunctionSupport, ...]
    unnamed: tuple[UnnamedKernel, ...]
    unread: tuple[str, ...]


def check(paths: Sequence[str], target: str, jobs: int) -> Checked:
    """Check all kernels in files and folders. Raises: CompileError for a missing path."""
    absolute = _Absolute()
    path_as_given = {absolute[file]: file for path in paths for file in _python_files(path)}
    files = list(path_as_given.values())
    candidates = [file for file in files if _may_hold_kernels(file)]
    checked = Checked(len(files))
    functions: dict[Key, FunctionSupport] = {}
    for outcome in sorted(
        _answers(candidates, target, jobs), key=lambda outcome: outcome.task.request
    ):
        if isinstance(outcome.result, Failure):
            checked.failures.append(outcome.result)
            continue
        checked.unread += outcome.result.unread
        checked.unnamed += outcome.result.unnamed
        for function in outcome.result.functions:
            key = absolute.key(function.key)
            if key not in functions or function.is_launched:
                functions[key] = function
    uses = {
        key: [absolute.key(callee) for callee in function.uses]
        for key, function in functions.items()
    }
    checked.kernels = _kernels(functions, uses, path_as_given)
    checked.unnamed += _made_by_decorators(functions, uses, path_as_given)
    checked.unnamed.sort(key=lambda function: (function.file, function.line))
    return checked


def _python_files(path: str) -> Iterator[str]:
    """Yield the Python files at a path, sorted, without hidden ones."""
    if not Path(path).is_dir():
        if not Path(path).exists():
            raise CompileError(f"cannot read {path}: there is no such file or folder")
        yield path
        return
    for folder, inner, names in os.walk(path):
        inner[:] = sorted(name for name in inner if not name.startswith((".", "__pycache__")))
        yield from (str(Path(folder) / name) for name in sorted(names) if name.endswith(".py"))


def _may_hold_kernels(path: str) -> bool:
    try:
        text = read_regular(path, MAX_SOURCE_BYTES)
    except OSError:
        return True  # reading it for its kernels says why not
    return b"jit" in text and (b"triton" in text or b"aotc" in text)


def _answers(
    files: Sequence[str], target: str, jobs: int
) -> Generator[Done[tuple[str, ...], Answer]]:
    """Yield the results for files; a few files do not need a process."""
    tasks = [
        Job(files[start], tuple(files[start : start + _FILES_PER_TASK]))
        for start in range(0, len(files), _FILES_PER_TASK)
    ]
    if len(tasks) <= 1 or jobs == 1:
        for task in tasks:
            yield Done(task, survey(task.request, target), 0.0)
        return
    yield from run_all(tasks, partial(survey, target=target), jobs)


def survey(files: Sequence[str], target: str) -> Answer:
    """Analyze the functions of some files in this process."""
    reader = Survey(target)
    functions: list[FunctionSupport] = []
    unnamed: list[UnnamedKernel] = []
    unread: list[str] = []
    for file in files:
        answer = _read(reader, file)
        functions += answer.functions
        unnamed += answer.unnamed
        unread += answer.unread
    return Answer(tuple(functions), tuple(unnamed), tuple(unread))


def _read(reader: Survey, file: str) -> Answer:
    try:
        return Answer(tuple(reader.functions(file)), tuple(reader.unnamed(file)), ())
    except CompileError as error:
        return Answer((), (), (error.render(),))


class _Absolute(dict[str, str]):
    """Cache of absolute paths, for paths given by imports or the user."""

    def __missing__(self, path: str) -> str:
        self[path] = str(Path(path).absolute())
        return self[path]

    def key(self, key: Key) -> Key:
        """Return a function's key with an absolute path."""
        return self[key[0]], key[1]


def _kernels(
    functions: Mapping[Key, FunctionSupport],
    uses: Mapping[Key, Sequence[Key]],
    path_as_given: Mapping[str, str],
) -> list[CheckedKernel]:
    """Return the kernels of the given files in order, with all their refusals."""
    return [
        CheckedKernel(
            path_as_given[key[0]],
            function.name,
            key[1],
            tuple(
                refusal
                for reachable in _reached(uses, key)
                for refusal in functions[reachable].refusals
            ),
            tuple(
                dict.fromkeys(
                    capture
                    for reachable in _reached(uses, key)
                    for capture in functions[reachable].captures
                )
            ),
        )
        for key, function in _starts(functions, uses, path_as_given)
        if function.is_launched or not function.returns
    ]


def _made_by_decorators(
    functions: Mapping[Key, FunctionSupport],
    uses: Mapping[Key, Sequence[Key]],
    path_as_given: Mapping[str, str],
) -> list[UnnamedKernel]:
    """Return the scalar functions made into kernels by a library's decorator."""
    return [
        UnnamedKernel(path_as_given[key[0]], key[1], function.name, f"@{function.decorator}")
        for key, function in _starts(functions, uses, path_as_given)
        if function.returns and function.decorator and not function.is_launched
    ]


def _starts(
    functions: Mapping[Key, FunctionSupport],
    uses: Mapping[Key, Sequence[Key]],
    path_as_given: Mapping[str, str],
) -> list[tuple[Key, FunctionSupport]]:
    """Return the root functions of the given files: launched, or without callers."""
    called = {callee for key, listed in uses.items() for callee in listed if callee != key}
    return [
        (key, functions[key])
        for key in sorted(functions)
        if key[0] in path_as_given and (key not in called or functions[key].is_launched)
    ]


def _reached(uses: Mapping[Key, Sequence[Key]], kernel: Key) -> list[Key]:
    """Return a kernel and all functions reachable from it, sorted."""
    reached = {kernel: None}
    waiting = [kernel]
    while waiting:
        for callee in uses[waiting.pop()]:
            if callee not in reached:
                reached[callee] = None
                waiting.append(callee)
    return sorted(reached)


# ---- reports ----------------------------------------------------------------------------------


def describe(checked: Checked) -> dict[str, Any]:
    """Return the outcome as data, for `--json`."""
    return {
        "kernels": [
            {
                "file": kernel.file,
                "kernel": kernel.name,
                "line": kernel.line,
                "supported": kernel.is_supported,
                "captures": list(kernel.captures),
                "missing": [
                    {
                        "feature": refusal.feature,
                        "line": refusal.line,
                        "file": refusal.file,
                        "message": refusal.message,
                        "when": refusal.when,
                    }
                    for refusal in kernel.missing
                ],
            }
            for kernel in checked.kernels
        ],
        "unnamed": [
            {
                "file": maker.file,
                "line": maker.line,
                "function": maker.name,
                "maker": maker.maker,
            }
            for maker in checked.unnamed
        ],
        "features": checked.features,
        "files": checked.num_files,
        "unread": checked.unread,
        "failures": [failure.report for failure in checked.failures],
    }


def text(checked: Checked) -> str:
    """Return a line for each use of a missing feature, and the number of kernels per feature."""
    users: dict[Refusal, list[str]] = {}
    for kernel in checked.kernels:
        for refusal in kernel.missing:
            users.setdefault(refusal, []).append(kernel.name)
    lines = [_refused(refusal, names) for refusal, names in sorted(users.items(), key=_place)]
    lines += unnamed_lines(checked.unnamed)
    if checked.features:
        width = len(str(max(checked.features.values())))
        lines += ["", "kernels  feature"]
        lines += [
            f"{count:>{max(width, len('kernels'))}}  {feature}"
            for feature, count in checked.features.items()
        ]
    return "\n".join(lines)


def unnamed_lines(unnamed: Sequence[UnnamedKernel]) -> list[str]:
    """Return a line for each maker of kernels, at its first use, with their names."""
    makers: dict[str, list[UnnamedKernel]] = {}
    for function in unnamed:
        makers.setdefault(function.maker, []).append(function)
    return [
        one_line(
            f"{of[0].file}:{of[0].line}: {maker} makes kernels of {_some([function.name for function in of])} "
            "when a program runs; `aotc record -- COMMAND` sees them"
        )
        for maker, of in makers.items()
    ]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def _place(item: tuple[Refusal, list[str]]) -> tuple[str, int, str]:
    return item[0].file, item[0].line, item[0].message


def _refused(refusal: Refusal, names: Sequence[str]) -> str:
    when = f"; only if {refusal.when}" if refusal.when else ""
    return one_line(f"{refusal.file}:{refusal.line}: {refusal.message} (in {_some(names)}{when})")


def summary(checked: Checked, seconds: float) -> str:
    """Return one line with the numbers of kernels and of supported kernels."""
    kernels, files = len(checked.kernels), checked.num_files
    in_files = f"{files} file{'' if files == 1 else 's'} ({seconds:.1f} s)"
    unnamed = f", {len(checked.unnamed)} not named" if checked.unnamed else ""
    if not kernels:
        return f"no kernels{unnamed} in {in_files}"
    supported = sum(kernel.is_supported for kernel in checked.kernels)
    partly = sum(kernel.is_supported and bool(kernel.missing) for kernel in checked.kernels)
    partial_note = f", {partly} of them for some constants only" if partly else ""
    share = f"{supported} of {kernels} kernel{'' if kernels == 1 else 's'} supported"
    return f"{share} ({100 * supported / kernels:.1f} %){partial_note}{unnamed}, in {in_files}"
