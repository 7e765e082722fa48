"""Give a `wgmma` in flight registers of its own for its fragment of A.

To LLVM an operand is read when the `wgmma` is issued, so the register may be written right after.
Slices with equal fragments share registers then, and an iteration overwrites those of the previous
one, whose last dot is still in flight. Such fragments are copied where the `wgmma` is issued.

Invariant: PTX without such a hazard is unchanged.
"""

from __future__ import annotations

import re

from aotc.backend.wgmma_registers import RegisterHazard, find_hazards

_FRAGMENT = re.compile(r"(wgmma\.mma_async\S*\s*\{[^}]*\}\s*,\s*\{)([^}]*)(\})")


def keep_fragments_apart(ptx: str) -> str:
    """Return PTX with copies of the fragments that are overwritten while a `wgmma` reads them.

    PTX with other hazards is returned as it is.
    """
    hazards = find_hazards(ptx)
    if not hazards or not all(map(_is_overwritten, hazards)):
        return ptx
    lines = ptx.split("\n")
    for number in sorted({hazard.wgmma_line for hazard in hazards}):
        lines[number - 1] = _with_copies(lines[number - 1], number)
    copied = "\n".join(lines)
    return ptx if find_hazards(copied) else copied


def _is_overwritten(hazard: RegisterHazard) -> bool:
    return hazard.access == "written" and hazard.use == "read"


def _with_copies(line: str, number: int) -> str:
    """Return the line of a `wgmma` in braces that reads copies of its fragment."""
    match = _FRAGMENT.search(line)
    head, brace, rest = line.partition("{ ")
    if match is None or head.strip():
        return line
    registers = [register.strip() for register in match[2].split(",")]
    copies = {
        register: f"%fragment{number}{index:03}"
        for index, register in enumerate(dict.fromkeys(registers))
    }
    moves = "".join(f"mov.b32 {copy}, {register}; " for register, copy in copies.items())
    names = f".reg .b32 {', '.join(copies.values())}; "
    operands = ", ".join(copies[register] for register in registers)
    rest = _FRAGMENT.sub(lambda found: f"{found[1]}{operands}{found[3]}", rest, count=1)
    return f"{head}{brace}{names}{moves}{rest}"
