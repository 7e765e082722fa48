"""Take a part of an archive: some targets, some kernels.

A part keeps the archive's name, and all launch options of each kernel: arguments, types, choices,
guards and configs stay, also where no remaining variant uses them. So the parts of an archive merge
to the same bytes again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from aotc.ir.diagnostics import ManifestError, did_you_mean
from aotc.package.archive.index import Archive, Kernel


def file_stem(archive: Archive) -> str:
    """Return the archive's name as a safe file stem."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", archive.name)


def part_of(archive: Archive, targets: Sequence[str] = (), kernels: Sequence[str] = ()) -> Archive:
    """Return the part of an archive with these targets and kernels; all if none are named.

    Raises:
        ManifestError: it does not have one of them, or no kernel for these targets.
    """
    names = [kernel.name for kernel in archive.kernels]
    for field, requested, available in (
        ("target", targets, archive.targets),
        ("kernel", kernels, names),
    ):
        for name in requested:
            if name not in available:
                message = (
                    f"expected a {field} of {archive.name} ({', '.join(available)}), got {name!r}"
                )
                raise ManifestError(message, remedy=did_you_mean(name, available))
    parts: list[Kernel] = []
    for kernel in archive.kernels:
        variants = tuple(v for v in kernel.variants if not targets or v.target in targets)
        if variants and (not kernels or kernel.name in kernels):
            selections = tuple(s for s in kernel.selections if not targets or s.target in targets)
            parts.append(replace(kernel, variants=variants, selections=selections))
    if not parts and archive.kernels:
        message = f"expected kernels for {', '.join(targets)}, {archive.name} has none of these"
        raise ManifestError(message, remedy="see what there is with `aotc inspect`")
    return replace(archive, kernels=tuple(parts))
