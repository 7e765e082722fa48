"""Memory before a launch's first instruction: arguments, variables, constants.

Invariant: an argument is taken unchanged or refused; no conversion loses bits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import copied
from aotc.verify.emulator.async_copies.tensor_argument import (
    PlacedTensor,
    TensorArgument,
    TensorTable,
)
from aotc.verify.emulator.engine.machine import Image
from aotc.verify.emulator.errors import EmulationError
from aotc.verify.emulator.memory.global_memory import GlobalMemory
from aotc.verify.emulator.memory.local_memory import LOCAL_BASE_ADDRESS
from aotc.verify.emulator.memory.shared_memory import BASE_ADDRESS
from aotc.verify.emulator.text.program import Kernel, Module, Param, Variable

Masks: TypeAlias = "Mapping[int, npt.NDArray[np.bool_]]"


@dataclass(frozen=True)
class PointerTable:
    """Describe a table of addresses in global memory; the kernel gets the table's address.

    The addresses cycle through `arrays`; each array has a mask of readable and one of writable
    elements.
    """

    num_addresses: int
    arrays: tuple[npt.NDArray[Any], ...]
    masks: tuple[tuple[npt.NDArray[np.bool_] | None, npt.NDArray[np.bool_] | None], ...]

    def place(self, memory: GlobalMemory, name: str) -> int:
        """Map the arrays and the table into global memory; return the table's address."""
        addresses = [
            memory.add(f"{name}[{index}]", array, *masks)
            for index, (array, masks) in enumerate(zip(self.arrays, self.masks, strict=True))
        ]
        table = np.resize(np.array(addresses, np.int64), self.num_addresses)
        table.flags.writeable = False
        return memory.add(name, table)


Tensor: TypeAlias = TensorArgument | PlacedTensor | TensorTable
Argument: TypeAlias = (
    "npt.NDArray[Any] | Tensor | PointerTable | np.generic | int | float | bool | bytes"
)

_FLOAT_FORMATS = {4: "<f", 8: "<d"}


@dataclass(frozen=True)
class ParameterBlock:
    """Hold the parameter bytes of each launch, and the memory they share."""

    params: tuple[bytes, ...]
    memory: GlobalMemory


def make_image(
    module: Module,
    kernel: Kernel,
    args: Sequence[Argument] | ParameterBlock,
    readable: Masks,
    writable: Masks,
) -> tuple[Image, GlobalMemory]:
    """Return the memory image of a launch, and global memory with the arrays mapped.

    Raises: EmulationError if the arguments do not match the kernel's parameters.
    """
    block = args
    if not isinstance(block, ParameterBlock):
        block = _block(kernel, block, readable, writable)
    memory = block.memory
    padded = (param_block.ljust(kernel.param_bytes, b"\0") for param_block in block.params)
    params = np.stack([np.frombuffer(param_block, np.uint8) for param_block in padded])
    addresses = {param.name: param.offset for param in kernel.params}
    variables = [*module.variables.values(), *kernel.variables.values()]
    constants = bytearray()
    for variable in variables:
        data = variable.data.ljust(variable.size_bytes, b"\0")
        if variable.space == "global":
            # Strings and tables: LLVM marks neither as constant, and kernels write neither.
            addresses[variable.name] = memory.add(variable.name, _owned(data))
        elif variable.space == "const":
            constants += b"\0" * (-len(constants) % variable.align)
            addresses[variable.name] = len(constants)
            constants += data
    static_bytes = _assign_addresses(addresses, variables, "shared", BASE_ADDRESS)
    local_bytes = _assign_addresses(addresses, variables, "local", LOCAL_BASE_ADDRESS)
    constant = np.frombuffer(bytes(constants), np.uint8)
    constant.flags.writeable = False
    shared = frozenset(variable.name for variable in variables if variable.space == "shared")
    return Image(addresses, shared, params, constant, local_bytes, static_bytes), memory


def _block(
    kernel: Kernel, args: Sequence[Argument], readable: Masks, writable: Masks
) -> ParameterBlock:
    """Write arguments into the parameter buffer, and map their arrays into memory."""
    if len(args) != len(kernel.params):
        raise EmulationError(f"{kernel.name} takes {len(kernel.params)} arguments, got {len(args)}")
    memory = GlobalMemory()
    params = bytearray(kernel.param_bytes)
    for index, (param, arg) in enumerate(zip(kernel.params, args, strict=True)):
        if isinstance(arg, np.ndarray):
            value = _array(memory, param, index, arg, readable.get(index), writable.get(index))
        elif isinstance(arg, TensorArgument | PlacedTensor):
            masks = readable.get(index), writable.get(index)
            value = _sized(param, index, arg.encode(memory, f"argument {index}", *masks))
        elif isinstance(arg, TensorTable | PointerTable):
            address = arg.place(memory, f"argument {index}")
            value = _sized(param, index, address.to_bytes(8, "little"))
        else:
            value = _scalar(param, index, arg)
        params[param.offset : param.offset + param.size_bytes] = value
    return ParameterBlock((bytes(params),), memory)


def _assign_addresses(
    addresses: dict[str, int], variables: Iterable[Variable], space: str, base: int
) -> int:
    """Assign addresses to the variables of a space, sizeless ones last; return the total size."""
    space_variables = [variable for variable in variables if variable.space == space]
    end = 0
    for variable in sorted(space_variables, key=lambda variable: variable.size_bytes == 0):
        start = -(-end // variable.align) * variable.align
        addresses[variable.name] = base + start
        # All dynamic variables (size 0) share one buffer; aligning its start takes room.
        end = max(end, start + variable.size_bytes)
    return end


def _owned(data: bytes) -> npt.NDArray[np.uint8]:
    return copied(np.frombuffer(data, np.uint8))


def _array(
    memory: GlobalMemory,
    param: Param,
    index: int,
    array: npt.NDArray[Any],
    readable: npt.NDArray[np.bool_] | None,
    writable: npt.NDArray[np.bool_] | None,
) -> bytes:
    if param.size_bytes != 8:
        raise EmulationError(
            f"argument {index} is an array, but parameter {param.name} has {param.size_bytes} bytes"
        )
    try:
        address = memory.add(f"argument {index}", array, readable, writable)
    except ValueError as error:
        raise EmulationError(f"argument {index}: {error}") from None
    return address.to_bytes(8, "little")


def _scalar(param: Param, index: int, arg: Argument) -> bytes:
    size = param.size_bytes
    if isinstance(arg, np.generic):
        value = arg.tobytes()
    elif isinstance(arg, bytes | bytearray):
        value = bytes(arg)
    elif isinstance(arg, bool | int):
        if not -(1 << 8 * size - 1) <= int(arg) < 1 << 8 * size:
            raise EmulationError(
                f"argument {index} is {arg}, which does not fit the {size} bytes of {param.name}"
            )
        return (int(arg) & (1 << 8 * size) - 1).to_bytes(size, "little")
    elif isinstance(arg, float) and size in _FLOAT_FORMATS:
        return struct.pack(_FLOAT_FORMATS[size], arg)
    else:
        raise EmulationError(
            f"argument {index} is a {type(arg).__name__}; parameter {param.name} has {size} bytes: "
            "give a number, an array, a NumPy scalar or bytes"
        )
    return _sized(param, index, value)


def _sized(param: Param, index: int, value: bytes) -> bytes:
    if len(value) != param.size_bytes:
        raise EmulationError(
            f"argument {index} has {len(value)} bytes, and parameter {param.name} has "
            f"{param.size_bytes}"
        )
    return value
