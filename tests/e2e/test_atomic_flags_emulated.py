"""Programs handing over results by flags: acquire loads, release stores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc.verify.emulator.run import emulate

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def relay(x_ptr, flag_ptr, out_ptr, BLOCK: tl.constexpr):
    # Each program adds one to what the program before it has stored, once that says so.
    pid = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    there = tl.atomic_poll(flag_ptr + pid, 1)
    x = tl.load(x_ptr + pid * BLOCK + i)
    tl.store(x_ptr + (pid + 1) * BLOCK + i, x + 1)
    tl.debug_barrier()
    tl.atomic_store(flag_ptr + pid + 1, 1)
    tl.store(out_ptr + pid, there)


@triton.jit
def impatient(flag_ptr, out_ptr, BLOCK: tl.constexpr):
    start = tl.extra.cuda.globaltimer()
    there = tl.atomic_poll(flag_ptr, 1, timeout_ns=1000)
    taken = tl.extra.cuda.globaltimer() - start
    tl.store(out_ptr, there)
    tl.store(out_ptr + 1, taken >= 1000)
    tl.store(out_ptr + 2, tl.extra.cuda.smid())
    tl.store(out_ptr + 3, tl.extra.cuda.num_warps() + tl.extra.cuda.num_threads())
"""


def _ptx(
    folder: Path, kernel: str, signature: dict[str, str], target: str, warps: int
) -> tuple[str, int]:
    path = folder / "kernel.py"
    path.write_text(SOURCE)
    compiled_kernel = aotc.compile(
        f"{path}:{kernel}",
        signature=signature,
        constants={"BLOCK": 64},
        target=target,
        num_warps=warps,
    )
    return compiled_kernel.asm["ptx"], compiled_kernel.metadata.shared_bytes


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("target", "warps"), [("sm_80", 1), ("sm_90a", 4)])
def test_a_value_goes_through_all_programs(
    tmp_path: Path, target: str, warps: int, seed: int
) -> None:
    signature = {"x_ptr": "*fp32", "flag_ptr": "*i32", "out_ptr": "*i32"}
    ptx, shared_bytes = _ptx(tmp_path, "relay", signature, target, warps)
    x = np.zeros((6, 64), np.float32)
    x[0] = np.arange(64)
    flags, out = np.array([1, 0, 0, 0, 0, 0], np.int32), np.zeros(5, np.int32)
    emulate(ptx, (5, 1, 1), [x, flags, out], shared_bytes=shared_bytes, seed=seed)
    np.testing.assert_array_equal(x, np.arange(64) + np.arange(6)[:, None])
    assert out.tolist() == [1] * 5


def test_a_kernel_that_asks_the_clock_compiles(tmp_path: Path) -> None:
    signature = {"flag_ptr": "*i32", "out_ptr": "*i32"}
    ptx, _ = _ptx(tmp_path, "impatient", signature, "sm_90a", 2)
    assert ptx.count("%globaltimer") == 4
    assert ptx.count("%smid") == 1
