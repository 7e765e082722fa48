"""A GPU to load on: the fake driver, compiled once, and archives to load."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import aotc
from aotc import runtime
from aotc.ir.expression import parse
from aotc.package.archive.file import encode
from aotc.package.archive.index import Archive, CubinParam, Kernel, Param, TypeVariable, Variant
from aotc.runtime import Library
from tests.support.fake_gpu import FakeGpu, build, golden
from tests.support.gpu_arrays import ExchangeArray, torch

# More than two words have bits for, in no order, and not all with the same names.
PICK_CONFIGS: tuple[tuple[tuple[str, int | str | bool], ...], ...] = tuple(
    (
        ("BLOCK", 1 << number * 7 % 11),
        ("MODE", ("fast", "exact", "none")[number % 3]),
        *((("EVEN", number % 2 == 0),) if number % 5 else ()),
        ("num_warps", number // 10),
    )
    for number in range(140)
)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeGpu:
    return FakeGpu(build(tmp_path_factory.mktemp("fake_cuda")))


@pytest.fixture
def gpu(driver: FakeGpu) -> Iterator[FakeGpu]:
    """One H200 with its primary context current; fails a test with a driver violation."""
    driver.reset()
    driver.make_current(0)
    yield driver
    assert driver.violation is None


Load = Callable[..., Library]


@pytest.fixture
def load(gpu: FakeGpu) -> Iterator[Load]:
    """`aotc.load` on the fake driver; closes the libraries before the driver is reset."""
    opened: list[Library] = []

    def load_on_fake(*arguments: object, **keywords: object) -> Library:
        opened.append(aotc.load(*arguments, driver=gpu.path, **keywords))  # type: ignore[arg-type]
        return opened[-1]

    yield load_on_fake
    for library in opened:
        library.close()


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the C tests' archives, and `loader.aotc`."""
    directory = tmp_path_factory.mktemp("archives")
    golden().main(directory)
    (directory / "loader.aotc").write_bytes(encode(_loader_archive()))
    return directory


@pytest.fixture
def library(load: Load, archives: Path) -> Library:
    """The C tests' archive: add, choose, scratch, shared, tma."""
    return load(archives / "golden.aotc")


def _loader_archive() -> Archive:
    """Return kernels that return the loader's arguments, for a test to inspect."""
    target = "sm_90a"
    cubin = golden().cubin
    scale = Kernel(
        name="scale",
        source_sha256=bytes(32),
        params=(
            Param("x_ptr", "pointer", "T", access="read"),
            Param("out_ptr", "pointer", "T", access="write"),
            Param("alpha", "scalar", "T"),
            Param("n", "scalar", "i32"),
        ),
        type_variables=(TypeVariable("T", ("fp16", "bf16", "fp32", "fp64", "i64", "i1")),),
        variants=tuple(
            Variant(
                target=target,
                symbol=f"scale_{dtype}",
                cubin=cubin(
                    target, {f"scale_{dtype}": [(0, 8), (8, 8), (16, size), (24, 4)]}, b""
                ),
                num_threads=128,
                types=(dtype,),
                cubin_params=(
                    CubinParam(0, 8, index=0),
                    CubinParam(8, 8, index=1),
                    CubinParam(16, size, index=2),
                    CubinParam(24, 4, index=3),
                ),
                grid=(parse("cdiv(n, 128)"),),
            )
            for dtype, size in (
                ("fp16", 2), ("bf16", 2), ("fp32", 4), ("fp64", 8), ("i64", 8), ("i1", 1),
            )
        ),
    )  # fmt: skip
    words = ("a", "a.shape[0]", "a.shape[1]", "a.strides[0]", "a.strides[1]")
    shape = Kernel(
        name="shape",
        source_sha256=bytes(32),
        params=(Param("a", "tensor", "bf16", rank=2, access="both"),),
        variants=(
            Variant(
                target=target,
                symbol="shape",
                cubin=cubin(target, {"shape": [(8 * i, 8) for i in range(5)]}, b""),
                num_threads=32,
                cubin_params=tuple(
                    CubinParam(8 * i, 8, "expression", expression=parse(word))
                    for i, word in enumerate(words)
                ),
            ),
        ),
    )
    pick = Kernel(
        name="pick",
        source_sha256=bytes(32),
        params=(),
        configs=PICK_CONFIGS,
        variants=tuple(
            Variant(
                target=target,
                symbol="pick",
                cubin=cubin(target, {"pick": []}, b""),
                num_threads=32,
                cubin_params=(),
                config=number,
                grid=(parse(str(number + 1)),),
            )
            for number in range(len(PICK_CONFIGS))
        ),
    )
    return Archive("loader", "1", (pick, scale, shape))


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stand-in for torch be imported, with everybody's current stream the default one."""
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(ExchangeArray, "current", 0)
    monkeypatch.setattr(torch._C, "current", {})


@pytest.fixture
def loader(load: Load, archives: Path) -> Library:
    return load(archives / "loader.aotc")


@pytest.fixture
def scale(loader: Library) -> runtime.Kernel:
    """`scale(x_ptr, out_ptr, alpha, n)`: reads x, writes out; the tensors say the dtype."""
    return loader["scale"]


@pytest.fixture
def shape(loader: Library) -> runtime.Kernel:
    """`shape(a)`: is given address, shape and strides of a bf16 matrix."""
    return loader["shape"]
