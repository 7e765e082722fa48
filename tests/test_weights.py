"""Weights of 4 bits keep row, column and value when their words are packed anew."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.weights import repack_int4, repack_mx_scales, unpack_int4


def _packed(weights: np.ndarray, layout: str) -> np.ndarray:
    """Pack weights (K, N) as the format's own documentation has it, number by number."""
    num_k, num_n = weights.shape
    if layout == "gptq":
        words = np.zeros((num_k // 8, num_n), np.int64)
        for k in range(num_k):
            words[k // 8] |= weights[k].astype(np.int64) << 4 * (k % 8)
    else:
        words = np.zeros((num_k, num_n // 8), np.int64)
        for n in range(num_n):
            # The words of AWQ, from the lowest bits: columns 0, 2, 4, 6, 1, 3, 5, 7.
            slot = [0, 2, 4, 6, 1, 3, 5, 7].index(n % 8)
            words[:, n // 8] |= weights[:, n].astype(np.int64) << 4 * slot
    return words.astype(np.uint32).view(np.int32)


@given(
    seed=st.integers(0, 2**32 - 1),
    num_k=st.integers(0, 5),
    num_n=st.integers(1, 5),
    layout=st.sampled_from(["awq", "gptq"]),
)
def test_a_weight_keeps_its_place_and_value(seed: int, num_k: int, num_n: int, layout: str) -> None:
    weights = np.random.default_rng(seed).integers(0, 16, (8 * num_k, 8 * num_n))
    words = _packed(weights, layout)
    unpacked = unpack_int4(words, layout, 1 if layout == "awq" else 0)  # type: ignore[arg-type]
    np.testing.assert_array_equal(unpacked, weights)
    packed = repack_int4(words, layout)  # type: ignore[arg-type]
    assert packed.shape == (8 * num_n, num_k)
    # As `unpacked_int4` of kernels/weight_only_matmul.py reads them.
    element = np.arange(8)
    numbers = packed[:, :, None] >> (element // 2 * 4 + element % 2 * 16) & 15
    np.testing.assert_array_equal(numbers.reshape(8 * num_n, -1).T, weights)


@pytest.mark.parametrize(
    ("words", "layout", "expected"),
    [
        (np.zeros((8, 1), np.int32), "marlin", "a layout of awq, gptq, got 'marlin'"),
        (np.zeros((8, 1), np.int64), "awq", "int32 or uint32 words, got int64 of shape (8, 1)"),
        (np.zeros(8, np.int32), "awq", "got int32 of shape (8,)"),
        (np.zeros((9, 1), np.int32), "awq", "K to be a multiple of 8, got 9"),
    ],
)
def test_what_cannot_be_packed_is_refused(words: np.ndarray, layout: str, expected: str) -> None:
    with pytest.raises(ValueError) as caught:
        repack_int4(words, layout)  # type: ignore[arg-type]
    assert expected in str(caught.value)


@given(seed=st.integers(0, 2**32 - 1), num_n=st.integers(0, 5), groups=st.integers(1, 9))
def test_a_scale_keeps_its_column_and_group(seed: int, num_n: int, groups: int) -> None:
    scales = np.random.default_rng(seed).integers(0, 256, (num_n, groups)).astype(np.uint8)
    words = repack_mx_scales(scales)
    assert words.shape == (-(-groups // 4), num_n)
    assert words.flags.c_contiguous
    for n in range(num_n):
        for group in range(4 * len(words)):
            scale = int(words[group // 4, n]) >> 8 * (group % 4) & 255
            assert scale == (scales[n, group] if group < groups else 127)


@pytest.mark.parametrize("scales", [np.zeros((2, 2), np.int8), np.zeros(4, np.uint8)])
def test_scales_of_another_type_are_refused(scales: np.ndarray) -> None:
    with pytest.raises(ValueError, match="expected a matrix of uint8 scales, got"):
        repack_mx_scales(scales)
