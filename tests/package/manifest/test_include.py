"""Manifests that include others: the combined kernels, and the locations of mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aotc.ir.diagnostics import ManifestError
from aotc.package.manifest.read import load

_PACKAGE = '[package]\nname = "all"\nversion = "0.1.0"\ntargets = ["sm_90a", "sm_80"]\n'
_SOURCE = "def add(x_ptr):\n    pass\ndef scale(x_ptr):\n    pass\n"


def _kernel(function: str, name: str = "", argument: str = "x_ptr") -> str:
    named = f'name = "{name}"\n' if name else ""
    signature = f'[kernel.signature]\n{argument} = "*fp32"\n'
    return f'\n[[kernel]]\nsource = "k.py:{function}"\n{named}{signature}'


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], str]:
    def write(path: str, text: str) -> str:
        full_path = tmp_path / path
        full_path.parent.mkdir(exist_ok=True)
        full_path.write_text(text)
        (full_path.parent / "k.py").write_text(_SOURCE)
        return str(full_path)

    return write


def _include(*paths: str) -> str:
    return f"include = [{', '.join(repr(path) for path in paths)}]\n"


def test_kernels_of_included_manifests_come_first(write: Callable[[str, str], str]) -> None:
    root = write("all.toml", _include("a/a.toml", "b/b.toml") + _PACKAGE + _kernel("add"))
    write("a/a.toml", _kernel("add", "a_add"))
    write("b/b.toml", _include("../c/c.toml") + _kernel("scale"))
    write("c/c.toml", _kernel("scale", "c_scale"))
    manifest = load(root)
    assert [kernel.name for kernel in manifest.kernels] == ["a_add", "c_scale", "scale", "add"]
    folder = Path(root).parent
    sources = [kernel.source for kernel in manifest.kernels]
    assert [Path(source).resolve() for source in sources] == [
        folder / "a" / "k.py",
        folder / "c" / "k.py",
        folder / "b" / "k.py",
        folder / "k.py",
    ]
    assert (manifest.path, manifest.name) == (root, "all")


def test_a_manifest_may_be_made_of_others_alone(write: Callable[[str, str], str]) -> None:
    root = write("all.toml", _include("a.toml") + _PACKAGE)
    write("a.toml", _kernel("add"))
    assert [kernel.name for kernel in load(root).kernels] == ["add"]


def test_a_manifest_that_two_include_is_included_once(write: Callable[[str, str], str]) -> None:
    root = write("all.toml", _include("a.toml", "x/../b.toml", "./c.toml") + _PACKAGE)
    write("x/unused.toml", "")
    write("a.toml", _include("c.toml"))
    write("b.toml", _include("c.toml"))
    write("c.toml", _kernel("add"))
    assert [kernel.name for kernel in load(root).kernels] == ["add"]


def test_an_included_package_may_agree(write: Callable[[str, str], str]) -> None:
    root = write("all.toml", _include("a.toml") + _PACKAGE + 'without = ["tma", "wgmma"]\n')
    more = _PACKAGE.replace('"sm_80"]', '"sm_80", "sm_89"]').replace('"all"', '"mine"')
    write("a.toml", more + 'without = ["tma"]\n' + _kernel("add"))
    assert load(root).without == ("tma", "wgmma")
    assert load(str(Path(root).parent / "a.toml")).name == "mine"


def _error(root: str) -> str:
    with pytest.raises(ManifestError) as caught:
        load(root)
    return caught.value.render().replace(f"{Path(root).parent}/", "")


def test_conflicts_name_both_places(write: Callable[[str, str], str]) -> None:
    root = write("all.toml", _include("a.toml") + _PACKAGE + _kernel("add"))
    write("a.toml", "# another line\n" + _kernel("scale", "add"))
    text = _error(root)
    assert text.startswith(
        "all.toml:8:10: error: expected a unique name, got 'add' as at a.toml:5:8"
    )
    write("a.toml", _PACKAGE.replace('"sm_90a", ', "") + _kernel("scale"))
    text = _error(root)
    assert text.startswith("all.toml:5:12: error: expected only targets of the included manifest")
    assert "got 'sm_90a'; it has sm_80 at a.toml:4:11" in text
    write("a.toml", _PACKAGE + 'without = ["tma"]\n' + _kernel("scale"))
    text = _error(root)
    assert text.startswith("all.toml:5:11: error: expected `without` to have 'tma'")
    assert "as the included manifest at a.toml:5:12" in text


def test_circles_are_shown(write: Callable[[str, str], str]) -> None:
    root = write("all.toml", _include("a.toml") + _PACKAGE + _kernel("add"))
    write("a.toml", _include("b.toml"))
    write("b.toml", "\n" + _include("all.toml"))
    text = _error(root)
    way = "all.toml includes a.toml includes b.toml includes all.toml"
    assert text.startswith(f"b.toml:2:12: error: expected no circle of manifests, got {way}")
    write("a.toml", _include("a.toml"))
    assert "a.toml includes a.toml" in _error(root)


@pytest.mark.parametrize(
    ("text", "location", "message"),
    [
        ('include = "a.toml"\n', "all.toml:1:11", "expected a list of strings for 'include'"),
        ("include = [1]\n", "all.toml:1:12", "expected a string in 'include', got the integer 1"),
        ("include = []\n", "all.toml:1:11", "expected at least one value for 'include'"),
        ('include = ["b.toml"]\n', "all.toml:1:12", "cannot read b.toml"),
        ('include = ["a.toml", "a.toml"]\n', "all.toml:1:22", "got 'a.toml' again"),
    ],
)
def test_wrong_lists(
    write: Callable[[str, str], str], text: str, location: str, message: str
) -> None:
    root = write("all.toml", text + _PACKAGE + _kernel("add"))
    write("a.toml", _kernel("scale"))
    report = _error(root)
    assert report.startswith(f"{location}: error: ")
    assert message in report


def test_mistakes_are_at_home(write: Callable[[str, str], str]) -> None:
    root = write("all.toml", _include("a/a.toml") + _PACKAGE)
    write("a/a.toml", "\n\n" + _kernel("add", argument="y_ptr"))
    assert _error(root).startswith("a/a.toml:7:1: error: expected an argument of add, got 'y_ptr'")
    write("a/a.toml", "x = [\n")
    assert _error(root).startswith("a/a.toml:2:1: error: expected TOML")
    write("a/a.toml", "kernels = 1\n")
    assert _error(root).startswith("a/a.toml:1:1: error: expected one of include, package, kernel")
