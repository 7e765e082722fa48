"""Kernels with a wait for earlier grids on every path."""

from __future__ import annotations

import pytest

from aotc.ir.dialects.grid import always_waits
from aotc.ir.text import parse_kernel

WAIT = "grid.wait"


def _branch(then: str, otherwise: str) -> str:
    return f"scf.if(%c) () {{\n{then}\nscf.yield()\n}} () {{\n{otherwise}\nscf.yield()\n}}"


def _loop(body: str) -> str:
    return f"scf.for(%n, %n, %n) (%i: i32) {{\n{body}\nscf.yield()\n}}"


def _while(before: str, after: str) -> str:
    return f"scf.while() () {{\n{before}\nscf.condition(%c)\n}} () {{\n{after}\nscf.yield()\n}}"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", False),
        ("grid.launch_dependents", False),
        (WAIT, True),
        (f"tile.barrier\n{WAIT}\n{WAIT}", True),
        (_branch(WAIT, ""), False),
        (_branch("", WAIT), False),
        (_branch(WAIT, WAIT), True),
        (_branch(_branch(WAIT, WAIT), f"tile.barrier\n{WAIT}"), True),
        (_branch(_branch(WAIT, ""), WAIT), False),
        (_branch(WAIT, "") + "\n" + WAIT, True),
        (_loop(WAIT), False),
        (_while(WAIT, ""), False),
        (_while("", WAIT), False),
    ],
)
def test_always_waits(body: str, expected: bool) -> None:
    text = f"kernel @k(%c: i1, %n: i32) {{num_warps = 4}} {{\n{body}\nscf.return\n}}\n"
    assert always_waits(parse_kernel(text)) is expected
