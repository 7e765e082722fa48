"""Buffers of launches: as large as the kernel's accesses, for any launch."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from aotc.package.archive.index import Archive
from aotc.package.manifest.read import load
from aotc.package.tuning.shapes import Launch
from aotc.tuning import inputs
from aotc.tuning.buffers import BufferPlan, UnsizedError, described_buffers
from aotc.tuning.inputs import corner_programs, measured_buffers
from aotc.tuning.subjects import Subjects, extreme_configs
from aotc.verify.checks.contents import HEAD_BYTES
from tests.support.tuned_archive import scale_kernel

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    pid = tl.program_id(0)
    num_m, num_n = tl.cdiv(M, BLOCK), tl.cdiv(N, BLOCK)
    group = pid // (GROUP * num_n)
    size = min(num_m - group * GROUP, GROUP)
    rm = (group * GROUP + (pid % (GROUP * num_n)) % size) * BLOCK + tl.arange(0, BLOCK)
    rn = (pid % (GROUP * num_n)) // size * BLOCK + tl.arange(0, BLOCK)
    rk = tl.arange(0, 32)
    a = a_ptr + rm[:, None] * K + rk[None, :]
    b = b_ptr + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, 32)):
        x = tl.load(a, mask=(rm[:, None] < M) & (rk[None, :] < K - k * 32), other=0.0)
        y = tl.load(b, mask=(rk[:, None] < K - k * 32) & (rn[None, :] < N), other=0.0)
        acc = tl.dot(x, y, acc)
        a += 32
        b += 32 * N
    c = c_ptr + rm[:, None] * N + rn[None, :]
    tl.store(c, acc.to(tl.bfloat16), mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def gather(out_ptr, table_ptr, index_ptr, n, rows, width, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    row = tl.load(index_ptr + pid)
    columns = tl.arange(0, BLOCK)
    x = tl.load(table_ptr + row * width + columns, mask=columns < width)
    tl.store(out_ptr + pid * width + columns, x, mask=columns < width)


@triton.jit
def split(part_ptr, x_ptr, n, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    total = 0.0
    for start in range(part * BLOCK, n, SPLITS * BLOCK):
        columns = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x_ptr + row * n + columns, mask=columns < n, other=0.0), 0)
    tl.store(part_ptr + row * SPLITS + part, total)


@triton.jit
def through(out_ptrs, n, BLOCK: tl.constexpr):
    out_ptr = tl.load(out_ptrs + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, 1.0, mask=offsets < n)
"""

MANIFEST = """
[package]
name = "sized"
version = "0.1.0"
targets = ["sm_90a"]

[[kernel]]
source = "sized.py:matmul"
grid = ["cdiv(M, BLOCK) * cdiv(N, BLOCK)"]
[kernel.signature]
a_ptr = "*bf16:16"
b_ptr = "*bf16:16"
c_ptr = "*bf16:16"
M = "i32"
N = "i32"
K = "i32"
[kernel.constants]
GROUP = 4
[[kernel.config]]
BLOCK = 64

[[kernel]]
source = "sized.py:gather"
grid = ["n"]
[kernel.signature]
out_ptr = "*fp32"
table_ptr = "*fp32"
index_ptr = "*i64"
n = "i32"
rows = "i32"
width = "i32"
[[kernel.config]]
BLOCK = 64
[kernel.verify]
index_ptr = { low = 0, high = "rows" }
"table_ptr.size" = "rows * width"

[[kernel]]
source = "sized.py:split"
grid = ["16384", "SPLITS"]
[kernel.signature]
part_ptr = "*fp32"
x_ptr = "*fp32"
n = "i32"
[kernel.configs]
SPLITS = [1, 16, 4]
BLOCK = [64, 256]
num_warps = [4, 8]

[[kernel]]
source = "sized.py:through"
grid = ["3"]
[kernel.signature]
out_ptrs = "*i64"
n = "i32"
[[kernel.config]]
BLOCK = 8192
[kernel.verify]
out_ptrs = { pointers_to = "fp32", count = 3 }
"""


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Subjects:
    folder = tmp_path_factory.mktemp("sized")
    (folder / "sized.py").write_text(SOURCE)
    (folder / "kernels.toml").write_text(MANIFEST)
    path = str(folder / "kernels.toml")
    return Subjects(Archive("sized", "1", ()), load(path), path)


def plans(
    subjects: Subjects, kernel: str, sizes: dict[str, int] | None = None, **key: int
) -> dict[str, BufferPlan]:
    launch = Launch(kernel, {}, {}, key, sizes=sizes or {})
    variants = subjects.of(launch, "sm_90a")
    return {plan.name: plan for plan in measured_buffers(launch, variants, seed=5)}


def elements(plan: BufferPlan) -> int:
    return (plan.size_bytes - HEAD_BYTES) // plan.element.size_bytes


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (17, 129, 63), (4097, 1031, 32), (333, 64, 2049), (8192, 4096, 96)]
)
def test_a_matmul_touches_its_matrices(subjects: Subjects, m: int, n: int, k: int) -> None:
    buffers = plans(subjects, "matmul", M=m, N=n, K=k)
    for name, size in (("a_ptr", m * k), ("b_ptr", k * n), ("c_ptr", m * n)):
        # In pages of a kilobyte.
        assert size <= elements(buffers[name]) < size + 512, name
        assert buffers[name].room_bytes >= buffers[name].size_bytes


def test_an_index_reaches_the_end_of_a_table(subjects: Subjects) -> None:
    rows = 10007
    buffers = plans(subjects, "gather", n=100_000, rows=rows, width=61)
    assert elements(buffers["table_ptr"]) == rows * 61
    assert elements(buffers["out_ptr"]) >= 100_000 * 61
    indices = buffers["index_ptr"].contents.elements(0, 100_000)
    assert 0 <= indices.min() < 50
    assert rows - 50 < indices.max() < rows


def test_buffers_hold_what_the_most_extreme_config_touches(subjects: Subjects) -> None:
    buffers = plans(subjects, "split", n=1031)
    assert elements(buffers["x_ptr"]) >= 16384 * 1031
    assert 16384 * 16 <= elements(buffers["part_ptr"]) < 16384 * 16 + 512


def test_buffers_behind_addresses_are_planned_too(subjects: Subjects) -> None:
    buffers = plans(subjects, "through", n=5000)
    assert buffers["out_ptrs"].pointees == ("out_ptrs[0]", "out_ptrs[1]", "out_ptrs[2]")
    assert 5000 <= elements(buffers["out_ptrs[0]"]) < 5000 + 512
    assert 5000 <= elements(buffers["out_ptrs[2]"]) < 5000 + 512


def test_extreme_configs_have_each_end_of_each_constant() -> None:
    configs = [
        {"SPLITS": splits, "MODE": mode, "num_warps": warps}
        for splits in (1, 4, 16)
        for mode in ("sum", "max")
        for warps in (4, 8)
    ]
    chosen = [configs[index] for index in extreme_configs(dict(enumerate(configs)))]
    assert {config["SPLITS"] for config in chosen} == {1, 16}
    assert {config["MODE"] for config in chosen} == {"sum", "max"}
    assert len(chosen) <= 4
    assert extreme_configs({}) == []
    assert extreme_configs({3: {}}) == [3]


def test_a_size_that_the_shapes_give_is_taken(subjects: Subjects) -> None:
    buffers = plans(subjects, "matmul", {"a_ptr": 12345}, M=17, N=129, K=63)
    assert elements(buffers["a_ptr"]) == 12345


def test_nothing_is_interpreted_where_all_sizes_are_given(
    subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "run_launch", None)
    sizes = {"a_ptr": 17 * 63, "b_ptr": 63 * 129, "c_ptr": 17 * 129}
    buffers = plans(subjects, "matmul", sizes, M=17, N=129, K=63)
    assert {name: elements(plan) for name, plan in buffers.items()} == sizes


def test_a_launch_of_nothing_has_buffers(subjects: Subjects) -> None:
    buffers = plans(subjects, "matmul", M=0, N=17, K=63)
    assert list(buffers) == ["a_ptr", "b_ptr", "c_ptr"]


def test_equal_seeds_give_equal_contents(subjects: Subjects) -> None:
    first, again = (plans(subjects, "matmul", M=17, N=64, K=64)["a_ptr"] for _ in range(2))
    values = first.contents.elements(0, 4096)
    assert np.array_equal(values, again.contents.elements(0, 4096))
    assert len(np.unique(values)) > 100


def test_a_kernel_that_leaves_its_buffer_is_said(subjects: Subjects) -> None:
    with pytest.raises(UnsizedError, match="cannot tell how large its buffers are"):
        plans(subjects, "matmul", {"a_ptr": 100}, M=17, N=129, K=63)


@pytest.mark.parametrize("grid", [(1,), (7,), (1000,), (3, 50), (2, 3, 40), (1, 1, 1)])
def test_corners_are_programs_of_the_grid(grid: tuple[int, ...]) -> None:
    numbers = corner_programs(grid)
    assert {numbers[0], numbers[min(1, len(numbers) - 1)]} == {0, math.prod(grid) - 1}
    assert all(0 <= number < math.prod(grid) for number in numbers)
    if len(grid) == 2:
        assert {grid[0] - 1, grid[0] * (grid[1] - 1)} <= set(numbers)


def test_without_tile_ir_the_launch_says_how_large() -> None:
    kernel = scale_kernel(1)
    launch = Launch("scale", {}, {}, {"n": 7}, sizes={"out_ptr": 7, "x_ptr": 9})
    assert [elements(plan) for plan in described_buffers(launch, kernel, 1)] == [7, 9]
    with pytest.raises(UnsizedError, match="how large the buffer of x_ptr is"):
        described_buffers(replace(launch, sizes={"out_ptr": 7}), kernel, 1)
