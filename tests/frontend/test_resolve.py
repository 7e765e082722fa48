from __future__ import annotations

import ast
from pathlib import Path

import pytest

from aotc.frontend import source
from aotc.frontend.resolve import (
    bindings,
    decorator_call,
    decorator_names,
    find_definition,
    find_module,
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
    found = bindings(file)
    assert list(found) == ["x", "y", "z", "p", "b", "*", "f", "C"]
    assert [[outcome for _, outcome in one.guards] for one in found["x"]] == [[True], [False]]
    assert [one.is_fallback for one in found["p"]] == [False, True]
    assert "inner" not in found


@pytest.mark.parametrize(
    ("name", "level", "expected"),
    [
        ("helpers", 1, "pkg/sub/helpers.py"),
        ("", 1, "pkg/sub/__init__.py"),
        ("util", 2, "pkg/util.py"),
        ("pkg.util", 0, "pkg/util.py"),
        ("pkg.sub.helpers", 0, "pkg/sub/helpers.py"),
        ("helpers", 0, "pkg/sub/helpers.py"),
        ("top", 0, "top.py"),
        ("pkg", 0, "pkg/__init__.py"),
        ("json", 0, None),
        ("pkg.none", 0, None),
        ("none", 3, None),
    ],
)
def test_imports(tmp_path: Path, name: str, level: int, expected: str | None) -> None:
    for path in (
        "pkg/__init__.py",
        "pkg/util.py",
        "pkg/sub/__init__.py",
        "pkg/sub/helpers.py",
        "top.py",
    ):
        parsed(tmp_path, "", path)
    importer = parsed(tmp_path, "", "pkg/sub/kernel.py")
    found = find_module(importer, name, level)
    assert found == (None if expected is None else str(tmp_path / expected))


def test_definitions(tmp_path: Path) -> None:
    file = parsed(
        tmp_path,
        "def f(): pass\nif A:\n    def g(): pass\nclass C:\n    def f(): pass\n"
        "def f(): 'the last one'\ndef outer():\n    def f(): pass\n",
    )
    body = file.tree.body
    found = find_definition(body, ["f"])
    assert found is not None
    assert found.lineno == 6
    for path, line in ((["g"], 3), (["C", "f"], 5), (["outer", "f"], 8)):
        found = find_definition(body, path)
        assert found is not None
        assert found.lineno == line
    assert find_definition(body, ["h"]) is None
    assert find_definition(body, ["f", "g"]) is None


def test_decorators() -> None:
    function = ast.parse("@a.b(c)\n@d\n@e.jit\n@(lambda f: f)\ndef f(): pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    assert decorator_names(function) == ["b", "d", "jit", ""]
    assert decorator_call(function, "b") is not None
    assert decorator_call(function, "d") is None
