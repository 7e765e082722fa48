"""Take a part of an archive: some targets, some kernels.

A part keeps the archive's name, and each kernel all that a launch can be asked for: its arguments,
types, choices, guards and configs stay as they are, whatever its variants still use of them. So the
parts of an archive merge to the same bytes again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from aotc.ir.diagnostics import ManifestError, did_you_mean
from aotc.package.archive.index import Archive, Kernel


def file_stem(archive: Archive) -> str:
    """Return what files of an archive are called: its name, which may be any text, without what leads elsewhere."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", archive.name)


def part_of(archive: Archive, targets: Sequence[str] = (), kernels: Sequence[str] = ()) -> Archive:
    """Return what an archive has of these targets and kernels; of all of them if none are named.

    Raises:
        ManifestError: it does not have one of them, or no kernel for these targets.
    """
    names = [kernel.name for kernel in archive.kernels]
    for what, wanted, known in (("target", targets, archive.targets), ("kernel", kernels, names)):
        for one in wanted:
            if one not in known:
                message = f"expected a {what} of {archive.name} ({', '.join(known)}), got {one!r}"
                raise ManifestError(message, remedy=did_you_mean(one, known))
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
