"""A fault as text: message, PTX and source lines, thread, and how to reproduce it.

Invariant: an unreadable source file is named without its text; this is never an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from aotc.source_snapshot import NotInSnapshotError, read_source
from aotc.verify.emulator.errors import Fault
from aotc.verify.emulator.syntax import SourceLocation
from aotc.verify.emulator.text.special_registers import WARP

_MAX_TEXT = 160


def render_fault(fault: Fault, *, sources: Sequence[Path] = (), reproduction: str = "") -> str:
    """Return the report of a fault: a few lines, without a newline at the end.

    `sources` are candidate files for `.loc`, since the line table names files without a directory.
    `reproduction` is the command that shows the fault again.
    """
    lines = [f"{fault.kind}: {fault.message}"]
    if fault.line:
        lines.append(f"  PTX line {fault.line}: {_shortened(fault.text)}")
    location = fault.location
    words = "at"
    while location is not None:
        lines.append(f"  {words} {location.file}:{location.line}:{location.column}")
        lines += _quote(location, sources)
        location, words = location.inlined_at, "called from"
    if fault.cta:
        cta = ", ".join(map(str, fault.cta))
        lines.append(f"  in CTA ({cta}){_thread(fault.thread)}")
    lines += [f"  {note}" for note in fault.notes]
    if reproduction:
        lines.append(f"  to see it again: {reproduction}")
    return "\n".join(lines)


def _thread(thread: int | None) -> str:
    if thread is None:
        return ""
    return f", thread {thread} (warp {thread // WARP}, lane {thread % WARP})"


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 2]} …"


def _quote(location: SourceLocation, sources: Sequence[Path]) -> Iterator[str]:
    """Yield the source line, and a caret below its column, if the file can be read."""
    name = Path(location.file).name
    for path in (Path(location.file), *(path for path in sources if path.name == name)):
        try:
            lines = read_source(str(path)).decode().splitlines()
        except (OSError, UnicodeDecodeError, NotInSnapshotError):
            continue
        if location.line <= len(lines):
            text = lines[location.line - 1]
            stripped = text.lstrip()
            yield f"      {stripped}"
            if location.column:
                yield f"      {' ' * max(location.column - 1 - len(text) + len(stripped), 0)}^"
        return
