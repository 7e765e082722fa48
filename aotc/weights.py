"""4-bit weights in the order with the fastest unpacking, from other libraries' checkpoints.

Checkpoints pack eight weights into a word of 32 bits, each format in its own order, and a kernel
can read any of them. Unpacking is cheapest with two neighbours along K 16 bits apart: one shift and
one mask unpack both, as the two 16-bit numbers in a register of a tensor core's operand. `kernels/
weight_only_matmul.py` has kernels for this order:

    bits    0-3  4-7  8-11  12-15  16-19  20-23  24-27  28-31
    weight  k    k+2  k+4   k+6    k+1    k+3    k+5    k+7

Weights of mxfp4 stay as in checkpoints, two in a byte; their scales, one byte for 32, become words.

Invariant: a weight keeps its row, its column and its value; only the place of its bits changes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from aotc.verify.arrays import Array, name_of, reduce_or, reshape, view

Layout = Literal["awq", "gptq"]

_PER_WORD = 8
_ORDERS: dict[str, tuple[int, ...]] = {"awq": (0, 4, 1, 5, 2, 6, 3, 7), "gptq": tuple(range(8))}
"""The nibble of a word that each of eight weights lies in."""
_PAIRS = (0, 4, 1, 5, 2, 6, 3, 7)


def unpack_int4(words: Array, layout: Layout, axis: int) -> Array:
    """Return the numbers of 0 to 15 of words, eight in place of each along an axis.

    `"gptq"` is GPTQ's and HQQ's order, the lowest bits first, `"awq"` AWQ's. Zeros of both formats are
    (groups, N / 8), packed along axis 1; GPTQ's first version stores a zero less 1.

    Raises: ValueError for an unknown layout or words of another type.
    """
    order = _order_of(layout)
    _check_words(words)
    parts = [(view(words, np.uint32) >> 4 * nibble & 15).astype(np.uint8) for nibble in order]
    shape = list(words.shape)
    shape[axis] *= _PER_WORD
    return reshape(np.stack(parts, axis + 1), shape)


def repack_int4(words: Array, layout: Layout) -> Array:
    """Return the words (N, K / 8) of a checkpoint's weights, in the order of the module docstring.

    Words of `"awq"` are (K, N / 8), of `"gptq"`, and of HQQ in its order, (K / 8, N). Scales and
    zeros, one for each group of K and each column, stay (groups, N).

    Raises: ValueError for an unknown layout, words of another type, or a K that is no multiple of
    8.
    """
    weights = unpack_int4(words, layout, 1 if layout == "awq" else 0)
    num_k, num_n = weights.shape
    if num_k % _PER_WORD:
        raise ValueError(f"expected K to be a multiple of {_PER_WORD}, got {num_k}")
    groups = reshape(np.swapaxes(weights, 0, 1), num_n, num_k // _PER_WORD, _PER_WORD).astype(
        np.uint32
    )
    shifts = np.asarray(_PAIRS, np.uint32) * np.uint32(4)
    packed: Array = reduce_or(groups << shifts, axis=2)
    return view(packed, np.int32)


def repack_mx_scales(scales: Array) -> Array:
    """Pack the scales (N, K / 32) of microscaling weights into words (K / 128, N).

    The first of four scales is the lowest byte of a word. A block of weights needs a row of words,
    so a tensor map loads it along. A thread reads the four scales of a row of 128 weights at once.
    Missing scales are 127, the code of 1.

    Raises: ValueError for scales of another type.
    """
    if name_of(scales.dtype) != "uint8" or scales.ndim != 2:
        raise ValueError(
            f"expected a matrix of uint8 scales, got {scales.dtype} of shape {scales.shape}"
        )
    num_n, groups = scales.shape
    filled = np.full((num_n, -(-groups // 4) * 4), 127, np.uint8)
    filled[:, :groups] = scales
    return np.ascontiguousarray(np.swapaxes(view(filled, np.int32), 0, 1))


def _order_of(layout: str) -> tuple[int, ...]:
    if layout not in _ORDERS:
        raise ValueError(f"expected a layout of {', '.join(sorted(_ORDERS))}, got {layout!r}")
    return _ORDERS[layout]


def _check_words(words: Array) -> None:
    if name_of(words.dtype) not in ("int32", "uint32") or words.ndim != 2:
        raise ValueError(
            f"expected a matrix of int32 or uint32 words, got {words.dtype} of shape {words.shape}"
        )
