"""Rules for inline assembly: its instances run side by side, in the emulator."""

from __future__ import annotations

import numpy as np

from aotc.ir.assembly import Register
from aotc.ir.core import Op
from aotc.ir.dialects.assembly import InlineAsm, VolatileAsm
from aotc.ir.types import ScalarType
from aotc.verify.arrays import Array, reshape, view
from aotc.verify.interpreter.inline_assembly import NotEmulatedError, run_assembly
from aotc.verify.interpreter.numerics import dtype_of
from aotc.verify.interpreter.program import Program, Rule


def _assembly(program: Program, op: InlineAsm | VolatileAsm, *arguments: Array) -> list[Array]:
    shape = np.broadcast_shapes(*(value.shape for value in arguments))
    groups = [_grouped(np.broadcast_to(value, shape), op.pack) for value in arguments]
    operands = op.registers
    inputs = [_word(groups[register.value], register) for register in operands.inputs]
    try:
        words = run_assembly(op.text, operands, inputs)
    except NotEmulatedError as error:
        raise program.error(op, f"cannot be emulated: {error}") from error
    count = len(words[0])
    outs = [np.empty((count, op.pack), dtype_of(dtype)) for dtype in op.dtypes]
    for word, register in zip(words, operands.outputs, strict=True):
        columns = slice(register.first, register.first + register.num_elems)
        outs[register.value][:, columns] = _elements(word, register)
    size = int(np.prod(shape))
    return [reshape(reshape(out, -1)[:size], shape) for out in outs]


def _grouped(value: Array, pack: int) -> Array:
    """Return elements in rows of `pack`, the last row padded with the last element."""
    flat = reshape(np.ascontiguousarray(value), -1)
    return reshape(np.pad(flat, (0, -len(flat) % pack), mode="edge"), -1, pack)


def _word(group: Array, register: Register) -> Array:
    """Return the register's word of each row."""
    part = np.ascontiguousarray(group[:, register.first : register.first + register.num_elems])
    return reshape(view(part, f"u{register.used_bits // 8}"), -1).astype(f"u{register.bits // 8}")


def _elements(word: Array, register: Register) -> Array:
    """Return the rows of elements in a register's words."""
    element = register.element
    assert isinstance(element, ScalarType)
    low_bits = word.astype(f"u{register.used_bits // 8}")
    if element.is_bool:
        return reshape(low_bits, -1, 1) != 0
    return reshape(view(low_bits, dtype_of(element)), -1, register.num_elems)


ASSEMBLY_RULES: dict[type[Op], Rule] = {InlineAsm: _assembly, VolatileAsm: _assembly}
