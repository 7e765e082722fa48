"""Evaluate module-level names of all files read by one translation.

A name is evaluated lazily and once, by running the statement binding it. Among several bindings,
their guards decide. A binding in an `except` clause counts only if the others import a missing
module.

Invariant: only names used by a kernel are evaluated, and only files reached by them are opened.
"""

from __future__ import annotations

import ast
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol, TypeVar
from typing import cast as type_cast

from aotc.frontend import source
from aotc.frontend.emitter import mistake
from aotc.frontend.language.builtins import ALIASES, MODULES, module_member
from aotc.frontend.language.constants import truth_of, unwrap
from aotc.frontend.language.python_modules import PYTHON_MODULES
from aotc.frontend.language.target_info import TARGET_INFO, target_info_member
from aotc.frontend.python.facts import answers, platform_answer
from aotc.frontend.python.jit_decorators import foreign_decorator
from aotc.frontend.python.resolve import (
    Binding,
    bindings,
    bound_names,
    changes,
    class_names,
    class_statement,
    decorator_names,
    rebound_names,
)
from aotc.frontend.python.scope import is_constexpr_annotation
from aotc.frontend.source import SourceFile
from aotc.frontend.values import (
    Class,
    Config,
    Constexpr,
    External,
    Function,
    Module,
    Operand,
    Record,
    RecordType,
    UserModule,
    show,
)
from aotc.ir.diagnostics import CompileError, at, current_loc, did_you_mean
from aotc.module_search import Search, find_module

_MAX_BINDINGS = 4096
"""Bindings of a name to evaluate: each may refer to the one before."""

_FLOAT_LIMITS = {
    # name: (largest, smallest normal, distance from one to the next)
    "float16": (65504.0, 2.0**-14, 2.0**-10),
    "bfloat16": (float.fromhex("0x1.fep127"), 2.0**-126, 2.0**-7),
    "float32": (float.fromhex("0x1.fffffep127"), 2.0**-126, 2.0**-23),
    "float64": (float.fromhex("0x1.fffffffffffffp1023"), 2.0**-1022, 2.0**-52),
    "float8_e4m3fn": (448.0, 2.0**-6, 2.0**-3),
    "float8_e5m2": (57344.0, 2.0**-14, 2.0**-2),
}
TORCH_LIMITS: Mapping[str, Operand] = {
    f"torch.finfo({name}).{limit_name}": value
    for name, (largest, tiny, eps) in _FLOAT_LIMITS.items()
    for limit_name, value in (("max", largest), ("min", -largest), ("tiny", tiny), ("eps", eps))
} | {
    f"torch.iinfo({word}{bits}).{limit_name}": value
    for word, signed in (("int", True), ("uint", False))
    for bits in (8, 16, 32, 64)
    for limit_name, value in (
        ("max", (1 << (bits - signed)) - 1),
        ("min", -(1 << (bits - 1)) if signed else 0),
        ("bits", bits),
    )
}
"""Values of `torch.finfo` and `torch.iinfo`, common in globals of kernels."""

_UNKNOWN_NAME = object()
_K = TypeVar("_K", str, tuple[str, str])


class HostFrame(Protocol):
    """Protocol of `frame.Frame`; a protocol avoids an import cycle."""

    def visit(self, node: ast.expr) -> Operand:
        """Evaluate an expression."""
        ...

    values: dict[str, Operand]

    def assigned(self, statement: ast.stmt, name: str) -> Operand:
        """Run an assignment and return the value of `name`."""
        ...

    def run(self, items: Sequence[ast.stmt]) -> object:
        """Run statements."""
        ...


class MakeFrame(Protocol):
    """Factory of frames for host code."""

    def __call__(self, file: SourceFile, values: Mapping[str, Operand] | None = None) -> HostFrame:
        """Return a frame for code of a file, with local variables `values`."""
        ...


class Globals:
    """Module-level names of all files of one translation."""

    def __init__(
        self,
        host_frame: MakeFrame,
        target: str,
        facts: Mapping[str, object],
    ) -> None:
        self._host_frame = host_frame
        self._target = target
        self._answers = answers(target, facts)
        self.files: dict[str, SourceFile] = {}
        self.searches: dict[Search, str | None] = {}
        self._known: dict[tuple[str, str], Operand] = {}
        self._in_progress: dict[tuple[str, str], int] = {}
        self._current_lines: dict[str, int] = {}
        """The line under evaluation, by file."""
        self._star_searches: dict[tuple[str, str], None] = {}
        self.record_types: dict[ast.ClassDef, RecordType | None] = {}
        self.object_types: dict[ast.ClassDef, RecordType] = {}

    def open(self, path: str) -> SourceFile:
        """Return the parsed file at `path` and record the read."""
        file = self.files.get(path)
        if file is None:
            file = self.files[path] = source.load(path)
        return file

    # -- names -----------------------------------------------------------------

    def lookup(self, file: SourceFile, name: str) -> Operand:
        """Return the value of a module-level name; see `is_known`. Raises: CompileError."""
        key = (file.path, name)
        candidates = bindings(file).get(name, ())
        if key in self._known and (len(candidates) < 2 or file.path not in self._current_lines):
            return self._known[key]
        if len(candidates) > _MAX_BINDINGS:
            raise mistake(
                f"the global {name} is bound {len(candidates)} times, at most {_MAX_BINDINGS} are evaluated",
                remedy="bind it once, or pass it as a constexpr argument",
            )
        # In `f = triton.jit(f)` the right side refers to the previous binding.
        limit = self._in_progress.get(key)
        if limit == 0:
            raise mistake(f"the global {name} is defined by itself")
        # A module statement sees earlier bindings, if there are any.
        line = self._current_lines.get(file.path)
        earlier = [
            binding
            for binding in candidates
            if line is not None and binding.statement.lineno < line
        ]
        is_last = limit is None and len(earlier) in (0, len(candidates))
        value = self._lookup(file, name, candidates if is_last else (earlier or candidates)[:limit])
        if is_last:
            self._known[key] = value
        return value

    @contextmanager
    def _evaluating(self, file: SourceFile, name: str, binding: Binding) -> Generator[None]:
        """Restrict lookups of `name` to the bindings before this one."""
        key = (file.path, name)
        outer, line = self._in_progress.get(key), self._current_lines.get(file.path)
        self._in_progress[key] = bindings(file)[name].index(binding)
        self._current_lines[file.path] = binding.statement.lineno
        try:
            yield
        finally:
            _restore(self._in_progress, key, outer)
            _restore(self._current_lines, file.path, line)

    @staticmethod
    def is_known(value: Operand) -> bool:
        """Return whether `lookup` found a definition."""
        return value is not _UNKNOWN_NAME

    def _lookup(self, file: SourceFile, name: str, listed: Sequence[Binding]) -> Operand:
        guards_hold = {binding: self._guards_hold(file, name, binding) for binding in listed}
        possible = [binding for binding in listed if guards_hold[binding] is not False]
        live = [binding for binding in possible if guards_hold[binding]] or possible
        primary = [binding for binding in live if not binding.is_fallback]
        stand_in: Function | None = None
        for binding in reversed(primary):
            value = self._bound(file, name, binding)
            if isinstance(value, Function) and _is_plain(value) and binding.guards:
                # Files define raising stand-ins of the same names for a missing Triton.
                stand_in = stand_in or value
            elif not isinstance(value, External) or len(live) == 1:
                return value
        if stand_in is not None:
            return stand_in
        for binding in live:
            if binding.is_fallback and len(live) > 1:
                try:
                    return self._bound(file, name, binding)
                except CompileError:
                    continue
        if live:
            return self._bound(file, name, live[-1])
        return self._from_star_imports(file, name)

    def _from_star_imports(self, file: SourceFile, name: str) -> Operand:
        key = (file.path, name)
        # Two files may star-import each other.
        if key in self._star_searches:
            return _UNKNOWN_NAME
        self._star_searches[key] = None
        try:
            for star in bindings(file).get("*", ()):
                value = self._imported(file, star, name)
                if self.is_known(value):
                    return value
        finally:
            del self._star_searches[key]
        return _UNKNOWN_NAME

    def _guards_hold(self, file: SourceFile, name: str, binding: Binding) -> bool | None:
        """Return whether all guards of a binding hold; None if unknown."""
        is_decided = True
        for test, outcome in binding.guards:
            try:
                with self._evaluating(file, name, binding):
                    is_true = truth_of(self._host_frame(file).visit(test))
            except CompileError:
                is_decided = False
                continue
            if is_true is not outcome:
                return False
        return True if is_decided else None

    def _bound(self, file: SourceFile, name: str, binding: Binding) -> Operand:
        statement = binding.statement
        if binding.alias is not None:
            with self._evaluating(file, name, binding):
                return self._imported(file, binding, name)
        if isinstance(statement, ast.FunctionDef):
            return self.describe(file, statement, statement.name)
        if isinstance(statement, ast.ClassDef):
            return Class(file, statement, name)
        is_declared = isinstance(statement, ast.AnnAssign) and statement.value is None
        if is_declared or name in rebound_names(file):
            return External(f"{name} of {file.path}")
        with at(file.loc(statement, current_loc())), self._evaluating(file, name, binding):
            value = self._assigned(file, name, statement)
        if name in changes(file) and isinstance(value, list | dict | Config):
            return self._after_changes(file, name, binding, type_cast("Operand", value))
        if isinstance(statement, ast.AnnAssign) and is_constexpr_annotation(statement.annotation):
            return Constexpr(unwrap(value))
        return value

    def _assigned(self, file: SourceFile, name: str, statement: ast.stmt) -> Operand:
        """Run a statement and return the value of a name; a loop starts from the previous one."""
        frame = self._host_frame(file)
        if not isinstance(statement, ast.For | ast.While):
            return frame.assigned(statement, name)
        if self._in_progress[file.path, name] and self.is_known(before := self.lookup(file, name)):
            frame.values[name] = before
        frame.run([statement])
        return frame.values.get(name, External(f"{name} of {file.path}"))

    def describe(self, file: SourceFile, node: ast.FunctionDef, qualname: str) -> Function:
        """Describe a function of a file; a foreign decorator makes it no jit function."""
        function = describe_function(file, node, qualname)
        foreign = foreign_decorator(self._host_frame(file).visit, node)
        return replace(function, is_jit=False, foreign=foreign) if foreign else function

    def _after_changes(
        self, file: SourceFile, name: str, binding: Binding, value: Operand
    ) -> Operand:
        """Return a container after its in-place changes, up to its next binding."""
        listed = bindings(file)[name]
        later_bindings = listed[listed.index(binding) + 1 :]
        first = binding.statement.end_lineno or binding.statement.lineno
        end = min((later.statement.lineno for later in later_bindings), default=len(file.lines) + 1)
        frame = self._host_frame(file)
        frame.values[name] = value
        for statement in changes(file)[name]:
            if first < statement.lineno < end and (statement.end_lineno or 0) < end:
                try:
                    frame.run([statement])
                except CompileError:
                    return External(f"{name} of {file.path}")
        return frame.values[name]

    def imported(self, file: SourceFile, statement: ast.stmt, alias: ast.alias) -> Operand:
        """Return the object bound by one alias of an import inside a function."""
        name = alias.asname or alias.name.partition(".")[0]
        value = self._imported(file, Binding(statement, alias=alias), name)
        return value if self.is_known(value) else External(alias.name)

    def _imported(self, file: SourceFile, binding: Binding, name: str) -> Operand:
        alias, statement = binding.alias, binding.statement
        if alias is None:
            return _UNKNOWN_NAME
        if isinstance(statement, ast.Import):
            dotted = alias.name if alias.asname else alias.name.partition(".")[0]
            return self.module(file, dotted, 0)
        if not isinstance(statement, ast.ImportFrom):
            return _UNKNOWN_NAME
        origin, level = statement.module or "", statement.level
        member = name if alias.name == "*" else alias.name
        if origin == "__future__":
            return External(f"__future__.{member}")
        parent = self.module(file, origin, level)
        if isinstance(parent, External):
            submodule = self.module(file, f"{origin}.{member}".strip("."), level)
            if not isinstance(submodule, External):
                return submodule
            return _UNKNOWN_NAME if alias.name == "*" else External(f"{parent.path}.{member}")
        if alias.name == "*":
            return self._star_member(parent, member)
        if isinstance(parent, Module) and member not in MODULES[parent.name]:
            # Not an error yet: a kernel using it reports it at the use.
            return External(f"{parent.name}.{member}")
        with at(file.loc(statement, current_loc())):
            return self.member(parent, member)

    def _star_member(self, parent: Operand, name: str) -> Operand:
        if isinstance(parent, UserModule):
            return self.lookup(parent.file, name)
        if isinstance(parent, Module):
            return self.member(parent, name) if name in MODULES[parent.name] else _UNKNOWN_NAME
        return _UNKNOWN_NAME

    # -- modules ---------------------------------------------------------------

    def module(self, importer: SourceFile, name: str, level: int) -> Operand:
        """Return the imported module."""
        if not level:
            canonical = ALIASES.get(name, name)
            if canonical in MODULES:
                return Module(canonical)
        path = self._find_module(importer, name, level) if name or level else None
        return UserModule(self.open(path)) if path else External("." * level + name)

    def _find_module(self, importer: SourceFile, name: str, level: int) -> str | None:
        """Return the path of a module, or None, and record the search."""
        search = (importer.path, name, level)
        if search not in self.searches:
            self.searches[search] = find_module(search)
        return self.searches[search]

    def member(self, owner: Operand, name: str) -> Operand:
        """Return an attribute of a module or of an unknown object. Raises: CompileError."""
        if isinstance(owner, Module):
            if (
                owner.name in ("triton", "aotc", *PYTHON_MODULES)
                and name not in MODULES[owner.name]
            ):
                return External(f"{owner.name}.{name}")
            if owner.name == TARGET_INFO:
                return target_info_member(name, self._target)
            return module_member(owner, name)
        if isinstance(owner, UserModule):
            # `from . import name` in an `__init__.py` may import a submodule.
            if self._in_progress.get((owner.file.path, name)) != 0:
                value = self.lookup(owner.file, name)
                if self.is_known(value):
                    return value
            path = self._find_module(owner.file, name, 1) if owner.file.is_package else None
            if path is not None:
                return UserModule(self.open(path))
            raise mistake(
                f"{owner.file.path} defines no {name!r}",
                remedy=did_you_mean(name, bindings(owner.file)),
            )
        if isinstance(owner, Class):
            value = self._class_member(owner, name)
            if self.is_known(value):
                return value
            raise mistake(
                f"{show(owner)} has no attribute {name!r}",
                remedy=did_you_mean(name, class_names(owner.node)),
            )
        if isinstance(owner, Record) and name in owner.kind.fields:
            return owner.by_name[name]
        if isinstance(owner, External):
            return self.external(f"{owner.path}.{name}")
        raise mistake(f"{show(owner)} has no attribute {name!r}")

    def _class_member(self, owner: Class, name: str) -> Operand:
        """Return a member of a class or its bases; see `is_known`."""
        statement = class_statement(owner.node, name)
        if isinstance(statement, ast.FunctionDef):
            return self.describe(owner.file, statement, f"{owner.qualname}.{name}")
        if isinstance(statement, ast.ClassDef):
            return Class(owner.file, statement, f"{owner.qualname}.{name}")
        if statement is not None:
            with at(owner.file.loc(statement, current_loc())):
                frame = self._host_frame(owner.file, self._class_names(owner, name, statement))
                return frame.assigned(statement, name)
        for base in self.bases(owner):
            value = self._class_member(base, name) if isinstance(base, Class) else _UNKNOWN_NAME
            if self.is_known(value):
                return value
        return _UNKNOWN_NAME

    def _class_names(self, owner: Class, name: str, statement: ast.stmt) -> dict[str, Operand]:
        """Return the earlier class members read by a class statement."""
        statements = {
            bound_name: earlier
            for earlier in owner.node.body
            if earlier.lineno < statement.lineno and not isinstance(earlier, ast.FunctionDef)
            for bound_name in bound_names(earlier)
            if bound_name != name
        }
        reads = (
            read_name.id for read_name in ast.walk(statement) if isinstance(read_name, ast.Name)
        )
        return {
            read_name: self._class_member(owner, read_name)
            for read_name in reads
            if read_name in statements
        }

    def evaluate(self, file: SourceFile, node: ast.expr) -> Operand:
        """Evaluate an expression at module level. Raises: CompileError."""
        return self._host_frame(file).visit(node)

    def bases(self, owner: Class) -> list[Operand]:
        """Return the base classes; an unknown base is an `External`."""
        return [self._base(owner.file, base) for base in owner.node.bases]

    def _base(self, file: SourceFile, node: ast.expr) -> Operand:
        try:
            return self.evaluate(file, node)
        except CompileError:  # `object`, or an unknown base
            return External(ast.unparse(node))

    def external(self, path: str) -> Operand:
        """Return the answer of a known query, such as one about the GPU, or an unknown object."""
        path = path.replace("torch.get_device_module()", "torch.cuda")
        if path in self._answers:
            return self._answers[path]
        if path in PYTHON_MODULES:
            return Module(path)
        is_platform = platform_answer(path)
        return TORCH_LIMITS.get(path, External(path)) if is_platform is None else is_platform

    def asks_about_gpu(self, path: str) -> bool:
        """Return whether any known GPU query starts with `path`."""
        return any(question.startswith(path) for question in self._answers)


def _restore(values: dict[_K, int], key: _K, before: int | None) -> None:
    if before is None:
        del values[key]
    else:
        values[key] = before


def _is_plain(function: Function) -> bool:
    return not function.is_jit and not function.is_constexpr


def describe_function(file: SourceFile, node: ast.FunctionDef, qualname: str) -> Function:
    """Describe a function of a file by the names of its decorators."""
    names = decorator_names(node)
    return Function(
        file,
        node,
        qualname,
        is_jit=any(name.endswith("jit") for name in names),
        is_constexpr="constexpr_function" in names or "constexpr" in names,
        is_class_method="classmethod" in names,
    )
