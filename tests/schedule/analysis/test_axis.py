"""Facts of the axis analysis hold for the values the kernel computes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.params import ParamInfo
from aotc.ir.rewrite import Builder
from aotc.ir.text import parse_kernel
from aotc.ir.types import FP16, I32, I64, PointerType, TileType
from aotc.schedule.analysis.axis import AxisAnalysis, AxisInfo
from tests.support.extent import examples

SHAPE = (4, 32)
POINTER = PointerType(FP16)


class Program:
    """A random integer program: ops are built and evaluated side by side."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        divisibility = draw(st.sampled_from([1, 2, 8, 16]))
        self.param = divisibility * draw(st.integers(-40, 40))
        address = 16 * draw(st.integers(1, 1000))
        self.block = Block([I32, POINTER])
        self.place = Builder(self.block)
        self.infos = (ParamInfo("n", divisibility), ParamInfo("p", 16))
        self.pid = draw(st.integers(0, 30))
        self.values: list[tuple[Value, np.ndarray]] = []
        self.param_values = {
            self.block.args[0]: np.array([self.param]),
            self.block.args[1]: np.array([address]),
        }
        self.add_leaves()
        for _ in range(draw(st.integers(1, 8))):
            self.add_op()
        self.add_pointer()
        self.place(scf.Return())
        self.kernel = Kernel("k", self.infos, self.block)

    def add(self, op: Op, value: np.ndarray) -> None:
        self.place(op)
        self.values.append((op.results[0], value))

    def add_leaves(self) -> None:
        tile_type = TileType(I32, SHAPE)
        for axis, extent in enumerate(SHAPE):
            start = self.draw(st.sampled_from([0, 0, 8, 5]))
            line = self.place(tile.Arange(start, start + extent)).out
            wide = self.place(tile.ExpandDims(line, 1 - axis)).out
            values = np.expand_dims(np.arange(start, start + extent), 1 - axis)
            self.add(tile.Broadcast(wide, SHAPE), np.broadcast_to(values, SHAPE))
        number = self.draw(st.sampled_from([0, 1, 2, 3, 4, 7, 8, 15, 16, 24, 128, -8, -5]))
        self.add(arith.Constant(number, tile_type), np.full(SHAPE, number))
        self.add(tile.Splat(self.block.args[0], SHAPE), np.full(SHAPE, self.param))
        pid = self.place(tile.ProgramId(0)).out
        self.add(tile.Splat(pid, SHAPE), np.full(SHAPE, self.pid))

    def pick(self) -> tuple[Value, np.ndarray]:
        return self.draw(st.sampled_from(self.values))

    def add_op(self) -> None:
        (left, a), (right, b) = self.pick(), self.pick()
        kind = self.draw(st.sampled_from(sorted(OPS)))
        build, evaluate = OPS[kind]
        if kind in ("div", "rem") and (b == 0).any():
            return
        # An unknown divisor is assumed positive.
        if kind == "div" and (b < 0).any() and not isinstance(right.op, arith.Constant):
            return
        if kind == "shr" and ((b < 0) | (b > 31)).any():
            return
        if kind == "select":
            condition = self.place(arith.Compare(left, right, "lt")).out
            (third, c), (fourth, d) = self.pick(), self.pick()
            self.add(arith.Select(condition, third, fourth), np.where(a < b, c, d))
            return
        with np.errstate(over="ignore"):
            value = evaluate(a.astype(np.int64), b.astype(np.int64))
        if np.abs(value).max() < 2**31:
            self.add(build(left, right), value)

    def add_pointer(self) -> None:
        offset, value = self.pick()
        if self.draw(st.booleans()):
            offset = self.place(arith.Cast(offset, I64)).out
        base = self.place(tile.Splat(self.block.args[1], SHAPE)).out
        address = self.param_values[self.block.args[1]]
        self.add(arith.AddPtr(base, offset), address + 2 * value)


def truncated_div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where((a < 0) == (b < 0), abs(a) // abs(b), -(abs(a) // abs(b)))


OPS = {
    "add": (arith.Add, np.add),
    "sub": (arith.Sub, np.subtract),
    "mul": (arith.Mul, np.multiply),
    "div": (arith.Div, truncated_div),
    "rem": (arith.Rem, lambda a, b: a - b * truncated_div(a, b)),
    "min": (arith.Min, np.minimum),
    "max": (arith.Max, np.maximum),
    "and": (arith.And, np.bitwise_and),
    "shr": (arith.Shr, np.right_shift),
    "select": (None, None),
}


def check(info: AxisInfo, values: np.ndarray, step: int = 1) -> None:
    """Check every fact of `info` on `values`, whose elements count up by `step`."""
    for axis in range(values.ndim):
        lines = np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])
        run = info.contiguity[axis]
        groups = lines.reshape(len(lines), -1, run)
        assert (groups == groups[:, :, :1] + step * np.arange(run)).all(), "contiguity"
        assert (groups[:, :, 0] % info.divisibility[axis] == 0).all(), "divisibility"
        same = lines.reshape(len(lines), -1, info.constancy[axis])
        assert (same == same[:, :, :1]).all(), "constancy"
    if info.constant is not None:
        assert (values == info.constant).all()
    if info.nonnegative:
        assert (values >= 0).all()


@given(st.data())
@settings(max_examples=examples(300), deadline=None)
def test_facts_hold(data: st.DataObject) -> None:
    program = Program(data.draw)
    infos = AxisAnalysis(program.kernel)
    for value, numbers in program.values:
        pointer = value is program.values[-1][0]
        check(infos[value], numbers, 2 if pointer else 1)


@given(st.data())
@settings(max_examples=examples(200), deadline=None)
def test_comparisons_are_constant_as_claimed(data: st.DataObject) -> None:
    program = Program(data.draw)
    (left, a), (right, b) = program.pick(), program.pick()
    if element_is_pointer(left) or element_is_pointer(right):
        return
    predicate = data.draw(st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]))
    compare = arith.Compare(left, right, predicate)
    program.block.insert(compare, program.block.terminator)
    functions = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal}
    functions |= {"gt": np.greater, "ge": np.greater_equal}
    check(AxisAnalysis(program.kernel)[compare.out], functions[predicate](a, b).astype(int))


def element_is_pointer(value: Value) -> bool:
    return isinstance(value.type, TileType) and isinstance(value.type.element, PointerType)


def facts_of_last(text: str) -> AxisInfo:
    kernel = parse_kernel(text)
    infos = AxisAnalysis(kernel)
    store = next(op for op in kernel.walk() if isinstance(op, tile.Store))
    return infos[store.pointer]


ROW = """
kernel @k(%p: *fp16 {{divisibility = 16}}, %stride: i32 {{divisibility = {stride}}}) {{num_warps = 4}} {{
  %pid = tile.program_id {{axis = 0}} : i32
  %off = arith.mul(%pid, %stride) : i32
  %row = arith.addptr(%p, %off) : *fp16
  %cols = tile.arange {{start = 0, end = 256}} : tile<256xi32>
  %rows = tile.splat(%row) {{shape = [256]}} : tile<256x*fp16>
  %at = arith.addptr(%rows, %cols) : tile<256x*fp16>
  %v = arith.constant {{value = 1.0, type = tile<256xfp16>}} : tile<256xfp16>
  tile.store(%at, %v, _)
  scf.return
}}
"""


@pytest.mark.parametrize(("stride", "divisibility"), [(1, 2), (4, 8), (16, 16)])
def test_row_pointer_is_as_aligned_as_its_stride(stride: int, divisibility: int) -> None:
    info = facts_of_last(ROW.format(stride=stride))
    assert info.contiguity == (256,)
    assert info.divisibility == (divisibility,)


LOOP = """
kernel @k(%p: *fp16 {divisibility = 16}, %n: i32) {num_warps = 4} {
  %cols = tile.arange {start = 0, end = 256} : tile<256xi32>
  %base = tile.splat(%p) {shape = [256]} : tile<256x*fp16>
  %first = arith.addptr(%base, %cols) : tile<256x*fp16>
  %step = arith.constant {value = STEP, type = tile<256xi32>} : tile<256xi32>
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %v = arith.constant {value = 1.0, type = tile<256xfp16>} : tile<256xfp16>
  %last = scf.for(%zero, %n, %one, %first) (%i: i32, %at: tile<256x*fp16>) {
    tile.store(%at, %v, _)
    %next = arith.addptr(%at, %step) : tile<256x*fp16>
    scf.yield(%next)
  } : tile<256x*fp16>
  scf.return
}
"""


@pytest.mark.parametrize(("step", "divisibility"), [(256, 16), (4, 8), (3, 2)])
def test_carried_pointer_keeps_what_every_step_keeps(step: int, divisibility: int) -> None:
    info = facts_of_last(LOOP.replace("STEP", str(step)))
    assert info.contiguity == (256,)
    assert info.divisibility == (divisibility,)


SIGNED_DIVISION = """
kernel @k(%p: *fp16 {divisibility = 16}) {num_warps = 4} {
  %cols = tile.arange {start = 0, end = 32} : tile<32xi32>
  %shift = arith.constant {value = SHIFT, type = tile<32xi32>} : tile<32xi32>
  %moved = arith.add(%cols, %shift) : tile<32xi32>
  %eight = arith.constant {value = 8, type = tile<32xi32>} : tile<32xi32>
  %group = arith.div(%moved, %eight) : tile<32xi32>
  %base = tile.splat(%p) {shape = [32]} : tile<32x*fp16>
  %at = arith.addptr(%base, %group) : tile<32x*fp16>
  %v = arith.constant {value = 1.0, type = tile<32xfp16>} : tile<32xfp16>
  tile.store(%at, %v, _)
  scf.return
}
"""


@pytest.mark.parametrize(("shift", "constancy"), [(0, 8), (16, 8), (4, 4), (-16, 1)])
def test_truncation_splits_runs_below_zero(shift: int, constancy: int) -> None:
    assert facts_of_last(SIGNED_DIVISION.replace("SHIFT", str(shift))).constancy == (constancy,)


BY_ARGUMENT = """
kernel @k(%p: *fp16 {divisibility = 16}, %d: i32 {divisibility = DIV}, %s: i32 {divisibility = 16}) {num_warps = 4} {
  %i = tile.arange {start = START, end = END} : tile<64xi32>
  %ds = tile.splat(%d) {shape = [64]} : tile<64xi32>
  %ss = tile.splat(%s) {shape = [64]} : tile<64xi32>
  %q = arith.div(%i, %ds) : tile<64xi32>
  %r = arith.rem(%i, %ds) : tile<64xi32>
  %o = arith.mul(%q, %ss) : tile<64xi32>
  %b = tile.splat(%p) {shape = [64]} : tile<64x*fp16>
  %row = arith.addptr(%b, %o) : tile<64x*fp16>
  %at = arith.addptr(%row, %r) : tile<64x*fp16>
  %v = arith.constant {value = 1.0, type = tile<64xfp16>} : tile<64xfp16>
  tile.store(%at, %v, _)
  scf.return
}
"""


@pytest.mark.parametrize(
    ("divisibility", "start", "run"), [(16, 0, 16), (8, 0, 8), (1, 0, 1), (16, 4, 4), (16, 1, 1)]
)
def test_rows_of_an_unknown_width_of_known_divisibility(
    divisibility: int, start: int, run: int
) -> None:
    """`(i // d) * s + i % d` counts up while neither part crosses a multiple of `d`."""
    text = BY_ARGUMENT.replace("DIV", str(divisibility)).replace("START", str(start))
    facts = facts_of_last(text.replace("END", str(start + 64)))
    assert facts.contiguity == (run,)
    assert facts.divisibility[0] >= min(16, 2 * run)


@pytest.mark.parametrize(("op", "constancy", "contiguity"), [("shr", 8, 1), ("and", 1, 8)])
@pytest.mark.parametrize("start", [0, -16])
def test_shifts_and_masks_round_down(op: str, constancy: int, contiguity: int, start: int) -> None:
    number = 3 if op == "shr" else 7
    kernel = parse_kernel(f"""
kernel @k() {{num_warps = 4}} {{
  %i = tile.arange {{start = 0, end = 32}} : tile<32xi32>
  %s = arith.constant {{value = {start}, type = tile<32xi32>}} : tile<32xi32>
  %n = arith.constant {{value = {number}, type = tile<32xi32>}} : tile<32xi32>
  %x = arith.add(%i, %s) : tile<32xi32>
  %y = arith.{op}(%x, %n) : tile<32xi32>
  scf.return
}}
""")
    infos = AxisAnalysis(kernel)
    info = next(infos[op.results[0]] for op in kernel.body if isinstance(op, arith.Shr | arith.And))
    assert (info.constancy, info.contiguity) == ((constancy,), (contiguity,))


def test_a_remainder_jumps_behind_negative_multiples() -> None:
    """-2 % 2 is 0 and -1 % 2 is -1: consecutive numbers need not have consecutive remainders."""
    kernel = parse_kernel("""
kernel @k(%n: i32) {num_warps = 4} {
  %i = tile.arange {start = 0, end = 8} : tile<8xi32>
  %two = arith.constant {value = 2, type = tile<8xi32>} : tile<8xi32>
  %below = arith.sub(%i, %two) : tile<8xi32>
  %a = arith.rem(%below, %two) : tile<8xi32>
  %b = arith.rem(%i, %two) : tile<8xi32>
  %x = tile.program_id {axis = 0} : i32
  %q = arith.div(%x, %n) : i32
  %eight = arith.constant {value = 8, type = i32} : i32
  %start = arith.mul(%q, %eight) : i32
  %starts = tile.splat(%start) {shape = [8]} : tile<8xi32>
  %sum = arith.add(%starts, %i) : tile<8xi32>
  %c = arith.rem(%sum, %two) : tile<8xi32>
  scf.return
}
""")
    infos = AxisAnalysis(kernel)
    rems = [op for op in kernel.body if isinstance(op, arith.Rem)]
    assert [infos[op.results[0]].contiguity for op in rems] == [(1,), (2,), (2,)]
