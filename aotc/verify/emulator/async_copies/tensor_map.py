"""Tensor maps: a `CUtensorMap`'s description of a tensor and of its boxes.

Only the driver knows the real 128 bytes, and no program may look into them. So the emulator has its
own encoding, written by `to_bytes` and read by `from_bytes`. A kernel can pass it on, copy it and
edit it with `tensormap.replace`, like the real one. Dimension 0 is the innermost, as in the
driver's API.

Invariant: `cuTensorMapEncodeTiled` accepts every map that `check` accepts.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

SIZE_BYTES = 128
ALIGNMENT_BYTES = 64
MAX_RANK = 5
_MAGIC = b"aotM"
_MAX_DIM = 1 << 32
_STRIDE_LIMIT_BYTES = 1 << 40
_MAX_BOX = 256
_MAX_ELEMENT_STRIDE = 8
_GRAIN_BYTES = 16  # TMA's unit: addresses, strides and inner boxes are multiples

# Name to (code in `tensormap.replace`, size in bytes, whether a NaN can fill).
ELEMENT_TYPES: Mapping[str, tuple[int, int, bool]] = {
    "u8": (0, 1, False),
    "u16": (1, 2, False),
    "u32": (2, 4, False),
    "s32": (3, 4, False),
    "u64": (4, 8, False),
    "s64": (5, 8, False),
    "f16": (6, 2, True),
    "f32": (7, 4, True),
    "f32.ftz": (8, 4, True),
    "f64": (9, 8, True),
    "bf16": (10, 2, True),
    "tf32": (11, 4, True),
    "tf32.ftz": (12, 4, True),
}
_ELEMENT_NAMES = {code: name for name, (code, _, _) in ELEMENT_TYPES.items()}
# Bytes of the swizzled span, by the code of `.swizzle_mode`.
SWIZZLE_SPANS_BYTES = {0: 0, 1: 32, 2: 64, 3: 128}
INTERLEAVES = {0: "none", 1: "16B", 2: "32B"}
_FILLS = {0: "zero", 1: "nan"}
_ATOMICITIES = {0: "16B", 1: "32B", 2: "32B with 8B flip", 3: "64B"}

_LAYOUT = struct.Struct("<4s7BxQ5Q4Q5H5H16x")
assert _LAYOUT.size == SIZE_BYTES


class TensorMapError(ValueError):
    """Name the field of a tensor map and the rule it breaks."""


def _pad(values: tuple[int, ...], count: int) -> tuple[int, ...]:
    return values + (0,) * (count - len(values))


@dataclass(frozen=True)
class TensorMap:
    """Describe a tensor and its boxes.

    `strides_bytes` has one entry fewer than `dims`: the innermost dimension is dense. `swizzle`,
    `atomicity`, `interleave` and `fill` are codes as in `tensormap.replace`.
    """

    element_type: str
    address: int
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()  # () means all 1
    swizzle: int = 0
    atomicity: int = 0
    interleave: int = 0
    fill: int = 0
    l2_promotion: int = 0  # a hint: without effect here

    def __post_init__(self) -> None:
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * len(self.dims))

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def element_bytes(self) -> int:
        """Size of an element."""
        return ELEMENT_TYPES[self.element_type][1]

    @cached_property
    def box_elems(self) -> tuple[int, ...]:
        """Elements of a box in shared memory along each dimension."""
        pairs = zip(self.box, self.element_strides, strict=True)
        return tuple(-(-extent // stride) for extent, stride in pairs)

    @cached_property
    def box_bytes(self) -> int:
        """Bytes of a box in shared memory, with out-of-bounds ones: a copy's transaction count."""
        total = self.element_bytes
        for extent in self.box_elems:
            total *= extent
        return total

    def to_bytes(self) -> bytes:
        """Return the 128 bytes of the map's encoding.

        Raises: TensorMapError as `check`.
        """
        self.check()
        return self.pack()

    def pack(self) -> bytes:
        """Return the bytes unchecked: a map under edit may break rules."""
        return _LAYOUT.pack(
            _MAGIC,
            self.rank,
            ELEMENT_TYPES[self.element_type][0],
            self.interleave,
            self.swizzle,
            self.atomicity,
            self.fill,
            self.l2_promotion,
            self.address,
            *_pad(self.dims, 5),
            *_pad(self.strides_bytes, 4),
            *_pad(self.box, 5),
            *_pad(self.element_strides, 5),
        )

    @staticmethod
    @lru_cache(maxsize=256)
    def from_bytes(data: bytes) -> TensorMap:
        """Decode the bytes of `to_bytes` or `pack`.

        Raises: TensorMapError for other bytes.
        """
        if len(data) != SIZE_BYTES or data[:4] != _MAGIC:
            raise TensorMapError("these bytes are no tensor map")
        fields = _LAYOUT.unpack(data)
        rank, element_code, interleave, swizzle, atomicity, fill, promotion, address = fields[1:9]
        if not 1 <= rank <= MAX_RANK or element_code not in _ELEMENT_NAMES:
            raise TensorMapError("these bytes are no tensor map")
        return TensorMap(
            _ELEMENT_NAMES[element_code],
            address,
            fields[9 : 9 + rank],
            fields[14 : 14 + rank - 1],
            fields[18 : 18 + rank],
            fields[23 : 23 + rank],
            swizzle,
            atomicity,
            interleave,
            fill,
            promotion,
        )

    @staticmethod
    def from_template(data: bytes) -> TensorMap:
        """Decode a map to edit; all zeros stand for an empty map of rank 1.

        Raises: TensorMapError as `from_bytes`.
        """
        if any(data):
            return TensorMap.from_bytes(data)
        return TensorMap(_ELEMENT_NAMES[0], 0, (0,), (), (0,), (0,))

    # ---- rules ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Apply the driver's checks for encoding a tiled map.

        Raises: TensorMapError naming the dimension. Source: CUDA driver API,
        cuTensorMapEncodeTiled.
        """
        self._check_codes()
        grain = 32 if self.interleave == 2 else _GRAIN_BYTES
        if self.address % grain:
            raise TensorMapError(f"the address {self.address:#x} is no multiple of {grain} bytes")
        for axis, dim in enumerate(self.dims):
            if not 1 <= dim <= _MAX_DIM:
                raise TensorMapError(f"dimension {axis} is {dim}, not 1 to 2^32")
        for axis, stride in enumerate(self.strides_bytes, start=1):
            if stride % grain or not 0 <= stride < _STRIDE_LIMIT_BYTES:
                raise TensorMapError(
                    f"the stride of dimension {axis} is {stride} bytes, "
                    f"not a multiple of {grain} below 2^40"
                )
        for axis, extent in enumerate(self.box):
            if not 1 <= extent <= _MAX_BOX:
                raise TensorMapError(f"the box of dimension {axis} is {extent}, not 1 to 256")
        for axis, stride in enumerate(self.element_strides):
            if not 1 <= stride <= _MAX_ELEMENT_STRIDE:
                raise TensorMapError(
                    f"the element stride of dimension {axis} is {stride}, not 1 to 8"
                )
        self._check_inner_box()

    def _check_codes(self) -> None:
        lengths = (len(self.strides_bytes) + 1, len(self.box), len(self.element_strides))
        if not 1 <= self.rank <= MAX_RANK or any(length != self.rank for length in lengths):
            raise TensorMapError(
                f"{self.rank} dimensions with {len(self.strides_bytes)} strides, "
                f"{len(self.box)} box extents and {len(self.element_strides)} element strides"
            )
        tables = {
            "swizzle": SWIZZLE_SPANS_BYTES,
            "atomicity": _ATOMICITIES,
            "interleave": INTERLEAVES,
            "fill": _FILLS,
        }
        for field, table in tables.items():
            if getattr(self, field) not in table:
                raise TensorMapError(f"{field} {getattr(self, field)} is none of {list(table)}")
        if self.fill and not ELEMENT_TYPES[self.element_type][2]:
            raise TensorMapError(f"{self.element_type} has no NaN to fill with")
        if self.interleave and self.rank < 3:
            raise TensorMapError(f"an interleaved tensor has 3 dimensions or more, not {self.rank}")
        if self.interleave == 2 and self.swizzle != 1:
            raise TensorMapError("a tensor interleaved by 32 bytes needs the 32-byte swizzle")

    def _check_inner_box(self) -> None:
        if self.interleave:
            return
        if self.element_strides[0] != 1:
            raise TensorMapError("the element stride of dimension 0 is 1 unless interleaved")
        inner_bytes = self.box[0] * self.element_bytes
        span = SWIZZLE_SPANS_BYTES[self.swizzle]
        if inner_bytes % _GRAIN_BYTES:
            raise TensorMapError(
                f"the box of dimension 0 is {inner_bytes} bytes, no multiple of {_GRAIN_BYTES}"
            )
        if span and inner_bytes > span:
            raise TensorMapError(
                f"the box of dimension 0 is {inner_bytes} bytes, more than the swizzle's {span}"
            )

    # ---- edits ----------------------------------------------------------------------------------

    def with_field(self, field: str, value: int, ordinal: int = 0) -> TensorMap:
        """Return the map with a field of `tensormap.replace` set; `ordinal` picks a dimension.

        Raises: TensorMapError for a dimension or an element type that does not exist.
        Source: PTX ISA, "tensormap.replace".
        """
        if field == "rank":
            return self._with_rank(value + 1)
        if field == "elemtype":
            if value not in _ELEMENT_NAMES:
                raise TensorMapError(f"element type {value} is unknown")
            return replace(self, element_type=_ELEMENT_NAMES[value])
        if field in _SCALAR_FIELDS:
            return replace(self, **{_SCALAR_FIELDS[field]: value})
        name = _VECTOR_FIELDS[field]
        values: tuple[int, ...] = getattr(self, name)
        if not 0 <= ordinal < len(values):
            raise TensorMapError(f"{field} has no dimension {ordinal}, it has {len(values)}")
        if field in _SMALL_FIELDS and not 0 <= value <= _MAX_BOX:
            raise TensorMapError(f"{field} of dimension {ordinal} is {value}, more than {_MAX_BOX}")
        return replace(self, **{name: (*values[:ordinal], value, *values[ordinal + 1 :])})

    def _with_rank(self, rank: int) -> TensorMap:
        if not 1 <= rank <= MAX_RANK:
            raise TensorMapError(f"the rank is {rank}, not 1 to {MAX_RANK}")
        return replace(
            self,
            dims=_pad(self.dims, rank)[:rank],
            strides_bytes=_pad(self.strides_bytes, rank - 1)[: rank - 1],
            box=_pad(self.box, rank)[:rank],
            element_strides=_pad(self.element_strides, rank)[:rank],
        )


_SCALAR_FIELDS = {
    "global_address": "address",
    "interleave_layout": "interleave",
    "swizzle_mode": "swizzle",
    "swizzle_atomicity": "atomicity",
    "fill_mode": "fill",
}
_VECTOR_FIELDS = {
    "box_dim": "box",
    "global_dim": "dims",
    "global_stride": "strides_bytes",
    "element_stride": "element_strides",
}
_SMALL_FIELDS = frozenset({"box_dim", "element_stride"})
ORDERED_FIELDS = frozenset(_VECTOR_FIELDS)
"""Fields of `tensormap.replace` that have one value for each dimension."""
FIELDS = ORDERED_FIELDS | frozenset(_SCALAR_FIELDS) | {"rank", "elemtype"}
"""All fields of `tensormap.replace`."""
