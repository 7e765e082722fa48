"""Verification of packages' kernels: whole ones, and the outcome of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.ir.diagnostics import CompileError
from aotc.package.verify.subjects import Subject
from aotc.package.verify.variants import VariantResult, verify_variant
from benchmarks import verify_packages
from benchmarks.verify_packages import (
    look_at,
    main,
    read_results,
    spread,
    verify,
    whole_kernels,
)

KERNELS = """\
import triton
import triton.language as tl

@triton.jit
def doubled(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2.0 * tl.load(x_ptr + at, mask=at < n), mask=at < n)

@triton.jit
def halved(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 0.5 * tl.load(x_ptr + at, mask=at < n), mask=at < n)

def launch(x, y, n, block):
    doubled[(triton.cdiv(n, 128),)](x, y, n, BLOCK=128)
    halved[(triton.cdiv(n, block),)](x, y, n, BLOCK=block)
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "packages" / "one" / "one"
    folder.mkdir(parents=True)
    (folder / "ops.py").write_text(KERNELS)
    (folder / "other.py").write_text("x = 1\n")
    return tmp_path / "packages"


def test_kernels_with_nothing_left_to_do_are_whole(packages: Path, tmp_path: Path) -> None:
    package = look_at(packages / "one", tmp_path / "manifests", variants=1, guesses=False)
    assert (package.num_kernels, package.num_whole) == (2, 1)
    assert [candidate.subjects()[0].kernel for candidate in package.candidates] == ["doubled"]
    package = look_at(packages / "one", tmp_path / "manifests", variants=2, guesses=True)
    subjects = [candidate.subjects() for candidate in package.candidates]
    assert [variants[0].kernel for variants in subjects] == ["doubled"] * 2 + ["halved"] * 2
    assert len({subject.label for variants in subjects[:2] for subject in variants}) == sum(
        map(len, subjects[:2])
    )


def test_what_no_manifest_can_name_is_left_out() -> None:
    head = '# Written.\n\n[package]\nname = "a"\n'
    refused = '# TODO: a returns a value\n# [[kernel]]\n# source = "a.py:a"\n'
    whole = '[[kernel]]\nsource = "a.py:b"\n'
    open_one = '[[kernel]]\nsource = "a.py:c"\nN = 1  # TODO: launches pass None too\n'
    assert whole_kernels(f"{head}\n{refused}\n{whole}\n{open_one}", guesses=True) == [
        f"{head}\n{whole}"
    ]


def test_variants_are_spread() -> None:
    assert spread([*range(10)], 3) == [0, 3, 6]  # type: ignore[list-item]
    assert spread([1], 3) == [1]  # type: ignore[list-item]


@pytest.mark.emulated
def test_a_variant_that_is_refused_gives_way_to_the_next(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def refusing(subject: Subject) -> VariantResult:
        tried.append(subject.label)
        if len(tried) == 1:
            raise CompileError("tl.exp takes float32")
        return verify_variant(subject)

    package = look_at(packages / "one", tmp_path / "manifests", variants=1, guesses=False)
    monkeypatch.setattr(verify_packages, "verify_variant", refusing)
    result = verify(("one", package.candidates[0]), 60.0)
    assert result is not None
    assert (result.status, result.label) == ("verified", tried[1])
    tried.clear()
    monkeypatch.setattr(verify_packages, "_TRIES", 1)
    result = verify(("one", package.candidates[0]), 60.0)
    assert result is not None
    assert (result.status, result.label) == ("failed", tried[0])
    assert "tl.exp takes float32" in result.detail


def test_a_table(
    packages: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results_path = tmp_path / "found.jsonl"
    options = (
        "--results",
        str(results_path),
        "--manifests",
        str(tmp_path / "manifests"),
        "-j",
        "1",
    )
    monkeypatch.setattr("sys.argv", ["verify_packages.py", str(packages), *options])
    assert main() == 0
    row = capsys.readouterr().out.splitlines()[-2]
    assert row.startswith("| one | – | 2 | 1 | 1 | 1 | 0 |")
    (outcome,) = read_results(results_path)
    assert (outcome.package, outcome.status) == ("one", "verified")
    assert main() == 0  # of the whole file, with nothing left to do
    assert capsys.readouterr().out.splitlines()[-2] == row
    assert read_results(results_path) == [outcome]


@pytest.mark.slow
def test_a_run_ends_after_so_many_seconds_and_another_goes_on(
    packages: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results_path = tmp_path / "found.jsonl"
    options = (
        "--results",
        str(results_path),
        "--manifests",
        str(tmp_path / "manifests"),
        "-j",
        "1",
    )
    more = ("--guesses", "--seconds", "0.001")
    monkeypatch.setattr("sys.argv", ["verify_packages.py", str(packages), *options, *more])
    assert main() == 0
    assert len(read_results(results_path)) == 1
    assert "the rest is for another run" in capsys.readouterr().out
    assert main() == 0
    assert len({outcome.part for outcome in read_results(results_path)}) == 2


def test_a_variant_has_a_limit_of_time(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(_subject: Subject) -> VariantResult:
        while True:
            pass

    monkeypatch.setattr(verify_packages, "verify_variant", endless)
    package = look_at(packages / "one", tmp_path / "manifests", variants=1, guesses=False)
    result = verify(("one", package.candidates[0]), 0.05)
    assert result is not None
    assert (result.status, result.detail) == ("out of time", "took more than 0.05 s")


def test_a_manifest_that_is_wrong_fails_alone(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(_path: str) -> list[Subject]:
        raise CompileError("there is no type fp7")

    package = look_at(packages / "one", tmp_path / "manifests", variants=1, guesses=False)
    monkeypatch.setattr(verify_packages, "load_subjects", refusing)
    result = verify(("one", package.candidates[0]), 60.0)
    assert result is not None
    assert result.status == "failed"
    assert "there is no type fp7" in result.detail
