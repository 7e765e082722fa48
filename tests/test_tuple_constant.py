"""Tuples of constants: their text, and the tuple a text means."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from aotc.tuple_constant import tuple_of, tuple_text


class _Shape(NamedTuple):
    rows: int
    cols: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((16, 32), "(16, 32)"),
        ((1,), "(1,)"),
        ((), "()"),
        ((True, 1, 1.0, "relu", None), "(True, 1, 1.0, 'relu', None)"),
        (((1, 2), (3,)), "((1, 2), (3,))"),
        (_Shape(4, 8), "(4, 8)"),
    ],
)
def test_a_tuple_and_its_text(value: tuple[Any, ...], text: str) -> None:
    assert tuple_text(value) == text
    back = tuple_of(text)
    assert back is not None
    assert repr(back) == text


@pytest.mark.parametrize("value", [16, "(16, 32)", [16, 32], (object(),), None])
def test_other_values_have_no_text(value: object) -> None:
    assert tuple_text(value) == ""


@pytest.mark.parametrize("text", ["fp16", "(16)", "(x, y)", "(1, 2", "([1],)", "(1).bit_length()"])
def test_other_texts_are_no_tuples(text: str) -> None:
    assert tuple_of(text) is None
