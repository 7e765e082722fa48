"""Report the coverage of launches as data and as text, by kernel and target."""

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
    """A launch for a target: its variant or the lack of one, reasons it is slow, and helpful rows."""

    target: str
    launch: Launch
    variant: str = ""
    missing: str = ""
    slow: tuple[Slow, ...] = ()
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """`table` has measurements, or None if not asked for; with `compiles` variants are compiled."""

    table: TuningTable | None = None
    compiles: bool = True


def cover_manifest(
    manifest: Manifest, shapes: Shapes, options: Options, target_names: Sequence[str] = ()
) -> tuple[Covered, ...]:
    """Return the coverage of the launches in `shapes`.

    Raises: DiagnosticError for mistakes in either file, or in a kernel.
    """
    _check_names(shapes, [kernel.name for kernel in manifest.kernels])
    coverage: list[Covered] = []
    chosen = manifest.targets_for(target_names, ())
    explained = lru_cache(None)(explain)
    for spec, among in manifest.select(shapes.kernels, chosen):
        kernel, specs = kernel_of(expand(spec, among, autotune_configs))
        for launch in _launches(shapes, kernel, defaults_of(spec)):
            for target in among:
                serving = _cover(kernel, spec, target.name, launch)
                if not isinstance(serving, Covered) and options.compiles:
                    serving = fitting(serving, specs, explained) or _unfit(target.name, launch)
                if isinstance(serving, Covered):
                    coverage.append(serving)
                    continue
                variant = specs[serving[0]]
                slow: list[Slow] = []
                if options.compiles:
                    slow += compiled_reasons(kernel, variant, launch, explained)
                coverage.append(
                    _served(kernel, variant, target.name, launch, serving, slow, options)
                )
    return tuple(coverage)


def cover_archive(
    archive: Archive, shapes: Shapes, options: Options, target_names: Sequence[str] = ()
) -> tuple[Covered, ...]:
    """Return the coverage of the launches in `shapes`. Raises: ManifestError."""
    kernels = {kernel.name: kernel for kernel in archive.kernels}
    _check_names(shapes, list(kernels))
    coverage: list[Covered] = []
    for name in shapes.kernels:
        kernel = kernels[name]
        for launch in _launches(shapes, kernel):
            for target in target_names or kernel.targets:
                serving = _cover(kernel, None, target, launch)
                if isinstance(serving, Covered):
                    coverage.append(serving)
                    continue
                slow = [*archived_reasons(kernel, serving[0], launch)]
                coverage.append(_served(kernel, None, target, launch, serving, slow, options))
    return tuple(coverage)


def defaults_of(spec: KernelSpec) -> dict[str, Entry]:
    """Return the arguments given by `[kernel.verify]`, for shapes that leave them out."""
    expressions = {name: parsed.root for name, parsed in spec.verify.expressions.items()}
    return {**spec.verify.values, **expressions}


def _unfit(target: str, launch: Launch) -> Covered:
    return Covered(target, launch, missing="no config that serves it fits the target")


def _check_names(shapes: Shapes, names: Sequence[str]) -> None:
    for shape in shapes.shapes:
        for name in shape.kernels:
            if name not in names:
                message = f"expected a kernel ({', '.join(names)}), got {name!r}"
                raise shape.wrong("kernel", message, did_you_mean(name, names))


def _launches(
    shapes: Shapes, kernel: Kernel, defaults: Mapping[str, Entry] | None = None
) -> list[Launch]:
    """Return a kernel's launches, including any without a variant."""
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
    """Return the variants for a launch, or its coverage if there are none."""
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


def describe(coverage: Sequence[Covered]) -> Data:
    """Return coverage as JSON-ready data."""
    return {
        "launches": [
            {
                "kernel": covered.launch.kernel,
                "target": covered.target,
                "types": dict(covered.launch.types),
                "choices": dict(covered.launch.choices),
                "key": dict(covered.launch.key),
                "weight": covered.launch.weight,
                "variant": covered.variant or None,
                "missing": covered.missing or None,
                "slow": [{"kind": reason.kind, "text": reason.text} for reason in covered.slow],
                "rows": [row.text for row in covered.rows],
            }
            for covered in coverage
        ],
        "rows": [{"kernel": row.kernel, "toml": row.text} for row in _all_rows(coverage)],
    }


def is_covered(coverage: Sequence[Covered]) -> bool:
    """Return whether every launch has a variant, and none a slow one."""
    return not any(covered.missing or covered.slow for covered in coverage)


def _all_rows(coverage: Sequence[Covered]) -> tuple[Row, ...]:
    return joined(row for covered in coverage for row in covered.rows)


def text(coverage: Sequence[Covered]) -> str:
    """Format coverage as text: counts, missing or slow launches, and rows to add."""
    lines: list[str] = []
    groups: dict[tuple[str, str], list[Covered]] = {}
    for covered in coverage:
        groups.setdefault((covered.launch.kernel, covered.target), []).append(covered)
    for (kernel, target), members in groups.items():
        missing = [covered for covered in members if covered.missing]
        slow = [covered for covered in members if covered.slow]
        total = sum(covered.launch.weight for covered in members) or 1.0
        counts = [f"{len(members)} launch{'' if len(members) == 1 else 'es'}"]
        for state, group in (("without a variant", missing), ("slow", slow)):
            share = sum(covered.launch.weight for covered in group) / total
            counts.append(f"{len(group)} {state}" + (f" ({share:.0%} by weight)" if group else ""))
        lines.append(f"{kernel} {target}: {', '.join(counts)}")
        alike: dict[tuple[str, ...], list[Covered]] = {}
        for covered in (*missing, *slow):
            reasons = (
                covered.missing or "slow",
                *(slow_reason.text for slow_reason in covered.slow),
            )
            alike.setdefault(reasons, []).append(covered)
        for (head, *reasons), group in alike.items():
            more = f" and {len(group) - 1} more" if len(group) > 1 else ""
            lines.append(f"  {_label(group[0].launch)}{more}: {head}")
            lines += [f"    {reason}" for reason in reasons]
    shown = list(map(one_line, lines))
    rows: dict[str, list[str]] = {}
    for row in _all_rows(coverage):
        rows.setdefault(row.kernel, []).append(row.text)
    for kernel, texts in rows.items():
        shown += ["", f"# to add to [[kernel]] {kernel}", *texts]
    return "\n".join(shown)


def _label(launch: Launch) -> str:
    values: Mapping[str, object] = {**launch.types, **launch.choices, **launch.key}
    weight = f" (weight {launch.weight:g})" if launch.weight != 1 else ""
    return " ".join(f"{name}={value}" for name, value in values.items()) + weight
