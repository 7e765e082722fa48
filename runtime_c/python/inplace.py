"""Build the extension of aotc-runtime in the checkout, by a command of the root's distribution."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from setuptools.command.build_ext import build_ext

_HERE = Path(__file__).parent


class BuildInPlace(build_ext):
    """Let `build_ext --inplace` at the root build the extension, which aotc-runtime owns."""

    def run(self) -> None:
        super().run()
        if self.inplace:
            command = ["-q", "build_ext", "--inplace", f"--parallel={self.parallel or 1}"]
            setup = [sys.executable, "-c", "from setuptools import setup; setup()"]
            subprocess.run([*setup, *command], cwd=_HERE, check=True)
