"""Parsed `wgmma.mma_async`: shape, types, operand locations and negations.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Operation using
wgmma.mma_async instruction".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from aotc.verify.emulator.errors import Unsupported
from aotc.verify.emulator.mma.formats import FORMATS, Format
from aotc.verify.emulator.mma.fragments import Fragment, accumulator, operand_a
from aotc.verify.emulator.syntax import Immediate, Instruction, Operand, Register, Vector

WARP_ROWS = 16  # of the 64 rows of a warpgroup
_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_K_BITS = 256  # per row of an operand
_FLOATS = frozenset({"f16", "f32"})
_FP8 = ("e4m3", "e5m2")
_RESULTS = {
    "f16": _FLOATS,
    "bf16": frozenset({"f32"}),
    "tf32": frozenset({"f32"}),
    "e4m3": _FLOATS,
    "e5m2": _FLOATS,
    "s8": frozenset({"s32"}),
    "u8": frozenset({"s32"}),
    "b1": frozenset({"s32"}),
}
_WORDS = frozenset({"mma_async", "sync", "aligned", "satfinite", "and", "popc"})


@dataclass(frozen=True)
class Form:
    """Describe one instruction; `a_registers` is empty when A is in shared memory.

    The negations apply to whole operands; `transposed` means M or N is contiguous, not K.
    """

    n: int
    k: int
    result: str
    a_format: Format
    b_format: Format
    saturate: bool
    d_registers: tuple[Register, ...]
    d_rows: tuple[int, ...]  # of `d_registers`, for quick look-up
    a_registers: tuple[Register, ...]
    a_descriptor: Operand | None
    b_descriptor: Operand
    scale_d: Operand
    negate_a: bool
    negate_b: bool
    a_transposed: bool
    b_transposed: bool

    @property
    def is_narrow(self) -> bool:
        """Whether sums have few bits before rounding, as for fp8 products."""
        return self.a_format.name in _FP8

    @property
    def d_fragment(self) -> Fragment:
        """Fragment of the result in a warp's registers."""
        return accumulator(WARP_ROWS, self.n, FORMATS[self.result].bits)

    @property
    def a_fragment(self) -> Fragment:
        """Fragment of A in a warp's registers, if A is in registers."""
        return operand_a(WARP_ROWS, self.k, self.a_format.bits)


def _registers(operand: Operand) -> tuple[Register, ...]:
    elements = operand.elements if isinstance(operand, Vector) else ()
    registers = tuple(element for element in elements if isinstance(element, Register))
    if len(registers) != len(elements) or any(element.bits != 32 for element in registers):
        raise Unsupported("operands that are no 32-bit registers")
    return registers


def _constants(operands: tuple[Operand, ...]) -> list[int]:
    values = [operand.value for operand in operands if isinstance(operand, Immediate)]
    if len(values) != len(operands):
        raise Unsupported("scales and transpositions that are no constants")
    return values


def _shape(modifiers: tuple[str, ...]) -> tuple[int, int, list[str]]:
    shapes = [match for word in modifiers if (match := _SHAPE.fullmatch(word))]
    types = [word for word in modifiers if word in FORMATS]
    unknown = [
        word
        for word in modifiers
        if word not in _WORDS and word not in FORMATS and not _SHAPE.fullmatch(word)
    ]
    if unknown or len(shapes) != 1 or len(types) != 3:
        raise Unsupported(f"the modifier .{unknown[0]}" if unknown else "its shape or its types")
    return int(shapes[0][1]), int(shapes[0][2]), types


def form_of(instruction: Instruction) -> Form:
    """Parse a `wgmma.mma_async`.

    Raises: Unsupported for forms outside the ISA.
    """
    n, k, (result, a_type, b_type) = _shape(instruction.modifiers)
    a_format, b_format = FORMATS[a_type], FORMATS[b_type]
    step = 16 if a_format.is_int and n > 32 else 8
    if n % step or not 8 <= n <= 256 or k * a_format.bits != _K_BITS:
        raise Unsupported(f"m64n{n}k{k} of {a_type}")
    if result not in _RESULTS.get(a_type, frozenset()) or a_format.bits != b_format.bits:
        raise Unsupported(f"{a_type} times {b_type} with a result of {result}")
    if a_format.is_int != b_format.is_int or (a_format.bits > 8 and a_type != b_type):
        raise Unsupported(f"{a_type} times {b_type}")
    d, a, b, scale_d, *rest = instruction.operands
    in_registers = isinstance(a, Vector)
    scales = [1, 1] if a_format.is_int else _constants(tuple(rest[:2]))
    transpositions = _constants(tuple(rest[2:]))
    expected = (0 if in_registers else 1) + 1 if a_format.bits == 16 else 0
    if len(transpositions) != expected or any(scale not in (1, -1) for scale in scales):
        raise Unsupported(f"{len(rest)} operands after scale-d")
    transpositions = [0] * (2 - expected) + transpositions
    form = Form(
        n=n,
        k=k,
        result=result,
        a_format=a_format,
        b_format=b_format,
        saturate="satfinite" in instruction.modifiers,
        d_registers=_registers(d),
        d_rows=tuple(register.row for register in _registers(d)),
        a_registers=_registers(a) if in_registers else (),
        a_descriptor=None if in_registers else a,
        b_descriptor=b,
        scale_d=scale_d,
        negate_a=scales[0] == -1,
        negate_b=scales[1] == -1,
        a_transposed=transpositions[0] == 1,
        b_transposed=transpositions[1] == 1,
    )
    if len(form.d_registers) != form.d_fragment.num_registers:
        raise Unsupported(f"{len(form.d_registers)} registers for 64x{n} of {result}")
    if in_registers and len(form.a_registers) != form.a_fragment.num_registers:
        raise Unsupported(f"{len(form.a_registers)} registers for 64x{k} of {a_type}")
    return form
