"""Kernels `aotc verify` must pass."""

from __future__ import annotations

from pathlib import Path

from aotc.package.manifest.read import load
from aotc.package.verify.subjects import VerifyOptions, subjects_of_manifest
from aotc.package.verify.variants import VariantResult, verify_next


def check_verified(folder: Path, source: str, manifest: str) -> VariantResult:
    """Verify the one variant of a manifest over `kernels.py`; assert and return its success."""
    (folder / "kernels.py").write_text(source)
    (folder / "kernels.toml").write_text(manifest)
    (subject,) = subjects_of_manifest(load(str(folder / "kernels.toml")))
    result = verify_next(subject, VerifyOptions(seed=1))
    assert result.status == "verified", [finding.detail for finding in result.launches]
    return result
