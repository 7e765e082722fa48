"""Single stages of a compile: the text of one, continuing from a text, and disassembly.

For tools that inspect a compile instead of running one: `aotc dump`, the audit of SASS, reports of
errors in assembly. Each stage runs as in `aotc.compiler`, so the texts are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotc.compiler import STAGES, CompileRequest, PtxKernel, check_request, translate_request

if TYPE_CHECKING:
    from aotc.backend.debug import LineTable
    from aotc.ir.core import Kernel
    from aotc.ir.diagnostics import CompileError
    from aotc.target import Target


# Printed forms of a cubin: its code, or every section with the lines of the source, if it has them.
LISTINGS = ("sass", "cubin")


def disassemble(cubin: bytes, listing: str = "sass") -> str:
    """Return a listing of a cubin. Raises: IRError if it is none."""
    from aotc import backend  # noqa: PLC0415 - start-up time

    is_whole = listing == "cubin"
    return backend.disassemble(cubin, with_lines=is_whole, is_whole=is_whole)


def disassemble_located(ptx: str, target: Target) -> str:
    """Assemble PTX with line numbers of its source; return SASS with line numbers too."""
    from aotc import backend  # noqa: PLC0415 - start-up time

    cubin = backend.assemble(ptx, target).cubin
    return backend.disassemble(cubin, with_lines=True)


def reassembled_difference(cubin: bytes, ptx: str, target: Target) -> str:
    """Return the first section of a cubin differing from its assembled PTX; "" if none.

    Raises: IRError for PTX rejected by ptxas, ValueError if the bytes are no cubin.
    """
    from aotc import backend  # noqa: PLC0415 - start-up time

    assembled = backend.assemble(ptx, target).cubin
    return backend.code_difference(cubin, assembled)


def find_assembly_error(
    compiled: PtxKernel, line: int, tool: str, reason: str
) -> CompileError | None:
    """Return the error at the kernel's assembly behind a PTX line refused by `tool`, if any."""
    from aotc import backend  # noqa: PLC0415 - start-up time
    from aotc.ir.text import parse_kernel  # noqa: PLC0415

    kernel = parse_kernel(compiled.tile_ir)
    return backend.find_assembly_error(kernel, compiled.ptx, line, tool, reason)


def stage_text(request: CompileRequest, stage: str) -> str:
    """Return the text of one stage, running no later one. Raises: as `compile_kernel`."""
    check_request(request)
    translation = translate_request(request)
    return _advance(translation.kernel, "tile", stage, request)


def continue_from(stage: str, text: str, target_stage: str, request: CompileRequest) -> str:
    """Return the text of stage `target_stage`, made from `text`, the text of an earlier stage.

    Of `request`, only the target and the configuration count.

    Raises: IRError if the text cannot be read.
    """
    from aotc.ir.text import parse_kernel  # noqa: PLC0415

    return _advance(
        parse_kernel(text) if stage in ("tile", "gpu") else text, stage, target_stage, request
    )


def _advance(state: Kernel | str, stage: str, target_stage: str, request: CompileRequest) -> str:
    """Run the stages after `stage` up to `target_stage`."""
    from aotc import backend  # noqa: PLC0415
    from aotc.ir.core import Kernel  # noqa: PLC0415
    from aotc.ir.text import print_kernel  # noqa: PLC0415
    from aotc.schedule.context import Schedule  # noqa: PLC0415
    from aotc.schedule.pipeline import schedule_kernel  # noqa: PLC0415

    target = check_request(request)
    table: LineTable | None = None
    steps = STAGES[STAGES.index(stage) + 1 : STAGES.index(target_stage) + 1]
    for step in (step for step in steps if step == target_stage or step not in LISTINGS):
        if isinstance(state, Kernel):
            if step == "gpu":
                schedule = Schedule(target, request.config, map_pointers=request.map_pointers)
                state = schedule_kernel(state, schedule)
            else:
                # Printed text has no line table: it would have numbers for lines.
                root = None if target_stage == "llvm" else request.line_root
                lowered = backend.lower_kernel(
                    state,
                    target,
                    line_root=root,
                    fuses_multiplies=request.enable_fp_fusion,
                    reflects_ftz=request.enable_reflect_ftz,
                )
                state, table = lowered.llvm_ir, lowered.line_table
        elif step == "ptx":
            state = backend.emit_ptx(state, target, table)
        else:
            state = disassemble(backend.assemble(state, target).cubin, step)
    return state if isinstance(state, str) else print_kernel(state)
