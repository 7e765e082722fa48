"""The drawings of these pages, as SVG: `python docs/internals/drawings.py` writes them beside this file.

A drawing is made of what the code says where code says it (the fragment's layout is a
`LinearLayout`), so that it cannot drift from it; `tests/test_docs.py` compares what is committed.
"""  # noqa: INP001 - a script of the documents, no module

from __future__ import annotations

import ast
from html import escape
from pathlib import Path

from aotc import schedule
from aotc.schedule.layout.layouts import mma_v2

FONT = 'font-family="sans-serif" font-size="12"'
# Fill of a box by what it says; legible on light and dark pages alike.
COLOURS = {
    "load": "#9ecae1",
    "dot": "#fdae6b",
    "epilogue": "#a1d99b",
    "wait": "#e5e5e5",
    "full": "#9ecae1",
    "empty": "#ffffff",
}


def box(x: float, y: float, width: float, height: float, text: str, fill: str) -> str:
    """Return a rectangle with its text in the middle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" fill="{fill}" '
        f'stroke="#555"/><text x="{x + width / 2:g}" y="{y + height / 2 + 4:g}" '
        f'text-anchor="middle" fill="#111">{escape(text)}</text>'
    )


def label(x: float, y: float, text: str, anchor: str = "start") -> str:
    """Return a line of text."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="#111">{escape(text)}</text>'


def arrow(x0: float, y0: float, x1: float, y1: float) -> str:
    """Return a line that ends in a point."""
    return (
        f'<line x1="{x0:g}" y1="{y0:g}" x2="{x1:g}" y2="{y1:g}" stroke="#333" '
        'marker-end="url(#point)"/>'
    )


def svg(width: int, height: int, title: str, parts: list[str]) -> str:
    """Return a whole drawing."""
    marker = (
        '<defs><marker id="point" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#333"/></marker></defs>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'{FONT}><title>{escape(title)}</title>{marker}<rect width="{width}" height="{height}" '
        'fill="#fff"/>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def warps() -> str:
    """Draw the warps of a warp-specialized, persistent matmul over time.

    Two tiles of three steps along K, a ring of three stages; the epilogue of a tile overlaps the
    next tile's mainloop.
    """
    left, unit, steps, stages = 130, 62, 3, 3
    rows = {"producer": 30, "tensor cores": 74, "consumers": 118}
    parts = [label(left - 12, y + 19, name, "end") for name, y in rows.items()]
    for load in range(2 * steps):
        tile, step = divmod(load, steps)
        # The first loads fill the ring; each later one follows the release of its stage.
        at = left + (load * 0.6 if load < stages else load - stages + 2.35) * unit
        width = 0.58 * unit
        text = f"{'AB'[tile]}{step}→{load % stages}"
        parts.append(box(at, rows["producer"], width, 28, text, COLOURS["load"]))
        # The accumulator is free once the tile before has been converted.
        dot = left + (load + 1 + 0.5 * tile) * unit
        parts.append(
            box(dot, rows["tensor cores"], unit - 2, 28, f"dot {'AB'[tile]}{step}", COLOURS["dot"])
        )
    consumers = left, rows["consumers"]
    parts.append(box(consumers[0], consumers[1], unit - 2, 28, "wait full", COLOURS["wait"]))
    after_a = left + (steps + 1) * unit
    parts.append(
        box(left + unit, consumers[1], steps * unit - 2, 28, "issue dots of A", COLOURS["dot"])
    )
    parts.append(box(after_a, consumers[1], 0.5 * unit, 28, "cvt", COLOURS["epilogue"]))
    for part in range(2):
        at = after_a + (0.55 + part) * unit
        parts.append(box(at, consumers[1], 0.9 * unit, 28, f"store A.{part}", COLOURS["epilogue"]))
    end = after_a + (steps + 0.5) * unit
    parts.append(box(end, consumers[1], 0.9 * unit, 28, "store B", COLOURS["epilogue"]))
    parts.append(arrow(left, 170, left + 8 * unit, 170))
    parts.append(label(left + 8 * unit, 186, "time", "end"))
    parts.append(label(left, 186, "A0→0: step 0 of tile A into stage 0"))
    return svg(670, 200, "Warps of a warp-specialized persistent matmul over time", parts)


def ring() -> str:
    """Draw a ring of four stages with its full and empty mbarriers, three iterations in."""
    state = ("consumers read", "landed", "landed", "being filled")
    width, top, left = 142, 70, 30
    parts = [
        label(
            left,
            24,
            "producer: wait empty[s], phase p ^ 1 · expect bytes on full[s] · copy to stage s",
        ),
        label(
            left,
            240,
            "consumer: wait full[s], phase p · dot · arrive at empty[s] once it has been read",
        ),
    ]
    for stage, text in enumerate(state):
        x = left + stage * (width + 14)
        full = stage < 3
        parts += [
            box(
                x,
                top,
                width,
                34,
                f"full[{stage}]: {'complete' if full else 'pending'}",
                COLOURS["wait"],
            ),
            box(
                x,
                top + 40,
                width,
                44,
                f"stage {stage}: {text}",
                COLOURS["full" if full else "empty"],
            ),
            box(
                x,
                top + 90,
                width,
                34,
                f"empty[{stage}]: {'complete' if stage == 3 else 'pending'}",
                COLOURS["wait"],
            ),
        ]
        if stage:
            parts.append(arrow(x - 14, top + 62, x, top + 62))
    last = left + 3 * (width + 14) + width / 2
    parts += [
        arrow(last, 34, last, top),
        arrow(left + width / 2, 224, left + width / 2, top + 124),
        label(
            left,
            262,
            "s = i mod 4; the phase p of a stage flips each time the ring wraps around (i div 4)",
        ),
    ]
    return svg(670, 276, "A ring of four stages with full and empty mbarriers", parts)


def mma_layout() -> str:
    """Draw which lane and register hold each element of a 16x16 accumulator of `mma.sync`."""
    layout = mma_v2((16, 16), (1, 1))
    size, left, top = 44, 34, 34
    parts = [label(left, 14, layout.to_text())]
    parts += [label(left + size * (n + 0.5), top - 5, str(n), "middle") for n in range(16)]
    parts += [label(left - 6, top + 26 * (m + 0.5) + 4, str(m), "end") for m in range(16)]
    for lane in range(32):
        for register in range(8):
            row, column = layout.apply(lane=lane, register=register)
            # A hue for the four lanes that share a row, a shade for the register.
            fill = f"hsl({lane // 4 * 45}, 60%, {88 - 4 * register}%)"
            at = left + column * size, top + row * 26
            parts.append(box(*at, size, 26, f"{lane}.{register}", fill))
    return svg(left + 16 * size + 10, top + 16 * 26 + 10, "Accumulator layout of mma.sync", parts)


SCHEDULE = Path(schedule.__file__).parent
# The packages of the schedule, each above all that it imports.
PACKAGES = (
    ("pipelining", "warp_roles", "epilogue", "programs"),
    ("tensor_maps",),
    ("shared_memory", "layout", "cleanup"),
    ("analysis",),
)


def package_arrows() -> set[tuple[str, str]]:
    """Return which folder of the schedule imports from which other one."""
    found: set[tuple[str, str]] = set()
    for path in SCHEDULE.glob("*/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                parts = name.split(".")
                if parts[:2] == ["aotc", "schedule"] and (SCHEDULE / parts[2]).is_dir():
                    found.add((path.parent.name, parts[2]))
    return {(user, used) for user, used in found if user != used}


def packages() -> str:
    """Draw who imports from whom in the schedule; `pipeline.py` stands above, and imports from all."""
    width, height, step = 130, 34, 96
    places: dict[str, tuple[float, float]] = {}
    for row, names in enumerate(PACKAGES):
        gap = 670 / len(names)
        for at, name in enumerate(names):
            places[name] = ((at + 0.5) * gap, 20 + row * step)
    parts: list[str] = []
    for user, used in sorted(package_arrows()):
        (x0, y0), (x1, y1) = places[user], places[used]
        lean = max(-50.0, min(50.0, (x1 - x0) / 6))
        parts.append(arrow(x0 + lean, y0 + height, x1 - lean, y1))
    parts += [
        box(x - width / 2, y, width, height, name, COLOURS["wait"])
        for name, (x, y) in places.items()
    ]
    return svg(
        670, 40 + len(PACKAGES) * step - 40, "Packages of the schedule, and what they import", parts
    )


DRAWINGS = {
    "warps.svg": warps,
    "ring.svg": ring,
    "mma_layout.svg": mma_layout,
    "packages.svg": packages,
}


def main() -> None:
    """Write every drawing beside this file."""
    for name, draw in DRAWINGS.items():
        (Path(__file__).parent / name).write_text(draw())


if __name__ == "__main__":
    main()
