"""Run tests with an extension module built with the sanitizers.

As a plugin, `pytest -p tests.support.sanitized`, it substitutes the module at AOTC_SANITIZED for
`aotc.runtime._native`, without a change of the installed one. `build` makes the module. `environment`
puts the sanitizer's library first and makes Python allocate by malloc. So each Python object is its
own block, and a use after free is visible.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

import tomli

ROOT = Path(__file__).resolve().parents[2]
MODULE = "aotc.runtime._native"
VARIABLE = "AOTC_SANITIZED"
_FLAGS = ("-g1", "-O0", "-fno-omit-frame-pointer", "-fPIC", "-UNDEBUG")
_SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_CC = os.environ.get("CC", "cc")


def build(directory: Path) -> Path:
    """Compile the extension as the pyproject.toml of aotc-runtime describes it, with the sanitizers; return its path."""
    project = tomli.loads((ROOT / "runtime_c" / "python" / "pyproject.toml").read_text())
    (extension,) = project["tool"]["setuptools"]["ext-modules"]
    folders = [sysconfig.get_path("include"), *(ROOT / f for f in extension["include-dirs"])]
    flags = [*extension["extra-compile-args"], *(f"-I{folder}" for folder in folders)]

    def compiled(source: str) -> Path:
        target = directory / f"{source.replace('/', '-')}.o"
        _run([_CC, *flags, *_FLAGS, *_SANITIZE, "-c", str(ROOT / source), "-o", str(target)])
        return target

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = list(threads.map(compiled, extension["sources"]))
    library = directory / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    libraries = [f"-l{name}" for name in extension["libraries"]]
    _run([_CC, "-shared", *_SANITIZE, *map(str, objects), *libraries, "-o", str(library)])
    return library


def _run(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


def environment(library: Path) -> dict[str, str]:
    """Return the environment for Python to run the tests with the module of `build`."""
    runtime = _run([_CC, "-print-file-name=libasan.so"]).strip()
    return {
        **os.environ,
        VARIABLE: str(library),
        "LD_PRELOAD": runtime,
        "PYTHONMALLOC": "malloc",
        # Python's own allocations until exit are no leaks; the C library's tests check its leaks.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


class _Finder(MetaPathFinder):
    """Find the sanitized module under the name of the installed one."""

    def find_spec(
        self, fullname: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        return spec_from_file_location(MODULE, os.environ[VARIABLE]) if fullname == MODULE else None


if VARIABLE in os.environ:
    if MODULE in sys.modules:
        raise ImportError(f"{MODULE} is imported already: load this plugin first")
    sys.meta_path.insert(0, _Finder())
