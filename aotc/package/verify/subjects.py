"""List the subjects of `aotc verify`: the variants of a manifest or an archive.

A `Subject` is one variant with everything needed to verify it. It has the compile request (or, from
an archive, the stored PTX and tile IR). It also has the grid, the guards that select it, and the
manifest's description of its inputs.

Invariant: a subject is plain data, so any process can verify it; a variant has the same label
whether it comes from a manifest or from the archive built of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from aotc import target as targets
from aotc.compiler import (
    CompileRequest,
    PtxKernel,
    autotune_configs,
)
from aotc.ir.diagnostics import ManifestError, did_you_mean
from aotc.ir.expression import Expression, Integer
from aotc.package.archive import file as archives
from aotc.package.archive import stored_ptx
from aotc.package.archive.index import Archive, Kernel, Variant
from aotc.package.archive.label import absent_pointers, variant_label
from aotc.package.builder.assemble import stored_params
from aotc.package.manifest.configs import integer_values
from aotc.package.manifest.read import load
from aotc.package.manifest.spec import Manifest, VerifySpec
from aotc.package.manifest.variant_grid import Expansion, VariantSpec, expand
from aotc.target import Target
from aotc.verify.checks.emulated import (
    DEFAULT_MAX_MEMORY_BYTES,
    DEFAULT_MAX_STEPS,
)


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """Options of a verification: `seed` determines the inputs and, unless 0, the order of warps.

    With `is_compared_later` executing only stores references, for launches elsewhere.
    """

    seed: int = 0
    max_steps: int = DEFAULT_MAX_STEPS
    max_memory_bytes: int = DEFAULT_MAX_MEMORY_BYTES
    is_compared_later: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant to verify; its PTX comes from `request` or from `stored`.

    `values` are integers in expressions besides the launch's arguments: constants, config entries,
    and compiled-in arguments. `grid` is empty if the caller gives it. `expanded` or `archived` is
    the variant's record.
    """

    label: str
    kernel: str
    target: Target
    request: CompileRequest | None
    stored: PtxKernel | None
    grid: tuple[Expression, ...]
    guards: tuple[Expression, ...]
    values: Mapping[str, int]
    num_ctas: int = 1
    spec: VerifySpec = field(default_factory=VerifySpec)
    expanded: tuple[Expansion, VariantSpec] | None = None
    archived: tuple[Kernel, Variant] | None = None


def subjects_of_manifest(
    manifest: Manifest,
    kernels: Sequence[str] = (),
    target_names: Sequence[str] = (),
    without: Sequence[str] = (),
) -> list[Subject]:
    """Return the variants of a manifest, all or only of some kernels and targets.

    Raises:
        DiagnosticError: there is no such kernel or target, or a kernel's configs are wrong.
    """
    chosen = manifest.targets_for(target_names, without)
    subjects: list[Subject] = []
    for kernel, among in manifest.select(kernels, chosen):
        expansion = expand(kernel, among, autotune_configs)
        subjects += [subject_of(expansion, variant) for variant in expansion.variants]
    return subjects


def subject_of(expansion: Expansion, variant: VariantSpec) -> Subject:
    """Make a subject of a variant of an expanded kernel."""
    kernel, request = variant.kernel, variant.request
    fixed = {
        name: argument.value
        for name, argument in kernel.signature.items()
        if isinstance(argument.value, int)
    }
    return Subject(
        label=variant.label,
        kernel=kernel.name,
        target=variant.target,
        request=request,
        stored=None,
        grid=variant.grid,
        guards=tuple(expansion.guards[index].expression for index in variant.guards),
        values={**integer_values(variant.values), **fixed, **dict.fromkeys(variant.absent, 0)},
        num_ctas=request.config.num_ctas,
        spec=kernel.verify,
        expanded=(replace(expansion, variants=(variant,), dropped=()), variant),
    )


def subjects_of_archive(
    archive: Archive, path: str, kernels: Sequence[str] = (), target_names: Sequence[str] = ()
) -> list[Subject]:
    """Return the variants of an archive, all or only of some kernels and targets.

    Raises:
        ManifestError: there is no such kernel or target, or the archive has no PTX.
    """
    names = [kernel.name for kernel in archive.kernels]
    for noun, requested, available in (
        ("kernel", kernels, names),
        ("target", target_names, list(archive.targets)),
    ):
        for name in requested:
            if name not in available:
                message = f"expected a {noun} of {path} ({', '.join(available)}), got {name!r}"
                raise ManifestError(message, remedy=did_you_mean(name, available))
    return [
        _stored_subject(kernel, variant, path)
        for kernel in archive.kernels
        for variant in kernel.variants
        if (not kernels or kernel.name in kernels)
        and (not target_names or variant.target in target_names)
    ]


def _stored_subject(kernel: Kernel, variant: Variant, path: str) -> Subject:
    label = variant_label(kernel, variant)
    tile_ir, ptx = stored_ptx.split(variant.ptx) if variant.ptx is not None else ("", "")
    if not tile_ir:
        message = f"expected an archive with PTX, {path} has none for {label}"
        raise ManifestError(message, remedy="build it with `aotc build --with-ptx`")
    config = dict(kernel.configs[variant.config])
    choices = zip((c.name for c in kernel.choices), variant.choices, strict=True)
    named_values = {**dict(kernel.constants), **config, **dict(choices)}
    return Subject(
        label=label,
        kernel=kernel.name,
        target=targets.parse(variant.target),
        request=None,
        stored=PtxKernel(
            tile_ir,
            ptx,
            variant.symbol,
            variant.dynamic_shared_bytes,
            stored_params(kernel, variant),
            scratch_bytes=_scratch_bytes(variant),
            cooperative=variant.cooperative,
        ),
        grid=variant.grid,
        guards=(
            *(kernel.guards[index].expression for index in variant.guards),
            *(() if variant.condition is None else (variant.condition,)),
        ),
        values={
            **{name: int(value) for name, value in named_values.items() if isinstance(value, int)},
            **dict.fromkeys(absent_pointers(kernel, variant), 0),
        },
        num_ctas=variant.cluster[0] * variant.cluster[1] * variant.cluster[2],
        archived=(kernel.alone(variant), variant),  # alone, so that little is sent to the worker
    )


def _scratch_bytes(variant: Variant) -> int:
    size = variant.scratch_bytes
    return size.value if isinstance(size, Integer) else 0


def load_subjects(
    path: str,
    kernels: Sequence[str] = (),
    target_names: Sequence[str] = (),
    labels: Sequence[str] = (),
    without: Sequence[str] = (),
) -> list[Subject]:
    """Return the variants of the manifest or the archive at `path`; `labels` restricts them.

    A manifest's variants are compiled `without` the named features.

    Raises:
        DiagnosticError: the manifest is wrong, or there is no such kernel, target or variant.
        ArchiveError: the archive cannot be read.
    """
    if Path(path).suffix == ".aotc":
        if without:
            message = f"expected a manifest to compile without {', '.join(without)}, got {path}"
            raise ManifestError(message, remedy="an archive is verified as it was built")
        subjects = subjects_of_archive(archives.read(Path(path)), path, kernels, target_names)
    else:
        subjects = subjects_of_manifest(load(path), kernels, target_names, without)
    all_labels = [subject.label for subject in subjects]
    for label in labels:
        if label not in all_labels:
            message = f"expected a variant of {path}, got {label!r}"
            raise ManifestError(message, remedy=did_you_mean(label, all_labels))
    return [subject for subject in subjects if not labels or subject.label in labels]
