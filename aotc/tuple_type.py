"""The type of a tuple argument, and its launch arguments.

    "(i32, i32:16)"                 a tuple; of the argument `shape`, launches pass `shape_0`, `shape_1`
    "(rows: i32, cols: i32:16)"     a named tuple; launches pass `shape_rows`, `shape_cols`
    "(*fp16, (i32, i32))"           tuples nest: `x_0`, `x_1_0`, `x_1_1`
    "(fn: scaled, by: fp32)"        a function of the kernel's file, or "ops.py:scaled"; launches do not pass it
    "()"                            an empty tuple, of which launches pass nothing

Only the brackets are parsed here: each item is the type of one argument, or a function's name.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from aotc.ir.types import SCALARS

_FIELD = re.compile(r"\s*(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*:\s*(?=[A-Za-z_*(/<])")
_WORD = r"[^\W\d]\w*"
_FUNCTION = re.compile(rf"(?:[^:]+\.py:|<[^:<>]+>:)?{_WORD}(?:\.(?:<locals>\.)?{_WORD})*")
_DTYPE = re.compile(r"(?:i|u|int|uint|fp|bf|float)\d+\w*")
_OPENING, _CLOSING = "([<", ")]>"
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class TupleType:
    """The types of a tuple's items; `fields` are their names, empty for a tuple without."""

    items: tuple[str | TupleType, ...]
    fields: tuple[str, ...] = ()

    def leaves(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield the launch arguments of the argument `name`, and their types."""
        for key, item in zip(self.keys(name), self.items, strict=True):
            if isinstance(item, str):
                yield key, item
            else:
                yield from item.leaves(key)

    def keys(self, name: str) -> list[str]:
        """Return the names of the items of the argument `name`."""
        labels = self.fields or tuple(map(str, range(len(self.items))))
        return [f"{name}_{label}" for label in labels]

    def text(self, name: str, types: Mapping[str, str]) -> str:
        """Return the text of the type with the `types` of the launch arguments in place of its own.

        Functions keep their names.
        """
        parts: list[str] = []
        for index, (key, item) in enumerate(zip(self.keys(name), self.items, strict=True)):
            label = f"{self.fields[index]}: " if self.fields else ""
            item_text = types.get(key, item) if isinstance(item, str) else item.text(key, types)
            parts.append(label + item_text)
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def names_function(item: str, types: Container[str]) -> bool:
    """Return whether an item is the name of a function, not one of the `types`.

    A word like a dtype, such as `i23`, is a misspelt dtype.
    """
    is_word = _FUNCTION.fullmatch(item) is not None and _DTYPE.fullmatch(item) is None
    return is_word and item != "none" and item not in types


def is_tuple_type(text: str) -> bool:
    """Return whether a type is meant as a tuple."""
    return text.lstrip().startswith("(")


def parse_tuple_type(text: str) -> TupleType:
    """Parse the type of a tuple. Raises: ValueError with the problem."""
    return _parse(text.strip(), _MAX_DEPTH)


def flattened(signature: Mapping[str, str]) -> dict[str, str]:
    """Return the type of each launch argument of a signature."""
    flat: dict[str, str] = {}
    for name, text in signature.items():
        if is_tuple_type(text):
            leaves = parse_tuple_type(text).leaves(name)
            flat.update(pair for pair in leaves if not names_function(pair[1], SCALARS))
        else:
            flat[name] = text
    return flat


def _parse(text: str, depth: int) -> TupleType:
    if not (text.startswith("(") and text.endswith(")")):
        raise ValueError(f"expected a tuple such as (i32, i32:16), got {text!r}")
    if not depth:
        raise ValueError(f"expected tuples that nest at most {_MAX_DEPTH} deep")
    parts = _split(text[1:-1])
    items: list[str | TupleType] = []
    fields: list[str] = []
    for part in parts:
        named = _FIELD.match(part)
        rest = part[named.end() :].strip() if named else part.strip()
        fields += [named["name"]] if named else []
        if not rest:
            raise ValueError(f"expected a type between the commas of {text}")
        items.append(_parse(rest, depth - 1) if is_tuple_type(rest) else rest)
    if len(fields) not in (0, len(items)):
        raise ValueError(f"expected names for all items of {text} or for none")
    if len(set(fields)) < len(fields):
        raise ValueError(f"expected each name once in {text}")
    return TupleType(tuple(items), tuple(fields))


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets; a final one is not counted."""
    parts = [""]
    depth = 0
    for char in text:
        depth += (char in _OPENING) - (char in _CLOSING)
        if depth < 0:
            raise ValueError(f"expected brackets that match, got ({text})")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    if depth:
        raise ValueError(f"expected brackets that match, got ({text})")
    return parts if parts[-1].strip() else parts[:-1]
