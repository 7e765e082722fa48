"""Block pointers: loads and stores, use in control flow, and errors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from aotc.ir.diagnostics import CompileError
from aotc.verify.interpreter.run import run
from tests.frontend.conftest import Sources

HEAD = "\n@triton.jit\ndef k(x, out, m, n):\n"
SIGNATURE = {"x": "*fp32", "out": "*fp32", "m": "i32", "n": "i32"}
BLOCK = "p = tl.make_block_ptr(x, (m, n), (n, 1), (0, 0), (4, 8), (1, 0))\n"


def _source(body: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in body.split("\n"))


def _run_copy(sources: Sources, body: str, rows: int, columns: int) -> np.ndarray:
    """Run a kernel copying blocks of (rows, columns); return its (12, 16) output."""
    kernel = sources.translate(_source(body), SIGNATURE).kernel
    x = np.arange(1, rows * columns + 1, dtype=np.float32)
    out = np.full(12 * 16, -1, np.float32)
    run(kernel, (1,), [x, out, rows, columns])
    return out.reshape(12, 16)


OUT = "q = tl.make_block_ptr(out, (12, 16), (16, 1), (0, 0), (4, 8), (1, 0))\n"


@pytest.mark.parametrize(("rows", "columns"), [(4, 8), (3, 5), (1, 8), (9, 11)])
def test_what_is_outside_reads_as_zero(sources: Sources, rows: int, columns: int) -> None:
    body = BLOCK + OUT + "tl.store(q, tl.load(p, boundary_check=(0, 1), padding_option='zero'))"
    actual = _run_copy(sources, body, rows, columns)
    x = np.arange(1, rows * columns + 1, dtype=np.float32).reshape(rows, columns)
    expected = np.full((12, 16), -1, np.float32)
    expected[:4, :8] = 0
    expected[: min(rows, 4), : min(columns, 8)] = x[:4, :8]
    np.testing.assert_array_equal(actual, expected)


def test_blocks_walk_in_loops_and_branches(sources: Sources) -> None:
    body = (
        BLOCK + OUT + "for i in range(2):\n"
        "    for j in range(tl.cdiv(n, 8)):\n"
        "        tl.store(q, tl.load(p, boundary_check=(1, 0)), boundary_check=(0, 1))\n"
        "        p = tl.advance(p, (0, 8))\n"
        "        q = tl.advance(q, [0, 8])\n"
        "    if m > 4:\n"
        "        p = tl.advance(p, (4, -16))\n"
        "        q = tl.advance(q, (4, -16))\n"
        "    else:\n"
        "        p = tl.advance(p, (0, -16))\n"
        "        q = tl.advance(q, (0, -16))"
    )
    actual = _run_copy(sources, body, 7, 13)
    expected = np.full((12, 16), -1, np.float32)
    expected[:8] = 0
    expected[:7, :13] = np.arange(1, 92).reshape(7, 13)
    np.testing.assert_array_equal(actual, expected)


def test_axes_that_are_not_checked_have_no_mask(sources: Sources) -> None:
    for axes in itertools.chain.from_iterable(itertools.combinations((0, 1), n) for n in range(3)):
        text = sources.text(
            _source(BLOCK + f"tl.store(out, tl.sum(tl.load(p, boundary_check={axes})))"), SIGNATURE
        )
        assert text.count('predicate = "lt"') == len(axes)
    one_axis = _source(BLOCK + "tl.store(out, tl.sum(tl.load(p, boundary_check=1)))")
    assert sources.text(one_axis, SIGNATURE).count('predicate = "lt"') == 1


def test_before_the_beginning_is_outside(sources: Sources) -> None:
    body = BLOCK + OUT + "tl.store(q, tl.load(tl.advance(p, (-1, -2)), boundary_check=(0, 1)))"
    actual = _run_copy(sources, body, 4, 8)
    assert not actual[0, :8].any()
    assert not actual[:4, :2].any()
    assert actual[1, 2] == 1


def test_padding_with_nan_and_extents_of_64_bits(sources: Sources) -> None:
    body = (
        "p = tl.make_block_ptr(x, (m.to(tl.int64), n), (n, 1), (0, 0), (4, 8), (1, 0))\n"
        + OUT
        + "tl.store(q, tl.load(p, boundary_check=(0,), padding_option='nan'))"
    )
    actual = _run_copy(sources, body, 3, 8)
    assert np.isnan(actual[3, :8]).all()
    assert not np.isnan(actual[:3]).any()


def test_attributes_and_helpers(sources: Sources) -> None:
    text = (
        "\n@triton.jit\ndef made(x, m, n, flag):\n"
        "    if flag:\n        return tl.make_block_ptr(x, (m, n), (n, 1), (0, 0), (4, 8), (1, 0))\n"
        "    return tl.make_block_ptr(x, (n, m), (m, 1), (0, 0), (4, 8), (1, 0))\n"
        + _source(
            "p = made(x, m, n, m > 3)\n"
            "tl.static_assert(p.dtype.element_ty == tl.float32 and p.shape[1] == 8)\n"
            "tl.store(out, tl.sum(tl.load(p, boundary_check=(0, 1)).to(p.dtype.element_ty)))"
        )
    )
    assert "scf.if" in sources.text(text, SIGNATURE)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("tl.make_block_ptr(m, (m,), (1,), (0,), (8,), (0,))", "takes a scalar pointer, got int32"),
        (
            "tl.make_block_ptr(x, (m,), (1,), (0,), (8, 8), (1, 0))",
            "takes shape of 2 axes, as its block_shape has, got 1",
        ),
        (
            "tl.make_block_ptr(x, (m, n), (1,), (0, 0), (8, 8), (1, 0))",
            "takes strides of 2 axes, as its block_shape has, got 1",
        ),
        (
            "tl.make_block_ptr(x, (m, n), (n, 1), 0, (8, 8), (1, 0))",
            "takes offsets of 2 axes, as its block_shape has, got 0",
        ),
        (
            "tl.make_block_ptr(x, (m,), (1,), (0,), (8,), (1, 0))",
            "takes an order of 1 axes, as its block_shape has, got 2",
        ),
        (
            "tl.make_block_ptr(x, (m,), (0.5,), (0,), (8,), (0,))",
            "the strides of tl.make_block_ptr must be integers",
        ),
        ("tl.make_block_ptr(x, (m,), (1,), (0,), (6,), (0,))", "must be a power of two"),
        ("tl.advance(x, (1,))", "tl.advance takes a block pointer, got pointer<float32>"),
        (
            BLOCK + "tl.advance(p, (1,))",
            "tl.advance takes offsets of 2 axes, as its block_shape has, got 1",
        ),
        (BLOCK + "tl.load(p, mask=m > 3)", "tl.load takes no mask for a block pointer"),
        (BLOCK + "tl.store(p, 1.0, mask=m > 3)", "tl.store takes no mask for a block pointer"),
        (BLOCK + "tl.load(p, boundary_check=(2,))", "each axis of boundary_check must be from"),
        (BLOCK + "tl.load(p, boundary_check='0')", "must be a tuple of axes, got '0'"),
        (BLOCK + "tl.load(p, padding_option='one')", "padding_option must be"),
        ("tl.load(x, boundary_check=(0,))", "are for block pointers"),
        ("tl.store(x, 1.0, boundary_check=(0,))", "are for block pointers"),
        (BLOCK + "y = p + 1", "got a block pointer pointer<float32>[4, 8]"),
        (BLOCK + "p.load()", "has no attribute 'load'"),
        (
            BLOCK + "for i in range(m):\n"
            "    p = tl.make_block_ptr(x, (m, n), (n, 1), (0, 0), (8, 8), (1, 0))",
            "p is a block pointer pointer<float32>[4, 8] before this loop",
        ),
    ],
)
def test_mistakes(sources: Sources, body: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        sources.text(_source(body), SIGNATURE)
    assert message in caught.value.message
    assert caught.value.loc is not None


def test_nan_is_for_floats(sources: Sources) -> None:
    body = BLOCK + "tl.load(p, boundary_check=(0,), padding_option='nan')"
    with pytest.raises(CompileError, match="is for floats, got a tensor of i32"):
        sources.text(_source(body), {**SIGNATURE, "x": "*i32"})


def test_truth_values_are_bytes(sources: Sources) -> None:
    body = BLOCK + "tl.store(p, tl.load(p, boundary_check=(0, 1)) == 0, boundary_check=(0, 1))"
    text = sources.text(_source(body), {**SIGNATURE, "x": "*i1"})
    assert "tile<4x8x*i8>" in text


def test_methods_are_the_functions(sources: Sources) -> None:
    body = (
        BLOCK + OUT + "q = q.advance((4, 8))\n"
        "q.store(tl.load(p.advance([0, 0]), boundary_check=(0, 1)), boundary_check=(0, 1))"
    )
    actual = _run_copy(sources, body, 4, 8)
    np.testing.assert_array_equal(actual[4:8, 8:], np.arange(1, 33).reshape(4, 8))
    assert (actual[:4] == -1).all()
