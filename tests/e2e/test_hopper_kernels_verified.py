"""The manifest of the matrix kernels for Hopper: all of it assembles, and is verified in the emulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.compiler import autotune_configs, compile_kernel
from aotc.package.manifest.read import load
from aotc.package.manifest.variant_grid import VariantSpec, expand
from aotc.package.verify.subjects import Subject, VerifyOptions, subjects_of_manifest
from aotc.package.verify.variants import verify_next
from tests.support.hopper_cases import CASES
from tests.support.hopper_manifest import entries, entry_name, manifest_text

pytestmark = pytest.mark.usefixtures("one_worker")

MANIFEST = load(str(Path(__file__).parents[2] / "kernels" / "hopper.toml"))
VARIANTS = [
    variant
    for kernel in MANIFEST.kernels
    for variant in expand(kernel, MANIFEST.targets, autotune_configs).variants
]
# Two minutes for each split of the tail of 132 programs; smaller grids are emulated elsewhere.
SUBJECTS = [
    subject
    for subject in subjects_of_manifest(MANIFEST)
    if not subject.label.startswith(("persistent_linear_split", "persistent_columns_split"))
]


def test_every_kernel_has_a_case() -> None:
    functions = {case.function for case in CASES.values()}
    assert {kernel.function.name for kernel in MANIFEST.kernels} == functions


def test_the_manifest_for_a_gpu_has_every_build(tmp_path: Path) -> None:
    path = tmp_path / "cases.toml"
    path.write_text(manifest_text(), encoding="utf-8")
    manifest = load(str(path))
    assert [kernel.name for kernel in manifest.kernels] == [
        entry_name(*fields) for fields in entries()
    ]
    for kernel in manifest.kernels:
        assert len(expand(kernel, manifest.targets, autotune_configs).variants) >= 4


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.label)
def test_it_assembles_without_a_word(variant: VariantSpec) -> None:
    kernel = compile_kernel(variant.request)
    assert kernel.metadata.ptxas_warnings == ()
    assert kernel.metadata.spill_bytes == kernel.metadata.stack_bytes == 0


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.label)
def test_it_computes_what_its_source_says(subject: Subject) -> None:
    result = verify_next(subject, VerifyOptions(seed=5))
    assert result.status == "verified", [finding.detail for finding in result.findings]
    assert len(result.findings) > 3
