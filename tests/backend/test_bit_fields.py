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
    tl.store(out_ptr + i[:, None] * STRIDE_I + j[None, :] * STRIDE_J, out)
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
    "bytes, shifted by bytes": ("i8", 2, "(j * 4).to(tl.int8)", 15, "numbers"),
    "bytes, minus 8": ("i8", 2, IN_ORDER, 15, "numbers.to(tl.int8) - 8"),
    "differences": ("i32", 8, IN_ORDER, 15, "numbers - (numbers >> 1)"),
    "differences of halves": ("i32", 8, HALVES, 15, "numbers - (numbers >> 1)"),
    "two bits": ("i32", 16, "j * 2", 3, "numbers"),
    "seven bits": ("i32", 4, "j * 8", 127, "numbers - 64"),
}


def _source(way: tuple[str, int, str, int, str], *, by_columns: bool = False) -> str:
    _, count, shift, mask, number = way
    strides = ("1", "BLOCK") if by_columns else (str(count), "1")
    names = {"COUNT": str(count), "SHIFT": shift, "MASK": str(mask), "NUMBER": number}
    names |= dict(zip(("STRIDE_I", "STRIDE_J"), strides, strict=True))
    return re.sub(f"\\b({'|'.join(names)})\\b", lambda match: names[match[0]], UNPACK)


@pytest.mark.emulated
@pytest.mark.parametrize("by_columns", [False, True], ids=["of a word", "of several words"])
@pytest.mark.parametrize("result", ["bf16", "fp16"])
@pytest.mark.parametrize("way", WAYS)
def test_every_field_is_its_number(
    tmp_path: Path, way: str, result: str, *, by_columns: bool
) -> None:
    source, count, shift, mask, number = WAYS[way]
    signature = {"x_ptr": f"*{source}:16", "out_ptr": f"*{result}:16"}
    text = _source(WAYS[way], by_columns=by_columns)
    kernel = compiled(tmp_path, text, signature, {"BLOCK": 256}, num_warps=2)
    kind = np.dtype(DTYPES[source])
    x = np.random.default_rng(3).integers(0, 256, 256 * kind.itemsize).astype(np.uint8).view(kind)
    out = np.full(256 * count, np.nan, DTYPES[result])
    launch(kernel, (1,), {"x_ptr": x, "out_ptr": out})
    j = np.arange(count)
    step = re.search(r"j \* (\d)", shift)
    first_bit = j // 2 * 4 + j % 2 * 16 if step is None else j * int(step[1])
    expected = (x.astype(np.int64)[:, None] >> first_bit) & mask
    if number.endswith(">> 1)"):
        expected -= expected >> 1
    elif "-" in number:
        expected -= int(number.rpartition("- ")[2])
    expected = expected.T if by_columns else expected
    np.testing.assert_array_equal(out.astype(np.int64), expected.ravel())
    # Of words of different rows not all are converted so: a thread's numbers are to be pairs.
    assert by_columns or not re.search(r"cvt\.rn\.\w+\.[su]", kernel.ptx)


def test_halves_need_no_permutation_of_bytes(tmp_path: Path) -> None:
    """A shift, a mask with the exponents, and a subtraction: of two numbers."""
    source, text = WAYS["halves"][0], _source(WAYS["halves"])
    kernel = compiled(
        tmp_path, text, {"x_ptr": f"*{source}:16", "out_ptr": "*bf16:16"}, {"BLOCK": 256}
    )
    assert "prmt" not in kernel.ptx
    assert re.search(r"(sub|fma\.rn)\.(rn\.)?bf16x2", kernel.ptx)


@pytest.mark.emulated
def test_unsigned_differences_wrap(tmp_path: Path) -> None:
    """A number below its subtrahend is a large one, not a negative one."""
    text = _source(("u32", 4, "j * 8", 15, "(numbers >> 1) - numbers"))
    kernel = compiled(tmp_path, text, {"x_ptr": "*u32:16", "out_ptr": "*bf16:16"}, {"BLOCK": 128})
    x = np.random.default_rng(5).integers(0, 256, 512).astype(np.uint8).view(np.uint32)
    out = np.full(512, np.nan, DTYPES["bf16"])
    launch(kernel, (1,), {"x_ptr": x, "out_ptr": out})
    numbers = (x[:, None] >> np.arange(4, dtype=np.uint32) * 8) & 15
    expected = ((numbers >> 1) - numbers).ravel().astype(DTYPES["bf16"])
    np.testing.assert_array_equal(out.astype(np.float64), expected.astype(np.float64))


FP4 = """
def k(x_ptr, out_ptr, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK), tl.arange(0, COUNT)
    x = tl.load(x_ptr + i)
    codes = ((x[:, None] >> (SHIFT)[None, :]) & 15).to(tl.uint16)
    bits = (codes & 7) << 6 | (codes & 8) << 12
    out = bits.to(tl.bfloat16, bitcast=True)
    tl.store(out_ptr + i[:, None] * COUNT + j[None, :], out)
"""


@pytest.mark.emulated
@pytest.mark.parametrize(
    ("source", "count", "shift"),
    [("i32", 8, IN_ORDER), ("i32", 8, HALVES), ("u8", 2, IN_ORDER)],
    ids=["in order", "halves", "a byte"],
)
def test_numbers_put_together_from_fields_come_in_pairs(
    tmp_path: Path, source: str, count: int, shift: str
) -> None:
    """Sign and magnitude of e2m1 in bf16's places: words are masked, never single numbers."""
    text = FP4.replace("COUNT", str(count)).replace("SHIFT", shift)
    signature = {"x_ptr": f"*{source}:16", "out_ptr": "*bf16:16"}
    kernel = compiled(tmp_path, text, signature, {"BLOCK": 256}, num_warps=2)
    kind = np.dtype(DTYPES[source])
    x = np.random.default_rng(6).integers(0, 256, 256 * kind.itemsize).astype(np.uint8).view(kind)
    out = np.zeros(256 * count, DTYPES["bf16"])
    launch(kernel, (1,), {"x_ptr": x, "out_ptr": out})
    j = np.arange(count)
    bit = j // 2 * 4 + j % 2 * 16 if shift == HALVES else j * 4
    codes = (x.astype(np.int64)[:, None] >> bit) & 15
    np.testing.assert_array_equal(
        out.view(np.uint16), ((codes & 7) << 6 | (codes & 8) << 12).ravel()
    )
    assert not re.search(r"(and|or|shl|shr)\.b16", kernel.ptx)


@pytest.mark.emulated
@pytest.mark.parametrize(
    ("mask", "number"), [(255, "numbers"), (15, "numbers - 300"), (10, "numbers")]
)
def test_what_does_not_fit_a_mantissa_is_converted(tmp_path: Path, mask: int, number: str) -> None:
    text = _source(("i32", 4, "j * 8", mask, number))
    kernel = compiled(tmp_path, text, {"x_ptr": "*i32:16", "out_ptr": "*bf16:16"}, {"BLOCK": 128})
    x = np.random.default_rng(4).integers(0, 256, 512).astype(np.uint8).view(np.int32)
    out = np.full(512, np.nan, DTYPES["bf16"])
    launch(kernel, (1,), {"x_ptr": x, "out_ptr": out})
    expected = (x.view(np.uint8).astype(np.int64) & mask) - (300 if "300" in number else 0)
    rounded = expected.astype(DTYPES["bf16"]).astype(np.float64)
    np.testing.assert_array_equal(out.astype(np.float64), rounded)
    assert re.search(r"cvt\.rn\.\w+\.[su]", kernel.ptx)
