"""Constants of launches: equality with a kernel's constants."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any

import numpy as np
import pytest

from aotc.package.record.hook import recorder
from aotc.triton.specialization import is_same_constant


def _torch_dtype(name: str) -> Any:
    class Dtype:
        def __repr__(self) -> str:
            return f"torch.{name}"

    Dtype.__name__, Dtype.__module__ = "dtype", "torch"
    return Dtype()


class Mode(Enum):
    FAST = 1
    NAME = "text"


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("passed", "built", "is_same"),
    [
        (_torch_dtype("bfloat16"), "bf16", True),
        (_torch_dtype("float16"), "bf16", False),
        (_torch_dtype("float8_e4m3fn"), "fp8e4nv", True),
        (_torch_dtype("int32"), "i32", True),
        (_torch_dtype("int32"), "int32", True),
        (_torch_dtype("bool"), "int1", True),
        (Mode.FAST, 1, True),
        (Mode.FAST, True, False),
        (Mode.NAME, "text", True),
        (Level.HIGH, 3, True),
        (Level.HIGH, 4, False),
        ((16, 32), "(16, 32)", True),
        ((16, 32), "(16,32)", True),
        ((16, 32), "(16, 33)", False),
        ((True, 1), "(1, 1)", False),
        ((16, (_torch_dtype("float16"), Level.HIGH)), "(16, ('fp16', 3))", True),
        ([16, 32], "(16, 32)", False),
        (np.int64(3), 3, True),
        (np.float32(0.5), 0.5, True),
        (np.bool_(True), 1, False),
    ],
)
def test_dtypes_of_torch_members_of_enums_and_tuples(
    passed: Any, built: Any, is_same: bool
) -> None:
    assert is_same_constant(passed, built) == is_same


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e5m2", "int64", "uint8", "bool"])
def test_what_is_recorded_of_a_dtype_of_torch_is_what_launches_pass(name: str) -> None:
    dtype = _torch_dtype(name)
    recorded = recorder._constant(dtype)  # pyright: ignore[reportPrivateUsage]
    assert is_same_constant(dtype, recorded["value"])


class Size(tuple[int, ...]):
    """As torch's."""

    __slots__ = ()


@pytest.mark.parametrize(
    "passed",
    [
        (1, -2, 3),
        (4,),
        (),
        ((1, 2), (3, "x")),
        (None, True, 0.5, "a'b"),
        (_torch_dtype("float16"), _torch_dtype("int8")),
        Size((2, 3)),
    ],
)
def test_a_tuple_is_the_text_that_is_recorded_of_it(passed: Any) -> None:
    text = recorder._constant(passed)["value"]  # pyright: ignore[reportPrivateUsage]
    assert is_same_constant(passed, text)
    others = ((1, -2), (4.0,), (True,), ((1, 2), (3, "y")), (*passed, 1))
    assert not any(is_same_constant(other, text) for other in others)
    assert not is_same_constant(text, 3)
