"""Texts of the instructions of tensor and bulk copies."""

from __future__ import annotations

import pytest

from aotc.backend.nvvm_tensor import bulk_reduction
from aotc.ir.dialects.descriptor import ReduceKind
from aotc.ir.types import BF16, FP16, FP32, I32, I64, U32, U64, ScalarType


@pytest.mark.parametrize(
    ("kind", "element", "text"),
    [
        ("add", FP32, ".add.f32"),
        ("add", FP16, ".add.noftz.f16"),
        ("add", BF16, ".add.noftz.bf16"),
        ("min", BF16, ".min.bf16"),
        ("add", I32, ".add.s32"),
        ("add", U64, ".add.u64"),
        ("max", I64, ".max.s64"),
        ("min", U32, ".min.u32"),
        ("xor", I32, ".xor.b32"),
        ("or", I64, ".or.b64"),
    ],
)
def test_what_a_bulk_reduction_is_of(kind: ReduceKind, element: ScalarType, text: str) -> None:
    assert bulk_reduction(kind, element) == text
    assert bulk_reduction("", element) == ""
