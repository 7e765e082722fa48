"""Lines of a manifest that `aotc init` guessed, and that nobody has settled since.

Such a line ends in `# TODO: ` and what to look for. A build goes on with the value and says so.
"""

from __future__ import annotations

import re
from pathlib import Path

_GUESS = re.compile(r"(?m)^(?P<line>[\w.\"-]+ *=[^#\n]*?) *# TODO: (?P<note>.*)$")


def guesses(manifest: str) -> list[str]:
    """Return a message for each guessed line of the manifest at a path, in order."""
    text = Path(manifest).read_text(encoding="utf-8-sig", errors="replace")
    return [
        f"{manifest}:{text.count(chr(10), 0, found.start()) + 1}: {found['line']} is a guess: "
        f"{found['note']}"
        for found in _GUESS.finditer(text)
    ]
