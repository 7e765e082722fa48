"""From tile IR to PTX: the stages that choose instructions, and a check of the result.

PTX with an access to a register of an unfinished `wgmma` is wrong on hardware now and then. The
kernel is then scheduled again, with each dot waited for where it is issued, and its build reports
it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aotc.ir.diagnostics import IRError, ResourceError

if TYPE_CHECKING:
    from aotc.backend import Lowered, RegisterHazard
    from aotc.compiler import CompileRequest
    from aotc.frontend import Translation
    from aotc.ir.core import Kernel
    from aotc.ir.passes import Observer
    from aotc.schedule.context import Schedule
    from aotc.timings import Timings


@dataclass(frozen=True)
class GpuKernel:
    """Hold a kernel as gpu IR, LLVM IR and PTX.

    With `owns_sm` its CTA has an SM to itself. `wgmma_hazard` names the register because of which
    each dot is waited for where it is issued, "" if none is.
    """

    kernel: Kernel
    schedule: Schedule
    lowered: Lowered
    ptx: str
    owns_sm: bool
    wgmma_hazard: str = ""


def lower_to_ptx(
    request: CompileRequest,
    translation: Translation,
    schedule: Schedule,
    timings: Timings,
    *,
    with_lines: bool = False,
    observer: Observer | None = None,
    reuses: bool = False,
) -> GpuKernel:
    """Run the stages after the frontend up to PTX; `with_lines` keeps the source's lines.

    Raises: ResourceError for a kernel too large for the target; IRError for wrong PTX.
    """
    from aotc.backend import find_hazards  # noqa: PLC0415 - start-up time

    hazard = ""
    for awaits_dots in (False, True):
        attempt = replace(schedule, remarks=[*schedule.remarks], awaits_dots=awaits_dots)
        gpu_kernel = _lower(
            *(request, translation, attempt, timings),
            with_lines=with_lines,
            observer=observer,
            reuses=reuses,
        )
        hazards = find_hazards(gpu_kernel.ptx)
        timings.lap("check")
        if not hazards:
            return replace(gpu_kernel, wgmma_hazard=hazard)
        if request.edited is not None and request.edited.stage != "tile":
            raise IRError(str(hazards[0]), translation.kernel.loc)
        if not awaits_dots:
            hazard = fall_back(translation.kernel, hazards[0])
    raise IRError(f"with each wgmma waited for at once, {hazards[0]}", translation.kernel.loc)


def fall_back(kernel: Kernel, hazard: RegisterHazard) -> str:
    """Return the build's remark about a kernel scheduled again for a hazard.

    Tests, fuzzers and the soak count it as a failure: the schedule has a fault.
    """
    return f"{kernel.loc}: each wgmma is waited for at once, or {hazard}"


def _lower(
    request: CompileRequest,
    translation: Translation,
    schedule: Schedule,
    timings: Timings,
    *,
    with_lines: bool,
    observer: Observer | None,
    reuses: bool,
) -> GpuKernel:
    from aotc import backend  # noqa: PLC0415 - start-up time
    from aotc.schedule.pipeline import schedule_kernel  # noqa: PLC0415
    from aotc.schedule.shared_memory.check_resources import (  # noqa: PLC0415
        check_instructions,
        check_resources,
    )

    edited = {} if request.edited is None else {request.edited.stage: request.edited}
    kernel = schedule_kernel(translation.kernel, schedule, observer)
    if "gpu" in edited:
        kernel = edited["gpu"].kernel(kernel)
    timings.lap("schedule")
    # An early answer saves a run of ptxas with few registers and spills of the rest.
    try:
        owns_sm = not check_resources(kernel, schedule.target, request.limits)
    except ResourceError as error:
        error.source_files, error.searches = translation.source_files, translation.searches
        raise
    lowered = backend.lower_kernel(
        kernel,
        schedule.target,
        debug_lines=with_lines,
        line_root=request.line_root,
        owns_sm=owns_sm,
        fuses_multiplies=request.enable_fp_fusion,
        reflects_ftz=request.enable_reflect_ftz,
    )
    check_instructions(kernel, lowered.num_lines, request.limits)
    if "llvm" in edited:
        lowered = replace(lowered, llvm_ir=edited["llvm"].text, line_table=None)
    timings.lap("lower")
    if "ptx" in edited:
        return GpuKernel(kernel, schedule, lowered, edited["ptx"].text, owns_sm)
    ptx = backend.emit_ptx(lowered.llvm_ir, schedule.target, lowered.line_table, reuses=reuses)
    timings.lap("llvm")
    return GpuKernel(kernel, schedule, lowered, ptx, owns_sm)
