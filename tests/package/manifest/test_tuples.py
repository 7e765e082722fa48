"""Tuple arguments, from the manifest to the launch: passed as their items."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard

from aotc.ir.diagnostics import ManifestError
from aotc.package.archive.file import read
from aotc.package.builder.run import BuildOptions, build
from aotc.package.emit.header import header_text
from aotc.package.manifest.read import load
from aotc.package.verify.subjects import load_subjects
from aotc.package.verify.variants import verify_variant
from aotc.runtime._native import Archive
from tests.support.listeners import Silent

pytestmark = pytest.mark.usefixtures("one_worker")

_KERNEL = """import triton
import triton.language as tl


@triton.jit
def scale(pointers, sizes, by, BLOCK: tl.constexpr):
    x_ptr, out_ptr = pointers
    rows, cols = sizes
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, i < rows * cols).to(tl.float32)
    tl.store(out_ptr + i, x * by.factor + by.bias, i < rows * cols)
"""
_MANIFEST = """
[package]
name = "tuples"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "kernel.py:scale"
grid = ["cdiv(sizes_0 * sizes_1, BLOCK)"]
where = "sizes_1 == 1 or BLOCK == 128"
[kernel.signature]
pointers = "(*T:16, *fp32:16)"
sizes = "(i32, i32:16?)"
by = "(factor: fp32, bias: fp32=0.5)"
[kernel.types]
T = ["fp16", "fp32"]
[kernel.constants]
BLOCK = 128
"""
_PASSED = ["pointers_0", "pointers_1", "sizes_0", "sizes_1", "by_factor"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuples")
    (folder / "kernel.py").write_text(_KERNEL)
    (folder / "kernels.toml").write_text(_MANIFEST)
    manifest = load(str(folder / "kernels.toml"))
    result = build(manifest, BuildOptions(folder, 1, with_ptx=True), Silent(), cache=None)
    assert not result.failures
    return folder


def test_launches_pass_the_items(folder: Path) -> None:
    (record,) = read(folder / "tuples.aotc").kernels
    assert [param.name for param in record.params] == _PASSED
    assert [param.name for param in record.params if param.is_optional] == ["sizes_1"]
    assert len(record.variants) == 4
    header = header_text(read(folder / "tuples.aotc"))
    assert "int32_t sizes_0" in header
    assert "float by_factor" in header


def test_a_launch_is_planned(folder: Path) -> None:
    path = str(folder / "tuples.aotc")
    archive = Archive((path,), zstandard.decompress, False, "/nonexistent/libcuda.so.1")
    kernel = archive["scale"]
    plan = kernel._plan((9, 0), 132, ((0x1000, "fp16"), 0x2000, 10, 48, 2.0))
    assert plan is not None
    assert plan.grid == (4, 1, 1)


@pytest.mark.emulated
@pytest.mark.parametrize("name", ["kernels.toml", "tuples.aotc"])
def test_each_variant_computes_what_the_source_says(folder: Path, name: str) -> None:
    results = [verify_variant(outcome) for outcome in load_subjects(str(folder / name))]
    assert [outcome.status for outcome in results] == ["verified"] * 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"(i32, i32:16?)"', '"(i32, i23)"', "expected a dtype or a type variable, got 'i23'"),
        ('"(i32, i32:16?)"', '"(i32,"', "expected a tuple such as (i32, i32:16)"),
        ("sizes_0 * sizes_1", "sizes", "`sizes` is unknown"),
        ("pointers,", "pointers, sizes_0,", "'sizes_0' is an item of 'sizes' and a parameter"),
    ],
)
def test_mistakes(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in _KERNEL + _MANIFEST
    source = _KERNEL.replace(old, new)
    (tmp_path / "kernel.py").write_text(source)
    text = _MANIFEST.replace(old, new)
    if source != _KERNEL:
        text = text.replace("[kernel.types]", 'sizes_0 = "i32"\n[kernel.types]')
    (tmp_path / "kernels.toml").write_text(text)
    with pytest.raises(ManifestError) as caught:
        load(str(tmp_path / "kernels.toml"))
    assert message in caught.value.render()
