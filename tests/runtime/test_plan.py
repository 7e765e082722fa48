"""Plans: the parameters of a launch, from the C library's own code, without a GPU or a driver."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from aotc.runtime import AotcError, ArchError, ArgumentError, NotFoundError, StateError
from aotc.runtime._native import Archive, Kernel
from tests.support.fake_gpu import FakeGpu

HOPPER = (9, 0)
Open = Callable[[str, str], Kernel]


@pytest.fixture
def kernel_of(archives: Path) -> Open:
    def opened(archive: str, name: str) -> Kernel:
        path = str(archives / f"{archive}.aotc")
        return Archive((path,), zstandard.decompress, False, "/nonexistent/libcuda.so.1")[name]

    return opened


def test_a_variant_its_grid_and_parameters(kernel_of: Open) -> None:
    add = kernel_of("golden", "add")
    plan = add._plan(HOPPER, 1, ((0x1000, "fp16"), 0x2000, 0x3000, 4096))
    assert plan is not None
    assert (plan.symbol, plan.grid, plan.block, plan.cluster) == (
        "add_fp16_01", (4, 1, 1), (128, 1, 1), (1, 1, 1),
    )  # fmt: skip
    assert add.info.variants[plan.variant].symbol == plan.symbol
    assert struct.unpack("<QQQi", plan.params) == (0x1000, 0x2000, 0x3000, 4096)
    other = add._plan(HOPPER, 1, ((0x1000, "fp32"), 0x2000, 0x3000, 4097), config={"BLOCK": 2048})
    assert other is not None
    assert (other.symbol, other.grid, other.block) == ("add_fp32_0", (3, 1, 1), (256, 1, 1))
    assert other.variant != plan.variant


def test_every_argument_of_the_encoder(kernel_of: Open) -> None:
    tma = kernel_of("golden", "tma")
    tensor = (0x7F00_0000_0400, "bf16", (300, 128), (136, 1))
    plan = tma._plan(HOPPER, 1, (tensor, 0x10), config={"WAITS": True}, pdl=True)
    assert plan is not None
    (encoded,) = plan.maps
    assert encoded == (
        0, 9, 0x7F00_0000_0400, (128, 300), (272,), (64, 128), (1, 1), 0, 3, 2, 0,
    )  # fmt: skip
    assert (plan.grid, plan.cluster, plan.is_pdl) == ((6, 2, 1), (2, 1, 1), True)
    assert plan.dynamic_shared_bytes == 100 * 1024
    assert plan.params[128:136] == struct.pack("<Q", 0x10)
    # A cached map belongs to this tensor, and to no other.
    for stride in (136, 144, 136):
        again = tma._plan(HOPPER, 1, ((*tensor[:3], (stride, 1)), 0x10), config={"WAITS": True})
        assert again is not None
        assert again.maps == (encoded._replace(strides=(2 * stride,)),)


def test_programs_that_blocks_loop_over(kernel_of: Open) -> None:
    looped = kernel_of("looped", "looped")
    for at_once, blocks in ((1, 1), (3, 3), (4, 4), (100, 10)):
        plan = looped._plan(
            HOPPER, at_once, (0x10,), grid=(5, 2), config={"CONFIG": 0}, scratch=(0x100, 160)
        )
        assert plan is not None
        assert plan.grid == (blocks, 1, 1)
        assert struct.unpack("<QIIIxxxxQ", plan.params) == (0x10, 1, 5, 2, 0x100)
    plan = looped._plan(HOPPER, 2, (0x10,), grid=9, config={"CONFIG": 4}, scratch=(0x100, 160))
    assert plan is not None
    assert (plan.grid, plan.cluster) == ((4, 2, 4), (2, 2, 4))


def test_scratch_memory_of_the_pool(kernel_of: Open) -> None:
    looped = kernel_of("looped", "looped")
    plan = looped._plan(HOPPER, 3, (0x10,), grid=(5, 2), config={"CONFIG": 0})
    assert plan is not None
    start, size_bytes = plan.scratch
    pointer = struct.unpack("<QIIIxxxxQ", plan.params)[-1]
    assert start <= pointer <= pointer + 160 <= start + size_bytes
    assert plan.is_scratch_returned
    explicit = looped._plan(HOPPER, 3, (0x10,), grid=9, config={"CONFIG": 0}, scratch=(0x100, 160))
    assert explicit is not None
    assert (explicit.scratch, explicit.is_scratch_returned) == ((0, 0), False)


def test_a_plan_says_whether_it_is_cooperative(kernel_of: Open) -> None:
    for archive, cooperative in (("together", True), ("looped", False)):
        kernel = kernel_of(archive, archive)
        scratch = None if cooperative else (0x100, 160)
        plan = kernel._plan(HOPPER, 9, (0x10,), grid=4, config={"CONFIG": 0}, scratch=scratch)
        assert plan is not None
        assert plan.is_cooperative == cooperative


def test_nothing_is_launched_for_no_programs(kernel_of: Open) -> None:
    add = kernel_of("golden", "add")
    assert add._plan(HOPPER, 1, ((0x1000, "fp16"), 0x2000, 0x3000, 0), config={}) is None


def test_refusals_are_those_of_a_launch(kernel_of: Open) -> None:
    add = kernel_of("golden", "add")
    with pytest.raises(ArgumentError, match="x_ptr is a multiple of 16"):
        add._plan(HOPPER, 1, ((0x1001, "fp16"), 0x2000, 0x3000, 16))
    with pytest.raises(ArgumentError, match="argument 'n'"):
        add._plan(HOPPER, 1, ((0x1000, "fp16"), 0x2000, 0x3000, "x"))
    with pytest.raises(ArchError):
        kernel_of("hopper", "tma")._plan((8, 0), 1, ((0x10, "bf16", (8, 8)), 0))
    with pytest.raises(NotFoundError):
        kernel_of("guarded", "pick")._plan((8, 6), 1, (17,))
    with pytest.raises(ValueError, match="compute capability"):
        add._plan((9, 10), 1, ())
    with pytest.raises(TypeError):
        add._plan(HOPPER)  # type: ignore[call-arg]


def test_a_planned_archive_is_for_plans_alone(archives: Path, gpu: FakeGpu) -> None:
    path = str(archives / "golden.aotc")
    planned = Archive((path,), zstandard.decompress, False, str(gpu.path))
    arguments = ((0x1000, "fp16"), 0x2000, 0x3000, 4096)
    assert planned["add"]._plan(HOPPER, 1, arguments) is not None
    for stream in (None, 1, 2, 3, 0x1000):
        with pytest.raises(AotcError):
            planned["add"].launch(arguments, stream=stream)
    loaded = Archive((path,), zstandard.decompress, False, str(gpu.path))
    loaded._load(0, "add")
    with pytest.raises(StateError, match="not loaded"):
        loaded["add"]._plan(HOPPER, 1, arguments)
    loaded.close()


def test_a_plan_within_a_plan(kernel_of: Open) -> None:
    class Planning:
        def __index__(self) -> int:
            inner = add._plan(HOPPER, 1, ((0x40, "fp16"), 0x50, 0x60, 32))
            assert inner is not None
            assert struct.unpack("<QQQi", inner.params) == (0x40, 0x50, 0x60, 32)
            return 64

    class Closing:
        def __index__(self) -> int:
            archive.close()
            return 1

    add = kernel_of("golden", "add")
    outer = add._plan(HOPPER, 1, ((0x1000, "fp16"), 0x2000, 0x3000, Planning()))
    assert outer is not None
    assert struct.unpack("<QQQi", outer.params) == (0x1000, 0x2000, 0x3000, 64)
    archive = Archive((_path_of(kernel_of),), zstandard.decompress, False, None)
    with pytest.raises(StateError, match="closed"):
        archive["add"]._plan(HOPPER, 1, ((0x1000, "fp16"), 0x2000, 0x3000, Closing()))


def _path_of(kernel_of: Open) -> str:
    try:
        kernel_of("golden", "nothing")
    except NotFoundError as error:
        return error.file
    raise AssertionError
