"""The loader: open an archive of compiled kernels and launch them from Python.

It shares one implementation with the C library, compiled into the extension `_native`. It
imports nothing of the compiler, nor llvmlite, NumPy or torch; see
`docs/reference/python-api.md`.
"""

from __future__ import annotations

from aotc.runtime._native import Kernel
from aotc.runtime.errors import (
    AotcError,
    ArchError,
    ArgumentError,
    CaptureError,
    ChecksumError,
    CudaError,
    DriverError,
    ForkedError,
    FormatError,
    HostMemoryError,
    LimitError,
    NotFoundError,
    ReadError,
    SignatureError,
    StateError,
    UnsupportedError,
    VersionError,
)
from aotc.runtime.library import Library, Pointer, Tensor, load

__all__ = [
    "AotcError",
    "ArchError",
    "ArgumentError",
    "CaptureError",
    "ChecksumError",
    "CudaError",
    "DriverError",
    "ForkedError",
    "FormatError",
    "HostMemoryError",
    "Kernel",
    "Library",
    "LimitError",
    "NotFoundError",
    "Pointer",
    "ReadError",
    "SignatureError",
    "StateError",
    "Tensor",
    "UnsupportedError",
    "VersionError",
    "load",
]
