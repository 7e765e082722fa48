"""The position scanner, against tomli on the same documents."""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import Any

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from aotc.package.manifest.toml_positions import KeyPath, Positions, scan


def _paths(data: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    if path:
        yield path
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _paths(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _paths(value, (*path, index))


def _at(data: Any, path: KeyPath) -> Any:
    for key in path:
        data = data[key]
    return data


def _check(text: str) -> None:
    data = tomli.loads(text)
    positions = scan(text)
    assert set(positions.entries) == set(_paths(data))
    for path, entry in positions.entries.items():
        has_one_span = (entry.key_start, entry.key_end) == (entry.value_start, entry.value_end)
        if has_one_span and (isinstance(path[-1], str) or isinstance(_at(data, path), dict)):
            continue  # a header, or a prefix of a dotted key: no value text of its own
        raw = positions.text[entry.value_start : entry.value_end]
        assert tomli.loads(f"v = {raw}")["v"] == _at(data, path)
        if isinstance(path[-1], str):
            key = positions.text[entry.key_start : entry.key_end]
            assert tomli.loads(f"{key} = 0") == {path[-1]: 0}


_BARE = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=4)
_BASIC = st.text(st.sampled_from("ab #.'[]{}=,é"), max_size=5).map(lambda s: f'"{s}"')
_ESCAPED = st.sampled_from([r'"\""', r'"\\"', r'"a\tb"', r'"A"', "'\"'", "'#'", "''"])
_KEYS = st.lists(st.one_of(_BARE, _BASIC, _ESCAPED), min_size=1, max_size=3).map(" . ".join)
_MULTI = st.sampled_from(
    [
        '"""a\nb"""',
        "'''x\n\n# y'''",
        '"""q"""""',
        "'''l''''",
        '"""\\\n  k"""',
        '"""\\""""',
        "''''''",
    ]
)
_SCALARS = st.one_of(
    st.integers(-(2**40), 2**40).map(str),
    st.sampled_from(["true", "false", "1.5", "-0.0", "1e9", "0xff", "1_000"]),
    st.sampled_from(["1979-05-27", "1979-05-27 07:32:00", "07:32:00.5"]),
    _BASIC,
    _ESCAPED,
    _MULTI,
)
_BLANKS = st.sampled_from(["", " ", "\n", " # ], } x\n", "\t\n  "])


@st.composite
def _arrays(draw: st.DrawFn, elements: st.SearchStrategy[str]) -> str:
    items = draw(st.lists(st.tuples(_BLANKS, elements, _BLANKS), max_size=3))
    body = ",".join("".join(item) for item in items)
    comma = "," if items and draw(st.booleans()) else ""
    return f"[{body}{comma}{draw(_BLANKS)}]"


@st.composite
def _inline(draw: st.DrawFn, elements: st.SearchStrategy[str]) -> str:
    pairs = draw(st.lists(st.tuples(_KEYS, elements), max_size=3))
    return "{ " + ", ".join(f"{key} = {value}" for key, value in pairs) + " }"


_VALUES = st.recursive(_SCALARS, lambda inner: _arrays(inner) | _inline(inner), max_leaves=5)
_LINES = st.one_of(
    st.tuples(_KEYS, _VALUES).map(lambda pair: f"{pair[0]} = {pair[1]}"),
    _KEYS.map(lambda key: f"[ {key} ]"),
    _KEYS.map(lambda key: f"[[{key}]] # [[no]]"),
    st.sampled_from(["", "# comment = 1", "  "]),
)


@given(st.lists(_LINES, max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_finds_what_tomli_finds(lines: list[str], newline: str) -> None:
    # Leave out lines that clash with earlier ones (a key twice, a table over a value), so that most
    # drawn documents are valid and large.
    kept_lines: list[str] = []
    for line in lines:
        try:
            tomli.loads(newline.join([*kept_lines, line]))
        except tomli.TOMLDecodeError:
            continue
        kept_lines.append(line)
    _check(newline.join(kept_lines))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment",
        "a = 1",
        "a.b.c = 1\na.b.d = 2",
        "[a]\n[a.b]\nc = 1\n[d]",
        "[a.b]\nc = 1\n[a]\nd = 2",
        "[[k]]\n[k.s]\nx = 1\n[[k]]\n[[k.c]]\ny = 2\n[[k.c]]\ny = 3\n[k.s]\nx = 4",
        "a = [ [1, 2], [], [3, # four\n 4,], ]",
        "a = { b.c = 1, d = { e = [ {f = 1}, {f = 2} ] } }",
        'a = """\nx = 1\n[t]\n"""\nb = 2',
    ],
)
def test_documents(text: str) -> None:
    _check(text)


def _sample() -> Positions:
    text = '[package]\nname = "llm"\n\n[[kernel]]\n  [kernel.signature]\n  x = "*T:16"\n'
    return scan(text, "kernels.toml")


def test_locations_count_lines_from_one() -> None:
    positions = _sample()
    key = positions.key(("kernel", 0, "signature", "x"))
    assert (key.line, key.col, key.end_col, str(key)) == (6, 2, 3, "kernels.toml:6:3")
    value = positions.value(("kernel", 0, "signature", "x"))
    assert (value.line, value.col, value.end_col) == (6, 6, 13)


def test_missing_key_is_placed_at_its_table() -> None:
    positions = _sample()
    assert str(positions.value(("kernel", 0, "source"))) == "kernels.toml:4:3"
    assert str(positions.key(("package", "version"))) == "kernels.toml:1:2"
    assert str(positions.key(("nowhere",))) == "kernels.toml:1:1"


def test_span_of_a_multi_line_value_ends_with_its_first_line() -> None:
    loc = scan('ab = """x\ny"""').value(("ab",))
    assert (loc.line, loc.col, loc.end_col) == (1, 5, 9)
