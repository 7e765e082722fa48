"""Elementwise functions and fp8e4b15 on a GPU, against Triton on the same source.

pytest -m gpu tests/e2e/test_elements_gpu.py [--built FOLDER]
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from aotc.package.archive import file as archive
from tests.support.built import Built

pytestmark = pytest.mark.usefixtures("one_worker")

SOURCE = '''"""Kernels that aotc and Triton compile."""

import triton
import triton.language as tl


@triton.jit
def steps_of(n):
    steps = 0
    while n > 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


@triton.jit
def both_of_two(a0, a1, b0, b1):
    return a0 // b0, a1 // b1, a0 % b0, a1 % b1


@triton.jit
def elements(x_ptr, steps_ptr, quotient_ptr, rest_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    tl.store(steps_ptr + at, tl.map_elementwise(steps_of, x))
    quotient, rest = tl.map_elementwise(both_of_two, x, at % 61 + 1, pack=2)
    tl.store(quotient_ptr + at, quotient)
    tl.store(rest_ptr + at, rest)


@triton.jit
def bytes_of_halves(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x_ptr + at).to(tl.float8e4b15)
    tl.store(out_ptr + at, y.to(tl.uint8, bitcast=True))


@triton.jit
def halves_of_bytes(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x_ptr + at).to(tl.float8e4b15, bitcast=True)
    tl.store(out_ptr + at, y.to(tl.float16))
'''
MANIFEST = """[package]
name = "elements"
version = "0.1.0"
targets = ["sm_90a"]

[[kernel]]
source = "elements.py:elements"
[kernel.signature]
x_ptr = "*i32:16"
steps_ptr = "*i32:16"
quotient_ptr = "*i32:16"
rest_ptr = "*i32:16"
[kernel.constants]
BLOCK = 1024

[[kernel]]
source = "elements.py:bytes_of_halves"
[kernel.signature]
x_ptr = "*T:16"
out_ptr = "*u8:16"
[kernel.types]
T = ["fp16", "fp32"]
[kernel.constants]
BLOCK = 1024

[[kernel]]
source = "elements.py:halves_of_bytes"
[kernel.signature]
x_ptr = "*u8:16"
out_ptr = "*fp16:16"
[kernel.constants]
BLOCK = 256
"""


@pytest.fixture(scope="module")
def elements(built: Built) -> Path:
    def build(folder: Path) -> None:
        from aotc import cli

        (folder / "elements.py").write_text(SOURCE, encoding="utf-8")
        (folder / "elements.toml").write_text(MANIFEST, encoding="utf-8")
        assert cli.run(["build", str(folder / "elements.toml"), "-o", str(folder)]) == 0

    return built("elements", build)


def test_the_archive_has_all_of_them(elements: Path) -> None:
    names = {kernel.name for kernel in archive.read(elements).kernels}
    assert names == {"elements", "bytes_of_halves", "halves_of_bytes"}


@pytest.fixture(scope="module")
def library(elements: Path) -> Any:
    import aotc

    torch = pytest.importorskip("torch")
    torch.zeros(1, device="cuda")
    loaded = aotc.load(elements)
    loaded.load()
    return loaded


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kernels as Triton has them."""
    pytest.importorskip("triton")
    path = tmp_path_factory.mktemp("elements") / "elements.py"
    path.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("elements_of_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.gpu
def test_functions_on_elements(library: Any, source: Any) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randint(1, 10_000, (64 * 1024,), dtype=torch.int32, device="cuda")
    ours, theirs = ([torch.full_like(x, -1) for _ in range(3)] for _ in range(2))
    library["elements"].launch((x, *ours), grid=(64,))
    source.elements[(64,)](x, *theirs, BLOCK=1024)
    for actual, other in zip(ours, theirs, strict=True):
        assert torch.equal(actual, other)


@pytest.mark.gpu
def test_fp8e4b15_of_every_half_and_of_singles(library: Any, source: Any) -> None:
    torch = pytest.importorskip("torch")
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32, device="cuda").to(torch.int16)
    halves = bits.view(torch.float16)
    singles = torch.randint(-(1 << 31), 1 << 31, (1 << 16,), device="cuda").to(torch.int32)
    for x in (halves, singles.view(torch.float32)):
        ours, theirs = (torch.zeros(x.numel(), dtype=torch.uint8, device="cuda") for _ in range(2))
        library["bytes_of_halves"].launch((x, ours), grid=(64,))
        source.bytes_of_halves[(64,)](x, theirs, BLOCK=1024)
        assert torch.equal(ours, theirs), x.dtype
    every = torch.arange(256, dtype=torch.int32, device="cuda").to(torch.uint8)
    ours, theirs = (torch.zeros(256, dtype=torch.float16, device="cuda") for _ in range(2))
    library["halves_of_bytes"].launch((every, ours), grid=(1,))
    source.halves_of_bytes[(1,)](every, theirs, BLOCK=256)
    assert torch.equal(ours.view(torch.int16), theirs.view(torch.int16))
