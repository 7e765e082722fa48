"""`aotc verify` on kernels with device-side descriptors, with and without maps by the launcher."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aotc.cli import EXIT_DONE, run
from aotc.ir.expression import Integer
from aotc.package.archive.file import read

pytestmark = pytest.mark.usefixtures("one_worker")

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def maybe(x, shape, strides, block: tl.constexpr):
    if isinstance(x, tl.tensor_descriptor):
        return x
    return tl.make_tensor_descriptor(x, shape, strides, block)


@triton.jit
def multiply(a_ptr, b_ptr, c_ptr, M, N, K, stride_az, stride_bz, stride_cz, BLOCK: tl.constexpr):
    z = tl.program_id(2).to(tl.int64)
    a = maybe(a_ptr + z * stride_az, [M, K], [K, 1], [BLOCK, BLOCK])
    b = maybe(b_ptr + z * stride_bz, [K, N], [N, 1], [BLOCK, BLOCK])
    c = maybe(c_ptr + z * stride_cz, [M, N], [N, 1], [BLOCK, BLOCK])
    m, n = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, BLOCK):
        acc = tl.dot(a.load([m, k]), b.load([k, n]), acc)
    c.store([m, n], acc.to(c.dtype))


@triton.jit
def turn_signs(x, out_ptr, BLOCK: tl.constexpr):
    out = tl.make_tensor_descriptor(out_ptr, x.shape, x.strides[:-1] + (1,), x.block_shape)
    i = tl.program_id(0) * BLOCK
    out.store([i, 0], -x.load([i, 0]))


@triton.jit
def add_rows(x_ptr, sums_ptr, rows_ptr, count, width, BLOCK: tl.constexpr):
    # How many rows there are is in memory, so no launch can tell.
    rows = tl.load(rows_ptr) % 8 + 1
    x = tl.make_tensor_descriptor(x_ptr, [rows, width], [width, 1], [8, BLOCK])
    start = tl.program_id(0) * BLOCK
    sums = tl.make_tensor_descriptor(sums_ptr, [width], [1], [BLOCK])
    sums.store([start], tl.sum(x.load([0, start]), 0))
"""

MANIFEST = """
[package]
name = "made"
version = "0.1.0"
targets = ["sm_80", "sm_90a"]
[[kernel]]
source = "kernels.py:multiply"
grid = ["cdiv(M, BLOCK)", "cdiv(N, BLOCK)", "2"]
[kernel.signature]
a_ptr = "*bf16:16"
b_ptr = "*bf16:16"
c_ptr = "*bf16:16"
M = "i32"
N = "i32"
K = "i32:16?"
stride_az = "i32"
stride_bz = "i32"
stride_cz = "i32"
[kernel.constants]
BLOCK = 64
[kernel.verify]
stride_az = "M * K"
stride_bz = "K * N"
stride_cz = "M * N"
[[kernel]]
source = "kernels.py:add_rows"
grid = ["cdiv(width, BLOCK)"]
signature = { x_ptr = "*fp32:16", sums_ptr = "*fp32:16", rows_ptr = "*i32", count = "i32", width = "i32:16" }
constants = { BLOCK = 32 }
[[kernel]]
source = "kernels.py:turn_signs"
grid = ["cdiv(x.shape[0], BLOCK)"]
signature = { x = "tensordesc<fp16[BLOCK,64]>", out_ptr = "*fp16:16" }
constants = { BLOCK = 32 }
"""


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    folder = tmp_path_factory.mktemp("made")
    (folder / "kernels.py").write_text(SOURCE)
    (folder / "kernels.toml").write_text(MANIFEST)
    report = folder / "report.json"
    with pytest.MonkeyPatch.context() as patch, report.open("w") as out:
        patch.setattr("sys.stdout", out)
        assert run(["verify", str(folder / "kernels.toml"), "--jobs", "1", "--json"]) == EXIT_DONE
    return json.loads(report.read_text())["variants"]


@pytest.mark.slow
def test_every_variant_is_right(variants: list[dict[str, object]]) -> None:
    assert len(variants) == 8
    assert {variant["status"] for variant in variants} == {"verified"}


def test_the_launcher_makes_the_maps_that_it_can(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(SOURCE)
    (tmp_path / "kernels.toml").write_text(MANIFEST)
    assert run(["build", str(tmp_path / "kernels.toml"), "-o", str(tmp_path / "out")]) == EXIT_DONE
    archive = read(tmp_path / "out" / "made.aotc")
    maps = {
        (kernel.name, variant.target): len(variant.tensor_maps)
        for kernel in archive.kernels
        for variant in reversed(kernel.variants)
    }
    assert maps == {
        ("multiply", "sm_80"): 0,
        ("multiply", "sm_90a"): 3,
        ("add_rows", "sm_80"): 0,
        ("add_rows", "sm_90a"): 1,
        ("turn_signs", "sm_80"): 0,
        ("turn_signs", "sm_90a"): 2,
    }


def test_an_archive_says_what_scratch_memory_its_maps_take(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(SOURCE)
    (tmp_path / "kernels.toml").write_text(MANIFEST)
    build = ["build", str(tmp_path / "kernels.toml"), "--kernel", "add_rows", "--with-ptx"]
    assert run([*build, "--target", "sm_90a", "-o", str(tmp_path)]) == EXIT_DONE
    archive = read(tmp_path / "made.aotc")
    (kernel,) = archive.kernels
    mapped, *rest = (variant.scratch_bytes for variant in kernel.variants)
    assert mapped == Integer(128)
    assert not any(rest)  # of the variant without tensor maps
    assert run(["verify", str(tmp_path / "made.aotc"), "--jobs", "1"]) == EXIT_DONE
