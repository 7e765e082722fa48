"""Host descriptors at launches from archives: the kernel's block shape, and the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aotc import cli
from aotc.triton.launch import block_of
from tests.support.fake_gpu import build

KERNELS = """
import triton
import triton.language as tl


@triton.jit
def copy(desc, out, n, BM: tl.constexpr, BN: tl.constexpr):
    tile = desc.load([tl.program_id(0) * BM, 0])
    at = tl.arange(0, BM)[:, None] * n + tl.arange(0, BN // 2)[None, :]
    tl.store(out + at, tile)


@triton.jit
def rows(x, offsets, n, BM: tl.constexpr, BN: tl.constexpr):
    first = tl.load(offsets + tl.program_id(0))
    desc = tl.make_tensor_descriptor(x + first * n, [BM, n], [n, 1], [BM, BN])
    desc.store([0, 0], desc.load([0, BN]) + 1)


@triton.jit
def pair(descs, out, BM: tl.constexpr, BN: tl.constexpr):
    tile = descs[0].load([0, 0]) + descs[1].load([tl.program_id(0) * BM, 0])
    tl.store(out + tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :], tile)


def set_block(nargs):
    nargs["desc"].block_shape = [nargs["BM"], 32]


tuned = triton.autotune(
    [triton.Config({"BM": bm, "BN": 64}, num_warps=1, pre_hook=set_block) for bm in (64, 32, 16)], key=["n"]
)(copy)
"""
MANIFEST = """
[package]
name = "ops"
version = "0.1.0"
targets = ["sm_90a"]

[[kernel]]
source = "ops.py:copy"
[kernel.signature]
desc = "tensordesc<fp32[BM,BN // 2]>"
out = "*fp32"
n = "i32"
[[kernel.config]]
BM = 16
BN = 64
num_warps = 1
[[kernel.config]]
BM = 32
BN = 64
num_warps = 2

[[kernel]]
source = "ops.py:rows"
[kernel.signature]
x = "*fp32:16"
offsets = "*i32"
n = "i32:16"
[kernel.constants]
BM = 16
BN = 32

[[kernel]]
source = "ops.py:pair"
[kernel.signature]
descs = "(tensordesc<fp32[BM,BN]>, tensordesc<fp32[BM,BN]>)"
out = "*fp32"
[kernel.constants]
BM = 16
BN = 32
"""
START = """
install(stand_in=True)
import ops
from triton.tools.tensor_descriptor import TensorDescriptor
def run(block, shape=(64, 33), strides=(48, 1), base=x, kernel=ops.copy, padding="zero", **words):
    desc = TensorDescriptor(base, list(shape), list(strides), list(block), padding)
    return lambda: kernel[(3,)](desc, y, 7, **words)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("descriptors")
    (folder / "ops.py").write_text(KERNELS)
    (folder / "kernels.toml").write_text(MANIFEST)
    arguments = ["build", str(folder / "kernels.toml"), "-o", str(folder / "dist"), "-j", "1"]
    assert cli.run([*arguments, "--no-cache"]) == 0
    build(folder)
    return folder


@pytest.fixture
def program(launches: Any, folder: Path) -> Any:
    def program(body: str) -> list[Any]:
        return launches(START + body, folder=folder, path=(str(folder),), cwd=folder)

    return program


def test_the_block_picks_the_config(program: Any) -> None:
    assert program("""
for block, bm in (((16, 32), 16), ((32, 32), 32), ((16, 32), 16)):
    launched(run(block, BM=bm, BN=64))
launched(run((16, 32), BM=16, BN=64, num_warps=1))
""") == [[[3, 1, 1], 32], [[3, 1, 1], 64], [[3, 1, 1], 32], [[3, 1, 1], 32]]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("run((32, 32), BM=16, BN=64)", 'desc = "tensordesc<fp32[32,32]>"'),
        ("run((16, 64), BM=16, BN=64)", 'desc = "tensordesc<fp32[16,64]>"'),
        ("run((16, 32), BM=16, BN=32)", "BN = 32"),
        ("run((16, 32), padding='nan', BM=16, BN=64)", 'desc = "tensordesc<fp32[16,32],nan>"'),
        ("run((16, 32), base=half, BM=16, BN=64)", 'desc = "tensordesc<fp16[16,32]>"'),
        ("run((16, 32), base=4096, BM=16, BN=64)", "desc: tensordesc<"),
        ("lambda: ops.copy[(3,)](x, y, 7, BM=16, BN=64)", 'desc = "*fp32:16"'),
    ],
)
def test_what_no_kernel_was_built_for_is_an_error(program: Any, call: str, expected: str) -> None:
    """A cached launch is not reused for another block."""
    first, error = program(f"launched(run((16, 32), BM=16, BN=64))\nlaunched({call})")
    assert first == [[3, 1, 1], 32]
    assert error[0] == "NotInArchiveError"
    assert expected in error[1]


def test_shape_and_strides_are_the_descriptors(program: Any) -> None:
    """Not the tensor's own: it has one axis here."""
    good, other, bad = program("""
launched(run((16, 32), shape=(64, 36), BM=16, BN=64))
launched(run((16, 32), shape=(64, 36), strides=(36, 1), BM=16, BN=64))
launched(run((16, 32), shape=(64, -1), BM=16, BN=64))
""")
    assert good == other == [[3, 1, 1], 32]
    assert "expected extents of 0 or more, got -1 of axis 1" in bad[1]


def test_an_autotuners_hook_says_the_block(program: Any) -> None:
    assert program("""
for _ in range(2):
    launched(run((1, 1), kernel=ops.tuned))
""") == [[[3, 1, 1], 32], [[3, 1, 1], 32]]


def test_no_descriptor_stays_alive(program: Any) -> None:
    assert program("""
import gc, weakref
alive = weakref.WeakSet()
def fresh(bm):
    base = CudaArray(4096)
    alive.add(base)
    return base
for i in range(200):
    bm = 16 << i % 2
    run((bm, 32), base=fresh(bm), BM=bm, BN=64)()
gc.collect()
seen.append(len(alive))
""") == [0]


@pytest.mark.parametrize(
    ("extents", "expected"),
    [
        ((16, "BM"), (16, 32)),
        (("BM * 2", "BM // 3 + 1"), (64, 11)),
        (("cdiv(BM, 5)", "min(BM, 7)"), (7, 7)),
        (("BK", 1), None),
        (("NAME", 1), None),
        (("BM // 0", 1), None),
        (("__import__('os')", 1), None),
        (("BM.real", 1), None),
        (("BM ** 2", 1), None),
    ],
)
def test_extents_are_evaluated(extents: tuple[int | str, ...], expected: object) -> None:
    block = block_of((extents, True), {"BM": 32, "NAME": "text"})
    assert block == (None if expected is None else (expected, True))


def test_descriptors_in_tuples_and_those_that_take_scratch_memory(program: Any) -> None:
    """The memory comes from the pool; `set_allocator` is ignored."""
    assert program("""
import triton
def refuse(*_):
    raise AssertionError("it was asked for memory")
triton.set_allocator(refuse)
def desc(rows=64, block=(16, 32)):
    return TensorDescriptor(x, [rows, 32], [48, 1], list(block))
launched(lambda: ops.pair[(5,)]((desc(), desc(32)), y, BM=16, BN=32))
launched(lambda: ops.rows[(7,)](x, CudaArray(8192, "<i4"), 48, BM=16, BN=32))
launched(lambda: ops.pair[(5,)]((desc(), desc(32, (32, 32))), y, BM=16, BN=32))
seen[-1] = seen[-1][0]
""") == [[[5, 1, 1], 128], [[7, 1, 1], 128], "NotInArchiveError"]
