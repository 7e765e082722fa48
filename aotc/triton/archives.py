"""Find the archived kernels compiled from a Python function.

`aotc build` writes `NAME.sources.json` beside `NAME.aotc`. It has each kernel's function, and the
digests of all files read for it. A function launches the kernels with its name and its file's
content, provided their other files are unchanged too.

Archives are opened immediately. A kernel is loaded on a GPU at its first launch there.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from aotc.regular_file import MAX_RECORDS_BYTES, read_regular
from aotc.runtime import Kernel, Library, load
from aotc.triton.extract import extract, has_other_source, is_extract

if TYPE_CHECKING:
    from aotc.runtime.info import KernelInfo

_VERSION = 1


class ArchivedKernel(NamedTuple):
    """A kernel of an archive, its position, and its function-valued constants.

    `blocks` are the extents of its descriptors' blocks, and whether they read NaN out of bounds.
    With `fuses_multiplies`, products and sums are fused; without `reflects_ftz`, libdevice keeps
    subnormals. With `is_cooperative`, all programs of a launch run at once.
    """

    library: Library
    kernel: Kernel
    info: KernelInfo
    order: int
    functions: dict[str, tuple[str, str]]
    fuses_multiplies: bool = True
    reflects_ftz: bool = True
    blocks: Mapping[str, tuple[Sequence[int | str], bool]] = {}
    is_cooperative: bool = False

    def load(self, device: int | None) -> None:
        """Load it on a device; None is the current context's."""
        self.library.load(device, self.info.name, lazy=True)


class TunedConfig(NamedTuple):
    """An autotuner's choice of a config for a key and tensor dtypes."""

    key: dict[str, Any]
    dtypes: dict[str, str]
    config: dict[str, Any]


class Archives:
    """The kernels of all installed archives."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]], driver: str | None = None) -> None:
        """Open archives.

        Raises: AotcError for an invalid archive; ValueError if its sources are unknown.
        """
        self._found: dict[tuple[str, str], list[tuple[Library, str, dict[str, Any]]]] = {}
        self._tuned: dict[tuple[str, str], list[TunedConfig]] = {}
        self._functions: set[str] = set()
        for path in paths:
            self._open(os.fspath(path), driver)

    def _open(self, path: str, driver: str | None) -> None:
        library = load(path, kernels=(), driver=driver)
        sources_path = f"{path.removesuffix('.aotc')}.sources.json"
        try:
            sources = json.loads(read_regular(sources_path, MAX_RECORDS_BYTES))
        except FileNotFoundError:
            message = f"{sources_path} is missing: it says what functions the kernels of {path} are"
            raise ValueError(
                f"{message}; aotc build writes it, keep it beside the archive"
            ) from None
        except OSError as error:
            raise ValueError(f"cannot read {sources_path}: {error.strerror}") from None
        if sources.get("version") != _VERSION:
            message = f"{sources_path}: expected version {_VERSION}, got {sources.get('version')!r}"
            raise ValueError(f"{message}; build the archive with this release of aotc")
        if sources["archive_sha256"] != digest_of(path):
            message = f"{sources_path} was written for another archive than {path}"
            raise ValueError(f"{message}; copy both from the same build")
        for name, source in sources["kernels"].items():
            key = (source["function"], source["files"][0][1])
            self._found.setdefault(key, []).append((library, name, source))
            self._functions.add(source["function"])
        for choice in sources.get("tuned", ()):
            tuned = TunedConfig(choice["key"], choice["dtypes"], choice["config"])
            self._tuned.setdefault((choice["function"], choice["file"]), []).append(tuned)

    def tuned(self, function: Any) -> Sequence[TunedConfig]:
        """Return the choices of a function's autotuner, in the order of the archives."""
        return self._tuned.get(self._name(function), ())

    def is_structured(self, function: Any) -> bool:
        """Return whether a jitted function has kernels with tuples or descriptors."""
        parameters = inspect.signature(function.fn).parameters.values()
        # An optional parameter is a tuple only if its default is one.
        optional = {
            parameter.name
            for parameter in parameters
            if parameter.default is not inspect.Parameter.empty
            and not isinstance(parameter.default, tuple)
        }
        names = {parameter.name for parameter in parameters}
        return any(
            kernel.blocks or _takes_tuples(kernel.info, names, optional)
            for kernel in self.kernels_of(function)[0]
        )

    def _name(self, function: Any) -> tuple[str, str]:
        """Return a jitted function's key in archives: name and digest of its file or extract."""
        is_replaced = has_other_source(function)
        if not is_replaced:
            by_file = identity(function.fn)
            if by_file in self._found:
                return by_file
        is_named = is_replaced or function.fn.__name__ in self._functions
        extracted = extract_identity(function) if is_named else None
        return extracted if extracted in self._found else identity(function.fn)

    def kernels_of(self, function: Any) -> tuple[list[ArchivedKernel], str]:
        """Return the kernels compiled from a jitted function, or none and the reason."""
        name, digest = self._name(function)
        built = self._found.get((name, digest), [])
        path = function.fn.__code__.co_filename
        if not built:
            is_named = name in self._functions
            reason = (
                "its file is not the one that was compiled" if is_named else "no archive has it"
            )
            return [], reason
        kernels: list[ArchivedKernel] = []
        reason = ""
        for order, (library, kernel_name, source) in enumerate(built):
            # Extracts are not files of the program: `_name` compares them.
            files: list[tuple[str, str]] = [
                (name, digest) for name, digest in source["files"] if not is_extract(name, digest)
            ]
            changed = next((file for file in files if not _is_same(path, *file)), None)
            if changed is not None:
                reason = f"{changed[0]}, which it was compiled with, is another one here"
                continue
            functions = {
                key: (function_key[0], function_key[1])
                for key, function_key in source["functions"].items()
            }
            kernel = library[kernel_name]
            fuses, flushes = (
                source.get(f"enable_{name}", True) for name in ("fp_fusion", "reflect_ftz")
            )
            blocks = {
                name: (block[0], block[1]) for name, block in source.get("blocks", {}).items()
            }
            info = kernel.info
            is_cooperative = source.get("launch_cooperative_grid", False) or all(
                variant.cooperative for variant in info.variants
            )
            kernels.append(
                ArchivedKernel(
                    library, kernel, info, order, functions, fuses, flushes, blocks, is_cooperative
                )
            )
        return kernels, reason


def _takes_tuples(info: Any, names: set[str], optional: set[str]) -> bool:
    """Return whether a kernel's parameters differ from the function's, as items of tuples do."""
    passed = {*(param.name for param in info.params), *info.constants}
    decided = {*info.choices, *(name for config in info.configs for name in config)}
    return not (passed <= names <= passed | decided | optional)


def identity(function: Any) -> tuple[str, str]:
    """Return a function's key: its name, and the digest of its file."""
    return manifest_name(function), digest_of(function.__code__.co_filename)


def manifest_name(function: Any) -> str:
    """Return a function's name for a manifest: dotted if nested."""
    return str(function.__qualname__).replace(".<locals>", "")


def extract_identity(function: Any) -> tuple[str, str] | None:
    """Return the key of a jitted function's extract, None without one."""
    cached = _extracts.get(id(function))
    if cached is None:
        try:
            extracted = extract(function)
        except (OSError, SyntaxError, TypeError, ValueError):
            extracted = None
        key = None if extracted is None else (extracted.function, extracted.digest)
        cached = _extracts[id(function)] = (key, function)
    return cached[0]


_extracts: dict[int, tuple[tuple[str, str] | None, Any]] = {}  # by id of function, kept alive


@cache
def digest_of(path: str) -> str:
    """Return the SHA-256 of a file, "" if unreadable."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - start-up time
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def _is_same(path: str, relative: str, digest: str) -> bool:
    """Return whether a source file of a kernel in `path` is unchanged here.

    The build may have used copies with other relative paths. A file missing at its relative path is
    looked up among the program's modules.
    """
    other = os.path.normpath(os.path.join(os.path.dirname(path), relative))  # noqa: PTH118, PTH120
    if os.path.exists(other):  # noqa: PTH110 - start-up time
        return digest_of(other) == digest
    name = os.path.basename(relative)  # noqa: PTH119
    files = (getattr(module, "__file__", None) or "" for module in [*sys.modules.values()])
    return any(
        digest_of(file) == digest
        for file in files
        if os.path.basename(file) == name  # noqa: PTH119
    )
