"""A matrix product over pointers, from the manifest to the launch: with tensor maps and without."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import aotc
from aotc.compiler import compile_kernel
from aotc.package.archive.file import encode
from aotc.package.archive.index import Archive, Kernel
from aotc.package.builder.assemble import assemble
from aotc.package.builder.workers import compile_both_ways
from aotc.package.manifest.read import load
from aotc.package.manifest.variant_grid import Expansion, expand
from aotc.package.verify.subjects import subject_of
from aotc.package.verify.variants import verify_variant
from tests.support.fake_gpu import FakeGpu, build

pytestmark = pytest.mark.usefixtures("one_worker")

MANIFEST = Path(__file__).parents[2] / "benchmarks" / "launch.toml"
A, B, OUT = 0x7F00_0000_1000, 0x7F00_0010_0000, 0x7F00_0020_0000


@pytest.fixture(scope="module")
def expansion() -> Expansion:
    manifest = load(str(MANIFEST))
    return expand(manifest.kernel("matmul"), manifest.targets, lambda *_: [])


@pytest.fixture(scope="module")
def kernel(expansion: Expansion) -> Kernel:
    compiled = [(v, compile_both_ways(compile_kernel, v.request)) for v in expansion.variants]
    return assemble(expansion, compiled).kernel


@pytest.fixture
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGpu]:
    driver = FakeGpu(build(tmp_path_factory.mktemp("fake_cuda")))
    driver.reset()
    driver.make_current(0)
    yield driver
    assert driver.violation is None


def test_what_is_promised_is_built_both_ways(kernel: Kernel) -> None:
    forms = [(len(v.guards), len(v.tensor_maps), v.condition is None) for v in kernel.variants]
    promised, promises = len(kernel.guards), sum(guard.is_promise for guard in kernel.guards)
    assert forms == [(promised, 3, False), (promised, 0, True), (promises, 0, True)]


@pytest.mark.emulated
def test_both_forms_are_right(expansion: Expansion) -> None:
    result = verify_variant(subject_of(expansion, expansion.variants[0]))
    assert result.status == "verified", result
    assert result.fallback is not None
    assert len(result.findings) > 3


def test_the_launcher_takes_the_form_that_fits(kernel: Kernel, gpu: FakeGpu) -> None:
    content = encode(Archive("launch", "0.1.0", (kernel,)))
    with aotc.load(content, driver=gpu.path) as library:

        def launch(m: int, n: int, k: int, stride: int) -> None:
            library["matmul"](A, B, OUT, OUT, OUT, m, n, k, stride, stride, stride)

        launch(100, 96, 80, 112)
        assert gpu.calls("cuTensorMapEncodeTiled") == 3
        maps = [
            struct.unpack_from("<16Q", gpu.last().params, param.offset)
            for param in kernel.variants[0].cubin_params
            if param.source == "tensor_map"
        ]
        # The fake driver's encoding: address, type and swizzle, dims from the innermost, strides.
        described = {(words[0], words[2:4], words[7]) for words in maps}
        expected = {(A, (80, 100), 224), (B, (96, 80), 224), (OUT, (96, 100), 224)}
        assert described == expected
        launch(100, 96, 80, -112)
        launch(100, 96, 80, 111)
        assert gpu.calls("cuTensorMapEncodeTiled") == 3
        assert gpu.launches == 3
        launch(0, 96, 80, 112)
        assert gpu.launches == 3
