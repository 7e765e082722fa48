"""Report lines of a manifest guessed by `aotc init` and still unconfirmed.

Such a line ends in `# TODO: ` and a hint. A build uses the value and warns.
"""

from __future__ import annotations

import re
from pathlib import Path

_GUESS = re.compile(r"(?m)^(?P<line>[\w.\"-]+ *=[^#\n]*?) *# TODO: (?P<note>.*)$")


def guesses(manifest: str) -> list[str]:
    """Return a message for each guessed line of the manifest at a path, in order."""
    text = Path(manifest).read_text(encoding="utf-8-sig", errors="replace")
    return [
        f"{manifest}:{text.count(chr(10), 0, match.start()) + 1}: {match['line']} is a guess: "
        f"{match['note']}"
        for match in _GUESS.finditer(text)
    ]
