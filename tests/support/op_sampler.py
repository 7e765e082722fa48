"""The arguments for samples of ops: scalars, tiles in a few layouts, tensors."""

from __future__ import annotations

from dataclasses import dataclass

from aotc.ir.core import Value
from aotc.ir.layout import LinearLayout
from aotc.ir.rewrite import Builder
from aotc.ir.types import (
    FP16,
    FP32,
    I1,
    I32,
    DescriptorType,
    PointerType,
    TensorMapType,
    TileType,
    Type,
)

EXTENT = 128
REPEATS = 4

ROW = LinearLayout(
    {
        "register": [(1,), (2,)],
        "lane": [(4,), (8,), (16,), (32,), (64,)],
        "warp": [(0,), (0,)],
    },
    (EXTENT,),
)
SWAPPED = LinearLayout(
    {
        "register": [(32,), (64,)],
        "lane": [(1,), (2,), (4,), (8,), (16,)],
        "warp": [(0,), (0,)],
    },
    (EXTENT,),
)
PAIRS = ROW.join()
TEMPLATE = LinearLayout({"offset": [(1 << bit,) for bit in range(4)]}, (16,))
BUFFER = LinearLayout({"offset": [(1 << bit,) for bit in range(7)]}, (EXTENT,))


@dataclass(frozen=True)
class Sampler:
    """Hand out arguments for samples, and insert the ops built from them."""

    add: Builder
    args: dict[str, Value]
    layout: LinearLayout | None

    def __getattr__(self, name: str) -> Value:
        return self.args[name]

    def tile(self, element: str) -> Value:
        """Return the argument tile of `element`."""
        return self.args[f"tile_{element}"]


def repeated(layout: LinearLayout) -> LinearLayout:
    return layout.expand_dims(1).broadcast_to((EXTENT, REPEATS))


def argument_types(layout: LinearLayout | None) -> dict[str, Type]:
    """Return the types of the sampler's arguments, by name."""
    pairs = None if layout is None else layout.join()
    column = None if layout is None else repeated(layout).broadcast_source((EXTENT, 1))
    return {
        "flag": I1,
        "i": I32,
        "j": I32,
        "x": FP32,
        "pointer": PointerType(FP32),
        "tile_i1": TileType(I1, (EXTENT,), layout),
        "tile_i32": TileType(I32, (EXTENT,), layout),
        "tile_fp32": TileType(FP32, (EXTENT,), layout),
        "tile_fp16": TileType(FP16, (EXTENT,), layout),
        "tile_ptr": TileType(PointerType(FP32), (EXTENT,), layout),
        "pairs": TileType(FP32, (EXTENT, 2), pairs),
        "column": TileType(FP32, (EXTENT, 1), column),
        "tensor": DescriptorType(FP32, (EXTENT,), fill_nan=True),
        "tensor_map": TensorMapType(FP32, (EXTENT,)),
    }
