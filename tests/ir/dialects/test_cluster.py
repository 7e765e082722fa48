"""Exchanges between CTAs of a cluster: operands and results."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aotc.ir.core import Block, Op, Value
from aotc.ir.diagnostics import IRError
from aotc.ir.dialects import cluster
from aotc.ir.layout import LinearLayout
from aotc.ir.types import FP32, I32, I64, U64, SharedType, TileType

LANES = LinearLayout({"register": [], "lane": [(1 << bit,) for bit in range(5)], "warp": []}, (32,))
MEMORY = LinearLayout({"offset": [(1 << bit,) for bit in range(5)]}, (32,))
ONE = LinearLayout.from_columns([("offset", [])], (("dim0", 0),))
TILE = TileType(FP32, (32,), LANES)


@pytest.fixture(name="values")
def _values() -> dict[str, Value]:
    kinds = {
        "tile": TILE,
        "other": TileType(I32, (32,), LANES),
        "buffer": SharedType(FP32, (32,), MEMORY),
        "ring": SharedType(FP32, (32,), MEMORY, 2),
        "barrier": SharedType(U64, (1,), ONE),
        "rank": I32,
        "wide": I64,
    }
    return dict(zip(kinds, Block(list(kinds.values())).args, strict=True))


def test_an_exchange_returns_a_tile_of_the_same_type(values: dict[str, Value]) -> None:
    assert cluster.ClusterPermute(values["tile"], (1, 0)).out.type == TILE
    assert cluster.ClusterRead(values["tile"], values["rank"]).out.type == TILE
    assert cluster.ClusterTranspose(values["tile"], LANES).out.type == TILE
    assert cluster.RemoteLoad(values["buffer"], values["rank"], LANES).out.type == TILE


MISTAKES: list[tuple[Callable[[dict[str, Value]], Op], str]] = [
    (lambda v: cluster.ClusterPermute(v["tile"], (1, 1)), "does not permute 2 CTAs"),
    (lambda v: cluster.ClusterPermute(v["rank"], (0,)), "i32"),
    (lambda v: cluster.ClusterRead(v["tile"], v["wide"]), "the rank is i64"),
    (lambda v: cluster.ClusterTranspose(v["rank"]), "i32"),
    (
        lambda v: cluster.SendParts(v["other"], v["buffer"], v["barrier"], v["rank"], 1),
        "does not fit",
    ),
    (
        lambda v: cluster.SendParts(v["tile"], v["buffer"], v["barrier"], v["wide"], 1),
        "the rank is i64",
    ),
    (
        lambda v: cluster.SendParts(v["tile"], v["buffer"], v["barrier"], v["rank"], 8),
        "sends 32 bytes at a time",
    ),
    (
        lambda v: cluster.SendTile(v["other"], v["buffer"], v["barrier"], v["rank"], 1),
        "does not fit",
    ),
    (
        lambda v: cluster.SendTile(v["tile"], v["ring"], v["barrier"], v["rank"], 1),
        "a shared buffer of one stage",
    ),
    (
        lambda v: cluster.SendTile(v["tile"], v["buffer"], v["buffer"], v["rank"], 1),
        "expected a mbarrier",
    ),
    (
        lambda v: cluster.SendTile(v["tile"], v["buffer"], v["barrier"], v["rank"], 8),
        "sends 32 bytes at a time",
    ),
    (lambda v: cluster.RemoteArrive(v["barrier"], v["wide"], 4), "the rank is i64"),
    (lambda v: cluster.RemoteArrive(v["barrier"], v["rank"], 0), "0 arrivals"),
    (lambda v: cluster.RemoteLoad(v["buffer"], v["wide"], LANES), "the rank is i64"),
    (
        lambda v: cluster.RemoteLoad(v["buffer"], v["rank"], LANES.expand_dims(0)),
        "is not of",
    ),
]


@pytest.mark.parametrize(("make", "message"), MISTAKES)
def test_mistakes(
    values: dict[str, Value], make: Callable[[dict[str, Value]], Op], message: str
) -> None:
    with pytest.raises(IRError, match=message):
        make(values)
