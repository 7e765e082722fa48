"""Grouped GEMM with tensor maps in device memory, on a GPU.

pytest -m gpu tests/e2e/test_maps_in_memory_gpu.py [--built FOLDER]
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

import aotc
from aotc.package.archive import file as archive
from tests.support.built import Built
from tests.support.grouped_products import GROUPED

pytestmark = pytest.mark.usefixtures("one_worker")

MANIFEST = """[package]
name = "groups"
version = "0.1.0"
targets = ["sm_90a"]

[[kernel]]
name = "grouped"
source = "groups.py:k"

[kernel.signature]
maps = "*i8:16"
results = "*u8:16"
depths = "*i32"

[kernel.constants]
BM = 128
BN = 128
BK = 64

[kernel.configs]
num_warps = [4, 8]
"""
# Equivalent of `__constant__ __align__(64) CUtensorMap maps[8];` in a user's module.
CONSTANTS = b""".version 8.0
.target sm_90
.address_size 64
.visible .const .align 64 .b8 maps[1024];
.visible .entry unused() { ret; }
"""
SHAPES = ((256, 128, 512), (333, 200, 1000), (1, 8, 64), (129, 127, 8))


@pytest.fixture(scope="module")
def torch() -> Any:
    """Return torch, with a context on the GPU."""
    module = pytest.importorskip("torch")
    module.zeros(1, device="cuda")
    return module


@pytest.fixture(scope="module")
def groups(built: Built) -> Path:
    def build(folder: Path) -> None:
        from aotc import cli

        (folder / "groups.py").write_text(GROUPED, encoding="utf-8")
        (folder / "groups.toml").write_text(MANIFEST, encoding="utf-8")
        assert cli.run(["build", str(folder / "groups.toml"), "-o", str(folder)]) == 0

    return built("groups", build)


def test_an_archive_has_pointers_to_maps(groups: Path) -> None:
    (kernel,) = archive.read(groups).kernels
    assert [param.kind for param in kernel.params] == ["pointer"] * 3
    assert len(kernel.variants) == 2


@pytest.fixture(scope="module")
def library(torch: Any, groups: Path) -> Any:
    return aotc.load(groups)


class Constants:
    """The `__constant__` variable of a module, as an array of bytes; `put` copies into it."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        module, self.size = ctypes.c_void_p(), ctypes.c_size_t()
        self.address = ctypes.c_uint64()
        pointers = ctypes.byref(self.address), ctypes.byref(self.size)
        assert self.driver.cuModuleLoadData(ctypes.byref(module), CONSTANTS) == 0
        assert self.driver.cuModuleGetGlobal_v2(*pointers, module, b"maps") == 0

    def put(self, content: bytes) -> None:
        assert len(content) <= self.size.value
        assert (
            self.driver.cuMemcpyHtoD_v2(self.address, content, ctypes.c_size_t(len(content))) == 0
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        where = (self.address.value, True)
        return {"version": 3, "shape": (self.size.value,), "typestr": "|i1", "data": where}


@pytest.mark.gpu
@pytest.mark.parametrize("num_warps", [4, 8])
@pytest.mark.parametrize("where", ["global", "constant"])
def test_grouped_products(torch: Any, library: Any, num_warps: int, where: str) -> None:
    generator = torch.Generator("cuda").manual_seed(num_warps)

    def tensor(rows: int, columns: int, dtype: Any) -> Any:
        """Return random small numbers in 16-byte aligned rows."""
        shape = (rows, -(-columns // 8) * 8)
        data = torch.randint(-4, 5, shape, generator=generator, device="cuda")
        return data.to(dtype)[:, :columns]

    def table(maps: list[bytes], dtype: Any) -> Any:
        return torch.frombuffer(bytearray(b"".join(maps)), dtype=dtype).cuda()

    operands = [
        (tensor(m, depth, torch.bfloat16), tensor(n, depth, torch.bfloat16))
        for m, n, depth in SHAPES
    ]
    results = [tensor(m, n, torch.float32) for m, n, _ in SHAPES]
    maps = [library.tensor_map(operand, (128, 64)) for pair in operands for operand in pair]
    if where == "constant":
        of_operands = Constants()
        of_operands.put(b"".join(maps))
    else:
        of_operands = table(maps, torch.int8)
    arguments = (
        of_operands,
        table([library.tensor_map(product, (128, 128)) for product in results], torch.uint8),
        torch.tensor([depth for _, _, depth in SHAPES], dtype=torch.int32, device="cuda"),
    )
    grid = (3, 2, len(SHAPES))
    library["grouped"].launch(arguments, grid=grid, config={"num_warps": num_warps})
    for (a, b), product in zip(operands, results, strict=True):
        assert (product == a.float() @ b.float().T).all()
