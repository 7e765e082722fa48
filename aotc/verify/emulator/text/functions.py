"""The functions of a module; a call is parsed as an inlined body.

Invariant: a function's body starts at a token of its own text, before or after its callers.
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
    """Return the functions defined in the text; the cursor does not move."""
    before, functions = cursor.position, dict[str, Function]()
    for index, token in enumerate(cursor.tokens):
        if token.text == ".func":
            cursor.position = index + 1
            function = parse_function(cursor)
            if function is not None:
                functions[function.name] = function
    cursor.position = before
    return functions


def parse_function(cursor: Cursor) -> Function | None:
    """Parse a function's head after `.func`; None for a declaration, which is skipped."""
    results = _names(cursor) if cursor.take("(") else ()
    name = cursor.word("a function's name")
    params = _names(cursor) if cursor.take("(") else ()
    while not cursor.take("{"):
        if cursor.take(";"):
            return None
        cursor.next()
    return Function(name, results, params, cursor.position)


def skip_body(cursor: Cursor) -> None:
    """Skip a body, after its opening brace."""
    depth = 1
    while depth:
        text = cursor.next().text
        depth += (text == "{") - (text == "}")


def _names(cursor: Cursor) -> tuple[str, ...]:
    """Return the names in a parameter list, after its parenthesis."""
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
