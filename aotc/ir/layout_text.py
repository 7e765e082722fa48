"""The one-line text of a layout: `#ll<register=[[0,1]] lane=[[1,0]] : [2,2]>`.

Inputs come in order, each with the coordinates of its bases, then the extents of the outputs: bare
when they are the axes `dim0`, `dim1`, … of a tile, named otherwise (`: [bank=32,word=8]`). These
functions work on plain tuples and do not import `LinearLayout`.

Invariant: one layout has one text, and parsing it gives the same dimensions, bases and extents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NAME = r"[A-Za-z_][A-Za-z_0-9]*"
_COORDS = r"\[(?:[0-9]+(?:,[0-9]+)*)?\]"
_OUT = rf"(?:{_NAME}=)?[0-9]+"
_LAYOUT = re.compile(
    rf"#ll<(?P<ins>(?:{_NAME}=\[(?:{_COORDS}(?:,{_COORDS})*)?\] )*): "
    rf"\[(?P<outs>(?:{_OUT}(?:,{_OUT})*)?)\]>"
)
_IN_DIM = re.compile(rf"({_NAME})=\[((?:{_COORDS},?)*)\] ")


def format_layout(
    bases: Sequence[tuple[str, Sequence[tuple[int, ...]]]], sizes: Sequence[tuple[str, int]]
) -> str:
    """Return the text of a layout with these input bases and output extents."""
    ins = "".join(
        f"{name}=[{','.join(f'[{_commas(coords)}]' for coords in columns)}] "
        for name, columns in bases
    )
    positional = all(name == f"dim{axis}" for axis, (name, _) in enumerate(sizes))
    outs = _commas(size if positional else f"{name}={size}" for name, size in sizes)
    return f"#ll<{ins}: [{outs}]>"


def parse_layout(text: str) -> tuple[dict[str, list[list[int]]], dict[str, int]]:
    """Return the input bases and output extents in `text`.

    Raises: ValueError when `text` is not of this form or names a dimension twice.
    """
    match = _LAYOUT.fullmatch(text)
    if match is None:
        raise ValueError(
            f"expected a layout like '#ll<register=[[0,1]] lane=[[1,0]] : [2,2]>', got {text!r}"
        )
    bases: dict[str, list[list[int]]] = {}
    for name, body in _IN_DIM.findall(match["ins"]):
        if name in bases:
            raise ValueError(f"input {name} stands twice in {text!r}")
        bases[name] = [_ints(entry[1:-1]) for entry in re.findall(_COORDS, body)]
    sizes: dict[str, int] = {}
    parts = match["outs"].split(",") if match["outs"] else []
    if len({"=" in part for part in parts}) > 1:
        raise ValueError(f"name all outputs or none in {text!r}")
    for axis, part in enumerate(parts):
        name, _, size = part.rpartition("=")
        name = name or f"dim{axis}"
        if name in sizes:
            raise ValueError(f"output {name} stands twice in {text!r}")
        sizes[name] = int(size)
    return bases, sizes


def _commas(items: Iterable[object]) -> str:
    return ",".join(map(str, items))


def _ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]
