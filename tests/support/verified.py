"""Kernels that `aotc verify` must find right."""

from __future__ import annotations

from pathlib import Path

from aotc.package.manifest import load
from aotc.package.verify import VariantResult, verify_variant
from aotc.package.verify_subjects import VerifyOptions, subjects_of_manifest


def check_verified(folder: Path, source: str, manifest: str) -> VariantResult:
    """Verify the one variant of a manifest over `kernels.py`; return its result, which is right."""
    (folder / "kernels.py").write_text(source)
    (folder / "kernels.toml").write_text(manifest)
    (subject,) = subjects_of_manifest(load(str(folder / "kernels.toml")))
    result = verify_variant(subject, VerifyOptions(seed=1))
    assert result.status == "verified", [finding.detail for finding in result.launches]
    return result
