"""Local memory: private to each thread, at the same addresses for all threads.

Invariant: a byte is read only after it has been written.
"""

from __future__ import annotations

import numpy as np

from aotc.verify.arrays import ones, reshape, view
from aotc.verify.emulator.errors import Misuse
from aotc.verify.emulator.memory.global_memory import Bytes, as_cells, cell_dtype, lane_at
from aotc.verify.emulator.memory.vector_clocks import Ints, Lanes, lanes_array

LOCAL_BASE_ADDRESS = 1024  # of a thread's first byte; 0 stays the null pointer


class LocalMemory:
    """Hold `size_bytes` of private memory per thread; all threads use the same addresses."""

    def __init__(self, num_lanes: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._stride = -(-size_bytes // 32) * 32
        self._data = np.zeros(num_lanes * self._stride, np.uint8)
        self._written = np.zeros(num_lanes * self._stride, np.uint8)
        self._num_lanes = num_lanes

    def read(self, lanes: Lanes, address: Ints, size_bytes: int) -> Bytes:
        """Return the bytes at lanes' own addresses (n,): (n, size_bytes).

        Raises: Misuse for bytes outside, misaligned or never written.
        """
        index = self._index(lanes, address, size_bytes)
        is_written = view(self._written, cell_dtype(size_bytes))[index]
        missing = is_written != view(np.ones(size_bytes, np.uint8), cell_dtype(size_bytes))
        if missing.any():
            row = int(np.flatnonzero(missing)[0])
            raise Misuse(
                "uninitialised",
                f"reads {self._describe(int(address[row]))}, which was never written",
                lane=lane_at(lanes, row),
            )
        cells = view(self._data, cell_dtype(size_bytes))[index]
        return reshape(view(cells, np.uint8), len(address), size_bytes)

    def write(self, lanes: Lanes, address: Ints, data: Bytes) -> None:
        """Write bytes (n, size) at lanes' own addresses (n,).

        Raises: Misuse for bytes outside or misaligned.
        """
        size = data.shape[1]
        index = self._index(lanes, address, size)
        view(self._data, cell_dtype(size))[index] = as_cells(data)
        view(self._written, cell_dtype(size))[index] = view(ones(size, np.uint8), cell_dtype(size))

    def _index(self, lanes: Lanes, address: Ints, size: int) -> Ints:
        offset = address - LOCAL_BASE_ADDRESS
        bad = (offset < 0) | (offset + size > self.size_bytes)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            message = f"accesses {size} bytes at {self._describe(int(address[row]))}, out of bounds"
            raise Misuse("bounds", message, lane=lane_at(lanes, row))
        if (offset & (size - 1)).any():
            row = int(np.flatnonzero(offset & (size - 1))[0])
            where = self._describe(int(address[row]))
            raise Misuse(
                "misaligned",
                f"accesses {where}, no multiple of {size} bytes",
                lane=lane_at(lanes, row),
            )
        return (lanes_array(lanes, self._num_lanes) * self._stride + offset) // size

    def _describe(self, address: int) -> str:
        return f"byte {address - LOCAL_BASE_ADDRESS} of {self.size_bytes} bytes of local memory"
