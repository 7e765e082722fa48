from __future__ import annotations

import ast
import hashlib
from pathlib import Path

import pytest

from aotc.frontend import source, translate
from aotc.ir.diagnostics import CompileError


def write(folder: Path, data: str | bytes) -> str:
    path = folder / "m.py"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def test_the_digest_is_of_the_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, "x = 1\r\n")
    assert source.load(path).digest == hashlib.sha256(b"x = 1\r\n").hexdigest()


def test_files_are_parsed_once_and_again_when_they_change(tmp_path: Path) -> None:
    path = write(tmp_path, "x = 1\n")
    first = source.load(path)
    assert source.load(path) is first
    write(tmp_path, "x = 1; y = 2\n")
    assert source.load(path) is not first


def test_positions_are_characters(tmp_path: Path) -> None:
    file = source.load(write(tmp_path, "ä = 'ü'; b = 22\n"))
    statement = file.tree.body[1]
    assert isinstance(statement, ast.Assign)
    loc = file.loc(statement.value)
    assert (loc.line, loc.col, loc.end_col) == (1, 13, 15)


def test_a_span_ends_with_its_first_line(tmp_path: Path) -> None:
    file = source.load(write(tmp_path, "f(\n  1)\n"))
    loc = file.loc(file.tree.body[0])
    assert (loc.line, loc.col, loc.end_col) == (1, 0, 2)


def test_declared_encodings_and_byte_order_marks(tmp_path: Path) -> None:
    assert source.load(write(tmp_path, b"# coding: latin-1\nx = '\xe4'\n")).lines[1] == "x = 'ä'"
    assert source.load(write(tmp_path, b"\xef\xbb\xbfx = 1\n")).lines[0] == "x = 1"


@pytest.mark.parametrize(
    ("data", "message", "line", "col"),
    [
        (b"x = (\n", "invalid Python syntax: '(' was never closed", 1, 4),
        (b"x = 1\n  y = 2\n", "unexpected indent", 2, None),
        (b"x = '\xff'\n", "cannot decode", 1, None),
        (b"# coding: nothing\n", "cannot decode", 1, None),
        (b"x = 1\x00\n", "null bytes", 1, None),
        (b"(" * 300, "too many nested parentheses", 1, None),
        (b"x = " + b"-" * 100000 + b"1\n", "nested too deeply", 1, None),
    ],
)
def test_what_is_no_python(
    tmp_path: Path, data: bytes, message: str, line: int, col: int | None
) -> None:
    with pytest.raises(CompileError) as caught:
        source.load(write(tmp_path, data))
    assert message in caught.value.message
    assert caught.value.loc is not None
    assert caught.value.loc.line == line
    assert col is None or caught.value.loc.col == col


def test_a_long_chain_is_translated_or_refused(tmp_path: Path) -> None:
    """Python 3.10 parses it, later ones find it nested too deeply; none may crash."""
    body = b"@triton.jit\ndef k():\n    x = 1" + b"+1" * 100000 + b"\n"
    try:
        translation = translate(str(write(tmp_path, body)), "k", {}, {})
    except CompileError as error:
        assert "nested too deeply" in error.message
    else:
        assert translation.kernel.name == "k"


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, b"#" * ((8 << 20) + 1))
    with pytest.raises(CompileError, match="expected at most 8388608 bytes, got 8388609"):
        source.load(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="cannot read"):
        source.load(str(tmp_path / "none.py"))
