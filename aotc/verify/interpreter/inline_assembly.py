"""Run a user's inline assembly on whole arrays, wrapped in a kernel for the emulator.

Each thread runs one instance: it loads the registers of its inputs, executes the text, and
stores the registers of its outputs. Text with more dependences than its inputs (memory, other
threads, special registers) has no meaning here, because the threads are not the kernel's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.ir.assembly import Operands, substituted
from aotc.verify.emulator.compute.registry import COMPUTES
from aotc.verify.emulator.errors import EmulationError, Fault
from aotc.verify.emulator.run import emulate
from aotc.verify.emulator.syntax import Operand, Pair, SpecialRegister, Vector
from aotc.verify.emulator.text.parse import parse_module
from aotc.verify.emulator.text.program import Module

Array: TypeAlias = "npt.NDArray[Any]"

_MAX_THREADS = 128
_WARP = 32
_JUMPS = ("bra", "brx")
_HEAD = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry assembly({params})
{{
.reg .b32 %place, %size, %block;
mov.u32 %place, %tid.x;
mov.u32 %size, %ntid.x;
mov.u32 %block, %ctaid.x;
mad.lo.u32 %place, %block, %size, %place;
"""


class NotEmulatedError(Exception):
    """Report assembly without a meaning here, or with an illegal action."""


def run_assembly(text: str, operands: Operands, inputs: Sequence[Array]) -> list[Array]:
    """Return the registers of the outputs, one array each, of instances side by side.

    `inputs` are unsigned integers as wide as the registers, all of one length.

    Raises: NotEmulatedError.
    """
    count = len(inputs[0]) if inputs else 1
    threads = min(_MAX_THREADS, -(-count // _WARP) * _WARP)
    ctas = -(-count // threads)
    padded = [np.pad(array, (0, ctas * threads - count), mode="edge") for array in inputs]
    outputs = [np.zeros(ctas * threads, f"u{register.bits // 8}") for register in operands.outputs]
    try:
        # Approximate like the compiled kernel, for integers made of such results.
        arrays = [*outputs, *padded]
        emulate(_parsed(text, operands), ctas, arrays, cta_threads=threads, approximate=True)
    except (EmulationError, Fault) as error:
        raise NotEmulatedError(error.message) from error
    return [array[:count] for array in outputs]


@lru_cache(maxsize=256)
def _parsed(text: str, operands: Operands) -> Module:
    """Return the kernel around a text. Raises: EmulationError, NotEmulatedError."""
    registers = (*operands.outputs, *operands.inputs)
    # A tied input uses the output's register.
    names = [
        f"%operand{index if register.tied < 0 else register.tied}"
        for index, register in enumerate(registers)
    ]
    params = ", ".join(f".param .u64 .ptr .global p{index}" for index in range(len(registers)))
    before = [_HEAD.format(params=params)]
    after: list[str] = []
    for index, (name, register) in enumerate(zip(names, registers, strict=True)):
        bits = register.bits
        before.append(f".reg .b64 %address{index};\n")
        before += [f".reg .b{bits} {name};\n"] if register.tied < 0 else []
        before.append(f"ld.param.u64 %address{index}, [p{index}];\n")
        before.append(f"mad.wide.u32 %address{index}, %place, {bits // 8}, %address{index};\n")
        if index < len(operands.outputs):
            after.append(f"st.global.b{bits} [%address{index}], {name};\n")
        else:
            before.append(f"ld.global.b{bits} {name}, [%address{index}];\n")
    written = substituted(text, lambda number: names[number])
    head = "".join(before)
    module = parse_module(f"{head}{written}\n{''.join(after)}ret;\n}}\n")
    first = head.count("\n") + 1
    _check(module, range(first, first + written.count("\n") + 1))
    return module


def _check(module: Module, lines: range) -> None:
    """Raise NotEmulatedError if the text in `lines` depends on more than its operands."""
    for instruction in module.kernels["assembly"].instructions:
        if instruction.line not in lines:
            continue
        if instruction.opcode not in COMPUTES and instruction.opcode not in _JUMPS:
            raise NotEmulatedError(f"`{instruction.text}` is not known to do nothing but compute")
        for operand in _flat(instruction.operands):
            if isinstance(operand, SpecialRegister):
                raise NotEmulatedError(f"`{instruction.text}` reads {operand.name}")


def _flat(operands: Sequence[Operand]) -> Iterator[Operand]:
    for operand in operands:
        if isinstance(operand, Vector):
            yield from _flat(operand.elements)
        elif isinstance(operand, Pair):
            yield from _flat((operand.first, operand.second))
        else:
            yield operand
