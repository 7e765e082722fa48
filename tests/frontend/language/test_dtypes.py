from __future__ import annotations

import pytest

from aotc.frontend.language.dtypes import dtype_attribute
from aotc.frontend.values import StaticCall
from aotc.ir.diagnostics import CompileError
from aotc.ir.types import BF16, FP16, I1, I8, SCALARS, U32, PointerType, TileType


@pytest.mark.parametrize(
    ("dtype", "name", "expected"),
    [
        (FP16, "name", "fp16"),
        (I8, "name", "int8"),
        (U32, "primitive_bitwidth", 32),
        (I1, "itemsize", 0),
        (BF16, "fp_mantissa_width", 7),
        (PointerType(FP16), "element_ty", FP16),
        (PointerType(FP16), "scalar", PointerType(FP16)),
        (TileType(FP16, (2, 4)), "element_ty", FP16),
        (TileType(PointerType(I8), (2,)), "element_ty", PointerType(I8)),
        (TileType(FP16, (2, 4)), "shape", (2, 4)),
        (TileType(FP16, (2, 4)), "numel", 8),
    ],
)
def test_attributes(dtype: object, name: str, expected: object) -> None:
    assert dtype_attribute(dtype, name) == expected  # type: ignore[arg-type]


def ask(dtype: object, name: str) -> object:
    question = dtype_attribute(dtype, name)  # type: ignore[arg-type]
    assert isinstance(question, StaticCall)
    return question.call()


@pytest.mark.parametrize("dtype", SCALARS.values(), ids=str)
def test_questions(dtype: object) -> None:
    kind = SCALARS[str(dtype)]
    assert ask(kind, "is_floating") is kind.is_float
    assert ask(kind, "is_int") is kind.is_int
    assert ask(kind, "is_int_signed") is kind.is_signed
    assert ask(kind, "is_int_unsigned") is (kind.is_int and not kind.is_signed)
    assert ask(kind, "is_ptr") is False
    assert ask(kind, "is_block") is False
    assert ask(TileType(kind, (2,)), "is_block") is True
    assert ask(PointerType(kind), "is_ptr") is True
    assert ask(PointerType(kind), "is_floating") is False
    question = (
        "is_int1"
        if kind.is_bool
        else f"is_{kind.name}".replace("is_i", "is_int").replace("is_u", "is_uint")
    )
    assert ask(kind, question) is True
    wrong = [name for name in ("is_fp16", "is_bf16", "is_int32", "is_uint8") if name != question]
    assert not any(ask(kind, name) for name in wrong)


def test_unknown_attributes() -> None:
    with pytest.raises(CompileError, match="no attribute 'is_flot'"):
        dtype_attribute(FP16, "is_flot")
    with pytest.raises(CompileError, match="'element_ty'"):
        dtype_attribute(FP16, "element_ty")
