"""Interpreted launches of one variant are reused only for variants with the same meaning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aotc.package.verify.reference_cache import ReferenceCache, key_of
from aotc.package.verify.subjects import Subject, VerifyOptions, load_subjects
from aotc.package.verify.variants import verify_variant
from aotc.verify.checks import check

SOURCE = """
import triton
import triton.language as tl

@triton.jit
def scale(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < n
    tl.store(out_ptr + offset, tl.exp(tl.load(x_ptr + offset, mask=inside)), mask=inside)
"""
MANIFEST = """
[package]
name = "kept"
version = "0.1.0"
targets = ["sm_80"]
[[kernel]]
name = "scale"
source = "kept.py:scale"
grid = ["cdiv(n, BLOCK)"]
[kernel.signature]
x_ptr = "*fp32"
out_ptr = "*fp32"
n = "i32"
[kernel.configs]
BLOCK = [64, 128]
num_warps = [1, 2]
"""


@pytest.fixture
def subjects(tmp_path: Path) -> list[Subject]:
    (tmp_path / "kept.py").write_text(SOURCE)
    (tmp_path / "kept.toml").write_text(MANIFEST)
    return load_subjects(str(tmp_path / "kept.toml"))


def _count(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the labels of interpreted launches."""
    labels: list[str] = []
    interpret = check.interpret

    def counted(kernel, roles, launch, inputs, *, may_rewrite):
        labels.append(launch.label)
        return interpret(kernel, roles, launch, inputs, may_rewrite=may_rewrite)

    monkeypatch.setattr(check, "interpret", counted)
    return labels


def test_what_differs_in_warps_alone_is_interpreted_once(
    subjects: list[Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels, cache, counts = _count(monkeypatch), ReferenceCache(), list[int]()
    for subject in subjects:
        alone = verify_variant(subject)
        labels.clear()
        assert verify_variant(subject, cache=cache) == alone
        assert alone.status == "verified"
        counts.append(len(labels))
    # In the order of the list: of each tile size the second has other warps.
    assert [count > 0 for count in counts] == [True, False, True, False]


def test_what_takes_too_much_memory_is_not_kept(
    subjects: list[Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels, cache = _count(monkeypatch), ReferenceCache(max_bytes=1 << 10)
    verify_variant(subjects[0], cache=cache)
    labels.clear()
    verify_variant(subjects[1], cache=cache)
    assert labels


def test_what_a_launch_must_give_depends_on_the_key(subjects: list[Subject]) -> None:
    subject, options = subjects[0], VerifyOptions()
    text = "kernel @scale() {num_warps = 1} {\n  scf.return\n}\n"
    key = key_of(text, subject, options)
    assert key_of(text.replace("= 1", "= 4"), subject, options) == key
    other_keys = [
        key_of(text.replace("scf", "other"), subject, options),
        key_of(text, replace(subject, kernel="other"), options),
        key_of(text, replace(subject, grid=()), options),
        key_of(text, subject, replace(options, max_memory_bytes=1)),
    ]
    assert len({key, *other_keys}) == 5
