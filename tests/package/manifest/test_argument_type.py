"""The grammar of argument types."""

from __future__ import annotations

import pytest

from aotc.ir.diagnostics import ManifestError
from aotc.ir.types import SCALARS
from aotc.package.manifest.argument_type import NONE, ArgumentType, parse, parse_alternatives


@pytest.mark.parametrize("dtype", SCALARS)
def test_every_scalar_is_an_argument_and_a_pointee(dtype: str) -> None:
    assert parse(dtype) == ArgumentType("scalar", dtype)
    assert parse(f"*{dtype}:16") == ArgumentType("pointer", dtype, 16)
    assert parse(f"*{dtype}").concrete({}, {}) == f"*{dtype}"


@pytest.mark.parametrize(
    ("text", "concrete", "generic"),
    [
        ("*T:16", "*bf16:16", "*bf16"),
        ("*T:16?", "*bf16:16", "*bf16"),
        ("*T:16 noalias", "*bf16:16 noalias", "*bf16 noalias"),
        ("*T:16? noalias", "*bf16:16 noalias", "*bf16 noalias"),
        ("*T noalias", "*bf16 noalias", "*bf16 noalias"),
        ("T", "bf16", "bf16"),
        ("i32:16?", "i32:16", "i32"),
        ("i32=1", "i32=1", "i32=1"),
        ("i8 = -128", "i8=-128", "i8=-128"),
        ("i64= 0x10", "i64=16", "i64=16"),
        ("*T : 16? noalias", "*bf16:16 noalias", "*bf16 noalias"),
        ("i1=true", "i1=1", "i1=1"),
        ("u64=0xffffffffffffffff", "u64=18446744073709551615", "u64=18446744073709551615"),
        ("fp32=1e-5", "fp32=1e-05", "fp32=1e-05"),
        ("fp32=1", "fp32=1.0", "fp32=1.0"),
        (
            "tensordesc< T [BM, 64] , nan >",
            "tensordesc<bf16[128,64],nan>",
            "tensordesc<bf16[128,64],nan>",
        ),
        ("tensordesc<T[BM, 64]>", "tensordesc<bf16[128,64]>", "tensordesc<bf16[128,64]>"),
        (
            "tensordesc<T[BM // 2, cdiv(BM, 48), max(BM, 3), 2*8]>",
            "tensordesc<bf16[64,3,128,16]>",
            "tensordesc<bf16[64,3,128,16]>",
        ),
    ],
)
def test_concrete(text: str, concrete: str, generic: str) -> None:
    parsed = parse(text, ("T",))
    assert parsed.concrete({"T": "bf16"}, {"BM": 128}) == concrete
    assert parsed.without_promise().concrete({"T": "bf16"}, {"BM": 128}) == generic


def test_optional_is_marked() -> None:
    assert parse("i32:16?").is_optional
    assert not parse("i32:16").is_optional


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected an argument type, got ''"),
        ("**fp32", "expected an argument type"),
        ("i32:", "expected an argument type"),
        ("i32?", "expected an argument type"),
        ("i32 =", "expected an argument type"),
        ("i32 1", "expected an argument type"),
        ("i32:12", "expected a power of two from 2 to 4096 after ':'"),
        ("fp32:16", "expected an integer or a pointer before ':16'"),
        ("i32:16=1", "expected a promise or a fixed value"),
        ("*fp32=0", "expected a scalar dtype before '='"),
        ("T=1", "expected a scalar dtype before '='"),
        ("i8=128", "expected -128 to 127 for i8, got 128"),
        ("u8=-1", "expected 0 to 255 for u8, got -1"),
        ("i1=2", "expected 0 to 1 for i1, got 2"),
        ("i32=1.5", "expected an integer for i32, got '1.5'"),
        ("fp32=one", "expected a number for fp32, got 'one'"),
        ("float16", "expected a dtype or a type variable, got 'float16'"),
        ("tensordesc<bf16[8],inf>", "expected an argument type"),
        ("tensordesc<bf16>", "expected an argument type"),
        ("tensordesc<bf16[]>", "expected block extents"),
        ("tensordesc<bf16[0]>", "expected block extents"),
        ("tensordesc<bf16[8-8]>", "expected block extents"),
        ("tensordesc<bf16[8,]>", "expected block extents"),
        ("tensordesc<bf16[x.shape[0]]>", "expected an argument type"),
        ("tensordesc<bf16[1,1,1,1,1,1]>", "expected 1 to 5 block extents, got 6"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(text, ("T",))
    assert message in caught.value.message


def test_a_block_extent_is_positive() -> None:
    parsed = parse("tensordesc<bf16[BM // 2, BM]>")
    assert parsed.block_names == ("BM",)
    with pytest.raises(ManifestError, match="positive block extent, BM // 2 is 0 for BM = 1"):
        parsed.concrete({}, {"BM": 1})
    with pytest.raises(ManifestError, match="`BM` has no value"):
        parsed.concrete({}, {"BM": 0.5, "BN": 4})


def test_nearest_dtype_is_offered() -> None:
    with pytest.raises(ManifestError) as caught:
        parse("*bp16")
    assert caught.value.remedy in ("did you mean 'bf16'?", "did you mean 'fp16'?")


def test_none() -> None:
    assert parse("none") is NONE
    assert NONE.concrete({}, {}) == "none"
    assert not NONE.is_passed
    assert not parse("fp32=1").is_passed
    assert not parse("i32=1").is_passed
    assert parse("i32:16").is_passed


@pytest.mark.parametrize("texts", [["*T:16", "none"], ["none", "*T:16"]])
def test_a_pointer_or_none(texts: list[str]) -> None:
    parsed = parse_alternatives(texts, ("T",))
    assert parsed == ArgumentType("pointer", "T", 16, may_be_none=True)
    assert parsed.concrete({"T": "fp16"}, {}) == "*fp16:16"


@pytest.mark.parametrize(
    "texts",
    [[], ["*fp16"], ["none"], ["none", "none"], ["i32", "none"], ["*fp16", "*fp32", "none"]],
)
def test_other_alternatives_are_refused(texts: list[str]) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_alternatives(texts)
    assert caught.value.message == f'expected a pointer and "none" as alternatives, got {texts}'
    assert 'with the type "none"' in caught.value.remedy


@pytest.mark.parametrize("text", ["i32 noalias", "i32:16 noalias", "tensordesc<fp16[16]> noalias"])
def test_only_a_pointer_may_be_promised_to_alias_nothing(text: str) -> None:
    with pytest.raises(ManifestError, match="expected a pointer before 'noalias'"):
        parse(text)
