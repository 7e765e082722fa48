"""Bytes become floats by where they are put: every byte, in every pair of places, in emulated PTX."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.support.descriptors import DTYPES, compiled, launch

WIDEN = """
def k(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    JOIN
    tl.store(out_ptr + j, x.to(out_ptr.dtype.element_ty))
"""
ALONE = "j = i"
# Every pair of neighbours is of two words.
JOINED = "x = tl.join(x, tl.load(y_ptr + i)); j = i[:, None] * 2 + tl.arange(0, 2)[None, :]"
TARGETS = ("sm_80", "sm_90a")


@pytest.mark.emulated
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("join", [ALONE, JOINED], ids=["one word", "two words"])
@pytest.mark.parametrize("result", ["fp16", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize("source", ["i8", "u8"])
def test_every_byte_is_the_same_number(
    tmp_path: Path, source: str, result: str, join: str, target: str
) -> None:
    signature = {"x_ptr": f"*{source}:16", "y_ptr": f"*{source}:16", "out_ptr": f"*{result}:16"}
    kernel = compiled(
        tmp_path, WIDEN.replace("JOIN", join), signature, {"BLOCK": 1024}, target, num_warps=2
    )
    rng = np.random.default_rng(1)
    x, y = (np.tile(rng.permutation(256), 4).astype(np.uint8).view(DTYPES[source]) for _ in "xy")
    expected = x if join == ALONE else np.stack([x, y], axis=1).ravel()
    out = np.full(expected.size, np.nan, DTYPES[result])
    launch(kernel, (1,), {"x_ptr": x, "y_ptr": y, "out_ptr": out})
    np.testing.assert_array_equal(out.astype(np.float64), expected.astype(np.float64))
    converts = re.search(r"cvt\.rn\.f32\.[su]", kernel.ptx)
    by_bytes = (source, result) in BY_BYTES
    assert bool(converts) == (not by_bytes and result != "fp64")


BY_BYTES = {("i8", "fp16"), ("u8", "fp16"), ("i8", "bf16")}


@pytest.mark.emulated
def test_a_byte_that_is_computed_is_converted(tmp_path: Path) -> None:
    source = WIDEN.replace("JOIN", "x = (x * 3 + 1).to(tl.int8); j = i")
    signature = {"x_ptr": "*i8:16", "y_ptr": "*i8:16", "out_ptr": "*bf16:16"}
    kernel = compiled(tmp_path, source, signature, {"BLOCK": 256}, num_warps=1)
    x = np.arange(256, dtype=np.uint8).view(np.int8)
    out = np.full(256, np.nan, ml_dtypes.bfloat16)
    launch(kernel, (1,), {"x_ptr": x, "y_ptr": x, "out_ptr": out})
    np.testing.assert_array_equal(out.astype(np.int32), (x * np.int8(3) + np.int8(1)).astype(int))
