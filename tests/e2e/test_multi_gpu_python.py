"""`examples/multi_gpu/multi_gpu.py` without a GPU: the fake driver, and a stand-in for torch.

The stand-in computes each launch from the parameters at the driver, on the launch's device. So a launch
on the wrong GPU, with another's tensor map or with stale parameters is WRONG.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aotc import cli
from tests.support import fake_gpu

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "multi_gpu"
STAND_IN = ROOT / "tests" / "support" / "torch_stand_in"
HOPPER = "9.0:232448"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = tmp_path_factory.mktemp("dist")
    manifest = str(EXAMPLE / "multi_gpu.toml")
    assert cli.run(["build", manifest, "-o", str(dist), "--target", "sm_90a"]) == 0
    return dist / "multi_gpu.aotc"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_gpu.build(tmp_path_factory.mktemp("driver")).parent


def run(archive: Path, driver: Path, gpus: int, *, expect: int, **environment: str) -> str:
    """Run the example on so many GPUs and return its output."""
    process = subprocess.run(
        [sys.executable, EXAMPLE / "multi_gpu.py", archive, "--launches", "2000", "--batches", "2"],
        capture_output=True, text=True, check=False, timeout=120,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(STAND_IN)]),
            "LD_LIBRARY_PATH": str(driver),
            "FAKE_CUDA_DEVICES": ",".join([HOPPER] * gpus),
            **environment,
        },
    )  # fmt: skip
    assert process.returncode == expect, process.stdout + process.stderr
    verdict = r"launches: \d+, live libraries: 0, violation: none\n"
    assert re.fullmatch(verdict, process.stderr), process.stderr
    return process.stdout


def verdicts(text: str, word: str) -> dict[str, str]:
    return dict(re.findall(rf"^(\w.*?) +{word} \((\d+ of \d+)\)$", text, re.MULTILINE))


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_every_result_on_each_gpu_is_right(archive: Path, driver: Path, gpus: int) -> None:
    text = run(archive, driver, gpus, expect=0)
    assert f"multi_gpu.aotc on {gpus} GPU" in text
    assert "WRONG" not in text
    phases = verdicts(text, "right")
    right, tried = map(int, phases.pop("a second archive meanwhile").split(" of "))
    assert right == tried >= gpus
    mixtures = 2 * (gpus - 1)  # of each two neighbours, in tensors and in streams
    assert phases == {
        "a thread for each GPU": f"{20 * gpus} of {20 * gpus}",
        "one thread on all GPUs in turn": f"{20 * gpus} of {20 * gpus}",
        "graphs on all GPUs in turn": f"{20 * gpus} of {20 * gpus}",
        **({"tensors and streams of two GPUs": f"{mixtures} of {mixtures}"} if mixtures else {}),
        "each GPU leaves the set and comes back": f"{gpus * (gpus + 1)} of {gpus * (gpus + 1)}",
    }
    refused = re.findall(r"^  refused: \S+: kernel 'vector_add': (.*)$", text, re.MULTILINE)
    for gpu in range(gpus - 1):
        of_tensors, of_streams = refused[2 * gpu : 2 * gpu + 2]
        assert f"'y_ptr': expected a tensor on device {gpu}, as 'x_ptr', got device" in of_tensors
        assert f"'x_ptr': expected a tensor on device {gpu + 1}, as the stream, got" in of_streams
    cost = re.findall(r"^GPU (\d): \d+ ns a launch alone, \d+ ns with all", text, re.MULTILINE)
    assert cost == [str(gpu) for gpu in range(gpus)]
    memory = re.search(r"^memory after 2000 launches: host .*$", text, re.MULTILINE)
    assert memory
    assert memory[0].count("GPU") == gpus == len(re.findall(r"GPU \d \+0\.0 MiB", memory[0]))


def test_results_that_no_kernel_wrote_are_wrong(archive: Path, driver: Path) -> None:
    """Without computation only refusals are right, so the tests above do check results."""
    text = run(archive, driver, 2, expect=1, TORCH_STAND_IN_COMPUTES="0")
    assert verdicts(text, "right") == {"tensors and streams of two GPUs": "2 of 2"}
    wrong = verdicts(text, "WRONG")
    assert wrong.pop("a second archive meanwhile").startswith("0 of ")
    assert wrong == {
        "a thread for each GPU": "0 of 40",
        "one thread on all GPUs in turn": "0 of 40",
        "graphs on all GPUs in turn": "0 of 40",
        "each GPU leaves the set and comes back": "2 of 6",
    }
