"""Uses of a kernel's parameters."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from aotc.frontend.python.globals import describe_function
from aotc.frontend.python.resolve import find_definition
from aotc.frontend.survey.support import Survey
from aotc.package.init.use import Use, Uses
from aotc.package.init.uses import uses_of

USED_BOTH = Use.POINTER | Use.INDICES | Use.OFFSET | Use.INTEGER
PRELUDE = "import triton\nimport triton.language as tl\n"


def used(folder: Path, body: str, parameters: str = "p, q, n, B: tl.constexpr") -> Uses:
    path = folder / "k.py"
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    path.write_text(f"{PRELUDE}@triton.jit\ndef k({parameters}):\n{lines}\n")
    return of(path)


def of(path: Path) -> Uses:
    survey = Survey("sm_90a")
    file = survey.globals.open(str(path))
    node = find_definition(file.tree.body, ["k"])
    assert node is not None
    return uses_of(survey, describe_function(file, node, "k"))


@pytest.mark.parametrize(
    ("body", "name", "expected"),
    [
        ("x = tl.load(p + n * 2)", "p", Use.POINTER),
        ("x = tl.load(p + n * 2)", "n", Use.OFFSET | Use.INTEGER),
        ("p += n\ntl.store(p, 1)", "p", Use.POINTER),
        ("for i in range(4):\n    tl.store(p, 1)\n    p += n", "n", Use.OFFSET | Use.INTEGER),
        ("x = p.dtype.element_ty", "p", Use.POINTER),
        (
            "b = tl.make_block_ptr(p, (n,), (1,), (0,), (B,), (0,))\nx = tl.load(b)",
            "p",
            Use.POINTER,
        ),
        ("p.store([0, n], p.load([n, 0]))", "p", Use.DESCRIPTOR),
        ("p.store([0, n], p.load([n, 0]))", "n", Use.INTEGER),
        ("d = tl.make_tensor_descriptor(p, [n], [1], [B])\nx = d.load([0])", "p", Use.POINTER),
        ("x = tl.load(p + tl.load(q))", "q", Use.POINTER | Use.INDICES),
        ("for i in range(tl.load(q)):\n    pass", "q", Use.POINTER | Use.INDICES),
        ("x = tl.load(q).to(tl.pointer_type(tl.float32))", "q", Use.POINTER | Use.ADDRESSES),
        ("tl.store(p, tl.arange(0, B))", "p", Use.POINTER | Use.INDICES),
        ("tl.atomic_add(p, 1)", "p", Use.POINTER | Use.INDICES),
        ("tl.store(p, tl.load(q).shape[0] + 0.5)", "q", Use.POINTER),
        ("m = tl.arange(0, B) < n", "n", Use.BOUND | Use.INTEGER),
        ("m = tl.arange(0, B)", "B", Use.EXTENT),
        ("m = tl.zeros((B,), q)", "q", Use.DTYPE),
        ("m = tl.load(p).to(q)", "q", Use.DTYPE),
        ("if tl.program_id(0) >= n:\n    return", "n", Use.INTEGER),
        ("x = tl.load(p).to(tl.float32) * n", "n", Use.FLOAT),
        ("x = tl.load(p) != 255", "p", Use.POINTER | Use.BITS),
        ("nan = 255\nx = tl.load(p) != nan", "p", Use.POINTER | Use.BITS),
        ("x = tl.load(p) != 0", "p", Use.POINTER),
        ("x = tl.load(q)\ntl.store(p, (x.to(tl.float32) * 2).to(n))", "p", Use.POINTER),
        ("for i in range(4):\n    x = p + i\n    x = tl.load(x)", "p", Use.POINTER),
        ("x = q\nfor i in range(4):\n    tl.load(p + x)\n    x = tl.load(q)", "q", USED_BOTH),
        ("x = tl.exp(n)", "n", Use.FLOAT),
        ("x = n.to(tl.float32)", "n", Use.FLOAT),
        ("x = tl.sum(tl.load(p).to(tl.float32)) / n", "n", Use.NOTHING),
        ("x = n % 2", "n", Use.INTEGER),
        ("if n:\n    pass", "n", Use.CONDITION),
        ("if not n and B:\n    pass", "n", Use.CONDITION),
        ("if p is not None:\n    x = tl.load(p)", "p", Use.POINTER | Use.NONE_TEST),
        ("print(q)", "q", Use.NOTHING),
    ],
)
def test_uses(tmp_path: Path, body: str, name: str, expected: Use) -> None:
    assert used(tmp_path, body).of(name) == expected


def test_what_a_called_function_does_counts(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(
        PRELUDE + "@triton.jit\n"
        "def read(base, at, scale, kind):\n"
        "    if kind == 'a':\n"
        "        return read(base, at, scale, 'b')\n"
        "    return tl.load(base + at) * tl.exp(scale)\n"
    )
    (tmp_path / "k.py").write_text(
        PRELUDE + "from .inner import read\n@triton.jit\n"
        "def k(p, n, s, KIND): x = read(p + 1, scale=s, at=n * 2, kind=KIND)\n"
    )
    uses = of(tmp_path / "k.py")
    assert uses.of("p") == Use.POINTER
    assert uses.of("n") == Use.OFFSET | Use.INTEGER
    assert uses.of("s") == Use.FLOAT
    assert {ast.unparse(operand) for operand in uses.compared["KIND"]} == {"'a'"}


def test_what_heuristics_ask_and_what_stores_cast_to(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text(
        PRELUDE + "@triton.heuristics({'HAS': lambda args: args['p'] is not None})\n@triton.jit\n"
        "def k(p, q, HAS: tl.constexpr):\n"
        "    tl.store(q, tl.load(p).to(tl.int8))\n    tl.store(p, tl.load(q).to(tl.float32))\n"
    )
    uses = of(tmp_path / "k.py")
    assert uses.of("p") == Use.POINTER | Use.NONE_TEST
    assert uses.stored == {"q": {"i8"}}
