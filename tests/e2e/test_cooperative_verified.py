"""A softmax of one row by a cooperative grid: verified, and launched cooperatively."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from aotc.compiler import compile_kernel
from aotc.package.manifest.read import load
from aotc.package.verify.subjects import VerifyOptions, subjects_of_manifest
from aotc.package.verify.variants import verify_variant

MANIFEST = Path(__file__).parents[2] / "kernels" / "cooperative.toml"


def test_it_computes_what_its_source_says() -> None:
    subject = next(
        subject
        for subject in subjects_of_manifest(load(str(MANIFEST)))
        if "sm_90a T=bf16 BLOCK=1024" in subject.label
    )
    result = verify_variant(subject, VerifyOptions(seed=3))
    assert result.status == "verified", [finding.detail for finding in result.findings]
    assert any(finding.grid[0] > 2 for finding in result.findings)
    assert subject.request is not None
    kernel = compile_kernel(subject.request)
    assert kernel.metadata.cooperative
    other = MANIFEST.parent / "softmax.py"
    plain = replace(
        subject.request,
        source=str(other),
        kernel="softmax_kernel",
        signature=tuple(
            {
                "x_ptr": "*fp32",
                "out_ptr": "*fp32",
                "stride": "i32",
                "n_rows": "i32",
                "n_cols": "i32",
            }.items()
        ),
        constants=(("BLOCK", 128), ("LOOP", False)),
    )
    assert not compile_kernel(plain).metadata.cooperative
