"""Block accesses to tensors: operand checks and their errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aotc.ir.core import Block, Op, Value
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import descriptor
from aotc.ir.dialects.descriptor import supports_reduce
from aotc.ir.types import (
    BF16,
    FP32,
    FP64,
    I16,
    I32,
    I64,
    SCALARS,
    U32,
    U64,
    DescriptorType,
    TileType,
)

KINDS = {
    "x": DescriptorType(FP32, (4, 8)),
    "narrow": DescriptorType(FP32, (8, 2)),
    "deep": DescriptorType(FP32, (1, 1, 1, 1, 1, 4)),
    "rows": DescriptorType(FP32, (1, 1, 2, 8)),
    "stack": DescriptorType(FP32, (1, 2, 4, 8)),
    "i": I32,
    "long": I64,
    "v": TileType(FP32, (4, 8)),
    "w": TileType(BF16, (4, 8)),
    "t": TileType(FP32, (8, 4)),
}


@pytest.fixture
def values() -> dict[str, Value]:
    return dict(zip(KINDS, Block(list(KINDS.values())).args, strict=True))


def test_a_block_is_a_tile(values: dict[str, Value]) -> None:
    load = descriptor.DescriptorLoad(values["x"], [values["i"]] * 2)
    assert load.out.type == TileType(FP32, (4, 8))
    assert descriptor.DescriptorExtent(values["x"], 1).out.type == I32
    assert descriptor.DescriptorStride(values["x"], 0).out.type == I64


@pytest.mark.parametrize(("count", "shape"), [(0, (1, 1, 2, 8)), (1, (1, 2, 8)), (2, (2, 8))])
def test_first_axes_of_one_element_may_be_dropped(
    values: dict[str, Value], count: int, shape: tuple[int, ...]
) -> None:
    load = descriptor.DescriptorLoad(values["rows"], [values["i"]] * 4, num_dropped=count)
    assert load.out.type == TileType(FP32, shape)


@pytest.mark.parametrize(
    ("dropped", "merged", "shape"),
    [(0, 1, (2, 4, 8)), (0, 2, (8, 8)), (1, 1, (8, 8)), (0, 0, (1, 2, 4, 8))],
)
def test_axes_after_them_may_be_one(
    values: dict[str, Value], dropped: int, merged: int, shape: tuple[int, ...]
) -> None:
    load = descriptor.DescriptorLoad(values["stack"], [values["i"]] * 4, "", "", dropped, merged)
    assert load.out.type == TileType(FP32, shape)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda v: descriptor.DescriptorLoad(v["i"], []), "expected a descriptor, got i32"),
        (lambda v: descriptor.DescriptorLoad(v["x"], [v["i"]]), r"at \(i32\)"),
        (lambda v: descriptor.DescriptorLoad(v["x"], [v["i"], v["long"]]), "i32, i64"),
        (lambda v: descriptor.DescriptorLoad(v["narrow"], [v["i"]] * 2), "have 8 bytes"),
        (lambda v: descriptor.DescriptorLoad(v["deep"], [v["i"]] * 6), "has 6 axes"),
        (lambda v: descriptor.DescriptorLoad(v["x"], [v["i"]] * 2, "", "", 1), "drops 1 axes"),
        (lambda v: descriptor.DescriptorLoad(v["rows"], [v["i"]] * 4, "", "", 3), "drops 3 axes"),
        (lambda v: descriptor.DescriptorLoad(v["rows"], [v["i"]] * 4, "", "", -1), "drops -1"),
        (lambda v: descriptor.DescriptorLoad(v["stack"], [v["i"]] * 4, "", "", 1, 2), "merges 2"),
        (lambda v: descriptor.DescriptorLoad(v["stack"], [v["i"]] * 4, "", "", 0, -1), "merges -1"),
        (lambda v: descriptor.DescriptorStore(v["x"], v["i"], [v["i"]] * 2), "expected a tile"),
        (lambda v: descriptor.DescriptorStore(v["x"], v["t"], [v["i"]] * 2), "is no tile of"),
        (lambda v: descriptor.DescriptorStore(v["x"], v["w"], [v["i"]] * 2), "is no tile of"),
        (
            lambda v: descriptor.DescriptorReduce(v["x"], v["v"], [v["i"]] * 2, kind="min"),
            "no min of fp32",
        ),
        (lambda v: descriptor.DescriptorGather(v["x"], v["t"], v["i"]), "a descriptor of one row"),
        (lambda v: descriptor.DescriptorExtent(v["x"], 2), "has no axis 2"),
        (lambda v: descriptor.DescriptorStride(v["i"], 0), "expected a descriptor"),
    ],
)
def test_what_does_not_fit(
    values: dict[str, Value], make: Callable[[dict[str, Value]], Op], message: str
) -> None:
    with pytest.raises(IRError, match=message):
        make(values)


def test_what_can_be_combined() -> None:
    for name in ("add", "min", "max", "and", "or", "xor"):
        elements = [kind for kind in SCALARS.values() if supports_reduce(name, kind)]
        assert not {FP64, I16} & set(elements)
        assert {I32, U32, U64} <= set(elements)
        assert (BF16 in elements) == (name in ("add", "min", "max"))
        assert (FP32 in elements) == (name == "add")
        assert (I64 in elements) == (name != "add")
