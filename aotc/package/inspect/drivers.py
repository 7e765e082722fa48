"""The drivers that run an archive's code: CUDA releases, and the branches they began with.

Code of any release of a major version runs on every driver of that version that knows the GPU.

Source: CUDA Compatibility, "Minor Version Compatibility"; CUDA release notes, table 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from aotc.package.archive.elf import toolchain_of
from aotc.package.archive.index import Archive, Variant
from aotc.target import TARGETS

Release: TypeAlias = tuple[int, int]

_BRANCHES: dict[Release, int] = {(12, 0): 525, (12, 8): 570, (12, 9): 575, (13, 0): 580}


def gpu_release(target: str) -> Release:
    """Return the first CUDA release whose driver runs the GPUs of a target."""
    return TARGETS[target].cuda if target in TARGETS else (12, 0)


def first_release(variant: Variant) -> Release:
    """Return the first CUDA release whose driver runs a variant."""
    major = int(toolchain_of(variant.cubin).partition(".")[0])
    return max(gpu_release(variant.target), (major, 0))


def first_releases(archive: Archive) -> dict[str, Release]:
    """Return for each target the first CUDA release whose driver runs all variants."""
    releases: dict[str, Release] = {}
    for kernel in archive.kernels:
        for variant in kernel.variants:
            release = first_release(variant)
            releases[variant.target] = max(releases.get(variant.target, release), release)
    return releases


def release_text(release: Release) -> str:
    """Return a release with the branch of its first driver: `CUDA 13.0 (R580)`."""
    branch = f" (R{_BRANCHES[release]})" if release in _BRANCHES else ""
    return f"CUDA {release[0]}.{release[1]}{branch}"


def drivers_text(archive: Archive) -> str:
    """Return the drivers of an archive as a phrase, empty without code."""
    releases = first_releases(archive)
    if not releases:
        return ""
    by_release = [
        (release_text(release), [target for target, first in releases.items() if first == release])
        for release in sorted(set(releases.values()))
    ]
    if len(by_release) == 1:
        return f"drivers of {by_release[0][0]} and later"
    return f"drivers from {', '.join(f'{text} for {_joined(names)}' for text, names in by_release)}"


def _joined(names: Iterable[str]) -> str:
    return " ".join(names)
