"""Write a compiled kernel as HTML: source lines beside layouts, remarks, SASS and live registers.

Invariant: nothing is fetched and no script runs; every text of a kernel or an archive is escaped.
Lines fold by `<details>`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from aotc.ir.diagnostics import printable
from aotc.package.inspect.explain import Explanation
from aotc.package.inspect.explain import text as explanation_text
from aotc.package.inspect.source_lines import SourceLine

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #5b6675; --line: #d5dae1; --page: #ffffff;
        --shade: #f3f5f8; --bar: #3b6fb6; --remark: #a85a12; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf0; --dim: #98a4b3; --line: #38424f; --page: #14191f; --shade: #1d242c;
          --bar: #6d9bd8; --remark: #e0a05a; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
       max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
h3 { font-size: .95rem; margin: 1rem 0 .3rem; }
p { color: var(--dim); margin: .3rem 0; max-width: 52rem; }
ul { margin: .3rem 0; padding-left: 1.2rem; } li { margin: .15rem 0; overflow-wrap: anywhere; }
pre, code, .line { font: 12.5px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { margin: .3rem 0; overflow-x: auto; }
summary { cursor: pointer; } summary:focus-visible { outline: 2px solid var(--bar); }
.listing { border: 1px solid var(--line); border-radius: 6px; overflow-x: auto; }
.line { display: grid; grid-template-columns: 1rem 3rem minmax(24rem, 1fr) 11rem 8.5rem 6.5rem 6rem;
        min-width: 62rem; align-items: baseline; padding: 0 .5rem; white-space: pre; }
summary.line { list-style: none; } summary.line::-webkit-details-marker { display: none; }
summary.line::before { content: "▸"; color: var(--dim); } details[open] > summary.line::before { content: "▾"; }
div.line::before { content: ""; }
details[open] > summary.line, summary.line:hover { background: var(--shade); }
.number, .head { color: var(--dim); } .code { overflow: hidden; text-overflow: ellipsis; }
.bar { display: inline-block; height: .65em; border-radius: 2px; background: var(--bar); }
.mark { color: var(--remark); } .count { display: inline-block; min-width: 1.9rem; text-align: right; margin-right: .4rem; }
.body { padding: .2rem 1rem .7rem 4.5rem; border-bottom: 1px solid var(--line); background: var(--shade); }
.gap { color: var(--dim); padding: 0 .5rem; border-top: 1px solid var(--line); border-bottom: 1px solid var(--line); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .86rem; }
th, td { padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--line); text-align: left;
         vertical-align: top; }
th { color: var(--dim); font-weight: 500; } .wide { overflow-x: auto; }
"""
_BAR_REM = 4.5
_MOST_REGISTERS = 255
_HEAD = ("line", "source", "tile", "live registers", "instructions", "remarks")


def explanation_page(explanation: Explanation, lines: Sequence[SourceLine]) -> str:
    """Return the page of one compile, or of one variant of an archive."""
    title, *facts = explanation_text(explanation).split("\n")
    first_section = next(
        (i for i, fact in enumerate(facts) if not fact.startswith("  ")), len(facts)
    )
    body = [
        f"<h1>{text(title)}</h1>",
        *(f"<p>{text(fact)}</p>" for fact in facts[:first_section]),
        "<h2>Source</h2>",
        legend(has_layouts=explanation.accesses is not None),
        listing(lines),
        *_facts(facts[first_section:]),
    ]
    return document(title, body)


def document(title: str, body: Iterable[str]) -> str:
    """Return a page with the style of these."""
    return "\n".join([
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{text(title)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        *body,
        "</body></html>",
        "",
    ])  # fmt: skip


def text(value: object) -> str:
    """Escape a value for HTML, and its control characters."""
    return html.escape(printable(str(value)))


def legend(*, has_layouts: bool) -> str:
    """Return the paragraph on reading a listing."""
    layouts = "the layouts of its tiles, " if has_layouts else ""
    return (
        f"<p>A line opens to its remarks, {layouts}and its instructions. Live registers are the most"
        " that one of them finds in use.</p>"
    )


def _facts(lines: Sequence[str]) -> list[str]:
    """Return the sections of an explanation below its head, as lists."""
    body: list[str] = []
    for line in lines:
        if line.startswith("  "):
            body.append(f"<li>{text(line.strip())}</li>")
        else:
            body += ["</ul>" if body else "", f"<h2>{text(line.rstrip(':').capitalize())}</h2><ul>"]
    return [*body, "</ul>"] if body else []


def listing(lines: Sequence[SourceLine]) -> str:
    """Return source lines, each with a fold of what was compiled from it."""
    if not lines:
        return "<p>The cubin has no line table: build without --no-lineinfo.</p>"
    spans = "".join(f"<span>{text(name)}</span>" for name in _HEAD)
    parts: list[str] = []
    previous: SourceLine | None = None
    for line in lines:
        if previous is None or line.file != previous.file:
            parts += ["</div>"] if previous is not None else []
            parts.append(f'<h3>{text(line.file)}</h3><div class="listing">')
            parts.append(f'<div class="line head">{spans}</div>')
        elif line.number != previous.number + 1:
            parts.append(_gap(line, line.number - previous.number - 1))
        parts.append(_line(line))
        previous = line
    return "\n".join([*parts, "</div>"])


def _gap(line: SourceLine, num_lines: int) -> str:
    """Return the lines left out before a line; one alone is blank."""
    if num_lines == 1:
        return _line(SourceLine(line.file, line.number - 1, ""))
    return f'<div class="gap">{num_lines} lines</div>'


def _line(line: SourceLine) -> str:
    cells = [
        f'<span class="number">{line.number}</span>',
        f'<span class="code" title="{text(line.text.strip())}">{text(line.text)}</span>',
    ]
    if line.is_plain:
        return f'<div class="line">{"".join(cells)}</div>'
    live, count = line.live_registers, len(line.instructions)
    width = _BAR_REM * live / _MOST_REGISTERS
    bar = f'<span class="bar" style="width:{width:.2f}rem"></span>'
    bar = f'<span class="count">{live}</span>{bar}' if live else ""
    tile = line.layouts[-1].type if line.layouts else ""
    marks = f"{len(line.remarks)} remark{'s' * (len(line.remarks) > 1)}" if line.remarks else ""
    cells += [
        f'<span class="number code">{text(tile)}</span>',
        f"<span>{bar}</span>",
        f"<span>{count or ''}</span>",
        f'<span class="mark">{marks}</span>',
    ]
    body = [bullets(line.remarks), _layouts(line), _instructions(line)]
    return (
        f'<details><summary class="line">{"".join(cells)}</summary>'
        f'<div class="body">{"".join(body)}</div></details>'
    )


def bullets(remarks: Sequence[str]) -> str:
    """Return remarks as a list, "" for none."""
    items = "".join(f"<li>{text(remark)}</li>" for remark in remarks)
    return f"<ul>{items}</ul>" if items else ""


def _layouts(line: SourceLine) -> str:
    if not line.layouts:
        return ""
    cells = (
        f"<tr><td>{text(tile.opcode)}</td><td>{text(tile.type)}</td><td>{text(tile.spread)}</td>"
        f"<td><code>{text(tile.layout)}</code></td></tr>"
        for tile in line.layouts
    )
    head = "<tr><th>op</th><th>tile</th><th>held by</th><th>layout</th></tr>"
    return f'<div class="wide"><table>{head}{"".join(cells)}</table></div>'


def _instructions(line: SourceLine) -> str:
    listing = "\n".join(
        f"{one.live_registers:4}  {one.address:05x}  {one.text}" for one in line.instructions
    )
    return f"<pre>live  address  instruction\n{text(listing)}</pre>" if listing else ""
