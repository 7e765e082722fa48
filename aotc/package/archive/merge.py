"""Merge archives: kernels of several builds, or one library's builds for several targets.

Kernels of different names are all kept. Kernels of one name become one kernel with all variants, if
they are the same: equal sources, arguments, types, choices, guards, configs and constants. Any
contradiction between two archives is an error that names it; nothing is picked silently.

Invariant: the parts of one build, by target or by kernel, merge to the bytes of that build, in any
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aotc.ir.diagnostics import ManifestError
from aotc.ir.parameter_access import union
from aotc.package.archive.index import Archive, Kernel, Variant, selection_key, variant_key
from aotc.package.archive.label import variant_label
from aotc.package.archive.selection import Selection

_SAME = ("type_variables", "choices", "guards", "configs", "constants", "grid_rank")
_SEPARATOR = " + "


def merge(archives: Sequence[tuple[str, Archive]], name: str = "", version: str = "") -> Archive:
    """Merge archives, given with the paths for messages.

    `name` and `version` are needed where the archives differ in theirs.

    Raises:
        ManifestError: two of them contradict each other.
    """
    kernels: dict[str, tuple[str, Kernel]] = {}
    for path, archive in archives:
        for kernel in archive.kernels:
            if kernel.name in kernels:
                first, other = kernels[kernel.name]
                kernels[kernel.name] = (first, _merge_kernels(first, other, path, kernel))
            else:
                kernels[kernel.name] = (path, kernel)
    toolchains = dict.fromkeys(
        part for _, archive in archives for part in archive.toolchain.split(_SEPARATOR)
    )
    return Archive(
        name or _common("name", [(path, archive.name) for path, archive in archives]),
        version or _common("version", [(path, archive.version) for path, archive in archives]),
        tuple(kernel for _, kernel in kernels.values()),
        _SEPARATOR.join(sorted(toolchain for toolchain in toolchains if toolchain)),
    )


def _common(field: str, labels: Sequence[tuple[str, str]]) -> str:
    """Return the name or version shared by all archives."""
    first_path, first = labels[0]
    for path, text in labels:
        if text != first:
            message = (
                f"expected archives of one {field}, got {first!r} ({first_path}), {text!r} ({path})"
            )
            raise ManifestError(message, remedy=f"say what it shall be: --{field}")
    return first


def _merge_kernels(first_path: str, first: Kernel, path: str, second: Kernel) -> Kernel:
    """Return a kernel with the variants of both."""
    where = f"kernel {first.name!r} of {first_path} and of {path}"
    if first.source_sha256 != second.source_sha256:
        message = f"expected one kernel of each name, got two: {where} have different sources"
        raise ManifestError(message, remedy="build both of the same sources, or rename one")
    different = [field for field in _SAME if getattr(first, field) != getattr(second, field)]
    bare = [
        [replace(param, access="unknown") for param in kernel.params] for kernel in (first, second)
    ]
    different += ["params"] if bare[0] != bare[1] else []
    if different:
        listed = ", ".join(field.replace("_", " ") for field in different)
        message = f"expected one kernel of each name, got two: {where} differ in {listed}"
        raise ManifestError(message, remedy="build both of the same manifest, or rename one")
    params = tuple(
        replace(first_param, access=union(first_param.access, second_param.access))
        for first_param, second_param in zip(first.params, second.params, strict=True)
    )
    variants: dict[object, Variant] = {variant_key(first, v): v for v in first.variants}
    for variant in second.variants:
        earlier = variants.setdefault(variant_key(second, variant), variant)
        if earlier != variant:
            label = variant_label(second, variant)
            message = f"expected each variant once, {first_path} and {path} differ in {label}"
            raise ManifestError(
                message, remedy="take it out of one: aotc split --target or --kernel"
            )
    selections: dict[object, Selection] = {selection_key(s): s for s in first.selections}
    for selection in second.selections:
        if selections.setdefault(selection_key(selection), selection) != selection:
            gpu = selection.gpu or f"any GPU of {selection.target}"
            message = f"expected each selection once, got two: {where} select others for {gpu}"
            raise ManifestError(message, remedy="build both with one tuning table")
    return replace(
        first,
        params=params,
        variants=tuple(variants.values()),
        selections=tuple(selections.values()),
    )
