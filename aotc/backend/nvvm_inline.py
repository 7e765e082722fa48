"""Inline assembly of the user, spelled in LLVM IR."""

from __future__ import annotations

from collections.abc import Sequence

from aotc.backend.emitter import Emitter, quoted
from aotc.ir.assembly import Operands, Register

_TYPES = {"h": "i16", "r": "i32", "l": "i64", "f": "float", "d": "double"}
_FLOATS = ("f", "d")


def word_bits(register: Register) -> int:
    """Return the width of an integer for the elements of a register: 16 at least."""
    return max(16, register.used_bits)


def inline_asm(
    emit: Emitter, text: str, operands: Operands, words: Sequence[str], *, pure: bool
) -> list[str]:
    """Emit inline assembly; return its outputs. `words` hold the elements of its inputs."""
    arguments = [
        f"{_TYPES[register.letter]} {_to_register(emit, word, register)}"
        for word, register in zip(words, operands.inputs, strict=True)
    ]
    kinds = [_TYPES[register.letter] for register in operands.outputs]
    returned = kinds[0] if len(kinds) == 1 else "{" + ", ".join(kinds) + "}"
    shown = ", ".join(arguments)
    asm = f'"{quoted(text.encode())}", "{quoted(operands.constraints.encode())}"({shown})'
    if pure:
        out = emit.value(f"call {returned} asm {asm}")
    else:
        out = emit.fresh(f"call {returned} asm sideeffect {asm} convergent")
    outs = [out]
    if len(kinds) > 1:
        outs = [
            emit.value(f"extractvalue {returned} {out}, {index}") for index in range(len(kinds))
        ]
    return [
        _from_register(emit, value, register)
        for value, register in zip(outs, operands.outputs, strict=True)
    ]


def _to_register(emit: Emitter, word: str, register: Register) -> str:
    kind, bits = _TYPES[register.letter], word_bits(register)
    if register.letter in _FLOATS:
        return emit.value(f"bitcast i{bits} {word} to {kind}")
    return word if bits == register.bits else emit.value(f"zext i{bits} {word} to {kind}")


def _from_register(emit: Emitter, value: str, register: Register) -> str:
    kind, bits = _TYPES[register.letter], word_bits(register)
    if register.letter in _FLOATS:
        return emit.value(f"bitcast {kind} {value} to i{bits}")
    return value if bits == register.bits else emit.value(f"trunc {kind} {value} to i{bits}")
