"""Write `NAME.sources.json`: which function of which source each kernel of an archive is.

An archive names kernels as the manifest does, and has no paths. A program that runs on archives
(`aotc.triton`) launches Python functions instead: it finds a kernel by the function's name and the
contents of its file, and knows by the contents of the others that nothing it was built of changed.

Invariant: the file has digests and names, no folder of the machine that built it but for paths
relative to the kernel's own source; it is the same wherever the same tree is built.

What autotuners chose, `[[tuned]]` of the manifest, is there too, by function and digest of its file.
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
    """The function that a kernel was compiled from, and all files that were read for it.

    `files` are the paths, relative to the folder of the function's own file, which is the first,
    with their SHA-256. `functions` are the constants that are functions: name and digest of the file.
    `blocks` are the extents of each descriptor's block, numbers or expressions over constants, and
    whether it reads NaN out of bounds.
    """

    function: str
    files: tuple[tuple[str, str], ...]
    functions: tuple[tuple[str, tuple[str, str]], ...] = ()
    enable_fp_fusion: bool = True
    enable_reflect_ftz: bool = True
    blocks: tuple[tuple[str, tuple[tuple[int | str, ...], bool]], ...] = ()


def kernel_source(kernel: KernelSpec, read: Sequence[tuple[str, str]]) -> KernelSource:
    """Return the source of a kernel for which the files `read` were, its own first."""
    folder = Path(kernel.source).parent
    digests = {os.path.normpath(path): digest for path, digest in read}
    files = tuple(
        (Path(os.path.relpath(path, folder)).as_posix(), digest) for path, digest in digests.items()
    )
    named = {name: str(value) for name, value in kernel.constants.items() if ":" in str(value)}
    functions = tuple(_functions({**named, **_items(kernel)}, kernel.source, digests))
    blocks = tuple(
        (name, (argument.block, argument.fill_nan))
        for name, argument in kernel.signature.items()
        if argument.kind == "tensordesc"
    )
    options = kernel.enable_fp_fusion, kernel.enable_reflect_ftz
    return KernelSource(kernel.function.name, files, functions, *options, blocks)


def _items(kernel: KernelSpec) -> dict[str, str]:
    """Return the items of tuples that are functions: the signature has all the others."""
    return {
        leaf: text
        for name, kind in kernel.tuples.items()
        for leaf, text in kind.leaves(name)
        if leaf not in kernel.signature
    }


def _functions(
    named: Mapping[str, str], source: str, digests: Mapping[str, str]
) -> list[tuple[str, tuple[str, str]]]:
    """Return the functions that constants and items of tuples name, with the digests of their files.

    A name without a file is looked for in the kernel's own, and then in those that it was compiled with.
    """
    found: list[tuple[str, tuple[str, str]]] = []
    for name, text in named.items():
        file, colon, function = text.rpartition(":")
        digest = digests.get(os.path.normpath(Path(source).parent / file)) if colon else None
        if not colon:
            module, _, function = text.rpartition(".")
            files = [*digests.items()][1 if module else 0 :]
            digest = next((one for path, one in files if _defines(path, function)), None)
        if digest is not None:
            found.append((name, (function, digest)))
    return found


def _defines(path: str, function: str) -> bool:
    """Return whether a file defines a function of that name."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return re.search(rf"^def {re.escape(function)}\(", text, re.MULTILINE) is not None


def tuned_entries(
    manifest: Manifest, sources: Mapping[str, KernelSource]
) -> tuple[dict[str, object], ...]:
    """Return what autotuners chose for functions of which `sources` has kernels, as it is written."""
    digests = {
        (kernel.source, kernel.function.name): sources[kernel.name].files[0][1]
        for kernel in manifest.kernels
        if kernel.name in sources
    }
    return tuple(
        {
            "function": one.function,
            "file": digests[one.source, one.function],
            "key": one.key,
            "dtypes": one.dtypes,
            "config": one.config,
        }
        for one in manifest.tuned
        if (one.source, one.function) in digests
    )


@dataclass(frozen=True, slots=True)
class SourcesFile:
    """What the file beside an archive says of its kernels, and what autotuners chose for them."""

    kernels: Mapping[str, Mapping[str, Any]]
    tuned: Sequence[Mapping[str, object]] = ()

    def text(self, kernels: Sequence[str], archive: bytes) -> str:
        """Return the text of the file beside an archive that has these kernels."""
        told = {name: self.kernels[name] for name in sorted(kernels) if name in self.kernels}
        functions = [(one["function"], one["files"][0][1]) for one in told.values()]
        tuned = [one for one in self.tuned if (one["function"], one["file"]) in functions]
        data = {
            "version": VERSION,
            "archive_sha256": hashlib.sha256(archive).hexdigest(),
            "kernels": told,
            **({"tuned": tuned} if tuned else {}),
        }
        return json.dumps(data, indent=1) + "\n"

    def joined(self, other: SourcesFile) -> SourcesFile:
        """Return what both say."""
        more = [one for one in other.tuned if one not in self.tuned]
        return SourcesFile({**self.kernels, **other.kernels}, [*self.tuned, *more])


def sources_text(
    sources: Mapping[str, KernelSource], archive: bytes, tuned: Sequence[Mapping[str, object]] = ()
) -> str:
    """Return the text of the file that goes with an archive; `tuned` is of `tuned_entries`."""
    kernels = {
        name: {
            "function": one.function,
            "files": one.files,
            "functions": dict(one.functions),
            **({} if one.enable_fp_fusion else {"enable_fp_fusion": False}),
            **({} if one.enable_reflect_ftz else {"enable_reflect_ftz": False}),
            **({"blocks": dict(one.blocks)} if one.blocks else {}),
        }
        for name, one in sources.items()
    }
    return SourcesFile(kernels, tuned).text([*kernels], archive)


def read_sources(path: Path) -> SourcesFile | None:
    """Read the file beside an archive; return None if there is no such file.

    Raises:
        ManifestError: it is for another archive, or not what `aotc build` writes.
    """
    beside = path.with_suffix(".sources.json")
    wrong = ManifestError(
        f"expected a file of `aotc build`, {beside} is something else",
        remedy="build the archive again, or remove the file",
    )
    try:
        told: Any = json.loads(read_regular(beside, MAX_RECORDS_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise wrong from None
    table = cast("dict[str, Any]", told if isinstance(told, dict) else {})
    kernels: object = table.get("kernels")
    if table.get("version") != VERSION or not isinstance(kernels, dict):
        raise wrong
    if (
        table.get("archive_sha256")
        != hashlib.sha256(read_regular(path, LIMITS.file_bytes)).hexdigest()
    ):
        message = f"expected the sources of {path.name}, {beside} was written for another archive"
        raise ManifestError(message, remedy="copy both from the same build, or remove the file")
    return SourcesFile(cast("dict[str, Any]", kernels), table.get("tuned", ()))
