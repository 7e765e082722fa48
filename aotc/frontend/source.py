"""Source files: read once, parsed once, never executed.

A kernel's file may import others. Each is a `SourceFile` with its tree and a digest for the cache
key. Python imports nothing, so files with side effects or missing imports work.

Parsed files are cached per process by path, content, size and modification time: a grid of
configurations translates the same file many times.

Invariant: positions in a `Loc` count characters of the file on disk, in any encoding.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from aotc.ir.diagnostics import CompileError, Loc
from aotc.python_source import parse_python
from aotc.source_snapshot import current, is_text, read_source, record

_CACHED_FILES = 512


@dataclass(frozen=True, eq=False)
class SourceFile:
    """A parsed file; `digest` is the hexadecimal SHA-256 of its bytes."""

    path: str
    digest: str
    lines: tuple[str, ...]
    tree: ast.Module
    is_ascii: bool

    @property
    def folder(self) -> Path:
        """The folder of the file, for relative imports."""
        return Path(self.path).parent

    @property
    def is_package(self) -> bool:
        """True for a package's `__init__.py`."""
        return Path(self.path).name == "__init__.py"

    def loc(self, node: ast.AST, call_site: Loc | None = None, function: str = "") -> Loc:
        """Return the location of `node`; a multi-line span ends with its first line."""
        positioned: Any = node  # a node has all position attributes or none
        try:
            line: int = positioned.lineno
            col: int = positioned.col_offset
            end_col: int = positioned.end_col_offset or col + 1
            is_one_line: bool = positioned.end_lineno == line
        except AttributeError:
            return Loc(self.path, 1, 0, 1, call_site, function)
        if is_one_line and self.is_ascii:
            return Loc(self.path, line, col, end_col, call_site, function)
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        if not is_one_line:
            end_col = len(text.encode())
        if not self.is_ascii:
            # `ast` counts bytes of UTF-8.
            encoded = text.encode()
            col = len(encoded[:col].decode(errors="replace"))
            end_col = len(encoded[:end_col].decode(errors="replace"))
        return Loc(self.path, line, col, max(end_col, col + 1), call_site, function)


def load(path: str) -> SourceFile:
    """Return the parsed file at `path`, from disk or the current snapshot.

    Raises: CompileError if it cannot be read or is not Python.
    """
    try:
        if current() is not None or is_text(path):
            return _parse_content(path, read_source(path))
        stat = Path(path).stat()
        record(path)
    except (OSError, ValueError) as error:  # a NUL in the path is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise CompileError(
            f"cannot read {path}: {reason}", remedy="check the path of the source file"
        ) from error
    return _parse(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=_CACHED_FILES)
def _parse(path: str, mtime_ns: int, size_bytes: int) -> SourceFile:
    del mtime_ns, size_bytes
    try:
        raw = read_source(path)
    except OSError as error:
        raise CompileError(f"cannot read {path}: {error.strerror}") from error
    return _parse_content(path, raw)


@lru_cache(maxsize=_CACHED_FILES)
def _parse_content(path: str, raw: bytes) -> SourceFile:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = io.TextIOWrapper(io.BytesIO(raw), encoding).read()
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise CompileError(f"cannot decode {path}: {error}", Loc(path, 1)) from error
    return SourceFile(
        path,
        hashlib.sha256(raw).hexdigest(),
        tuple(text.split("\n")),
        parse_text(text, path),
        text.isascii(),
    )


def parse_text(text: str, path: str) -> ast.Module:
    """Parse Python source. Raises: CompileError where it is not Python or nests too deeply."""
    try:
        return parse_python(text, path)
    except SyntaxError as error:
        loc = _syntax_error_loc(error, path)
        detail = "" if error.msg == "invalid syntax" else f": {error.msg}"
        raise CompileError(f"invalid Python syntax{detail}", loc) from error
    except (RecursionError, MemoryError) as error:
        raise CompileError("the source is nested too deeply to be parsed", Loc(path, 1)) from error
    except ValueError as error:
        raise CompileError(f"invalid Python source: {error}", Loc(path, 1)) from error


def _syntax_error_loc(error: SyntaxError, path: str) -> Loc:
    line, col = error.lineno or 1, max((error.offset or 1) - 1, 0)
    same_line = (error.end_lineno or line) == line
    end_col = (error.end_offset or 0) - 1 if same_line else col + 1
    return Loc(path, line, col, max(end_col, col + 1))
