"""A Python environment with the loader, its requirements and a wheel: no compiler, no LLVM."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make(folder: Path, wheel: Path) -> Path:
    """Make the environment in a new folder, install a wheel there, and return its Python."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120
    )
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python3*/site-packages")
    # The contents and the requirements of the distribution aotc-runtime.
    runtime = site / "aotc"
    skipped = shutil.ignore_patterns("__pycache__", "*.c", "*.h")
    shutil.copytree(ROOT / "aotc" / "runtime", runtime / "runtime", ignore=skipped)
    shutil.copy(ROOT / "aotc" / "__init__.py", runtime)
    shutil.copy(ROOT / "aotc" / "py.typed", runtime)
    module_spec = importlib.util.find_spec("zstandard")
    if module_spec is None or module_spec.origin is None:
        raise ModuleNotFoundError("zstandard")
    shutil.copytree(Path(module_spec.origin).parent, site / "zstandard")
    install = [sys.executable, "-m", "pip", f"--python={python}", "install", "--no-deps", "-q"]
    subprocess.run([*install, "--no-index", str(wheel)], check=True, timeout=120)
    return python


def run(python: Path, program: str, *arguments: str) -> str:
    """Run a program in the environment, and return its output; fail with its errors."""
    process = subprocess.run(
        [str(python), "-I", "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if process.returncode != 0:
        raise AssertionError(process.stdout + process.stderr)
    return process.stdout
