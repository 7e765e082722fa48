"""Binding arguments and running grids."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from aotc.ir.core import Op
from aotc.ir.text import parse_kernel
from aotc.verify.interpreter.run import RULES, Interpreter, InterpretError, run

# Each program writes its indices and the grid to its own six places.
_WHERE = """
kernel @where(%out: *i32) {num_warps = 4} {
  %x = tile.program_id {axis = 0} : i32
  %y = tile.program_id {axis = 1} : i32
  %z = tile.program_id {axis = 2} : i32
  %nx = tile.num_programs {axis = 0} : i32
  %ny = tile.num_programs {axis = 1} : i32
  %nz = tile.num_programs {axis = 2} : i32
  %six = arith.constant {value = 6, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %a = arith.mul(%z, %ny) : i32
  %b = arith.add(%a, %y) : i32
  %c = arith.mul(%b, %nx) : i32
  %d = arith.add(%c, %x) : i32
  %e = arith.mul(%d, %six) : i32
  %p0 = arith.addptr(%out, %e) : *i32
  tile.store(%p0, %x)
  %p1 = arith.addptr(%p0, %one) : *i32
  tile.store(%p1, %y)
  %p2 = arith.addptr(%p1, %one) : *i32
  tile.store(%p2, %z)
  %p3 = arith.addptr(%p2, %one) : *i32
  tile.store(%p3, %nx)
  %p4 = arith.addptr(%p3, %one) : *i32
  tile.store(%p4, %ny)
  %p5 = arith.addptr(%p4, %one) : *i32
  tile.store(%p5, %nz)
  scf.return
}
"""


def test_every_op_has_exactly_one_rule() -> None:
    assert set(RULES) == set(Op.registry.values())


@pytest.mark.parametrize("grid", [(5,), (3, 2), (2, 3, 4), (1, 1, 1)])
def test_every_program_of_a_grid_runs_once(grid: tuple[int, ...]) -> None:
    nx, ny, nz = (*grid, 1, 1)[:3]
    out = np.full((nz, ny, nx, 6), -1, np.int32)
    run(parse_kernel(_WHERE), grid, [out])
    for z, y, x in np.ndindex(nz, ny, nx):
        assert out[z, y, x].tolist() == [x, y, z, nx, ny, nz]


def test_programs_are_numbered_along_the_first_axis_first() -> None:
    out = np.full((4, 3, 2, 6), -1, np.int32)
    Interpreter(parse_kernel(_WHERE), [out]).run((2, 3, 4), (13, 4))
    assert {tuple(indices) for indices in out[..., :3].reshape(-1, 3).tolist()} == {
        *((-1, -1, -1), (0, 2, 0), (1, 0, 2))
    }


@pytest.mark.parametrize("grid", [(0,), (3, 0), (1, 2, 0)])
def test_an_empty_grid_runs_nothing(grid: tuple[int, ...]) -> None:
    out = np.full(6, -1, np.int32)
    run(parse_kernel(_WHERE), grid, [out])
    assert (out == -1).all()


@pytest.mark.parametrize("grid", [(), (1, 1, 1, 1), (-1,)])
def test_a_grid_has_one_to_three_extents(grid: tuple[int, ...]) -> None:
    with pytest.raises(InterpretError, match="grid of 1 to 3 extents"):
        run(parse_kernel(_WHERE), grid, [np.zeros(6, np.int32)])


def _take(parameter: str, *args: Any) -> None:
    kernel = parse_kernel(f"kernel @k({parameter}) {{num_warps = 4}} {{\n  scf.return\n}}")
    run(kernel, (1,), args)


_ALIGNED = np.zeros(64, np.float32)


@pytest.mark.parametrize(
    ("parameter", "arg"),
    [
        ("%n: i8", -128),
        ("%n: u64", 2**64 - 1),
        ("%n: i32", np.int64(5)),
        ("%n: i32 {divisibility = 16}", 48),
        ("%e: fp16", 0.1),
        ("%e: fp32", 3),
        ("%f: i1", True),
        ("%x: *fp32 {divisibility = 16}", _ALIGNED),
        ("%x: *fp32 {divisibility = 16}", _ALIGNED[4:]),
        ("%x: *i1", np.zeros(3, np.uint8)),
        ("%x: *i1", np.zeros(3, np.bool_)),
    ],
)
def test_arguments_that_fit(parameter: str, arg: Any) -> None:
    _take(parameter, arg)


@pytest.mark.parametrize(
    ("parameter", "arg", "message"),
    [
        ("%n: i8", 128, "argument n of k: expected a value of i8, got 128"),
        ("%n: u32", -1, "expected a value of u32, got -1"),
        ("%n: i32", 1.5, "expected a value of i32, got 1.5"),
        ("%n: i32 {divisibility = 16}", 8, "expected a multiple of 16, got 0x8"),
        ("%n: i32", _ALIGNED, "expected a number for i32, got float32 array"),
        ("%x: *fp32", 3, "expected an array of float32 for *fp32, got 3"),
        ("%x: *fp16", _ALIGNED, "expected an array of float16 for *fp16, got float32 array"),
        ("%x: *fp32 {divisibility = 16}", _ALIGNED[1:], "expected a multiple of 16"),
    ],
)
def test_arguments_that_do_not_fit(parameter: str, arg: Any, message: str) -> None:
    with pytest.raises(InterpretError, match=re.escape(message)):
        _take(parameter, arg)


def test_the_number_of_arguments() -> None:
    with pytest.raises(InterpretError, match="k takes 1 arguments, got 2"):
        _take("%n: i32", 1, 2)


_COPY = """
kernel @copy(%x: *fp32, %out: *fp32) {num_warps = 4} {
  %i = tile.arange {start = 0, end = 4} : tile<4xi32>
  %px = tile.splat(%x) {shape = [4]} : tile<4x*fp32>
  %xs = arith.addptr(%px, %i) : tile<4x*fp32>
  %v = tile.load(%xs) : tile<4xfp32>
  %po = tile.splat(%out) {shape = [4]} : tile<4x*fp32>
  %os = arith.addptr(%po, %i) : tile<4x*fp32>
  tile.store(%os, %v)
  scf.return
}
"""


def test_views_of_one_array_alias() -> None:
    owner = np.arange(8, dtype=np.float32)
    run(parse_kernel(_COPY), (1,), [owner[:4], owner[2:6]])
    assert owner.tolist() == [0, 1, 0, 1, 2, 3, 6, 7]


def test_a_misaligned_view_is_passed_by_slicing() -> None:
    x, out = np.arange(5, dtype=np.float32), np.zeros(7, np.float32)
    run(parse_kernel(_COPY), (1,), [x[1:], out[3:]])
    assert out.tolist() == [0, 0, 0, 1, 2, 3, 4]


def test_an_interpreter_runs_again_on_its_results() -> None:
    kernel = parse_kernel("""
kernel @inc(%p: *i32) {num_warps = 4} {
  %v = tile.load(%p) : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %w = arith.add(%v, %one) : i32
  tile.store(%p, %w)
  scf.return
}
""")
    counter = np.zeros(1, np.int32)
    interpreter = Interpreter(kernel, [counter])
    interpreter.run((3,))
    interpreter.run((4,))
    assert counter.tolist() == [7]
