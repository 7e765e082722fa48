"""`tl.inline_asm_elementwise`: PTX in the source of a kernel, applied to the elements of tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language.convert import (
    broadcast,
    static_bool,
    static_int,
    static_scalar_dtype,
    static_str,
    to_value,
)
from aotc.frontend.values import Operand, element, is_tuple, show, show_type
from aotc.ir.assembly import AssemblyError, check, renumbered
from aotc.ir.dialects import assembly

_NAME = "tl.inline_asm_elementwise"
_IMMEDIATE = "n"


def inline_asm_elementwise(
    emit: Emitter,
    asm: Operand,
    constraints: Operand,
    args: Operand,
    dtype: Operand,
    is_pure: Operand,
    pack: Operand,
) -> Operand:
    """Apply PTX to `pack` elements at a time of `args`, brought to one shape."""
    text = static_str(asm, f"the assembly of {_NAME}")
    registers = static_str(constraints, f"the constraints of {_NAME}")
    if not is_tuple(args):
        raise mistake(
            f"the args of {_NAME} must be a list or a tuple, got {show(args)}",
            remedy="write args=[x]",
        )
    text, registers, rest = _with_immediates(text, registers, args)
    values = broadcast(
        emit, *(to_value(emit, operand, f"a number or a tile for {_NAME}") for operand in rest)
    )
    dtype_operands = dtype if is_tuple(dtype) else (dtype,)
    dtypes = tuple(
        static_scalar_dtype(operand, f"the dtype of {_NAME}") for operand in dtype_operands
    )
    count = static_int(pack, f"the pack of {_NAME}")
    try:
        check(text, registers, [element(value) for value in values], dtypes, count)
    except AssemblyError as error:
        actual = ", ".join(show_type(value.type) for value in values)
        results = ", ".join(map(show_type, dtypes))
        remedy = error.remedy or f"it is given ({actual}) and returns ({results})"
        raise mistake(f"{_NAME}: {error}", remedy=remedy) from error
    only_computes = static_bool(is_pure, f"the is_pure of {_NAME}")
    op = assembly.InlineAsm if only_computes else assembly.VolatileAsm
    outs = emit(op(text, registers, dtypes, count, values)).outs
    return tuple(outs) if is_tuple(dtype) else outs[0]


def _with_immediates(
    text: str, constraints: str, args: Sequence[Operand]
) -> tuple[str, str, list[Operand]]:
    """Write compile-time operands (constraint `n`) into the text.

    If there are any, each argument has one constraint. Returns text, constraints and arguments without them.
    """
    parts = [part.strip() for part in constraints.split(",")]
    if _IMMEDIATE not in parts:
        return text, constraints, list(args)
    first = sum(part.startswith("=") for part in parts)
    inputs = [part for part in parts[first:] if not part.startswith("~")]
    if len(inputs) != len(args):
        raise mistake(
            f"{_NAME}: expected a constraint for each of {len(args)} arguments beside 'n', got {len(inputs)}",
            remedy="write the number into the assembly, or use pack=1",
        )
    names: dict[int, str] = {}
    registers: list[tuple[str, Operand]] = []
    for number, (part, arg) in enumerate(zip(inputs, args, strict=True), first):
        if part == _IMMEDIATE:
            names[number] = str(static_int(arg, f"an argument of {_NAME} with the constraint 'n'"))
        else:
            names[number] = f"${{{first + len(registers)}}}"
            registers.append((part, arg))
    clobbers = parts[first + len(inputs) :]
    left = ",".join([*parts[:first], *(part for part, _ in registers), *clobbers])
    return renumbered(text, names), left, [arg for _, arg in registers]


FUNCTIONS: dict[str, Callable[..., Operand]] = {"inline_asm_elementwise": inline_asm_elementwise}
