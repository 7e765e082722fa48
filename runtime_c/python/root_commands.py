"""Commands of the root's distribution: it shares the package `aotc` with aotc-runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

_HERE = Path(__file__).parent
_OF_THE_RUNTIME = (("aotc", "__init__"), ("aotc", "torch"))


class BuildPython(build_py):
    """Build all modules but those that aotc-runtime installs."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if module[:2] not in _OF_THE_RUNTIME]


class BuildInPlace(build_ext):
    """Let `build_ext --inplace` at the root build the extension, which aotc-runtime owns."""

    def run(self) -> None:
        super().run()
        if self.inplace:
            command = ["-q", "build_ext", "--inplace", f"--parallel={self.parallel or 1}"]
            setup = [sys.executable, "-c", "from setuptools import setup; setup()"]
            subprocess.run([*setup, *command], cwd=_HERE, check=True)
