"""The manifest of attention kernels for serving: all assemble, and are verified in the emulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.compiler import autotune_configs, compile_kernel
from aotc.package.manifest.read import load
from aotc.package.manifest.variant_grid import VariantSpec, expand
from aotc.package.verify.subjects import Subject, VerifyOptions, subjects_of_manifest
from aotc.package.verify.variants import verify_next

MANIFEST = load(str(Path(__file__).parents[2] / "kernels" / "serving.toml"))
VARIANTS = [
    variant
    for kernel in MANIFEST.kernels
    for variant in expand(kernel, MANIFEST.targets, autotune_configs).variants
]


# One of each kernel, since all take ten minutes of a core: `aotc verify kernels/serving.toml`.
SUBJECTS = {subject.kernel: subject for subject in subjects_of_manifest(MANIFEST)}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.label)
def test_it_assembles_without_a_word(variant: VariantSpec) -> None:
    kernel = compile_kernel(variant.request)
    assert kernel.metadata.ptxas_warnings == ()
    assert kernel.metadata.spill_bytes == kernel.metadata.stack_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=lambda subject: subject.label)
def test_it_computes_what_its_source_says(subject: Subject) -> None:
    result = verify_next(subject, VerifyOptions(seed=5))
    assert result.status == "verified", [finding.detail for finding in result.findings]
    assert len(result.findings) > 3
