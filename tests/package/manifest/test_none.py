"""Pointers that may be None, from the manifest to the launch: built, stored, verified, picked."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard

from aotc.package.archive.file import read
from aotc.package.builder.run import BuildOptions, build
from aotc.package.emit.header import header_text
from aotc.package.inspect.content import describe
from aotc.package.manifest.read import load
from aotc.package.verify.subjects import load_subjects
from aotc.package.verify.variants import verify_variant
from aotc.runtime import AotcError
from aotc.runtime._native import Archive, Kernel
from tests.support.listeners import Silent

pytestmark = pytest.mark.usefixtures("one_worker")

_KERNEL = """import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, bias_ptr, seen_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, i < n)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + i, i < n)
    if seen_ptr is not None:
        tl.store(seen_ptr + i, i.to(seen_ptr.dtype.element_ty), i < n)
    if factor is not None:
        x *= factor
    tl.store(out_ptr + i, x, i < n)
"""
_MANIFEST = """
[package]
name = "none"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "kernel.py:scale"
grid = ["cdiv(n, BLOCK)"]
[kernel.signature]
x_ptr = "*fp32:16"
bias_ptr = ["*fp32:16", "none"]
seen_ptr = ["*I", "none"]
out_ptr = "*fp32:16"
n = "i32"
factor = "none"
[kernel.types]
I = ["i32", "i64"]
[kernel.constants]
BLOCK = 128
"""
HOPPER = (9, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("none")
    (folder / "kernel.py").write_text(_KERNEL)
    (folder / "kernels.toml").write_text(_MANIFEST)
    manifest = load(str(folder / "kernels.toml"))
    result = build(manifest, BuildOptions(folder, 1, with_ptx=True), Silent(), cache=None)
    assert not result.failures
    return folder


@pytest.fixture(scope="module")
def kernel(folder: Path) -> Kernel:
    path = str(folder / "none.aotc")
    return Archive((path,), zstandard.decompress, False, "/nonexistent/libcuda.so.1")["scale"]


def test_variants_and_what_is_said_of_them(folder: Path) -> None:
    archive = read(folder / "none.aotc")
    (record,) = archive.kernels
    assert len(record.variants) == 2 * 2 * 2
    assert [param.name for param in record.params] == [
        "x_ptr",
        "bias_ptr",
        "seen_ptr",
        "out_ptr",
        "n",
    ]
    assert record.nullable == ("bias_ptr", "seen_ptr")
    assert dict(record.constants) == {"BLOCK": 128, "factor": None}
    (described,) = describe(archive, 0)["kernels"]
    assert [described_param["may_be_none"] for described_param in described["params"]] == [
        False,
        True,
        True,
        False,
        False,
    ]
    header = header_text(archive)
    assert " * bias_ptr may be NULL, which is None\n" in header
    assert "Faster if" not in header


@pytest.mark.parametrize(
    ("bias", "seen", "texts", "dtype", "num_pointers"),
    [
        (
            (0x2000, "fp32"),
            (0x3000, "i64"),
            ["bias_ptr is not None", "seen_ptr is not None"],
            "i64",
            4,
        ),
        (None, (0x3000, "i32"), ["bias_ptr is None", "seen_ptr is not None"], "i32", 3),
        ((0x2000, "fp32"), None, ["bias_ptr is not None", "seen_ptr is None"], "i32", 3),
        # A null pointer is None from any caller; a dtype that comes with it counts.
        (0, (0, "i64"), ["bias_ptr is None", "seen_ptr is None"], "i64", 2),
        (None, None, ["bias_ptr is None", "seen_ptr is None"], "i32", 2),
    ],
)
def test_what_is_passed_picks_the_variant(
    kernel: Kernel, bias: object, seen: object, texts: list[str], dtype: str, num_pointers: int
) -> None:
    plan = kernel._plan(HOPPER, 1, ((0x1000, "fp32"), bias, seen, (0x4000, "fp32"), 5))
    assert plan is not None
    chosen = kernel.info.variants[plan.variant]
    assert [text for text in chosen.guards if "None" in text] == texts
    assert chosen.types == {"I": dtype}
    assert len(plan.params) == 8 * num_pointers + 4


def test_other_pointers_are_not_none(kernel: Kernel) -> None:
    assert [param.may_be_none for param in kernel.info.params] == [False, True, True, False, False]
    assert "bias_ptr: *fp32:16 or None, seen_ptr: *I or None, out_ptr: *fp32:16, n" in repr(kernel)
    with pytest.raises(AotcError, match=r"'x_ptr': expected a pointer to fp32, got None"):
        kernel._plan(HOPPER, 1, (None, None, None, (0x4000, "fp32"), 5))
    with pytest.raises(AotcError, match=r"'n': .* got None"):
        kernel._plan(HOPPER, 1, ((0x1000, "fp32"), None, None, (0x4000, "fp32"), None))


def test_a_dtype_that_is_needed_is_asked_for(kernel: Kernel) -> None:
    with pytest.raises(AotcError, match="type I: expected an argument that says which: i32, i64"):
        kernel._plan(HOPPER, 1, ((0x1000, "fp32"), None, 0x3000, (0x4000, "fp32"), 5))


@pytest.mark.emulated
@pytest.mark.parametrize("name", ["kernels.toml", "none.aotc"])
def test_every_variant_is_verified(folder: Path, name: str) -> None:
    results = [verify_variant(outcome) for outcome in load_subjects(str(folder / name))]
    assert [outcome.status for outcome in results] == ["verified"] * 8
    labels = sorted(outcome.label for outcome in results)
    assert "scale sm_90a I=i32 bias_ptr=none seen_ptr=none" in labels
