"""Parameters a kernel reads and writes, traced through everything a pointer goes through."""

from __future__ import annotations

import pytest

from aotc.ir.parameter_access import Access, parameter_access, union
from aotc.ir.text import parse_kernel

HEAD = "kernel @k(%x: *i32, %y: *i32, %z: *i32, %t: *i64, %n: i32) {num_warps = 1} {\n"


def access(body: str) -> dict[str, Access]:
    return parameter_access(parse_kernel(HEAD + body + "\n  scf.return\n}\n"))


def test_loads_and_stores() -> None:
    accesses = access("""
  %a = tile.load(%x, _, _) : i32
  %b = tile.load(%y, _, _) : i32
  %c = arith.add(%a, %b) : i32
  tile.store(%y, %c, _)
  tile.store(%z, %c, _)""")
    assert accesses == {"x": "read", "y": "both", "z": "write", "t": "read"}


def test_atomics_read_and_write() -> None:
    accesses = access("""
  %one = arith.constant {value = 1, type = i32} : i32
  %long = arith.constant {value = 1, type = i64} : i64
  %a = tile.atomic_rmw(%x, %one, _) {kind = "add"} : i32
  %b = tile.atomic_cas(%t, %long, %long) : i64""")
    assert accesses == {"x": "both", "y": "read", "z": "read", "t": "both"}


def test_through_arithmetic_shapes_and_choices() -> None:
    accesses = access("""
  %i = tile.arange {start = 0, end = 4} : tile<4xi32>
  %xs = tile.splat(%x) {shape = [4]} : tile<4x*i32>
  %ys = tile.splat(%y) {shape = [4]} : tile<4x*i32>
  %xp = arith.addptr(%xs, %i) : tile<4x*i32>
  %c = arith.compare(%i, %i) {predicate = "lt"} : tile<4xi1>
  %p = arith.select(%c, %xp, %ys) : tile<4x*i32>
  %q = tile.reshape(%p) {shape = [2, 2]} : tile<2x2x*i32>
  %r = tile.trans(%q) {order = [1, 0]} : tile<2x2x*i32>
  %v = arith.constant {value = 1, type = tile<2x2xi32>} : tile<2x2xi32>
  tile.store(%r, %v, _)""")
    assert accesses == {"x": "write", "y": "write", "z": "read", "t": "read"}


def test_through_loops_and_branches() -> None:
    accesses = access("""
  %c0 = arith.constant {value = 0, type = i32} : i32
  %c1 = arith.constant {value = 1, type = i32} : i32
  %go = arith.compare(%n, %c1) {predicate = "lt"} : i1
  %p = scf.if(%go) () {
    scf.yield(%x)
  } () {
    %m = arith.addptr(%y, %n) : *i32
    scf.yield(%m)
  } : *i32
  %q = scf.for(%c0, %n, %c1, %p) (%i: i32, %at: *i32) {
    tile.store(%at, %i, _)
    %next = arith.addptr(%at, %c1) : *i32
    scf.yield(%next)
  } : *i32
  %last = scf.while(%z) (%w: *i32) {
    %v = tile.load(%w, _, _) : i32
    %on = arith.compare(%v, %c1) {predicate = "lt"} : i1
    scf.condition(%on, %w)
  } (%u: *i32) {
    %w2 = arith.addptr(%u, %c1) : *i32
    scf.yield(%w2)
  } : *i32
  tile.store(%last, %c1, _)""")
    assert accesses == {"x": "write", "y": "write", "z": "both", "t": "read"}


def test_a_pointer_from_memory_leaves_everything_unknown() -> None:
    accesses = access("""
  %bits = tile.load(%t, _, _) : i64
  %p = arith.bitcast(%bits) {dtype = *i32} : *i32
  tile.store(%p, %n, _)""")
    assert accesses == dict.fromkeys("xyzt", "unknown")


@pytest.mark.parametrize(
    ("left", "right", "joined"),
    [("read", "read", "read"), ("read", "write", "both"), ("write", "unknown", "unknown")],
)
def test_union(left: Access, right: Access, joined: Access) -> None:
    assert union(left, right) == union(right, left) == joined


def test_assembly_may_use_what_it_is_given() -> None:
    call = '{text = "", constraints = "=r,r", dtypes = [i32], pack = 1} : i32'
    accesses = {"x": "read", "y": "read", "z": "read", "t": "read"}
    assert access(f"  %a = asm.inline(%n) {call}") == accesses
    assert access(f"  %a = asm.volatile() {call.replace('=r,r', '=r')}") == accesses
    assert set(access(f"  %a = asm.volatile(%n) {call}").values()) == {"unknown"}
