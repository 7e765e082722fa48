"""Report the measurements of `aotc bench`, as data and as a table.

The data is JSON of schema 1, described in docs/reference/cli.md; keys are added, never renamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from aotc.ir.diagnostics import one_line
from aotc.package.archive.label import variant_label
from aotc.package.inspect.bench_labels import config_label, launch_labels
from aotc.package.tuning.work import Peak, Work, dot_dtype
from aotc.tuning.bench import Timed

Data: TypeAlias = dict[str, Any]
_COLUMNS = ("launch", "config", "µs", "TFLOP/s", "TB/s", "roofline", "over first")


@dataclass(frozen=True, slots=True)
class Measured:
    """A launch with its work and its peers' answers."""

    timed: Timed
    work: Work
    peers: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine measured on; `peak` is None for an unlisted GPU."""

    gpu: str
    driver: str
    target: str
    l2: str
    passes: int
    peak: Peak | None
    no_peers: str = ""


def describe(name: str, machine: Machine, measured: Sequence[Measured]) -> Data:
    """Return all measurements as JSON-ready data."""
    peak = machine.peak
    clocks = [launch.timed.clock_mhz for launch in measured if launch.timed.clock_mhz]
    dtypes = [dot_dtype(launch.timed.kernel, launch.timed.launch) for launch in measured]
    flops = max((peak.flops_of(dtype) for dtype in dtypes), default=0.0) if peak else 0.0
    return {
        "schema": 1,
        "archive": name,
        "gpu": machine.gpu,
        "driver": machine.driver,
        "target": machine.target,
        "clock_mhz": min(clocks, default=0),
        "l2": machine.l2,
        "passes": machine.passes,
        "peak_flops": flops or None,
        "peak_bytes_per_second": peak.bytes_per_second if peak else None,
        "no_peers": machine.no_peers or None,
        "launches": [_launch(launch, peak) for launch in measured],
    }


def _launch(measured: Measured, peak: Peak | None) -> Data:
    timed, work = measured.timed, measured.work
    kernel, launch = timed.kernel, timed.launch
    seconds = timed.seconds
    variant = timed.variant
    dtype = dot_dtype(kernel, launch)
    row: Data = {
        "kernel": kernel.name,
        "types": dict(launch.types),
        "choices": dict(launch.choices),
        "key": dict(launch.key),
        "weight": launch.weight,
        "variant": None if variant is None else variant_label(kernel, variant),
        "config": None if variant is None else dict(kernel.configs[variant.config]),
        "problem": timed.problem or None,
        "seconds": seconds,
        "low_seconds": timed.low,
        "high_seconds": timed.high,
        "flops": work.flops,
        "bytes": work.bytes,
        "flops_per_second": work.flops / seconds if work.flops and seconds else None,
        "bytes_per_second": work.bytes / seconds if work.bytes and seconds else None,
        "dtype": dtype,
        "peak_flops": peak.flops_of(dtype) if peak else None,
        "bound": None,
        "roofline": None,
        "configs": [
            {"config": dict(kernel.configs[index]), "seconds": config_seconds}
            for index, config_seconds in sorted(timed.by_config.items())
        ],
        "peers": [dict(peer) for peer in measured.peers],
    }
    if peak is not None and seconds:
        memory = (work.bytes or 0) / peak.bytes_per_second
        compute = (work.flops or 0) / peak.flops_of(dtype)
        row["bound"] = "compute" if compute > memory else "memory" if memory else None
        row["roofline"] = max(memory, compute) / seconds or None
    return row


def text(report: Data) -> str:
    """Format the measurements as a table, a row for each launch."""
    names = list(dict.fromkeys(peer["name"] for row in report["launches"] for peer in row["peers"]))
    rows: list[tuple[str, ...]] = [(*_COLUMNS, *(f"over {name}" for name in names))]
    problems: list[str] = []
    launches = report["launches"]
    for row, label in zip(launches, launch_labels(launches), strict=True):
        if row["seconds"] is None:
            problems.append(f"{label}: {row['problem']}")
            continue
        ratios = {peer["name"]: peer.get("seconds") for peer in row["peers"]}
        rows.append((
            label,
            config_label(row["config"]),
            f"{row['seconds'] * 1e6:.2f}",
            _scaled(row["flops_per_second"], 1e12),
            _scaled(row["bytes_per_second"], 1e12),
            "" if row["roofline"] is None else f"{row['roofline']:.0%}",
            _times(row["configs"][0]["seconds"], row["seconds"]),
            *(_times(ratios.get(name), row["seconds"]) for name in names),
        ))  # fmt: skip
        failed = (peer for peer in row["peers"] if "problem" in peer)
        problems += [f"{label}: {peer['name']}: {peer['problem']}" for peer in failed]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    clock = f"{report['clock_mhz']} MHz" if report["clock_mhz"] else "an unknown clock"
    head = f"{report['gpu']}, driver {report['driver']}, {clock}, {report['l2']} L2"
    if report["no_peers"]:
        problems.append(f"no peers: {report['no_peers']}")
    return "\n".join(map(one_line, [head, "", *lines, *([""] if problems else []), *problems]))


def _scaled(value: float | None, unit: float) -> str:
    return "" if value is None else f"{value / unit:.3g}"


def _times(other: float | None, seconds: float) -> str:
    """Return the speed-up over another time."""
    return "" if other is None else f"{other / seconds:.2f}x"
