"""A hint holds for the value, at any position and under any name."""

from __future__ import annotations

import re

import pytest

import aotc
from aotc.ir.core import Block, Value
from aotc.ir.dialects import arith, scf, tile
from tests.frontend.conftest import PRELUDE, Sources, kernel_of

SIGNATURE = {"p": "*i32", "q": "*i32", "n": "i32", "c": "i32"}
OFFSETS = "o = tl.load(q) + tl.arange(0, 16)\n"
HINT = "tl.max_contiguous(tl.multiple_of(o, 16), 16)\n"
USE = "tl.store(p + o, 1)"

EVERYWHERE = {
    "statement": OFFSETS + HINT + USE,
    "two statements": OFFSETS + "tl.multiple_of(o, 16)\ntl.max_contiguous(o, 16)\n" + USE,
    "expression of another name": OFFSETS + "r = " + HINT + USE,
    "another name": OFFSETS + "x = o\n" + HINT + "tl.store(p + x, 1)",
    "an earlier use": OFFSETS + "x = p + o\n" + HINT + "tl.store(x, 1)",
    "an item of a tuple": OFFSETS + "x = (n, o)\n" + HINT.replace("(o,", "(x[1],") + USE,
    "a helper": OFFSETS + "promise(o)\n" + USE,
    "a use in a branch": OFFSETS + HINT + "if c > 0:\n    " + USE,
    "a use in a loop": OFFSETS + HINT + "for i in range(n):\n    " + USE,
    "before a loop that moves it": OFFSETS + HINT + f"for i in range(n):\n    {USE}\n    o += 16",
    "in the branch": OFFSETS + "if c > 0:\n    " + HINT + "    " + USE,
    "in the branch, after its use": OFFSETS + f"if c > 0:\n    {USE}\n    {HINT}",
    "in the loop": OFFSETS + "for i in range(n):\n    " + HINT + "    " + USE,
    "of what the loop carries": OFFSETS + f"for i in range(n):\n    {USE}\n    {HINT}    o += 16",
    "in a loop that is unrolled": OFFSETS
    + "for i in tl.static_range(2):\n    "
    + HINT
    + "    "
    + USE,
}
HELPER = f"@triton.jit\ndef promise(o):\n    {HINT}\n"


def _promises(value: Value) -> dict[str, tuple[int, ...]]:
    """Return the promises of the hints directly after a value's definition."""
    promises: dict[str, tuple[int, ...]] = {}
    while isinstance(value.op, tile.Hint):
        names = ("divisibility", "contiguity", "constancy")
        promises |= {name: numbers for name in names if (numbers := getattr(value.op, name))}
        value = value.op.value
    return promises


def _offsets_of_stores(block: Block) -> list[Value]:
    stores = [op for op in block.walk() if isinstance(op, tile.Store)]
    offsets: list[Value] = []
    for store in stores:
        assert isinstance(store.pointer.op, arith.AddPtr)
        offsets.append(store.pointer.op.offset)
    return offsets


@pytest.mark.parametrize("body", EVERYWHERE.values(), ids=EVERYWHERE.keys())
def test_uses_take_the_promise(sources: Sources, body: str) -> None:
    text = HELPER + kernel_of(body, "p, q, n, c")
    kernel = sources.translate(text, SIGNATURE).kernel
    offsets = _offsets_of_stores(kernel.body)
    assert offsets
    for offset in offsets:
        assert _promises(_start(offset)) == {"divisibility": (16,), "contiguity": (16,)}


def _start(value: Value) -> Value:
    """Return the value, or the initial value of its loop variable if it has no hint."""
    if value.op is None and isinstance(value.owner, Block):
        loop = value.owner.parent
        if isinstance(loop, scf.For):
            return loop.init[value.owner.args.index(value) - 1]
    return value


def test_a_branch_promises_for_itself(sources: Sources) -> None:
    body = OFFSETS + "if n % 16 == 0:\n    " + HINT + f"    {USE}\n{USE}"
    kernel = sources.translate(kernel_of(body, "p, q, n, c"), SIGNATURE).kernel
    inside, after = _offsets_of_stores(kernel.body)
    assert _promises(inside)
    assert not _promises(after)


def test_a_return_before_guards_the_promise(sources: Sources) -> None:
    body = OFFSETS + f"{USE}\nif n % 16 != 0:\n    return\n" + HINT + USE
    kernel = sources.translate(kernel_of(body, "p, q, n, c"), SIGNATURE).kernel
    before, after = _offsets_of_stores(kernel.body)
    assert not _promises(before)
    assert _promises(after)


def test_parameters(sources: Sources) -> None:
    body = "x = n * 4\ntl.multiple_of(n, 8)\ntl.store(p + x, 1)"
    kernel = sources.translate(kernel_of(body, "p, n"), {"p": "*i32", "n": "i32"}).kernel
    (product,) = [op for op in kernel.walk() if isinstance(op, arith.Mul)]
    assert _promises(product.operands[0]) == {"divisibility": (8,)}


def test_a_statement_makes_the_code_of_an_assignment() -> None:
    body = OFFSETS + "{}x = tl.load(q + o)\ntl.store(p + o, x)"
    texts = [body.format(hint) for hint in (HINT, f"o = {HINT}", "")]
    statement, assignment, without_hint = (
        aotc.compile(
            "k",
            source=PRELUDE + kernel_of(text.replace("16", "1024"), "p, q"),
            signature={"p": "*i32:16", "q": "*i32:16"},
        ).asm["ptx"]
        for text in texts
    )

    def accesses(ptx: str) -> list[str]:
        return re.findall(r"(?:ld|st)\.global\S*", ptx)

    assert accesses(statement) == accesses(assignment) != accesses(without_hint)
