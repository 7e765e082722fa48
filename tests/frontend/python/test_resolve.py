from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from aotc.frontend import source
from aotc.frontend.python.resolve import (
    bindings,
    changes,
    decorator_call,
    decorator_names,
    find_definition,
)


def parsed(folder: Path, text: str, name: str = "m.py") -> source.SourceFile:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return source.load(str(path))


def test_bindings_with_their_conditions(tmp_path: Path) -> None:
    file = parsed(
        tmp_path,
        "if A:\n    x = 1\nelse:\n    x, (y, *z) = 2\n"
        "try:\n    import p.q\nexcept E:\n    p = None\n"
        "from m import a as b\nfrom n import *\ndef f(): inner = 1\nclass C: pass\n",
    )
    file_bindings = bindings(file)
    assert list(file_bindings) == ["x", "y", "z", "p", "b", "*", "f", "C"]
    assert [[outcome for _, outcome in binding.guards] for binding in file_bindings["x"]] == [
        [True],
        [False],
    ]
    assert [binding.is_fallback for binding in file_bindings["p"]] == [False, True]
    assert "inner" not in file_bindings


def test_definitions(tmp_path: Path) -> None:
    file = parsed(
        tmp_path,
        "def f(): pass\nif A:\n    def g(): pass\nclass C:\n    def f(): pass\n"
        "def f(): 'the last one'\ndef outer():\n    def f(): pass\n",
    )
    body = file.tree.body
    definition = find_definition(body, ["f"])
    assert definition is not None
    assert definition.lineno == 6
    for path, line in ((["g"], 3), (["C", "f"], 5), (["outer", "f"], 8)):
        definition = find_definition(body, path)
        assert definition is not None
        assert definition.lineno == line
    assert find_definition(body, ["h"]) is None
    assert find_definition(body, ["f", "g"]) is None


def test_decorators() -> None:
    function = ast.parse("@a.b(c)\n@d\n@e.jit\n@(lambda f: f)\ndef f(): pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    assert decorator_names(function) == ["b", "d", "jit", ""]
    assert decorator_call(function, "b") is not None
    assert decorator_call(function, "d") is None


def test_plain_assignments_are_not_searched_for_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long table of constants is read as text only."""
    walked: list[ast.AST] = []
    walk = ast.walk

    def counting(node: ast.AST) -> Iterator[ast.AST]:
        walked.append(node)
        return walk(node)

    table = "".join(f"A{i} = {i} * 2\n" for i in range(200))
    text = f"{table}L = [1]\nL.append(A7)\nL[0] = 3\n"
    file = parsed(tmp_path, text)
    monkeypatch.setattr(ast, "walk", counting)
    assert [len(statements) for statements in changes(file).values()] == [2]
    assert len(walked) <= 5
