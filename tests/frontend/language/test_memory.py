"""Loads and stores, run on tile IR against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.diagnostics import CompileError
from aotc.verify.interpreter.run import run
from tests.frontend.conftest import Sources


def test_masked_load_and_store(sources: Sources) -> None:
    translation = sources.translate(
        """
        @triton.jit
        def k(x, out, n, BLOCK: tl.constexpr):
            offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            value = tl.load(x + offs, mask=offs < n, other=-1, cache_modifier=".cg", volatile=True)
            tl.store(out + offs, value * 2, mask=offs < n + 2, eviction_policy="evict_first")
        """,
        {"x": "*fp16", "out": "*fp32", "n": "i32"},
        {"BLOCK": 8},
    )
    x = np.arange(11, dtype=np.float16)
    out = np.zeros(16, np.float32)
    run(translation.kernel, (2,), [x, out, 11])
    np.testing.assert_array_equal(out, [*(2.0 * x), -2, -2, 0, 0, 0])


@pytest.mark.parametrize(
    "write", ["tl.store(out + i, v[:, None])", "tl.store(out + i, 0.0, mask=(v > 0)[:, None])"]
)
def test_a_store_of_more_than_the_pointers_is_refused(sources: Sources, write: str) -> None:
    text = f"""
        @triton.jit
        def k(x, out):
            i = tl.arange(0, 8)
            v = tl.load(x + i)
            {write}
        """
    with pytest.raises(
        CompileError, match=r"pointers of the value's shape, got \(8,\) for \(8, 1\)"
    ):
        sources.translate(text, {"x": "*fp32", "out": "*fp32"})


def test_truth_values_in_memory(sources: Sources) -> None:
    translation = sources.translate(
        """
        @triton.jit
        def k(flags, out, n):
            offs = tl.arange(0, 8)
            flag = tl.load(flags + offs, mask=offs < n, other=True)
            tl.store(out + offs, flag)
            tl.store(flags + offs, 3 * (offs % 2))
        """,
        {"flags": "*i1", "out": "*i32", "n": "i32"},
    )
    flags = np.array([0, 1, 0, 1, 0, 0, 0, 0], np.int8).view(np.bool_)
    out = np.zeros(8, np.int32)
    run(translation.kernel, (1,), [flags, out, 6])
    assert out.tolist() == [0, 1, 0, 1, 0, 0, 1, 1]
    assert flags.view(np.int8).tolist() == [0, 1] * 4


def test_scalar_memory(sources: Sources) -> None:
    translation = sources.translate(
        """
        @triton.jit
        def k(x, out, n):
            i = tl.program_id(0)
            value = tl.load(x + i, mask=i < n, other=7)
            tl.store(out + i, value + tl.num_programs(0))
        """,
        {"x": "*i32", "out": "*i64", "n": "i32"},
    )
    out = np.zeros(3, np.int64)
    run(translation.kernel, (3,), [np.array([5, 6], np.int32), out, 2])
    assert out.tolist() == [8, 9, 10]


def test_pointer_tricks(sources: Sources) -> None:
    translation = sources.translate(
        """
        @triton.jit
        def k(x, out):
            address = x.to(tl.int64) + 4
            again = address.to(tl.pointer_type(tl.int32))
            tl.store(out, tl.load(again))
            ahead = tl.load(x.to(tl.pointer_type(tl.uint8), bitcast=True) + 8)
            tl.store(out + 1, ahead)
        """,
        {"x": "*i32", "out": "*i32"},
    )
    out = np.zeros(2, np.int32)
    run(translation.kernel, (1,), [np.array([1, 20, 300], np.int32), out])
    assert out.tolist() == [20, 300 % 256]
