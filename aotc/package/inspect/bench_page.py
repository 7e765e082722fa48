"""Write the page of `aotc bench`: one HTML file with its plots inside.

Invariant: nothing is fetched and no script runs; every text of the data is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from aotc.package.inspect import bench_plots as plots
from aotc.package.inspect.bench_labels import config_label, distinct_labels, launch_labels
from aotc.package.inspect.bench_plots import Row, find_plots

__all__ = ["find_plots", "page_of"]

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2430; background: #fff;
       max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
p { color: #5b6675; margin: .3rem 0; max-width: 46rem; }
.wide { overflow-x: auto; } svg { width: 100%; min-width: 40rem; height: auto; display: block; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .86rem; }
th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #d5dae1; text-align: right;
         white-space: nowrap; }
th { color: #5b6675; font-weight: 500; } .name { text-align: left; }
.bad { color: #c0392b; }
"""


def page_of(report: Mapping[str, Any]) -> str:
    """Return the page of a bench report. Raises: HostError without matplotlib."""
    rows: list[Row] = [row for row in report["launches"] if row["seconds"] is not None]
    clock = f", {report['clock_mhz']} MHz" if report["clock_mhz"] else ""
    where = f"{report['gpu']}, driver {report['driver']}{clock}, {report['l2']} L2"
    body = [
        f"<h1>{_text(report['archive'])}</h1>",
        _paragraph(f"{where}; each time is the median of {report['passes']} launches."),
        *_roofline(report, rows),
        *_winners(rows),
        *_speedups(rows),
        *_gains(rows),
        *_peers(report, rows),
        "<h2>Launches</h2>",
        f'<div class="wide">{_table(report["launches"])}</div>',
    ]
    return "\n".join([
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(report['archive'])}</title>",
        f"<style>{_STYLE}</style></head><body>",
        *body,
        "</body></html>",
        "",
    ])  # fmt: skip


def _text(value: object) -> str:
    return html.escape(str(value))


def _paragraph(text: str) -> str:
    return f"<p>{_text(text)}</p>"


def _figure(svg: str) -> str:
    return f'<div class="wide">{svg}</div>'


def _cut(text: str, most: int = 48) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _roofline(report: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    counted = [row for row in rows if row["flops"] and row["bytes"] and row["peak_flops"]]
    body: list[str] = []
    if counted:
        bandwidth = report["peak_bytes_per_second"]
        svg = plots.draw(4.4, "roof", lambda axes: plots.roofline(axes, counted, bandwidth))
        body += [
            "<h2>Roofline</h2>",
            _paragraph(
                "Every launch whose operations are known, under what the GPU can do at most."
            ),
            _figure(svg),
        ]
    bounded = plots.heaviest([row for row in rows if row["roofline"] is not None])
    if bounded:
        labels = list(map(_cut, launch_labels(bounded)))
        svg = plots.draw(
            plots.height_of(bounded), "share", lambda axes: plots.shares(axes, bounded, labels)
        )
        body += ["<h2>Share of the roofline</h2>", _figure(svg)]
    return body


def _winners(rows: Sequence[Row]) -> list[str]:
    body: list[str] = []
    for number, kernel in enumerate(dict.fromkeys(row["kernel"] for row in rows)):
        kernel_rows = [row for row in rows if row["kernel"] == kernel and len(row["configs"]) > 1]
        names = _varying(kernel_rows)
        if not names:
            continue
        x, y = names[0], names[1] if len(names) > 1 else ""
        best = [
            min(row["configs"], key=lambda config: config["seconds"])["config"]
            for row in kernel_rows
        ]
        plot = partial(plots.winners, rows=kernel_rows, names=distinct_labels(best), x=x, y=y)
        over = f"{x} and {y}" if y else x
        svg = plots.draw(3.6 if y else 1.8, f"win{number}", plot)
        body += [f"<h2>Fastest configs of {_text(kernel)} over {_text(over)}</h2>", _figure(svg)]
    return body


def _varying(rows: Sequence[Row]) -> list[str]:
    """Return the two arguments with most values, in the order of the arguments."""
    counts: dict[str, set[int]] = {}
    for row in rows:
        for name, value in row["key"].items():
            counts.setdefault(name, set()).add(value)
    varying = [name for name, values in counts.items() if len(values) > 1]
    varying.sort(key=lambda name: ("stride" in name, -len(counts[name])))
    columns = {tuple(row["key"][name] for row in rows): name for name in reversed(varying)}
    most_varying = [name for name in varying if name in columns.values()][
        :2
    ]  # arguments with equal columns only once
    return [name for name in counts if name in most_varying]


def _speedups(rows: Sequence[Row]) -> list[str]:
    shown = plots.heaviest([row for row in rows if len(row["configs"]) > 1])
    if not shown:
        return []
    labels = list(map(_cut, launch_labels(shown)))
    ratios = {
        "what is taken": [row["configs"][0]["seconds"] / row["seconds"] for row in shown],
        "the fastest": [row["configs"][0]["seconds"] / _best(row) for row in shown],
    }
    svg = plots.draw(
        plots.height_of(shown), "first", lambda axes: plots.speedups(axes, labels, ratios)
    )
    return [
        "<h2>Speed-up over the first config</h2>",
        _paragraph("The first config of the manifest that fits is what is taken without tuning."),
        _figure(svg),
    ]


def _gains(rows: Sequence[Row]) -> list[str]:
    totals: dict[str, dict[str, float]] = {}
    for row in rows:
        if len(row["configs"]) > 1:
            weight = row["weight"]
            kernel_totals = totals.setdefault(
                row["kernel"], {"first": 0.0, "taken": 0.0, "fastest": 0.0}
            )
            kernel_totals["first"] += weight * row["configs"][0]["seconds"]
            kernel_totals["taken"] += weight * row["seconds"]
            kernel_totals["fastest"] += weight * _best(row)
    if not totals:
        return []
    relative = {
        kernel: {way: seconds / kernel_totals["first"] for way, seconds in kernel_totals.items()}
        for kernel, kernel_totals in totals.items()
    }
    svg = plots.draw(3.2, "bought", lambda axes: plots.gains(axes, relative))
    return [
        "<h2>What tuning bought</h2>",
        _paragraph(
            "Time of all launches by weight: with the first config, taken, and the fastest."
        ),
        _figure(svg),
    ]


def _best(row: Row) -> float:
    return min(config["seconds"] for config in row["configs"])


def _peers(report: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    shown = plots.heaviest([row for row in rows if any("seconds" in p for p in row["peers"])])
    if not shown:
        reason = report["no_peers"]
        return ["<h2>Peers</h2>", _paragraph(f"None was timed: {reason}.")] if reason else []
    names = dict.fromkeys(peer["name"] for row in shown for peer in row["peers"])
    seconds_by_peer = [
        {peer["name"]: peer.get("seconds") for peer in row["peers"]} for row in shown
    ]
    ratios: dict[str, list[float | None]] = {
        f"over {name}": [
            None if peer_seconds.get(name) is None else peer_seconds[name] / row["seconds"]
            for row, peer_seconds in zip(shown, seconds_by_peer, strict=True)
        ]
        for name in names
    }
    labels = list(map(_cut, launch_labels(shown)))
    svg = plots.draw(
        plots.height_of(shown), "peers", lambda axes: plots.speedups(axes, labels, ratios)
    )
    return ["<h2>Peers</h2>", _figure(svg)]


def _table(rows: Sequence[Row]) -> str:
    peers = list(dict.fromkeys(peer["name"] for row in rows for peer in row["peers"]))
    heads = ("launch", "config", "µs", "TFLOP/s", "TB/s", "roofline", *peers)
    lines = ["<tr>" + "".join(_head(head, column) for column, head in enumerate(heads)) + "</tr>"]
    for row, label in zip(rows, launch_labels(rows), strict=True):
        cells = [f'<td class="name">{_text(label)}</td>']
        if row["seconds"] is None:
            cells.append(
                f'<td class="name bad" colspan="{len(heads) - 1}">{_text(row["problem"])}</td>'
            )
        else:
            peer_results = {peer["name"]: peer for peer in row["peers"]}
            cells += [
                f'<td class="name">{_text(config_label(row["config"]))}</td>',
                _cell(row["seconds"], 1e-6, ".2f"),
                _cell(row["flops_per_second"], 1e12, ".3g"),
                _cell(row["bytes_per_second"], 1e12, ".3g"),
                _cell(row["roofline"], 1, ".0%"),
                *(_cell(peer_results.get(name, {}).get("seconds"), 1e-6, ".2f") for name in peers),
            ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "<table>" + "\n".join(lines) + "</table>"


def _head(text: str, column: int) -> str:
    kind = ' class="name"' if column < 2 else ""
    return f"<th{kind}>{_text(text)}</th>"


def _cell(value: float | None, unit: float, form: str) -> str:
    return f"<td>{'' if value is None else format(value / unit, form)}</td>"
