"""Write `NAME.sources.json`: the source function of each kernel of an archive.

An archive names kernels as the manifest does, and has no paths. A program running on archives
(`aotc.triton`) launches Python functions instead. It finds a kernel by the function's name and its
file's digest, and checks the digests of all files it was built from.

Invariant: the file has digests and names, and only paths relative to the kernel's own source; it is
the same wherever the same tree is built.

The autotuners' configs, `[[tuned]]` of the manifest, are there too, by function and digest of its
file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from aotc.ir.diagnostics import ManifestError
from aotc.package.archive.layout import LIMITS
from aotc.package.manifest.spec import KernelSpec, Manifest
from aotc.regular_file import MAX_RECORDS_BYTES, read_regular

VERSION = 1


@dataclass(frozen=True, slots=True)
class KernelSource:
    """The source function of a kernel, and all files read for it.

    `files` are paths relative to the folder of the function's own file, which is the first, with
    their SHA-256. `functions` are the constants with a function as value: name and digest of the
    file. `blocks` are the extents of each descriptor's block, numbers or expressions over
    constants, and whether it reads NaN out of bounds.
    """

    function: str
    files: tuple[tuple[str, str], ...]
    functions: tuple[tuple[str, tuple[str, str]], ...] = ()
    enable_fp_fusion: bool = True
    enable_reflect_ftz: bool = True
    blocks: tuple[tuple[str, tuple[tuple[int | str, ...], bool]], ...] = ()
    launch_cooperative_grid: bool = False


def kernel_source(kernel: KernelSpec, read: Sequence[tuple[str, str]]) -> KernelSource:
    """Return the source of a kernel; `read` lists its files, its own first."""
    folder = Path(kernel.source).parent
    digests = {os.path.normpath(path): digest for path, digest in read}
    files = tuple(
        (Path(os.path.relpath(path, folder)).as_posix(), digest) for path, digest in digests.items()
    )
    function_texts = {
        name: str(value) for name, value in kernel.constants.items() if ":" in str(value)
    }
    functions = tuple(_functions({**function_texts, **_items(kernel)}, kernel.source, digests))
    blocks = tuple(
        (name, (argument.block, argument.fill_nan))
        for name, argument in kernel.signature.items()
        if argument.kind == "tensordesc"
    )
    options = kernel.enable_fp_fusion, kernel.enable_reflect_ftz
    cooperates = kernel.launch_cooperative_grid
    return KernelSource(kernel.function.name, files, functions, *options, blocks, cooperates)


def _items(kernel: KernelSpec) -> dict[str, str]:
    """Return the function items of tuples: the signature has all the others."""
    return {
        leaf: text
        for name, kind in kernel.tuples.items()
        for leaf, text in kind.leaves(name)
        if leaf not in kernel.signature
    }


def _functions(
    function_texts: Mapping[str, str], source: str, digests: Mapping[str, str]
) -> list[tuple[str, tuple[str, str]]]:
    """Return the functions named by constants and tuple items, with their files' digests.

    A name without a file is looked up in the kernel's own file, then in the other files read for
    it.
    """
    functions: list[tuple[str, tuple[str, str]]] = []
    for name, text in function_texts.items():
        file, colon, function = text.rpartition(":")
        digest = digests.get(os.path.normpath(Path(source).parent / file)) if colon else None
        if not colon:
            module, _, function = text.rpartition(".")
            files = [*digests.items()][1 if module else 0 :]
            digest = next(
                (file_digest for path, file_digest in files if _defines(path, function)), None
            )
        if digest is not None:
            functions.append((name, (function, digest)))
    return functions


def _defines(path: str, function: str) -> bool:
    """Return whether a file defines `function`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return re.search(rf"^def {re.escape(function)}\(", text, re.MULTILINE) is not None


def tuned_entries(
    manifest: Manifest, sources: Mapping[str, KernelSource]
) -> tuple[dict[str, object], ...]:
    """Return the autotuners' configs for the functions in `sources`, ready to write."""
    digests = {
        (kernel.source, kernel.function.name): sources[kernel.name].files[0][1]
        for kernel in manifest.kernels
        if kernel.name in sources
    }
    return tuple(
        {
            "function": config.function,
            "file": digests[config.source, config.function],
            "key": config.key,
            "dtypes": config.dtypes,
            "config": config.config,
        }
        for config in manifest.tuned
        if (config.source, config.function) in digests
    )


@dataclass(frozen=True, slots=True)
class SourcesFile:
    """The sources file next to an archive: its kernels, and the autotuners' configs."""

    kernels: Mapping[str, Mapping[str, Any]]
    tuned: Sequence[Mapping[str, object]] = ()

    def text(self, kernels: Sequence[str], archive: bytes) -> str:
        """Return the text of the file for an archive with these kernels."""
        selected = {name: self.kernels[name] for name in sorted(kernels) if name in self.kernels}
        functions = [(entry["function"], entry["files"][0][1]) for entry in selected.values()]
        tuned = [entry for entry in self.tuned if (entry["function"], entry["file"]) in functions]
        data = {
            "version": VERSION,
            "archive_sha256": hashlib.sha256(archive).hexdigest(),
            "kernels": selected,
            **({"tuned": tuned} if tuned else {}),
        }
        return json.dumps(data, indent=1) + "\n"

    def joined(self, other: SourcesFile) -> SourcesFile:
        """Merge two files."""
        more = [config for config in other.tuned if config not in self.tuned]
        return SourcesFile({**self.kernels, **other.kernels}, [*self.tuned, *more])


def sources_text(
    sources: Mapping[str, KernelSource], archive: bytes, tuned: Sequence[Mapping[str, object]] = ()
) -> str:
    """Return the text of the file for an archive; `tuned` is from `tuned_entries`."""
    kernels = {
        name: {
            "function": source.function,
            "files": source.files,
            "functions": dict(source.functions),
            **({} if source.enable_fp_fusion else {"enable_fp_fusion": False}),
            **({} if source.enable_reflect_ftz else {"enable_reflect_ftz": False}),
            **({"blocks": dict(source.blocks)} if source.blocks else {}),
            **({"launch_cooperative_grid": True} if source.launch_cooperative_grid else {}),
        }
        for name, source in sources.items()
    }
    return SourcesFile(kernels, tuned).text([*kernels], archive)


def read_sources(path: Path) -> SourcesFile | None:
    """Read the file next to an archive; return None if there is no such file.

    Raises:
        ManifestError: it is for another archive, or was not written by `aotc build`.
    """
    sources_path = path.with_suffix(".sources.json")
    wrong = ManifestError(
        f"expected a file of `aotc build`, {sources_path} is something else",
        remedy="build the archive again, or remove the file",
    )
    try:
        document: Any = json.loads(read_regular(sources_path, MAX_RECORDS_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise wrong from None
    table = cast("dict[str, Any]", document if isinstance(document, dict) else {})
    kernels: object = table.get("kernels")
    if table.get("version") != VERSION or not isinstance(kernels, dict):
        raise wrong
    if (
        table.get("archive_sha256")
        != hashlib.sha256(read_regular(path, LIMITS.file_bytes)).hexdigest()
    ):
        message = (
            f"expected the sources of {path.name}, {sources_path} was written for another archive"
        )
        raise ManifestError(message, remedy="copy both from the same build, or remove the file")
    return SourcesFile(cast("dict[str, Any]", kernels), table.get("tuned", ()))
