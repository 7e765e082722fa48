"""The expression language: syntax, positions of errors, and laws between its forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.expression import (
    INT64_MAX,
    INT64_MIN,
    MAX_TREE_DEPTH,
    Expression,
    ExpressionError,
    Extent,
    Integer,
    Name,
    conjuncts,
    evaluate,
    fold,
    free_names,
    parse,
    settle,
    to_text,
)
from tests.support.expressions import expressions

_INT64 = st.integers(INT64_MIN, INT64_MAX)
_NUMBERS = st.one_of(st.integers(-5, 5), st.sampled_from([INT64_MIN, INT64_MAX]), _INT64)
_NAMES = ("a", "b", "n_cols", "BLOCK")

_LEAVES: st.SearchStrategy[Expression] = st.one_of(
    st.builds(Integer, _NUMBERS),
    st.builds(Name, st.sampled_from(_NAMES)),
    st.builds(Extent, st.just("x"), st.sampled_from(["shape", "strides"]), st.integers(0, 1)),
)
_EXPRESSIONS = expressions(_LEAVES, 12)
_KEYS = (*_NAMES, "x.shape[0]", "x.shape[1]", "x.strides[0]", "x.strides[1]")
environments = st.fixed_dictionaries(dict.fromkeys(_KEYS, _NUMBERS))


def outcome(compute: object, *args: object) -> int | str:
    """Return a result, or None without one."""
    try:
        return compute(*args)  # type: ignore[operator]
    except ExpressionError:
        return "error"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("cdiv(n, 4)", 3),
        ("cdiv(-9, 4)", -2),
        ("-9 // 4", -3),
        ("9 // -4", -3),
        ("-9 % 4", 3),
        ("9 % -4", -3),
        ("1 + 2 * 3 - 4", 3),
        ("2 - 3 - 4", -5),
        ("100 // 10 // 5", 2),
        ("min(n, 3, 7) + max(1, n)", 12),
        ("not 0 and 2", 1),
        ("0 or 0", 0),
        ("not n == 9", 0),
        ("(n < 10) + (n > 10)", 1),
        ("- -n", 9),
        ("-(9223372036854775807) - 1", INT64_MIN),
        ("-9223372036854775808", INT64_MIN),
        ("true and not false", 1),
        ("x.shape[0] * x.strides[1]", 35),
    ],
)
def test_evaluates(text: str, value: int) -> None:
    values = {"n": 9, "x.shape[0]": 5, "x.strides[1]": 7}
    assert evaluate(parse(text), values) == value


@pytest.mark.parametrize(
    ("text", "col", "message"),
    [
        ("", 0, "the end"),
        ("a +", 3, "the end"),
        ("a b", 2, "`b`"),
        ("(a", 2, "expected `)`"),
        ("1.5", 0, "`1.5`"),
        ("a @ b", 2, "`@`"),
        ("a ** 2", 2, "power"),
        ("a << 2", 2, "shifts"),
        ("a / 2", 2, "cdiv"),
        ("a = 2", 2, "`==`"),
        ("a < b < c", 6, "chain"),
        ("a + not b", 4, "parentheses"),
        ("ceil(a)", 0, "min, max, cdiv"),
        ("cdiv(a)", 0, "two arguments, got 1"),
        ("1 + max(a)", 4, "at least two"),
        ("min", 3, "expected `(`"),
        ("x.size[0]", 2, "`shape` or `strides`"),
        ("x.shape[5]", 8, "dimension"),
        ("x.shape[a]", 8, "dimension"),
        ("9223372036854775808", 0, "64 bits"),
        ("9" * 900, 0, "64 bits"),
        ("and", 0, "`and`"),
    ],
)
def test_error_points_at_the_column(text: str, col: int, message: str) -> None:
    with pytest.raises(ExpressionError) as error:
        parse(text)
    assert error.value.col == col
    assert message in error.value.message


@pytest.mark.parametrize("text", ["(" * 500 + "a" + ")" * 500, "-" * 500 + "a", "a+" * 300 + "a"])
def test_deep_text_is_refused_not_recursed(text: str) -> None:
    with pytest.raises(ExpressionError, match=f"more than {MAX_TREE_DEPTH} levels"):
        parse(text)


def test_depth_limit_is_exact() -> None:
    terms = MAX_TREE_DEPTH  # a chain of n terms is n levels deep
    assert evaluate(parse("+".join("a" * terms)), {"a": 1}) == terms
    with pytest.raises(ExpressionError):
        parse("+".join("a" * (terms + 1)))


def test_long_text_is_refused() -> None:
    assert parse("a" * 1024) == Name("a" * 1024)
    with pytest.raises(ExpressionError, match="1024 bytes"):
        parse("a" * 1025)


@given(st.text(alphabet="ab019 ()+-*/%<>=!,.[]nortadmixcvshpe\t\n", max_size=40))
def test_any_text_parses_or_has_a_column(text: str) -> None:
    col = 0
    try:
        root = parse(text)
    except ExpressionError as error:
        col = error.col
    else:
        assert parse(to_text(root)) == root
    assert 0 <= col <= len(text)


@given(_EXPRESSIONS)
def test_printed_text_parses_to_the_same_tree(root: Expression) -> None:
    assert parse(to_text(root)) == root


@given(_EXPRESSIONS, environments, st.sets(st.sampled_from(_NAMES)))
def test_folding_some_names_changes_no_result(
    root: Expression, values: dict[str, int], folded_names: set[str]
) -> None:
    constants = {name: values[name] for name in _NAMES if name in folded_names}
    whole = outcome(evaluate, root, values)
    folded = outcome(fold, root, constants)
    if isinstance(folded, str):
        assert whole == "error"
    else:
        assert not set(free_names(folded)) & folded_names
        assert outcome(evaluate, folded, values) == whole


def test_fold_computes_what_is_constant() -> None:
    folded = fold(parse("cdiv(n, BLOCK * 2) + x.shape[0]"), {"BLOCK": 64, "FLAG": True})
    assert to_text(folded) == "cdiv(n, 128) + x.shape[0]"
    assert fold(parse("FLAG + 1"), {"FLAG": True}) == Integer(2)


@pytest.mark.parametrize(
    ("text", "col"),
    [("n + 1 // Z", 6), ("n + 1 % Z", 6), ("cdiv(1, Z)", 0), ("BIG + 1", 4), ("-SMALL", 0)],
)
def test_fold_reports_what_would_fail_at_every_launch(text: str, col: int) -> None:
    constants = {"Z": 0, "BIG": INT64_MAX, "SMALL": INT64_MIN}
    with pytest.raises(ExpressionError) as error:
        fold(parse(text), constants)
    assert error.value.col == col


def test_evaluate_names_what_has_no_value() -> None:
    with pytest.raises(ExpressionError, match=r"`y\.shape\[0\]` has no value") as error:
        evaluate(parse("n + y.shape[0]"), {"n": 1})
    assert error.value.col == 4


def test_both_sides_are_evaluated() -> None:
    with pytest.raises(ExpressionError, match="division by zero"):
        evaluate(parse("n != 0 and 8 % n == 0"), {"n": 0})


def test_free_names_have_the_column_of_their_first_use() -> None:
    assert free_names(parse("b + cdiv(a, b) * x.shape[0]")) == {"b": 0, "a": 9, "x": 17}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("0 and x", "0"),
        ("x and 0", "0"),
        ("2 and x", "x"),
        ("x or 3", "1"),
        ("0 or x > 1", "x > 1"),
        ("(1 and x > 1) or 0 and y", "x > 1"),
        ("x and y", "x and y"),
        ("x + 0", "x + 0"),
    ],
)
def test_settle_leaves_what_can_matter(text: str, left: str) -> None:
    assert to_text(settle(parse(text))) == left


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a > 0", ["a > 0"]),
        ("a > 0 and b > 0 and (a or b)", ["a > 0", "b > 0", "a or b"]),
        ("a and (b and n_cols) and not (a and b)", ["a", "b", "n_cols", "not (a and b)"]),
        ("a and b or n_cols", ["a and b or n_cols"]),
    ],
)
def test_conjuncts(text: str, parts: list[str]) -> None:
    assert list(map(to_text, conjuncts(parse(text)))) == parts
