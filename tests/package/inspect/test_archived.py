"""Variants of an archive, found by label: stored texts are shown, other stages refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.ir.diagnostics import ManifestError
from aotc.package.archive import file as archives
from aotc.package.inspect.archived import find_variant, stage_content
from aotc.package.inspect.content import describe as describe_archive
from aotc.package.inspect.explain import describe, explain_variant, text

pytestmark = pytest.mark.usefixtures("one_worker")

_LABELS = ["sum_rows sm_80 stride:16", "sum_rows sm_80"]


def test_each_variant_is_found_by_its_label(built: dict[bool, Path]) -> None:
    path = built[True]
    data = describe_archive(archives.read(path), 0)
    assert [variant["label"] for variant in data["kernels"][0]["variants"]] == _LABELS
    variants = [find_variant(str(path), label)[1] for label in _LABELS]
    assert variants == list(archives.read(path).kernels[0].variants)
    assert find_variant(str(path), "stride:16 sm_80")[1] == variants[0]  # words, in any order


@pytest.mark.parametrize(
    ("words", "message"),
    [("", "got 2"), ("sm_80", "which fits 2"), ("sm_90a", "which fits none")],
)
def test_what_names_no_single_variant_lists_them(
    built: dict[bool, Path], words: str, message: str
) -> None:
    with pytest.raises(ManifestError, match=message) as caught:
        find_variant(str(built[True]), words)
    assert all(label in caught.value.remedy for label in _LABELS)


def test_the_stages_that_an_archive_holds(built: dict[bool, Path]) -> None:
    path = str(built[True])
    kernel, variant = find_variant(path, _LABELS[0])
    signs = {"tile": "tile.load", "ptx": ".target sm_80", "sass": "EXIT", "sections": ".nv.info"}
    for stage, sign in signs.items():
        assert sign in stage_content(path, kernel, variant, stage), stage
    assert "tile IR" not in stage_content(path, kernel, variant, "ptx")


@pytest.mark.parametrize(
    ("with_ptx", "stage", "remedy"),
    [
        (True, "gpu", "compile it: aotc dump MANIFEST:sum_rows --stage gpu"),
        (False, "ptx", "build it with `aotc build --with-ptx`"),
        (False, "tile", "build it with `aotc build --with-ptx`"),
    ],
)
def test_a_stage_that_it_does_not_hold(
    built: dict[bool, Path], with_ptx: bool, stage: str, remedy: str
) -> None:
    path = str(built[with_ptx])
    with pytest.raises(ManifestError, match=r"expected (an archive|a stage)") as caught:
        stage_content(path, *find_variant(path, _LABELS[0]), stage)
    assert caught.value.remedy == remedy


def test_a_variant_is_explained_as_far_as_the_archive_says(built: dict[bool, Path]) -> None:
    for label, stride in zip(_LABELS, ("i32:16", "i32"), strict=True):
        kernel, variant = find_variant(str(built[False]), label)
        explanation = explain_variant(kernel, variant)
        data, lines = describe(explanation), text(explanation)
        assert data["types"]["stride"] == stride
        assert data["registers"] == variant.registers
        assert data["accesses"] is None
        assert data["remarks"] == list(variant.remarks)
        assert f"{variant.registers} registers a thread" in lines
        assert "memory: an archive has no accesses" in lines
