"""News fragments: a file per user-visible change, moved into CHANGELOG.md by a release."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("added", "changed", "fixed")
AREAS = ("language", "compiler", "runtime", "verify", "command-line", "packaging")
_NAME = re.compile(rf"[a-z0-9-]+\.({'|'.join(AREAS)})\.({'|'.join(KINDS)})\.md")
_MAX_COLUMNS = 120


def mistakes(name: str, text: str) -> list[str]:
    """Return the mistakes in a fragment."""
    messages: list[str] = []
    if not _NAME.fullmatch(name):
        messages.append(f"{name}: expected SUBJECT.AREA.KIND.md, of {AREAS} and {KINDS}")
    if not text.strip() or text.startswith(("-", "#", " ", "\n")) or not text.endswith(".\n"):
        messages.append(f"{name}: expected sentences, without a bullet, and a newline at the end")
    if any(len(line) > _MAX_COLUMNS for line in text.splitlines()):
        messages.append(f"{name}: expected at most {_MAX_COLUMNS} columns")
    return messages


def test_fragments_are_well_formed() -> None:
    files = [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    assert not [
        mistake for path in sorted(files) for mistake in mistakes(path.name, path.read_text())
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gather.language.added.md", "`tl.gather`.\n", None),
        ("gather.added.md", "`tl.gather`.\n", "expected SUBJECT.AREA.KIND"),
        ("gather.language.new.md", "`tl.gather`.\n", "expected SUBJECT.AREA.KIND"),
        ("gather.language.added.md", "- `tl.gather`.\n", "without a bullet"),
        ("gather.language.added.md", "", "expected sentences"),
        ("gather.language.added.md", "`tl.gather`.", "newline at the end"),
        ("gather.language.added.md", "x" * 120 + ".\n", "at most 120 columns"),
    ],
)
def test_mistakes(name: str, text: str, message: str | None) -> None:
    messages = mistakes(name, text)
    assert (message is None) == (not messages)
    assert message is None or message in messages[0]
