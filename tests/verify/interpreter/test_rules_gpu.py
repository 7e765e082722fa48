"""Gpu IR under the interpreter: results equal to tile IR's, and checks based on layouts."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.core import Op
from aotc.ir.text import parse_kernel
from aotc.ir.verify import verify
from aotc.verify.interpreter.run import RULES, InterpretError, run

# 128 elements on 4 warps: four consecutive to a thread, and 32 apart.
_LAYOUTS = """\
#0 = #ll<register=[[1],[2]] lane=[[4],[8],[16],[0],[0]] warp=[[32],[64]] : [128]>
#1 = #ll<register=[[32],[64]] lane=[[1],[2],[4],[0],[0]] warp=[[8],[16]] : [128]>
#2 = #ll<offset=[[1],[2],[4],[8],[16],[32],[64]] : [128]>
"""
_POINTERS = """
  %i = tile.arange {start = 0, end = 128, layout = #0} : tile<128xi32, #0>
  %px = tile.splat(%x) {shape = [128], layout = #0} : tile<128x*fp32, #0>
  %xs = arith.addptr(%px, %i) : tile<128x*fp32, #0>
  %po = tile.splat(%out) {shape = [128], layout = #0} : tile<128x*fp32, #0>
  %os = arith.addptr(%po, %i) : tile<128x*fp32, #0>
"""


def _run(body: str, x: np.ndarray, *args: int, check_races: bool = True) -> np.ndarray:
    names = "".join(f", %a{index}: i32" for index in range(len(args)))
    kernel = parse_kernel(
        f"{_LAYOUTS}kernel @k(%x: *fp32, %out: *fp32{names}) {{num_warps = 4}} {{{_POINTERS}{body}"
        "  scf.return\n}\n"
    )
    verify(kernel)
    out = np.zeros(128, np.float32)
    run(kernel, (1,), [x, out, *args], check_races=check_races)
    return out


X = np.random.default_rng(0).standard_normal(128).astype(np.float32)


def test_every_op_has_a_rule() -> None:
    ops = {cls for name, cls in Op.registry.items() if name.startswith("gpu.")}
    assert RULES.keys() >= ops


def test_load_and_store_in_vectors() -> None:
    body = """
  %v = gpu.load(%xs) {vector = 4} : tile<128xfp32, #0>
  gpu.store(%os, %v) {vector = 4}
"""
    assert (_run(body, X) == X).all()


def test_a_vector_that_is_not_aligned() -> None:
    body = "  %v = gpu.load(%xs) {vector = 4} : tile<128xfp32, #0>\n"
    owner = np.zeros(129, np.float32)
    with pytest.raises(InterpretError, match="4 elements at a time, which are not aligned"):
        _run(body, owner[1:])


def test_a_vector_across_the_edge_of_a_mask() -> None:
    body = """
  %n = tile.splat(%a0) {shape = [128], layout = #0} : tile<128xi32, #0>
  %m = arith.compare(%i, %n) {predicate = "lt"} : tile<128xi1, #0>
  %v = gpu.load(%xs, %m) {vector = 4} : tile<128xfp32, #0>
  gpu.store(%os, %v, %m) {vector = 4}
"""
    assert (_run(body, X, 64)[:64] == X[:64]).all()
    with pytest.raises(InterpretError, match="masks differ"):
        _run(body, X, 63)


_CONVERT = """
  %v = gpu.load(%xs) : tile<128xfp32, #0>
  %buffer = gpu.shared_alloc {{element = fp32, shape = [128], layout = #2{offset}}} : shared<128xfp32, #2>
  gpu.shared_store(%v, %buffer) {{vector = {vector}}}
{barrier}
  %w = gpu.shared_load(%buffer) {{layout = #1}} : tile<128xfp32, #1>
  %u = {back}(%w) {{layout = #0{plan}}} : tile<128xfp32, #0>
  gpu.store(%os, %u)
"""


def _convert(**changes: object) -> str:
    values = {
        "offset": "",
        "vector": 4,
        "barrier": "  gpu.barrier",
        "back": "gpu.convert",
        "plan": "",
    }
    return _CONVERT.format(**{**values, **changes})


def test_conversions_keep_every_element() -> None:
    assert (_run(_convert(), X) == X).all()
    assert (_run(_convert(offset=", offset_bytes = 64"), X) == X).all()
    assert (_run(_convert(back="gpu.shuffle_convert", plan=", plan = []"), X) == X).all()


def test_a_missing_barrier_is_found() -> None:
    with pytest.raises(InterpretError, match=r"gpu.shared_load .* since the last barrier"):
        _run(_convert(barrier=""), X)
    _run(_convert(barrier="  tile.barrier"), X)
    # Before barriers are inserted, accesses count as ordered.
    assert (_run(_convert(barrier=""), X, check_races=False) == X).all()


def test_a_shared_vector_that_is_not_aligned() -> None:
    with pytest.raises(InterpretError, match="gpu.shared_store holds a part of the 4 elements"):
        _run(_convert(offset=", offset_bytes = 8"), X)


@pytest.mark.parametrize(("basis", "fits"), [("[8,8]", True), ("[8,9]", False), ("[0,8]", True)])
def test_rows_of_matrices_are_read_as_they_lie(basis: str, *, fits: bool) -> None:
    """Elements swizzled within their row would come to other lanes."""
    kernel = parse_kernel(f"""\
#0 = #ll<register=[[0,1],[8,0],[0,8]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[] : [16,16]>
#1 = #ll<offset=[[0,1],[0,2],[0,4],[1,0],[2,0],[4,0],[8,0],{basis}] : [16,16]>
kernel @k() {{num_warps = 1}} {{
  %v = arith.constant {{value = 1.0, type = tile<16x16xfp16, #0>}} : tile<16x16xfp16, #0>
  %buffer = gpu.shared_alloc {{element = fp16, shape = [16, 16], layout = #1}} : shared<16x16xfp16, #1>
  gpu.shared_store(%v, %buffer)
  gpu.barrier
  %w = gpu.shared_load(%buffer) {{layout = #0, vector = 8, matrix = "b16"}} : tile<16x16xfp16, #0>
  scf.return
}}
""")
    verify(kernel)
    if fits:
        run(kernel, (1,), [])
        return
    with pytest.raises(InterpretError, match="8 elements at a time, which are not"):
        run(kernel, (1,), [])


def test_pointers_go_through_shared_memory_as_their_bits() -> None:
    body = """
  %buffer = gpu.shared_alloc {element = u64, shape = [128], layout = #2} : shared<128xu64, #2>
  gpu.shared_store(%xs, %buffer)
  gpu.barrier
  %p = gpu.shared_load(%buffer) {layout = #0, element = *fp32} : tile<128x*fp32, #0>
  %v = gpu.load(%p) : tile<128xfp32, #0>
  gpu.store(%os, %v)
"""
    assert (_run(body, X) == X).all()


def test_reductions_act_on_whole_tiles() -> None:
    body = """
  %v = gpu.load(%xs) : tile<128xfp32, #0>
  %s = gpu.scan(%v) {axis = 0} (%a: fp32, %b: fp32) {
    %c = arith.max(%a, %b) : fp32
    scf.yield(%c)
  } : tile<128xfp32, #0>
  gpu.store(%os, %s)
  %r = gpu.reduce(%v) {axis = 0} (%d: fp32, %e: fp32) {
    %f = arith.max(%d, %e) : fp32
    scf.yield(%f)
  } : fp32
  gpu.store(%out, %r)
"""
    expected = np.maximum.accumulate(X)
    expected[0] = X.max()
    assert (_run(body, X) == expected).all()


_COPY = """
  %buffer = gpu.shared_alloc {{element = fp32, shape = [128], layout = #2, num_stages = 3}} : shared<128xfp32, #2, 3>
  %n = tile.splat(%a0) {{shape = [128], layout = #0}} : tile<128xi32, #0>
  %m = arith.compare(%i, %n) {{predicate = "lt"}} : tile<128xi1, #0>
  %zero = arith.constant {{value = 0, type = i32}} : i32
  %on = arith.compare(%a1, %zero) {{predicate = "gt"}} : i1
  %next = gpu.next_stage(%a2) {{num_stages = 3}} : i32
  %to = gpu.shared_stage(%buffer, %next) {{ahead = 1}} : shared<128xfp32, #2>
  gpu.async_copy(%xs, %to, %m, %on) {{vector = {vector}}}
  gpu.async_commit
{wait}
  gpu.barrier
  %at = gpu.shared_stage(%buffer, %a2) {{ahead = 2}} : shared<128xfp32, #2>
  %v = gpu.shared_load(%at) {{layout = #0, vector = 4}} : tile<128xfp32, #0>
  gpu.store(%os, %v)
"""


def _copy(vector: int = 4, wait: str = "  gpu.async_wait {pending = 0}") -> str:
    return _COPY.format(vector=vector, wait=wait)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_copies_fill_masked_elements_with_zeros(stage: int) -> None:
    out = _run(_copy(), X, 64, 1, stage)
    assert (out[:64] == X[:64]).all()
    assert (out[64:] == 0).all()


def test_predicated_off_copies_read_nothing() -> None:
    """The pointers lead nowhere, and the stage holds zeros."""
    out = _run(_copy(), X[:1], 128, 0, 0)
    assert (out == 0).all()


def test_copies_are_checked_as_vectors() -> None:
    with pytest.raises(InterpretError, match="whose masks differ"):
        _run(_copy(), X, 63, 1, 0)
    with pytest.raises(InterpretError, match="out of bounds"):
        _run(_copy(), X[:64], 128, 1, 0)


def test_reading_before_the_wait_is_found() -> None:
    with pytest.raises(InterpretError, match="an asynchronous copy has not landed"):
        _run(_copy(wait="  gpu.async_wait {pending = 1}"), X, 128, 1, 0)


def test_there_is_no_stage_beyond_the_last() -> None:
    with pytest.raises(InterpretError, match="is of stage 3 of 3"):
        _run(_copy(), X, 128, 1, 3)
