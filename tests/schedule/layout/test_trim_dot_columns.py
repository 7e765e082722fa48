"""Used columns of a product: through moves, sums, loops and branches."""

from __future__ import annotations

import pytest

from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.dialects import tile
from aotc.ir.text import parse_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.layout.trim_dot_columns import trim_dot_columns
from aotc.target import TARGETS
from tests.support.pass_case import applied

HEAD = """\
kernel @k(%a: tile<64x32xOPERAND>, %b: tile<32x64xOPERAND>, %p: *RESULT, %n: i32, %c: i1)
  {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %z = arith.constant {value = 0.0, type = tile<64x64xRESULT>} : tile<64x64xRESULT>
"""
DOT = "%d = tile.dot(%a, %b, %z) : tile<64x64xRESULT>\n"


def halves(name: str, columns: int) -> str:
    """Return text splitting `%name` into `%name_l` and `%name_r`."""
    half = columns // 2
    turned = f"tile<64x{half}x2xRESULT>"
    return (
        f"%{name}_2 = tile.reshape(%{name}) {{shape = [64, 2, {half}]}} : tile<64x2x{half}xRESULT>\n"
        f"%{name}_t = tile.trans(%{name}_2) {{order = [0, 2, 1]}} : {turned}\n"
        f"%{name}_l, %{name}_r = tile.split(%{name}_t)"
        f" : tile<64x{half}xRESULT>, tile<64x{half}xRESULT>\n"
    )


def store(name: str, columns: int) -> str:
    """Return text storing `%name`."""
    to = f"tile<64x{columns}x*RESULT>"
    return (
        f"%{name}_to = tile.splat(%p) {{shape = [64, {columns}]}} : {to}\n"
        f"tile.store(%{name}_to, %{name})\n"
    )


def loop(body: str, result: str) -> str:
    """Return text of a loop carrying `%acc` and computing `%d` from it."""
    return (
        "%d = scf.for(%zero, %n, %one, %z) (%i: i32, %acc: tile<64x64xRESULT>) {\n"
        f"{body}scf.yield(%{result})\n}} : tile<64x64xRESULT>\n"
    )


def narrowed(
    text: str, element: str = "bf16", num_warps: int = 4, target: str = "sm_90a"
) -> Kernel:
    result = "i32" if element == "i8" else "fp32"
    text = (HEAD + text + "scf.return\n}\n").replace("OPERAND", element).replace("RESULT", result)
    if result == "i32":
        text = text.replace("value = 0.0", "value = 0")
    kernel = parse_kernel(text)
    trim_dot_columns(kernel, Schedule(TARGETS[target], Config(num_warps)))
    verify(kernel)
    return kernel


def columns(kernel: Kernel) -> list[int]:
    return [op.num_columns for op in kernel.walk() if isinstance(op, tile.Dot)]


QUARTERS = halves("d", 64) + halves("d_l", 32) + halves("d_r", 32)
EIGHTHS = QUARTERS + halves("d_l_l", 16) + halves("d_r_l", 16)
USES = {
    "all": (store("d", 64), 0),
    "nothing": ("", 0),
    "left half": (halves("d", 64) + store("d_l", 32), 32),
    "right half": (halves("d", 64) + store("d_r", 32), 0),
    "three quarters": (QUARTERS + store("d_l", 32) + store("d_r_l", 16), 48),
    "second quarter": (QUARTERS + store("d_l_r", 16), 32),
    "an eighth": (EIGHTHS + store("d_l_l_l", 8), 8),
    "five eighths": (EIGHTHS + store("d_r_l_l", 8), 40),
    "sums of halves": (halves("d", 64) + "%s = arith.add(%d_l, %d_r) : tile<64x32xRESULT>\n"
                       + store("s", 32), 0),
    "something like it": ("%s = arith.mul(%d, %z) : tile<64x64xRESULT>\n" + halves("s", 64)
                          + store("s_l", 32), 32),
    "a cast of it": ("%s = arith.cast(%d) {dtype = fp16} : tile<64x64xfp16>\n"
                     + (halves("s", 64) + store("s_l", 32)).replace("RESULT", "fp16")
                     .replace("splat(%p)", "splat(%h)"), 32),
    "its columns as rows": ("%t = tile.trans(%d) {order = [1, 0]} : tile<64x64xRESULT>\n"
                            + halves("t", 64) + store("t_l", 32), 0),
    "other rows": ("%t = tile.reshape(%d) {shape = [32, 128]} : tile<32x128xRESULT>\n"
                   "%u = tile.reshape(%t) {shape = [64, 64]} : tile<64x64xRESULT>\n"
                   + halves("u", 64) + store("u_l", 32), 0),
    "its largest": ("%m = tile.reduce(%d) {axis = 1} (%x: fp32, %y: fp32) {\n"
                    "%w = arith.max(%x, %y) : fp32\nscf.yield(%w)\n} : tile<64xfp32>\n"
                    "%m_to = tile.splat(%p) {shape = [64]} : tile<64x*RESULT>\n"
                    "tile.store(%m_to, %m)\n" + halves("d", 64) + store("d_l", 32), 0),
    "an arm of a branch": (
        "%e = scf.if(%c) () {\nscf.yield(%d)\n} () {\nscf.yield(%z)\n} : tile<64x64xRESULT>\n"
        + halves("e", 64) + store("e_l", 32), 32),
    "an operand of another product": (
        "%s = arith.cast(%d) {dtype = bf16} : tile<64x64xbf16>\n"
        "%f = tile.dot(%s, %s, %z) : tile<64x64xRESULT>\n" + halves("f", 64) + store("f_l", 32), 0),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_what_is_used_of_a_product_is_multiplied(use: str) -> None:
    text, expected = USES[use]
    text = DOT + text
    if "%h" in text:
        text = "%h = arith.bitcast(%p) {dtype = *fp16} : *fp16\n" + text
    assert columns(narrowed(text))[0] == expected


def test_a_sum_that_a_loop_carries() -> None:
    body = "%next = tile.dot(%a, %b, %acc) : tile<64x64xRESULT>\n"
    assert columns(narrowed(loop(body, "next") + QUARTERS + store("d_r_l", 16))) == [48]


def test_what_is_looked_at_within_the_loop_counts() -> None:
    body = "%next = tile.dot(%a, %b, %acc) : tile<64x64xRESULT>\n" + store("acc", 64)
    assert columns(narrowed(loop(body, "next") + halves("d", 64) + store("d_l", 32))) == [0]


def test_columns_that_change_places_in_every_iteration_are_all_looked_at() -> None:
    body = (
        "%next = tile.dot(%a, %b, %acc) : tile<64x64xRESULT>\n"
        "%turn = tile.reshape(%next) {shape = [64, 2, 32]} : tile<64x2x32xRESULT>\n"
        "%turned = tile.trans(%turn) {order = [0, 2, 1]} : tile<64x32x2xRESULT>\n"
        "%back = tile.reshape(%turned) {shape = [64, 64]} : tile<64x64xRESULT>\n"
    )
    assert columns(narrowed(loop(body, "back") + halves("d", 64) + store("d_l", 32))) == [0]


def test_two_products_add_up_to_one_sum() -> None:
    text = DOT + "%e = tile.dot(%a, %b, %d) : tile<64x64xRESULT>\n"
    assert columns(narrowed(text + halves("e", 64) + store("e_l", 32))) == [32, 32]


@pytest.mark.parametrize(
    ("element", "use", "expected"),
    [
        ("i8", "five eighths", 48),  # of integers, instructions have multiples of 16 columns
        ("i8", "left half", 32),
        ("i8", "an eighth", 8),
        ("fp8e4nv", "five eighths", 40),
        ("fp16", "five eighths", 40),
    ],
)
def test_instructions_have_whole_steps_of_columns(element: str, use: str, expected: int) -> None:
    assert columns(narrowed(DOT + USES[use][0], element)) == [expected]


@pytest.mark.parametrize(("num_warps", "target"), [(4, "sm_80"), (2, "sm_90a"), (8, "sm_90a")])
def test_only_a_warpgroup_that_has_all_columns_leaves_some_out(num_warps: int, target: str) -> None:
    text = DOT + USES["left half"][0]
    assert columns(narrowed(text, num_warps=num_warps, target=target)) == [0]


def test_a_remark_says_so() -> None:
    kernel = narrowed(DOT)
    schedule = Schedule(TARGETS["sm_90a"], Config(4))
    trim_dot_columns(kernel, schedule)
    assert not schedule.remarks
    text = (HEAD + DOT + USES["left half"][0] + "scf.return\n}\n").replace("RESULT", "fp32")
    trim_dot_columns(parse_kernel(text.replace("OPERAND", "bf16")), schedule)
    assert schedule.remarks[0].endswith("32 of 64 columns are multiplied")


TEXT = """\
// CHECK: %d = tile.dot(%a, %b, %z) {num_columns = 32}
kernel @k(%a: tile<64x32xbf16>, %b: tile<32x64xbf16>, %p: *fp32) {num_warps = 4} {
  %z = arith.constant {value = 0.0, type = tile<64x64xfp32>} : tile<64x64xfp32>
  %d = tile.dot(%a, %b, %z) : tile<64x64xfp32>
  %halves = tile.reshape(%d) {shape = [64, 2, 32]} : tile<64x2x32xfp32>
  %pairs = tile.trans(%halves) {order = [0, 2, 1]} : tile<64x32x2xfp32>
  %left, %right = tile.split(%pairs) : tile<64x32xfp32>, tile<64x32xfp32>
  %to = tile.splat(%p) {shape = [64, 32]} : tile<64x32x*fp32>
  tile.store(%to, %left)
  scf.return
}
"""


def test_the_dot_is_told_how_many_columns_are_used() -> None:
    applied(TEXT, trim_dot_columns)


def test_where_both_halves_are_used_all_columns_stay() -> None:
    text = TEXT.replace("store(%to, %left)", "store(%to, %left)\n  tile.store(%to, %right)")
    applied(text.replace("%z) {num_columns = 32}", "%z) :"), trim_dot_columns)
