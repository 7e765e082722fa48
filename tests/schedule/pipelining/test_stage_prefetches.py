"""Loops with more stages than registers hold copy to shared memory, iterations ahead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc.compiler import compile_kernel
from tests.support.descriptors import PRELUDE, compiled, launch
from tests.support.requests import request_of

COPY = """def k(x_ptr, out_ptr, n, OTHER: tl.constexpr, STAGES: tl.constexpr):
    t = tl.arange(0, 256)
    for i in tl.range(0, n, 256, num_stages=STAGES):
        x = tl.load(x_ptr + i + t, mask=i + t < n, other=OTHER)
        tl.store(out_ptr + i + t, x * 3 + 1, mask=i + t < n)
"""
GATHER = """def k(x_ptr, index_ptr, out_ptr, n):
    c = tl.arange(0, 128)
    acc = tl.zeros((128,), tl.float32)
    for i in tl.range(0, n, num_stages=4):
        row = tl.load(index_ptr + i)
        acc += tl.load(x_ptr + row * 128 + c)
    tl.store(out_ptr + c, acc)
"""
SUM = """def k(x_ptr, out_ptr, n):
    r, c = tl.arange(0, 16), tl.arange(0, 64)
    acc = tl.zeros((64,), tl.float32)
    for i in tl.range(0, n, 16, num_stages=3):
        rows = i + r[:, None]
        x = tl.load(x_ptr + rows * 64 + c[None, :], mask=rows < n, other=0.0)
        acc += tl.sum(x.to(tl.float32), axis=0)
    tl.store(out_ptr + c, acc)
"""


def told(
    folder: Path, source: str, types: dict[str, str], constants: dict[str, int]
) -> tuple[str, str]:
    """Return gpu IR and remarks of the kernel `k`."""
    path = folder / "kernel.py"
    path.write_text(PRELUDE + source, encoding="utf-8")
    request = request_of(str(path), "k", tuple(types.items()), tuple(constants.items()), "sm_80")
    compiled_kernel = compile_kernel(request, keep_asm=True)
    assert compiled_kernel.metadata.spill_bytes == 0
    return compiled_kernel.asm["gpu"], "\n".join(compiled_kernel.metadata.remarks)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
def test_as_many_copies_are_in_flight_as_stages_ask_for(tmp_path: Path, stages: int) -> None:
    types = {"x_ptr": "*i32:16", "out_ptr": "*i32:16", "n": "i32:16"}
    constants = {"OTHER": 0, "STAGES": stages}
    text, remarks = told(tmp_path, COPY, types, constants)
    # The copies ahead of the loop, and the one in it.
    assert text.count("gpu.async_copy(") == (stages if stages > 2 else 0)
    way = (
        f"over {stages} stages through shared memory"
        if stages > 2
        else "2 stages through registers"
    )
    assert (way in remarks) == (stages > 1)
    kernel = compiled(tmp_path, COPY, types, constants, target="sm_80")
    rng = np.random.default_rng(stages)
    for n in (0, 16, 256, 272, 2048):
        x, out = rng.integers(-999, 999, (2, 2064)).astype(np.int32)
        expected = np.where(np.arange(2064) < n, x * 3 + 1, out)
        launch(kernel, (1,), {"x_ptr": x, "out_ptr": out, "n": n}, seed=n)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("dtype", "other", "reason"),
    [
        ("*i32:16", 5, "masked elements become something else"),
        ("*i8:16", 0, "an access moves 1 bytes a thread"),
    ],
)
def test_what_cannot_be_copied_says_why(
    tmp_path: Path, dtype: str, other: int, reason: str
) -> None:
    types = {"x_ptr": dtype, "out_ptr": "*i32:16", "n": "i32"}
    text, remarks = told(tmp_path, COPY, types, {"OTHER": other, "STAGES": 4})
    assert "gpu.async_copy(" not in text
    assert "x_ptr goes through registers, not by cp.async" in remarks
    assert reason in remarks


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_rows_behind_an_index_load_are_copied_ahead(tmp_path: Path, target: str) -> None:
    types = {"x_ptr": "*fp32:16", "index_ptr": "*i32:16", "out_ptr": "*fp32:16", "n": "i32"}
    kernel = compiled(tmp_path, GATHER, types, target=target)
    assert kernel.ptx.count("cp.async.c") > 0
    rng = np.random.default_rng(1)
    x = rng.integers(-99, 99, (10, 128)).astype(np.float32)
    for n in (0, 1, 3, 4, 11):
        index = rng.integers(0, 10, 16).astype(np.int32)
        out = np.full(128, np.nan, np.float32)
        launch(kernel, (1,), {"x_ptr": x, "index_ptr": index, "out_ptr": out, "n": n}, seed=n)
        np.testing.assert_array_equal(out, x[index[:n]].sum(axis=0))


def test_columns_are_summed_over_copied_rows(tmp_path: Path) -> None:
    types = {"x_ptr": "*fp16:16", "out_ptr": "*fp32:16", "n": "i32"}
    kernel = compiled(tmp_path, SUM, types, target="sm_80")
    assert "cp.async.c" in kernel.ptx
    rng = np.random.default_rng(2)
    for n in (0, 1, 16, 17, 80):
        x = rng.integers(-9, 9, (96, 64)).astype(np.float16)
        out = np.full(64, np.nan, np.float32)
        launch(kernel, (1,), {"x_ptr": x, "out_ptr": out, "n": n}, seed=n)
        np.testing.assert_array_equal(out, x[:n].astype(np.float32).sum(axis=0))
