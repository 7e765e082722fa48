"""Read the manifest, `kernels.toml`, and check it to the last key.

Every mistake visible in the manifest and in the names of the kernel sources is reported here,
before anything is compiled. A report has file, line and column, the expected and the given value,
and the nearest valid name. The values returned are in `spec.py`; `kernel_table.py` reads the
sections of a kernel's table, and `variant_grid.py` expands variants.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from aotc import target as targets
from aotc.ir.diagnostics import DiagnosticError, IRError, Loc, ManifestError, did_you_mean, nearest
from aotc.package.manifest.facts_table import Facts, read_facts
from aotc.package.manifest.include import check_agrees, read_included
from aotc.package.manifest.kernel_table import KERNEL_KEYS, read_kernel
from aotc.package.manifest.parameters import Function, parse_functions
from aotc.package.manifest.spec import KernelSpec, Manifest
from aotc.package.manifest.toml_table import Document, Mistakes, Table
from aotc.package.manifest.tuned import TUNED_KEYS, TunedConfig, read_tuned
from aotc.regular_file import MAX_SOURCE_BYTES, read_regular
from aotc.target import Target

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTION = re.compile(rf"{_NAME.pattern}(\.{_NAME.pattern})*")
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)([-+][0-9A-Za-z.+-]+)?")
_IF_UNREADABLE = {"a manifest": "run this in the folder of kernels.toml, or give a manifest's path"}
_NO_MANIFEST = {
    ".py": "write one for its kernels: `aotc init {path}`",
    ".aotc": "give the manifest that it was built of",
}
_MAX_LISTED = 12
# The pattern of PEP 263.
_DECLARATION = r"(?m)^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)"
_ROOT_KEYS = ("include", "package", "kernel", "tuned")
_PACKAGE_KEYS = ("name", "version", "targets", "without", "toolchain", "facts")


def load(path: str) -> Manifest:
    """Read the manifest at `path` and check it against its kernel sources.

    Raises:
        ManifestError: the manifest cannot be read or is wrong.
        CompileError: a kernel source is not Python.
    """
    suffix = Path(path).suffix
    if suffix in _NO_MANIFEST:
        remedy = _NO_MANIFEST[suffix].format(path=path)
        raise ManifestError(f"expected a manifest, got {path!r}", remedy=remedy)
    return parse(_read_text(Path(path), "a manifest", None, ""), path)


def parse(text: str, path: str) -> Manifest:
    """Parse a manifest; sources are relative to the folder of `path`.

    Raises:
        ManifestError: the manifest is wrong; further mistakes are in its `others`.
        CompileError: a kernel source is not Python.
    """
    reader = _Reader(Document.parse(text, path))
    manifest = reader.manifest()
    reader.mistakes.check()
    if manifest is None:
        raise IRError(f"{path} is wrong, and nothing says why")
    return manifest


@dataclass(frozen=True, slots=True)
class _Package:
    """The `[package]` table."""

    name: str
    version: str
    targets: tuple[Target, ...]
    without: tuple[str, ...]
    toolchain: str
    facts: dict[str, Facts]


@dataclass(slots=True)
class _Reader:
    document: Document
    mistakes: Mistakes = field(default_factory=Mistakes)
    functions: dict[str, dict[str, Function]] = field(
        default_factory=dict[str, dict[str, Function]]
    )

    def manifest(self) -> Manifest | None:
        """Return the manifest, or None if there are `mistakes`."""
        collected = self.mistakes.collected
        root = self.document.root(_ROOT_KEYS, self.mistakes)
        included: list[tuple[str, Table]] = []
        with collected():
            included = read_included(root, self.document.file, self.included)
        read: list[_Package] = []
        with collected():
            table = root.table("package", _PACKAGE_KEYS)
            read.append(self.package(table))
            for _, other in included:
                with collected():
                    check_agrees(other, table)
        tables: list[tuple[str, Table]] = []
        for file, manifest_table in (*included, (self.document.file, root)):
            if manifest_table.has("kernel") or not included:
                with collected():
                    tables += (
                        (file, kernel_table)
                        for kernel_table in manifest_table.tables("kernel", KERNEL_KEYS)
                    )
        kernels: dict[str, KernelSpec] = {}
        for file, table in tables:
            with collected():
                kernel = self.kernel(file, table)
                if kernel.name in kernels:
                    first = kernels[kernel.name].loc
                    key = "name" if table.has("name") else "source"
                    message = f"expected a unique name, got {kernel.name!r} as at {first}"
                    raise table.wrong(key, message, "give one of the two another `name`")
                kernels[kernel.name] = kernel
                if read and file == self.document.file:
                    _check_targets(table, kernel, read[0])
        tuned: list[TunedConfig] = []
        for file, manifest_table in (*included, (self.document.file, root)):
            with collected():
                for table in (
                    manifest_table.tables("tuned", TUNED_KEYS)
                    if manifest_table.has("tuned")
                    else ()
                ):
                    with collected():
                        tuned.append(read_tuned(table, *self.source(file, table)))
        if not read:
            return None
        (package,) = read
        kernel_specs = tuple(kernels.values())
        return Manifest(
            self.document.file,
            package.name,
            package.version,
            package.targets,
            kernel_specs,
            package.without,
            package.facts,
            tuple(tuned),
            tuple(path for path, _ in included),
            package.toolchain,
        )

    def package(self, package: Table) -> _Package:
        name = version = ""
        with self.mistakes.collected():
            name = package.string("name")
            _check_identifier(package, "name", name, "a package name")
        with self.mistakes.collected():
            version = package.string("version")
            if not _VERSION.fullmatch(version):
                message = f"expected a version such as '0.1.0', got {version!r}"
                raise package.wrong("version", message)
        built: list[Target] = []
        target_names = package.unique("targets", package.strings("targets"))
        for index, text in enumerate(target_names):
            with self.mistakes.collected():
                built += targets.parse_set(text, package.element("targets", index))
        built = list(dict.fromkeys(built))
        without = package.strings("without") if package.has("without") else ()
        for index, feature in enumerate(without):
            with self.mistakes.collected():
                loc = package.element("without", index)
                built = [target.excluding([feature], loc) for target in built]
        toolchain = targets.DEFAULT_TOOLCHAIN
        if package.has("toolchain"):
            toolchain = package.string("toolchain")
            for target in built:
                with self.mistakes.collected():
                    target.assembled_by(toolchain, package.value_loc("toolchain"))
        facts = read_facts(package)
        built = [replace(target, facts=facts[target.name]) for target in built]
        return _Package(name, version, tuple(built), without, toolchain, facts)

    def included(self, path: str, loc: Loc) -> Table:
        """Return the top level of an included manifest."""
        text = _read_text(Path(path), "a manifest to include", loc, "")
        return Document.parse(text, path).root(_ROOT_KEYS, self.mistakes)

    def kernel(self, manifest: str, table: Table) -> KernelSpec:
        source, function = self.source(manifest, table)
        name = function.name.rpartition(".")[2]
        with self.mistakes.collected():
            if table.has("name"):
                name = table.string("name")
                _check_identifier(table, "name", name, "a kernel name")
        kernel = read_kernel(table, name, source, function)
        return replace(kernel, targets=_kernel_targets(table))

    def source(self, manifest: str, table: Table) -> tuple[str, Function]:
        text = table.string("source")
        loc = table.value_loc("source")
        file, colon, name = text.rpartition(":")
        if not (file and colon and _FUNCTION.fullmatch(name)):
            message = f"expected 'FILE.py:FUNCTION', got {text!r}"
            raise ManifestError(message, loc, remedy=_listed_kernels(manifest, text))
        path = (Path(manifest).parent / file).as_posix()
        if path not in self.functions:
            self.functions[path] = _read_functions(path, loc)
        return path, _pick(self.functions[path], path, name, loc)


def _kernel_targets(table: Table) -> tuple[str, ...]:
    """Return the targets of a `[[kernel]]` table, in their order; empty if it names none."""
    if not table.has("targets"):
        return ()
    target_names: list[str] = []
    for index, text in enumerate(table.unique("targets", table.strings("targets"))):
        with table.mistakes.collected():
            members = targets.parse_set(text, table.element("targets", index))
            target_names += [target.name for target in members]
    return tuple(target_names)


def _check_targets(table: Table, kernel: KernelSpec, package: _Package) -> None:
    """Check that the package includes the kernel's targets. Raises: ManifestError."""
    built = [target.name for target in package.targets]
    for index, name in enumerate(kernel.targets):
        if built and name not in built:
            message = f"expected targets of the package ({', '.join(built)}), got {name!r}"
            remedy = "add it to `targets` of [package], or leave it out here"
            raise ManifestError(message, table.element("targets", index), remedy=remedy)


def _listed_kernels(manifest: str, text: str) -> str:
    """Return a remedy for a source without a function: the kernels of the file."""
    with contextlib.suppress(DiagnosticError):
        names = kernels_of_source((Path(manifest).parent / text).as_posix())
        listed = ", ".join(f"{text}:{name}" for name in names[:_MAX_LISTED])
        if listed and len(names) > _MAX_LISTED:
            listed += f", and {len(names) - _MAX_LISTED} more"
        if listed:
            return f"its kernels: {listed}"
    return "such as 'norm.py:rmsnorm', in ASCII"


def kernels_of_source(path: str) -> list[str]:
    """Return the names of a source's `@triton.jit` functions without results.

    Raises: as `read_function`.
    """
    functions = _read_functions(path, None)
    return [name for name, function in functions.items() if function.is_kernel]


def read_function(path: str, name: str) -> Function:
    """Return the function `name` of the kernel source at `path`.

    Raises:
        ManifestError: there is no such file or no such function in it.
        CompileError: the file is not Python.
    """
    return _pick(_read_functions(path, None), path, name, None)


def _read_functions(path: str, loc: Loc | None) -> dict[str, Function]:
    return parse_functions(_read_text(Path(path), "a kernel source", loc, _DECLARATION), path)


def _pick(functions: Mapping[str, Function], path: str, name: str, loc: Loc | None) -> Function:
    if name in functions:
        return functions[name]
    function_names = ", ".join(functions) or "no function"
    remedy = did_you_mean(name, functions) or f"it defines {function_names}"
    raise ManifestError(f"expected a function of {path}, got {name!r}", loc, remedy=remedy)


def _read_text(path: Path, expected: str, loc: Loc | None, declaration: str) -> str:
    """Read a text file, without a byte-order mark.

    It is UTF-8 unless a comment matching `declaration` names another encoding.
    """
    if not _is_utf8(str(path)):
        message = f"expected {expected} whose path is UTF-8, got {str(path)!r}"
        raise ManifestError(message, loc, remedy="rename the file or folder")
    try:
        data = read_regular(path, MAX_SOURCE_BYTES)
    except OSError as error:
        reason = error.strerror or error
        message = f"expected {expected}, cannot read {path}: {reason}"
        remedy = _nearest_file(path) or _IF_UNREADABLE.get(expected, "")
        raise ManifestError(message, loc, remedy=remedy) from None
    head = b"\n".join(data.split(b"\n", 2)[:2])
    declared = re.search(declaration.encode(), head) if declaration else None
    encoding = declared[1].decode() if declared else "utf-8"
    try:
        return data.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"expected {expected} in UTF-8, {path} is not at line {line}, byte {error.start}"
        raise ManifestError(message, loc, remedy="save the file as UTF-8") from None
    except LookupError:
        message = f"expected {expected} in a known encoding, {path} declares {encoding!r}"
        raise ManifestError(message, loc, remedy="save the file as UTF-8") from None


def _is_utf8(text: str) -> bool:
    """Return whether a path's bytes are UTF-8, the only encoding in archives."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _nearest_file(path: Path) -> str:
    try:
        entries = [entry for entry in path.parent.iterdir() if entry.suffix == path.suffix]
    except (OSError, ValueError):
        return ""
    # A suffix common to all names would make them look similar.
    stem = nearest(path.stem, [entry.stem for entry in entries if entry.name != path.name])
    return f"did you mean {stem + path.suffix!r}?" if stem else ""


def _check_identifier(table: Table, key: str, name: str, expected: str) -> None:
    if not _NAME.fullmatch(name):
        message = f"expected {expected} of letters, digits and '_', got {name!r}"
        raise table.wrong(key, message, "it becomes part of the names in the C header")
