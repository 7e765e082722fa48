"""A boolean config key: shown for each variant, and chosen by the caller at launch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aotc.compiler import compile_kernel
from aotc.package.archive.file import encode
from aotc.package.archive.index import Archive
from aotc.package.builder.assemble import assemble
from aotc.package.builder.workers import compile_both_ways
from aotc.package.inspect.content import COLUMNS, describe, rows
from aotc.package.manifest.read import load as load_manifest
from aotc.package.manifest.variant_grid import expand
from aotc.runtime import Library, NotFoundError
from tests.support.descriptors import PRELUDE
from tests.support.fake_gpu import FakeGpu
from tests.support.gpu_arrays import CudaArray

SOURCE = """def add(x, y, n):
    total = tl.zeros((256,), tl.int32)
    for i in range(n):
        total += x.load([i * 256])
    y.store([0], total)
"""
MANIFEST = """[package]
name = "sums"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "kernel.py:add"
grid = ["1"]
[kernel.signature]
x = "tensordesc<i32[256]>"
y = "tensordesc<i32[256]>"
n = "i32"
[kernel.configs]
warp_specialize = [true, false]
num_stages = [2, 3]
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    folder: Path = tmp_path_factory.mktemp("sums")
    (folder / "kernel.py").write_text(PRELUDE + SOURCE, encoding="utf-8")
    (folder / "kernels.toml").write_text(MANIFEST, encoding="utf-8")
    manifest = load_manifest(str(folder / "kernels.toml"))
    expansion = expand(manifest.kernels[0], manifest.targets, lambda *_: [])
    variants = [
        (spec, compile_both_ways(compile_kernel, spec.request)) for spec in expansion.variants
    ]
    return Archive("sums", "0.1.0", (assemble(expansion, variants).kernel,))


def test_every_variant_shows_it(archive: Archive) -> None:
    cells_of_variants = [
        dict(zip(COLUMNS, row.cells, strict=True)) for row in rows(archive.kernels[0])
    ]
    assert [(cells["config"], cells["threads"]) for cells in cells_of_variants] == [
        ("warp_specialize=true num_stages=2", "160"),
        ("warp_specialize=true num_stages=3", "160"),
        ("warp_specialize=false num_stages=2", "128"),
        ("warp_specialize=false num_stages=3", "128"),
    ]
    variants = describe(archive, 0)["kernels"][0]["variants"]
    assert variants[2]["config"] == {"warp_specialize": False, "num_stages": 2}


def test_the_caller_chooses(load: Callable[..., Library], gpu: FakeGpu, archive: Archive) -> None:
    kernel = load(encode(archive))["add"]
    tensors = [
        CudaArray(address, "<i4", (4096,)) for address in (0x7F00_0000_1000, 0x7F00_0010_0000)
    ]
    for choice, threads in ((None, 160), (True, 160), (False, 128)):
        config = {} if choice is None else {"warp_specialize": choice}
        variant = kernel.info.variants[kernel.select((*tensors, 3), config=config).variant]
        assert variant.config["warp_specialize"] is (choice is not False)
        assert variant.num_threads == threads
    del gpu
    with pytest.raises(NotFoundError, match="warp_specialize = 1"):
        kernel.select((*tensors, 3), config={"warp_specialize": 1})
