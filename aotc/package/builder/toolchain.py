"""Identify the toolchain of a compile: our code and the tools.

Two questions are asked at every start, so they are answered from file names and contents alone. The
first is the installed versions: importing `importlib.metadata` takes longer than a build with
nothing to do. The second is whether the compiler changed since a cache entry was written: during
development its output changes while its version does not.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

from aotc import __version__
from aotc.target import DEFAULT_TOOLCHAIN, PTXAS_VERSIONS

UNKNOWN = "unknown"

# Distributions, and their names in the archive. `nvidia-nvvm` brings libdevice.
_TOOLS = (
    ("llvmlite", "llvmlite"),
    ("nvidia_cuda_nvcc", "ptxas"),
    ("nvidia_nvvm", "libdevice"),
)
# Code that affects cache entries: everything that produces a cubin, and the code of the package
# layer for fallbacks. Changes elsewhere keep the cache valid.
COMPILER_FILES = (
    *("backend", "compiler.py", "config.py", "frontend", "gpu_stages.py", "ir", "metadata.py"),
    *("module_search.py", "python_source.py", "tuple_type.py"),
    *(
        "package/manifest/argument_type.py",
        "package/builder/condition.py",
        "package/archive/stored_ptx.py",
    ),
    *("package/builder/workers.py", "schedule", "source_snapshot.py", "target.py"),
)


def installed_versions(toolchain: str = DEFAULT_TOOLCHAIN) -> dict[str, str]:
    """Return the versions of aotc, llvmlite, ptxas and libdevice, "unknown" if not installed.

    The ptxas is that of the CUDA release `toolchain`.
    """
    versions = {distribution: UNKNOWN for distribution, _ in _TOOLS}
    for folder in sys.path:
        for name in _names(Path(folder)):
            distribution, _, version = name.removesuffix(".dist-info").partition("-")
            if name.endswith(".dist-info") and versions.get(distribution) == UNKNOWN:
                versions[distribution] = version
    tools = {label: versions[distribution] for distribution, label in _TOOLS}
    tools["ptxas"] = PTXAS_VERSIONS.get(toolchain, tools["ptxas"])
    return {"aotc": __version__, **tools}


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []  # a zip file, or a missing folder


def toolchain_text(toolchain: str = DEFAULT_TOOLCHAIN) -> str:
    """Return the versions as one line, such as "aotc 0.1.0; llvmlite 0.50.0; ptxas 13.5.37"."""
    versions = installed_versions(toolchain)
    return "; ".join(f"{label} {version}" for label, version in versions.items())


def compiler_digest(package: Path | None = None) -> str:
    """Return a hexadecimal digest of the compiler's code, the tools and the Python version.

    `package` is the folder of the aotc package, by default this one.
    """
    root = Path(__file__).parents[2] if package is None else package
    digest = hashlib.sha256()
    digest.update(f"{toolchain_text()}; python {sys.version_info[:2]}".encode())
    for path in _compiler_files(root):
        content = path.read_bytes()
        digest.update(f"\n{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _compiler_files(root: Path) -> Iterator[Path]:
    for name in COMPILER_FILES:
        path = root / name
        if path.is_dir():
            yield from sorted(path.rglob("*.py"))
        elif path.exists():
            yield path
