"""Write the report of an archive as one HTML page: nothing is fetched, plots are SVG in it.

Invariant: every text of the archive is escaped, and the page has no script.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from aotc.package.inspect.report import Data, ready_text, summary

_COLORS = ("#3b6fb6", "#c8662b", "#3d8f5f", "#8a5fb0", "#b0475a", "#5f7d8a", "#a08a2f", "#4aa0a8")
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #5b6675; --line: #d5dae1; --page: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf0; --dim: #98a4b3; --line: #38424f; --page: #14191f; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
       max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
p { color: var(--dim); margin: .3rem 0; max-width: 46rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .86rem; }
th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); text-align: right;
         white-space: nowrap; }
th { color: var(--dim); font-weight: 500; } .name { text-align: left; }
.bad { color: #c0392b; font-weight: 600; }
svg { width: 100%; min-width: 44rem; height: auto; display: block; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg .dim { fill: var(--dim); }
svg .axis { stroke: var(--line); stroke-width: 1; } svg .roof { stroke: var(--ink); fill: none; }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .35em 0 1em; }
.key:first-child { margin-left: 0; }
"""
_WIDTH = 900
_LEFT, _RIGHT = 230, 90
_ROW = 22


def page(report: Data) -> str:
    """Return the page of a report."""
    colors = {
        target: _COLORS[index % len(_COLORS)]
        for index, target in enumerate(sorted(report["targets"]))
    }
    title = f"{report['name']} {report['version']}"
    head, rest = summary(report).split("\n", 1)
    body = [
        f"<h1>{_text(title)}</h1>",
        f"<p>{_text(head)}; {_text(rest)}</p>",
        f"<p>{_text(report['toolchain'])}</p>" if report["toolchain"] else "",
        f"<p>{_legend(colors)}</p>",
        "<h2>Size</h2>",
        _paragraph(
            "Bytes in the file by kernel and target. Variants of a kernel for one target are"
            " compressed together."
        ),
        f'<div class="wide">{_sizes(report, colors)}</div>',
        "<h2>Registers and shared memory</h2>",
        _paragraph(
            "Each dot is a variant; a ring marks one that spills registers. Point at one for its label."
        ),
        f'<div class="wide">{_resources(report, colors)}</div>',
    ]
    if report["measured"]:
        body += [
            "<h2>Roofline</h2>",
            _paragraph(
                f"Measured launches on {report['measured']['gpu']}: work per byte moved, and speed"
                " beside what the GPU can do at most."
            ),
            f'<div class="wide">{_roofline(report["measured"])}</div>',
        ]
    body += [
        "<h2>Coverage and resources</h2>",
        _paragraph(
            "Configs and combinations of types and choices that have a variant, of those that the"
            " kernel lists; then the least and the greatest of its variants." + _ready_note(report)
        ),
        f'<div class="wide">{_table(report)}</div>',
    ]
    return "\n".join([
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(title)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        *filter(None, body),
        "</body></html>",
        "",
    ])  # fmt: skip


def _ready_note(report: Data) -> str:
    if not report["ready"]:
        return ""
    gpu = report["ready"]["gpu"]
    return f" Ready is how long it takes on {gpu} from a closed archive to all of a kernel's variants loaded."


def _paragraph(text: str) -> str:
    return f"<p>{_text(text)}</p>"


def _text(value: object) -> str:
    return html.escape(str(value))


def _legend(colors: dict[str, str]) -> str:
    return "".join(
        f'<span class="key" style="background:{color}"></span>{_text(target)}'
        for target, color in colors.items()
    )


def _bytes_text(size: float) -> str:
    for unit in ("B", "KiB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} MiB"


def _svg(height: float, parts: Iterable[str], label: str) -> str:
    inner = "\n".join(parts)
    role = f'role="img" aria-label="{_text(label)}"'
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" {role}>\n{inner}\n</svg>'


def _label(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{_text(text)}</text>'
    )


def _line(x0: float, y0: float, x1: float, y1: float) -> str:
    return f'<line class="axis" x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"/>'


def _cut(text: str, most: int = 34) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _sizes(report: Data, colors: dict[str, str]) -> str:
    """Draw a bar for each kernel, its targets one after the other."""
    totals = {
        kernel["name"]: sum(coverage["stored_bytes"] for coverage in kernel["targets"].values())
        for kernel in report["kernels"]
    }
    most = max(totals.values(), default=0) or 1
    scale = (_WIDTH - _LEFT - _RIGHT) / most
    parts: list[str] = []
    kernels = sorted(report["kernels"], key=lambda kernel: -totals[kernel["name"]])
    for row, kernel in enumerate(kernels):
        y = 4 + row * _ROW
        x = float(_LEFT)
        parts.append(_label(_LEFT - 8, y + 13, _cut(kernel["name"]), "end"))
        for target, coverage in kernel["targets"].items():
            width = coverage["stored_bytes"] * scale
            title = f"{kernel['name']} {target}: {coverage['stored_bytes']} bytes"
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.5):.1f}" height="{_ROW - 6}"'
                f' fill="{colors[target]}"><title>{_text(title)}</title></rect>'
            )
            x += width
        parts.append(_label(x + 6, y + 13, _bytes_text(totals[kernel["name"]]), kind="dim"))
    return _svg(8 + _ROW * len(kernels), parts, "stored bytes by kernel")


def _resources(report: Data, colors: dict[str, str]) -> str:
    """Draw registers of a thread against shared memory of a CTA."""
    height, left, bottom, top = 380, 56, 40, 12
    points = [
        (variant, target)
        for kernel in report["kernels"]
        for target, coverage in kernel["targets"].items()
        for variant in coverage["variants"]
    ]
    most_kib = max((v["shared_bytes"] / 1024 for v, _ in points), default=0)
    step = next((step for step in (1, 4, 8, 16) if most_kib <= 8 * step), 32)
    ticks = [step * index for index in range(max(1, math.ceil(most_kib / step)) + 1)]

    def x_of(registers: float) -> float:
        return left + registers / 256 * (_WIDTH - left - 20)

    def y_of(kib: float) -> float:
        return height - bottom - kib / ticks[-1] * (height - bottom - top)

    parts: list[str] = []
    for registers in range(0, 257, 32):
        parts.append(_line(x_of(registers), top, x_of(registers), height - bottom))
        parts.append(_label(x_of(registers), height - bottom + 16, str(registers), "middle", "dim"))
    for kib in ticks:
        parts.append(_line(left, y_of(kib), _WIDTH - 20, y_of(kib)))
        parts.append(_label(left - 8, y_of(kib) + 4, str(kib), "end", "dim"))
    parts.append(_label(_WIDTH - 20, height - 6, "registers of a thread", "end", "dim"))
    parts.append(_label(left + 4, top + 12, "KiB of shared memory of a CTA", "start", "dim"))
    for variant, target in points:
        x, y = x_of(variant["registers"]), y_of(variant["shared_bytes"] / 1024)
        ring = ' stroke="#c0392b" stroke-width="2"' if variant["spill_bytes"] else ""
        title = f"{variant['label']}: {variant['registers']} registers,"
        title += f" {variant['shared_bytes']} bytes shared, {variant['spill_bytes']} spilled"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colors[target]}" fill-opacity="0.65"{ring}>'
            f"<title>{_text(title)}</title></circle>"
        )
    return _svg(height, parts, "registers and shared memory of each variant")


def _roofline(measured: Data) -> str:
    """Draw measured launches under the roofs of bandwidth and of arithmetic, both axes logarithmic."""
    height, left, bottom, top = 420, 70, 44, 16
    peak, bandwidth = measured["peak_flops"], measured["peak_bytes_per_second"]
    launches = [
        (launch["kernel"], launch["flops"] / launch["bytes"], launch["flops"] / launch["seconds"])
        for launch in measured["launches"]
    ]
    ridge = peak / bandwidth
    intensities = [ridge / 30, ridge * 10, *(intensity for _, intensity, _ in launches)]
    low_x, high_x = (
        math.floor(math.log10(min(intensities))),
        math.ceil(math.log10(max(intensities))),
    )
    speeds = [peak, *(speed for _, _, speed in launches), 10**low_x * bandwidth]
    low_y, high_y = math.floor(math.log10(min(speeds))), math.ceil(math.log10(max(speeds)))

    def x_of(intensity: float) -> float:
        part = (math.log10(intensity) - low_x) / (high_x - low_x)
        return left + part * (_WIDTH - left - 24)

    def y_of(speed: float) -> float:
        part = (math.log10(speed) - low_y) / (high_y - low_y)
        return height - bottom - part * (height - bottom - top)

    parts: list[str] = []
    for power in range(low_x, high_x + 1):
        parts.append(_line(x_of(10**power), top, x_of(10**power), height - bottom))
        text = f"{10**power:g}"
        parts.append(_label(x_of(10**power), height - bottom + 16, text, "middle", "dim"))
    for power in range(low_y, high_y + 1):
        parts.append(_line(left, y_of(10**power), _WIDTH - 24, y_of(10**power)))
        text = f"{10 ** (power - 12):g}"
        parts.append(_label(left - 8, y_of(10**power) + 4, text, "end", "dim"))
    parts.append(_label(_WIDTH - 24, height - 6, "flop per byte", "end", "dim"))
    parts.append(_label(left + 6, top + 12, "Tflop/s", "start", "dim"))
    corners = [(10**low_x, 10**low_x * bandwidth), (ridge, peak), (10**high_x, peak)]
    path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in corners)
    parts.append(f'<polyline class="roof" stroke-width="1.5" points="{path}"/>')
    for index, (kernel, intensity, speed) in enumerate(launches):
        x, y = x_of(intensity), y_of(speed)
        share = speed / min(peak, intensity * bandwidth)
        title = f"{kernel}: {speed / 1e12:.3g} Tflop/s, {share:.0%} of the roof"
        color = _COLORS[index % len(_COLORS)]
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{color}"><title>{_text(title)}</title></circle>'
        )
        is_late = x > _WIDTH - 200
        anchor, shift = ("end", -9) if is_late else ("start", 9)
        parts.append(_label(x + shift, y + 4, f"{_cut(kernel)} {share:.0%}", anchor))
    return _svg(height, parts, "roofline")


def _table(report: Data) -> str:
    heads = (
        *("kernel", "target", "variants", "configs", "combinations", "cubins", "stored"),
        *("registers", "spilled bytes", "shared bytes", "warps of an SM"),
    )
    ready: dict[str, float] = report["ready"]["seconds"] if report["ready"] else {}
    heads += ("ready, ms",) if ready else ()
    cells = "".join(
        f'<th class="name">{h}</th>' if column < 2 else f"<th>{h}</th>"
        for column, h in enumerate(heads)
    )
    rows = [f"<tr>{cells}</tr>"]
    for kernel in report["kernels"]:
        for target, coverage in kernel["targets"].items():
            variants = coverage["variants"]
            spills = [variant["spill_bytes"] for variant in variants]
            warps = [v["warps_per_sm"] for v in variants if v["warps_per_sm"] is not None]
            columns = [
                _cell(len(variants)),
                _part(coverage["configs"], kernel["configs"]),
                _part(coverage["combinations"], kernel["combinations"]),
                _cell(_bytes_text(coverage["cubin_bytes"])),
                _cell(_bytes_text(coverage["stored_bytes"])),
                _cell(_span([variant["registers"] for variant in variants])),
                _cell(_span(spills), is_bad=any(spills)),
                _cell(_span([variant["shared_bytes"] for variant in variants])),
                _cell(_span(warps)),
                *([_cell(ready_text(ready.get(kernel["name"])))] if ready else []),
            ]
            names = "".join(f'<td class="name">{_text(n)}</td>' for n in (kernel["name"], target))
            rows.append(f"<tr>{names}{''.join(columns)}</tr>")
    return "<table>" + "\n".join(rows) + "</table>"


def _cell(value: object, *, is_bad: bool = False) -> str:
    kind = ' class="bad"' if is_bad else ""
    return f"<td{kind}>{_text(value)}</td>"


def _part(count: int, of: int) -> str:
    return _cell(f"{count} of {of}")


def _span(values: Sequence[int]) -> str:
    if not values:
        return ""
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
