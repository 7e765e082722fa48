"""Copies of boxes of tensors: 1 to 5 dimensions, every swizzle, parts outside, stores, reductions.

A GPU refuses boxes with rows not starting at a multiple of 16 bytes, and stores starting before
the tensor; only probes have such.

The whole of shared memory is compared after a load, and the whole tensor after a store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from aotc.verify.emulator.async_copies.tensor_argument import TensorArgument
from benchmarks.calibration import inputs
from benchmarks.calibration.case import Argument, Case, Group, Output
from benchmarks.calibration.staged import BARRIER, WAIT, staged, tensor

_LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
_STORE = "cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"


@dataclass(frozen=True, slots=True)
class Boxes:
    """A tensor, a box of it and the box's start, last axis innermost."""

    dtype: str
    shape: tuple[int, ...]
    box: tuple[int, ...]
    origin: tuple[int, ...]
    swizzle: int = 0
    strides: tuple[int, ...] = ()
    fill_nan: bool = False

    def __str__(self) -> str:
        box = "x".join(map(str, self.box))
        shape = "x".join(map(str, self.shape))
        more = f" steps {self.strides}" if self.strides else ""
        nan = " NaN outside" if self.fill_nan else ""
        return f"{self.dtype} {box} of {shape} at {self.origin} {self.swizzle}B{more}{nan}"

    @property
    def size_bytes(self) -> int:
        """Bytes of a box in shared memory."""
        steps = self.strides or (1,) * len(self.box)
        extents = [-(-extent // step) for extent, step in zip(self.box, steps, strict=True)]
        return int(np.prod(extents)) * np.dtype(self.dtype).itemsize

    @property
    def coordinates(self) -> str:
        """The origin as an operand."""
        return "{" + ", ".join(map(str, self.origin[::-1])) + "}"

    def arguments(self, rng: np.random.Generator) -> list[Argument]:
        """Return the tensor map as the one argument."""
        return [self.tensor(rng)]

    def tensor(self, rng: np.random.Generator) -> TensorArgument:
        """Return the tensor map, of random bits."""
        return tensor(
            self.dtype,
            self.shape,
            self.box,
            swizzle_bytes=self.swizzle,
            element_strides=self.strides,
            fill_nan=self.fill_nan,
            rng=rng,
        )


def load(boxes: Boxes, *, size_bytes: int = 0, name: str = "", is_probe: bool = False) -> Case:
    """Return a case loading a box, waiting for `size_bytes` if not for the box's bytes."""
    mnemonic = _LOAD.format(rank=len(boxes.shape))
    body = f"""
    @p1 mbarrier.arrive.expect_tx.shared.b64 _, [r1+{BARRIER}], {size_bytes or boxes.size_bytes};
    @p1 {mnemonic} [r1], [d8, {boxes.coordinates}], [r1+{BARRIER}];
    {WAIT}"""
    name = name or f"load {boxes}"
    return staged(name, body, boxes.arguments, maps=[1], num_args=2, is_probe=is_probe)


def store(boxes: Boxes, *, name: str = "", is_probe: bool = False) -> Case:
    """Return a case storing a box."""
    mnemonic = _STORE.format(rank=len(boxes.shape))
    body = f"""
    @p1 {mnemonic} [d8, {boxes.coordinates}], [r1];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;"""
    output = Output(1, f"u{8 * np.dtype(boxes.dtype).itemsize}")
    return staged(
        name or f"store {boxes}",
        body,
        boxes.arguments,
        [output],
        maps=[1],
        num_args=2,
        is_probe=is_probe,
    )


_DTYPES = ("uint8", "uint16", "int32", "float32", "float16", "uint64", "int64", "float64", "uint32")
_OUTER = ((), (6,), (4, 3), (3, 2, 3), (2, 3, 2, 2))
_OUTER_BOX = ((), (5,), (3, 2), (2, 2, 3), (2, 2, 1, 2))


def _boxes() -> Iterator[Boxes]:
    number = 0
    for swizzle in (0, 32, 64, 128):
        for outer, outer_box in zip(_OUTER, _OUTER_BOX, strict=True):
            for where in ("inside", "before", "beyond", "outside"):
                dtype = _DTYPES[number % len(_DTYPES)]
                number += 1
                size = np.dtype(dtype).itemsize
                inner = (swizzle or 48) // size
                shape = (*outer, 2 * inner + 16 // size)
                box = (*outer_box, inner)
                yield Boxes(dtype, shape, box, _origin(where, shape, box, 16 // size), swizzle)
    # Tall boxes: every row of the swizzle's pattern, several times.
    for swizzle in (0, 32, 64, 128):
        for dtype in ("uint8", "float16", "float32"):
            inner = (swizzle or 128) // np.dtype(dtype).itemsize
            yield Boxes(dtype, (64, 2 * inner), (40, inner), (7, inner // 2), swizzle)
    for dtype in ("float16", "float32", "float64"):
        inner = 64 // np.dtype(dtype).itemsize
        yield Boxes(dtype, (5, inner), (8, inner), (-2, inner // 4), 64, fill_nan=True)
    for strides in ((2, 1), (3, 1), (8, 1)):
        yield Boxes("float16", (40, 32), (24, 32), (3, -8), 64, strides)
    yield Boxes("uint16", (6, 9, 11, 16), (5, 6, 7, 16), (1, 2, -1, 0), 0, (2, 3, 4, 1))


def _origin(where: str, shape: Sequence[int], box: Sequence[int], step: int) -> tuple[int, ...]:
    """Return the start of a box, a multiple of `step` on the last axis."""
    pairs = list(zip(shape, box, strict=True))
    *outer, last = (
        {
            "inside": (extent - part) // 2,
            "before": -(part // 2) if axis % 2 else min(1, extent - part),
            "beyond": extent - (part + 1) // 2 if axis % 2 == len(pairs) % 2 else 0,
            "outside": extent + 3,
        }[where]
        for axis, (extent, part) in enumerate(pairs)
    )
    return (*outer, -step if where == "before" else -(-last // step) * step)


NARROW = (
    Boxes("float16", (20, 32), (16, 32), (2, 0), 128),
    Boxes("float16", (20, 16), (16, 16), (2, 0), 64),
    Boxes("uint8", (20, 16), (16, 16), (2, 0), 32),
    Boxes("float32", (20, 20), (16, 20), (2, 0), 128),
)
"""Boxes whose rows are shorter than the span of their swizzle."""


# Types with reductions named by a tensor map's element type.
_REDUCTIONS = (
    *(("add", dtype) for dtype in ("uint32", "int32", "uint64", "float16", "float32")),
    *(
        (operator, dtype)
        for operator in ("min", "max")
        for dtype in ("uint32", "int32", "int64", "float16")
    ),
    *((operator, dtype) for operator in ("and", "or", "xor") for dtype in ("uint32", "uint64")),
    ("inc", "uint32"),
    ("dec", "uint32"),
)
_KINDS = {"float16": "f16", "float32": "f32"}


def _reduction_arguments(dtype: str, boxes: Boxes, rng: np.random.Generator) -> list[Argument]:
    kind = _KINDS.get(dtype, f"b{8 * np.dtype(dtype).itemsize}")
    tensor = boxes.tensor(rng)
    image, memory = inputs.draw((kind, kind), rng, 16384 * 8 // inputs.width_of(kind))
    tensor.array[...] = memory[: tensor.array.size].view(dtype).reshape(tensor.array.shape)
    return [image, tensor]


def _reductions() -> Iterator[Case]:
    for operation, dtype in _REDUCTIONS:
        inner = 128 // np.dtype(dtype).itemsize
        boxes = Boxes(dtype, (50, 2 * inner), (48, inner), (5, inner // 2), 128)
        mnemonic = f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{operation}.tile.bulk_group"
        body = f"""
        @p1 {mnemonic} [d8, {boxes.coordinates}], [r1];
        cp.async.bulk.commit_group;
        cp.async.bulk.wait_group 0;"""
        kind = _KINDS.get(dtype, f"u{8 * np.dtype(dtype).itemsize}")
        yield staged(
            f"reduce {operation} {dtype}",
            body,
            partial(_reduction_arguments, dtype, boxes),
            [Output(1, kind)],
            maps=[1],
            num_args=2,
            draws_image=True,
        )


_BOXES = tuple(_boxes())
_STORED = tuple(replace(boxes, origin=tuple(max(0, i) for i in boxes.origin)) for boxes in _BOXES)
GROUPS = (
    Group("tensor-loads", "tensor loads, 1D to 5D, every swizzle", tuple(map(load, _BOXES))),
    Group("tensor-stores", "tensor stores, 1D to 5D, every swizzle", tuple(map(store, _STORED))),
    Group(
        "tensor-narrow",
        "boxes narrower than their swizzle",
        tuple(map(store, NARROW)) + tuple(map(load, NARROW)),
    ),
    Group("tensor-reductions", "tensor reductions", tuple(_reductions())),
)
