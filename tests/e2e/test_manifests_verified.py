"""`aotc verify` on the manifests of the repository: every chosen variant is right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from aotc.compiler import compile_kernel
from aotc.package.verify.audit import verify_and_audit
from aotc.package.verify.subjects import Subject, VerifyOptions
from aotc.package.verify.variants import verify_next
from tests.support.manifests import KERNELS, MANIFESTS, CheckedManifest


def _points() -> Iterator[Any]:
    for name, manifest in MANIFESTS.items():
        for label, subjects, is_exhaustive in manifest.subject_groups():
            marks = [pytest.mark.exhaustive] if is_exhaustive else []
            marks += [pytest.mark.slow] if manifest.is_slow else []
            yield pytest.param(name, subjects, id=f"{name} {label}", marks=marks)


@pytest.mark.parametrize(("manifest", "subjects"), list(_points()))
def test_variants_are_right(manifest: str, subjects: list[Subject]) -> None:
    checked, options = MANIFESTS[manifest], VerifyOptions(MANIFESTS[manifest].seed)
    for subject in subjects:
        if checked.audits:
            result = verify_and_audit(subject, options, verify_next)
            assert not result.is_audited_wrong, result.cubins
        else:
            result = verify_next(subject, options)
        assert result.status == "verified", [finding.detail for finding in result.launches]
        assert len(result.findings) >= checked.min_findings


@pytest.mark.parametrize("name", ["kernels", "matrix", "rows", "serving"])
def test_every_kernel_is_verified(name: str) -> None:
    groups = MANIFESTS[name].subject_groups()
    verified = {group[0].kernel for _, group, is_exhaustive in groups if not is_exhaustive}
    assert verified == {kernel.name for kernel in MANIFESTS[name].manifest.kernels}


def _cooperative() -> tuple[CheckedManifest, Subject]:
    ((_, (subject,), _),) = MANIFESTS["cooperative"].subject_groups()
    return MANIFESTS["cooperative"], subject


def test_a_cooperative_grid_is_launched_as_one() -> None:
    checked, subject = _cooperative()
    findings = verify_next(subject, VerifyOptions(checked.seed)).findings
    assert any(finding.grid[0] > 2 for finding in findings)
    assert subject.request is not None
    assert compile_kernel(subject.request).metadata.cooperative
    pointers = dict.fromkeys(("x_ptr", "out_ptr"), "*fp32")
    numbers = dict.fromkeys(("stride", "n_rows", "n_cols"), "i32")
    plain = replace(
        subject.request,
        source=str(KERNELS / "softmax.py"),
        kernel="softmax_kernel",
        signature=tuple({**pointers, **numbers}.items()),
        constants=(("BLOCK", 128), ("LOOP", False)),
    )
    assert not compile_kernel(plain).metadata.cooperative
