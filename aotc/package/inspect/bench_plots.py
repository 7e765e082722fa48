"""Plots of measured launches, as SVG: roofline, shares, winning configs, speed-ups.

matplotlib draws them, since it writes SVG without a browser, a network or a script, and lays out
logarithmic axes, legends and labels. It is an extra, which nothing else of aotc needs.

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
_MAX_ROWS = 50  # launches of a plot that has a row for each
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
    """Return a figure with one plot as SVG, whose ids begin with its name. Raises: HostError."""
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
    """Return a colour for each name; the last one is that of all that are too many."""
    return {name: _COLORS[min(at, len(_COLORS) - 1)] for at, name in enumerate(names)}


def heaviest(rows: Sequence[Row]) -> list[Row]:
    """Return the launches that take most time, as far as a plot has room, in their order."""
    ranked = sorted(range(len(rows)), key=lambda at: -rows[at]["seconds"] * rows[at]["weight"])
    return [rows[at] for at in sorted(ranked[:_MAX_ROWS])]


def height_of(rows: Sequence[Row]) -> float:
    """Return the height of a plot that has a row for each launch."""
    return 0.9 + 0.24 * len(rows)


# ---- the plots ---------------------------------------------------------------------------------


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
        own = [row for row in rows if row["kernel"] == kernel]
        xs = [row["flops"] / row["bytes"] for row in own]
        ys = [row["flops_per_second"] / 1e12 for row in own]
        axes.scatter(xs, ys, color=color, s=26, alpha=0.8, label=kernel, zorder=3)
    axes.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="TFLOP/s")
    axes.set_xlim(low, high)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


def shares(axes: Any, rows: Sequence[Row], labels: Sequence[str]) -> None:
    """Draw which part of the roofline each launch reaches."""
    colors = {"memory": "#3b6fb6", "compute": "#c8662b"}
    for bound, color in colors.items():
        places = [at for at, row in enumerate(rows) if row["bound"] == bound]
        if places:
            values = [100 * rows[at]["roofline"] for at in places]
            axes.barh(places, values, color=color, label=f"bound by {bound}")
    _rows(axes, labels)
    axes.set(xlabel="% of the roofline")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


def winners(axes: Any, rows: Sequence[Row], names: Sequence[str], x: str, y: str) -> None:
    """Draw over two arguments which config is the fastest, by name."""
    colors = colors_of(sorted(dict.fromkeys(names), key=lambda name: -names.count(name)))
    for name, color in colors.items():
        own = [row["key"] for row, other in zip(rows, names, strict=True) if other == name]
        xs = [_shifted(key[x]) for key in own]
        ys = [_shifted(key[y]) if y else 1 for key in own]
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
    others: Mapping[str, Sequence[float | None]],
) -> None:
    """Draw how many times as fast as each other a launch is; None where there is no other."""
    for number, (name, ratios) in enumerate(others.items()):
        places = [at for at, ratio in enumerate(ratios) if ratio is not None]
        values = [ratios[at] for at in places]
        color, size = (
            _COLORS[number % 8],
            max(10, 60 - 30 * number),
        )  # a point on another one leaves a ring
        axes.scatter(values, places, s=size, color=color, label=name, zorder=3 + number)
    axes.axvline(1, color="#1c2430", lw=1)
    _rows(axes, labels)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter("{x:g}×")
    axes.set(xlabel="times as fast")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


def bought(axes: Any, totals: Mapping[str, Mapping[str, float]]) -> None:
    """Draw the weighted time of each kernel by what picks configs, the first config's being 1."""
    kernels = list(totals)
    ways = list(next(iter(totals.values())))
    width = 0.8 / len(ways)
    for number, way in enumerate(ways):
        places = [at + (number - (len(ways) - 1) / 2) * width for at in range(len(kernels))]
        values = [totals[kernel][way] for kernel in kernels]
        bars = axes.bar(places, values, width * 0.92, color=_COLORS[number], label=way)
        axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.set_xticks(range(len(kernels)), kernels)
    axes.set_ylabel("time, of that with the first config")
    axes.grid(visible=False, axis="x")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


def _ticks(axis: Any, values: Iterable[int]) -> None:
    """Label the values that occur, as far as there is room."""
    shown = sorted(values)
    shown = shown[:: 1 + len(shown) // _MAX_TICKS]
    axis.set_ticks([_shifted(value) for value in shown], [str(value) for value in shown])
    axis.set_ticks([], minor=True)


def _rows(axes: Any, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)


def _shifted(value: int) -> float:
    """Return what a logarithmic axis shows of a value, which may be 0."""
    return value if value > 0 else math.sqrt(0.5)
