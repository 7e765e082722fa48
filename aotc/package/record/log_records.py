"""Convert the log of a JIT monitor to records, by finding its kernels in source files.

A log names functions, sometimes their modules, never files. A kernel is the function in the sources
with the logged name and parameters. Several matches are reported as ambiguous, never guessed.

Invariant: sources are never executed, and each file is read once.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from aotc.frontend.python.resolve import find_definition
from aotc.frontend.python.scope import is_constexpr_annotation
from aotc.ir.diagnostics import CompileError
from aotc.package.record.jit_log import Compiled, JitLog, read_log
from aotc.package.record.jit_log import Path as Place
from aotc.regular_file import MAX_RECORDS_BYTES, MAX_SOURCE_BYTES, read_regular
from aotc.target import parse as parse_target

_DEFINITION = re.compile(rb"^\s*def\s+(\w+)", re.MULTILINE)
_DEFAULTS: Mapping[str, Any] = {
    "num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None, "enable_fp_fusion": True,
    "enable_reflect_ftz": True,
}  # fmt: skip


def records_of_logs(
    logs: Sequence[str], sources: Sequence[str], target: str
) -> list[dict[str, Any]]:
    """Return the records of log files; `target` is the default for logs without one.

    Raises: CompileError if a log or source cannot be read; ManifestError for an unknown target.
    """
    gpu = parse_target(target)
    log = read_log("\n".join(map(_text_of, logs)))
    return records_of(log, [Path(source) for source in sources], 10 * gpu.major + gpu.minor)


def _text_of(log: str) -> str:
    try:
        return read_regular(log, MAX_RECORDS_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        raise CompileError(f"expected a log, cannot read {log}: {error.strerror}") from None


def records_of(log: JitLog, sources: Sequence[Path], arch: int) -> list[dict[str, Any]]:
    """Return records of a log's compiled kernels, found in files and folders.

    `arch` (such as 90) is the default for logs without one.

    Raises: CompileError if a file or folder does not exist.
    """
    search = _Search(sources)
    records: dict[str, dict[str, Any]] = {}
    problems = list(log.problems)
    for compiled in _chosen(log):
        function = search.find(compiled)
        if isinstance(function, str):
            problems.append(function)
            continue
        try:
            specialised = [*_records(compiled, function, search, arch)]
        except (LookupError, TypeError, ValueError):  # a malformed log
            problems.append(
                f"{compiled.name}: its types and constants are not those of its parameters"
            )
            continue
        for record in specialised:
            records.setdefault(repr(record), record)
    for name, choices in log.choices.items():
        kernels = {
            record["kernel"]["file"]: record["kernel"]
            for record in records.values()
            if record["kernel"]["function"] == name
        }
        tuned = sorted({key for choice in choices for key in choice} - _DEFAULTS.keys())
        for kernel in [*kernels.values()]:
            tuning = {"kernel": kernel, "tuned": tuned, "choice": choices[-1], "timings": []}
            records.setdefault(repr(tuning), tuning)
    return [*records.values(), *({"problem": problem} for problem in dict.fromkeys(problems))]


def _chosen(log: JitLog) -> Iterator[Compiled]:
    """Yield compiled kernels; of an autotuner's trials only its choice, if logged."""
    by_name: dict[str, list[Compiled]] = {}
    for specialisation in log.compiled:
        by_name.setdefault(specialisation.name, []).append(specialisation)
    for name, compiled in by_name.items():
        choices = log.choices.get(name, [])
        selected = [
            specialisation
            for specialisation in compiled
            if any(_is_choice(specialisation, choice) for choice in choices)
        ]
        yield from selected or compiled


def _is_choice(compiled: Compiled, choice: Mapping[str, Any]) -> bool:
    """Return whether a specialisation matches a config; values are matched without names."""
    values = [constant.get("value") for constant in compiled.constants.values()]
    options = {**_DEFAULTS, **compiled.options}
    return all(
        options[name] == value if name in options else value in values
        for name, value in choice.items()
    )


def _records(
    compiled: Compiled, function: _Found, search: _Search, arch: int
) -> Iterator[dict[str, Any]]:
    """Yield the record of a specialisation; with `open_promises`, also one with all promises."""
    names = [parameter.arg for parameter in function.parameters]
    by_name = isinstance(compiled.types, Mapping)
    kinds: dict[str, Any] = dict(
        compiled.types if by_name else zip(names, compiled.types, strict=True)
    )
    types = {name: _type(kinds[name]) for name in names}
    constants = {
        _label(names, path): search.constant(value, function.file)
        for path, value in compiled.constants.items()
    }
    divisible = {_label(names, path) for path in compiled.divisible}
    constexprs = [p.arg for p in function.parameters if is_constexpr_annotation(p.annotation)]
    record = {
        "kernel": function.kernel,
        "constexprs": constexprs,
        "signature": types,
        "divisible": sorted(divisible),
        "constants": constants,
        "options": {**_DEFAULTS, **compiled.options},
        "target": ["cuda", compiled.arch or arch],
        "integers": {},
    }
    yield record
    if compiled.open_promises:
        promised = {
            label
            for name, kind in types.items()
            if name not in constexprs
            for label, text in _leaves(name, kind)
            if text[0] in "*iu"
        }
        yield {**record, "divisible": sorted(divisible | promised)}


def _type(kind: Any) -> Any:
    if isinstance(kind, list):
        return {"items": [_type(element) for element in cast("list[Any]", kind)], "fields": []}
    return str(kind)


def _leaves(name: str, kind: Any) -> Iterator[tuple[str, str]]:
    if isinstance(kind, dict):
        for index, element in enumerate(cast("dict[str, Any]", kind)["items"]):
            yield from _leaves(f"{name}.{index}", element)
    else:
        yield name, str(kind)


def _label(names: Sequence[str], path: Place) -> str:
    """Return the recorder's name of a parameter or an item of its tuple."""
    first = path[0]
    owner = names[first] if isinstance(first, int) else first
    return ".".join([owner, *map(str, path[1:])])


# ---- sources ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    """A function of the sources."""

    file: Path
    name: str
    node: ast.FunctionDef

    @property
    def parameters(self) -> list[ast.arg]:
        args = self.node.args
        return [*args.posonlyargs, *args.args, *args.kwonlyargs]

    @property
    def kernel(self) -> dict[str, Any]:
        return {"file": str(self.file), "function": self.name, "module": _module_of(self.file)}

    def takes(self, compiled: Compiled) -> bool:
        """Return whether a specialisation fits these parameters."""
        names = [parameter.arg for parameter in self.parameters]
        if isinstance(compiled.types, Mapping):
            types = {name: compiled.types.get(name) for name in names}
            has_names = compiled.types.keys() == types.keys()
        else:
            types = dict(zip(names, compiled.types, strict=False))
            has_names = len(compiled.types) == len(names)
        return has_names and all(
            types[parameter.arg] == "constexpr"
            for parameter in self.parameters
            if is_constexpr_annotation(parameter.annotation)
        )


@dataclass
class _Search:
    """Functions of files and folders, by name."""

    sources: Sequence[Path]
    trees: dict[Path, ast.Module | None] = field(default_factory=dict[Path, ast.Module | None])

    def find(self, compiled: Compiled) -> _Found | str:
        """Return the specialised function, or the reason it is unknown."""
        candidates = [
            function for function in self.named(compiled.name) if function.takes(compiled)
        ]
        full_name = f"{compiled.module}.{compiled.name}" if compiled.module else compiled.name
        if not candidates:
            other_files = [str(function.file) for function in self.named(compiled.name)]
            where = f"; other parameters in {', '.join(other_files)}" if other_files else ""
            return f"{full_name} is in no source{where}: name its file or folder (--source)"
        if len(candidates) > 1:
            candidates = [
                function for function in candidates if _is_module(function.file, compiled.module)
            ] or candidates
        if len(candidates) > 1:
            files = ", ".join(str(function.file) for function in candidates)
            return f"{full_name} is in {files}: name the one that was launched (--source)"
        return candidates[0]

    def constant(self, value: dict[str, Any], kernel_file: Path) -> dict[str, Any]:
        """Return a constant; add the file to a function without one."""
        function = value.get("function")
        if function is None or "file" in function:
            return value
        candidates = [*self.named(function["function"])]
        candidates = [
            candidate for candidate in candidates if _is_module(candidate.file, function["module"])
        ] or candidates
        candidates = [
            candidate for candidate in candidates if candidate.file == kernel_file
        ] or candidates
        if len(candidates) != 1:
            return {"other": f"{function['module']}.{function['function']}"}
        return {"function": candidates[0].kernel}

    def named(self, name: str) -> Iterator[_Found]:
        """Yield the functions of a (possibly dotted) name."""
        path = [part for part in name.split(".") if part != "<locals>"]
        for file in self.files.get(path[-1], ()):
            tree = self._tree(file)
            node = None if tree is None else find_definition(tree.body, path)
            if node is not None:
                yield _Found(file, name, node)

    @cached_property
    def files(self) -> dict[str, list[Path]]:
        """The files defining each name. Raises: CompileError."""
        files: dict[str, list[Path]] = {}
        for file in dict.fromkeys(_python_files(self.sources)):
            for name in dict.fromkeys(_DEFINITION.findall(_source_of(file))):
                files.setdefault(name.decode(), []).append(file)
        return files

    def _tree(self, file: Path) -> ast.Module | None:
        if file not in self.trees:
            try:
                self.trees[file] = ast.parse(_source_of(file))
            except (SyntaxError, ValueError, RecursionError):
                self.trees[file] = None
        return self.trees[file]


def _source_of(file: Path) -> bytes:
    """Return the text of a file, empty if unreadable."""
    try:
        return read_regular(file, MAX_SOURCE_BYTES)
    except OSError:
        return b""


def _python_files(sources: Iterable[Path]) -> Iterator[Path]:
    for source in sources:
        path = source.resolve()
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from sorted(
                file
                for file in path.rglob("*.py")
                if file.is_file() and not any(p[0] == "." for p in file.relative_to(path).parts)
            )
        else:
            raise CompileError(f"expected a file or a folder of sources, got {source}")


def _module_of(file: Path) -> str:
    """Return a file's module name, including its packages."""
    parts = [] if file.stem == "__init__" else [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _is_module(file: Path, module: str) -> bool:
    """Return whether a file's path ends like a module's dotted name."""
    parts = module.split(".") if module else []
    module_path = [*file.parts[:-1], *([] if file.stem == "__init__" else [file.stem])]
    return not parts or module_path[-len(parts) :] == parts
