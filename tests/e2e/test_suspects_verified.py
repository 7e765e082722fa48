"""Kernels once hung or wrong on a GPU: their PTX has no finding, and is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.package.verify.audit import audit_variant
from aotc.package.verify.subjects import Subject, load_subjects
from aotc.package.verify.variants import verify_variant

RISKY = Path(__file__).parents[2] / "benchmarks" / "soak" / "risky.toml"

# A box at a 512-byte offset under a swizzle of 128 bytes; copies issued twice by lanes.
BOXES = "made_load T=u16 TURNED=false BLOCK_M=8 BLOCK_N=128 num_warps=2 num_ctas=1"
SUSPECTS = [
    BOXES,
    "attention_descriptor_large T=bf16 CAUSAL=false num_stages=3",
    "fp8_imprecise T=fp8e5 BLOCK_K=128 num_warps=8 num_stages=3",
    "fp8_four_warps T=fp8e4nv BLOCK_M=128 num_stages=4",
    "attention_backward HEAD_DIM=128 CAUSAL=true ADDS_DQ=true BLOCK_N=128 num_warps=8 num_stages=2",
]


def _subject(words: str) -> Subject:
    kernel, *rest = words.split()
    (subject,) = (
        candidate
        for candidate in load_subjects(str(RISKY), [kernel])
        if set(rest) <= set(candidate.label.split())
    )
    return subject


@pytest.mark.parametrize("words", SUSPECTS)
def test_the_cubin_of_a_suspect_has_no_finding(words: str) -> None:
    cubins = audit_variant(_subject(words))
    assert cubins
    assert [finding for cubin in cubins for finding in cubin if finding.is_failure] == []


@pytest.mark.parametrize("words", [BOXES])
def test_a_suspect_is_right(words: str) -> None:
    assert verify_variant(_subject(words)).status == "verified"
