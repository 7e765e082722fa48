"""Sources as content: a compile away from its files is the compile beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.compiler import CompileRequest, compile_ptx
from aotc.ir.diagnostics import CompileError
from aotc.module_search import find_module
from aotc.package.builder.snapshots import Snapshots
from aotc.source_snapshot import NotInSnapshotError, Search, Snapshot, read_source, using

_KERNEL = """\
import triton
import triton.language as tl
from helpers.sizes import BLOCK
import missing

@triton.jit
def fill(out_ptr, n, APPLY: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, APPLY(i), mask=i < n)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    (folder / "helpers").mkdir(parents=True)
    (folder / "helpers" / "__init__.py").write_text("from . import sizes\n")
    (folder / "helpers" / "sizes.py").write_text("BLOCK = 128\n")
    text = "import triton\n@triton.jit\ndef twice(x):\n    return x * 2\n"
    (folder / "apply.py").write_text(text)
    (folder / "k.py").write_text(_KERNEL)
    return folder


def _request(folder: Path, **constants: str) -> CompileRequest:
    all_constants = {"APPLY": "apply.py:twice", **constants}
    signature = (("out_ptr", "*i32"), ("n", "i32"))
    return CompileRequest(
        str(folder / "k.py"), "fill", signature, tuple(all_constants.items()), "sm_80"
    )


def test_a_compile_away_from_its_files_is_the_same(folder: Path) -> None:
    request = _request(folder)
    expected = compile_ptx(request)
    snapshot = Snapshots().of([request])
    folder.rename(folder.with_name("gone"))
    with using(snapshot):
        assert compile_ptx(request) == expected
    with pytest.raises(CompileError, match="cannot read"):
        compile_ptx(request)


def test_what_imports_do_not_tell_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aotc.package.builder.snapshots._searches", lambda path, content: [])
    request = _request(folder)
    expected = compile_ptx(request)
    snapshots = Snapshots()
    questions: list[str | Search] = []
    while True:
        try:
            with using(snapshots.of([request])):
                assert compile_ptx(request) == expected
            break
        except NotInSnapshotError as error:
            assert error.question not in questions
            questions.append(error.question)
            snapshots.answer([request], error.question)
    assert questions


def test_a_mistake_shows_its_line(folder: Path) -> None:
    request = _request(folder, APPLY="apply.py:thrice")
    snapshot = Snapshots().of([request])
    with pytest.raises(CompileError) as near:
        compile_ptx(request)
    expected = near.value.render()
    assert "APPLY(i)" in expected
    folder.rename(folder.with_name("gone"))
    with using(snapshot), pytest.raises(CompileError) as far:
        compile_ptx(request)
    with using(snapshot):
        assert far.value.render() == expected


def test_a_file_that_cannot_be_read_is_the_same_mistake(folder: Path) -> None:
    request = _request(folder)
    (folder / "k.py").unlink()
    with pytest.raises(CompileError) as near:
        compile_ptx(request)
    with using(Snapshots().of([request])), pytest.raises(CompileError) as far:
        compile_ptx(request)
    assert far.value.render() == near.value.render()


def test_a_large_package_does_not_travel(tmp_path: Path) -> None:
    names = [f"part{index}" for index in range(200)]
    for name in names:
        (tmp_path / f"{name}.py").write_text("".join(f"import {other}\n" for other in names))
    request = CompileRequest(str(tmp_path / "part0.py"), "k", (), (), "sm_80")
    assert 1 < len(Snapshots().of([request]).files) < 100


def test_files_are_those_of_the_first_look(folder: Path) -> None:
    snapshots = Snapshots()
    first = snapshots.of([_request(folder)])
    (folder / "k.py").write_text("")
    assert snapshots.of([_request(folder)]) == first


def test_a_snapshot_never_guesses(folder: Path) -> None:
    path = str(folder / "k.py")
    with using(Snapshot()):
        with pytest.raises(NotInSnapshotError):
            read_source(path)
        with pytest.raises(NotInSnapshotError):
            find_module((path, "apply", 0))
    assert read_source(path) == _KERNEL.encode()
    assert find_module((path, "apply", 0)) == str(folder / "apply.py")
