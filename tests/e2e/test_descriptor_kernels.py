"""The kernels of kernels/descriptors.toml: built for every target, and verified in the emulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.package.manifest.read import load
from aotc.package.verify.subjects import VerifyOptions, subjects_of_manifest
from aotc.package.verify.variants import verify_next

MANIFEST = Path(__file__).parents[2] / "kernels" / "descriptors.toml"
SUBJECTS = subjects_of_manifest(load(str(MANIFEST)))


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.label)
def test_it_computes_what_its_source_says(subject: object) -> None:
    result = verify_next(subject, VerifyOptions(seed=5))  # type: ignore[arg-type]
    assert result.status == "verified", [finding.detail for finding in result.findings]
    assert len(result.findings) > 3
