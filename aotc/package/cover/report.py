"""Coverage of launches as data and as text, by kernel and target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from aotc.compiler import autotune_configs
from aotc.ir.diagnostics import did_you_mean, one_line
from aotc.package.archive.index import Archive, Kernel, Variant
from aotc.package.archive.label import variant_label
from aotc.package.cover.choose import Refusal, accepting, choose, kernel_of
from aotc.package.cover.rows import Row, joined, row_of
from aotc.package.cover.slow import Slow, archived_reasons, compiled_reasons, fitting, tuning_reason
from aotc.package.inspect.explain import explain
from aotc.package.manifest.spec import KernelSpec, Manifest
from aotc.package.manifest.variant_grid import VariantSpec, expand
from aotc.package.tuning.shape_text import Entry
from aotc.package.tuning.shapes import Launch, Shapes, launches
from aotc.package.tuning.table import TuningTable

Data: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Covered:
    """A launch for a target: its variant, or why it has none; why that is slow; rows that help."""

    target: str
    launch: Launch
    variant: str = ""
    missing: str = ""
    slow: tuple[Slow, ...] = ()
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """`table` has what was measured, None if nobody asks; with `compiles` variants are compiled."""

    table: TuningTable | None = None
    compiles: bool = True


def cover_manifest(
    manifest: Manifest, shapes: Shapes, options: Options, target_names: Sequence[str] = ()
) -> tuple[Covered, ...]:
    """Return the coverage of the launches that shapes name.

    Raises: DiagnosticError for mistakes in either file, or in a kernel.
    """
    _check_names(shapes, [kernel.name for kernel in manifest.kernels])
    found: list[Covered] = []
    chosen = manifest.targets_for(target_names, ())
    explained = lru_cache(None)(explain)
    for spec, among in manifest.select(shapes.kernels, chosen):
        kernel, specs = kernel_of(expand(spec, among, autotune_configs))
        for launch in _launches(shapes, kernel, defaults_of(spec)):
            for target in among:
                one = _cover(kernel, spec, target.name, launch)
                if not isinstance(one, Covered) and options.compiles:
                    one = fitting(one, specs, explained) or _unfit(target.name, launch)
                if isinstance(one, Covered):
                    found.append(one)
                    continue
                variant = specs[one[0]]
                slow: list[Slow] = []
                if options.compiles:
                    slow += compiled_reasons(kernel, variant, launch, explained)
                found.append(_served(kernel, variant, target.name, launch, one, slow, options))
    return tuple(found)


def cover_archive(
    archive: Archive, shapes: Shapes, options: Options, target_names: Sequence[str] = ()
) -> tuple[Covered, ...]:
    """Return the coverage of the launches that shapes name. Raises: ManifestError."""
    kernels = {kernel.name: kernel for kernel in archive.kernels}
    _check_names(shapes, list(kernels))
    found: list[Covered] = []
    for name in shapes.kernels:
        kernel = kernels[name]
        for launch in _launches(shapes, kernel):
            for target in target_names or kernel.targets:
                one = _cover(kernel, None, target, launch)
                if isinstance(one, Covered):
                    found.append(one)
                    continue
                slow = [*archived_reasons(kernel, one[0], launch)]
                found.append(_served(kernel, None, target, launch, one, slow, options))
    return tuple(found)


def defaults_of(spec: KernelSpec) -> dict[str, Entry]:
    """Return what `[kernel.verify]` says of arguments, for shapes that leave them out."""
    expressions = {name: each.root for name, each in spec.verify.expressions.items()}
    return {**spec.verify.values, **expressions}


def _unfit(target: str, launch: Launch) -> Covered:
    return Covered(target, launch, missing="no config that serves it fits the target")


def _check_names(shapes: Shapes, known: Sequence[str]) -> None:
    for shape in shapes.shapes:
        for name in shape.kernels:
            if name not in known:
                message = f"expected a kernel ({', '.join(known)}), got {name!r}"
                raise shape.wrong("kernel", message, did_you_mean(name, known))


def _launches(
    shapes: Shapes, kernel: Kernel, defaults: Mapping[str, Entry] | None = None
) -> list[Launch]:
    """Return a kernel's launches, those among them that have no variant."""
    merged: dict[tuple[object, ...], Launch] = {}
    for shape in shapes.shapes:
        if kernel.name in shape.kernels:
            open_kernel = accepting(kernel, shape.types, shape.choices, list(shape.entries))
            for launch in launches(Shapes((shape,)), open_kernel, defaults):
                merged.setdefault(launch.identity, launch)
    return list(merged.values())


def _cover(
    kernel: Kernel, spec: KernelSpec | None, target: str, launch: Launch
) -> Covered | tuple[Variant, ...]:
    """Return the variants that serve a launch, or the coverage of one that has none."""
    chosen = choose(kernel, target, launch)
    if not isinstance(chosen, Refusal):
        return chosen
    row = row_of(kernel, spec, launch, chosen)
    return Covered(target, launch, missing=chosen.text, rows=() if row is None else (row,))


def _served(
    kernel: Kernel,
    spec: VariantSpec | None,
    target: str,
    launch: Launch,
    serving: tuple[Variant, ...],
    slow: list[Slow],
    options: Options,
) -> Covered:
    if options.table is not None:
        untuned = tuning_reason(options.table, kernel, target, launch, serving)
        slow += [] if untuned is None else [untuned]
    label = variant_label(kernel, serving[0]) if spec is None else spec.label
    rows = joined(row for reason in slow for row in reason.rows)
    return Covered(target, launch, label, slow=tuple(slow), rows=rows)


# ---- output ------------------------------------------------------------------------------------


def describe(found: Sequence[Covered]) -> Data:
    """Return coverage as JSON-ready data."""
    return {
        "launches": [
            {
                "kernel": one.launch.kernel,
                "target": one.target,
                "types": dict(one.launch.types),
                "choices": dict(one.launch.choices),
                "key": dict(one.launch.key),
                "weight": one.launch.weight,
                "variant": one.variant or None,
                "missing": one.missing or None,
                "slow": [{"kind": each.kind, "text": each.text} for each in one.slow],
                "rows": [row.text for row in one.rows],
            }
            for one in found
        ],
        "rows": [{"kernel": row.kernel, "toml": row.text} for row in _all_rows(found)],
    }


def is_covered(found: Sequence[Covered]) -> bool:
    """Return whether every launch has a variant, and none a slow one."""
    return not any(one.missing or one.slow for one in found)


def _all_rows(found: Sequence[Covered]) -> tuple[Row, ...]:
    return joined(row for one in found for row in one.rows)


def text(found: Sequence[Covered]) -> str:
    """Return coverage as lines to read: counts, what is missing or slow, and rows to add."""
    lines: list[str] = []
    groups: dict[tuple[str, str], list[Covered]] = {}
    for one in found:
        groups.setdefault((one.launch.kernel, one.target), []).append(one)
    for (kernel, target), members in groups.items():
        missing = [one for one in members if one.missing]
        slow = [one for one in members if one.slow]
        total = sum(one.launch.weight for one in members) or 1.0
        counts = [f"{len(members)} launch{'' if len(members) == 1 else 'es'}"]
        for what, some in (("without a variant", missing), ("slow", slow)):
            share = sum(one.launch.weight for one in some) / total
            counts.append(f"{len(some)} {what}" + (f" ({share:.0%} by weight)" if some else ""))
        lines.append(f"{kernel} {target}: {', '.join(counts)}")
        alike: dict[tuple[str, ...], list[Covered]] = {}
        for one in (*missing, *slow):
            reasons = (one.missing or "slow", *(each.text for each in one.slow))
            alike.setdefault(reasons, []).append(one)
        for (head, *reasons), some in alike.items():
            more = f" and {len(some) - 1} more" if len(some) > 1 else ""
            lines.append(f"  {_label(some[0].launch)}{more}: {head}")
            lines += [f"    {reason}" for reason in reasons]
    shown = list(map(one_line, lines))
    rows: dict[str, list[str]] = {}
    for row in _all_rows(found):
        rows.setdefault(row.kernel, []).append(row.text)
    for kernel, texts in rows.items():
        shown += ["", f"# to add to [[kernel]] {kernel}", *texts]
    return "\n".join(shown)


def _label(launch: Launch) -> str:
    values: Mapping[str, object] = {**launch.types, **launch.choices, **launch.key}
    weight = f" (weight {launch.weight:g})" if launch.weight != 1 else ""
    return " ".join(f"{name}={value}" for name, value in values.items()) + weight
