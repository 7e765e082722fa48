"""Survey kernels in files and folders: the supported ones, and unsupported features of the others.

A kernel is a `@triton.jit` function not called by another one, or one launched by its file. It uses
the features in its own body, and in the bodies of all functions it calls, directly or not, in any
file. `aotc.frontend.support` checks each function once; this file joins its answers.

Most files of a package hold no kernel, as a text search shows. The rest are read in processes, a
few neighbours at a time, since they import the same files.

Invariant: the answer depends on the files, never on the number of processes or their order.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from aotc.frontend.support import FunctionSupport, Survey
from aotc.frontend.untyped import Key, Refusal
from aotc.ir.diagnostics import CompileError, one_line
from aotc.package.builder.workers import Done, Failure, Job, run_all
from aotc.regular_file import MAX_SOURCE_BYTES, read_regular

_FILES_PER_TASK = 16
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class CheckedKernel:
    """One kernel, and its unsupported features, in the order of its functions."""

    file: str
    name: str
    line: int
    missing: tuple[Refusal, ...] = ()

    @property
    def is_supported(self) -> bool:
        """Return whether it can be built, if only for some values of its constants."""
        return all(refusal.when for refusal in self.missing)


@dataclass
class Checked:
    """The outcome of a check; `unread` are the reports of files that are not Python."""

    num_files: int
    kernels: list[CheckedKernel] = field(default_factory=list[CheckedKernel])
    unread: list[str] = field(default_factory=list[str])
    failures: list[Failure] = field(default_factory=list[Failure])

    @property
    def features(self) -> dict[str, int]:
        """Number of kernels by missing feature, the most used first."""
        counts: dict[str, int] = {}
        for kernel in self.kernels:
            for feature in dict.fromkeys(refusal.feature for refusal in kernel.missing):
                counts[feature] = counts.get(feature, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @property
    def is_right(self) -> bool:
        """Return whether every file was read and every kernel is supported."""
        wrong = self.unread or self.failures
        return not wrong and all(kernel.is_supported for kernel in self.kernels)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one process about its files."""

    functions: tuple[FunctionSupport, ...]
    unread: tuple[str, ...]


def check(paths: Sequence[str], target: str, jobs: int) -> Checked:
    """Check all kernels in files and folders. Raises: CompileError for a missing path."""
    absolute = _Absolute()
    given_paths = {absolute[file]: file for path in paths for file in _python_files(path)}
    files = list(given_paths.values())
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
        for function in outcome.result.functions:
            key = absolute.key(function.key)
            if key not in functions or function.is_launched:
                functions[key] = function
    uses = {
        key: [absolute.key(callee) for callee in function.uses]
        for key, function in functions.items()
    }
    checked.kernels = _kernels(functions, uses, given_paths)
    return checked


def _python_files(path: str) -> Iterator[str]:
    """Yield the Python files at a path; a folder's files in order, without hidden ones."""
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
        return True  # reading it for its kernels reports the problem
    return b"jit" in text and (b"triton" in text or b"aotc" in text)


def _answers(
    files: Sequence[str], target: str, jobs: int
) -> Generator[Done[tuple[str, ...], Answer]]:
    """Yield the answers about files, using processes only for many files."""
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
    """Check the functions of some files in this process."""
    target_survey = Survey(target)
    functions: list[FunctionSupport] = []
    unread: list[str] = []
    for file in files:
        file_functions, problem = _read(target_survey, file)
        functions += file_functions
        unread += problem
    return Answer(tuple(functions), tuple(unread))


def _read(target_survey: Survey, file: str) -> tuple[list[FunctionSupport], list[str]]:
    try:
        return target_survey.functions(file), []
    except CompileError as error:
        return [], [error.render()]


class _Absolute(dict[str, str]):
    """Map each path to its absolute path, in any spelling of an import or the user."""

    def __missing__(self, path: str) -> str:
        self[path] = str(Path(path).absolute())
        return self[path]

    def key(self, key: Key) -> Key:
        """Return the location of a function, with an absolute path."""
        return self[key[0]], key[1]


def _kernels(
    functions: Mapping[Key, FunctionSupport],
    uses: Mapping[Key, Sequence[Key]],
    given_paths: Mapping[str, str],
) -> list[CheckedKernel]:
    """Return the kernels of the given files, in order, with all features they use."""
    called = {callee for key, callees in uses.items() for callee in callees if callee != key}
    return [
        CheckedKernel(
            given_paths[file],
            functions[file, line].name,
            line,
            _missing(functions, uses, (file, line)),
        )
        for file, line in sorted(functions)
        if file in given_paths and ((file, line) not in called or functions[file, line].is_launched)
    ]


def _missing(
    functions: Mapping[Key, FunctionSupport], uses: Mapping[Key, Sequence[Key]], kernel: Key
) -> tuple[Refusal, ...]:
    """Return the unsupported features of a kernel and all functions it calls, directly or not."""
    reached = {kernel: None}
    waiting = [kernel]
    while waiting:
        for callee in uses[waiting.pop()]:
            if callee not in reached:
                reached[callee] = None
                waiting.append(callee)
    return tuple(refusal for key in sorted(reached) for refusal in functions[key].refusals)


def describe(checked: Checked) -> dict[str, Any]:
    """Return the outcome as data, for `--json`."""
    return {
        "kernels": [
            {
                "file": kernel.file,
                "kernel": kernel.name,
                "line": kernel.line,
                "supported": kernel.is_supported,
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
        "features": checked.features,
        "files": checked.num_files,
        "unread": checked.unread,
        "failures": [failure.report for failure in checked.failures],
    }


def text(checked: Checked) -> str:
    """Return a line for each use of a missing feature, and the number of kernels by feature."""
    users: dict[Refusal, list[str]] = {}
    for kernel in checked.kernels:
        for refusal in kernel.missing:
            users.setdefault(refusal, []).append(kernel.name)
    lines = [_refused(refusal, names) for refusal, names in sorted(users.items(), key=_place)]
    if checked.features:
        width = len(str(max(checked.features.values())))
        lines += ["", "kernels  feature"]
        lines += [
            f"{count:>{max(width, len('kernels'))}}  {feature}"
            for feature, count in checked.features.items()
        ]
    return "\n".join(lines)


def _place(item: tuple[Refusal, list[str]]) -> tuple[str, int, str]:
    return item[0].file, item[0].line, item[0].message


def _refused(refusal: Refusal, names: Sequence[str]) -> str:
    name_list = ", ".join(names[:_MAX_NAMED])
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    when = f"; only if {refusal.when}" if refusal.when else ""
    return one_line(
        f"{refusal.file}:{refusal.line}: {refusal.message} (in {name_list}{more}{when})"
    )


def summary(checked: Checked, seconds: float) -> str:
    """Return one line: the number of kernels found and supported."""
    kernels, files = len(checked.kernels), checked.num_files
    in_files = f"{files} file{'' if files == 1 else 's'} ({seconds:.1f} s)"
    if not kernels:
        return f"no kernels in {in_files}"
    supported = sum(kernel.is_supported for kernel in checked.kernels)
    partly = sum(kernel.is_supported and bool(kernel.missing) for kernel in checked.kernels)
    partly_text = f", {partly} of them for some constants only" if partly else ""
    share = f"{supported} of {kernels} kernel{'' if kernels == 1 else 's'} supported"
    return f"{share} ({100 * supported / kernels:.1f} %){partly_text}, in {in_files}"
