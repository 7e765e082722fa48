"""L2 prefetch hints: accepted tiles; no query takes them for accesses."""

from __future__ import annotations

import pytest

from aotc.ir.core import Block, Value
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import cache
from aotc.ir.effects import Resource
from aotc.ir.rewrite import is_trivially_dead
from aotc.ir.types import BF16, I32, I64, TensorMapType

BOX = TensorMapType(BF16, (16, 64), 128)


@pytest.fixture
def values() -> dict[str, Value]:
    kinds = {"map": BOX, "i": I32, "long": I64}
    return dict(zip(kinds, Block(list(kinds.values())).args, strict=True))


def test_a_hint_is_kept_and_accesses_nothing(values: dict[str, Value]) -> None:
    hint = cache.TmaPrefetch(values["map"], [values["i"]] * 2, (32, 128))
    assert not is_trivially_dead(hint)
    for resource in (Resource.GLOBAL, Resource.SHARED, Resource.MBARRIER):
        assert not hint.effects_on(resource, "read", "write", "order")


@pytest.mark.parametrize(
    ("tensor", "coords", "shape", "message"),
    [
        ("i", "ii", (16, 64), "expected a tensor map, got i32"),
        ("map", "i", (16, 64), "at \\(i32\\)"),
        ("map", "il", (16, 64), "at \\(i32, i64\\)"),
        ("map", "ii", (24, 64), "is not made of boxes"),
        ("map", "ii", (64,), "is not made of boxes"),
    ],
)
def test_what_is_refused(
    values: dict[str, Value], tensor: str, coords: str, shape: tuple[int, ...], message: str
) -> None:
    operands = [values["long" if coord == "l" else coord] for coord in coords]
    with pytest.raises(IRError, match=message):
        cache.TmaPrefetch(values[tensor], operands, shape)
