"""Settings for all tests: no Hypothesis deadlines, since the machine may be busy; GPU tests."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Read when NumPy is loaded. Tests run beside each other: a second thread of BLAS only spins, and
# verifying attention takes three times the CPU.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings

from tests.support.built import Built, find_or_build
from tests.support.extent import EXAMPLES, is_few, is_run, mark_emulated
from tests.support.hazards import no_fallback
from tests.support.one_worker import _one_worker, one_worker, own_workers  # noqa: F401 - fixtures

settings.register_profile(
    "aotc", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("few", settings.get_profile("aotc"), max_examples=EXAMPLES)
settings.load_profile("aotc")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--archive", help="archive of kernels.toml for the tests marked gpu")
    parser.addoption("--matrix", help="archive of tests/support/matrix_manifest.py's manifest")
    parser.addoption("--hopper", help="archive of tests/support/hopper_manifest.py's manifest")
    parser.addoption("--layouts", help="archive of layout_cases/cases.toml for those of layouts")
    parser.addoption("--everything", action="store_true", help="all cases, not a few of each test")
    parser.addoption(
        "--exhaustive", action="store_true", help="those marked exhaustive too, for hours"
    )
    parser.addoption("--built", help="folder of archives that tests build: kept or found there")


def pytest_configure(config: pytest.Config) -> None:
    """Let Hypothesis try fewer examples where few cases are run."""
    if is_few(config):
        settings.load_profile("few")


@pytest.fixture(scope="session")
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return a function to build archives, or with --built to find existing ones."""
    given_folder = request.config.getoption("--built")

    def get(name: str, build: Callable[[Path], None]) -> Path:
        folder = Path(given_folder) if given_folder else tmp_path_factory.mktemp(name)
        return find_or_build(folder, name, build)

    return get


@pytest.fixture(scope="session", autouse=True)
def _no_fallback() -> Iterator[None]:  # type: ignore[reportUnusedFunction]
    """Fail on a kernel rescheduled for register hazards, though its second schedule is right."""
    with no_fallback():
        yield


def has_gpu() -> bool:
    """Return whether the CUDA driver is there and finds a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 < count.value


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Apply the selection options, and skip tests marked `gpu` without one."""
    mark_emulated(items)
    runs = is_run(config, items)
    config.hook.pytest_deselected(items=[item for item in items if not runs(item)])
    items[:] = [item for item in items if runs(item)]
    if has_gpu():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


def pytest_collection_finish() -> None:
    """Freeze the thousands of collected tests for the garbage collector."""
    gc.collect()
    gc.freeze()
