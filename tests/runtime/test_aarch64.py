"""The runtime cross-built for ARM hosts, run under qemu-user on the fake driver.

Of `apt-get install g++-aarch64-linux-gnu qemu-user-static`. With AOTC_AARCH64_PYTHON, the root of an ARM system
with Python and a site folder of the aarch64 wheel and zstandard, the Python loader runs as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.fake_gpu import golden

ROOT = Path(__file__).parents[2]
QEMU = shutil.which("qemu-aarch64-static")
ARM_PYTHON = os.environ.get("AOTC_AARCH64_PYTHON")
# Not test_faults: qemu-user accepts MADV_WIPEONFORK and does not obey it, so a fork goes unnoticed. test_corrupt and
# test_threads take a minute there.
PROGRAMS = (
    *("test_pieces", "test_open", "test_launch", "test_tensor_maps", "test_persistent"),
    *("test_devices", "test_unload", "test_plan", "test_lazy", "test_memory", "test_selection"),
    "test_wrapper",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (QEMU and shutil.which("aarch64-linux-gnu-g++") and shutil.which("cmake")),
        reason="needs an ARM cross compiler, qemu-user and CMake",
    ),
]


def run(*command: str | Path) -> str:
    process = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=900, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, its tests and the fake driver for ARM hosts, by the preset."""
    folder = tmp_path_factory.mktemp("aarch64")
    options = ["-DAOTC_BUILD_TESTS=ON", "-DAOTC_WARNINGS_ARE_ERRORS=ON", "-DAOTC_WITH_ZSTD=OFF"]
    run("cmake", "-S", ROOT / "runtime_c", "--preset", "aarch64", "-B", folder, *options)
    run("cmake", "--build", folder, "-j", "2")
    return folder / "tests"


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("archives")
    golden().main(directory)
    return directory


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_library(built: Path, archives: Path, program: str) -> None:
    assert QEMU is not None
    sysroot = ("-L", "/usr/aarch64-linux-gnu")
    run(QEMU, *sysroot, built / program, archives, built / "libcuda.so.1")


@pytest.mark.skipif(not ARM_PYTHON, reason="needs AOTC_AARCH64_PYTHON")
def test_the_python_loader(built: Path, archives: Path) -> None:
    assert QEMU is not None
    root = Path(str(ARM_PYTHON))
    program = f"""
import platform, aotc.runtime._native as native, aotc
assert platform.machine() == "aarch64" and "aarch64" in native.__file__
library = aotc.load({str(archives / "golden.aotc")!r}, device=0, driver={str(built / "libcuda.so.1")!r})
library["add"]((0x1000, "fp16"), 0x2000, 0x3000, 1)
print("launched")
library.close()
"""
    command = [QEMU, "-L", root, "-E", f"PYTHONPATH={root / 'site'}", root / "usr/bin/python3.11"]
    assert "launched" in run(*command, "-P", "-c", program)
