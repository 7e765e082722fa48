"""PTX and tile IR in one text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aotc.package.archive.stored_ptx import join, split

_LINES = st.lists(st.text(st.characters(blacklist_characters="\n", blacklist_categories=["Cs"])))
_TEXTS = _LINES.map(lambda lines: "".join(f"{line}\n" for line in lines))


@given(_TEXTS.filter(bool), _TEXTS.filter(lambda text: "---- tile IR" not in text))
def test_what_is_joined_is_split_again(tile_ir: str, ptx: str) -> None:
    assert split(join(tile_ir, ptx)) == (tile_ir, ptx)


def test_it_is_still_ptx_and_no_line_moves() -> None:
    stored = join("kernel @k() {\n}\n", ".version 8.8\nret;\n").decode().splitlines()
    assert stored[:2] == [".version 8.8", "ret;"]
    assert all(line.startswith("//") for line in stored[2:])


def test_ptx_without_tile_ir() -> None:
    assert split(b"ret;\n") == ("", "ret;\n")
