"""Bytecode computes the same as the tree, within the format's limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.expression import (
    INT64_MAX,
    INT64_MIN,
    Binary,
    Expression,
    ExpressionError,
    Extent,
    Integer,
    Name,
    evaluate,
    parse,
)
from aotc.package.archive.bytecode import MAX_STACK, Opcode, TensorArgument, encode, run
from tests.support.expressions import expressions

_NUMBERS = st.one_of(
    st.integers(-5, 5),
    st.sampled_from([INT64_MIN, INT64_MAX, 127, 128, -128, -129, 2**31, 2**31 - 1, -(2**31) - 1]),
    st.integers(INT64_MIN, INT64_MAX),
)
_PARAMS = {"x": 0, "a": 1, "b": 300}
_EXPRESSIONS = expressions(
    st.one_of(
        st.builds(Integer, _NUMBERS),
        st.builds(Name, st.sampled_from(list(_PARAMS))),
        st.builds(Extent, st.just("x"), st.sampled_from(["shape", "strides"]), st.integers(0, 1)),
    ),
    12,
)


@given(_EXPRESSIONS, st.tuples(*[_NUMBERS] * 7))
def test_bytecode_computes_what_the_tree_computes(
    root: Expression, numbers: tuple[int, ...]
) -> None:
    address, a, b, *extents = numbers
    tensor = TensorArgument(address, tuple(extents[:2]), tuple(extents[2:]))
    arguments: list[int | TensorArgument] = [tensor, a, *[0] * 298, b]
    values = {"x": address, "a": a, "b": b}
    for dim in range(2):
        values[f"x.shape[{dim}]"] = tensor.shape[dim]
        values[f"x.strides[{dim}]"] = tensor.strides[dim]
    code = encode(root, _PARAMS)
    assert 1 <= code.stack_depth <= 12
    try:
        expected = evaluate(root, values)
    except ExpressionError:
        with pytest.raises(ExpressionError):
            run(code.code, arguments)
    else:
        assert run(code.code, arguments) == expected


@pytest.mark.parametrize(
    ("text", "code", "depth"),
    [
        ("5", "01 05", 1),
        ("-128", "01 80", 1),
        ("128", "02 80 00 00 00", 1),
        ("-2147483649", "03 ff ff ff 7f ff ff ff ff", 1),
        ("cdiv(a, 4) * b", "04 01 00 01 04 17 04 2c 01 12", 2),
        ("a + (b + 1)", "04 01 00 04 2c 01 01 01 10 10", 3),
        ("not -a", "04 01 00 18 2a", 1),
        ("x.shape[1] % x.strides[0]", "05 00 00 01 06 00 00 00 14", 2),
        ("x and x <= 1", "04 00 00 04 00 00 01 01 23 28", 3),
    ],
)
def test_encoding_is_pinned(text: str, code: str, depth: int) -> None:
    encoded = encode(parse(text), _PARAMS)
    assert encoded.code.hex(" ") == code
    assert encoded.stack_depth == depth


def test_opcodes_are_pinned() -> None:
    numbers = [*range(1, 7), *range(0x10, 0x19), *range(0x20, 0x26), 0x28, 0x29, 0x2A]
    assert [opcode.value for opcode in Opcode] == numbers


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ExpressionError, match="`c` is not an argument") as error:
        encode(parse("a + c"), _PARAMS)
    assert error.value.col == 4


def test_stack_limit_is_exact() -> None:
    def nested(levels: int) -> Expression:
        root: Expression = Name("a")
        for _ in range(levels - 1):
            root = Binary("+", Name("a"), root)
        return root

    code = encode(nested(MAX_STACK), _PARAMS)
    assert code.stack_depth == MAX_STACK
    assert run(code.code, [0, 1]) == MAX_STACK
    with pytest.raises(ExpressionError, match="33 intermediate values"):
        encode(nested(MAX_STACK + 1), _PARAMS)


def test_an_address_beyond_int64_is_an_error() -> None:
    with pytest.raises(ExpressionError, match="64 bits"):
        run(encode(parse("a"), _PARAMS).code, [0, 1 << 63])


@pytest.mark.parametrize("code", [b"\x00", b"\x07", b"\x2b\x01\x01", b"\xff"])
def test_unknown_opcodes_do_not_run(code: bytes) -> None:
    with pytest.raises(ValueError, match="Opcode"):
        run(code, [])
