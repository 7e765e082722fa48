"""An archive's variants as subjects equal its manifest's, with the same labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aotc.ir.diagnostics import ManifestError
from aotc.package.archive import file as archives
from aotc.package.archive.index import Archive
from aotc.package.verify.subjects import load_subjects, subjects_of_archive
from aotc.package.verify.variants import verify_variant


def test_an_archive_with_ptx_is_verified_and_labelled_as_its_manifest(
    built: dict[bool, Path],
) -> None:
    subjects = load_subjects(str(built[True]))
    assert [subject.label for subject in subjects] == [
        "sum_rows sm_80 stride:16",
        "sum_rows sm_80",
    ]
    for subject in subjects:
        assert subject.request is None
        result = verify_variant(subject)
        assert result.status == "verified"
    assert all(f.scalars["stride"] % 16 == 0 for f in verify_variant(subjects[0]).findings)


def test_an_archive_without_ptx_says_how_to_build_it(built: dict[bool, Path]) -> None:
    with pytest.raises(ManifestError, match="has none for sum_rows") as caught:
        load_subjects(str(built[False]))
    assert caught.value.remedy == "build it with `aotc build --with-ptx`"


def test_the_ptx_changes_nothing_else(built: dict[bool, Path]) -> None:
    with_ptx, without = (archives.read(built[has_ptx]) for has_ptx in (True, False))

    def stripped(archive: Archive) -> Archive:
        return replace(
            archive,
            kernels=tuple(
                replace(kernel, variants=tuple(replace(v, ptx=None) for v in kernel.variants))
                for kernel in archive.kernels
            ),
        )

    assert stripped(with_ptx) == without
    assert b"verify_kernels.py" in (with_ptx.kernels[0].variants[0].ptx or b"")


@pytest.mark.parametrize(
    ("kernels", "targets", "message"),
    [
        (("sum_row",), (), "did you mean 'sum_rows'"),
        ((), ("sm_70",), "expected a target of .* got 'sm_70'"),
    ],
)
def test_an_unknown_name_in_an_archive(
    built: dict[bool, Path], kernels: tuple[str, ...], targets: tuple[str, ...], message: str
) -> None:
    archive = archives.read(built[True])
    with pytest.raises(ManifestError, match=message):
        subjects_of_archive(archive, "demo.aotc", kernels, targets)


def test_an_unknown_variant(built: dict[bool, Path]) -> None:
    assert len(load_subjects(str(built[True]), labels=["sum_rows sm_80"])) == 1
    with pytest.raises(ManifestError, match="did you mean 'sum_rows sm_80'"):
        load_subjects(str(built[True]), labels=["sum_rows sm_81"])
