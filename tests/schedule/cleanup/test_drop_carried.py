"""Unused carried values of loops are dropped; all else stays."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.dialects import scf
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.cleanup.drop_carried import drop_unused_carried
from aotc.verify.interpreter.run import run

TEXT = """\
kernel @k(%out: *i32, %n: i32) {num_warps = 1} {
  %0 = arith.constant {value = 0, type = i32} : i32
  %1 = arith.constant {value = 1, type = i32} : i32
  %a, %b, %c, %d = scf.for(%0, %n, %1, %1, %1, %0, %n) (%i: i32, %u: i32, %v: i32, %w: i32, %x: i32) {
    %u2 = arith.add(%u, %v) : i32
    %v2 = arith.mul(%v, %n) : i32
    %w2 = arith.add(%w, %1) : i32
    %x2 = arith.add(%x, %w) : i32
    %at = arith.addptr(%out, %w) : *i32
    BODY
    scf.yield(%u2, %v2, %w2, %x2)
  } : i32, i32, i32, i32
  tile.store(%out, RESULT, _)
  scf.return
}
"""
STORE = "tile.store(%at, %i, _)"
VOLATILE = "%l = tile.load(%at) {volatile = true} : i32"
BRANCH = """%y = arith.compare(%i, %1) {predicate = "eq"} : i1
    scf.if(%y) () {
      tile.store(%at, %i, _)
      scf.yield
    } () {
      scf.yield
    }"""


@pytest.mark.parametrize(
    ("body", "result", "carried_names"),
    [
        ("", "%n", []),
        ("", "%a", ["u", "v"]),
        ("", "%b", ["v"]),
        ("", "%d", ["w", "x"]),
        (STORE, "%n", ["w"]),
        (STORE, "%b", ["v", "w"]),
        (VOLATILE, "%n", ["w"]),
        (VOLATILE.replace(" {volatile = true}", ""), "%n", []),
        (BRANCH, "%c", ["w"]),
    ],
)
@pytest.mark.parametrize("n", [0, 1, 3])
def test_what_has_no_use_is_not_carried(
    body: str, result: str, carried_names: list[str], n: int
) -> None:
    text = TEXT.replace("BODY", body).replace("RESULT", result)
    kernel = parse_kernel(text)
    (loop,) = (op for op in kernel.walk() if isinstance(op, scf.For))
    drop_unused_carried(loop)
    verify(kernel)
    (left,) = (op for op in kernel.walk() if isinstance(op, scf.For))
    assert [arg.hint for arg in left.carried] == carried_names
    before, after = (np.full(8, -1, np.int32) for _ in range(2))
    run(parse_kernel(text), (1,), [before, n])
    run(kernel, (1,), [after, n])
    np.testing.assert_array_equal(before, after)


def test_ops_that_stay_are_the_same_ops() -> None:
    kernel = parse_kernel(TEXT.replace("BODY", BRANCH).replace("RESULT", "%c"))
    (loop,) = (op for op in kernel.walk() if isinstance(op, scf.For))
    before = list(loop.body)
    drop_unused_carried(loop)
    (left,) = (op for op in kernel.walk() if isinstance(op, scf.For))
    *stay, _ = left.body
    assert stay == [op for op in before if op in stay]


def test_what_is_all_needed_stays_the_same_loop() -> None:
    text = TEXT.replace("BODY", "").replace("RESULT", "%s")
    use = "%p = arith.add(%a, %b) : i32\n  %q = arith.add(%c, %d) : i32\n"
    text = text.replace("  tile.store", f"  {use}  %s = arith.add(%p, %q) : i32\n  tile.store")
    kernel = parse_kernel(text)
    before = print_kernel(kernel)
    (loop,) = (op for op in kernel.walk() if isinstance(op, scf.For))
    drop_unused_carried(loop)
    assert print_kernel(kernel) == before
