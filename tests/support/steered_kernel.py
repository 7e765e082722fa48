"""A kernel with a float deciding its stores, and so its later loads."""

from __future__ import annotations

STEERED = """
kernel @k(%x: *fp32, %y: *fp32, %n: i32) {num_warps = 1} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %low = arith.constant {value = 1.0, type = fp32} : fp32
  %count, %last = scf.for(%zero, %n, %one, %zero, %zero) (%i: i32, %sum: i32, %same: i32) {
    %p = arith.addptr(%x, %i) : *fp32
    %v = tile.load(%p, _, _) : fp32
    %e = arith.exp(%v) : fp32
    %above = arith.compare(%e, %low) {predicate = "gt"} : i1
    %picked = scf.if(%above) () {
      %q = arith.addptr(%y, %i) : *fp32
      tile.store(%q, %e)
      scf.yield(%one)
    } () {
      scf.yield(%zero)
    } : i32
    %next = arith.add(%sum, %picked) : i32
    %kept = arith.add(%same, %one) : i32
    scf.yield(%next, %kept)
  } : i32, i32
  %r = arith.addptr(%y, %count) : *fp32
  %s = tile.load(%r, _, _) : fp32
  %t = arith.addptr(%x, %last) : *fp32
  tile.store(%t, %s)
  scf.return
}
"""
