"""Emulate `mma.sync`, `ldmatrix` and `stmatrix` from the manual's formulas alone.

In all of them `g = lane / 4` and `t = lane % 4`. An operand is a list of words, one entry per
thread; a word holds one element or several, the first in its lowest bits.

Source: PTX ISA, "Matrix Fragments for mma.m8n8k4", "…m16n8k8", "…m16n8k16", "…m16n8k32";
"ldmatrix", "stmatrix".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

WARP = 32
_NAMED = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "tf32": np.float32,
    "f64": np.float64,
    "s8": np.int8,
    "u8": np.uint8,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
_TF32_MASK = np.uint32(0xFFFFE000)


def mma(name: str, words: Sequence[Any]) -> list[Any]:
    """Return the accumulator's words; `name` is LLVM's intrinsic, `words` its arguments."""
    match = re.fullmatch(r"llvm\.nvvm\.mma\.m(\d+)n(\d+)k(\d+)\.row\.col\.(.+)", name)
    assert match is not None, name
    m, n, k = (int(match[i]) for i in (1, 2, 3))
    types = match[4].split(".")
    # `f32.f32` and `f16.f16` name the accumulators of f16 operands, `f32.e4m3.e5m2.f32` all.
    kinds = {1: types * 2, 2: ["f16", "f16"], 4: types[1:3]}[len(types)]
    a_kind, b_kind = (np.dtype(_NAMED[kind]) for kind in kinds)
    per_word = max(1, 4 // a_kind.itemsize)
    a_words, b_words = m * k // WARP // per_word, k * n // WARP // per_word
    a = _matrix(words[:a_words], a_kind, (m, k), is_b=False)
    b = _matrix(words[a_words : a_words + b_words], b_kind, (k, n), is_b=True)
    if kinds[0] == "tf32":
        a, b = ((x.view(np.uint32) & _TF32_MASK).view(np.float32) for x in (a, b))
    acc = words[a_words + b_words :]
    packed = isinstance(acc[0], list)
    values = [half for word in acc for half in word] if packed else list(acc)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    lanes = np.arange(len(values[0])) % WARP
    warp = np.arange(len(values[0])) // WARP
    out: list[Any] = []
    for index, value in enumerate(values):
        row = lanes // 4 + 8 * (index // 2)
        column = lanes % 4 * 2 + index % 2
        product = exact[warp, row, column]
        if value.dtype.kind == "u":  # an i32
            out.append((value.astype(np.int64) + product.astype(np.int64)).astype(value.dtype))
        else:
            out.append((value.astype(np.float64) + product).astype(value.dtype))
    return [out[i : i + 2] for i in range(0, len(out), 2)] if packed else out


def _matrix(words: Sequence[Any], kind: Any, shape: tuple[int, int], *, is_b: bool) -> Any:
    """Return the matrices held by warps, by warp."""
    threads = len(words[0][0]) if isinstance(words[0], list) else len(words[0])
    lane, warp = np.arange(threads) % WARP, np.arange(threads) // WARP
    group, within = lane // 4, lane % 4
    out = np.zeros((threads // WARP, *shape), kind)
    for number, word in enumerate(words):
        stacked = np.stack(word, 1) if isinstance(word, list) else np.asarray(word)[:, None]
        elements = np.ascontiguousarray(stacked).view(kind)
        for part in range(elements.shape[1]):
            rows_per_step = 2 if shape[0] == 16 and not is_b else 1
            k = within * elements.shape[1] + part
            k = k + number // rows_per_step * 4 * elements.shape[1]
            if is_b:
                out[warp, k, group] = elements[:, part]
            else:
                out[warp, group + 8 * (number % rows_per_step), k] = elements[:, part]
    return out


def matrix_places(lane: int, matrix: int, *, trans: bool) -> list[tuple[int, int]]:
    """Return the row lane and the column of each half of a lane's matrix word.

    The row's address is from lane `8 * matrix + row`; a column has 2 bytes.
    """
    group, within = lane // 4, lane % 4
    halves = [(group, 2 * within), (group, 2 * within + 1)]
    return [
        (8 * matrix + row, column)
        for row, column in ([(c, r) for r, c in halves] if trans else halves)
    ]
