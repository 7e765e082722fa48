"""LLVM IR text to PTX text.

The code generator is all that is needed: what rules write is already free of the redundancy that
LLVM's optimiser exists for, and ptxas optimises again. Only kernels that call libdevice have
something to inline first.
"""

from __future__ import annotations

import re

from aotc.backend.libdevice import resolve
from aotc.backend.llvm import parse, run_passes, target_machine
from aotc.target import Target

_BANNER = re.compile(r"\A(?://[^\n]*\n)+\n*")


def emit_ptx(llvm_ir: str, target: Target) -> str:
    """Return the PTX of a module of LLVM IR.

    Raises: IRError if the text is no valid LLVM IR, or calls what libdevice does not have.
    """
    resolved = resolve(llvm_ir, target.arch)
    module = parse(resolved)
    if resolved != llvm_ir:
        run_passes(module, ("always_inliner", "global_dead_code_eliminate"))
    return _BANNER.sub("", target_machine(target).emit_assembly(module))
