"""Launch parameters of a scheduled kernel, computed as the launcher would.

The schedule takes tensors apart: one argument yields a map, extents and strides, and some maps
describe a pointer's memory. Such a kernel is launched only where its guards hold and the driver
would encode its maps.
"""

# NumPy's own stubs leave overloads of ndarray's methods partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from aotc.ir.core import Kernel, Value
from aotc.ir.dialects.descriptor import TENSOR_ALIGNMENT_BYTES
from aotc.ir.encoded_element import encoded_element
from aotc.ir.expression import evaluate, parse
from aotc.ir.params import GRID_SOURCES, LAUNCH_SOURCES, SCRATCH_SOURCE, TensorSource
from aotc.ir.types import DescriptorType, TensorMapType
from aotc.verify.emulator.arguments import Argument
from aotc.verify.emulator.async_copies.tensor_argument import PlacedTensor
from aotc.verify.interpreter.persistent_grid import num_persistent_ctas
from tests.fuzz.arguments import Array

Given = Mapping[str, "Array | int"]

_NOISE = 0xA5


def arguments(kernel: Kernel, inputs: Given) -> list[Array | int]:
    """Return the arguments used by parameters, each once, in the order of parameters."""
    names = [info.argument for info in kernel.params if info.source not in LAUNCH_SOURCES]
    return [inputs[name] for name in dict.fromkeys(names)]


def is_allowed(kernel: Kernel, inputs: Given) -> bool:
    """Return whether the launcher may choose this kernel for a launch."""
    numbers = _numbers(inputs)
    if not all(evaluate(parse(guard), numbers) for guard in kernel.guards):
        return False
    return all(
        _is_encodable(info.tensor, arg.type.element.size_bytes, inputs)
        for info, arg in zip(kernel.params, kernel.body.args, strict=True)
        if info.tensor is not None and isinstance(arg.type, DescriptorType | TensorMapType)
    )


def _is_encodable(tensor: TensorSource, size_bytes: int, inputs: Given) -> bool:
    """Return whether the driver makes a map of a tensor. Source: `cuTensorMapEncodeTiled`."""
    array, numbers = inputs[tensor.address], _numbers(inputs)
    assert isinstance(array, np.ndarray)
    extents = [evaluate(parse(text), numbers) for text in tensor.shape]
    strides = [evaluate(parse(text), numbers) * size_bytes for text in tensor.strides]
    addresses = (array.ctypes.data, *strides)
    aligned = all(address % TENSOR_ALIGNMENT_BYTES == 0 for address in addresses)
    return aligned and min(extents) >= 1 and all(stride >= 0 for stride in strides)


def parameters(kernel: Kernel, inputs: Given, grid: Sequence[int]) -> list[Argument]:
    """Return the launch value of each parameter of a scheduled kernel."""
    values = {**_numbers(inputs), **dict(zip(GRID_SOURCES, (*grid, 1, 1), strict=False))}
    passed: list[Argument] = []
    for info, arg in zip(kernel.params, kernel.body.args, strict=True):
        if info.source in values:
            passed.append(values[info.source])
        elif info.source == SCRATCH_SOURCE:
            passed.append(scratch(kernel, grid))
        elif isinstance(arg.type, TensorMapType):
            passed.append(_map(arg, info.tensor, inputs[info.argument], values))
        else:
            passed.append(inputs[info.argument])
    return passed


def scratch(kernel: Kernel, grid: Sequence[int]) -> Array:
    """Return the scratch memory of a launch, with noise in it."""
    return np.full(kernel.scratch_bytes * math.prod(grid), _NOISE, np.uint8)


def ctas(kernel: Kernel, grid: Sequence[int]) -> tuple[int, ...]:
    """Return the grid of CTAs for a grid of program instances."""
    extents = (num_persistent_ctas(grid), 1, 1) if kernel.is_persistent else tuple(grid)
    return (extents[0] * kernel.num_ctas, *extents[1:])


def _map(
    arg: Value,
    tensor: TensorSource | None,
    array: Array | int,
    values: Mapping[str, int],
) -> PlacedTensor:
    kind = arg.type
    assert isinstance(kind, TensorMapType)
    assert isinstance(array, np.ndarray)
    if tensor is None:
        shape = array.shape
        strides = tuple(stride // array.itemsize for stride in array.strides[:-1])
    else:
        shape, strides = (
            tuple(evaluate(parse(text), values) for text in texts)
            for texts in (tensor.shape, tensor.strides)
        )
    form = (kind.box, kind.swizzle_bytes, kind.fill_nan)
    return PlacedTensor(array, encoded_element(arg).name, shape, (*strides, 1), *form)


def _numbers(inputs: Given) -> dict[str, int]:
    """Return the numbers available to expressions: "n", "x.shape[0]", "x.strides[1]"."""
    numbers = {name: value for name, value in inputs.items() if isinstance(value, int)}
    for name, array in inputs.items():
        if isinstance(array, np.ndarray):
            strides = [stride // array.itemsize for stride in array.strides]
            for kind, sizes in (("shape", array.shape), ("strides", strides)):
                numbers.update((f"{name}.{kind}[{axis}]", int(n)) for axis, n in enumerate(sizes))
    return numbers
