"""Types of values: scalars, pointers, tiles, shared-memory buffers and tensor descriptors.

Scalars carry their signedness, so one `arith.div` serves both and an interpreter maps a type to a
NumPy dtype without looking at the op. A tile has no layout in tile IR and always has one in gpu IR.
The layout is part of the type, so an op that mixes two layouts cannot be built.

Invariant: types are immutable and compare by value; every shape extent is a power of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from aotc.ir.layout import LinearLayout

ScalarKind: TypeAlias = Literal["int", "uint", "float", "bits"]


@dataclass(frozen=True, slots=True)
class ScalarType:
    """Name a scalar: its width in memory and how arithmetic reads its bits."""

    name: str
    bits: int
    kind: ScalarKind
    mantissa_bits: int = 0

    def __str__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        return self.kind == "int"

    @property
    def is_bool(self) -> bool:
        return self.bits == 1

    @property
    def size_bytes(self) -> int:
        """Bytes of one element in memory; a boolean takes one."""
        return max(1, self.bits // 8)


I1 = ScalarType("i1", 1, "uint")
I8 = ScalarType("i8", 8, "int")
I16 = ScalarType("i16", 16, "int")
I32 = ScalarType("i32", 32, "int")
I64 = ScalarType("i64", 64, "int")
U8 = ScalarType("u8", 8, "uint")
U16 = ScalarType("u16", 16, "uint")
U32 = ScalarType("u32", 32, "uint")
U64 = ScalarType("u64", 64, "uint")
FP8E4NV = ScalarType("fp8e4nv", 8, "float", 3)
FP8E5 = ScalarType("fp8e5", 8, "float", 2)
FP16 = ScalarType("fp16", 16, "float", 10)
BF16 = ScalarType("bf16", 16, "float", 7)
FP32 = ScalarType("fp32", 32, "float", 23)
FP64 = ScalarType("fp64", 64, "float", 52)

# Triton's own format: the sign, 4 bits of exponent with a bias of 15, 3 of mantissa. No instruction
# knows it, so to the IR it is bits; the frontend converts it by integer arithmetic.
FP8E4B15 = ScalarType("fp8e4b15", 8, "bits")

SCALARS: dict[str, ScalarType] = {
    scalar.name: scalar
    for scalar in (
        *(I1, I8, I16, I32, I64, U8, U16, U32, U64),
        *(FP8E4NV, FP8E5, FP16, BF16, FP32, FP64),
    )
}
"""The types of arguments, by name."""

VALUE_SCALARS: dict[str, ScalarType] = {**SCALARS, FP8E4B15.name: FP8E4B15}
"""The types of values: those of arguments, and one that no tensor of a host has."""


@dataclass(frozen=True, slots=True)
class PointerType:
    """Point at elements of one scalar type in global memory."""

    pointee: ScalarType

    bits = 64
    size_bytes = 8

    def __str__(self) -> str:
        return f"*{self.pointee}"


ElementType: TypeAlias = ScalarType | PointerType


@dataclass(frozen=True, slots=True)
class TileType:
    """Hold a tile of elements; `layout` maps threads to elements, None before scheduling."""

    element: ElementType
    shape: tuple[int, ...]
    layout: LinearLayout | None = None

    def __str__(self) -> str:
        body = "x".join([*map(str, self.shape), str(self.element)])
        return f"tile<{body}>" if self.layout is None else f"tile<{body}, {self.layout.to_text()}>"

    @property
    def num_elems(self) -> int:
        return _product(self.shape)

    def with_layout(self, layout: LinearLayout | None) -> TileType:
        return TileType(self.element, self.shape, layout)


@dataclass(frozen=True, slots=True)
class SharedType:
    """Name a shared-memory buffer; `layout` maps an element offset to tile coordinates.

    A buffer of several stages holds one tile a stage, each followed by `padding_bytes` to align the
    next one. The last `unused_bytes` of a tile are not allocated, and neither written nor read.
    """

    element: ScalarType
    shape: tuple[int, ...]
    layout: LinearLayout
    num_stages: int = 1
    padding_bytes: int = 0
    unused_bytes: int = 0

    def __str__(self) -> str:
        body = "x".join([*map(str, self.shape), str(self.element)])
        return f"shared<{body}, {self.layout.to_text()}{self.stages_text}>"

    @property
    def stages_text(self) -> str:
        """Stages, padding and unused bytes as text, defaults at the end left out."""
        numbers = [self.num_stages, self.padding_bytes, self.unused_bytes]
        defaults = [1, 0, 0]
        while numbers and numbers[-1] == defaults[-1]:
            numbers.pop()
            defaults.pop()
        return "".join(f", {number}" for number in numbers)

    @property
    def stage_bytes(self) -> int:
        """Bytes from one stage to the next."""
        tile_bytes = _product(self.shape) * self.element.size_bytes
        return tile_bytes - self.unused_bytes + self.padding_bytes

    @property
    def size_bytes(self) -> int:
        return self.num_stages * self.stage_bytes


@dataclass(frozen=True, slots=True)
class DescriptorType:
    """Describe a tensor in global memory, loaded and stored in tiles of the shape `block`.

    With several `num_parts` the CTAs of a cluster split a load along its first axis of several
    elements, and multicast. Reads beyond its ends give zeros, or NaN with `fill_nan`; the last axis
    is the innermost and dense. Parameters of a kernel have this type, and descriptors of maps in
    memory.
    """

    element: ScalarType
    block: tuple[int, ...]
    fill_nan: bool = False
    num_parts: int = 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a tile."""
        return self.block[-1] * self.element.size_bytes

    def __str__(self) -> str:
        body = "x".join([*map(str, self.block), str(self.element)])
        parts = f", {self.num_parts}" if self.num_parts > 1 else ""
        return f"desc<{body}{', nan' if self.fill_nan else ''}{parts}>"


@dataclass(frozen=True, slots=True)
class TensorMapType:
    """Name a tensor map, a `CUtensorMap`: the tensor description for TMA.

    A copy moves a `box`, axes outermost first as the tensor's, and its rows lie in shared memory
    with a swizzle of `swizzle_bytes`: 0 for none, 32, 64 or 128.
    """

    element: ScalarType
    box: tuple[int, ...]
    swizzle_bytes: int = 0
    fill_nan: bool = False

    def __str__(self) -> str:
        body = "x".join([*map(str, self.box), str(self.element)])
        return f"map<{body}, {self.swizzle_bytes}{', nan' if self.fill_nan else ''}>"

    @property
    def box_bytes(self) -> int:
        """Bytes of a box in shared memory, the size of each copy, out of bounds or not."""
        return _product(self.box) * self.element.size_bytes


Type: TypeAlias = ScalarType | PointerType | TileType | SharedType | DescriptorType | TensorMapType


def _product(shape: tuple[int, ...]) -> int:
    out = 1
    for extent in shape:
        out *= extent
    return out


def element_of(type_: Type) -> ElementType:
    """Return the element type of a tile, buffer or tensor, or the scalar or pointer itself."""
    # Tiles first, the most frequent: unions are slow to test.
    if isinstance(type_, TileType):
        return type_.element
    return type_ if isinstance(type_, ScalarType | PointerType) else type_.element


def shape_of(type_: Type) -> tuple[int, ...]:
    """Return the shape of a tile or buffer, and () for a scalar or pointer."""
    if isinstance(type_, TileType):
        return type_.shape
    return type_.shape if isinstance(type_, SharedType) else ()


def with_element(type_: Type, element: ElementType) -> Type:
    """Return a type of the same shape and layout with another element type."""
    if not isinstance(type_, TileType):
        return element
    # Sharing the object makes the comparisons of every later op a test of identity.
    same = type_.element is element or type_.element == element
    return type_ if same else TileType(element, type_.shape, type_.layout)
