"""Find a variant in an archive by its label, and print what the archive holds of it.

An archive has cubins and, if it was built `--with-ptx`, the PTX and the tile IR that they were made
of; what lies between is in no archive, and only a compile of the source shows it.

Invariant: nothing is compiled, and no source is read.
"""

from __future__ import annotations

from pathlib import Path

from aotc import stages
from aotc.ir.diagnostics import ManifestError
from aotc.package.archive import file as archives
from aotc.package.archive import stored_ptx
from aotc.package.archive.index import Kernel, Variant
from aotc.package.archive.label import variant_label

SUFFIX = ".aotc"
_MAX_LISTED = 8


def find_variant(path: str, words: str) -> tuple[Kernel, Variant]:
    """Return the variant whose label is `words`, or the only one with all of them in its label.

    Raises:
        ManifestError: there is none, or several.
        ArchiveError: the archive cannot be read.
    """
    archive = archives.read(Path(path))
    labels = {
        variant_label(kernel, variant): (kernel, variant)
        for kernel in archive.kernels
        for variant in kernel.variants
    }
    if words in labels:
        return labels[words]
    wanted = set(words.split())
    found = [label for label in labels if wanted <= set(label.split())]
    if len(found) == 1:
        return labels[found[0]]
    shown = found or list(labels)
    rest = len(shown) - _MAX_LISTED
    listed = "; ".join(shown[:_MAX_LISTED]) + (f"; and {rest} more" if rest > 0 else "")
    got = f"{words!r}, which fits {len(found) or 'none'}" if words else f"{len(found)}"
    message = f"expected one variant of {path}, got {got}"
    raise ManifestError(message, remedy=f"name it by words of its label: --variant: {listed}")


def stage_text(path: str, kernel: Kernel, variant: Variant, stage: str) -> str:
    """Return the text of a stage that the archive holds.

    Raises:
        ManifestError: it does not hold this one.
    """
    if stage in stages.LISTINGS:
        return stages.disassemble(variant.cubin, stage)
    label = variant_label(kernel, variant)
    if stage not in ("tile", "ptx"):
        message = f"expected a stage that archives hold (tile, ptx, sass, cubin), got {stage!r}"
        remedy = f"compile it: aotc dump MANIFEST:{kernel.name} --stage {stage}"
        raise ManifestError(message, remedy=remedy)
    tile_ir, ptx = ("", "") if variant.ptx is None else stored_ptx.split(variant.ptx)
    text = ptx if stage == "ptx" else tile_ir
    if not text:
        what = "PTX" if stage == "ptx" else "tile IR"
        message = f"expected an archive with {what}, {path} has none for {label}"
        raise ManifestError(message, remedy="build it with `aotc build --with-ptx`")
    return text
