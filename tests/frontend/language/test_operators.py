from __future__ import annotations

import pytest

from tests.frontend.conftest import Sources

LOADED = "x = tl.load(p + tl.arange(0, 16))\ny = tl.load(q + tl.arange(0, 16))\n"


def result(sources: Sources, expression: str, p: str = "fp32", q: str = "fp32") -> str:
    """Return the IR of storing an expression of two loaded tiles `x` and `y`."""
    body = f"{LOADED}tl.static_print(({expression}).dtype)"
    return sources.body(body, {"p": f"*{p}", "q": f"*{q}"}, params="p, q")


def printed(sources: Sources, expression: str, p: str = "fp32", q: str = "fp32") -> str:
    text = "@triton.jit\ndef k(p, q):\n    x = tl.load(p)\n    y = tl.load(q)\n"
    text += f"    tl.static_print(({expression}).dtype)\n"
    return sources.translate(text, {"p": f"*{p}", "q": f"*{q}"}).prints[0]


@pytest.mark.parametrize(
    ("expression", "p", "q", "dtype"),
    [
        ("x + y", "fp16", "bf16", "fp16"),
        ("x + y", "i32", "bf16", "fp32"),
        ("x + 1", "fp16", "fp16", "fp16"),
        ("x * 0.5", "bf16", "bf16", "bf16"),
        ("x * 0.5", "i32", "i32", "fp32"),
        ("x / y", "fp16", "fp16", "fp32"),
        ("x / y", "i32", "i64", "fp32"),
        ("x // y", "i32", "i64", "int64"),
        ("x % y", "fp16", "fp16", "fp32"),
        ("x < y", "fp16", "fp32", "int1"),
        ("x << 3", "u8", "u8", "uint8"),
        ("x & y", "i8", "u8", "uint8"),
        ("1 / x", "fp32", "fp32", "fp32"),
        ("-x", "u32", "u32", "uint32"),
        ("~(x > y)", "fp32", "fp32", "int1"),
    ],
)
def test_result_types(sources: Sources, expression: str, p: str, q: str, dtype: str) -> None:
    assert printed(sources, expression, p, q) == dtype


def test_a_constant_beside_a_tile_is_made_as_a_tile(sources: Sources) -> None:
    text = result(sources, "x * 2")
    assert "arith.constant {value = 2.0, type = tile<16xfp32>}" in text
    assert "splat" not in text.split("arith.constant {value = 2.0")[1]


def test_shapes_broadcast_with_leading_axes(sources: Sources) -> None:
    text = result(sources, "x + y[:, None]")
    assert "tile.expand_dims" in text
    assert "arith.add" in text
    assert "tile<16x16xfp32>" in text


def test_shift_right_keeps_the_type(sources: Sources) -> None:
    assert "arith.shr" in result(sources, "x >> 1", p="i32")
    assert "tile<16xu32>" in result(sources, "x >> 1", p="u32").split("arith.shr")[1]


def test_the_left_operand_decides_how_to_shift_right(sources: Sources) -> None:
    def shifted(left: str, right: str) -> str:
        text = sources.body("a = p >> q", {"p": left, "q": right}, params="p, q")
        return text.split("arith.shr")[1].splitlines()[0].rpartition(": ")[2]

    assert shifted("i32", "u32") == "i32"
    assert shifted("i8", "u64") == "i64"
    assert shifted("u8", "i32") == "u32"
    assert shifted("u32", "i64") == "u64"
    text = sources.body("a = 7 >> p", {"p": "u32"}, params="p")
    assert text.split("arith.shr")[1].splitlines()[0].endswith(": u32")


def test_a_shift_by_too_much_is_remarked_upon(sources: Sources) -> None:
    text = "@triton.jit\ndef k(n):\n    x = n << 32\n    y = n << 31\n"
    translation = sources.translate(text, {"n": "i32"})
    assert len(translation.remarks) == 1
    assert translation.remarks[0].endswith("5:9: shifting int32 by 32 is undefined: it has 32 bits")


def test_pointer_moves_by_unsigned_offsets_without_turning_negative(sources: Sources) -> None:
    text = sources.body("tl.store(p + n, 1.0)", {"p": "*fp32", "n": "u32"}, params="p, n")
    assert "arith.cast(%n) {dtype = i64} : i64" in text


def test_pointer_moves_back(sources: Sources) -> None:
    text = sources.body("tl.store(p - 1, 1.0)", {"p": "*fp32"}, params="p")
    assert "arith.constant {value = -1, type = i32}" in text


@pytest.mark.parametrize(
    ("body", "signature", "message"),
    [
        ("p + p", {"p": "*fp32"}, "cannot add two pointers"),
        ("p - p", {"p": "*fp32"}, "cannot subtract two pointers"),
        ("p + 1.5", {"p": "*fp32"}, "moved by an integer"),
        ("p * 2", {"p": "*fp32"}, "does not take a pointer"),
        ("p // p", {"p": "fp32"}, "`//` is for integers"),
        ("p & 1.0", {"p": "fp32"}, "integers and truth values"),
        ("p ** 2", {"p": "fp32"}, "`**` is for constants only"),
        ("~p", {"p": "fp32"}, "`~` is for integers"),
        ("not p", {"p": "i32"}, "takes truth values"),
        ("p // q", {"p": "i32", "q": "u32"}, "one is signed and the other is not"),
        ("p + q", {"p": "*fp8e5", "q": "i32"}, None),
        ("p + 4294967296", {"p": "i32"}, "out of range for int32"),
        ("1 // 0", {"p": "i32"}, "modulo by zero"),
        ("10 ** 10 ** 10", {"p": "i32"}, "too large"),
        ("1 << 100000", {"p": "i32"}, "too large"),
        ("(1, 2) * 1000000", {"p": "i32"}, "too large"),
        ("p + 'a'", {"p": "i32"}, "expected a number or a tile"),
        ("p + (1, 2)", {"p": "i32"}, "take an item of the tuple"),
        ("p + 2**64", {"p": "i32"}, "out of range"),
        ("p + (-1)", {"p": "u32"}, "out of range for uint32"),
        ("tl.arange(0, 16) + tl.arange(0, 32)", {"p": "i32"}, "axis 0 has 16 and 32"),
    ],
)
def test_mistakes(
    sources: Sources, body: str, signature: dict[str, str], message: str | None
) -> None:
    params = ", ".join(signature)
    full = {"p": "i32", **signature} if "p" not in signature else signature
    if message is None:
        sources.body(body, full, params=params)
        return
    error = sources.body_error(f"a = {body}", full, params=params)
    assert message in str(error)
    assert error.loc is not None
    assert error.loc.line == 5


@pytest.mark.parametrize(
    ("method", "operator"),
    [
        ("x.__lshift__(4)", "x << 4"),
        ("x.__rshift__(y)", "x >> y"),
        ("x.__rsub__(1)", "1 - x"),
        ("x.__and__(0xF).__or__(y)", "(x & 0xF) | y"),
        ("x.__lt__(y)", "x < y"),
        ("x.__neg__()", "-x"),
        ("x.__invert__()", "~x"),
    ],
)
def test_operators_as_methods(sources: Sources, method: str, operator: str) -> None:
    translation, expected = (
        sources.body(
            f"{LOADED}tl.store(p + tl.arange(0, 16), ({expression}).to(tl.int32))",
            {"p": "*i32", "q": "*i32"},
            params="p, q",
        )
        for expression in (method, operator)
    )
    assert translation == expected
