"""Tensor copies under the interpreter: landing, access during flight, phases."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.text import parse_kernel
from aotc.verify.interpreter.run import InterpretError, run

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
FETCH = "gpu.sync_tma_load(%x, %b, %i)"
STORE = "gpu.tma_store(%y, %b, %i)"
PUT = "gpu.shared_store(%v, %b) {vector = 2}"


def test_a_load_and_a_store() -> None:
    y = _run(LOAD, WAIT, "gpu.barrier", "gpu.tma_store(%y, %b, %j)", "gpu.tma_store_wait")
    assert (y[1:129] == np.arange(1, 129)).all()
    assert y[0] == 0
    assert (y[129:] == 0).all()


def test_a_fetch_needs_no_wait() -> None:
    y = _run("gpu.sync_tma_load(%x, %b, %i)", VALUES, "gpu.barrier", "gpu.tma_store(%y, %b, %i)")
    assert (y[:128] == np.arange(1, 129)).all()


SOME = "%some = arith.constant {value = BYTES, type = i32} : i32"


def _run_bytes(size_bytes: int, *lines: str, i: int = 0) -> np.ndarray:
    """Run lines with a copy from `%at`, the element `i` of 200."""
    head = HEAD.replace("kernel @k(%x: map<128xfp32, 0>, %y", "kernel @k(%p: *fp32, %y")
    start = ("%at = arith.addptr(%p, %i) : *fp32", SOME.replace("BYTES", str(size_bytes)))
    body = "".join(f"  {line}\n" for line in (*start, "gpu.mbarrier_init(%bar)", *lines))
    x, y = np.arange(1, 201, dtype=np.float32), np.zeros(200, np.float32)
    run(parse_kernel(f"{head}{body}  scf.return\n}}\n"), (1,), [x, y, i, 0])
    return y


OLD = (
    "%nine = arith.constant {value = 9.0, type = tile<128xfp32, #1>} : tile<128xfp32, #1>",
    "gpu.shared_store(%nine, %b) {vector = 2}",
    "gpu.barrier",
)
OUT = ("gpu.barrier", "gpu.tma_store(%y, %b, %j)", "gpu.tma_store_wait")


@pytest.mark.parametrize("count", [0, 4, 124, 128])
@pytest.mark.parametrize(
    "copy",
    [
        ("gpu.sync_bulk_load(%at, %b, %some)",),
        ("gpu.bulk_load(%at, %b, %bar, %some)", "gpu.mbarrier_wait(%bar, %j)"),
    ],
)
def test_a_bulk_copy_leaves_the_rest(count: int, copy: tuple[str, ...]) -> None:
    y = _run_bytes(4 * count, *OLD, *copy, *OUT, i=8)
    assert (y[:count] == np.arange(9, 9 + count)).all()
    assert (y[count:128] == 9).all()


@pytest.mark.parametrize(
    ("size_bytes", "i", "message"),
    [
        (24, 0, "copies 24 bytes at"),
        (32, 2, "no pieces of 16"),
        (528, 0, "copies 528 bytes of shared<128xfp32"),
        (-16, 0, "copies -16 bytes of"),
        (512, 76, "out of bounds"),
    ],
)
def test_a_bulk_copy_is_of_whole_pieces(size_bytes: int, i: int, message: str) -> None:
    with pytest.raises(InterpretError, match=message):
        _run_bytes(size_bytes, "gpu.sync_bulk_load(%at, %b, %some)", i=i)


def _stored_bytes(size_bytes: int, *lines: str, i: int = 0) -> np.ndarray:
    """Run lines with a copy to `%at`, the element `i` of 200, all -1 before."""
    head = HEAD.replace("kernel @k(%x: map<128xfp32, 0>, %y", "kernel @k(%p: *fp32, %y")
    start = ("%at = arith.addptr(%p, %i) : *fp32", SOME.replace("BYTES", str(size_bytes)))
    body = "".join(f"  {line}\n" for line in (*start, *OLD, *lines))
    x = np.full(200, -1, np.float32)
    run(parse_kernel(f"{head}{body}  scf.return\n}}\n"), (1,), [x, np.zeros_like(x), i, 0])
    return x


STORED = ("gpu.bulk_store(%at, %b, %some)", "gpu.tma_store_wait")


@pytest.mark.parametrize("count", [0, 4, 124, 128])
def test_a_bulk_store_writes_the_first_bytes(count: int) -> None:
    x = _stored_bytes(4 * count, *STORED, i=8)
    assert (x[8 : 8 + count] == 9).all()
    assert (x[:8] == -1).all()
    assert (x[8 + count :] == -1).all()


@pytest.mark.parametrize(
    ("size_bytes", "i", "message"),
    [(24, 0, "no pieces of 16"), (528, 0, "of shared<128xfp32"), (512, 76, "out of bounds")],
)
def test_a_bulk_store_is_of_whole_pieces(size_bytes: int, i: int, message: str) -> None:
    with pytest.raises(InterpretError, match=message):
        _stored_bytes(size_bytes, *STORED, i=i)


def test_a_bulk_stores_source_is_not_overwritten() -> None:
    again = "gpu.shared_store(%nine, %b) {vector = 2}"
    _stored_bytes(512, *STORED, "gpu.barrier", again)
    with pytest.raises(InterpretError, match="has not landed"):
        _stored_bytes(512, STORED[0], again, STORED[1])


def test_a_bulk_copy_must_land_before_use() -> None:
    with pytest.raises(InterpretError, match="has not landed"):
        _run_bytes(512, "gpu.bulk_load(%at, %b, %bar, %some)", VALUES)


def test_a_masked_load_reads_unmasked_elements() -> None:
    index_line = "%n = tile.arange {start = 0, end = 128, layout = #1} : tile<128xi32, #1>"
    bound = "%e = arith.constant {value = END, type = tile<128xi32, #1>} : tile<128xi32, #1>"
    mask = '%m = arith.compare(%n, %e) {predicate = "lt"} : tile<128xi1, #1>'
    read = (
        "%v = gpu.masked_shared_load(%b, %m, OTHER) {layout = #1, vector = 2} : tile<128xfp32, #1>"
    )

    def masked(end: int, other: str) -> np.ndarray:
        lines = (index_line, bound.replace("END", str(end)), mask, read.replace("OTHER", other))
        return _run_bytes(
            32, *OLD, "gpu.sync_bulk_load(%at, %b, %some)", *lines, "gpu.barrier", PUT, *OUT
        )

    assert (masked(8, "_")[:128] == [*range(1, 9), *[0] * 120]).all()
    assert (masked(12, "%nine")[:128] == [*range(1, 9), *[9] * 120]).all()
    with pytest.raises(InterpretError, match="2 elements at a time, whose masks differ"):
        masked(7, "_")


def test_a_reduction_adds() -> None:
    y = _run(
        "gpu.sync_tma_load(%x, %b, %i)",
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
def test_faults_on_a_gpu_are_found(lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(InterpretError, match=message):
        _run(*lines)


@pytest.mark.parametrize("kind", ["", "add"])
def test_a_staged_store_waits_for_itself(kind: str) -> None:
    """After it, its buffer may be refilled, and the stored data are in place."""
    staged = "gpu.staged_tma_store(%y, %v, %b, %i)" + (f' {{kind = "{kind}"}}' if kind else "")
    y = _run(FETCH, VALUES, "gpu.barrier", staged, staged, FETCH)
    assert (y[:128] == (2 if kind else 1) * np.arange(1, 129)).all()
    assert (y[128:] == 0).all()


@pytest.mark.parametrize("count", [0, 4, 124, 128])
def test_a_staged_bulk_store_writes_the_first_bytes(count: int) -> None:
    x = _stored_bytes(4 * count, "gpu.staged_bulk_store(%at, %nine, %b, %some)", i=8)
    assert (x[8 : 8 + count] == 9).all()
    assert (x[:8] == -1).all()
    assert (x[8 + count :] == -1).all()
