"""Every pass keeps the kernel's results: interpreted after each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.text import parse_kernel, print_kernel
from aotc.schedule.context import Schedule
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run
from tests.support.each_pass import check_each_pass

WARPS = (1, 2, 4, 8, 32)
MakeArgs = Callable[[np.random.Generator], list[np.ndarray | int | float]]


def check_passes(text: str, make_args: MakeArgs, num_warps: int, grid: Sequence[int] = (1,)) -> str:
    """Interpret after every pass and compare bit for bit; return the final gpu IR."""
    seed = 7 * num_warps + len(text)
    expected = outputs(parse_kernel(text), make_args, seed, grid)
    kernel = check_each_pass(
        parse_kernel(text),
        Schedule(TARGETS["sm_90a"], Config(num_warps)),
        lambda current, races: outputs(current, make_args, seed, grid, check_races=races),
        expected,
    )
    printed = print_kernel(kernel)
    assert print_kernel(parse_kernel(printed)) == printed
    return printed


def outputs(
    kernel: Kernel,
    make_args: MakeArgs,
    seed: int,
    grid: Sequence[int],
    *,
    check_races: bool = True,
) -> list[np.ndarray]:
    args = make_args(np.random.default_rng(seed))
    run(kernel, grid, args, check_races=check_races)
    return [arg for arg in args if isinstance(arg, np.ndarray)]


def tile_program(
    shape: Sequence[int], body: str, out_shape: Sequence[int], dtype: str = "i32"
) -> str:
    """Load a row-major tile %v of `shape`, run `body`, store its %out of `out_shape`."""
    return f"""
kernel @k(%x: *{dtype} {{divisibility = 16}}, %y: *{dtype} {{divisibility = 16}}) {{num_warps = 4}} {{
{row_major("x", shape, dtype)}
  %v = tile.load(%x_at, _, _) : {tile_text(shape, dtype)}
{body}
{row_major("y", out_shape, dtype)}
  tile.store(%y_at, %out, _)
  scf.return
}}
"""


def tile_text(shape: Sequence[int], element: str) -> str:
    return f"tile<{'x'.join([*map(str, shape), element])}>"


def row_major(name: str, shape: Sequence[int], dtype: str) -> str:
    """Return ops computing %{name}_at, the pointers to a contiguous tile."""
    count = int(np.prod(shape))
    lines = [
        f"%{name}_i = tile.arange {{start = 0, end = {count}}} : tile<{count}xi32>",
        f"%{name}_r = tile.reshape(%{name}_i) {{shape = {list(shape)}}} : {tile_text(shape, 'i32')}",
        f"%{name}_p = tile.splat(%{name}) {{shape = {list(shape)}}} : {tile_text(shape, '*' + dtype)}",
        f"%{name}_at = arith.addptr(%{name}_p, %{name}_r) : {tile_text(shape, '*' + dtype)}",
    ]
    return "\n".join("  " + line for line in lines)


def integers(shape: Sequence[int], out_shape: Sequence[int], dtype: type = np.int32) -> MakeArgs:
    def make(rng: np.random.Generator) -> list[np.ndarray | int | float]:
        data = rng.integers(-1000, 1000, int(np.prod(shape))).astype(dtype)
        return [data, np.full(int(np.prod(out_shape)), 77, dtype)]

    return make


REDUCE_SHAPES = [(1,), (2,), (64,), (4096,), (1, 64), (64, 1), (16, 128), (128, 16), (4, 8, 32)]


@pytest.mark.parametrize("num_warps", WARPS)
@pytest.mark.parametrize("shape", REDUCE_SHAPES)
def test_reductions(shape: tuple[int, ...], num_warps: int) -> None:
    for axis in range(len(shape)):
        left = shape[:axis] + shape[axis + 1 :]
        kind = tile_text(left, "i32") if left else "i32"
        spread = "%out = tile.splat(%s) {shape = [1]} : tile<1xi32>"
        keep = (
            "%z = arith.constant {value = 0, type = KIND} : KIND\n  %out = arith.add(%s, %z) : KIND"
        )
        body = f"""
  %s = tile.reduce(%v) {{axis = {axis}}} (%a: i32, %b: i32) {{
    %c = arith.add(%a, %b) : i32
    scf.yield(%c)
  }} : {kind}
  {keep.replace("KIND", kind) if left else spread}"""
        out = left or (1,)
        check_passes(tile_program(shape, body, out), integers(shape, out), num_warps)


ARGMAX = """
  %i = tile.arange {start = 0, end = COLS} : tile<COLSxi32>
  %ie = tile.expand_dims(%i) {axis = 0} : tile<1xCOLSxi32>
  %ib = tile.broadcast(%ie) {shape = [ROWS, COLS]} : tile<ROWSxCOLSxi32>
  %best, %out = tile.reduce(%v, %ib) {axis = 1} (%a: i32, %ai: i32, %b: i32, %bi: i32) {
    %gt = arith.compare(%a, %b) {predicate = "gt"} : i1
    %eq = arith.compare(%a, %b) {predicate = "eq"} : i1
    %lo = arith.compare(%ai, %bi) {predicate = "lt"} : i1
    %tie = arith.and(%eq, %lo) : i1
    %take = arith.or(%gt, %tie) : i1
    %m = arith.select(%take, %a, %b) : i32
    %mi = arith.select(%take, %ai, %bi) : i32
    scf.yield(%m, %mi)
  } : tile<ROWSxi32>, tile<ROWSxi32>
"""


@pytest.mark.parametrize("num_warps", WARPS)
@pytest.mark.parametrize("shape", [(1, 1024), (8, 64), (128, 4)])
def test_reduction_of_two_operands(shape: tuple[int, int], num_warps: int) -> None:
    body = ARGMAX.replace("ROWS", str(shape[0])).replace("COLS", str(shape[1]))
    text = tile_program(shape, body, shape[:1])
    check_passes(text, integers(shape, shape[:1]), num_warps)


# Affine maps x -> m*x + c compose associatively but not commutatively: order mistakes show.
COMPOSE = """
  %ones = arith.constant {{value = 3, type = {kind}}} : {kind}
  %m = arith.rem(%v, %ones) : {kind}
  %slope, %out = tile.scan(%m, %v) {{axis = {axis}, reverse = {reverse}}} (%am: i32, %ac: i32, %bm: i32, %bc: i32) {{
    %cm = arith.mul(%am, %bm) : i32
    %t = arith.mul(%bm, %ac) : i32
    %cc = arith.add(%t, %bc) : i32
    scf.yield(%cm, %cc)
  }} : {kind}, {kind}
"""


@pytest.mark.parametrize("num_warps", WARPS)
@pytest.mark.parametrize("reverse", ["false", "true"])
@pytest.mark.parametrize("shape", [(1,), (2,), (32,), (64,), (2048,), (8, 64), (64, 8), (4, 4, 16)])
def test_scans_keep_their_order(shape: tuple[int, ...], reverse: str, num_warps: int) -> None:
    for axis in range(len(shape)):
        body = COMPOSE.format(kind=tile_text(shape, "i32"), axis=axis, reverse=reverse)
        check_passes(tile_program(shape, body, shape), integers(shape, shape), num_warps)


def reduce_reshape_broadcast(rows: int, cols: int, groups: int, dtype: str) -> str:
    """Reduce, reshape twice, broadcast: where a register run is longer than the scratch shape."""
    small = [rows // groups, groups]
    wide = [rows // groups, groups, cols]
    body = f"""
  %s = tile.reduce(%v) {{axis = 1}} (%a: {dtype}, %b: {dtype}) {{
    %c = arith.max(%a, %b) : {dtype}
    scf.yield(%c)
  }} : {tile_text([rows], dtype)}
  %r = tile.reshape(%s) {{shape = {small}}} : {tile_text(small, dtype)}
  %q = tile.reshape(%r) {{shape = {[*small, 1]}}} : {tile_text([*small, 1], dtype)}
  %w = tile.broadcast(%q) {{shape = {wide}}} : {tile_text(wide, dtype)}
  %u = tile.reshape(%v) {{shape = {wide}}} : {tile_text(wide, dtype)}
  %d = arith.sub(%u, %w) : {tile_text(wide, dtype)}
  %out = tile.reshape(%d) {{shape = {[rows, cols]}}} : {tile_text([rows, cols], dtype)}"""
    return tile_program((rows, cols), body, (rows, cols), dtype)


@pytest.mark.parametrize("num_warps", WARPS)
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("shape", [(8, 4), (8, 16), (16, 128), (64, 32), (128, 2), (32, 1)])
@pytest.mark.parametrize("dtype", ["i32", "i16"])
def test_reduce_reshape_reshape_broadcast(
    shape: tuple[int, int], groups: int, num_warps: int, dtype: str
) -> None:
    text = reduce_reshape_broadcast(*shape, groups, dtype)
    kind = {"i32": np.int32, "i16": np.int16}[dtype]
    check_passes(text, integers(shape, shape, kind), num_warps)


SHAPES_BODY = """
  %t = tile.trans(%v) {order = [1, 0]} : tile<64x32xi32>
  %flat = tile.reshape(%t) {shape = [2048]} : tile<2048xi32>
  %back = tile.reshape(%flat) {shape = [32, 64]} : tile<32x64xi32>
  %pair = tile.join(%v, %back) : tile<32x64x2xi32>
  %turned = tile.trans(%pair) {order = [2, 0, 1]} : tile<2x32x64xi32>
  %again = tile.trans(%turned) {order = [1, 2, 0]} : tile<32x64x2xi32>
  %l, %r = tile.split(%again) : tile<32x64xi32>, tile<32x64xi32>
  %four = tile.reshape(%r) {shape = [32, 32, 2]} : tile<32x32x2xi32>
  %even, %odd = tile.split(%four) : tile<32x32xi32>, tile<32x32xi32>
  %zip = tile.join(%odd, %even) : tile<32x32x2xi32>
  %swapped = tile.reshape(%zip) {shape = [32, 64]} : tile<32x64xi32>
  %out = arith.sub(%l, %swapped) : tile<32x64xi32>
"""


@pytest.mark.parametrize("num_warps", WARPS)
def test_shapes(num_warps: int) -> None:
    text = tile_program((32, 64), SHAPES_BODY, (32, 64))
    check_passes(text, integers((32, 64), (32, 64)), num_warps)


CONTROL = """
kernel @k(%x: *i32 {divisibility = 16}, %y: *i32 {divisibility = 16}, %n: i32) {num_warps = 4} {
  %i = tile.arange {start = 0, end = 256} : tile<256xi32>
  %xs = tile.splat(%x) {shape = [256]} : tile<256x*i32>
  %ys = tile.splat(%y) {shape = [256]} : tile<256x*i32>
  %yp = arith.addptr(%ys, %i) : tile<256x*i32>
  %at0 = arith.addptr(%xs, %i) : tile<256x*i32>
  %c0 = arith.constant {value = 0, type = i32} : i32
  %c1 = arith.constant {value = 1, type = i32} : i32
  %c2 = arith.constant {value = 2, type = i32} : i32
  %step = arith.constant {value = 256, type = tile<256xi32>} : tile<256xi32>
  %none = arith.constant {value = 0, type = tile<256xi32>} : tile<256xi32>
  %sum, %at1 = scf.for(%c0, %n, %c1, %none, %at0) (%k: i32, %acc: tile<256xi32>, %at: tile<256x*i32>) {
    %v = tile.load(%at, _, _) : tile<256xi32>
    %parity = arith.rem(%k, %c2) : i32
    %odd = arith.compare(%parity, %c1) {predicate = "eq"} : i1
    %turned = scf.if(%odd) () {
      %m = tile.reshape(%v) {shape = [16, 16]} : tile<16x16xi32>
      %t = tile.trans(%m) {order = [1, 0]} : tile<16x16xi32>
      %f = tile.reshape(%t) {shape = [256]} : tile<256xi32>
      scf.yield(%f)
    } () {
      %s = tile.reduce(%v) {axis = 0} (%a: i32, %b: i32) {
        %c = arith.max(%a, %b) : i32
        scf.yield(%c)
      } : i32
      %w = tile.splat(%s) {shape = [256]} : tile<256xi32>
      %d = arith.sub(%v, %w) : tile<256xi32>
      scf.yield(%d)
    } : tile<256xi32>
    %more = arith.add(%acc, %turned) : tile<256xi32>
    %next = arith.addptr(%at, %step) : tile<256x*i32>
    scf.yield(%more, %next)
  } : tile<256xi32>, tile<256x*i32>
  %half, %left = scf.while(%sum, %n) (%w0: tile<256xi32>, %k0: i32) {
    %go = arith.compare(%k0, %c0) {predicate = "gt"} : i1
    scf.condition(%go, %w0, %k0)
  } (%w1: tile<256xi32>, %k1: i32) {
    %r = tile.scan(%w1) {axis = 0} (%a1: i32, %b1: i32) {
      %m1 = arith.max(%a1, %b1) : i32
      scf.yield(%m1)
    } : tile<256xi32>
    %k2 = arith.sub(%k1, %c2) : i32
    scf.yield(%r, %k2)
  } : tile<256xi32>, i32
  tile.store(%yp, %half, _)
  scf.return
}
"""


@pytest.mark.parametrize("num_warps", WARPS)
@pytest.mark.parametrize("trips", [0, 1, 2, 5])
def test_control_flow(trips: int, num_warps: int) -> None:
    def make(rng: np.random.Generator) -> list[np.ndarray | int | float]:
        data = rng.integers(-1000, 1000, 5 * 256).astype(np.int32)
        return [data, np.full(256, 77, np.int32), trips]

    check_passes(CONTROL, make, num_warps)
