"""Maps in memory are taken once, as early as waits for other grids allow."""

from __future__ import annotations

import re

import pytest

from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.tensor_maps.hoist_maps import hoist_maps
from aotc.target import TARGETS
from tests.support.pass_case import applied

LOOP = "scf.for(%n, %n, %n) (%i: i32) {"
WHILE = "scf.while() () {\nscf.condition(%c)\n} () {"
END = "scf.yield()\n}"


def _at(pointer: str = "%p", element: str = "bf16") -> str:
    return (
        f"%m = tile.descriptor_at({pointer}) {{element = {element}, shape = [16, 64]}}"
        f" : desc<16x64x{element}>\n"
        f"%x = tile.descriptor_load(%m, %n, %n) : tile<16x64x{element}>\n"
        f"tile.store(%t, %x)"
    )


def _order(*lines: str) -> str:
    """Return the order after the pass: m a map, w a wait, l a load, for and end."""
    numbered = (re.sub(r"%([mxi])\b", rf"%\g<1>{index}", line) for index, line in enumerate(lines))
    body = "\n".join(numbered)
    kernel = parse_kernel(
        "kernel @k(%p: *i8, %q: *i8, %n: i32, %c: i1, %t: tile<16x64x*bf16>)"
        f" {{num_warps = 4}} {{\n{body}\nscf.return\n}}\n"
    )
    hoist_maps(kernel, Schedule(TARGETS["sm_90a"]))
    verify(kernel)
    signs = {
        "descriptor_at": "m",
        "grid.wait": "w",
        "descriptor_load": "l",
        "scf.for": "(",
        "scf.while": "(",
        "scf.if": "(",
        "scf.yield": ")",
    }
    lines = tuple(print_kernel(kernel).splitlines())
    return "".join(sign for line in lines for word, sign in signs.items() if word in line)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((_at(),), "ml"),
        ((LOOP, _at(), END), "m(l)"),
        ((WHILE, _at(), END), "m(l)"),
        ((LOOP, LOOP, _at(), END, END), "m((l))"),
        ((LOOP, "grid.wait", _at(), END), "(wml)"),
        ((LOOP, _at(), "grid.wait", END), "(mlw)"),
        ((LOOP, LOOP, _at(), END, "grid.wait", END), "(m(l)w)"),
        (("grid.wait", LOOP, _at(), END), "wm(l)"),
        ((LOOP, "%r = arith.addptr(%p, %i0) : *i8", _at("%r"), END), "(ml)"),
        ((_at(), _at()), "mll"),
        ((_at(), LOOP, _at(), END), "ml(l)"),
        ((LOOP, _at(), END, LOOP, _at(), END), "m(l)(l)"),
        ((_at(), _at("%q")), "mlml"),
        ((_at(), "grid.wait", _at()), "mlwml"),
        ((_at(), LOOP, _at(), "grid.wait", END), "ml(mlw)"),
        ((_at(), LOOP, "grid.wait", END, _at()), "ml(w)ml"),
        (("scf.if(%c) () {", _at(), "scf.yield()\n} () {", "scf.yield()\n}", _at()), "(ml))ml"),
    ],
)
def test_where_maps_are_taken(lines: tuple[str, ...], expected: str) -> None:
    assert _order(*lines) == expected


TEXT = """\
// CHECK: grid.wait
// CHECK: [[MAP:%.*]] = tile.descriptor_at(%p)
// CHECK-NEXT: scf.for(
// CHECK-NEXT: %v = tile.descriptor_load([[MAP]], %i, %zero)
// CHECK-NEXT: %w = tile.descriptor_load([[MAP]], %zero, %i)
// CHECK-NOT: tile.descriptor_at
kernel @k(%p: *i8, %n: i32, %t: tile<16x64x*bf16>) {num_warps = 4} {
  grid.wait
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  scf.for(%zero, %n, %one) (%i: i32) {
    %map = tile.descriptor_at(%p) {element = bf16, shape = [16, 64]} : desc<16x64xbf16>
    %v = tile.descriptor_load(%map, %i, %zero) : tile<16x64xbf16>
    %same = tile.descriptor_at(%p) {element = bf16, shape = [16, 64]} : desc<16x64xbf16>
    %w = tile.descriptor_load(%same, %zero, %i) : tile<16x64xbf16>
    %s = arith.add(%v, %w) : tile<16x64xbf16>
    tile.store(%t, %s)
    scf.yield()
  }
  scf.return
}
"""


def test_the_maps_of_an_address_are_one_before_the_loop() -> None:
    applied(TEXT, hoist_maps)
