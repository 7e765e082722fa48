"""Report an archive's sizes, coverage and resources by kernel and target, as data and text.

Sizes are file sizes: a kernel's frames, shared by its variants, and its index. Coverage is the
types, choices and configs with a variant. `report_page.py` makes a page of the same data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

from aotc import target as targets
from aotc.ir.diagnostics import ManifestError, one_line
from aotc.package.archive.decoder import StoredFrame
from aotc.package.archive.index import Archive, Kernel, Variant, combination, num_combinations
from aotc.package.archive.label import variant_label
from aotc.package.inspect.explain import explain_variant
from aotc.regular_file import MAX_RECORDS_BYTES, read_regular

Data: TypeAlias = dict[str, Any]

_COLUMNS = (
    *("kernel", "target", "variants", "configs", "combinations"),
    *("raw bytes", "stored", "registers", "spill", "shared", "warps/SM"),
)
_WARP_THREADS = 32
_MEASURED = ("gpu", "peak_flops", "peak_bytes_per_second", "launches")
_LAUNCH = ("kernel", "flops", "bytes", "seconds")


def describe(
    archive: Archive,
    frames: list[StoredFrame],
    size_bytes: int,
    measured: Data | None = None,
    ready: Data | None = None,
) -> Data:
    """Return the report of an archive with a file of `size_bytes` bytes, as JSON-ready data.

    `ready` has the name of a `gpu`, and as `seconds` the time of each kernel until it can be
    launched there.
    """
    stored = sum(frame.stored_bytes for frame in frames)
    raw = {v.cubin for kernel in archive.kernels for v in kernel.variants}
    return {
        "name": archive.name,
        "version": archive.version,
        "toolchain": archive.toolchain,
        "size_bytes": size_bytes,
        "root_bytes": size_bytes - stored,
        "cubin_bytes": sum(map(len, raw)),
        "targets": list(archive.targets),
        "kernels": [
            _describe_kernel(kernel, [frame for frame in frames if frame.kernel == kernel.name])
            for kernel in archive.kernels
        ],
        "measured": measured,
        "ready": ready,
    }


def _describe_kernel(kernel: Kernel, frames: list[StoredFrame]) -> Data:
    return {
        "name": kernel.name,
        "index_bytes": sum(frame.stored_bytes for frame in frames if not frame.target),
        "configs": len(kernel.configs),
        "combinations": num_combinations(kernel.type_variables, kernel.choices),
        "targets": {target: _describe_target(kernel, target, frames) for target in kernel.targets},
    }


def _describe_target(kernel: Kernel, target: str, frames: list[StoredFrame]) -> Data:
    variants = [variant for variant in kernel.variants if variant.target == target]
    return {
        "stored_bytes": sum(frame.stored_bytes for frame in frames if frame.target == target),
        "cubin_bytes": sum(map(len, {variant.cubin for variant in variants})),
        "configs": len({variant.config for variant in variants}),
        "combinations": len({combination(kernel, v.types, v.choices) for v in variants}),
        "variants": [
            {
                "label": variant_label(kernel, variant),
                "registers": variant.registers,
                "spill_bytes": variant.spill_bytes,
                "stack_bytes": variant.stack_bytes,
                "shared_bytes": variant.dynamic_shared_bytes + variant.static_shared_bytes,
                "threads": variant.num_threads,
                "warps_per_sm": _warps_per_sm(kernel, variant),
                "cubin_bytes": len(variant.cubin),
            }
            for variant in variants
        ],
    }


def _warps_per_sm(kernel: Kernel, variant: Variant) -> int | None:
    """Return the warps resident on an SM, or None for an unknown target."""
    if variant.target not in targets.TARGETS or variant.num_threads < _WARP_THREADS:
        return None
    return explain_variant(kernel, variant).occupancy.warps


def read_measured(path: Path) -> Data:
    """Return measured launches for a roofline.

    The file is JSON: `{"gpu", "peak_flops", "peak_bytes_per_second", "launches": [{"kernel",
    "flops", "bytes", "seconds"}]}`, with flops and bytes of one launch.

    Raises:
        ManifestError: it is not such a file.
    """
    try:
        data = json.loads(read_regular(path, MAX_RECORDS_BYTES))
        launches = [
            launch
            for launch in data["launches"]
            if all(launch.get(key, 0) is not None for key in _LAUNCH)
        ]
        numbers = [data["peak_flops"], data["peak_bytes_per_second"]]
        numbers += [launch[key] for launch in launches for key in _LAUNCH[1:]]
        names = [data["gpu"], *(launch["kernel"] for launch in launches)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        message = f"expected JSON with {', '.join(_MEASURED)}, {path} has something else: {error}"
        remedy = f"each launch has {', '.join(_LAUNCH)}"
        raise ManifestError(one_line(message), remedy=remedy) from None
    is_number = all(isinstance(n, (int, float)) and n > 0 for n in numbers)
    if not is_number or not all(isinstance(name, str) for name in names):
        message = f"expected numbers above 0, and names, {path} has something else"
        raise ManifestError(message)
    return {
        **{key: data[key] for key in _MEASURED[:3]},
        "launches": [{key: launch[key] for key in _LAUNCH} for launch in launches],
    }


def text(report: Data) -> str:
    """Format a report as a table, a row for each kernel and target."""
    ready: dict[str, float] = report["ready"]["seconds"] if report["ready"] else {}
    rows: list[tuple[str, ...]] = [(*_COLUMNS, "ready ms") if ready else _COLUMNS]
    for kernel in report["kernels"]:
        for target, coverage in kernel["targets"].items():
            variants = coverage["variants"]
            rows.append((
                one_line(kernel["name"]),
                target,
                str(len(variants)),
                f"{coverage['configs']}/{kernel['configs']}",
                f"{coverage['combinations']}/{kernel['combinations']}",
                str(coverage["cubin_bytes"]),
                str(coverage["stored_bytes"]),
                _span([variant["registers"] for variant in variants]),
                _span([variant["spill_bytes"] for variant in variants]),
                _span([variant["shared_bytes"] for variant in variants]),
                _span([v["warps_per_sm"] for v in variants if v["warps_per_sm"] is not None]),
                *([ready_text(ready.get(kernel["name"]))] if ready else []),
            ))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([summary(report), "", *lines])


def summary(report: Data) -> str:
    """Return the size of an archive and of its parts, as text."""
    index = sum(kernel["index_bytes"] for kernel in report["kernels"])
    size, raw = report["size_bytes"], report["cubin_bytes"]
    part = f", {size / raw:.1%} of {raw} bytes of cubins" if raw else ""
    head = f"{report['name']} {report['version']}: {size} bytes{part}"
    code = size - report["root_bytes"] - index
    rest = f"root {report['root_bytes']}, indices of kernels {index}, code {code}"
    return f"{one_line(head)}\n{rest}"


def ready_text(seconds: float | None) -> str:
    """Return the milliseconds until a kernel can be launched, if measured."""
    return "" if seconds is None else f"{1e3 * seconds:.2f}"


def _span(values: list[int]) -> str:
    if not values:
        return ""
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"
