"""Affine polynomials equal the values computed by the kernel, in every iteration of loops."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from aotc.ir.core import Block, Kernel, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.params import ParamInfo
from aotc.ir.rewrite import Builder
from aotc.ir.text import parse_kernel
from aotc.ir.types import I32, I64, PointerType, TileType
from aotc.ir.verify import verify
from aotc.schedule.analysis.affine import AffineAnalysis, Wrapped, axis_symbol
from aotc.schedule.analysis.polynomial import ONE, Polynomial
from aotc.verify.interpreter.run import run
from tests.support.extent import examples

SHAPE = (4, 8)
TILE = TileType(I32, SHAPE)
NUM_TURNS = 3


class Program:
    """Random kernel of index arithmetic: a loop carries one tile and stores another.

    Each iteration stores `watched` to its own slot of the array `out`.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.body = Block([PointerType(I32), I32, I32], ["out", "n", "s"])
        self.place = Builder(self.body)
        self.out, *self.scalars = self.body.args
        self.scalars += [self.place(tile.ProgramId(0)).out, self.constant(draw(small))]
        self.tiles = [self.axis(0), self.axis(1), self.splat(self.scalars[0])]
        self.ops(draw(st.integers(0, 4)))
        self.step = draw(st.integers(1, 3))
        self.lower = draw(small)
        inits = [draw(st.sampled_from(self.tiles)), draw(st.sampled_from(self.scalars))]
        upper = self.constant(self.lower + NUM_TURNS * self.step)
        lower, step = self.constant(self.lower), self.constant(self.step)
        self.loop = self.place(scf.For(lower, upper, step, inits, self.loop_body()))
        self.place(scf.Return())
        params = tuple(ParamInfo(name) for name in ("out", "n", "s"))
        self.kernel = Kernel("k", params, self.body)
        verify(self.kernel)

    def loop_body(self) -> Block:
        outer = self.place, list(self.scalars), list(self.tiles)
        body = Block([I32, TILE, I32], ["i", "moving", "counter"])
        self.place = Builder(body)
        index, moving, counter = body.args
        # The step per iteration: a multiple of `step`, or of a scalar from outside.
        speed = self.place(arith.Mul(self.pick_scalar(), self.constant(self.step))).out
        next_tile = self.place(arith.Add(moving, self.splat(speed))).out
        counted = self.place(arith.Add(counter, speed)).out
        self.scalars += [index, counter]
        self.tiles += [moving, next_tile]
        self.ops(self.draw(st.integers(0, 4)))
        self.watched = self.draw(st.sampled_from(self.tiles))
        self.store(self.watched, index)
        self.place(scf.Yield([next_tile, counted]))
        self.place, self.scalars, self.tiles = outer
        return body

    def store(self, value: Value, index: Value) -> None:
        turn = self.place(arith.Sub(index, self.constant(self.lower))).out
        turn = self.place(arith.Div(turn, self.constant(self.step))).out
        slot = self.place(arith.Mul(turn, self.constant(SHAPE[0] * SHAPE[1]))).out
        flat = self.place(tile.Arange(0, SHAPE[0] * SHAPE[1])).out
        offsets = self.place(arith.Add(self.place(tile.Reshape(flat, SHAPE)).out, self.splat(slot)))
        pointers = self.place(tile.Splat(self.out, SHAPE)).out
        self.place(tile.Store(self.place(arith.AddPtr(pointers, offsets.out)).out, value))

    def constant(self, value: int) -> Value:
        return self.place(arith.Constant(value, I32)).out

    def splat(self, value: Value) -> Value:
        return self.place(tile.Splat(value, SHAPE)).out

    def axis(self, axis: int) -> Value:
        start = self.draw(small)
        line = self.place(tile.Arange(start, start + SHAPE[axis])).out
        wide = self.place(tile.ExpandDims(line, 1 - axis)).out
        return self.place(tile.Broadcast(wide, SHAPE)).out

    def pick_scalar(self) -> Value:
        return self.draw(st.sampled_from(self.scalars))

    def ops(self, count: int) -> None:
        """Place random ops; later ones may use earlier results."""
        for _ in range(count):
            kind = self.draw(st.sampled_from(["sum", "product", "shift", "turn", "wide", "scalar"]))
            first, two = (self.draw(st.sampled_from(self.tiles)) for _ in range(2))
            if kind == "sum":
                sign = self.draw(st.sampled_from([arith.Add, arith.Sub]))
                self.tiles.append(self.place(sign(first, two)).out)
            elif kind == "product":
                factor = self.splat(self.pick_scalar())
                self.tiles.append(self.place(arith.Mul(first, factor)).out)
            elif kind == "shift":
                bits = self.place(arith.Constant(self.draw(st.integers(0, 3)), TILE)).out
                self.tiles.append(self.place(arith.Neg(self.place(arith.Shl(first, bits)).out)).out)
            elif kind == "turn":
                turned = self.place(tile.Trans(first, (1, 0))).out
                unit = self.place(tile.Reshape(turned, (SHAPE[1], 1, SHAPE[0]))).out
                self.tiles.append(self.place(tile.Trans(unit, (2, 0, 1))).out)
                flat = self.place(tile.Reshape(self.tiles.pop(), SHAPE)).out
                self.tiles.append(flat)
            elif kind == "wide":
                wide = self.place(arith.Cast(first, I64)).out
                self.tiles.append(self.place(arith.Cast(wide, I32)).out)
            else:
                left, right = self.pick_scalar(), self.pick_scalar()
                op_class = self.draw(st.sampled_from([arith.Add, arith.Mul, arith.Sub]))
                self.scalars.append(self.place(op_class(left, right)).out)


small = st.integers(-3, 3)
programs = st.composite(Program)


def tile_of(
    polynomial: Polynomial, analysis: AffineAnalysis, scalars: Mapping[Value, int]
) -> np.ndarray:
    """Evaluate the polynomial of a tile with symbols from `scalars`."""

    def value(symbol: int, coords: tuple[int, ...]) -> int:
        if symbol < 0:
            return coords[-1 - symbol]
        source = analysis.sources[symbol]
        assert isinstance(source, Value)
        return scalars[source]

    out = np.zeros(SHAPE, np.int64)
    for coords in np.ndindex(*SHAPE):
        out[coords] = polynomial.evaluate(lambda symbol, coords=coords: value(symbol, coords))
    return out


@settings(max_examples=examples(150))
@given(programs(), small, small, st.integers(0, 3))
def test_polynomials_have_the_values_of_every_iteration(
    program: Program, n: int, s: int, program_id: int
) -> None:
    analysis = AffineAnalysis(program.kernel)
    watched = analysis[program.watched]
    assume(watched.base is None)  # no more terms than are kept
    out = np.zeros((NUM_TURNS, *SHAPE), np.int32)
    run(program.kernel, (program_id + 1,), [out, n, s])  # the last program's are left
    _, first, second = program.body.args
    pid = next(op.results[0] for op in program.body if isinstance(op, tile.ProgramId))
    for turn in range(NUM_TURNS):
        index = program.lower + turn * program.step
        scalars = {first: n, second: s, pid: program_id, program.loop.induction: index}
        expected = tile_of(watched.offset, analysis, scalars)
        np.testing.assert_array_equal(out[turn], expected.astype(np.int32))


# ---- not a polynomial -------------------------------------------------------------------------

OPAQUE = """\
kernel @k(%p: *fp16, %n: i32, %m: i32, %u: u32) {num_warps = 4} {
  %a = tile.arange {start = 0, end = 8} : tile<8xi32>
  %ns = tile.splat(%n) {shape = [8]} : tile<8xi32>
  BODY
  scf.return
}
"""


def last_of(body: str) -> tuple[AffineAnalysis, Value]:
    kernel = parse_kernel(OPAQUE.replace("BODY", body))
    analysis = AffineAnalysis(kernel)
    values = [op.results[0] for op in kernel.body if op.results]
    return analysis, values[-1]


@pytest.mark.parametrize(
    "op",
    [
        "arith.div(%a, %ns) : tile<8xi32>",
        "arith.min(%a, %ns) : tile<8xi32>",
        "arith.rem(%a, %ns) : tile<8xi32>",  # n is taken to be a multiple of 8: see below
        "arith.xor(%a, %ns) : tile<8xi32>",
        "tile.reshape(%a) {shape = [2, 4]} : tile<2x4xi32>",
        "arith.shl(%a, %ns) : tile<8xi32>",
    ],
)
def test_a_tile_of_something_else_is_itself(op: str) -> None:
    analysis, value = last_of(f"%x = {op}")
    tile = analysis[value]
    if "rem" in op:
        assert tile.base is None
    else:
        assert (tile.base, tile.offset.terms) == (value, ())


def test_a_scalar_of_something_else_is_a_symbol() -> None:
    analysis, value = last_of("%q = arith.div(%n, %m) : i32\n  %x = arith.add(%q, %n) : i32")
    scalar = analysis[value]
    assert scalar.base is None
    assert len(scalar.offset.symbols) == 2
    assert [analysis.is_launch(symbol) for symbol in scalar.offset.symbols].count(True) == 1


def test_a_wider_integer_holds_what_an_unsigned_one_holds() -> None:
    analysis, value = last_of("%x = arith.cast(%u) {dtype = i64} : i64")
    (symbol,) = analysis[value].offset.symbols
    assert analysis.is_launch(symbol)
    analysis, value = last_of("%x = arith.cast(%u) {dtype = i32} : i32")
    assert not analysis.is_launch(analysis[value].offset.symbols[0])


WRAPPED = """\
%c = arith.constant {value = SCALE, type = i32} : i32
  %start = arith.mul(%m, %c) : i32
  %starts = tile.splat(%start) {shape = [8]} : tile<8xi32>
  %i = arith.add(%starts, %a) : tile<8xi32>
  %x = arith.rem(%i, %ns) : tile<8xi32>"""


def test_indices_that_wrap_around_between_tiles_stay_in_a_row() -> None:
    analysis, value = last_of(WRAPPED.replace("SCALE", "16"))
    tile = analysis[value]
    assert tile.offset.coefficient_of(axis_symbol(0)) == ONE
    wrapped = analysis.sources[tile.offset.symbols[-1]]
    assert isinstance(wrapped, Wrapped)
    assert wrapped.extent == 8


def test_indices_that_may_wrap_around_within_a_tile_do_not() -> None:
    analysis, value = last_of(WRAPPED.replace("SCALE", "12"))
    assert analysis[value].base is value


# ---- masks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("predicate", ["lt", "le", "gt", "ge"])
@pytest.mark.parametrize("n", [-1, 0, 3, 7, 8, 9])
def test_a_comparison_is_a_polynomial_below_zero(predicate: str, n: int) -> None:
    analysis, value = last_of(
        f'%x = arith.compare(%a, %ns) {{predicate = "{predicate}"}} : tile<8xi1>'
    )
    bounds = analysis.bounds(value)
    assert bounds is not None
    (bound,) = bounds
    compare = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
    for position in range(8):
        below = bound.evaluate(lambda symbol, index=position: index if symbol < 0 else n)
        assert (below < 0) == compare[predicate](position, n)


@pytest.mark.parametrize(
    "body",
    [
        '%x = arith.compare(%a, %ns) {predicate = "eq"} : tile<8xi1>',
        """%c = arith.compare(%a, %ns) {predicate = "lt"} : tile<8xi1>
           %d = arith.compare(%ns, %a) {predicate = "lt"} : tile<8xi1>
           %x = arith.or(%c, %d) : tile<8xi1>""",
        "%x = arith.constant {value = false, type = tile<8xi1>} : tile<8xi1>",
        """%q = arith.div(%a, %ns) : tile<8xi32>
           %x = arith.compare(%q, %ns) {predicate = "lt"} : tile<8xi1>""",
    ],
)
def test_other_masks_have_no_bounds(body: str) -> None:
    analysis, value = last_of(body)
    assert analysis.bounds(value) is None


# ---- quotients --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("divisor", "left"), [(4, 3), (12, 1), (1, 12), (-4, -3), (5, None), (0, None)]
)
def test_a_multiple_is_divided_exactly(divisor: int, left: int | None) -> None:
    text = f"""\
%c = arith.constant {{value = 12, type = i32}} : i32
  %d = arith.constant {{value = {divisor}, type = i32}} : i32
  %product = arith.mul(%n, %c) : i32
  %x = arith.div(%product, %d) : i32"""
    analysis, value = last_of(text)
    factors = [factor for _, factor in analysis[value].offset.terms]
    assert factors == ([1] if left is None else [left])
    (symbol,) = analysis[value].offset.symbols
    assert analysis.is_launch(symbol) == (left is not None)
