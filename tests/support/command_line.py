"""A manifest for commands to work on, and the command line in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

MANIFEST = """\
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "k.py:add"
[kernel.signature]
x_ptr = "*T:16"
n = "i32"
[kernel.types]
T = ["fp16", "fp32"]
[kernel.constants]
MODE = "ok"
[[kernel.config]]
num_warps = 4
[[kernel.config]]
num_warps = 32
num_consumer_groups = 2
"""
SOURCE = "def add(x_ptr, n, MODE: tl.constexpr): pass\n"

# Runs the command line with the fake compiler, in a process of its own.
RUNNER = """\
import sys
from aotc import cli
from tests.support.fake_compiler import compile_empty
if __name__ == "__main__":
    sys.exit(cli.run(sys.argv[1:], compile_empty))
"""


def use_mode(folder: Path, mode: str) -> None:
    """Have the fake compiler do as `mode` says."""
    (folder / "kernels.toml").write_text(MANIFEST.replace('"ok"', f'"{mode}"'))


def start(folder: Path, *args: str, **options: Any) -> subprocess.Popen[Any]:
    """Start a command in `folder`, with the fake compiler; `options` go to `Popen`."""
    runner = folder / "runner.py"
    if not runner.exists():  # another process may be reading it as it starts
        runner.write_text(RUNNER)
    env = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    command = [sys.executable, "runner.py", *args]
    return subprocess.Popen(command, cwd=folder, env=env, **options)
