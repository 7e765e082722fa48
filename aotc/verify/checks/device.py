"""Copy a launch's buffers to and from a GPU, through the driver.

Each buffer has its own allocation with a guard zone after it, to detect small writes out of
bounds; for larger ones the driver reports an illegal access. A launch whose buffers exceed the
GPU's free memory is not run, and counts as unchecked.

Invariant: a `DeviceBuffers` frees its allocations when its block is left.
"""

# The bindings are generated and have no types; NumPy's stubs leave overloads partly unknown.

from __future__ import annotations

import importlib
from types import TracebackType
from typing import Any, final

import numpy as np

from aotc.verify.checks.check import ExecutionFault, Unsuited
from aotc.verify.checks.reference import Buffer, Bytes, Reference

_GUARD_BYTES = 4096
_GUARD = 0xA5


class NoDeviceError(Exception):
    """Report a missing GPU or driver; `remedy` suggests a fix."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class NoRoomError(Exception):
    """Report an allocation beyond the GPU's free memory; other calls still work."""


class Driver:
    """The CUDA driver, with the first GPU's primary context made current."""

    def __init__(self) -> None:
        """Raises: NoDeviceError."""
        try:
            self._cuda: Any = importlib.import_module("cuda.bindings.driver")
        except ImportError as error:
            raise NoDeviceError(
                "no cuda-python", remedy="pip install 'aotc[device]' brings it"
            ) from error
        try:
            (status,) = self._cuda.cuInit(0)
        except Exception as error:  # the bindings' error type differs by version
            raise NoDeviceError(f"no CUDA driver: {error}") from error
        if status != self._cuda.CUresult.CUDA_SUCCESS:
            raise NoDeviceError(f"no GPU: {status.name}")
        device = self._checked(self._cuda.cuDeviceGet(0))
        self._checked(self._cuda.cuCtxSetCurrent(self._checked(self._retain(device))))

    def _retain(self, device: Any) -> Any:
        return self._cuda.cuDevicePrimaryCtxRetain(device)

    def allocate(self, size_bytes: int) -> int:
        """Allocate memory and return its address. Raises: NoRoomError."""
        answer = self._cuda.cuMemAlloc(size_bytes)
        if answer[0] == self._cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise NoRoomError
        return int(self._checked(answer))

    def free(self, address: int) -> None:
        """Free memory; a driver error surfaces at the next call."""
        self._cuda.cuMemFree(address)

    def write(self, address: int, content: Bytes) -> None:
        """Copy bytes to the GPU."""
        self._checked(self._cuda.cuMemcpyHtoD(address, content.ctypes.data, content.size))

    def read(self, address: int, size_bytes: int) -> Bytes:
        """Return bytes from the GPU."""
        content = np.empty(size_bytes, np.uint8)
        self._checked(self._cuda.cuMemcpyDtoH(content.ctypes.data, address, size_bytes))
        return content

    def synchronize(self) -> None:
        """Wait for all launches. Raises: ExecutionFault if one failed."""
        self._checked(self._cuda.cuCtxSynchronize())

    def _checked(self, answer: tuple[Any, ...]) -> Any:
        status, *values = answer
        if status != self._cuda.CUresult.CUDA_SUCCESS:
            raise ExecutionFault(f"the driver reports {status.name}")
        return values[0] if values else None


@final
class DeviceBuffers:
    """Hold the buffers of a reference on the GPU while the block is open."""

    def __init__(self, driver: Driver, reference: Reference) -> None:
        self._driver = driver
        self._buffers = reference.buffers
        self._addresses: dict[str, int] = {}

    def __enter__(self) -> DeviceBuffers:
        """Raises: Unsuited if the buffers exceed free memory or hold tensor maps."""
        if any(buffer.maps is not None for buffer in self._buffers.values()):
            raise Unsuited("it takes tensor maps from memory, which only the emulator is given")
        if any(buffer.stored_maps for buffer in self._buffers.values()):
            raise Unsuited("it stores tensor maps, whose bytes only the GPU and its driver know")
        try:
            for name, buffer in self._buffers.items():
                self._addresses[name] = self._driver.allocate(buffer.size_bytes + _GUARD_BYTES)
        except NoRoomError:
            self._free()
            size = sum(buffer.size_bytes for buffer in self._buffers.values()) / 2**30
            message = f"its buffers take {size:.1f} GiB, which the GPU does not have free"
            raise Unsuited(message) from None
        for name, buffer in self._buffers.items():
            address = self._addresses[name]
            guard = np.full(_GUARD_BYTES, _GUARD, np.uint8)
            self._driver.write(address + buffer.size_bytes, guard)
        pointers = {name: self.pointer(buffer) for name, buffer in self._buffers.items()}
        for name, buffer in self._buffers.items():
            for start, part in buffer.parts(buffer.addressing(pointers, buffer.initial)):
                self._driver.write(self._addresses[name] + start, part)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._free()

    def _free(self) -> None:
        for address in self._addresses.values():
            self._driver.free(address)

    def pointer(self, buffer: Buffer) -> int:
        """Return the address to pass for a buffer's pointer."""
        return self._addresses[buffer.name] + buffer.start_bytes

    def fetch(self) -> dict[str, Bytes]:
        """Return the contents of the buffers.

        Raises: ExecutionFault if a guard zone was overwritten.
        """
        contents: dict[str, Bytes] = {}
        for name, buffer in self._buffers.items():
            size, address = buffer.size_bytes, self._addresses[name]
            over = np.flatnonzero(self._driver.read(address + size, _GUARD_BYTES) != _GUARD)
            if over.size:
                offset = size - buffer.start_bytes + int(over[0])
                raise ExecutionFault(
                    f"writes byte {offset} of {name}, beyond all that it may touch"
                )
            if buffer.pointees:  # device addresses, which no kernel overwrites
                contents[name] = buffer.expected
                continue
            parts = buffer.parts(buffer.initial)
            contents[name] = np.concatenate(
                [self._driver.read(address + start, part.size) for start, part in parts]
            )
        return contents
