"""Coverage of the compiler's remarks: every decision and fallback of the schedule has a text.

The texts are read from the sources of `aotc/schedule`: each string except docstrings and errors,
with `*` or a name in braces for filled-in parts. A remark usually joins several of them.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aotc.schedule

_WORD = re.compile(r"[a-z]{2,}")
_NUMBER = re.compile(r"\d+")
_PLACE = re.compile(r"^[^ ]*:\d+:\d+: ")
_FILLED_IN = re.compile(r"\*|\{\w+\}")
_LEAST_WORDS = 3


@dataclass(frozen=True, slots=True)
class Text:
    """A text and where it stands."""

    place: str
    text: str

    def pattern(self) -> re.Pattern[str]:
        """Return a pattern for the text in a remark without its numbers."""
        pieces = _FILLED_IN.split(_NUMBER.sub("N", self.text))
        return re.compile(".+?".join(map(re.escape, pieces)), re.DOTALL)


@functools.cache
def texts(folder: Path | None = None) -> tuple[Text, ...]:
    """Return the texts of all sources of a folder, by default the schedule's."""
    root = folder or Path(aotc.schedule.__file__).parent
    return tuple(
        Text(f"{path.relative_to(root)}:{line}", text)
        for path in sorted(root.rglob("*.py"))
        for line, text in sorted(_texts_of(ast.parse(path.read_text())))
    )


def never_seen(seen: Iterable[str], texts: Iterable[Text]) -> list[Text]:
    """Return the texts absent from all remarks."""
    kinds = {without_numbers(remark) for remark in seen}
    return [text for text in texts if not any(map(text.pattern().search, kinds))]


def without_numbers(remark: str) -> str:
    """Return a remark as others of its kind read: without its place and its numbers."""
    return _NUMBER.sub("N", _PLACE.sub("", remark))


def _texts_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    left_out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in ast.walk(node) if part is not node}
        if isinstance(node, ast.Subscript):  # types named before their definition
            left_out |= {id(part) for part in ast.walk(node.slice)}
        if _is_no_remark(node):
            left_out |= {id(part) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        text = _text(node)
        if " " in text and len(_WORD.findall(text)) >= _LEAST_WORDS:
            assert isinstance(node, ast.expr)
            yield node.lineno, text


def _is_no_remark(node: ast.AST) -> bool:
    """Return whether a docstring, an error or an annotation."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        return "error" in name.lower() or name in ("cast", "TypeVar")
    return isinstance(node, ast.Raise | ast.Assert)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "*" for part in node.values]
        return "".join(map(str, parts))
    return ""
