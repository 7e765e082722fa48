"""Swizzles of shared memory: the address permutation of tensor copies and `wgmma`.

Both use the absolute shared-memory address: the number of a chunk's 128-byte line is XORed into the
chunk's index within the swizzle's span.

Source: PTX ISA, "Swizzling modes" of tensors, "Shared Memory Matrix Layout" of wgmma.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_LINE_BITS = 7  # lines of 128 bytes drive the pattern
_CHUNK_BITS = 4  # of 16 bytes, the default atomicity


def swizzled(
    address: npt.NDArray[np.int64],
    span_bytes: int,
    *,
    first_line: npt.NDArray[Any] | int = 0,
    chunk_bits: int = _CHUNK_BITS,
) -> npt.NDArray[np.int64]:
    """Return the swizzled location of the byte at `address`.

    `span_bytes` is 0 for none, else 32, 64 or 128. `first_line` is the pattern's first line, modulo
    8: the base offset of a matrix descriptor.
    """
    if not span_bytes:
        return address
    chunks = (span_bytes >> chunk_bits) - 1
    phase = (address >> _LINE_BITS) - first_line & chunks
    return address ^ phase << chunk_bits
