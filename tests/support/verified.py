"""Kernels `aotc verify` must pass, and manifests of them in a line."""

from __future__ import annotations

from pathlib import Path

from aotc.package.manifest.read import load
from aotc.package.verify.subjects import Subject, VerifyOptions, subjects_of_manifest
from aotc.package.verify.variants import VariantResult, verify_next

_HEAD = '[package]\nname = "cases"\nversion = "0.1.0"\ntargets = {targets}\n[[kernel]]\n'


def check_verified(folder: Path, source: str, manifest: str) -> VariantResult:
    """Verify the one variant of a manifest over `kernels.py`; assert and return its success."""
    (folder / "kernels.py").write_text(source)
    (subject,) = subjects_of(folder, manifest)
    result = verify_next(subject, VerifyOptions(seed=1))
    assert result.status == "verified", [finding.detail for finding in result.launches]
    return result


def subjects_of(folder: Path, manifest: str) -> list[Subject]:
    """Write a manifest to a folder; return its variants."""
    (folder / "kernels.toml").write_text(manifest)
    return subjects_of_manifest(load(str(folder / "kernels.toml")))


def one_kernel(
    source: str, signature: str, constants: str = "", grid: str = "1", more: str = "", *,
    config: str = "num_warps=4", targets: str = "sm_90a",
) -> str:  # fmt: skip
    """Return the manifest of a kernel; lists are of comma-separated `name=value`.

    Types of `signature` and programs of `grid` are bare words. `more` is TOML of the kernel.
    """
    programs = [f'"{part.strip()}"' for part in grid.split(";")]
    pairs = (part.strip().split("=", 1) for part in signature.split(", "))
    lines = [
        _HEAD.format(targets=[*targets.split()]),
        f'source = "{source}"\ngrid = [{", ".join(programs)}]\n{more}',
        "[kernel.signature]",
        *(f'{name} = "{kind}"' for name, kind in pairs),
        "[kernel.constants]",
        *constants.split(","),
        "[[kernel.config]]",
        *config.split(","),
    ]
    return "\n".join(lines)
