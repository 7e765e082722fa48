"""fp8e4b15: every byte, every fp16, and errors."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from aotc.frontend.language.promotion import computation_type
from aotc.ir.types import BF16, FP8E4B15, FP8E5, FP16, FP32
from aotc.verify.interpreter.run import run
from tests.frontend.conftest import Sources, kernel_of
from tests.support.verified import check_verified

_BYTES = np.arange(256, dtype=np.uint8)
_HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def values() -> np.ndarray:
    """Return the number of each byte, by the definition of the format."""
    exponent, mantissa = (_BYTES >> 3 & 0xF).astype(int), (_BYTES & 7).astype(int)
    fraction = np.where(exponent == 0, mantissa, mantissa + 8)
    magnitude = np.ldexp(fraction.astype(np.float64), np.maximum(exponent, 1) - 15 - 3)
    return np.where(_BYTES >> 7, -magnitude, magnitude)


def nearest(numbers: np.ndarray) -> np.ndarray:
    """Return the byte nearest to each number, halves away from zero, up to 1.75; NaN is 1.75."""
    positive = values()[:0x7F]  # 0 to 1.75: the greatest byte is never made
    middles = (positive[1:] + positive[:-1]) / 2
    magnitude = np.nan_to_num(np.abs(numbers.astype(np.float64)), nan=2.0)
    bytes_ = np.searchsorted(middles, magnitude, side="right").astype(np.uint8)
    return bytes_ | (np.signbit(numbers).astype(np.uint8) << 7)


def cast_all(sources: Sources, numbers: np.ndarray, kind: str) -> np.ndarray:
    text = """
@triton.jit
def k(x, out):
    at = tl.program_id(0) * 256 + tl.arange(0, 256)
    tl.store(out + at, tl.load(x + at).to(tl.float8e4b15).to(tl.uint8, bitcast=True))
"""
    translation = sources.translate(text, {"x": f"*{kind}", "out": "*u8"})
    out = np.zeros(numbers.size, np.uint8)
    run(translation.kernel, (numbers.size // 256,), [numbers.copy(), out])
    return out


def test_every_byte_is_read(sources: Sources) -> None:
    text = """
@triton.jit
def k(x, half, single, brain):
    at = tl.arange(0, 256)
    y = tl.load(x + at).to(tl.float8e4b15, bitcast=True)
    tl.static_assert(y.dtype.is_fp8() and y.dtype.is_fp8e4b15() and y.dtype.is_floating())
    tl.static_assert(not y.dtype.is_int() and not y.dtype.is_fp8e4nv())
    tl.static_assert(y.dtype.primitive_bitwidth == 8 and y.dtype.fp_mantissa_width == 3)
    tl.store(half + at, y.to(tl.float16))
    tl.store(single + at, y.to(tl.float32))
    tl.store(brain + at, y.to(tl.bfloat16).to(tl.float32))
"""
    signature = {"x": "*u8", "half": "*fp16", "single": "*fp32", "brain": "*fp32"}
    translation = sources.translate(text, signature)
    outs = [np.zeros(256, np.float16), np.zeros(256, np.float32), np.zeros(256, np.float32)]
    run(translation.kernel, (1,), [_BYTES.copy(), *outs])
    for out in outs:
        np.testing.assert_array_equal(out.astype(np.float64), values())
        np.testing.assert_array_equal(np.signbit(out), _BYTES >> 7 == 1)


def test_every_half_rounds_to_the_nearest(sources: Sources) -> None:
    np.testing.assert_array_equal(cast_all(sources, _HALVES, "fp16"), nearest(_HALVES))


def test_singles_round_once(sources: Sources) -> None:
    middles = (values()[1:0x7F] + values()[:0x7E]) / 2
    near = [np.nextafter(middles, to).astype(np.float32) for to in (-np.inf, 0, np.inf)]
    numbers = np.concatenate([middles.astype(np.float32), *near, [np.inf, np.nan, -1e-30, 1e30]])
    numbers = np.resize(np.concatenate([numbers, -numbers]), 1024).astype(np.float32)
    for kind, dtype in (("fp32", np.float32), ("fp64", np.float64)):
        inputs = numbers.astype(dtype)
        np.testing.assert_array_equal(cast_all(sources, inputs, kind), nearest(inputs))


def test_it_goes_through_selections_constants_and_memory(sources: Sources) -> None:
    text = """
@triton.jit
def k(x, out):
    at = tl.arange(0, 256)
    p = x.to(tl.pointer_type(tl.float8e4b15))
    y = tl.load(p + at, mask=at < 200, other=1.0)
    y = tl.where(at < 100, y, -0.5)
    tl.store(out.to(tl.pointer_type(tl.float8e4b15)) + at, y)
"""
    translation = sources.translate(text, {"x": "*u8", "out": "*u8"})
    out = np.zeros(256, np.uint8)
    run(translation.kernel, (1,), [_BYTES.copy(), out])
    expected = np.where(_BYTES < 100, _BYTES, nearest(np.array(-0.5)))
    np.testing.assert_array_equal(out, expected)


def test_a_dot_takes_it_as_fp16(sources: Sources) -> None:
    text = """
@triton.jit
def k(x, out):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    y = tl.load(x + at).to(tl.float8e4b15, bitcast=True)
    tl.store(out + at, tl.dot(y, y.to(tl.float16)))
"""
    translation = sources.translate(text, {"x": "*u8", "out": "*fp32"})
    out = np.zeros((16, 16), np.float32)
    run(translation.kernel, (1,), [_BYTES.copy(), out.reshape(-1)])
    grid = values().reshape(16, 16)
    np.testing.assert_allclose(out, grid @ grid, rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y + y", "nothing is computed in float8e4b15, which is for storage"),
        ("y * 2.0", "nothing is computed in float8e4b15, which is for storage"),
        ("-y", "`-` does not take float8e4b15, which is for storage"),
        ("tl.abs(y)", "tl.abs does not take float8e4b15"),
        ("tl.sum(y)", "nothing is computed in float8e4b15"),
        ("~y", "`~` is for integers"),
        ("y.to(tl.int32)", "cannot cast float8e4b15.* to int32"),
        ("x.to(tl.float8e4b15)", "cannot cast uint8 to float8e4b15"),
        (
            "y.to(tl.float16).to(tl.float8e4b15, fp_downcast_rounding='rtz')",
            "float8e4b15 has a rounding of its own",
        ),
    ],
)
def test_refused(sources: Sources, body: str, message: str) -> None:
    lines = f"""
x = tl.load(p + tl.arange(0, 16))
y = x.to(tl.float8e4b15, bitcast=True)
z = {body}
"""
    error = sources.body_error(lines, {"p": "*u8"}, params="p")
    assert re.search(message, error.message), error.message


@pytest.mark.parametrize("other", [FP16, FP32, FP8E5])
def test_it_meets_other_floats(other: object) -> None:
    assert computation_type(FP8E4B15, other) == (FP16 if other == FP8E5 else other)  # type: ignore[arg-type]
    assert computation_type(FP8E4B15, BF16) == FP32


def test_no_scalar_argument_has_it(sources: Sources) -> None:
    error = sources.body_error("tl.store(p, n)", {"p": "*u8", "n": "fp8e4b15"}, params="p, n")
    assert "no scalar of a host has" in error.message


def test_pointers_to_it_are_passed_as_pointers_to_bytes(sources: Sources) -> None:
    body = """
i = tl.arange(0, 256)
x = tl.load(p + i, mask=i < 250, other=1.5)
tl.static_assert(x.dtype == tl.float8e4b15 and p.dtype.element_ty == tl.float8e4b15)
tl.store(out + i, x.to(tl.float32))
tl.store(q + i, tl.load(out + i) * 0.5, mask=i != 3)
tl.store(q + 256, tl.load(p + 8))
b = tl.make_block_ptr(p, [200], [1], [0], [256], [0])
tl.store(out + 256 + i, tl.load(b, boundary_check=(0,)).to(tl.float32))
"""
    signature = {"p": "*fp8e4b15:16", "q": "*fp8e4b15", "out": "*fp32"}
    kernel = sources.translate(kernel_of(body, "p, q, out"), signature).kernel
    assert [str(arg.type) for arg in kernel.body.args] == ["*u8", "*u8", "*fp32"]
    assert kernel.params[0].divisibility == 16
    stored = np.arange(256, dtype=np.uint8)
    q, out = np.full(257, 0xAA, np.uint8), np.zeros(512, np.float32)
    run(kernel, (1,), [stored, q, out])
    bits = stored.astype(np.uint16)
    numbers = ((bits & 0x80) << 8 | (bits & 0x7F) << 7).view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(out[:256], [*numbers[:250], *[1.5] * 6])
    np.testing.assert_array_equal(out[256:], [*numbers[:200], *[0.0] * 56])
    assert q[3] == 0xAA
    assert q[256] == 8
    half = ((q[:256].astype(np.uint16) & 0x80) << 8 | (q[:256].astype(np.uint16) & 0x7F) << 7).view(
        np.float16
    )
    close = np.abs(half.astype(np.float32) - out[:256] * 0.5) <= 2.0**-10
    assert np.delete(close | (np.abs(out[:256]) > 1.75), 3).all()


SOURCE = """
import triton
import triton.language as tl
@triton.jit
def k(x, out):
    at = tl.program_id(0) * 512 + tl.arange(0, 512)
    y = tl.load(x + at).to(tl.float8e4b15)
    tl.store(out + at, y.to(tl.float32) + 1)
"""


@pytest.mark.emulated
def test_the_gpu_does_the_same(tmp_path: Path) -> None:
    manifest = """
[package]
name = "p"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "kernels.py:k"
grid = ["2"]
[kernel.signature]
x = "*fp32:16"
out = "*fp32:16"
"""
    check_verified(tmp_path, SOURCE, manifest)
