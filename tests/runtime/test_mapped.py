"""A kernel over pointers with tensor maps of the launcher's, under a condition."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from aotc.package.archive.file import encode
from aotc.package.archive.index import Archive
from aotc.package.builder.assemble import assemble
from aotc.package.builder.workers import compile_both_ways
from aotc.package.manifest.read import load as load_manifest
from aotc.package.manifest.variant_grid import expand
from aotc.runtime import Library
from tests.support import mapped
from tests.support.fake_gpu import FakeGpu

FIRST_MAP = 48  # aligned to 64 bytes where the block of parameters begins
X, OUT = 0x7F00_0000_1000, 0x7F00_0010_0000


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    manifest = load_manifest(str(mapped.written(tmp_path_factory.mktemp("mapped"))))
    expansion = expand(manifest.kernels[0], manifest.targets, lambda *_: [])
    variants = [
        (spec, compile_both_ways(mapped.compile_mapped, spec.request))
        for spec in expansion.variants
    ]
    return encode(Archive("mapped", "0.1.0", (assemble(expansion, variants).kernel,)))


@pytest.fixture
def library(load: Callable[..., Library], content: bytes) -> Library:
    return load(content)


def test_the_caller_passes_what_the_source_takes(library: Library, gpu: FakeGpu) -> None:
    library["twice"](X, OUT, 48, 100, 112)
    launch = gpu.last()
    assert (launch.symbol, launch.grid) == ("twice_mapped", (3, 1, 1))
    # The fake driver's encoding: address, type and swizzle, dims, strides.
    words = struct.unpack_from("<16Q", launch.params, FIRST_MAP)
    assert words[:4] == (X, 2 | 7 << 8 | 3 << 16, 100, 48)
    assert words[7] == 112 * 4
    assert struct.unpack_from("<Q3i", launch.params, FIRST_MAP + 128) == (OUT, 48, 100, 112)
    library["twice"](X, OUT, 48, 100, 112)
    assert gpu.calls("cuTensorMapEncodeTiled") == 1


@pytest.mark.parametrize(("rows", "stride"), [(47, 112), (49, 112), (48, -112), (1, 0)])
def test_another_launch_takes_the_pointer(
    library: Library, gpu: FakeGpu, rows: int, stride: int
) -> None:
    library["twice"](X, OUT, rows, 100, stride)
    launch = gpu.last()
    assert launch.symbol == "twice"
    assert launch.unpack("2Q3i") == (X, OUT, rows, 100, stride)
    assert gpu.calls("cuTensorMapEncodeTiled") == 0


def test_extents_of_zero(library: Library, gpu: FakeGpu) -> None:
    library["twice"](X, OUT, 0, 100, 112)
    assert gpu.launches == 0
    library["twice"](X, OUT, 16, 0, 112)
    assert struct.unpack_from("<4Q", gpu.last().params, FIRST_MAP)[2:] == (1, 16)


def test_a_config_is_one_to_its_caller(library: Library, gpu: FakeGpu) -> None:
    kernel = library["twice"]
    assert kernel.info.configs == ({"BLOCK": 16}, {"BLOCK": 32})
    for rows, block, symbol in (
        (48, 16, "twice_mapped"),
        (48, 32, "twice"),
        (64, 32, "twice_mapped"),
    ):
        kernel.launch((X, OUT, rows, 100, 112), config={"BLOCK": block})
        assert (gpu.last().symbol, gpu.last().grid[0]) == (symbol, -(-rows // block))
    # Without a word from the caller the first config goes first, in either form.
    kernel(X, OUT, 40, 100, 112)
    assert (gpu.last().symbol, gpu.last().grid[0]) == ("twice", 3)


def test_what_the_kernel_says_of_itself(library: Library) -> None:
    kernel = library["twice"]
    conditions = [
        (v.config["BLOCK"], v.condition) for v in kernel.info.variants if v.target != "sm_80"
    ]
    assert conditions == [
        (16, mapped.condition(16)),
        (16, ""),
        (32, mapped.condition(32)),
        (32, ""),
    ]
    names = [
        kernel.info.variants[kernel.select((X, OUT, n, 9, 16)).variant].symbol for n in (16, 9)
    ]
    assert names == ["twice_mapped", "twice"]
    assert [param.name for param in kernel.info.params] == [
        *("x_ptr", "out_ptr", "rows", "cols", "stride")
    ]
