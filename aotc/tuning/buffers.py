"""Plan the buffers of a launch: their sizes and contents.

Without the kernel's tile IR, only the launch gives the sizes; `inputs.py` plans the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aotc.ir.types import SCALARS, ScalarType
from aotc.package.archive.index import Kernel
from aotc.package.tuning.shapes import Launch
from aotc.verify.checks import input_data
from aotc.verify.checks.contents import HEAD_BYTES, Contents, Listed, loaded_dtype
from aotc.verify.interpreter.numerics import dtype_of

if TYPE_CHECKING:
    from aotc.package.verify.subjects import Subject


class UnsizedError(Exception):
    """The size of a buffer is unknown; the message has the reason and a remedy."""


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """One buffer: `size_bytes` are accessed by launches, `room_bytes` are to be allocated.

    Both count from `HEAD_BYTES` before the pointer. A tensor has a `shape` and `strides` in
    elements. A buffer of addresses lists its target buffers in `pointees`, repeated.
    """

    name: str
    element: ScalarType
    size_bytes: int
    room_bytes: int
    contents: Contents | Listed
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    pointees: tuple[str, ...] = ()


def buffers_of(
    launch: Launch, kernel: Kernel, subjects: Sequence[Subject], seed: int
) -> tuple[BufferPlan, ...]:
    """Return the buffers of a launch, measured on the interpreter if there are subjects.

    Raises: UnsizedError.
    """
    if not subjects:
        return described_buffers(launch, kernel, seed)
    from aotc.tuning.inputs import measured_buffers  # noqa: PLC0415 - start-up time

    return measured_buffers(launch, subjects, seed)


def described_buffers(launch: Launch, kernel: Kernel, seed: int) -> tuple[BufferPlan, ...]:
    """Return the buffers as described by the launch alone. Raises: UnsizedError."""
    plans: list[BufferPlan] = []
    for index, param in enumerate(kernel.params):
        if param.kind == "scalar" or param.name in launch.null_pointers:
            continue
        element = SCALARS[launch.types.get(param.element, param.element)]
        shape = tuple(launch.key[f"{param.name}.shape[{axis}]"] for axis in range(param.rank))
        strides = _padded_strides(shape, element)
        size = launch.sizes.get(param.name)
        if param.kind == "tensor":
            size = shape[0] * strides[0]
        if size is None:
            message = f"nothing says how large the buffer of {param.name} is"
            remedy = f'give --manifest, or "{param.name}.size" in the shapes'
            raise UnsizedError(f"{message}; {remedy}")
        size_bytes = HEAD_BYTES + size * element.size_bytes
        contents = _contents(element, seed + index)
        plans.append(
            BufferPlan(param.name, element, size_bytes, size_bytes, contents, shape, strides)
        )
    return tuple(plans)


def _contents(element: ScalarType, seed: int) -> Contents | Listed:
    if element.is_float:
        return input_data.floats(element, seed)
    # An index must stay within a buffer of unknown size.
    return Listed(np.zeros(1, loaded_dtype(element)))


def _padded_strides(shape: Sequence[int], element: ScalarType) -> tuple[int, ...]:
    """Return strides, in elements, for rows starting at multiples of 16 bytes."""
    if not shape:
        return ()
    grain = 16 // dtype_of(element).itemsize
    strides = [1]
    for extent in shape[:0:-1]:
        strides.insert(0, -(-extent * strides[0] // grain) * grain)
    return tuple(strides)
