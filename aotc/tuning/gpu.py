"""Use one GPU through the CUDA driver: memory, copies, and times between events.

The driver is called as the runtime calls it, without cuda-python or torch. All work goes to the
default stream, like launches of the runtime without a stream.

Invariant: after a `FaultError` the context is lost, and the process is of no more use.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aotc.package.inspect.cuda_driver import DEFAULT_PATH, Driver, RefusedError
from aotc.verify.arrays import view

_OUT_OF_MEMORY = 2
_L2_BYTES, _SM_CLOCK_KHZ = 38, 13  # of CUdevice_attribute
_MIN_FLUSH_BYTES = 64 << 20
_SPIN_CYCLES = 400_000

Bytes = npt.NDArray[np.uint8]


class FaultError(Exception):
    """An illegal operation of a launch; the driver's error."""


class NoGpuError(Exception):
    """There is no driver or no GPU."""


class NoMemoryError(Exception):
    """The GPU has too little free memory."""


# Counts cycles against nanoseconds, to find the SM's clock under load.
_CLOCK_PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 out, .param .u64 cycles) {
  .reg .b64 %r<9>;
  .reg .pred %p;
  ld.param.u64 %r0, [out];
  ld.param.u64 %r1, [cycles];
  mov.u64 %r2, %globaltimer;
  mov.u64 %r3, %clock64;
again:
  mov.u64 %r4, %clock64;
  sub.u64 %r5, %r4, %r3;
  setp.lt.u64 %p, %r5, %r1;
  @%p bra again;
  mov.u64 %r6, %globaltimer;
  sub.u64 %r7, %r6, %r2;
  cvta.to.global.u64 %r8, %r0;
  st.global.u64 [%r8], %r5;
  st.global.u64 [%r8+8], %r7;
  ret;
}
\0"""


class Gpu:
    """The first GPU visible to this process, with its primary context current."""

    def __init__(self, path: str = DEFAULT_PATH) -> None:
        """Initialise the driver and the context. Raises: NoGpuError."""
        try:
            library = ctypes.CDLL(path)
            self._driver = Driver(library)
            self._call("cuInit", ctypes.c_uint(0))
            self._device = self._number("cuDeviceGet", ctypes.c_int(0))
            context = ctypes.c_void_p()
            retain = "cuDevicePrimaryCtxRetain"
            self._call(retain, ctypes.byref(context), ctypes.c_int(self._device))
            self._call("cuCtxSetCurrent", context)
        except (OSError, AttributeError, FaultError) as error:
            raise NoGpuError(str(error)) from None
        self._spin: ctypes.c_void_p | None = None
        self._flushed = 0
        self._flush_bytes = 0

    def _call(self, symbol: str, *arguments: object) -> None:
        """Call an entry point of the driver. Raises: FaultError, NoMemoryError."""
        try:
            self._driver.call(symbol, *arguments)
        except RefusedError as error:
            if error.status == _OUT_OF_MEMORY:
                raise NoMemoryError from None
            raise FaultError(self._error_text(error)) from None

    def _number(self, symbol: str, *arguments: object) -> int:
        value = ctypes.c_int()
        self._call(symbol, ctypes.byref(value), *arguments)
        return value.value

    def _error_text(self, error: RefusedError) -> str:
        text = ctypes.c_char_p()
        try:
            self._driver.call("cuGetErrorName", ctypes.c_int(error.status), ctypes.byref(text))
        except RefusedError:
            return str(error)
        return (text.value or b"").decode() or str(error)

    def _attribute(self, number: int) -> int:
        device = ctypes.c_int(self._device)
        return self._number("cuDeviceGetAttribute", ctypes.c_int(number), device)

    @property
    def identity(self) -> tuple[str, str, tuple[int, int]]:
        """The GPU's name, the CUDA version of its driver, its compute capability."""
        name = ctypes.create_string_buffer(256)
        device = ctypes.c_int(self._device)
        self._call("cuDeviceGetName", name, ctypes.c_int(len(name)), device)
        version = self._number("cuDriverGetVersion")
        shown = f"{version // 1000}.{version % 1000 // 10}"
        capability = self._attribute(75), self._attribute(76)
        return name.value.decode(errors="replace"), shown, capability

    def allocate(self, size_bytes: int) -> int:
        """Return the address of fresh memory. Raises: NoMemoryError."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc", ctypes.byref(address), ctypes.c_size_t(max(1, size_bytes)))
        return address.value

    def free(self, address: int) -> None:
        """Free memory."""
        self._call("cuMemFree", ctypes.c_uint64(address))

    def write(self, address: int, content: Bytes) -> None:
        """Copy bytes to the GPU."""
        source = ctypes.c_void_p(content.ctypes.data)
        self._call("cuMemcpyHtoD", ctypes.c_uint64(address), source, ctypes.c_size_t(content.size))

    def read(self, address: int, size_bytes: int) -> Bytes:
        """Return bytes from the GPU."""
        content = np.empty(size_bytes, np.uint8)
        target = ctypes.c_void_p(content.ctypes.data)
        self._call("cuMemcpyDtoH", target, ctypes.c_uint64(address), ctypes.c_size_t(size_bytes))
        return content

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """Copy bytes on the GPU."""
        addresses = ctypes.c_uint64(target), ctypes.c_uint64(source)
        self._call("cuMemcpyDtoD", *addresses, ctypes.c_size_t(size_bytes))

    def repeat(self, address: int, period_bytes: int, size_bytes: int) -> None:
        """Fill `size_bytes` with copies of the first `period_bytes`."""
        filled = period_bytes
        while filled < size_bytes:
            piece = min(filled, size_bytes - filled)
            self.copy(address + filled, address, piece)
            filled += piece

    def synchronize(self) -> None:
        """Wait for all launches. Raises: FaultError for an illegal operation of one of them."""
        self._call("cuCtxSynchronize")

    def flush_l2(self) -> None:
        """Evict the L2's content, in stream order."""
        if not self._flushed:
            self._flush_bytes = max(2 * self._attribute(_L2_BYTES), _MIN_FLUSH_BYTES)
            self._flushed = self.allocate(self._flush_bytes)
        size = ctypes.c_size_t(self._flush_bytes)
        value, stream = ctypes.c_ubyte(0), ctypes.c_void_p(0)
        self._call("cuMemsetD8Async", ctypes.c_uint64(self._flushed), value, size, stream)

    def times(
        self,
        launches: Sequence[Callable[[], None]],
        *,
        is_cold: bool,
        repeats: int = 1,
        reset: Callable[[], None] = lambda: None,
    ) -> list[float]:
        """Return the seconds of each launch, run one after the other.

        A time is the mean of `repeats` launches; with a warm L2 an untimed one precedes them.
        `reset` runs before the timed launches.

        Raises: FaultError.
        """
        events = [(self._event(), self._event()) for _ in launches]
        for launch, (start, end) in zip(launches, events, strict=True):
            if not is_cold:
                reset()
                launch()
            reset()
            if is_cold:
                self.flush_l2()
            self._record(start)
            for _ in range(repeats):
                launch()
            self._record(end)
        self.synchronize()
        seconds = [self._elapsed(start, end) / repeats for start, end in events]
        for event in itertools.chain.from_iterable(events):
            self._call("cuEventDestroy", event)
        return seconds

    def _event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
        return event

    def _record(self, event: ctypes.c_void_p) -> None:
        self._call("cuEventRecord", event, ctypes.c_void_p(0))

    def _elapsed(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        milliseconds = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value / 1e3

    def clock_mhz(self) -> int:
        """Return the SM's clock, measured now; its nominal clock if measuring fails."""
        try:
            if self._spin is None:
                module, self._spin = ctypes.c_void_p(), ctypes.c_void_p()
                self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(_CLOCK_PTX))
                self._call("cuModuleGetFunction", ctypes.byref(self._spin), module, b"spin")
            return self._measured_clock_mhz(self._spin)
        except (FaultError, NoMemoryError):
            return self._attribute(_SM_CLOCK_KHZ) // 1000

    def _measured_clock_mhz(self, function: ctypes.c_void_p) -> int:
        if not function.value:
            raise FaultError("no function")
        address = self.allocate(16)
        values: tuple[Any, ...] = ctypes.c_uint64(address), ctypes.c_uint64(_SPIN_CYCLES)
        params = (ctypes.c_void_p * 2)(*(ctypes.addressof(value) for value in values))
        unit, null = ctypes.c_uint(1), ctypes.c_void_p(0)
        grid = (unit,) * 6
        self._call("cuLaunchKernel", function, *grid, ctypes.c_uint(0), null, params, null)
        self.synchronize()
        cycles, nanoseconds = view(self.read(address, 16), np.uint64).tolist()
        self.free(address)
        return round(cycles * 1000 / max(1, nanoseconds))
