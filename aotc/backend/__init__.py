"""From gpu IR to cubin: LLVM IR text, PTX text and the binary, one function per stage."""

from __future__ import annotations

from aotc.backend import rules as _rules  # registers the lowering rules
from aotc.backend.assembly_errors import find_assembly_error
from aotc.backend.cubin_code import code_difference
from aotc.backend.cubin_params import param_places
from aotc.backend.line_sections import without_lines, without_ptx_lines
from aotc.backend.lower import Lowered, ParamSlot, lower_kernel
from aotc.backend.ptx import emit_ptx
from aotc.backend.ptxas import (
    Assembly,
    CrashError,
    FewRegistersError,
    OverLimitError,
    Ptxas,
    RefusedError,
    assemble,
    disassemble,
    end_tools,
)
from aotc.backend.wgmma_registers import RegisterHazard, find_hazards

__all__ = [
    "Assembly",
    "CrashError",
    "FewRegistersError",
    "Lowered",
    "OverLimitError",
    "ParamSlot",
    "Ptxas",
    "RefusedError",
    "RegisterHazard",
    "assemble",
    "code_difference",
    "disassemble",
    "emit_ptx",
    "end_tools",
    "find_assembly_error",
    "find_hazards",
    "lower_kernel",
    "param_places",
    "without_lines",
    "without_ptx_lines",
]

del _rules
