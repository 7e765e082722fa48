"""Kernels with tensor descriptors, compiled and run in the emulator, against NumPy."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from aotc.backend import assemble
from aotc.ir.diagnostics import CompileError
from aotc.target import TARGETS
from tests.support.descriptors import DTYPES, compiled, launch, like, tensor

COPY = """def k(x, y, STEP: tl.constexpr):
    start = tl.program_id(0) * STEP
    y.store([start, 0], x.load([start, 0]))
"""
TARGET_NAMES = ("sm_80", "sm_90a", "sm_120a")


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def _narrow(dtype: str) -> int:
    """Return a width less than 32 with rows of whole 16-byte pieces, the unit of hardware stores."""
    return 32 - 16 // tensor((1, 1), dtype).itemsize


# ---- blocks of every dtype and rank -----------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_every_dtype_is_copied_to_the_bit(tmp_path: Path, dtype: str, target: str) -> None:
    kind = f"tensordesc<{dtype}[8,32]>"
    kernel = compiled(tmp_path, COPY, {"x": kind, "y": kind}, {"STEP": 8}, target)
    x = tensor((13, _narrow(dtype)), dtype)
    y = like(x)
    launch(kernel, (2,), {"x": x, "y": y})
    assert (_bits(x) == _bits(y)).all()


BLOCKS = (
    (512,),
    (16,),
    (1, 256),
    (4, 128),
    (64, 8),
    (512, 8),
    (2, 4, 64),
    (4, 1, 2, 32),
    (2, 2, 2, 2, 16),
)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("num_warps", [1, 8])
def test_every_rank(tmp_path: Path, block: tuple[int, ...], num_warps: int) -> None:
    """Boxes of more than 256 elements, of rows wider than a swizzle, and of one row."""
    rank = len(block)
    coords = ", ".join(["tl.program_id(0) * START"] + ["0"] * (rank - 1))
    source = f"def k(x, y, START: tl.constexpr):\n    y.store([{coords}], x.load([{coords}]))\n"
    kind = f"tensordesc<fp16[{','.join(map(str, block))}]>"
    # The last coordinate is a multiple of 16 bytes.
    constants = {"START": block[0] - 8 if rank == 1 else block[0] - 1 or 1}
    kernel = compiled(tmp_path, source, {"x": kind, "y": kind}, constants, num_warps=num_warps)
    shape = [*(max(1, extent - 1) for extent in block[:-1]), max(8, block[-1] - 8)]
    x = tensor(shape, "fp16", padding=1)
    y = like(x)
    launch(kernel, (2,), {"x": x, "y": y})
    assert (_bits(x) == _bits(y)).all()


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("shape", [(8, 1), (24, 63), (32, 64), (40, 65), (72, 131)])
def test_a_transpose_keeps_to_the_tensor(
    tmp_path: Path, target: str, shape: tuple[int, int]
) -> None:
    source = """def k(x, y):
    i, j = tl.program_id(0) * 32, tl.program_id(1) * 64
    y.store([j, i], x.load([i, j]).T)
"""
    signature = {"x": "tensordesc<bf16[32,64]>", "y": "tensordesc<bf16[64,32]>"}
    kernel = compiled(tmp_path, source, signature, target=target)
    x = tensor(shape, "bf16")
    y = like(x, shape[::-1])
    launch(kernel, (-(-shape[0] // 32), -(-shape[1] // 64)), {"x": x, "y": y}, seed=shape[0])
    assert (_bits(x.T) == _bits(y)).all()


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("fill", ["", ",nan"])
def test_what_lies_outside_reads_as_the_fill(tmp_path: Path, target: str, fill: str) -> None:
    source = "def k(x, y, row, col):\n    y.store([0, 0], x.load([row, col]))\n"
    signature = {
        "x": f"tensordesc<fp32[4,8]{fill}>",
        "y": "tensordesc<fp32[4,8]>",
        "row": "i32",
        "col": "i32",
    }
    kernel = compiled(tmp_path, source, signature, target=target, num_warps=1)
    x = tensor((5, 9), "fp32")
    rows, cols = (-9, -3, -1, 0, 2, 7, 2**30), (-12, -8, -4, 0, 4, 8, 2**30)
    for row, col in zip(rows, cols, strict=True):
        y = like(x, (4, 8))
        launch(kernel, (1,), {"x": x, "y": y, "row": row, "col": col})
        expected = np.full((4, 8), np.nan if fill else 0, np.float32)
        for i, j in itertools.product(range(4), range(8)):
            if 0 <= row + i < 5 and 0 <= col + j < 9:
                expected[i, j] = x[row + i, col + j]
        np.testing.assert_array_equal(y, expected)


# ---- control flow -----------------------------------------------------------------------------

NESTED = """def k(x, y, n):
    total = tl.zeros((256,), tl.int32)
    for j in range(n):
        if j % 3 == 1:
            total += x.load([j * 256])
        elif j % 3 == 2:
            i = 0
            while i < j:
                total += x.load([i * 256]) * x.load([(i + 1) * 256])
                i += 2
        y.store([j * 256], total)
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 7])
def test_waits_keep_count_through_loops_and_branches(tmp_path: Path, target: str, n: int) -> None:
    signature = {"x": "tensordesc<i32[256]>", "y": "tensordesc<i32[256]>", "n": "i32"}
    kernel = compiled(tmp_path, NESTED, signature, target=target)
    x, y = tensor((1500,), "i32"), tensor((n * 256 + 4,), "i32", seed=1)
    launch(kernel, (1,), {"x": x, "y": y, "n": n}, seed=n)
    padded = np.concatenate([x, np.zeros(2048, np.int32)])
    blocks = [padded[block * 256 : block * 256 + 256] for block in range(10)]
    total = np.zeros(256, np.int32)
    for j in range(n):
        if j % 3 == 1:
            total = total + blocks[j]
        elif j % 3 == 2:
            total = total + sum(blocks[i] * blocks[i + 1] for i in range(0, j, 2))
        assert (y[j * 256 : j * 256 + 256] == total).all()


def test_a_store_is_done_before_a_barrier(tmp_path: Path) -> None:
    """Threads read another thread's copy through pointers after a barrier."""
    source = """def k(x, y, y_ptr, out):
    y.store([0], x.load([0]))
    tl.debug_barrier()
    at = tl.arange(0, 256)
    tl.store(out + at, tl.load(y_ptr + 255 - at))
"""
    kind = "tensordesc<i32[256]>"
    kernel = compiled(tmp_path, source, {"x": kind, "y": kind, "y_ptr": "*i32", "out": "*i32"})
    x, y = tensor((256,), "i32"), tensor((256,), "i32", seed=1)
    out = np.zeros(256, np.int32)
    for seed in (1, 2, 3):
        launch(kernel, (1,), {"x": x, "y": y, "y_ptr": y, "out": out}, seed=seed)
        assert (out == x[::-1]).all()


def test_a_load_sees_what_was_stored_before_a_barrier(tmp_path: Path) -> None:
    source = """def k(x, x_ptr, y):
    at = tl.arange(0, 256)
    tl.store(x_ptr + at, at * 3)
    tl.debug_barrier()
    y.store([0], x.load([0]))
"""
    kind = "tensordesc<i32[256]>"
    kernel = compiled(tmp_path, source, {"x": kind, "x_ptr": "*i32", "y": kind})
    for seed in (1, 2, 3):
        x, y = tensor((256,), "i32"), tensor((256,), "i32", seed=1)
        launch(kernel, (1,), {"x": x, "x_ptr": x, "y": y}, seed=seed)
        assert (y == np.arange(256) * 3).all()


# ---- reductions -------------------------------------------------------------------------------

REDUCTIONS = {
    "add": (("i32", "u32", "u64", "fp16", "bf16", "fp32"), np.add),
    "min": (("i32", "u32", "i64", "u64", "fp16", "bf16"), np.minimum),
    "max": (("i32", "u32", "i64", "u64", "fp16", "bf16"), np.maximum),
    "and": (("i32", "u64"), np.bitwise_and),
    "or": (("u32", "u64"), np.bitwise_or),
    "xor": (("i32", "u64"), np.bitwise_xor),
}


@pytest.mark.parametrize(
    ("target", "kind", "dtype"),
    [
        (target, kind, dtype)
        for target in ("sm_80", "sm_90a")
        for kind, (dtypes, _) in REDUCTIONS.items()
        for dtype in dtypes
        if target != "sm_80" or kind != "add" or dtype not in ("fp16", "bf16")
    ],
)
def test_reductions(tmp_path: Path, kind: str, dtype: str, target: str) -> None:
    source = f"""def k(x, y):
    y.atomic_{kind}([0, 0], x.load([tl.program_id(0) * 4, 0]))
"""
    signature = dict.fromkeys("xy", f"tensordesc<{dtype}[4,32]>")
    kernel = compiled(tmp_path, source, signature, target=target)
    width = _narrow(dtype)
    x, y = tensor((12, width), dtype), tensor((4, width), dtype, seed=1)
    expected = y.copy()
    for part in range(3):
        expected = REDUCTIONS[kind][1](expected, x[4 * part : 4 * part + 4])
    launch(kernel, (3,), {"x": x, "y": y}, seed=2)
    assert (_bits(y) == _bits(expected.astype(y.dtype))).all()


CHOSEN = """def k(x, y, out, n):
    which = x if n > 1 else y
    total = which.load([0, 0]) * which.shape[0]
    other = y
    for i in range(n):
        total += which.load([i, 0]) + other.load([0, i * 8])
        if i != 1:
            which, other = other, which
    while n > 2:
        n -= 1
        which = y
    out.store([0, 0], total + which.load([n, 0]))
"""


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_a_descriptor_is_chosen_at_run_time(tmp_path: Path, target: str, n: int) -> None:
    """By branches and loops, among tensors of other shapes and strides."""
    signature = {**dict.fromkeys(("x", "y", "out"), "tensordesc<fp32[8,8]>"), "n": "i32"}
    kernel = compiled(tmp_path, CHOSEN, signature, target=target)
    x, y = tensor((9, 20), "fp32"), tensor((5, 44), "fp32", seed=1, padding=1)
    out = like(tensor((8, 8), "fp32"))

    def load(of: np.ndarray, row: int, column: int) -> np.ndarray:
        tile = np.zeros((8, 8), np.float32)
        part = of[row : row + 8, column : column + 8]
        tile[: part.shape[0], : part.shape[1]] = part
        return tile

    source = x if n > 1 else y
    expected, other = load(source, 0, 0) * source.shape[0], y
    for i in range(n):
        expected = expected + load(source, i, 0) + load(other, 0, i * 8)
        if i != 1:
            source, other = other, source
    source, last = (y, 2) if n > 2 else (source, n)
    expected = expected + load(source, last, 0)
    launch(kernel, (1,), {"x": x, "y": y, "out": out, "n": n})
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("n", [0, 1])
def test_what_is_stored_is_loaded_through_a_chosen_descriptor(
    tmp_path: Path, target: str, n: int
) -> None:
    source = """def k(x, y, out, n):
    which = x if n > 0 else y
    x.store([0, 0], y.load([8, 0]))
    out.store([0, 0], which.load([0, 0]))
    which.store([0, 0], y.load([16, 0]))
    out.store([8, 0], x.load([0, 0]))
"""
    signature = {**dict.fromkeys(("x", "y", "out"), "tensordesc<fp32[8,16]>"), "n": "i32"}
    kernel = compiled(tmp_path, source, signature, target=target)
    x, y = tensor((24, 16), "fp32"), tensor((24, 16), "fp32", seed=1)
    out, before = like(tensor((16, 16), "fp32")), y.copy()
    launch(kernel, (1,), {"x": x, "y": y, "out": out, "n": n})
    np.testing.assert_array_equal(out[:8], before[8:16] if n else before[:8])
    np.testing.assert_array_equal(out[8:], before[16:] if n else before[8:16])
    np.testing.assert_array_equal((x if n else y)[:8], before[16:])


def test_maps_in_memory_are_chosen_by_their_addresses(tmp_path: Path) -> None:
    source = """def k(x, maps, n):
    which = x
    if n > 0:
        which = tl.reinterpret_tensor_descriptor(maps, [64], tl.float16)
    x.store([0], which.load([0]))
"""
    signature = {"x": "tensordesc<fp16[64]>", "maps": "*i8:16", "n": "i32"}
    with pytest.raises(CompileError, match="which tensor map in memory this is") as caught:
        compiled(tmp_path, source, signature)
    assert "addresses of the maps" in caught.value.remedy


# ---- products ---------------------------------------------------------------------------------

PRODUCT = """def k(a, b, c, K, BLOCK: tl.constexpr, TRANSPOSED: tl.constexpr):
    i, j = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        right = b.load([j, k]).T if TRANSPOSED else b.load([k, j])
        total = tl.dot(a.load([i, k]), right, total)
    c.store([i, j], total)
"""


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("num_warps", [1, 4])
def test_a_product(tmp_path: Path, target: str, transposed: bool, num_warps: int) -> None:
    signature = {
        **dict.fromkeys("ab", "tensordesc<bf16[64,64]>"),
        "c": "tensordesc<fp32[64,64]>",
        "K": "i32",
    }
    constants = {"BLOCK": 64, "TRANSPOSED": transposed}
    kernel = compiled(tmp_path, PRODUCT, signature, constants, target, num_warps)
    a, b = tensor((67, 100), "bf16"), tensor((68, 100) if transposed else (100, 68), "bf16", seed=1)
    c = like(tensor((67, 68), "fp32"))
    launch(kernel, (2, 2), {"a": a, "b": b, "c": c, "K": 100}, seed=num_warps)
    right = b.T if transposed else b
    np.testing.assert_array_equal(c, a.astype(np.float64) @ right.astype(np.float64))


MIXED = """def k(a, b_ptr, bias, c, K, stride, BLOCK: tl.constexpr):
    i, j = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        right = tl.load(
            b_ptr + (k + at)[:, None] * stride + (j + at)[None, :], (k + at)[:, None] < K, 0.0
        )
        total = tl.dot(a.load([i, k]), right, total)
    total += bias.load([j])[None, :] + bias.load([j + 4])[:, None]
    c.store([i, j], total)
"""


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("num_warps", [2, 4])
def test_a_product_whose_operands_come_in_two_ways(
    tmp_path: Path, target: str, num_warps: int
) -> None:
    """One operand by tensor copies, the other pipelined through pointers; a tile read in two ways."""
    signature = {
        "a": "tensordesc<bf16[64,64]>",
        "b_ptr": "*bf16:16",
        "bias": "tensordesc<fp32[64]>",
        "c": "tensordesc<fp32[64,64]>",
        "K": "i32:16",
        "stride": "i32:16",
    }
    kernel = compiled(tmp_path, MIXED, signature, {"BLOCK": 64}, target, num_warps)
    a, b, bias = tensor((67, 208), "bf16"), tensor((208, 64), "bf16", seed=1), tensor((68,), "fp32")
    c = like(tensor((67, 64), "fp32"))
    values = {"a": a, "b_ptr": b, "bias": bias, "c": c, "K": 208, "stride": 64}
    for seed in (0, 3):
        launch(kernel, (2, 1), values, seed=seed)
        rows = np.resize(bias[4:], 128)[:67].astype(np.float64)
        rows[64:] = bias[4:7]
        expected = a.astype(np.float64) @ b.astype(np.float64) + bias[:64] + rows[:, None]
        np.testing.assert_array_equal(c, expected)


# ---- assembler warnings and bank conflicts ----------------------------------------------------


@pytest.mark.parametrize("target", [name for name in TARGETS if name >= "sm_90" or "1" in name])
def test_it_assembles_without_a_word(tmp_path: Path, target: str) -> None:
    signature = {
        **dict.fromkeys("ab", "tensordesc<bf16[64,64]>"),
        "c": "tensordesc<fp32[64,64]>",
        "K": "i32",
    }
    constants = {"BLOCK": 64, "TRANSPOSED": True}
    kernel = compiled(tmp_path, PRODUCT, signature, constants, target)
    assembly = assemble(kernel.ptx, TARGETS[target])
    assert assembly.warnings == ()
    assert assembly.spill_bytes == 0


@pytest.mark.parametrize("block", [(64, 64), (64, 32), (64, 16), (32, 256), (1024,)], ids=str)
def test_copies_of_rows_have_no_bank_conflicts(tmp_path: Path, block: tuple[int, ...]) -> None:
    coords = ", ".join("0" for _ in block)
    source = f"def k(x, y):\n    y.store([{coords}], x.load([{coords}]))\n"
    kind = f"tensordesc<bf16[{','.join(map(str, block))}]>"
    kernel = compiled(tmp_path, source, {"x": kind, "y": kind})
    x = tensor(block, "bf16")
    emulation = launch(kernel, (1,), {"x": x, "y": like(x)}, count_conflicts=True)
    assert emulation.conflicts
    assert all(count.excess == 0 for count in emulation.conflicts.values())
