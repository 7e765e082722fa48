"""Write an archive as HTML: the variants of each kernel, and their SASS beside source lines.

Invariant: as in `kernel_page`. A page has the code of few variants: disassembly takes a while.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.package.archive.index import Archive, Kernel, Variant
from aotc.package.archive.label import one_label, variant_label
from aotc.package.inspect.content import COLUMNS, guards, rows, summary
from aotc.package.inspect.kernel_page import bullets, document, legend, listing, text
from aotc.package.inspect.source_lines import SourceLine, lines_of

_MAX_DISASSEMBLED = 24


def archive_page(archive: Archive, size_bytes: int, words: str | None = None) -> str:
    """Return the page of an archive, with the code of the variant labelled `words`.

    By default with the code of the first variants of each kernel.

    Raises: ManifestError if there is no such variant.
    """
    variants = {
        variant_label(kernel, variant): variant
        for kernel in archive.kernels
        for variant in kernel.variants
    }
    chosen = _first(archive) if words is None else [one_label(variants, words, archive.name)]
    lines = {label: lines_of(variants[label].cubin, variants[label].remarks) for label in chosen}
    head, *facts = summary(archive, size_bytes).split("\n")
    body = [f"<h1>{text(head)}</h1>", *(f"<p>{text(fact)}</p>" for fact in facts)]
    body.append(legend(has_layouts=False))
    for kernel in archive.kernels:
        body += [f"<h2>{text(kernel.name)}</h2>", _variants(kernel)]
        for variant in kernel.variants:
            label = variant_label(kernel, variant)
            body.append(_variant(label, variant, lines.get(label)))
    return document(head, body)


def _first(archive: Archive) -> list[str]:
    """Return the labels of the first variants of each kernel, equally many."""
    share = max(1, _MAX_DISASSEMBLED // max(1, len(archive.kernels)))
    labels = [
        variant_label(kernel, variant)
        for kernel in archive.kernels
        for variant in kernel.variants[:share]
    ]
    return labels[:_MAX_DISASSEMBLED]


def _variants(kernel: Kernel) -> str:
    """Return the table of a kernel's variants."""
    cells = [row.cells for row in rows(kernel)]
    used = [index for index in range(len(COLUMNS)) if any(row[index] for row in cells)]
    head = "".join(f"<th>{text(COLUMNS[index])}</th>" for index in used)
    table_rows = "".join(
        "<tr>" + "".join(f"<td>{text(row[index])}</td>" for index in used) + "</tr>"
        for row in cells
    )
    listed = "".join(f"<li>{text(guard)}</li>" for guard in guards(kernel))
    legend = f"<p>Guards:</p><ol>{listed}</ol>" if listed else ""
    return f'<div class="wide"><table><tr>{head}</tr>{table_rows}</table></div>{legend}'


def _variant(label: str, variant: Variant, lines: Sequence[SourceLine] | None) -> str:
    """Return the fold of a variant: its remarks, and its lines if they were read."""
    facts = f"{variant.registers} registers"
    facts += f", {variant.spill_bytes} bytes spilled" if variant.spill_bytes else ""
    if lines is None:
        body = f"<p>Not disassembled: give --variant {text(repr(label))}.</p>"
    else:
        body = listing(lines)
    return (
        f"<details><summary>{text(label)} ({facts})</summary>"
        f"{bullets(variant.remarks)}{body}</details>"
    )
