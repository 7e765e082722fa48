"""Query the CUDA driver about this machine's GPUs, without creating a context.

The driver is found and called as in the runtime (`runtime_c/src/driver.c`): by `dlopen`, each entry
point through `cuGetProcAddress`. Queries take no GPU memory, so they disturb no other process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

DEFAULT_PATH = "libcuda.so.1"
MIN_VERSION = 12000
_NO_DEVICE = 100
_MAJOR, _MINOR, _SHARED_BYTES = 75, 76, 97  # of CUdevice_attribute


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device; with `is_mig` it is an instance, a part of a GPU."""

    name: str
    major: int
    minor: int
    memory_bytes: int
    shared_bytes: int
    is_mig: bool


@dataclass(frozen=True, slots=True)
class Machine:
    """The driver and its GPUs; `problem` is empty, or the reason that there is no driver to query.

    `peers` has pairs of ordinals: the first can access the second's memory.
    """

    version: int = 0
    gpus: tuple[Gpu, ...] = ()
    peers: frozenset[tuple[int, int]] = frozenset()
    problem: str = ""
    remedy: str = ""


class RefusedError(Exception):
    """The driver reports an error, `status`."""

    def __init__(self, symbol: str, status: int) -> None:
        super().__init__(f"{symbol} reports error {status}")
        self.status = status


class Driver:
    """The entry points of the driver, each looked up when it is first called."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._find = library.cuGetProcAddress_v2
        self._functions: dict[str, Callable[..., int]] = {}

    def call(self, symbol: str, *arguments: object) -> None:
        """Call an entry point. Raises: RefusedError."""
        function = self._functions.get(symbol)
        if function is None:
            function = self._functions[symbol] = self._look_up(symbol)
        status = function(*arguments)
        if status != 0:
            raise RefusedError(symbol, status)

    def _look_up(self, symbol: str) -> Callable[..., int]:
        address, query = ctypes.c_void_p(), ctypes.c_int()
        status = self._find(
            symbol.encode(),
            ctypes.byref(address),
            MIN_VERSION,
            ctypes.c_uint64(0),
            ctypes.byref(query),
        )
        if status != 0 or not address.value:
            raise RefusedError(symbol, status)
        return ctypes.CFUNCTYPE(ctypes.c_int)(address.value)

    def number(self, symbol: str, *arguments: object) -> int:
        """Return the int written by an entry point to its first argument."""
        value = ctypes.c_int()
        self.call(symbol, ctypes.byref(value), *arguments)
        return value.value


def ask(path: str = DEFAULT_PATH) -> Machine:
    """Query the driver at `path` for its version, its GPUs and their peer access."""
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        remedy = "install the NVIDIA driver; in a container, start it with GPU access"
        return Machine(problem=f"none: {error}", remedy=remedy)
    version = ctypes.c_int()
    try:
        library.cuDriverGetVersion(ctypes.byref(version))
        driver = Driver(library)
    except AttributeError:
        is_old = version.value != 0
        problem = _version_text(version.value) if is_old else f"{path} is no CUDA driver"
        return Machine(version.value, problem=problem, remedy=_UPDATE)
    if version.value < MIN_VERSION:
        return Machine(version.value, problem=_version_text(version.value), remedy=_UPDATE)
    try:
        return _ask(driver, version.value)
    except RefusedError as error:
        if error.status == _NO_DEVICE:
            problem = f"{_version_text(version.value)}, and no GPU"
            return Machine(version.value, problem=problem, remedy=_NO_GPU)
        problem = f"{_version_text(version.value)}, {error}"
        return Machine(
            version.value, problem=problem, remedy="check nvidia-smi and the system's log"
        )


_UPDATE = "install driver 525 (CUDA 12.0) or newer"
_NO_GPU = (
    "check nvidia-smi and CUDA_VISIBLE_DEVICES; a GPU in MIG mode needs an instance"
    " (nvidia-smi mig -cgi … -C)"
)


def _ask(driver: Driver, version: int) -> Machine:
    driver.call("cuInit", ctypes.c_uint(0))
    count = driver.number("cuDeviceGetCount")
    devices = [driver.number("cuDeviceGet", ctypes.c_int(ordinal)) for ordinal in range(count)]
    if not devices:
        raise RefusedError("cuDeviceGetCount", _NO_DEVICE)
    gpus = tuple(_gpu(driver, ctypes.c_int(device)) for device in devices)
    peers = frozenset(
        (first, second)
        for first in range(count)
        for second in range(count)
        if first != second and _can_access(driver, devices[first], devices[second])
    )
    return Machine(version, gpus, peers)


def _gpu(driver: Driver, device: ctypes.c_int) -> Gpu:
    name = ctypes.create_string_buffer(256)
    driver.call("cuDeviceGetName", name, ctypes.c_int(len(name)), device)
    memory = ctypes.c_size_t()
    driver.call("cuDeviceTotalMem", ctypes.byref(memory), device)

    def attribute(number: int) -> int:
        return driver.number("cuDeviceGetAttribute", ctypes.c_int(number), device)

    text = name.value.decode(errors="replace")
    # The driver has no attribute for it; it names an instance "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
    is_mig = " MIG " in f"{text} "
    capability = attribute(_MAJOR), attribute(_MINOR)
    return Gpu(text, *capability, memory.value, attribute(_SHARED_BYTES), is_mig)


def _can_access(driver: Driver, device: int, peer: int) -> bool:
    symbol = "cuDeviceCanAccessPeer"
    return driver.number(symbol, ctypes.c_int(device), ctypes.c_int(peer)) != 0


def _version_text(version: int) -> str:
    return f"CUDA {version // 1000}.{version % 1000 // 10}"
