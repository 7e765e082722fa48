"""Pack an archive as a Python wheel: a package with the archive and its typed loader module.

There is a wheel for each GPU architecture, or one for all, so a server only installs kernels for
its GPU. It has no compiled code, so one file serves every Python and host. Launching needs the
distribution `aotc-runtime`, a dependency of the wheel.

Invariant: the same archive gives the same bytes on any machine: entries are in order, uncompressed,
with one date. Format: the binary distribution format and core metadata of packaging.python.org.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace

from aotc import __version__
from aotc.ir.diagnostics import ManifestError
from aotc.package.archive import file as archives
from aotc.package.archive.index import Archive, canonical
from aotc.package.archive.split import file_stem
from aotc.package.emit.python_loader import attribute_names, module_text
from aotc.package.emit.sources import SourcesFile

_NAME = re.compile(r"[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]", re.ASCII)
_VERSION = re.compile(
    r"([1-9][0-9]*!)?(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))*((a|b|rc)(0|[1-9][0-9]*))?"
    r"(\.post(0|[1-9][0-9]*))?(\.dev(0|[1-9][0-9]*))?(\+[a-z0-9]+(\.[a-z0-9]+)*)?",
    re.ASCII,
)
_DATE = (1980, 1, 1, 0, 0, 0)
_FILE_MODE = 0o100644 << 16
_UNIX = 3
_RUNTIME = "aotc-runtime"


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel: its file name, its distribution, its import name, and its bytes."""

    file_name: str
    distribution: str
    module: str
    content: bytes


def make_wheel(
    archive: Archive,
    *,
    suffix: str = "",
    license_expression: str = "",
    sources: SourcesFile | None = None,
) -> Wheel:
    """Return the wheel of an archive; `suffix` follows its name, such as the target's.

    `sources` is the content of `NAME.sources.json`, for programs written for Triton.

    Raises:
        ManifestError: the archive's name or version is invalid for a Python package, or two kernels
            would have the same name in Python.
        ArchiveError: as `file.encode`.
    """
    archive = canonical(archive)
    if not _NAME.fullmatch(archive.name):
        message = (
            f"expected the name of a Python package (letters, digits, . _ -), got {archive.name!r}"
        )
        raise ManifestError(message, remedy="give another: --name")
    if not _VERSION.fullmatch(archive.version):
        message = f"expected a version of a Python package, such as 1.2.0, got {archive.version!r}"
        raise ManifestError(message, remedy="give another: --version")
    distribution = re.sub(r"[-_.]+", "-", f"{archive.name}-{suffix}" if suffix else archive.name)
    distribution = distribution.lower()
    module = distribution.replace("-", "_")
    module = module if not module[0].isdigit() else f"_{module}"
    data = archives.encode(archive)
    stem = file_stem(archive)
    metadata = _metadata(archive, distribution, module, license_expression)
    files = {
        f"{module}/__init__.py": module_text(archive, f"{stem}.aotc").encode(),
        f"{module}/py.typed": b"",
        f"{module}/{stem}.aotc": data,
    }
    if sources is not None:
        text = sources.text([kernel.name for kernel in archive.kernels], data)
        files[f"{module}/{stem}.sources.json"] = text.encode()
    folder = f"{distribution.replace('-', '_')}-{archive.version}.dist-info"
    generator = f"Wheel-Version: 1.0\nGenerator: aotc {__version__}\n"
    files[f"{folder}/METADATA"] = metadata.encode()
    files[f"{folder}/WHEEL"] = f"{generator}Root-Is-Purelib: true\nTag: py3-none-any\n".encode()
    record = f"{folder}/RECORD"
    lines = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    files[record] = ("\n".join([*lines, f"{record},,"]) + "\n").encode()
    file_name = f"{distribution.replace('-', '_')}-{archive.version}-py3-none-any.whl"
    return Wheel(file_name, distribution, module, _zip(files))


def renamed(archive: Archive, name: str, version: str) -> Archive:
    """Return an archive with another name and version, where they are not empty."""
    return replace(archive, name=name or archive.name, version=version or archive.version)


def _digest(content: bytes) -> str:
    digest = hashlib.sha256(content).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _zip(files: Mapping[str, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as wheel:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.create_system = _UNIX
            entry.external_attr = _FILE_MODE
            wheel.writestr(entry, content)
    return written.getvalue()


def _metadata(archive: Archive, distribution: str, module: str, license_expression: str) -> str:
    targets = ", ".join(archive.targets) or "no target"
    count = len(archive.kernels)
    summary = f"{count} GPU kernel{'' if count == 1 else 's'} for {targets}, compiled ahead of time"
    lines = [
        f"Metadata-Version: {'2.4' if license_expression else '2.1'}",
        f"Name: {distribution}",
        f"Version: {archive.version}",
        f"Summary: {summary}",
        *([f"License-Expression: {_one_line(license_expression)}"] if license_expression else []),
        "Classifier: Environment :: GPU :: NVIDIA CUDA",
        "Classifier: Operating System :: POSIX :: Linux",
        "Classifier: Programming Language :: Python :: 3",
        "Classifier: Typing :: Typed",
        "Requires-Python: >=3.10",
        f"Requires-Dist: {_RUNTIME}>={__version__}",
        "Description-Content-Type: text/markdown",
        "",
        f"# {distribution}",
        "",
        f"{summary[0].upper()}{summary[1:]}. Nothing is compiled where it runs.",
        "",
        "```python",
        f"import {module}",
        "",
        f"kernels = {module}.load()",
        "```",
        "",
        "Kernels:",
        "",
        *(f"- `{name}`" for name in attribute_names(archive).values()),
    ]
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())
