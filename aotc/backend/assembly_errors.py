"""Whose fault PTX is that nobody understands: the compiler's, or assembly's in the kernel's source.

LLVM marks where assembly begins and ends, but not whose it is: the text decides.
"""

from __future__ import annotations

import re

from aotc.ir.assembly import substituted
from aotc.ir.core import Kernel
from aotc.ir.diagnostics import CompileError
from aotc.ir.dialects.assembly import Assembly

_BEGIN, _END = "// begin inline asm", "// end inline asm"


def find_assembly_error(
    kernel: Kernel, ptx: str, line: int, tool: str, reason: str
) -> CompileError | None:
    """Return the error at the assembly for which `tool` refuses line `line` of the PTX, if any.

    That is the one the line is in. Braces that are not closed, and names that are taken, show
    after it only.
    """
    before = ptx.splitlines()[:line]
    starts = [at for at, text in enumerate(before) if text.strip() == _BEGIN]
    for start in reversed(starts):
        rest = ptx.splitlines()[start + 1 :]
        end = next((at for at, text in enumerate(rest) if text.strip() == _END), len(rest))
        op = _assembly_of(kernel, "\n".join(rest[:end]))
        if op is not None:
            inside = line <= start + 1 + end
            where = "this assembly" if inside else "what follows this assembly"
            remedy = "see the PTX ISA for what the target has, and for how it is written"
            if not inside:
                remedy = "close its braces, and declare its registers inside of them"
            return CompileError(f"{tool} refuses {where}: {reason}", op.loc, remedy=remedy)
    return None


def _assembly_of(kernel: Kernel, text: str) -> Assembly | None:
    """Return the op that a piece of assembly in PTX was made from."""
    for op in kernel.walk():
        if isinstance(op, Assembly):
            pattern = re.escape(" ".join(substituted(op.text, lambda _: "\0").split()))
            if re.fullmatch(pattern.replace("\0", r"%\w+"), " ".join(text.split())):
                return op
    return None
