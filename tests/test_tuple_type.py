"""Types of tuples: brackets, names, and the flattened launch arguments."""

from __future__ import annotations

import pytest

from aotc.tuple_type import TupleType, flattened, is_tuple_type, parse_tuple_type


@pytest.mark.parametrize(
    ("text", "leaves"),
    [
        ("(i32, i32:16)", {"x_0": "i32", "x_1": "i32:16"}),
        ("(i32=1,)", {"x_0": "i32=1"}),
        ("()", {}),
        ("((), i32, (a: ( ),))", {"x_1": "i32"}),
        ("(rows: i32, cols:i32:16)", {"x_rows": "i32", "x_cols": "i32:16"}),
        ("(*T:16?, (a: i32, b: (none,)))", {"x_0": "*T:16?", "x_1_a": "i32", "x_1_b_0": "none"}),
        (
            "(tensordesc<bf16[64, max(A, B)],nan>, i8)",
            {"x_0": "tensordesc<bf16[64, max(A, B)],nan>", "x_1": "i8"},
        ),
    ],
)
def test_leaves(text: str, leaves: dict[str, str]) -> None:
    tuple_type = parse_tuple_type(text)
    assert dict(tuple_type.leaves("x")) == leaves
    assert parse_tuple_type(tuple_type.text("x", leaves)) == tuple_type
    assert flattened({"a": "i32", "x": text}) == {"a": "i32", **leaves}


def test_names() -> None:
    assert parse_tuple_type("(n: i32,)") == TupleType(("i32",), ("n",))
    assert is_tuple_type(" (")
    assert not is_tuple_type("i32")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(,)", "a type between the commas"),
        ("(i32, , i32)", "a type between the commas"),
        ("(i32", "expected a tuple such as"),
        ("(i32) x", "expected a tuple such as"),
        ("(i32, (i32)", "brackets that match"),
        ("(i32)), (i32)", "brackets that match"),
        ("(a: i32, i32)", "names for all items"),
        ("(a: i32, a: i32)", "each name once"),
        ("(" * 9 + "i32" + ")" * 9, "nest at most 8 deep"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_tuple_type(text)
