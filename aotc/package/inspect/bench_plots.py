"""Plot measured launches as SVG: roofline, shares, winning configs, speed-ups.

matplotlib writes SVG without a browser, a network or a script, and lays out logarithmic axes,
legends and labels. It is an extra, unused by the rest of aotc.

Invariant: equal data give equal bytes.
"""

from __future__ import annotations

import importlib
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from aotc.ir.diagnostics import HostError

Row: TypeAlias = Mapping[str, Any]

_WIDTH = 9.0  # inches
_COLORS = (
    *("#3b6fb6", "#c8662b", "#3d8f5f", "#8a5fb0", "#b0475a", "#5f7d8a", "#a08a2f", "#4aa0a8"),
    *("#7a7a7a", "#d08fb5"),
)
_MAX_TICKS = 12
_MAX_ROWS = 50  # launches of a plot with a row for each
_STYLE = {
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "aotc",
    "text.parse_math": False,  # a name may have a dollar
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#d5dae1",
    "axes.edgecolor": "#5b6675",
    "figure.facecolor": "white",
}


def find_plots() -> Any:
    """Return matplotlib. Raises: HostError if it is not installed."""
    try:
        return importlib.import_module("matplotlib")
    except ImportError:
        message = "expected matplotlib, which draws the page's plots"
        raise HostError(message, remedy="pip install 'aotc[report]'") from None


def draw(height: float, name: str, plot: Callable[[Any], None]) -> str:
    """Return a figure with one plot as SVG; its ids begin with its name. Raises: HostError."""
    matplotlib = find_plots()
    figures: Any = importlib.import_module("matplotlib.figure")
    with matplotlib.rc_context(_STYLE):
        figure = figures.Figure(figsize=(_WIDTH, height), layout="constrained")
        plot(figure.add_subplot())
        output = io.StringIO()
        figure.savefig(output, format="svg", metadata={"Date": None, "Creator": None})
    svg = output.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(\bid=")', rf"\g<1>{name}-", svg)
    return re.sub(r'((?:url\(|xlink:href="|href=")#)', rf"\g<1>{name}-", svg)


def colors_of(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each name; names beyond the palette share the last one."""
    return {name: _COLORS[min(index, len(_COLORS) - 1)] for index, name in enumerate(names)}


def heaviest(rows: Sequence[Row]) -> list[Row]:
    """Return the launches with the most time that fit in a plot, in their order."""
    ranked = sorted(
        range(len(rows)), key=lambda index: -rows[index]["seconds"] * rows[index]["weight"]
    )
    return [rows[index] for index in sorted(ranked[:_MAX_ROWS])]


def height_of(rows: Sequence[Row]) -> float:
    """Return the height of a plot with a row for each launch."""
    return 0.9 + 0.24 * len(rows)


def roofline(axes: Any, rows: Sequence[Row], bandwidth: float) -> None:
    """Draw launches under the roofs of memory and of each dtype's arithmetic."""
    intensities = [row["flops"] / row["bytes"] for row in rows]
    peaks = {row["dtype"]: row["peak_flops"] for row in rows}
    ridges = [peak / bandwidth for peak in peaks.values()]
    low, high = min(*intensities, *ridges) / 4, max(*intensities, *ridges) * 4
    for dtype, peak in sorted(peaks.items()):
        xs = [low, peak / bandwidth, high]
        axes.plot(xs, [low * bandwidth / 1e12, peak / 1e12, peak / 1e12], color="#1c2430", lw=1)
        axes.annotate(dtype, (high, peak / 1e12), ha="right", va="bottom")
    colors = colors_of(list(dict.fromkeys(row["kernel"] for row in rows)))
    for kernel, color in colors.items():
        kernel_rows = [row for row in rows if row["kernel"] == kernel]
        xs = [row["flops"] / row["bytes"] for row in kernel_rows]
        ys = [row["flops_per_second"] / 1e12 for row in kernel_rows]
        axes.scatter(xs, ys, color=color, s=26, alpha=0.8, label=kernel, zorder=3)
    axes.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="TFLOP/s")
    axes.set_xlim(low, high)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


def shares(axes: Any, rows: Sequence[Row], labels: Sequence[str]) -> None:
    """Draw the part of the roofline reached by each launch."""
    colors = {"memory": "#3b6fb6", "compute": "#c8662b"}
    for bound, color in colors.items():
        indices = [index for index, row in enumerate(rows) if row["bound"] == bound]
        if indices:
            values = [100 * rows[index]["roofline"] for index in indices]
            axes.barh(indices, values, color=color, label=f"bound by {bound}")
    _rows(axes, labels)
    axes.set(xlabel="% of the roofline")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


def winners(axes: Any, rows: Sequence[Row], names: Sequence[str], x: str, y: str) -> None:
    """Draw the fastest config over two arguments, by name."""
    colors = colors_of(sorted(dict.fromkeys(names), key=lambda name: -names.count(name)))
    for name, color in colors.items():
        keys = [row["key"] for row, other in zip(rows, names, strict=True) if other == name]
        xs = [_log_position(key[x]) for key in keys]
        ys = [_log_position(key[y]) if y else 1 for key in keys]
        axes.scatter(xs, ys, color=color, s=90, marker="s", label=name, zorder=3)
    axes.set_xscale("log", base=2)
    _ticks(axes.xaxis, {row["key"][x] for row in rows})
    if y:
        axes.set_yscale("log", base=2)
        axes.set_ylabel(y)
        _ticks(axes.yaxis, {row["key"][y] for row in rows})
    else:
        axes.set_yticks([])
    axes.set_xlabel(x)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


def speedups(
    axes: Any,
    labels: Sequence[str],
    ratios_by_name: Mapping[str, Sequence[float | None]],
) -> None:
    """Draw the speed-up of each launch over each alternative; None where one is missing."""
    for number, (name, ratios) in enumerate(ratios_by_name.items()):
        indices = [index for index, ratio in enumerate(ratios) if ratio is not None]
        values = [ratios[index] for index in indices]
        color, size = (
            _COLORS[number % 8],
            max(10, 60 - 30 * number),
        )  # shrinking, so that a covered point leaves a ring
        axes.scatter(values, indices, s=size, color=color, label=name, zorder=3 + number)
    axes.axvline(1, color="#1c2430", lw=1)
    _rows(axes, labels)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter("{x:g}×")
    axes.set(xlabel="times as fast")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


def gains(axes: Any, totals: Mapping[str, Mapping[str, float]]) -> None:
    """Draw the weighted time of each kernel by way of picking configs, relative to the first config."""
    kernels = list(totals)
    ways = list(next(iter(totals.values())))
    width = 0.8 / len(ways)
    for number, way in enumerate(ways):
        positions = [
            index + (number - (len(ways) - 1) / 2) * width for index in range(len(kernels))
        ]
        values = [totals[kernel][way] for kernel in kernels]
        bars = axes.bar(positions, values, width * 0.92, color=_COLORS[number], label=way)
        axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.set_xticks(range(len(kernels)), kernels)
    axes.set_ylabel("time, of that with the first config")
    axes.grid(visible=False, axis="x")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


def _ticks(axis: Any, values: Iterable[int]) -> None:
    """Label the values that occur, as far as there is room."""
    shown = sorted(values)
    shown = shown[:: 1 + len(shown) // _MAX_TICKS]
    axis.set_ticks([_log_position(value) for value in shown], [str(value) for value in shown])
    axis.set_ticks([], minor=True)


def _rows(axes: Any, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)


def _log_position(value: int) -> float:
    """Return the position of a value on a logarithmic axis, also for 0."""
    return value if value > 0 else math.sqrt(0.5)
