"""From a kernel, its types and its configuration to a cubin: the driver of the stages.

    source ──frontend──► tile IR ──schedule──► gpu IR ──backend──► LLVM IR ──► PTX ──► cubin

A `CompileRequest` has everything a compile depends on besides the source files and the toolchain.
So equal requests over equal sources give equal artifacts, and a request is a cache key.

The stages are imported when the first kernel is compiled, not with this module: a build with
nothing to do only needs the names of requests.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aotc.config import CONFIG_KEYS, Config, config_value_problem, renamed_key
from aotc.edited_stage import EditedStage, edit_remark, mistakes_of
from aotc.ir.diagnostics import (
    CompileError,
    IRError,
    ManifestError,
    ResourceError,
    did_you_mean,
)
from aotc.ir.params import TensorSource, whole_rows
from aotc.limits import DEFAULT_LIMITS, CompileLimits, compile_limits, split_limits
from aotc.live_functions import captured, locate, named_constant
from aotc.metadata import Metadata, ParamSlot, TensorMapSpec
from aotc.target import DEFAULT_TOOLCHAIN, Feature, Target
from aotc.target import parse as parse_target
from aotc.timings import Timings

if TYPE_CHECKING:
    from aotc.backend import Assembly, Ptxas
    from aotc.frontend import Translation
    from aotc.gpu_stages import GpuKernel
    from aotc.ir.core import Kernel
    from aotc.ir.passes import Observer
    from aotc.metadata import Access
    from aotc.schedule.context import Schedule

STAGES = ("tile", "gpu", "llvm", "ptx", "sass", "cubin")


@dataclass(frozen=True)
class CompileRequest:
    """Name one compile.

    `signature` gives each run-time argument its concrete type string ("*bf16:16", "i32", "i32=1",
    "fp32"), `constants` each constexpr its value: int, float, bool, str, None or a dtype's name.
    `debug` keeps `tl.device_assert` and `assert`, otherwise dropped as in Triton. `with_ptx` keeps
    the PTX, with the lines of the source, and changes nothing of the cubin. `line_root` adds a line
    table to the cubin, for profilers, with files named relative to this folder. `without` names
    features of the target to avoid.

    `map_pointers` allows schedules that need the launcher, and a build sets it. Loads through
    pointers may become TMA loads: the cubin then takes tensor maps described in its `Metadata`, and
    is right for launches allowed by its guards. The kernel may also be persistent.

    `facts` are the source's answers about the GPU, where they differ from the target's row. Without
    `enable_fp_fusion`, a product and a sum are rounded each; without `enable_reflect_ftz`,
    libdevice's functions keep subnormals. With `launch_cooperative_grid`, all programs of a launch
    run at once, so they may wait for each other. `limits` bound resources. `captured` are constants
    of enclosing functions. An `edited` stage replaces the compiler's. `toolchain` is ptxas's release.
    """

    source: str
    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, object], ...]
    target: str
    config: Config = field(default_factory=Config)
    debug: bool = False
    with_ptx: bool = False
    line_root: str | None = None
    without: tuple[str, ...] = ()
    map_pointers: bool = False
    facts: tuple[tuple[str, object], ...] = ()
    enable_fp_fusion: bool = True
    enable_reflect_ftz: bool = True
    limits: CompileLimits = DEFAULT_LIMITS
    captured: tuple[tuple[str, object], ...] = ()
    edited: EditedStage | None = None
    toolchain: str = DEFAULT_TOOLCHAIN
    launch_cooperative_grid: bool = False


@dataclass(frozen=True)
class CompiledKernel:
    """Hold a cubin, its metadata, and the text of every stage in `asm`, made when first read."""

    cubin: bytes
    metadata: Metadata
    asm: Mapping[str, str]


class _Stages(dict[str, str]):
    """Map a stage to its text; missing texts are produced on demand."""

    def __init__(
        self, texts: Mapping[str, str], producers: Mapping[str, Callable[[], str]]
    ) -> None:
        super().__init__(texts)
        self._producers = dict(producers)

    def __missing__(self, stage: str) -> str:
        if stage not in self._producers:
            raise KeyError(f"no stage {stage!r}; there are {', '.join(STAGES)}")
        self[stage] = self._producers[stage]()
        return self[stage]


def compile_kernel(
    request: CompileRequest,
    *,
    keep_asm: bool = False,
    observer: Observer | None = None,
    timings: Timings | None = None,
    reuses: bool = False,
) -> CompiledKernel:
    """Compile one kernel to a cubin.

    `keep_asm` keeps the text of every stage; without it, only texts that cannot be reproduced
    later. If it `reuses` results, this process's recent LLVM IR and PTX are not compiled again.

    Raises: CompileError for the user's mistakes, among them ResourceError for a kernel too large for
        the target; IRError for ours.
    """
    from aotc import backend  # noqa: PLC0415 - llvmlite costs start-up
    from aotc.schedule.analysis.count_work import count_work  # noqa: PLC0415

    timings = timings or Timings()
    keep_asm = keep_asm or request.with_ptx
    limits = request.limits
    target = check_request(request)
    with (
        backend.Ptxas(target, mebibytes=limits.ptxas_mebibytes, reuses=reuses) as ptxas,
        mistakes_of(request.edited),
    ):
        ptx_stage = _to_ptx(request, timings, keep_asm=keep_asm, observer=observer, reuses=reuses)
        assembly = _assemble(ptx_stage, limits, ptxas, reuses=reuses)
        places = backend.param_places(assembly.cubin, ptx_stage.kernel.name)
        params = _placed(_param_slots(ptx_stage), places)
    if request.line_root is not None:
        assembly = replace(assembly, cubin=backend.without_ptx_lines(assembly.cubin))
    timings.lap("ptxas")
    kernel, translation = ptx_stage.kernel, ptx_stage.translation
    note = _spill_note(ptx_stage) if assembly.spill_bytes else ""
    spilled = [f"{assembly.spill_bytes} bytes of registers are spilled: {note}"] if note else []
    hazard = ptx_stage.gpu_kernel.wgmma_hazard
    crash = _crash_note(kernel, assembly)
    metadata = Metadata(
        name=request.kernel,
        symbol=kernel.name,
        target=request.target,
        num_threads=kernel.num_threads,
        num_ctas=kernel.num_ctas,
        shared_bytes=kernel.shared_bytes,
        static_shared_bytes=assembly.static_shared_bytes,
        registers=assembly.registers,
        spill_bytes=assembly.spill_bytes,
        stack_bytes=assembly.stack_bytes,
        params=params,
        remarks=_lines(
            translation.remarks,
            translation.prints,
            ptx_stage.gpu_kernel.schedule.remarks,
            [edit_remark(request.edited), hazard, crash, _length_note(kernel, assembly)],
            spilled,
        ),
        ptxas_warnings=assembly.warnings,
        source_files=translation.source_files,
        searches=translation.searches,
        without=ptx_stage.target.without,
        whole_rows=whole_rows(ptx_stage.kernel.params),
        overflows=ptx_stage.overflows,
        waits_pdl=ptx_stage.waits_pdl,
        guards=kernel.guards,
        is_persistent=kernel.is_persistent,
        # A persistent kernel's programs do not communicate: they need not run at once.
        cooperative=_meets_grid(kernel)
        or (request.launch_cooperative_grid and not kernel.is_persistent),
        scratch_bytes=kernel.scratch_bytes,
        spill_note=note,
        wgmma_hazard=hazard,
        ptxas_crash=crash,
        work=count_work(kernel),
    )
    asm = {**ptx_stage.asm, "llvm": ptx_stage.gpu_kernel.lowered.llvm_ir, "ptx": ptx_stage.ptx}
    if request.with_ptx and (request.edited is None or request.edited.stage in ("tile", "gpu")):
        # Separate from the cubin's own: its debug sections would name the source.
        located = backend.lower_kernel(
            kernel,
            ptx_stage.target,
            debug_lines=True,
            owns_sm=ptx_stage.gpu_kernel.owns_sm,
            fuses_multiplies=request.enable_fp_fusion,
            reflects_ftz=request.enable_reflect_ftz,
        )
        asm["ptx"] = backend.emit_ptx(located.llvm_ir, ptx_stage.target, located.line_table)
    producers = {
        "sass": lambda: backend.disassemble(assembly.cubin),
        "cubin": lambda: backend.disassemble(assembly.cubin, with_lines=True, is_whole=True),
    }
    return CompiledKernel(assembly.cubin, metadata, _Stages(asm, producers))


def compile_variant(request: CompileRequest) -> CompiledKernel:
    """Compile one of many variants of kernels, some with the same code.

    Raises: as `compile_kernel`.
    """
    return compile_kernel(request, reuses=True)


def _assemble(
    ptx_stage: _PtxStage, limits: CompileLimits, started: Ptxas, *, reuses: bool
) -> Assembly:
    """Assemble a kernel with ptxas.

    Raises: CompileError if the user can mend it; ResourceError if threads have too few registers.
    """
    from aotc import backend  # noqa: PLC0415 - start-up time
    from aotc.schedule.analysis.live_registers import find_peak  # noqa: PLC0415
    from aotc.schedule.shared_memory.check_resources import (  # noqa: PLC0415
        large_remedy,
        register_remedy,
    )

    try:
        return backend.assemble(
            ptx_stage.ptx,
            ptx_stage.target,
            started=started,
            timeout_seconds=limits.ptxas_seconds,
            mebibytes=limits.ptxas_mebibytes,
            reuses=reuses,
        )
    except backend.RefusedError as error:
        rejected = (ptx_stage.kernel, ptx_stage.ptx, error.line)
        mistake = backend.find_assembly_error(*rejected, "ptxas", error.reason)
        raise (mistake or error) from None
    except backend.FewRegistersError as error:
        peak = find_peak(ptx_stage.kernel)
        needed = error.needed or peak.registers
        limit = f"{error.available} where a CTA has {ptx_stage.kernel.num_threads // 32} warps"
        message = f"{peak}; ptxas cannot spill enough of them: a thread has {limit}"
        if error.needed:
            message = f"an instruction takes {needed} registers of a thread, which has {limit}"
        remedy = register_remedy(ptx_stage.kernel, ptx_stage.target, needed)
        misfit = ResourceError(message, ptx_stage.kernel.loc, remedy=remedy)
        misfit.source_files = ptx_stage.translation.source_files
        misfit.searches = ptx_stage.translation.searches
        raise misfit from None
    except backend.OverLimitError as error:
        peak = find_peak(ptx_stage.kernel)
        message = f"{error.reason}; {peak}"
        raise CompileError(message, peak.loc, remedy=large_remedy()) from None


def _crash_note(kernel: Kernel, assembly: Assembly) -> str:
    """Return the crash of ptxas and the level used instead, or ""."""
    if not assembly.crash:
        return ""
    return (
        f"{kernel.loc}: {kernel.name} is assembled with {assembly.level}, a lower optimisation level, since "
        f"ptxas crashes at its usual one: {assembly.crash}"
    )


def _length_note(kernel: Kernel, assembly: Assembly) -> str:
    """Return the lower optimisation level that a long kernel is assembled with, "" for any other."""
    if not assembly.level or assembly.crash:
        return ""
    return (
        f"{kernel.loc}: {kernel.name} has so many instructions or blocks that ptxas optimises it less ({assembly.level}); "
        "unroll fewer iterations, or let a thread compute fewer elements"
    )


def _spill_note(ptx_stage: _PtxStage) -> str:
    """Return the tiles with the most registers of a thread, and possible remedies."""
    from aotc.schedule.analysis.live_registers import find_peak  # noqa: PLC0415
    from aotc.schedule.shared_memory.check_resources import register_remedy  # noqa: PLC0415 - start-up time

    peak = find_peak(ptx_stage.kernel)
    help_text = register_remedy(ptx_stage.kernel, ptx_stage.target, peak.registers)
    return f"{peak}; what may help: {help_text}"


def _param_slots(ptx_stage: _PtxStage) -> tuple[ParamSlot, ...]:
    """Return the offsets of arguments, and their encoding by the launcher."""
    from aotc.ir.encoded_element import encoded_element  # noqa: PLC0415 - start-up time
    from aotc.ir.types import TensorMapType  # noqa: PLC0415
    from aotc.schedule.analysis.fetched_bytes import fetched_bytes  # noqa: PLC0415

    slots: list[ParamSlot] = []
    fetched = fetched_bytes(ptx_stage.kernel)
    args = ptx_stage.kernel.body.args
    for slot, info, arg in zip(
        ptx_stage.gpu_kernel.lowered.params, ptx_stage.kernel.params, args, strict=True
    ):
        spec = None
        if isinstance(arg.type, TensorMapType):
            kind, tensor = (
                arg.type,
                info.tensor or _tensor_argument(info.argument, len(arg.type.box)),
            )
            form = (encoded_element(arg).name, kind.box, kind.swizzle_bytes, kind.fill_nan)
            tensor_fields = (tensor.address, tensor.shape, tensor.strides)
            spec = TensorMapSpec(*form, *tensor_fields, fetched[arg])
        slot_fields = (slot.name, slot.type, slot.offset_bytes, slot.size_bytes)
        access = ptx_stage.access.get(info.argument, "unknown")
        slots.append(ParamSlot(*slot_fields, access, info.argument, info.source, spec))
    return tuple(slots)


def _tensor_argument(name: str, rank: int) -> TensorSource:
    """Return the launch argument `name` as a tensor."""
    shape = tuple(f"{name}.shape[{axis}]" for axis in range(rank))
    return TensorSource(name, shape, tuple(f"{name}.strides[{axis}]" for axis in range(rank - 1)))


def _placed(
    slots: tuple[ParamSlot, ...], offsets: Sequence[tuple[int, int]]
) -> tuple[ParamSlot, ...]:
    """Return the parameters where the assembler put them. Raises: IRError if it has others."""
    if [slot.size_bytes for slot in slots] != [size for _, size in offsets]:
        raise IRError(f"the cubin has parameters {offsets}, expected {slots}")
    return tuple(
        replace(slot, offset=offset) for slot, (offset, _) in zip(slots, offsets, strict=True)
    )


@dataclass(frozen=True)
class PtxKernel:
    """Hold a kernel compiled to PTX, and its tile IR, the reference for its meaning.

    A launch takes `shared_bytes` of dynamic shared memory, and parameters as in `params`. `guards`,
    `scratch_bytes`, `cooperative`, `whole_rows` and `overflows` as in `Metadata`.
    """

    tile_ir: str
    ptx: str
    symbol: str
    shared_bytes: int
    params: tuple[ParamSlot, ...] = ()
    guards: tuple[str, ...] = ()
    scratch_bytes: int = 0
    cooperative: bool = False
    whole_rows: tuple[str, ...] = ()
    overflows: tuple[str, ...] = ()


def compile_ptx(request: CompileRequest) -> PtxKernel:
    """Compile one kernel to PTX with the lines of its source.

    Raises: as `compile_kernel`.
    """
    ptx_stage = _to_ptx(request, Timings(), keep_asm=True, with_lines=True)
    kernel = ptx_stage.kernel
    return PtxKernel(
        ptx_stage.asm["tile"],
        ptx_stage.ptx,
        kernel.name,
        kernel.shared_bytes,
        _param_slots(ptx_stage),
        kernel.guards,
        kernel.scratch_bytes,
        _meets_grid(kernel),
        whole_rows(kernel.params),
        ptx_stage.overflows,
    )


@dataclass(frozen=True)
class _PtxStage:
    """A kernel compiled to PTX, with the facts collected on the way."""

    target: Target
    translation: Translation
    gpu_kernel: GpuKernel
    access: Mapping[str, Access]
    asm: Mapping[str, str]
    waits_pdl: bool
    overflows: tuple[str, ...]

    @property
    def kernel(self) -> Kernel:
        return self.gpu_kernel.kernel

    @property
    def ptx(self) -> str:
        return self.gpu_kernel.ptx


def _to_ptx(
    request: CompileRequest,
    timings: Timings,
    *,
    keep_asm: bool,
    with_lines: bool = False,
    observer: Observer | None = None,
    reuses: bool = False,
) -> _PtxStage:
    """Run the stages up to PTX; `with_lines` keeps the source's lines in PTX and tile IR."""
    from aotc.gpu_stages import lower_to_ptx  # noqa: PLC0415 - start-up time
    from aotc.ir.parameter_access import parameter_access  # noqa: PLC0415
    from aotc.ir.text import print_kernel  # noqa: PLC0415
    from aotc.schedule.analysis.certain_overflows import certain_overflows  # noqa: PLC0415
    from aotc.schedule.analysis.index_limits import note_index_limits  # noqa: PLC0415
    from aotc.schedule.context import Schedule  # noqa: PLC0415

    timings.lap("import")
    target = check_request(request)
    translation = translate_request(request)
    if request.edited is not None and request.edited.stage == "tile":
        translation = replace(translation, kernel=request.edited.kernel(translation.kernel))
    timings.lap("frontend")
    kernel = translation.kernel
    access = parameter_access(kernel)
    asm = {"tile": print_kernel(kernel, locs=with_lines)} if keep_asm else {}
    schedule = Schedule(
        target,
        request.config,
        map_pointers=request.map_pointers,
        max_ops=request.limits.operations,
    )
    has_limits = note_index_limits(kernel, schedule)
    overflows = certain_overflows(kernel) if has_limits else ()
    waits_pdl = _waits_pdl(kernel, schedule)
    gpu_kernel = lower_to_ptx(
        *(request, translation, schedule, timings),
        with_lines=with_lines,
        observer=observer,
        reuses=reuses,
    )
    if keep_asm:
        asm["gpu"] = print_kernel(gpu_kernel.kernel)
        timings.lap("print")
    return _PtxStage(target, translation, gpu_kernel, access, asm, waits_pdl, overflows)


def _waits_pdl(kernel: Kernel, schedule: Schedule) -> bool:
    """Return whether a launch may overlap with the previous one; else remark why.

    Call it on tile IR: the schedule may turn a branch into something else.
    """
    from aotc.ir.dialects.grid import GridWait, always_waits  # noqa: PLC0415 - start-up time

    if Feature.PDL not in schedule.target.features:
        return False
    first = next((op for op in kernel.walk() if isinstance(op, GridWait)), None)
    if not (waits := always_waits(kernel)) and first is not None:
        schedule.remark(
            first.loc,
            "gdc_wait is not on every path: programmatic dependent launch is refused; "
            "call it outside of run-time branches and loops",
        )
    return waits


def _lines(*groups: Iterable[str]) -> tuple[str, ...]:
    """Return the nonblank lines of all texts; a kernel may print any text."""
    lines = (line for group in groups for text in group for line in text.splitlines())
    return tuple(line for line in lines if line.strip())


def _meets_grid(kernel: Kernel) -> bool:
    """Return whether the CTAs of a launch wait for each other."""
    from aotc.ir.dialects.grid import GridBarrier  # noqa: PLC0415 - start-up time

    return any(isinstance(op, GridBarrier) for op in kernel.walk())


def translate_request(request: CompileRequest) -> Translation:
    """Run the frontend on a request's kernel. Raises: CompileError."""
    from aotc import frontend  # noqa: PLC0415 - start-up time

    return frontend.translate(
        request.source,
        request.kernel,
        dict(request.signature),
        dict(request.constants),
        num_warps=request.config.num_warps,
        num_ctas=request.config.num_ctas,
        target=request.target,
        facts=dict(request.facts),
        captured=dict(request.captured),
        debug=request.debug,
        max_ops=request.limits.operations,
    )


def check_request(request: CompileRequest) -> Target:
    """Return the target of a valid request. Raises: CompileError otherwise."""
    try:
        built_for = parse_target(str(request.target)).excluding(request.without)
        target = built_for.assembled_by(request.toolchain)
    except ManifestError as error:
        raise CompileError(error.message, remedy=error.remedy) from None
    config = request.config
    for name, key in CONFIG_KEYS.items():
        value = getattr(config, name)
        is_open = value is None and key.default is None
        problem = "" if is_open else config_value_problem(name, value)
        if problem:
            raise CompileError(problem)
    problem = target.threads_problem(config.num_warps, config.num_consumer_groups)
    if problem:
        raise ResourceError(f"{problem} on {target}", remedy="fewer warps")
    if config.num_ctas > 1 and Feature.CLUSTERS not in target.features:
        raise CompileError(
            f"num_ctas = {config.num_ctas} needs clusters, which {target} does not have",
            remedy="leave num_ctas at 1",
        )
    if config.num_ctas > target.max_ctas_per_cluster:
        raise CompileError(
            f"num_ctas = {config.num_ctas} is more than the {target.max_ctas_per_cluster} CTAs "
            f"that a cluster can have on {target}"
        )
    return target


def compile_request(
    kernel: str | Callable[..., object],
    *,
    signature: Mapping[str, str],
    source: str | None = None,
    constants: Mapping[str, object] | None = None,
    target: str = "sm_90a",
    debug: bool = False,
    without: Sequence[str] = (),
    map_pointers: bool = False,
    limits: Mapping[str, int] | None = None,
    enable_fp_fusion: bool = True,
    enable_reflect_ftz: bool = True,
    config: Mapping[str, int | None] | None = None,
) -> CompileRequest:
    """Return the request for a kernel, given as "path/to/source.py:name" or as the Python function.

    `aotc.compile` documents the other arguments. Raises: CompileError for an invalid request.
    """
    path, name = locate(kernel, source)
    mappings = {"signature": signature, "constants": constants or {}, "limits": limits or {}}
    for parameter, mapping in mappings.items():
        if not isinstance(mapping, Mapping):  # type: ignore[reportUnnecessaryIsInstance]
            raise CompileError(f"expected a mapping for {parameter}, got {mapping!r}")
    for key in config or {}:
        if key not in CONFIG_KEYS:
            keys = [*inspect.signature(compile_request).parameters, "args", *CONFIG_KEYS]
            remedy = renamed_key(key) or did_you_mean(key, keys)
            listed = ", ".join(CONFIG_KEYS)
            raise CompileError(f"expected a config key ({listed}), got {key!r}", remedy=remedy)
    _, of_compile = split_limits(limits or {})
    return CompileRequest(
        path,
        name,
        tuple(signature.items()),
        tuple((constant, named_constant(value)) for constant, value in (constants or {}).items()),
        target,
        Config.of(config or {}),
        debug,
        without=tuple(without),
        map_pointers=map_pointers,
        enable_fp_fusion=enable_fp_fusion,
        enable_reflect_ftz=enable_reflect_ftz,
        limits=compile_limits(of_compile),
        captured=captured(kernel),
    )


def autotune_configs(
    source: str, kernel: str, constants: Mapping[str, object], target: Target
) -> list[dict[str, object]]:
    """Return the configs of the kernel's `@triton.autotune` for a target, without running the file."""
    from aotc import frontend  # noqa: PLC0415

    facts = dict(target.facts)
    return frontend.autotune_configs(source, kernel, constants, target=target.name, facts=facts)


def launch_heuristics(
    source: str, kernel: str, arguments: Collection[str], constants: Collection[str], target: Target
) -> dict[str, str]:
    """Return the truth values computed by `@triton.heuristics` from a launch's integers."""
    from aotc import frontend  # noqa: PLC0415

    return frontend.launch_heuristics(
        source, kernel, arguments, constants, target=target.name, facts=dict(target.facts)
    )
