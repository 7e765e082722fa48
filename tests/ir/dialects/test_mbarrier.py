"""Mbarriers: operand checks and their errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aotc.ir.core import Block, Op, Value
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import mbarrier
from aotc.ir.layout import LinearLayout
from aotc.ir.types import I1, I32, I64, U64, SharedType

ONE = LinearLayout.from_columns([("offset", [])], (("dim0", 0),))
KINDS = {
    "bar": SharedType(U64, (1,), ONE),
    "bars": SharedType(U64, (1,), ONE, 2),
    "words": SharedType(I64, (1,), ONE),
    "i": I32,
    "long": I64,
    "flag": I1,
}


@pytest.fixture
def values() -> dict[str, Value]:
    return dict(zip(KINDS, Block(list(KINDS.values())).args, strict=True))


def test_a_ring_is_initialized_whole_and_used_stage_by_stage(values: dict[str, Value]) -> None:
    assert mbarrier.MbarrierInit(values["bars"], count=4).count == 4
    arrive = mbarrier.MbarrierArrive(values["bar"], 4, values["flag"], num_ctas=2)
    assert arrive.operands == [values["bar"], values["flag"]]
    assert mbarrier.MbarrierWait(values["bar"], values["i"]).parity is values["i"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda v: mbarrier.MbarrierInit(v["words"]), "expected mbarriers"),
        (lambda v: mbarrier.MbarrierInit(v["bar"], count=0), "0 arrivals"),
        (
            lambda v: mbarrier.MbarrierInit(v["bars"], expected_bytes=16),
            "bytes are expected by one arrival",
        ),
        (
            lambda v: mbarrier.MbarrierInit(v["bar"], 2, expected_bytes=16),
            "bytes are expected by one arrival",
        ),
        (lambda v: mbarrier.MbarrierWait(v["bars"], v["i"]), "a shared buffer of one stage"),
        (lambda v: mbarrier.MbarrierWait(v["words"], v["i"]), "expected a mbarrier"),
        (lambda v: mbarrier.MbarrierWait(v["bar"], v["long"]), "the parity is i64"),
        (lambda v: mbarrier.MbarrierArrive(v["bars"], 1), "a shared buffer of one stage"),
        (lambda v: mbarrier.MbarrierArrive(v["bar"], 0), "0 arrivals"),
        (lambda v: mbarrier.MbarrierArrive(v["bar"], 1, v["i"]), "enabled is i32"),
    ],
)
def test_what_does_not_fit(
    values: dict[str, Value], make: Callable[[dict[str, Value]], Op], message: str
) -> None:
    with pytest.raises(IRError, match=message):
        make(values)
