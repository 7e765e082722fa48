"""The fake CUDA driver from Python: build it, script it, read its launches.

The driver and its checks are C (`runtime_c/tests/fake_cuda`). A violation is a call no correct program
makes; it fails the test.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "runtime_c" / "tests"


class Launch(NamedTuple):
    """A launch as the driver saw it; `params` is the parameter block, `stream` and `device` where."""

    symbol: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...]
    shared_bytes: int
    device: int
    is_pdl: bool
    is_cooperative: bool
    context: int
    stream: int
    params: bytes

    def unpack(self, layout: str) -> tuple[object, ...]:
        """Read the parameters by a `struct` layout, without padding unless it says so."""
        return struct.unpack_from("<" + layout, self.params)


MAX_PARAMS = 64


class RawLaunch(ctypes.Structure):
    """`struct fake_launch` of `fake_cuda.h`."""

    _fields_ = (
        ("symbol", ctypes.c_char * 256),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("cluster", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("device", ctypes.c_int),
        ("is_pdl", ctypes.c_int),
        ("is_cooperative", ctypes.c_int),
        ("context", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("params", ctypes.c_ubyte * 4096),
        ("param_bytes", ctypes.c_size_t),
        ("arch", ctypes.c_int),
        ("param_count", ctypes.c_uint),
        ("param_offsets", ctypes.c_uint * MAX_PARAMS),
    )


class _Device(ctypes.Structure):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int), ("shared_bytes", ctypes.c_int))


HOPPER = (9, 0, 232448)
AMPERE = (8, 0, 166912)


class FakeGpu:
    """The fake driver in this process. `path` is the `driver` argument of `aotc.load`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._driver = driver = ctypes.CDLL(str(path))
        driver.fake_cuda_violation.restype = ctypes.c_char_p
        driver.fake_cuda_calls.restype = ctypes.c_ulong
        driver.fake_cuda_launches.restype = ctypes.c_ulong
        for function in ("create_context", "primary_context", "create_stream"):
            getattr(driver, f"fake_cuda_{function}").restype = ctypes.c_void_p

    def reset(self, *devices: tuple[int, int, int]) -> None:
        """Forget everything; the GPUs are `devices`, one H200 by default."""
        self._driver.fake_cuda_reset()
        listed = devices or (HOPPER,)
        array = (_Device * len(listed))(*(_Device(*device) for device in listed))
        self._driver.fake_cuda_set_devices(array, len(listed))

    def fail(self, symbol: str, result: int, skip: int = 0) -> None:
        """Let the call of `symbol` after the next `skip` ones return `result`, once."""
        self._driver.fake_cuda_fail(symbol.encode(), skip, result)

    def record(self, *, on: bool) -> None:
        """Turn the recording of launches on or off."""
        self._driver.fake_cuda_set_recording(on)

    def make_current(self, device: int | None) -> None:
        """Make the primary context of a device current in this thread, or none."""
        context = None if device is None else self._driver.fake_cuda_primary_context(device)
        self._driver.fake_cuda_set_current(ctypes.c_void_p(context))

    def stream(self, device: int = 0) -> int:
        """Return a new stream of a device's primary context."""
        context = self._driver.fake_cuda_primary_context(device)
        return self._driver.fake_cuda_create_stream(ctypes.c_void_p(context))

    def calls(self, symbol: str) -> int:
        """Return how often an entry point was called."""
        return self._driver.fake_cuda_calls(symbol.encode())

    @property
    def violation(self) -> str | None:
        """The first violation, if any."""
        text = self._driver.fake_cuda_violation()
        return None if text is None else text.decode()

    @property
    def launches(self) -> int:
        """Return the number of launches."""
        return self._driver.fake_cuda_launches()

    @property
    def live_libraries(self) -> int:
        """Return the number of loaded cubins."""
        return self._driver.fake_cuda_live_libraries()

    @property
    def retained_contexts(self) -> int:
        """Return the number of references held to primary contexts."""
        return self._driver.fake_cuda_retained_contexts()

    def last(self) -> Launch:
        """Return the last launch."""
        raw = RawLaunch()
        self._driver.fake_cuda_last_launch(ctypes.byref(raw))
        return Launch(
            raw.symbol.decode(),
            tuple(raw.grid),
            tuple(raw.block),
            tuple(raw.cluster),
            raw.shared_bytes,
            raw.device,
            bool(raw.is_pdl),
            bool(raw.is_cooperative),
            raw.context or 0,
            raw.stream or 0,
            bytes(raw.params),
        )


def compile_library(sources: Sequence[Path], target: Path, *options: str) -> Path:
    """Compile C to a shared library and return its path."""
    command = [
        os.environ.get("CC", "cc"),
        "-std=gnu11",
        "-O1",
        "-g",
        "-shared",
        "-fPIC",
        "-pthread",
    ]
    subprocess.run(
        [*command, *options, *map(str, sources), "-o", str(target)], check=True, timeout=300
    )
    return target


def build(directory: Path) -> Path:
    """Write the fake driver to a folder and return the path of its library."""
    library = directory / "libcuda.so.1"
    library.write_bytes(_compiled_driver())
    return library


@functools.cache
def _compiled_driver() -> bytes:
    """Compile the fake driver, once for all tests of this process."""
    sources = sorted((TESTS / "fake_cuda").glob("*.c"))
    paths = [ROOT / "runtime_c" / "include", ROOT / "runtime_c" / "src", TESTS, TESTS / "fake_cuda"]
    options = ("-fvisibility=hidden", *(f"-I{path}" for path in paths))
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libcuda.so.1"
        return compile_library(sources, library, *options).read_bytes()


def golden() -> ModuleType:
    """Import `runtime_c/tests/golden.py`, the writer of the C tests' archives."""
    if "golden" not in sys.modules:
        spec = importlib.util.spec_from_file_location("golden", TESTS / "golden.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["golden"] = module
        spec.loader.exec_module(module)
    return sys.modules["golden"]
