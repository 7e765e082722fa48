"""Attribute rejected PTX: to the compiler, or to inline assembly in the kernel's source.

LLVM marks the begin and end of assembly, but not its op: the text decides.
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
    """Return the error at the assembly behind line `line` of the PTX, if any.

    `tool` rejected this line. It is in the assembly, or else after it: unclosed braces and
    duplicate names are only reported later.
    """
    before = ptx.splitlines()[:line]
    starts = [index for index, text in enumerate(before) if text.strip() == _BEGIN]
    for start in reversed(starts):
        rest = ptx.splitlines()[start + 1 :]
        end = next((index for index, text in enumerate(rest) if text.strip() == _END), len(rest))
        op = _assembly_of(kernel, "\n".join(rest[:end]))
        if op is not None:
            inside = line <= start + 1 + end
            where = "this assembly" if inside else "the code after this assembly"
            remedy = "see the PTX ISA for the target's instructions and their syntax"
            if not inside:
                remedy = "close its braces, and declare its registers inside of them"
            return CompileError(f"{tool} refuses {where}: {reason}", op.loc, remedy=remedy)
    return None


def _assembly_of(kernel: Kernel, text: str) -> Assembly | None:
    """Return the op behind a piece of assembly in PTX."""
    for op in kernel.walk():
        if isinstance(op, Assembly):
            pattern = re.escape(" ".join(substituted(op.text, lambda _: "\0").split()))
            if re.fullmatch(pattern.replace("\0", r"%\w+"), " ".join(text.split())):
                return op
    return None
