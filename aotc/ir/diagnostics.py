"""Source locations and the two families of errors.

A user's mistake is a `DiagnosticError` (`CompileError` for a kernel, `ManifestError` for a
manifest): it has a place, an expectation, the actual value and a remedy, and it renders with the
source line and a caret. A lack of the machine, of room on a disk or of memory, is a `HostError` of
the same family. A mistake of ours is an `IRError`. Nothing else may leave the compiler, so the
command line can map the first family to exit code 1 and the second to exit code 3.

Invariant: a location is immutable and names real positions of a real file. Rewrites pass on the
location of the op they replace, so every later remark can point at the user's line.

    Exception
    ├── DiagnosticError        the user's mistake
    │   ├── CompileError       in a kernel's source
    │   ├── ManifestError      in kernels.toml, or in a command line
    │   └── HostError          no mistake in code: the machine lacked or refused something
    └── IRError                our mistake: invalid IR, a missing rule, a broken invariant
"""

from __future__ import annotations

import difflib
import errno
import io
import re
import tokenize
import unicodedata
from collections.abc import Iterable, Iterator
from contextvars import ContextVar, Token
from dataclasses import dataclass, field

from aotc.module_search import Search
from aotc.source_snapshot import NotInSnapshotError, read_source

_MAX_CALL_SITES = 8
_MAX_LINE_CHARS = 160
_CHARS_BEFORE_CARET = 40
_EXPECTED_GOT = re.compile(r"expected (?P<expected>.*), got (?P<got>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Loc:
    """Name a span of a source file, and the call through which the compiler came there.

    `line` and `col` count from 1 and from 0, as in `ast`; `end_col` is exclusive and on the same
    line. `call_site` is the call of the enclosing `@jit` function, or None; `function` is the name
    of this function, or empty.
    """

    file: str
    line: int
    col: int = 0
    end_col: int = 0
    call_site: Loc | None = field(default=None, repr=False)
    function: str = field(default="", repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col + 1}"

    def chain(self) -> Iterator[Loc]:
        """Yield this location, then its call sites from the inside out."""
        loc: Loc | None = self
        while loc is not None:
            yield loc
            loc = loc.call_site


UNKNOWN_LOC = Loc("<unknown>", 0)

_current_loc: ContextVar[Loc] = ContextVar("aotc_current_loc", default=UNKNOWN_LOC)


def current_loc() -> Loc:
    """Return the location for newly built ops."""
    return _current_loc.get()


class at:  # noqa: N801 - a verb, as contextlib's are
    """Give `loc` to the ops built inside the `with` block."""

    # A class, at half the cost of a generator: passes enter one for each op they build.
    __slots__ = ("_loc", "_token")

    _token: Token[Loc]

    def __init__(self, loc: Loc) -> None:
        self._loc = loc

    def __enter__(self) -> None:
        self._token = _current_loc.set(self._loc)

    def __exit__(self, *_: object) -> None:
        _current_loc.reset(self._token)


def source_line(loc: Loc) -> str | None:
    """Return the text of the line `loc` is on, or None if the file cannot be read."""
    try:
        raw = read_source(loc.file)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        lines = io.TextIOWrapper(io.BytesIO(raw), encoding).read().split("\n")
    except (OSError, SyntaxError, UnicodeDecodeError, LookupError, NotInSnapshotError):
        return None
    return lines[loc.line - 1] or None if 0 < loc.line <= len(lines) else None


def render_caret(loc: Loc, indent: str = "  ") -> str:
    """Return the source line with carets under the span, or an empty string without a source."""
    line = source_line(loc)
    if line is None:
        return ""
    # Tabs and control characters would shift the caret, or steer the terminal.
    text = "".join(char if char.isprintable() else " " for char in line)
    start, end = min(loc.col, len(text)), max(loc.end_col, loc.col + 1)
    if len(text) > _MAX_LINE_CHARS:
        first = max(0, min(start - _CHARS_BEFORE_CARET, len(text) - _MAX_LINE_CHARS))
        last = first + _MAX_LINE_CHARS
        head, tail = "…" if first else "", "…" if last < len(text) else ""
        text = f"{head}{text[first:last]}{tail}"
        shift = first - len(head)
        start, end = start - shift, min(end - shift, len(text))
    carets = "^" * max(1, _num_cells(text[start:end]))
    return f"{indent}{text}\n{indent}{' ' * _num_cells(text[:start])}{carets}"


def _num_cells(text: str) -> int:
    """Return the number of terminal columns of `text`."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) != 0 for char in text)


def printable(text: str, keep: str = "\n\t") -> str:
    """Escape all characters that could steer a terminal, but for `keep`.

    Names and remarks come from files anybody may have written.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )


def one_line(text: str) -> str:
    """Return a text as `printable` does, line breaks and tabs written as escapes as well."""
    return printable(text, keep="")


class DiagnosticError(Exception):
    """Report a mistake of the user's, with its place and its remedy.

    `message` gives the expectation and the actual value, `remedy` the way out, or an empty string.
    `others` are mistakes found along with this one.
    """

    def __init__(self, message: str, loc: Loc | None = None, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.loc = loc
        self.remedy = remedy
        self.context: list[str] = []
        self.others: tuple[DiagnosticError, ...] = ()

    def add_context(self, line: str) -> None:
        """Append a line of context, such as the kernel and its config."""
        self.context.append(line)

    def render(self) -> str:
        """Return the whole report: place, message, source line, caret, call chain, remedy."""
        has_loc = self.loc is not None and self.loc != UNKNOWN_LOC
        prefix = f"{self.loc}: " if has_loc else ""
        # A line break in a name cannot begin a line that looks like a report of its own.
        lines = [one_line(f"{prefix}error: {self.message}")]
        if has_loc and self.loc is not None:
            lines.append(render_caret(self.loc))
            sites = list(self.loc.chain())[1:]
            for site in sites[:_MAX_CALL_SITES]:
                lines += [f"  called from {one_line(str(site))}", render_caret(site, "    ")]
            if len(sites) > _MAX_CALL_SITES:
                lines.append(f"  … {len(sites) - _MAX_CALL_SITES} more calls")
        if self.remedy:
            lines.append(f"  help: {one_line(self.remedy)}")
        lines += [f"  note: {one_line(line)}" for line in self.context]
        lines += [other.render() for other in self.others]
        return "\n".join(line for line in lines if line)

    def describe(self) -> dict[str, object]:
        """Return the mistake, without the others, as JSON-ready data."""
        match = _EXPECTED_GOT.fullmatch(self.message)
        loc = self.loc if self.loc is not None and self.loc != UNKNOWN_LOC else None
        return {
            "file": loc.file if loc else None,
            "line": loc.line if loc else None,
            "column": loc.col + 1 if loc else None,
            "message": self.message,
            "expected": match["expected"] if match else None,
            "got": match["got"] if match else None,
            "remedy": self.remedy or None,
        }

    def __str__(self) -> str:
        return self.render()


class CompileError(DiagnosticError):
    """Report a mistake in a kernel's source.

    `feature` names the refused feature without the user's names: mistakes of one kind share it.
    """

    def __init__(
        self, message: str, loc: Loc | None = None, *, remedy: str = "", feature: str = ""
    ) -> None:
        super().__init__(message, loc, remedy=remedy)
        self.feature = feature or message


class ResourceError(CompileError):
    """Report a kernel that needs more than its target has.

    The config is wrong, not the source: a build leaves the variant out, with a remark.
    `source_files` were read on the way, and `searches` are its look-ups of imported modules, up to
    the failure.
    """

    source_files: tuple[tuple[str, str], ...] = ()
    searches: tuple[tuple[Search, str | None], ...] = ()


class ManifestError(DiagnosticError):
    """Report a mistake in a manifest or in a request about it."""


class HostError(DiagnosticError):
    """Report a lack or refusal of the machine: disk, memory, a process, a tool."""


_TEMPORARY = "free some, or set TMPDIR to a folder that has room"
_HOST_REMEDIES = {
    errno.ENOSPC: _TEMPORARY,
    errno.EDQUOT: _TEMPORARY,
    errno.EROFS: "set TMPDIR to a folder that can be written to",
    errno.EACCES: "set TMPDIR to a folder that can be written to",
    errno.ENOENT: "set TMPDIR to a folder that is there",
    errno.ENOMEM: "free memory, or build with fewer jobs (-j)",
    errno.EAGAIN: "build with fewer jobs (-j), or raise the limit of processes (ulimit -u)",
    errno.EMFILE: "raise the limit of open files (ulimit -n), or build with fewer jobs (-j)",
    errno.ENFILE: "close programs: the system has no open file left to give",
    errno.EBUSY: "try again",
    errno.EIO: "check the disk",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
}
# These may also come of a mistake of ours, unless the caller knows better.
_AMBIGUOUS = (errno.EACCES, errno.ENOENT)


def host_error(error: OSError | MemoryError, doing: str = "") -> HostError | None:
    """Return the report of a refusal by the system, or None if the machine is not at fault.

    `doing` names the failed action, such as "cannot make a folder in /tmp".
    """
    if isinstance(error, MemoryError):
        return HostError("out of memory", remedy=_HOST_REMEDIES[errno.ENOMEM])
    number = error.errno or 0
    if number not in _HOST_REMEDIES or (number in _AMBIGUOUS and not doing):
        return None
    where = f": {error.filename}" if error.filename is not None and not doing else ""
    reason = f"{error.strerror}{where} (errno {number})"
    message = f"{doing}: {reason}" if doing else reason
    return HostError(message, remedy=_HOST_REMEDIES[number])


class IRError(Exception):
    """Report a mistake of ours: invalid IR or a broken invariant of a pass."""

    def __init__(self, message: str, loc: Loc | None = None) -> None:
        super().__init__(message if loc is None or loc == UNKNOWN_LOC else f"{loc}: {message}")
        self.loc = loc


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate nearest to a misspelt `name`, or None."""
    matches = difflib.get_close_matches(name, sorted(candidates), n=1, cutoff=0.6)
    return matches[0] if matches else None


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return a remedy naming the nearest candidate, or an empty string."""
    candidate = nearest(name, candidates)
    return f"did you mean {candidate!r}?" if candidate else ""
