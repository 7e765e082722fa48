"""Single stages of a compile: the text of one, continuing from a text, and disassembly.

For tools that inspect a compile instead of running one: `aotc dump`, the audit of SASS, reports of
errors in assembly. Each stage runs as in `aotc.compiler`, so the texts are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotc.compiler import CompileRequest, PtxKernel, check_request, translate_request

if TYPE_CHECKING:
    from aotc.backend.debug import LineTable
    from aotc.edited_stage import EditedStage
    from aotc.ir.core import Kernel
    from aotc.ir.diagnostics import CompileError
    from aotc.target import Target


# Stages that a compile can go on from, in their order.
TEXT_STAGES = ("tile", "gpu", "llvm", "ptx")
# Printed forms of a cubin: its code, or every section with the lines of the source, if it has them.
LISTINGS = ("sass", "sections")


def disassemble(cubin: bytes, listing: str = "sass") -> str:
    """Return a listing of a cubin. Raises: IRError if it is none.

    Besides `LISTINGS` there are "lines", code with lines of the source, and "registers", code with
    the number of live registers.
    """
    from aotc import backend  # noqa: PLC0415 - start-up time

    is_whole = listing == "sections"
    return backend.disassemble(
        cubin,
        with_lines=is_whole or listing == "lines",
        is_whole=is_whole,
        with_registers=listing == "registers",
    )


def without_lines(cubin: bytes) -> bytes:
    """Return a cubin without tables of lines; its code stays."""
    from aotc import backend  # noqa: PLC0415 - start-up time

    return backend.without_lines(cubin)


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
    content = stage_content(request, stage)
    assert isinstance(content, str), f"{stage} is no text"
    return content


def stage_content(request: CompileRequest, stage: str) -> str | bytes:
    """Return one stage, running no later one: the bytes of a cubin, the text of any other.

    Raises: as `compile_kernel`.
    """
    check_request(request)
    translation = translate_request(request)
    return _advance(translation.kernel, "tile", stage, request)


def continue_from(edited: EditedStage, goal: str, request: CompileRequest) -> str | bytes:
    """Return the stage `goal`, made from the text of an earlier stage.

    Of `request`, only the target and the configuration count.

    Raises: IRError if the text cannot be read.
    """
    from aotc.ir.text import parse_kernel  # noqa: PLC0415

    is_ir = edited.stage in ("tile", "gpu")
    state = parse_kernel(edited.text, edited.file) if is_ir else edited.text
    return _advance(state, edited.stage, goal, request)


def _advance(state: Kernel | str, stage: str, goal: str, request: CompileRequest) -> str | bytes:
    """Run the stages after `stage` up to `goal`."""
    from aotc import backend  # noqa: PLC0415
    from aotc.ir.core import Kernel  # noqa: PLC0415
    from aotc.ir.text import print_kernel  # noqa: PLC0415
    from aotc.schedule.context import Schedule  # noqa: PLC0415
    from aotc.schedule.pipeline import schedule_kernel  # noqa: PLC0415

    target = check_request(request)
    table: LineTable | None = None
    last = goal if goal in TEXT_STAGES else TEXT_STAGES[-1]
    for step in TEXT_STAGES[TEXT_STAGES.index(stage) + 1 : TEXT_STAGES.index(last) + 1]:
        if step == "gpu":
            assert isinstance(state, Kernel)
            schedule = Schedule(target, request.config, map_pointers=request.map_pointers)
            state = schedule_kernel(state, schedule)
        elif step == "llvm":
            assert isinstance(state, Kernel)
            lowered = backend.lower_kernel(
                state,
                target,
                # Printed text has no line table: it would have numbers for lines.
                line_root=None if goal == "llvm" else request.line_root,
                fuses_multiplies=request.enable_fp_fusion,
                reflects_ftz=request.enable_reflect_ftz,
            )
            state, table = lowered.llvm_ir, lowered.line_table
        else:
            assert isinstance(state, str)
            state = backend.emit_ptx(state, target, table)
    if goal in TEXT_STAGES:
        return state if isinstance(state, str) else print_kernel(state)
    assert isinstance(state, str)
    cubin = backend.assemble(state, target).cubin
    return cubin if goal == "cubin" else disassemble(cubin, goal)
