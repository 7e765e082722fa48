"""Unused rows of B: boxes without them, and buffers ending before them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from aotc.compiler import PtxKernel, compile_ptx
from aotc.config import Config
from aotc.frontend import translate
from aotc.ir.core import Kernel
from aotc.ir.dialects import tma, wgmma
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.types import SharedType, TensorMapType
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import TILE_TO_GPU
from aotc.schedule.pipelining.trim_operand_loads import trim_operand_loads
from aotc.target import TARGETS
from tests.support.column_parts import PARTS_OF_COLUMNS
from tests.support.descriptors import launch, like, tensor
from tests.support.pass_case import applied
from tests.support.requests import request_of

SOURCE = """

@triton.jit
def k(a, b, c, n, BN: tl.constexpr, BK: tl.constexpr, COLUMNS: tl.constexpr, E: tl.constexpr):
    acc = tl.zeros((128, BN), tl.float32)
    other = tl.zeros((128, BN), tl.float32)
    total = tl.zeros((BK,), tl.float32)
    for k in range(0, n, BK):
        left, right = a.load([0, k]), LOAD
        acc = tl.dot(left, right, acc)
        MORE
    parts = parts_of_columns(acc, E)
    for part in tl.static_range(COLUMNS // E):
        c.store([0, part * E], parts[part].to(c.dtype))
    AFTER
"""
TURNED = "b.load([0, k]).T"


def narrowed(
    folder: Path,
    columns: int = 112,
    bn: int = 128,
    bk: int = 64,
    load: str = TURNED,
    more: str = "pass",
    after: str = "pass",
    config: Config | None = None,
    e: int = 16,
) -> Kernel:
    """Return the kernel as the pass leaves it."""
    path = folder / "kernel.py"
    text = SOURCE.replace("LOAD", load).replace("MORE", more).replace("AFTER", after)
    path.write_text(PARTS_OF_COLUMNS + text)
    b = f"{bn},{bk}" if ".T" in load else f"{bk},{bn}"
    signature = {
        "a": f"tensordesc<bf16[128,{bk}]>", "b": f"tensordesc<bf16[{b}]>",
        "c": f"tensordesc<bf16[128,{e}]>", "n": "i32",
    }  # fmt: skip
    constants = {"BN": bn, "BK": bk, "COLUMNS": columns, "E": e}
    kernel = translate(str(path), "k", signature, constants, target="sm_90a").kernel
    config = config or Config(8)
    kernel.num_warps, kernel.num_ctas = config.num_warps, config.num_ctas
    schedule = Schedule(TARGETS["sm_90a"], config)
    for run_pass in TILE_TO_GPU.passes:
        run_pass(kernel, schedule)
        if run_pass.__name__ == "trim_operand_loads":
            break
    printed = print_kernel(kernel)
    assert print_kernel(parse_kernel(printed)) == printed
    return kernel


def of_b(kernel: Kernel) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """Return the box of B's map, and of each load of it the rows and the buffer's unused bytes."""
    b = kernel.body.args[1]
    assert isinstance(b.type, TensorMapType)
    trims: list[tuple[int, int]] = []
    for op in kernel.walk():
        if isinstance(op, tma.SyncTmaLoad) and op.tensor is b:
            assert isinstance(op.buffer.type, SharedType)
            trims.append((op.num_rows, op.buffer.type.unused_bytes))
    return b.type.box, trims


def test_rows_that_are_left_out_are_not_loaded_and_have_no_room(tmp_path: Path) -> None:
    kernel = narrowed(tmp_path)
    assert of_b(kernel) == ((112, 64), [(112, 16 * 128)])
    (product,) = (op for op in kernel.walk() if isinstance(op, wgmma.Wgmma))
    assert product.num_columns == 112
    assert isinstance(product.b.type, SharedType)
    assert product.b.type.unused_bytes == 16 * 128


def test_a_buffer_of_two_boxes_ends_where_it_did(tmp_path: Path) -> None:
    """The rows outside the first box lie between the two."""
    assert of_b(narrowed(tmp_path, bk=128)) == ((112, 64), [(112, 0)])


@pytest.mark.parametrize("columns", [128, 64, 16])
def test_powers_of_two_are_narrowed_too(tmp_path: Path, columns: int) -> None:
    box, ((rows, unused_bytes),) = of_b(narrowed(tmp_path, columns))
    assert box == (columns, 64)
    assert (rows, unused_bytes) == ((columns, (128 - columns) * 128) if columns < 128 else (0, 0))


def test_rows_of_few_bytes_are_whole_periods_of_the_swizzle(tmp_path: Path) -> None:
    """16 rows of 32 bytes are half a KB; a box of 48 rows would not be whole ones."""
    assert of_b(narrowed(tmp_path, 48, 64, 16)) == ((64, 16), [(0, 0)])
    assert of_b(narrowed(tmp_path, 96, 128, 16)) == ((96, 16), [(96, 32 * 32)])


@pytest.mark.parametrize(
    ("columns", "parts"), [(288, (144, 144)), (272, (144, 128)), (264, (144, 120))]
)
def test_more_rows_than_a_box_has_are_several_boxes(
    tmp_path: Path, columns: int, parts: tuple[int, int]
) -> None:
    """More columns than an instruction's need two, each starting at a multiple of 16 columns."""
    kernel = narrowed(tmp_path, columns, 512, e=8)
    if columns // 2 % 8:  # boxes are whole periods of the swizzle
        assert of_b(kernel) == ((256, 64), [(0, 0)])
    else:
        assert of_b(kernel) == ((columns // 2, 64), [(columns, (512 - columns) * 128)])
    (product,) = (op for op in kernel.walk() if isinstance(op, wgmma.Wgmma))
    assert product.num_columns == columns
    types = {"a": "tensordesc<bf16[128,64]>", "b": "tensordesc<bf16[512,64]>"}
    types |= {"c": "tensordesc<bf16[128,8]>", "n": "i32"}
    constants = {"BN": 512, "BK": 64, "COLUMNS": columns, "E": 8}
    request_args = tuple(types.items()), tuple(constants.items()), "sm_90a"
    path = str(tmp_path / "kernel.py")
    compiled = compile_ptx(request_of(path, "k", *request_args, num_warps=8, num_stages=2))
    widths = re.findall(r"wgmma\.mma_async\S*\.m64n(\d+)k16", compiled.ptx)
    assert {*map(int, widths)} == {*parts}
    a, b = np.sign(tensor((128, 200), "bf16")), np.sign(tensor((columns, 200), "bf16", seed=1))
    c = like(tensor((128, columns), "bf16"))
    launch(compiled, (1,), {"a": a, "b": b, "c": c, "n": 200})
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_array_equal(c, expected.astype(c.dtype))


def test_sums_that_registers_do_not_hold_are_not_by_wgmma(tmp_path: Path) -> None:
    kernel = narrowed(tmp_path, 336, 512)
    assert not [op for op in kernel.walk() if isinstance(op, wgmma.Wgmma)]


KEPT = {
    "columns of memory": {"load": "b.load([k, 0])"},
    "read by threads": {
        "more": "total += tl.sum(right.to(tl.float32), 1)",
        "after": "tl.debug_barrier()\n    c.store([0, 0], (parts[0] + tl.sum(total)).to(c.dtype))",
    },
    "another block is read whole": {
        "more": "other = tl.dot(left, b.load([BN, k]).T, other)",
        "after": (
            "rest = parts_of_columns(other, E)\n"
            "    for part in tl.static_range(BN // E):\n"
            "        c.store([0, BN + part * E], rest[part].to(c.dtype))"
        ),
    },
}


@pytest.mark.parametrize("case", KEPT)
def test_what_is_read_otherwise_is_loaded_whole(tmp_path: Path, case: str) -> None:
    box, loads = of_b(narrowed(tmp_path, **KEPT[case]))
    assert 112 not in box
    assert all(trim == (0, 0) for trim in loads)


def test_two_products_are_loaded_for_as_the_wider_one_needs(tmp_path: Path) -> None:
    kernel = narrowed(
        tmp_path,
        more="other = tl.dot(left, b.load([BN, k]).T, other)",
        after="c.store([0, BN], parts_of_columns(other, E)[0].to(c.dtype))",
    )
    assert of_b(kernel) == ((112, 64), [(112, 16 * 128)] * 2)
    products = [op.num_columns for op in kernel.walk() if isinstance(op, wgmma.Wgmma)]
    assert products == [112, 16]


def test_ctas_of_a_cluster_load_their_shares_of_fewer_rows(tmp_path: Path) -> None:
    kernel = narrowed(tmp_path, config=Config(4, num_ctas=2))
    assert of_b(kernel) == ((56, 64), [(112, 16 * 128)])


def test_what_is_left_out_has_no_slots_and_is_not_announced(tmp_path: Path) -> None:
    narrowed(tmp_path)
    types = {"a": "tensordesc<bf16[128,64]>", "b": "tensordesc<bf16[128,64]>"}
    types |= {"c": "tensordesc<bf16[128,16]>", "n": "i32"}

    def compiled(columns: int) -> PtxKernel:
        constants = {"BN": 128, "BK": 64, "COLUMNS": columns, "E": 16}
        path = str(tmp_path / "kernel.py")
        request_args = tuple(types.items()), tuple(constants.items()), "sm_90a"
        return compile_ptx(request_of(path, "k", *request_args, num_warps=8, num_stages=5))

    narrow, wide = compiled(112), compiled(128)
    saved_bytes = wide.shared_bytes - narrow.shared_bytes
    assert saved_bytes == 5 * 16 * 128
    assert set(re.findall(r"wgmma\.mma_async\S*\.(m64n\d+)k16", narrow.ptx)) == {"m64n112"}
    announced = re.findall(r"expect_tx\..* (\d+);", narrow.ptx)
    assert announced == [str(128 * 128), str(112 * 128)]


TEXT = """\
// CHECK: kernel @k(%x: map<64x64xfp16, 128>, %y: map<48x64xfp16, 128>,
// CHECK: %a = gpu.shared_alloc
// CHECK-NOT: unused_bytes
// CHECK: gpu.sync_tma_load(%x, %a, %zero, %zero)
// CHECK-NEXT: %b = gpu.shared_alloc {{{.*}}unused_bytes = 2048}
// CHECK-NEXT: gpu.sync_tma_load(%y, %b, %zero, %zero) {num_rows = 48}
#0 = #ll<offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[0,32],[1,8],[2,16],[4,32],[8,0],[16,0],[32,0]] : [64,64]>
#1 = #ll<offset=[[1,0],[2,0],[4,0],[8,0],[16,0],[32,0],[8,1],[16,2],[32,4],[0,8],[0,16],[0,32]] : [64,64]>
#2 = #ll<register=[[0,1],[8,0],[0,8],[0,16],[0,32]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0]] : [64,64]>
kernel @k(%x: map<64x64xfp16, 128>, %y: map<64x64xfp16, 128>, %to: tile<64x64x*fp32, #2>) {num_warps = 4} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %acc = arith.constant {value = 0.0, type = tile<64x64xfp32, #2>} : tile<64x64xfp32, #2>
  %a = gpu.shared_alloc {element = fp16, shape = [64, 64], layout = #0, alignment_bytes = 1024} : shared<64x64xfp16, #0>
  gpu.sync_tma_load(%x, %a, %zero, %zero)
  %b = gpu.shared_alloc {element = fp16, shape = [64, 64], layout = #0, alignment_bytes = 1024} : shared<64x64xfp16, #0>
  gpu.sync_tma_load(%y, %b, %zero, %zero)
  %t = gpu.shared_trans(%b) {order = [1, 0]} : shared<64x64xfp16, #1>
  %dot = gpu.wgmma(%a, %t, %acc, _) {num_columns = 48} : tile<64x64xfp32, #2>
  %sum = gpu.wgmma_wait(%dot) {num_columns = [48]} : tile<64x64xfp32, #2>
  gpu.store(%to, %sum)
  scf.return
}
"""


def test_the_box_and_the_buffer_end_with_the_rows_that_the_dot_reads() -> None:
    applied(TEXT, trim_operand_loads)
