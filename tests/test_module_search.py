"""The file of an import: beside the importing file, up to its package's root, no further."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.module_search import find_module


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
        ("n" * 300, 0, None),
    ],
)
def test_imports(tmp_path: Path, name: str, level: int, expected: str | None) -> None:
    (tmp_path / "pkg" / "sub").mkdir(parents=True)
    for path in (
        "pkg/__init__.py",
        "pkg/util.py",
        "pkg/sub/__init__.py",
        "pkg/sub/helpers.py",
        "pkg/sub/kernel.py",
        "top.py",
    ):
        (tmp_path / path).touch()
    module_path = find_module((str(tmp_path / "pkg/sub/kernel.py"), name, level))
    assert module_path == (None if expected is None else str(tmp_path / expected))


def test_a_folder_or_a_fifo_is_no_module(tmp_path: Path) -> None:
    importer = str(tmp_path / "k.py")
    (tmp_path / "helper.py").mkdir()
    assert find_module((importer, "helper", 0)) is None
    (tmp_path / "helper").mkdir()
    (tmp_path / "helper" / "__init__.py").touch()
    assert find_module((importer, "helper", 0)) == str(tmp_path / "helper" / "__init__.py")
