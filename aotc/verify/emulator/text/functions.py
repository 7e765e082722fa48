"""The functions of a module; a call is parsed as the function's body.

Invariant: a function's body begins at a token of its own text, whether it stands before or after
its callers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aotc.verify.emulator.text.tokens import Cursor


@dataclass(frozen=True, slots=True)
class Function:
    """Hold the names of a function's results and parameters, and the token after its brace."""

    name: str
    results: tuple[str, ...]
    params: tuple[str, ...]
    start: int


def find_functions(cursor: Cursor) -> Mapping[str, Function]:
    """Return the functions that the text defines; the cursor stays where it is."""
    before, found = cursor.at, dict[str, Function]()
    for at, token in enumerate(cursor.tokens):
        if token.text == ".func":
            cursor.at = at + 1
            function = parse_function(cursor)
            if function is not None:
                found[function.name] = function
    cursor.at = before
    return found


def parse_function(cursor: Cursor) -> Function | None:
    """Parse a function's head from behind `.func` on; None for a declaration, which is stepped over."""
    results = _names(cursor) if cursor.take("(") else ()
    name = cursor.word("a function's name")
    params = _names(cursor) if cursor.take("(") else ()
    while not cursor.take("{"):
        if cursor.take(";"):
            return None
        cursor.next()
    return Function(name, results, params, cursor.at)


def skip_body(cursor: Cursor) -> None:
    """Step over a body from behind its brace on."""
    depth = 1
    while depth:
        text = cursor.next().text
        depth += (text == "{") - (text == "}")


def _names(cursor: Cursor) -> tuple[str, ...]:
    """Return the names in a list of parameters, from behind its parenthesis on."""
    return tuple(_each_name(cursor))


def _each_name(cursor: Cursor) -> Iterator[str]:
    while not cursor.take(")"):
        name = ""
        while cursor.peek() not in (",", ")"):
            token = cursor.next()
            if token.kind == "word" and not token.text.startswith("."):
                name = token.text
        cursor.take(",")
        yield name
