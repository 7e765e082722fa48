"""Explain a compiled kernel: its resources, its memory accesses, every remark.

Most reasons for a slow kernel show without running it: a narrow access, a layout conversion, a loop
that was not pipelined, registers that allow only one CTA per SM. All of them are collected here for
one compile, each with its source line.

Invariant: text and data come from one `Explanation`, so they cannot differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from aotc import target as targets
from aotc.compiler import CompileRequest, compile_kernel
from aotc.config import CONFIG_KEYS, Config
from aotc.ir.core import Kernel, Op, Value
from aotc.ir.diagnostics import one_line
from aotc.ir.dialects import gpu
from aotc.ir.expression import to_text
from aotc.ir.parameter_access import pointer_roots
from aotc.ir.passes import Observer
from aotc.ir.types import PointerType, TileType, element_of
from aotc.metadata import Metadata
from aotc.package.archive.index import Kernel as ArchivedKernel
from aotc.package.archive.index import Variant
from aotc.package.archive.label import absent_pointers
from aotc.package.builder.assemble import stored_params
from aotc.package.builder.condition import NEVER, launch_condition
from aotc.schedule.analysis.axis import AxisAnalysis
from aotc.schedule.analysis.narrow_access import narrow_cause
from aotc.schedule.layout.access import MAX_ACCESS_BYTES
from aotc.schedule.remarks import Reason
from aotc.target import Target

Data: TypeAlias = dict[str, Any]

_WARP_THREADS = 32
_CTA_SHARED_BYTES = 1024  # reserved by the system for each CTA
_VERBS: dict[type[Op], str] = {
    gpu.Load: "load",
    gpu.Store: "store",
    gpu.AsyncCopy: "asynchronous copy",
    gpu.AtomicRmw: "atomic",
    gpu.AtomicCas: "atomic",
}


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The CTAs and warps resident on an SM, and the resource that limits them."""

    ctas: int
    warps: int
    max_warps: int
    limit: str


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """One access to global memory: `count` instructions of `bytes_per_thread` each.

    `narrow_cause` says why they are not wider, if they could be.
    """

    location: str
    verb: str
    pointer: str
    bytes_per_thread: int
    count: int
    is_masked: bool
    narrow_cause: str = ""

    def __str__(self) -> str:
        mask = ", masked" if self.is_masked else ""
        times = f", {self.count} instructions" if self.count > 1 else ""
        cause = f": {self.narrow_cause}" if self.narrow_cause else ""
        return (
            f"{self.location}: {self.verb} of {self.pointer}: {self.bytes_per_thread} bytes a thread"
            f"{times}{mask}{cause}"
        )


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one compile, or of one variant of an archive.

    `accesses` is None for a variant: an archive does not hold the IR they are read from.
    `condition` is the launcher's condition to pick this kernel; otherwise it picks the same kernel
    without tensor maps. Empty: it always picks this one. `ir` is the gpu IR of a compile.
    """

    request: CompileRequest
    metadata: Metadata
    occupancy: Occupancy
    accesses: tuple[MemoryAccess, ...] | None
    condition: str = ""
    cubin: bytes = field(default=b"", repr=False)
    ir: Kernel | None = field(default=None, repr=False, compare=False)

    @property
    def mapped(self) -> tuple[str, ...]:
        """The arguments accessed through tensor maps."""
        slots = self.metadata.params
        return tuple(dict.fromkeys(slot.argument for slot in slots if slot.tensor_map is not None))


def explain(request: CompileRequest) -> Explanation:
    """Compile a kernel and explain the result. Raises: as `compile_kernel`.

    If the kernel is built with and without tensor maps, explain the one with them, unless no launch
    could use it.
    """
    accesses: tuple[MemoryAccess, ...] = ()
    ir: Kernel | None = None

    def look(_name: str, kernel: Kernel) -> None:
        nonlocal accesses, ir
        accesses = _accesses(kernel)  # the IR after the last pass still has the lowered accesses
        ir = kernel

    compiled = compile_kernel(request, observer=Observer(on_pass=look))
    metadata = compiled.metadata
    condition = launch_condition(request, metadata.guards, metadata.params)
    if condition == NEVER:
        return explain(replace(request, map_pointers=False))
    residency = occupancy(metadata, targets.parse(request.target))
    where = "" if condition is None else to_text(condition)
    return Explanation(request, metadata, residency, accesses, where, compiled.cubin, ir)


def explain_variant(kernel: ArchivedKernel, variant: Variant) -> Explanation:
    """Explain a variant of an archive, as far as the archive shows it."""
    choices = dict(zip((c.name for c in kernel.choices), variant.choices, strict=True))
    config = dict(kernel.configs[variant.config])
    values = {**dict(kernel.constants), **choices, **config}
    request = CompileRequest(
        source="",
        kernel=kernel.name,
        signature=_types(kernel, variant),
        constants=tuple((name, value) for name, value in values.items() if name not in CONFIG_KEYS),
        target=variant.target,
        config=Config.of(config),
        map_pointers=True,
    )
    metadata = Metadata(
        name=kernel.name,
        symbol=variant.symbol,
        target=variant.target,
        num_threads=variant.num_threads,
        num_ctas=math.prod(variant.cluster),
        shared_bytes=variant.dynamic_shared_bytes,
        static_shared_bytes=variant.static_shared_bytes,
        registers=variant.registers,
        spill_bytes=variant.spill_bytes,
        stack_bytes=variant.stack_bytes,
        params=stored_params(kernel, variant),
        remarks=variant.remarks,
        ptxas_warnings=(),  # among the remarks
        source_files=(),
        waits_pdl=variant.waits_pdl,
        is_persistent=variant.is_persistent,
        cooperative=variant.cooperative,
    )
    residency = occupancy(metadata, targets.parse(variant.target))
    where = "" if variant.condition is None else to_text(variant.condition)
    return Explanation(request, metadata, residency, None, where, variant.cubin)


def _types(kernel: ArchivedKernel, variant: Variant) -> tuple[tuple[str, str], ...]:
    """Return the type of each argument of a variant, with the divisibility checked by its guards."""
    dtypes = dict(zip((v.name for v in kernel.type_variables), variant.types, strict=True))
    guards = [to_text(kernel.guards[index].expression) for index in variant.guards]
    absent = absent_pointers(kernel, variant)
    types: list[tuple[str, str]] = []
    for param in kernel.params:
        star = "*" if param.kind == "pointer" else ""
        divisor = param.divisibility
        is_promised = f"{param.name} % {divisor} == 0" in guards
        promise = f":{divisor}" if is_promised else ""
        text = f"{star}{dtypes.get(param.element, param.element)}{promise}"
        if param.kind == "tensor":
            text = f"tensor of rank {param.rank}, {text}"
        types.append((param.name, "none" if param.name in absent else text))
    return tuple(types)


def occupancy(metadata: Metadata, target: Target) -> Occupancy:
    """Compute the occupancy of a kernel on `target`.

    Source: CUDA Programming Guide, "Multiprocessor Level" and the table of compute capabilities.
    """
    warps = metadata.num_threads // _WARP_THREADS
    shared_bytes = metadata.shared_bytes + metadata.static_shared_bytes + _CTA_SHARED_BYTES
    limits = {
        "threads": target.max_threads_per_sm // (warps * _WARP_THREADS),
        "registers": target.ctas_by_registers(warps, metadata.registers),
        "shared memory": target.shared_bytes_per_sm // shared_bytes,
        "CTAs": target.max_ctas_per_sm,
    }
    limit = min(limits, key=lambda name: limits[name])
    ctas = limits[limit]
    return Occupancy(ctas, ctas * warps, target.max_threads_per_sm // _WARP_THREADS, limit)


def _accesses(kernel: Kernel) -> tuple[MemoryAccess, ...]:
    """Collect the accesses to global memory, merged by line and kind."""
    counts: dict[tuple[str, str, str, int, bool], int] = {}
    ops: dict[tuple[str, str, str, int, bool], Op] = {}
    for op in kernel.walk():
        verb = _VERBS.get(type(op))
        if verb is not None:
            is_masked = getattr(op, "mask", None) is not None
            key = (str(op.loc), verb, _pointer_names(kernel, op), _vector_bytes(op), is_masked)
            counts[key] = counts.get(key, 0) + max(1, _num_registers(op) // _vector(op))
            ops[key] = op
    facts = AxisAnalysis(kernel)
    return tuple(
        MemoryAccess(*key[:4], count, key[4], _narrow_cause(ops[key], kernel, facts))
        for key, count in counts.items()
    )


def _narrow_cause(op: Op, kernel: Kernel, facts: AxisAnalysis) -> str:
    """Return why an access of several registers is not wider, or an empty string."""
    if not isinstance(op, gpu.Load | gpu.Store):
        return ""
    vector_elems, element_bytes = _vector(op), _vector_bytes(op) // _vector(op)
    wide_elems = min(MAX_ACCESS_BYTES // element_bytes, _num_registers(op))
    if vector_elems >= wide_elems:
        return ""
    cause = narrow_cause(op, kernel, facts, 2 * vector_elems)
    return "" if cause == Reason.FEW_ELEMENTS() else cause


def _pointer_names(kernel: Kernel, op: Op) -> str:
    names = dict(zip(kernel.body.args, (info.name for info in kernel.params), strict=True))
    return " or ".join(
        names.get(root, "a computed pointer") for root in pointer_roots(_pointer(op))
    )


def _pointer(op: Op) -> Value:
    pointer = getattr(op, "pointer", None)
    assert isinstance(pointer, Value)
    return pointer


def _vector(op: Op) -> int:
    return int(getattr(op, "vector", 1))


def _vector_bytes(op: Op) -> int:
    element = element_of(_pointer(op).type)
    assert isinstance(element, PointerType)
    return _vector(op) * element.pointee.size_bytes


def _num_registers(op: Op) -> int:
    """Return how many elements of an access each thread has, without copies."""
    kind = _pointer(op).type
    if not isinstance(kind, TileType) or kind.layout is None:
        return 1
    return kind.layout.remove_zero_bases().in_size("register")


def describe(explanation: Explanation) -> Data:
    """Return an explanation as JSON-ready data; keys are added, never renamed."""
    request, metadata, residency = explanation.request, explanation.metadata, explanation.occupancy
    return {
        "kernel": request.kernel,
        "target": request.target,
        "types": dict(request.signature),
        "constants": dict(request.constants),
        "num_warps": request.config.num_warps,
        "num_stages": request.config.num_stages,
        "registers": metadata.registers,
        "spill_bytes": metadata.spill_bytes,
        "stack_bytes": metadata.stack_bytes,
        "shared_bytes": metadata.shared_bytes + metadata.static_shared_bytes,
        "occupancy": {
            "blocks_per_sm": residency.ctas,
            "warps_per_sm": residency.warps,
            "max_warps_per_sm": residency.max_warps,
            "limited_by": residency.limit,
        },
        "accesses": [
            {
                "place": access.location,
                "what": access.verb,
                "pointer": access.pointer,
                "bytes_per_thread": access.bytes_per_thread,
                "count": access.count,
                "masked": access.is_masked,
                "narrow_cause": access.narrow_cause,
            }
            for access in explanation.accesses
        ]
        if explanation.accesses is not None
        else None,
        "tensor_maps": list(explanation.mapped),
        "condition": explanation.condition,
        "remarks": list(metadata.remarks),
        "ptxas_warnings": list(metadata.ptxas_warnings),
    }


def text(explanation: Explanation) -> str:
    """Return an explanation as lines to read."""
    request, metadata, resident = explanation.request, explanation.metadata, explanation.occupancy
    constants = " ".join(f"{name}={value}" for name, value in request.constants)
    shared_bytes = metadata.shared_bytes + metadata.static_shared_bytes
    config = f"num_warps={request.config.num_warps} num_stages={request.config.num_stages}"
    registers_text = (
        f"{metadata.registers} registers a thread, {metadata.spill_bytes} bytes spilled"
    )
    residency_text = (
        f"{resident.ctas} CTAs and {resident.warps} of {resident.max_warps} warps on an SM"
    )
    lines = [
        f"{request.kernel} for {request.target}: {config} {constants}".rstrip(),
        f"  {registers_text}, {metadata.stack_bytes} bytes of stack, {shared_bytes} bytes of shared memory",
        f"  {residency_text}; limited by {resident.limit}",
    ]
    if explanation.mapped:
        lines.append(f"  tensor maps of {', '.join(explanation.mapped)}")
    if explanation.condition:
        otherwise = "without tensor maps" if explanation.mapped else "another form"
        lines.append(f"  launched where {explanation.condition}; {otherwise} elsewhere")
    sections = (
        ("memory", [str(access) for access in explanation.accesses or ()]),
        ("remarks", list(metadata.remarks)),
        ("ptxas", list(metadata.ptxas_warnings)),
    )
    if explanation.accesses is None:
        remedy = f"`aotc explain MANIFEST:{request.kernel}` reads them from the source"
        lines.append(f"memory: an archive has no accesses; {remedy}")
    for title, body in sections:
        if body:
            lines += [f"{title}:", *(f"  {line}" for line in body)]
    return "\n".join(map(one_line, lines))
