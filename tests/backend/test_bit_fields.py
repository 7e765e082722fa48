"""Numbers of a few bits become floats two at a time: every number at every place, in emulated PTX."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.descriptors import DTYPES, compiled, launch

UNPACK = """
def k(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK), tl.arange(0, COUNT)
    x = tl.load(x_ptr + i)
    numbers = (x[:, None] >> (SHIFT)[None, :]) & MASK
    out = (NUMBER).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + i[:, None] * COUNT + j[None, :], out)
"""
IN_ORDER = "j * 4"
HALVES = "j // 2 * 4 + j % 2 * 16"
"""Neighbours are in either half of a word, as AWQ has them."""
WAYS = {
    "in order": ("i32", 8, IN_ORDER, 15, "numbers"),
    "in order, minus 8": ("i32", 8, IN_ORDER, 15, "numbers - 8"),
    "halves": ("i32", 8, HALVES, 15, "numbers"),
    "halves, minus 8": ("u32", 8, HALVES, 15, "numbers.to(tl.int32) - 8"),
    "bytes": ("u8", 2, IN_ORDER, 15, "numbers"),
    "bytes, minus 8": ("i8", 2, IN_ORDER, 15, "numbers.to(tl.int8) - 8"),
    "two bits": ("i32", 16, "j * 2", 3, "numbers"),
    "seven bits": ("i32", 4, "j * 8", 127, "numbers - 64"),
}


@pytest.mark.parametrize("result", ["bf16", "fp16"])
@pytest.mark.parametrize("way", WAYS)
def test_every_field_is_its_number(tmp_path: Path, way: str, result: str) -> None:
    source, count, shift, mask, number = WAYS[way]
    names = {"COUNT": str(count), "SHIFT": shift, "MASK": str(mask), "NUMBER": number}
    text = re.sub(r"\b(COUNT|SHIFT|MASK|NUMBER)\b", lambda match: names[match[0]], UNPACK)
    signature = {"x_ptr": f"*{source}:16", "out_ptr": f"*{result}:16"}
    kernel = compiled(tmp_path, text, signature, {"BLOCK": 256}, num_warps=2)
    kind = np.dtype(DTYPES[source])
    x = np.random.default_rng(3).integers(0, 256, 256 * kind.itemsize).astype(np.uint8).view(kind)
    out = np.full(256 * count, np.nan, DTYPES[result])
    launch(kernel, (1,), {"x_ptr": x, "out_ptr": out})
    j = np.arange(count)
    places = {IN_ORDER: j * 4, HALVES: j // 2 * 4 + j % 2 * 16, "j * 2": j * 2, "j * 8": j * 8}
    expected = (x.astype(np.int64)[:, None] >> places[shift]) & mask
    expected -= int(number.rpartition("- ")[2]) if "-" in number else 0
    np.testing.assert_array_equal(out.astype(np.int64), expected.ravel())
    assert not re.search(r"cvt\.rn\.\w+\.[su]", kernel.ptx)


def test_halves_need_no_permutation_of_bytes(tmp_path: Path) -> None:
    """A shift, a mask with the exponents, and a subtraction: of two numbers."""
    source, count, shift, mask, number = WAYS["halves"]
    names = {"COUNT": str(count), "SHIFT": shift, "MASK": str(mask), "NUMBER": number}
    text = re.sub(r"\b(COUNT|SHIFT|MASK|NUMBER)\b", lambda match: names[match[0]], UNPACK)
    kernel = compiled(
        tmp_path, text, {"x_ptr": f"*{source}:16", "out_ptr": "*bf16:16"}, {"BLOCK": 256}
    )
    assert "prmt" not in kernel.ptx
    assert re.search(r"(sub|fma\.rn)\.(rn\.)?bf16x2", kernel.ptx)


@pytest.mark.parametrize(
    ("mask", "number"), [(255, "numbers"), (15, "numbers - 300"), (10, "numbers")]
)
def test_what_does_not_fit_a_mantissa_is_converted(tmp_path: Path, mask: int, number: str) -> None:
    names = {"COUNT": "4", "SHIFT": "j * 8", "MASK": str(mask), "NUMBER": number}
    text = re.sub(r"\b(COUNT|SHIFT|MASK|NUMBER)\b", lambda match: names[match[0]], UNPACK)
    kernel = compiled(tmp_path, text, {"x_ptr": "*i32:16", "out_ptr": "*bf16:16"}, {"BLOCK": 128})
    x = np.random.default_rng(4).integers(0, 256, 512).astype(np.uint8).view(np.int32)
    out = np.full(512, np.nan, DTYPES["bf16"])
    launch(kernel, (1,), {"x_ptr": x, "out_ptr": out})
    expected = (x.view(np.uint8).astype(np.int64) & mask) - (300 if "300" in number else 0)
    rounded = expected.astype(DTYPES["bf16"]).astype(np.float64)
    np.testing.assert_array_equal(out.astype(np.float64), rounded)
    assert re.search(r"cvt\.rn\.\w+\.[su]", kernel.ptx)
