"""Find cubins whose code overwrites its stack pointer, R1, the base of spilled registers.

ptxas 12.9 to 13.5 silently allocate R1 to values in some kernels that spill. Loads from the stack
are then undefined, or the launch ends with an illegal address. Disassembling each kernel that
spills would take long. So only cubins are disassembled in which many instructions have a 1 in the
usual place of the result register.
"""

from __future__ import annotations

import re

from aotc.backend.cubin_code import code_sections

_INSTRUCTION_BYTES = 16
_RESULT = 2  # the byte with an instruction's result register
_OPCODE = 0xFFF
# BSSY, BSYNC and BREAK have the number of a convergence barrier there.
_BARRIERS = frozenset((0x945, 0x941, 0x942))
_POINTER = 1
# Loading the pointer, and making room.
_PROLOGUE_WRITES = 2
_WRITE = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s+(?:!?U?P\w+, )*R1, ([^;]*);",
    re.MULTILINE,
)
_STEP = re.compile(r"R1, -?0x[0-9a-f]+(?:, RZ)?\s*$")


def may_overwrite_stack(cubin: bytes) -> bool:
    """Return whether many instructions seem to write the stack pointer."""
    writes = 0
    for code in code_sections(cubin):
        results = code[_RESULT::_INSTRUCTION_BYTES]
        position = results.find(_POINTER)
        while position >= 0:
            start = position * _INSTRUCTION_BYTES
            opcode = int.from_bytes(code[start : start + 2], "little") & _OPCODE
            writes += opcode not in _BARRIERS
            position = results.find(_POINTER, position + 1)
    return writes > _PROLOGUE_WRITES


def overwritten_stack(sass: str) -> str:
    """Return the first instruction that overwrites the stack pointer, "" if none does."""
    if "[R1" not in sass:
        return ""
    for write in list(_WRITE.finditer(sass))[1:]:  # the first write loads the pointer
        if _STEP.match(write[2]) is None:
            return " ".join(write[0].rstrip("; ").split()[1:])
    return ""
