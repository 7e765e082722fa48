"""Tensor copies under the interpreter: when bytes land, who may touch them, which phase ends."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.text import parse_kernel
from aotc.verify.interpreter import InterpretError, run

HEAD = """\
#0 = #ll<offset=[[1],[2],[4],[8],[16],[32],[64]] : [128]>
#1 = #ll<register=[[1]] lane=[[2],[4],[8],[16],[32]] warp=[[64]] : [128]>
#2 = #ll<offset=[] : [1]>
kernel @k(%x: map<128xfp32, 0>, %y: map<128xfp32, 0>, %i: i32, %j: i32) {num_warps = 2} {
  %b = gpu.shared_alloc {element = fp32, shape = [128], layout = #0, alignment_bytes = 128, offset_bytes = 0} : shared<128xfp32, #0>
  %bar = gpu.shared_alloc {element = u64, shape = [1], layout = #2, offset_bytes = 512} : shared<1xu64, #2>
"""
VALUES = "%v = gpu.shared_load(%b) {layout = #1, vector = 2} : tile<128xfp32, #1>"


def _run(*lines: str, count: int = 1, i: int = 0) -> np.ndarray:
    body = "".join(f"  {line}\n" for line in lines)
    init = f"  gpu.mbarrier_init(%bar) {{count = {count}}}\n" if count != 1 else ""
    init = init or "  gpu.mbarrier_init(%bar)\n"
    x, y = np.arange(1, 201, dtype=np.float32), np.zeros(200, np.float32)
    run(parse_kernel(f"{HEAD}{init}{body}  scf.return\n}}\n"), (1,), [x, y, i, 1])
    return y


LOAD = "gpu.tma_load(%x, %b, %bar, %i)"
WAIT = "gpu.mbarrier_wait(%bar, %i)"
FETCH = "gpu.tma_fetch(%x, %b, %i)"
STORE = "gpu.tma_store(%y, %b, %i)"
PUT = "gpu.shared_store(%v, %b) {vector = 2}"


def test_a_load_and_a_store() -> None:
    y = _run(LOAD, WAIT, "gpu.barrier", "gpu.tma_store(%y, %b, %j)", "gpu.tma_store_wait")
    assert (y[1:129] == np.arange(1, 129)).all()
    assert y[0] == 0
    assert (y[129:] == 0).all()


def test_a_fetch_needs_no_wait() -> None:
    y = _run("gpu.tma_fetch(%x, %b, %i)", VALUES, "gpu.barrier", "gpu.tma_store(%y, %b, %i)")
    assert (y[:128] == np.arange(1, 129)).all()


def test_a_reduction_adds() -> None:
    y = _run(
        "gpu.tma_fetch(%x, %b, %i)",
        *['gpu.tma_reduce(%y, %b, %i) {kind = "add"}', "gpu.tma_store_wait"] * 3,
    )
    assert (y[:128] == 3 * np.arange(1, 129)).all()


def test_two_loads_end_one_phase() -> None:
    first = LOAD + " {arrive = false}"
    other = VALUES.replace("%v", "%w")
    assert _run(first, "gpu.proxy_fence", count=1).sum() == 0
    with pytest.raises(InterpretError, match="waits for ever: 0 phases"):
        _run(first, WAIT, other)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((LOAD, VALUES), "has not landed"),
        ((LOAD, "gpu.mbarrier_wait(%bar, %j)"), "waits for ever: 1 phases have ended"),
        ((WAIT,), "waits for ever: 0 phases have ended"),
        ((LOAD, LOAD), "has not landed"),
        ((LOAD, WAIT, VALUES, "gpu.tma_load(%x, %b, %bar, %i)"), "touched since the last barrier"),
        ((FETCH, VALUES, "gpu.barrier", STORE, PUT), "has not landed"),
        ((FETCH, VALUES, "gpu.barrier", PUT, STORE), "touched since the last barrier"),
        (
            (FETCH, VALUES, "gpu.barrier", STORE, "gpu.tma_store_wait", PUT),
            "touched since the last barrier",
        ),
    ],
)
def test_what_goes_wrong_on_a_gpu_is_found(lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(InterpretError, match=message):
        _run(*lines)
