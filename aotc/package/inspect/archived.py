"""Find a variant in an archive by its label, and print its stored texts.

An archive has cubins and, if it was built `--with-ptx`, their PTX and tile IR. The stages between
are in no archive; only a compile of the source shows them.

Invariant: nothing is compiled, and no source is read.
"""

from __future__ import annotations

from pathlib import Path

from aotc import stages
from aotc.ir.diagnostics import ManifestError
from aotc.package.archive import file as archives
from aotc.package.archive import stored_ptx
from aotc.package.archive.index import Kernel, Variant
from aotc.package.archive.label import one_label, variant_label

SUFFIX = ".aotc"


def find_variant(path: str, words: str) -> tuple[Kernel, Variant]:
    """Return the variant labelled `words`, or the only one with all of them in its label.

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
    return labels[one_label(labels, words, path)]


def stage_content(path: str, kernel: Kernel, variant: Variant, stage: str) -> str | bytes:
    """Return a stage in the archive: the bytes of a cubin, or a text.

    Raises:
        ManifestError: the archive does not hold it.
    """
    if stage == "cubin":
        return variant.cubin
    if stage in stages.LISTINGS:
        return stages.disassemble(variant.cubin, stage)
    label = variant_label(kernel, variant)
    if stage not in ("tile", "ptx"):
        message = (
            f"expected a stage that archives hold (tile, ptx, sass, sections, cubin), got {stage!r}"
        )
        remedy = f"compile it: aotc dump MANIFEST:{kernel.name} --stage {stage}"
        raise ManifestError(message, remedy=remedy)
    tile_ir, ptx = ("", "") if variant.ptx is None else stored_ptx.split(variant.ptx)
    text = ptx if stage == "ptx" else tile_ir
    if not text:
        stage_name = "PTX" if stage == "ptx" else "tile IR"
        message = f"expected an archive with {stage_name}, {path} has none for {label}"
        raise ManifestError(message, remedy="build it with `aotc build --with-ptx`")
    return text
