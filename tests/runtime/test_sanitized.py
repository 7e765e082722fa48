"""The extension under the address and undefined-behaviour sanitizers, with its tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import sanitized

FILES = (
    "test_loader.py",
    "test_loader_call.py",
    "test_launcher.py",
    "test_chain.py",
    "test_kept_alive.py",
    "test_plan.py",
    "test_reentrancy.py",
    "test_selection.py",
    "test_tensor.py",
    "test_tensor_device.py",
    "test_bad_tensors.py",
    "test_tensor_map.py",
)


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sanitized.build(tmp_path_factory.mktemp("sanitized"))


def test_sanitized(library: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.sanitized", "-q", "-x"]
    command += ["-o", "addopts=--import-mode=importlib"]  # the project's own ask for xdist
    # A sanitizer reports to the process's own output; pytest would capture it.
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "-s"]
    folder = Path(__file__).parent
    process = subprocess.run(
        [*command, *(str(folder / name) for name in FILES)],
        cwd=sanitized.ROOT,
        env=sanitized.environment(library),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=600,
        check=False,
    )
    if process.returncode != 0:
        pytest.fail((process.stdout + process.stderr)[-20000:], pytrace=False)


def test_the_sanitized_module_is_the_one_in_use(library: Path) -> None:
    """With the installed module the run would detect nothing."""
    code = "import tests.support.sanitized, aotc.runtime._native as n; print(n.__file__)"
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=sanitized.ROOT,
        env=sanitized.environment(library),
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert process.stdout.strip() == str(library)
