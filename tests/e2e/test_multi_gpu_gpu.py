"""`examples/multi_gpu` on the GPUs of the host: every result, and no memory lost.

pytest -m gpu tests/e2e/test_multi_gpu_gpu.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.gpu


def test_the_example_on_all_gpus(tmp_path: Path) -> None:
    """Both programs, if the host has their requirements; the runner fails if neither ran."""
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs, and this host has {torch.cuda.device_count()}")
    command = [sys.executable, ROOT / "examples" / "multi_gpu" / "run.py", "-o", tmp_path]
    process = subprocess.run(
        [*map(str, command), "--launches", "100000"],
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
    verdicts = process.stdout.splitlines()[-3:]
    assert "Python: right" in verdicts, process.stdout
    assert "WRONG" not in process.stdout
