"""Launches refused because their addresses would overflow 32 bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard

from aotc.package.archive.file import encode
from aotc.package.archive.index import Archive
from aotc.package.builder.run import BuildOptions, build
from aotc.package.manifest.read import load
from aotc.package.verify.subjects import load_subjects
from aotc.package.verify.variants import verify_variant
from aotc.runtime import AotcError, Pointer, _native
from tests.support.listeners import Silent

pytestmark = pytest.mark.usefixtures("one_worker")

_SOURCE = """
import triton
import triton.language as tl

@triton.jit
def rows(x, out, stride, n_rows, n_cols, BLOCK: tl.constexpr, WIDE: tl.constexpr = False):
    row = tl.program_id(0)
    if WIDE:
        row = row.to(tl.int64)
    i = tl.arange(0, BLOCK)
    at = row.to(tl.int64) * n_cols + i
    tl.store(out + at, tl.load(x + row * stride + i, mask=i < n_cols), mask=i < n_cols)
"""
_MANIFEST = """
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_80"]
[[kernel]]
source = "kernels.py:rows"
grid = ["n_rows"]
signature = { x = "*fp32", out = "*fp32", stride = "i32", n_rows = "i32", n_cols = "i32" }
MORE
"""
_CONFIGS = "configs = { BLOCK = [32, 64] }"
_X = Pointer(4096, "fp32")


def _manifest(folder: Path, more: str = _CONFIGS) -> Path:
    (folder / "kernels.py").write_text(_SOURCE)
    (folder / "kernels.toml").write_text(_MANIFEST.replace("MORE", more))
    return folder / "kernels.toml"


def _built(folder: Path, more: str = _CONFIGS) -> tuple[Archive, bytes]:
    manifest = load(str(_manifest(folder, more)))
    result = build(manifest, BuildOptions(folder / "dist", 1), Silent(), cache=None)
    assert result.archive is not None
    return result.archive, encode(result.archive)


def _refusal(data: bytes, *sizes: int) -> str:
    """Return why a launch of `stride`, `n_rows`, `n_cols` is refused, "" if it is not."""
    opened = _native.Archive(data, zstandard.decompress, False, None)
    try:
        opened["rows"]._plan((8, 0), 1, (_X, _X, *sizes), grid=None, choices=None, scratch=None)
    except AotcError as error:
        return str(error)
    return ""


def test_a_launch_is_refused_exactly_where_its_last_row_overflows(tmp_path: Path) -> None:
    archive, data = _built(tmp_path)
    (kernel,) = archive.kernels
    (guard,) = [candidate for candidate in kernel.guards if candidate.is_promise]
    assert guard.text.startswith(
        "(n_rows - 1) * stride <= 2147483647 or n_rows <= 0 or n_cols <= 0"
    )
    assert "kernels.py:12" in guard.text
    assert ".to(tl.int64)" in guard.text
    assert [variant.guards for variant in kernel.variants] == [(0,), (0,)]
    for stride, rows in ((1 << 20, 2049), (1 << 30, 3), (65537, 32769), (2147483647, 3)):
        assert "(n_rows - 1) * stride" in _refusal(data, stride, rows, 1)
        assert _refusal(data, stride, rows - 1, 1) == ""
        assert _refusal(data, stride, rows, 0) == ""  # all its masks are false
    assert _refusal(data, -(1 << 31), 0, 5) == ""  # no program runs


def test_a_manifest_that_keeps_extents_small_pays_nothing(tmp_path: Path) -> None:
    small = 'where = "n_rows <= 2048 and stride <= 1048576"\n'
    archive, _ = _built(tmp_path, small + _CONFIGS)
    assert not any(guard.is_promise for guard in archive.kernels[0].guards)


@pytest.mark.parametrize(
    "more",
    [
        "constants = { BLOCK = 32, WIDE = true }",
        "constants = { BLOCK = 32 }\nchoices = { WIDE = [false, true] }",  # one variant is right
    ],
)
def test_where_some_variant_is_right_nothing_is_refused(tmp_path: Path, more: str) -> None:
    archive, _ = _built(tmp_path, more)
    assert not any("stride" in guard.text for guard in archive.kernels[0].guards)


def test_verify_agrees_on_both_sides_of_the_limit(tmp_path: Path) -> None:
    for n_rows, status in ((4, "verified"), (5, "wrong")):
        verify = f"verify = {{ stride = [536870912], n_rows = [{n_rows}], in_place = false }}"
        path = _manifest(tmp_path, f"constants = {{ BLOCK = 32 }}\n{verify}")
        (subject,) = load_subjects(str(path))
        result = verify_variant(subject)
        assert result.status == status, [finding.detail for finding in result.findings]
