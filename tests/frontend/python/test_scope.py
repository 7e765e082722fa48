from __future__ import annotations

import ast

import pytest

from aotc.frontend.python.scope import (
    assigned_names,
    has_return,
    is_constexpr_annotation,
    is_docstring,
)


def statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("x = y", ("x",)),
        ("x += y", ("x",)),
        ("(a, b), c = d", ("a", "b", "c")),
        ("for i in r:\n  x = i\n  if x:\n    y = 1\n  else:\n    z: int = 2", ("i", "x", "y", "z")),
        ("while (n := n - 1):\n  pass", ("n",)),
        ("f(x)", ()),
        ("x[i] = 1", ()),
    ],
)
def test_assigned_names(text: str, names: tuple[str, ...]) -> None:
    assert assigned_names(statement(text)) == names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("return", True),
        ("if a:\n  pass\nelse:\n  return 1", True),
        ("for i in r:\n  if i:\n    return", True),
        ("if a:\n  x = 1", False),
        ("x = 1", False),
    ],
)
def test_has_return(text: str, expected: bool) -> None:
    assert has_return(statement(text)) is expected


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("tl.constexpr", True),
        ("constexpr", True),
        ("'tl.constexpr'", True),
        ("tl.constexpr[int]", True),
        ("int", False),
        ("torch.Tensor", False),
        ("None", False),
    ],
)
def test_constexpr_annotations(annotation: str, expected: bool) -> None:
    node = statement(f"x: {annotation}")
    assert isinstance(node, ast.AnnAssign)
    assert is_constexpr_annotation(node.annotation) is expected


def test_docstrings() -> None:
    assert is_docstring(statement("'a'"))
    assert not is_docstring(statement("1"))
    assert not is_docstring(statement("x = 'a'"))
