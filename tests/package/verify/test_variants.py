"""Verifying variants: right ones and wrong ones, in one process and in several."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from aotc.compiler import CompileRequest, PtxKernel, compile_ptx
from aotc.ir import expression
from aotc.ir.diagnostics import CompileError, ManifestError
from aotc.metadata import ParamSlot
from aotc.package.builder.run import BuildOptions, build
from aotc.package.builder.workers import Failure
from aotc.package.manifest.read import load, parse
from aotc.package.verify.subjects import (
    Subject,
    VerifyOptions,
    load_subjects,
    subjects_of_manifest,
)
from aotc.package.verify.variants import verify_all, verify_variant
from tests.support import mapped
from tests.support.listeners import Silent
from tests.support.verify_subjects import manifest_text

pytestmark = pytest.mark.usefixtures("one_worker")


def _subject(name: str, **options: str) -> Subject:
    text = manifest_text(name, **options)  # type: ignore[arg-type]
    (subject,) = subjects_of_manifest(parse(text, "kernels.toml"))
    return subject


def _edited(*edits: tuple[str, str]) -> Callable[[CompileRequest], PtxKernel]:
    """Return a compiler with a planted bug."""

    def compiler(request: CompileRequest) -> PtxKernel:
        kernel = compile_ptx(request)
        ptx = kernel.ptx
        for old, new in edits:
            assert old in ptx
            ptx = ptx.replace(old, new)
        return replace(kernel, ptx=ptx)

    return compiler


@pytest.mark.parametrize("name", ["sequence_sums", "rows_before", "rows_at_addresses"])
def test_inputs_that_a_kernel_can_take_are_found(name: str) -> None:
    """Random starts, rows and addresses lead outside of the buffers."""
    launches = verify_variant(_subject(name)).launches
    assert {launch.status for launch in launches} == {"right"}
    assert sum(launch.num_stored > 0 for launch in launches) > 4


def test_a_parameter_that_the_launcher_puts_elsewhere_is_found() -> None:
    def compiler(request: CompileRequest) -> PtxKernel:
        kernel = compile_ptx(request)
        last = kernel.params[-1]
        return replace(kernel, params=(*kernel.params[:-1], replace(last, offset=last.offset + 4)))

    result = verify_variant(_subject("sum_rows"), compiler=compiler)
    assert result.status == "wrong"
    assert result.findings[0].detail.startswith("the launcher has parameters of sum_rows at")


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("scale_rows", '["n_rows"]'),
        ("sum_rows", ""),
        ("gather", '["cdiv(n, BLOCK)"]'),
        ("count", '["cdiv(n, BLOCK)"]'),
        ("grouped", ""),
    ],
)
def test_a_right_kernel_is_verified(name: str, grid: str) -> None:
    result = verify_variant(_subject(name, grid=grid))
    assert result.status == "verified", result
    assert {finding.status for finding in result.findings} == {"right"}
    assert result.lane_instructions > 0


def test_the_order_of_warps_changes_nothing() -> None:
    assert verify_variant(_subject("sum_rows"), VerifyOptions(seed=5)).status == "verified"


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("scale_rows", "setp.lt.s32", "setp.le.s32", "out of bounds"),
        ("sum_rows", ", 4, 31, -1;", ", 8, 31, -1;", "elements are wrong"),
        ("grouped", "0f3F000000", "0f3F000001", "to the bit"),
        ("count", "add.f32", "max.f32", "elements are wrong"),
    ],
)
def test_a_planted_bug_is_found(name: str, old: str, new: str, message: str) -> None:
    grids = {"scale_rows": '["n_rows"]', "count": '["cdiv(n, BLOCK)"]'}
    subject = _subject(name, grid=grids.get(name, ""))
    result = verify_variant(subject, compiler=_edited((old, new)))
    assert result.status == "wrong"
    assert message in result.findings[-1].detail


def test_a_kernel_whose_result_is_open_is_not_verified() -> None:
    assert verify_variant(_subject("crowd", verify='n = [3]\ngrid = ["2"]')).status == "unverified"


def test_the_op_that_leaves_a_result_open_is_named() -> None:
    result = verify_variant(_subject("leaky", grid='["cdiv(n, BLOCK)"]'))
    assert result.status == "unverified"
    gaps = [finding.gap for finding in result.findings if finding.label == "over"]
    assert gaps
    source = Path("tests/support/verify_kernels.py").read_text().splitlines()
    line = 1 + next(number for number, text in enumerate(source) if "mask=i < n - 1" in text)
    for gap in gaps:
        assert f"verify_kernels.py:{line}:" in gap, gap
        assert "help: give other=" in gap


def test_a_variant_whose_guards_no_arguments_satisfy_is_not_verified() -> None:
    subject = replace(_subject("gather"), guards=(expression.parse("n < 0"),))
    result = verify_variant(subject)
    assert (result.status, result.findings) == ("unverified", ())


def test_a_variant_that_does_not_fit_its_target_is_dropped() -> None:
    def greedy(request: CompileRequest) -> PtxKernel:
        return replace(compile_ptx(request), shared_bytes=1 << 20)

    result = verify_variant(_subject("gather"), compiler=greedy)
    assert result.status == "dropped"
    assert "1048576 bytes of shared memory, the limit is" in result.dropped


def test_the_manifest_says_what_inputs_are() -> None:
    subject = _subject(
        "gather",
        grid='["cdiv(n, BLOCK)"]',
        verify='n = [5, 40]\nstride_x = "n + 1"\nindex_ptr = { low = 0, high = "n" }',
    )
    result = verify_variant(subject)
    assert result.status == "verified"
    scalars = [tuple(f.scalars.items()) for f in result.findings]
    assert set(scalars) == {(("n", n), ("stride_x", n + 1)) for n in (5, 40)}


_ROWS = 'grid = ["3"]\nrows_ptr = { low = 0, high = 9 }\n'


def test_addresses_in_memory_are_of_buffers_that_the_manifest_describes() -> None:
    assumed = verify_variant(_subject("grouped_pointers", verify=_ROWS))
    assert assumed.status == "verified"  # a buffer for each program
    described = _ROWS + 'out_ptrs = { pointers_to = "fp32", count = 3 }'
    result = verify_variant(_subject("grouped_pointers", verify=described))
    assert result.status == "verified", result
    assert all(finding.num_stored for finding in result.findings if finding.label != "none")
    shared = verify_variant(_subject("grouped_pointers", verify=described.replace("3 }", "1 }")))
    assert shared.status == "unverified"  # programs would write to one buffer


def test_indices_that_are_distinct_may_be_stored_at() -> None:
    lines = 'n = [16, 40]\nindex_ptr = { low = 0, high = "n", distinct = true }'
    result = verify_variant(_subject("gather", grid='["cdiv(n, BLOCK)"]', verify=lines))
    assert result.status == "verified", result


_SIZED = """
n = [1, 16, 17, 40]
stride_x = [3]
index_ptr = { low = 0, high = "n" }
"x_ptr.size" = "3 * n - 1"
"index_ptr.size" = "n"
"""


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ('"2 * n"', ""),
        ('"2 * n + 7"', ""),
        ('"2 * n - 1"', r"tile.store accesses element (\d+) of out_ptr, which has \1 elements"),
        ("0", r"accesses element 0 of out_ptr, which has 0 elements"),
    ],
)
def test_an_access_beyond_a_stated_size_is_wrong(size: str, message: str) -> None:
    lines = f'{_SIZED}"out_ptr.size" = {size}'
    result = verify_variant(_subject("gather", grid='["cdiv(n, BLOCK)"]', verify=lines))
    assert result.status == ("wrong" if message else "verified"), result
    if message:
        assert result.findings[-1].status == "fault"
        assert re.search(message, result.findings[-1].detail)
        assert "verify_kernels.py:" in result.findings[-1].detail


def test_a_bug_behind_an_address_in_memory_is_found() -> None:
    described = _ROWS + 'out_ptrs = { pointers_to = "fp32", count = 3 }'
    subject = _subject("grouped_pointers", verify=described)
    result = verify_variant(subject, compiler=_edited(("setp.lt.s32", "setp.le.s32")))
    assert result.status == "wrong"
    assert re.search(r"out_ptrs\[\d\]", result.findings[-1].detail)


def test_an_expression_that_fails_is_the_users_mistake() -> None:
    subject = _subject("gather", verify='n = [5]\nstride_x = "n // (n - 5)"')
    with pytest.raises(ManifestError, match="division by zero"):
        verify_variant(subject)


def test_too_little_memory_is_told_with_the_remedy() -> None:
    with pytest.raises(CompileError, match="--max-memory") as caught:
        verify_variant(_subject("sum_rows"), VerifyOptions(max_memory_bytes=1 << 13))
    assert "bytes" in caught.value.message


def test_an_endless_kernel_is_stopped() -> None:
    result = verify_variant(_subject("sum_rows"), VerifyOptions(max_steps=5))
    assert result.status == "wrong"
    assert "still running after 5 instructions" in result.findings[-1].detail


# ---- stored PTX, and processes --------------------------------------------------------------------------------


def test_a_changed_text_in_an_archive_is_the_archives_fault(built: dict[bool, Path]) -> None:
    subject = load_subjects(str(built[True]))[0]
    assert subject.stored is not None
    for old, new in (("add.f32", "frob.f32"), ("ret;", "")):
        stored = replace(subject.stored, ptx=subject.stored.ptx.replace(old, new))
        with pytest.raises(CompileError, match="cannot emulate sum_rows sm_80"):
            verify_variant(replace(subject, stored=stored))


def test_workers_verify_and_report(built: dict[bool, Path]) -> None:
    subjects = load_subjects(str(built[True]))
    assert subjects[1].stored is not None
    broken = replace(subjects[1], stored=replace(subjects[1].stored, ptx=".version 8.8\n"))
    work = partial(verify_variant, options=VerifyOptions())
    results = {
        outcome.task.label: outcome.result
        for outcome in verify_all([subjects[0], broken], work, jobs=1)
    }
    first, second = results[subjects[0].label], results[broken.label]
    assert not isinstance(first, Failure)
    assert first.status == "verified"
    assert isinstance(second, Failure)
    assert not second.is_bug
    assert "cannot emulate" in second.report


# ---- kernels compiled both ways ------------------------------------------------------


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifest of a kernel compiled with and without a tensor map."""
    return mapped.written(tmp_path_factory.mktemp("mapped"))


def _cut_off(slot: ParamSlot) -> ParamSlot:
    """Return a slot with the last column left out of its map, if any."""
    spec = slot.tensor_map
    if spec is None:
        return slot
    return replace(slot, tensor_map=replace(spec, shape=(spec.shape[0], "max(1, cols - 1)")))


def _broken_with_map(request: CompileRequest) -> PtxKernel:
    """Compile with a bug in the form with a map."""
    kernel = mapped.compile_mapped_ptx(request)
    return replace(kernel, params=tuple(map(_cut_off, kernel.params)))


def test_both_forms_are_verified_at_launches_that_get_them(pairs: Path) -> None:
    subject = load_subjects(str(pairs), target_names=["sm_90a"])[0]
    result = verify_variant(subject, compiler=mapped.compile_mapped_ptx)
    assert result.status == "verified", result
    assert result.fallback is not None
    rows, fallback_rows = (
        {f.scalars["rows"] for f in findings} for findings in (result.findings, result.fallback)
    )
    assert len(rows) > 1
    assert all(int(row) % 16 == 0 for row in rows)
    assert any(int(row) % 16 for row in fallback_rows)
    assert result.launches == (*result.findings, *result.fallback)


def test_a_target_without_tensor_maps_has_one_form(pairs: Path) -> None:
    subject = load_subjects(str(pairs), target_names=["sm_80"])[0]
    result = verify_variant(subject, compiler=mapped.compile_mapped_ptx)
    assert (result.status, result.fallback) == ("verified", None)


def test_a_bug_in_one_form_is_found(pairs: Path) -> None:
    subject = load_subjects(str(pairs), target_names=["sm_90a"])[0]
    result = verify_variant(subject, compiler=_broken_with_map)
    assert result.status == "wrong"
    assert result.findings[-1].status == "wrong"
    assert result.fallback is not None
    assert {finding.status for finding in result.fallback} == {"right"}


def test_a_form_that_no_launch_gets_is_not_verified(pairs: Path) -> None:
    def compiler(request: CompileRequest) -> PtxKernel:
        kernel = mapped.compile_mapped_ptx(request)
        return replace(kernel, guards=(*kernel.guards, "rows < 0")) if kernel.guards else kernel

    subject = load_subjects(str(pairs), target_names=["sm_90a"])[0]
    result = verify_variant(subject, compiler=compiler)
    assert (result.status, result.findings) == ("unverified", ())


def test_an_archive_has_both_forms(pairs: Path, tmp_path: Path) -> None:
    options = BuildOptions(tmp_path, 1, targets=("sm_90a",), with_ptx=True)
    result = build(load(str(pairs)), options, Silent(), cache=None, compiler=mapped.compile_mapped)
    assert not result.failures
    assert result.num_variants == result.num_compiled == 2
    subjects = load_subjects(str(tmp_path / "mapped.aotc"))
    assert [subject.label for subject in subjects] == [
        "twice sm_90a BLOCK=16 with tensor maps",
        "twice sm_90a BLOCK=16",
        "twice sm_90a BLOCK=32 with tensor maps",
        "twice sm_90a BLOCK=32",
    ]
    for subject in subjects[:2]:
        assert verify_variant(subject).status == "verified"
    with_map = verify_variant(subjects[0]).findings
    assert all(int(f.scalars["rows"]) % 16 == 0 for f in with_map)
