"""Assemble compiled variants into the kernel records of an archive.

This joins the manifest, the compiler's metadata and the archive's index. It decides one thing: a
variant needing more shared memory than its target has, or spilling more registers than the manifest
allows, is left out with a remark. Only compiling shows a config's needs. If all configs for a
launch spill too much, the one with the fewest spills is kept, unless the limit is strict.

A config with a kernel that uses tensor maps under a condition becomes two variants: this one, and a
fallback without tensor maps. A caller who asks for the config sees one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import PurePath
from typing import TypeAlias

from aotc.compiler import PtxKernel
from aotc.ir import expression
from aotc.ir.diagnostics import IRError
from aotc.ir.expression import Binary, Expression
from aotc.ir.parameter_access import union
from aotc.ir.params import GRID_SOURCES, SCRATCH_ALIGNMENT_BYTES, SCRATCH_SOURCE
from aotc.ir.types import SCALARS
from aotc.limits import HOPELESS_SPILL_BYTES
from aotc.metadata import Access, Metadata, ParamSlot, TensorMapSpec
from aotc.package.archive import index
from aotc.package.archive.index import Choice, CubinParam, Param, ParamKind, TensorMap, TypeVariable
from aotc.package.archive.label import member_label
from aotc.package.builder.condition import launch_condition
from aotc.package.builder.overflow_guards import overflow_guards
from aotc.package.cache.store import CachedKernel
from aotc.package.emit.sources import KernelSource, kernel_source
from aotc.package.manifest.argument_type import ArgumentType
from aotc.package.manifest.configs import launch_arguments
from aotc.package.manifest.spec import KernelSpec
from aotc.package.manifest.tensor_guard import tensor_guard
from aotc.package.manifest.toml_table import Constant
from aotc.package.manifest.variant_grid import MAX_GUARDS, Expansion, VariantSpec, none_left

_Point: TypeAlias = tuple[
    str, tuple[str, ...], tuple[Constant, ...], tuple[str, ...], tuple[str, ...]
]

_PARAM_KINDS: dict[str, ParamKind] = {
    "pointer": "pointer",
    "scalar": "scalar",
    "tensordesc": "tensor",
}


@dataclass(frozen=True, slots=True)
class Assembled:
    """A kernel's record and source, a remark for each variant left out, and warnings.

    Spilled registers always cause a warning, also for variants left out; so does a warning of
    ptxas. `metadata` has the compiler's metadata of each variant of the record, in order.
    """

    kernel: index.Kernel
    source: KernelSource
    dropped: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    metadata: tuple[Metadata, ...] = ()


def misfit(metadata: Metadata, variant: VariantSpec) -> str:
    """Return why the compiled variant does not fit the target, or an empty string."""
    shared_bytes = metadata.shared_bytes + metadata.static_shared_bytes
    limit = variant.target.max_shared_bytes
    if shared_bytes > limit:
        return f"{shared_bytes} bytes of shared memory, the limit is {limit}"
    kernel = variant.kernel
    return metadata.spill_problem(kernel.spill_bytes) if kernel.is_strict else ""


def assemble(
    expansion: Expansion, compiled: Sequence[tuple[VariantSpec, CachedKernel]]
) -> Assembled:
    """Return the archive's record of a kernel; `compiled` may lack failed variants.

    Raises:
        ManifestError: for some target, dtypes, choices and guards no config fits.
    """
    kernel = expansion.kernel
    dropped: list[str] = []
    warnings: list[str] = []
    variants: list[index.Variant] = []
    metadata: list[Metadata] = []
    read: dict[tuple[str, str], None] = {}
    # At least one config must be left for each combination of target, dtypes, choices and guards.
    is_served: dict[_Point, bool] = {}
    for spec, result, condition, reason in _with_reasons(compiled):
        serves_all = condition is None and not reason
        is_served[_point(spec)] = is_served.get(_point(spec), False) or serves_all
        label = member_label(spec.label, condition)
        problem = result.metadata.spill_problem(spec.kernel.spill_bytes)
        if problem and not reason:
            warnings.append(f"{label}: kept, as no config spills less, {problem}")
        elif problem or result.metadata.spill_bytes:
            fate = "left out, " if reason else ""
            warnings.append(f"{label}: {fate}{result.metadata.spill_text}")
        if result.misfit and not result.is_misfit:
            dropped.append(f"{spec.label} without tensor maps: {result.misfit}")
        if reason:
            dropped.append(f"{label}: {reason}")
            continue
        warnings += [f"{label}: {line}" for line in result.metadata.ptxas_warnings]
        for fault in (result.metadata.wgmma_hazard, result.metadata.ptxas_crash):
            if fault:
                warnings.append(f"{label}: {_portable(fault, result.metadata)}")
        variants.append(_variant(kernel, spec, result, condition))
        metadata.append(result.metadata)
        read.update((file, None) for file in result.metadata.source_files)
    for spec, _ in compiled:
        if not is_served[_point(spec)]:
            prefix = f"{kernel.name} {spec.target}"
            lines = [*expansion.dropped, *dropped]
            raise none_left(kernel, spec.target, [x for x in lines if x.startswith(prefix)])
    builds = [result.metadata for _, result, _ in _members(compiled)]
    access = _joint_access(builds)
    members = ((spec, result.metadata, when) for spec, result, when in _members(compiled))
    limits = overflow_guards(members, expansion.guards)[: MAX_GUARDS - len(expansion.guards)]
    first = len(expansion.guards)
    limit_indices = tuple(range(first, first + len(limits)))
    fixed = [(n, a.value) for n, a in kernel.signature.items() if not a.is_passed]
    digests = [digest for _, digest in read]
    record = index.Kernel(
        name=kernel.name,
        source_sha256=hashlib.sha256("".join(dict.fromkeys(digests)).encode()).digest(),
        variants=tuple(
            replace(variant, guards=(*variant.guards, *limit_indices)) for variant in variants
        ),
        params=tuple(
            replace(param_of(name, kernel.signature[name]), access=access.get(name, "unknown"))
            for name in launch_arguments(kernel)
        ),
        type_variables=tuple(TypeVariable(n, dtypes) for n, dtypes in kernel.types.items()),
        choices=tuple(Choice(name, values) for name, values in kernel.choices.items()),
        guards=(*guards_of(expansion, builds), *limits),
        configs=expansion.configs,
        constants=(*kernel.constants.items(), *fixed),
    )
    source = kernel_source(kernel, [*read])
    return Assembled(record, source, tuple(dropped), tuple(warnings), tuple(metadata))


def _members(
    compiled: Iterable[tuple[VariantSpec, CachedKernel]],
) -> Iterator[tuple[VariantSpec, CachedKernel, Expression | None]]:
    """Yield every compiled kernel and its launch condition, conditional ones first."""
    for spec, result in compiled:
        metadata = result.metadata
        yield spec, result, launch_condition(spec.request, metadata.guards, metadata.params)
        if result.fallback is not None:
            yield spec, result.fallback, None


_Member: TypeAlias = tuple[VariantSpec, CachedKernel, Expression | None, str]
"""A compiled kernel, its launch condition, and the reason to leave it out, or an empty string."""


def _with_reasons(compiled: Iterable[tuple[VariantSpec, CachedKernel]]) -> list[_Member]:
    """Return every compiled kernel with the reason to leave it out."""
    members: list[_Member] = [
        (spec, result, when, result.misfit if result.is_misfit else misfit(result.metadata, spec))
        for spec, result, when in _members(compiled)
    ]
    # The variant with the fewest spills among those for the same launches.
    least: dict[_Point, dict[tuple[int, ...], tuple[VariantSpec, int]]] = {}
    for spec, result, condition, reason in members:
        if condition is None and not reason:
            spilled = result.metadata.local_bytes
            of_guards = least.setdefault(_point(spec), {})
            _, fewest = of_guards.setdefault(spec.guards, (spec, spilled))
            if spilled < fewest:
                of_guards[spec.guards] = spec, spilled
    judged: list[_Member] = []
    for spec, result, condition, reason in members:
        # A variant with fewer guards serves the same launches, too.
        rivals = [
            rival
            for guards, rival in least.get(_point(spec), {}).items()
            if set(guards) <= set(spec.guards)
        ]
        best, fewest = min(rivals, key=itemgetter(1), default=(spec, 0))
        metadata = result.metadata
        is_kept = best is spec and metadata.local_bytes <= fewest
        problem = "" if is_kept else metadata.spill_problem(spec.kernel.spill_bytes)
        judged.append((spec, result, condition, reason or problem))
    return judged


def not_served(compiled: Sequence[tuple[VariantSpec, CachedKernel]]) -> list[VariantSpec]:
    """Return variants refused on their target, with no better variant for their launches.

    A better variant fits and spills less than `HOPELESS_SPILL_BYTES`.
    """
    fitting: dict[_Point, list[tuple[int, ...]]] = {}
    for spec, result, condition in _members(compiled):
        fits = not result.is_misfit and not misfit(result.metadata, spec)
        if condition is None and fits and result.metadata.local_bytes < HOPELESS_SPILL_BYTES:
            fitting.setdefault(_point(spec), []).append(spec.guards)
    return [
        spec
        for spec, result in compiled
        if result.is_misfit
        and not any(set(guards) <= set(spec.guards) for guards in fitting.get(_point(spec), []))
    ]


def _joint_access(builds: Iterable[Metadata | PtxKernel]) -> dict[str, Access]:
    """Return the access to each argument's memory, joined over all builds."""
    joint: dict[str, Access] = {}
    for metadata in builds:
        for slot in metadata.params:
            joint[slot.argument] = union(joint.get(slot.argument, slot.access), slot.access)
    return joint


def guards_of(
    expansion: Expansion, builds: Sequence[Metadata | PtxKernel]
) -> tuple[index.Guard, ...]:
    """Return the kernel's guards; tensors only loaded by boxes may end anywhere in a row."""
    kernel = expansion.kernel
    access = _joint_access(builds)
    whole = {name for build in builds for name in build.whole_rows}
    free = {
        tensor_guard(kernel, name, has_whole_rows=True): name
        for name, argument in kernel.signature.items()
        if argument.kind == "tensordesc" and access.get(name) == "read" and name not in whole
    }
    return tuple(
        tensor_guard(kernel, free[guard], has_whole_rows=False) if guard in free else guard
        for guard in expansion.guards
    )


def _point(spec: VariantSpec) -> _Point:
    return spec.target.name, spec.types, spec.choices, spec.absent, spec.waived


def param_of(name: str, argument: ArgumentType) -> Param:
    """Return the record of an argument."""
    return Param(
        name=name,
        kind=_PARAM_KINDS[argument.kind],
        element=argument.element,
        rank=len(argument.block),
        divisibility=argument.divisor,
        is_optional=argument.is_optional,
    )


def _variant(
    kernel: KernelSpec, spec: VariantSpec, result: CachedKernel, condition: Expression | None
) -> index.Variant:
    metadata = result.metadata
    position = {name: arg_index for arg_index, name in enumerate(launch_arguments(kernel))}
    scratch = metadata.scratch_bytes
    return index.Variant(
        target=spec.target.name,
        symbol=metadata.symbol,
        cubin=result.cubin,
        num_threads=metadata.num_threads,
        types=spec.types,
        choices=spec.choices,
        guards=spec.guards,
        config=spec.config_index,
        condition=condition,
        cluster=(metadata.num_ctas, 1, 1),
        waits_pdl=metadata.waits_pdl,
        is_persistent=metadata.is_persistent,
        cooperative=metadata.cooperative,
        dynamic_shared_bytes=metadata.shared_bytes,
        static_shared_bytes=metadata.static_shared_bytes,
        registers=metadata.registers,
        spill_bytes=metadata.spill_bytes,
        stack_bytes=metadata.stack_bytes,
        cubin_params=_cubin_params(metadata, position),
        tensor_maps=_tensor_maps(kernel, metadata, position),
        grid=spec.grid,
        scratch_bytes=expression.Integer(scratch) if scratch else None,
        scratch_align=SCRATCH_ALIGNMENT_BYTES if scratch else 0,
        remarks=tuple(
            _portable(remark, metadata) for remark in (*metadata.remarks, *metadata.ptxas_warnings)
        ),
        ptx=result.ptx,
    )


def _portable(remark: str, metadata: Metadata) -> str:
    """Strip folders from the source files in a remark.

    An archive has no paths in it, so it is the same wherever it was built.
    """
    for path, _ in metadata.source_files:
        if remark.startswith(f"{path}:"):
            return PurePath(path).name + remark[len(path) :]
    return remark


def _cubin_params(metadata: Metadata, position: Mapping[str, int]) -> tuple[CubinParam, ...]:
    params: list[CubinParam] = []
    num_maps = 0
    for slot in metadata.params:
        span = (slot.offset, slot.size_bytes)
        if slot.source in GRID_SOURCES:
            params.append(CubinParam(*span, "grid", GRID_SOURCES.index(slot.source)))
        elif slot.source == SCRATCH_SOURCE:
            params.append(CubinParam(*span, "scratch"))
        elif slot.argument not in position:
            message = f"{metadata.symbol} takes {slot.name!r}, which no launch passes"
            raise IRError(message)
        elif slot.tensor_map is not None:
            params.append(CubinParam(*span, "tensor_map", num_maps))
            num_maps += 1
        elif slot.source:
            root = expression.parse(slot.source)
            params.append(CubinParam(*span, "expression", expression=root))
        else:
            params.append(CubinParam(*span, "argument", position[slot.argument]))
    return tuple(params)


# Names of `CUtensorMapDataType`; a dtype without its own is copied as bits.
DATA_TYPES = {
    **dict.fromkeys(("i1", "i8", "u8", "fp8e4nv", "fp8e5"), 0),
    **dict.fromkeys(("i16", "u16"), 1),
    "u32": 2,
    "i32": 3,
    "u64": 4,
    "i64": 5,
    "fp16": 6,
    "fp32": 7,
    "fp64": 8,
    "bf16": 9,
}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_L2_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}


def _tensor_maps(
    kernel: KernelSpec, metadata: Metadata, position: Mapping[str, int]
) -> tuple[TensorMap, ...]:
    """Return the encodings of a variant's tensor maps, in the order of its parameters."""
    maps: list[TensorMap] = []
    for slot in metadata.params:
        spec = slot.tensor_map
        if spec is None:
            continue
        size = expression.Integer(SCALARS[spec.element].size_bytes)
        chosen = kernel.signature[slot.argument].l2_bytes
        # A map lists the innermost axis first.
        dims = map(expression.parse, spec.shape[::-1])
        strides = map(expression.parse, spec.strides[::-1])
        maps.append(
            TensorMap(
                param=position[slot.argument],
                data_type=DATA_TYPES[spec.element],
                address=expression.parse(spec.address),
                dims=tuple(dims),
                strides=tuple(expression.Binary("*", stride, size) for stride in strides),
                box=spec.box[::-1],
                element_strides=(1,) * len(spec.box),
                swizzle=_SWIZZLES[spec.swizzle_bytes],
                l2_promotion=_L2_PROMOTIONS[spec.fetched_bytes if chosen is None else chosen],
                oob_fill=int(spec.fill_nan),
            )
        )
    return tuple(maps)


def stored_params(kernel: index.Kernel, variant: index.Variant) -> tuple[ParamSlot, ...]:
    """Return a variant's parameters as in the compiler's metadata, without their types."""
    slots: list[ParamSlot] = []
    data_types = {number: name for name, number in DATA_TYPES.items()}
    spans = {number: span for span, number in _SWIZZLES.items()}
    fetched = {number: size for size, number in _L2_PROMOTIONS.items()}
    for slot_number, param in enumerate(variant.cubin_params):
        slot_head = (str(slot_number), "", param.offset, param.size)
        if param.source == "tensor_map":
            tensor_map = variant.tensor_maps[param.index]
            steps = [stride.lhs for stride in tensor_map.strides if isinstance(stride, Binary)]
            spec = TensorMapSpec(
                data_types[tensor_map.data_type],
                tensor_map.box[::-1],
                spans[tensor_map.swizzle],
                fill_nan=bool(tensor_map.oob_fill),
                address=expression.to_text(tensor_map.address),
                shape=tuple(map(expression.to_text, tensor_map.dims[::-1])),
                strides=tuple(map(expression.to_text, steps[::-1])),
                fetched_bytes=fetched[tensor_map.l2_promotion],
            )
            name = kernel.params[tensor_map.param].name
            slots.append(ParamSlot(*slot_head, argument=name, tensor_map=spec))
        elif param.source == "grid":
            source = GRID_SOURCES[param.index]
            slots.append(ParamSlot(*slot_head, argument=source, source=source))
        elif param.source == "scratch":
            slots.append(ParamSlot(*slot_head, argument=SCRATCH_SOURCE, source=SCRATCH_SOURCE))
        elif param.expression is not None:
            source = expression.to_text(param.expression)
            argument = next(iter(expression.free_names(param.expression)))
            slots.append(ParamSlot(*slot_head, argument=argument, source=source))
        else:
            slots.append(ParamSlot(*slot_head, argument=kernel.params[param.index].name))
    return tuple(slots)
