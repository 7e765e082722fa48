"""Device-made tensor maps: lowered, assembled, and run in the emulator."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aotc.backend import assemble, emit_ptx, lower_kernel
from aotc.ir.dialects import arith, gpu, mbarrier, tma
from aotc.ir.layout import LinearLayout
from aotc.ir.types import BF16, FP32, I32, I64, U64, PointerType, ScalarType, TensorMapType
from aotc.target import TARGETS, Feature, Target
from aotc.verify.emulator.errors import Fault
from aotc.verify.emulator.run import emulate
from tests.backend.programs import Program, row_layout

TMA_TARGETS = [target for target in TARGETS.values() if Feature.TMA in target.features]
ROWS, COLUMNS = 8, 16
SHARED_BYTES = 1024


def _flat(num_elems: int) -> LinearLayout:
    columns = [(1 << bit,) for bit in range(num_elems.bit_length() - 1)]
    return LinearLayout({"offset": columns}, (num_elems,))


def _ptx(target: Target, num_warps: int, element: ScalarType, *, fill_nan: bool = False) -> str:
    """Return a kernel that loads a box through its own map, and stores it."""
    program = Program(num_warps)
    add = program.add
    pointer, slot = program.param(PointerType(element), 16), program.param(PointerType(U64), 128)
    sizes = [program.param(I32), program.param(I32), program.param(I64)]
    coords = [program.param(I32), program.param(I32)]
    shape = (ROWS, COLUMNS)
    rows = [(0, 1 << bit) for bit in range(4)] + [(1 << bit, 0) for bit in range(3)]
    buffer = add(
        gpu.SharedAlloc(element, shape, LinearLayout({"offset": rows}, shape), 128, offset_bytes=0)
    )
    template = add(gpu.SharedAlloc(U64, (16,), _flat(16), 128, offset_bytes=512)).out
    barrier = add(gpu.SharedAlloc(U64, (1,), _flat(1), 8, offset_bytes=640)).out
    add(mbarrier.MbarrierInit(barrier))
    kind = TensorMapType(element, shape, 0, fill_nan)
    tensor_map = add(tma.MakeTensorMap(pointer, slot, template, sizes, type=kind)).out
    add(gpu.Barrier())
    add(tma.TmaLoad(tensor_map, buffer.out, barrier, coords))
    add(mbarrier.MbarrierWait(barrier, add(arith.Constant(0, I32)).out))
    layout = row_layout(ROWS * COLUMNS, num_warps)
    columns = {
        name: [divmod(column, COLUMNS) for column in layout.columns(name)]
        for name in ("register", "lane", "warp")
    }
    program.store(add(gpu.SharedLoad(buffer.out, LinearLayout(columns, shape))).out)
    kernel = program.kernel()
    kernel.shared_bytes = SHARED_BYTES
    ptx = emit_ptx(lower_kernel(kernel, target).llvm_ir, target)
    assemble(ptx, target)
    return ptx


@pytest.mark.emulated
@pytest.mark.parametrize("target", TMA_TARGETS, ids=str)
@pytest.mark.parametrize("num_warps", [1, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_box_of_a_made_map(target: Target, num_warps: int, seed: int) -> None:
    """Only the launch knows extents and stride; elements outside read as zero."""
    tensor = np.random.default_rng(seed).standard_normal((7, 20)).astype(np.float32)
    out = np.full((ROWS, COLUMNS), np.nan, np.float32)
    slot = np.zeros(16, np.uint64)
    args = [tensor, slot, 6, 18, 20, 1, 4, out]
    emulate(_ptx(target, num_warps, FP32), 1, args, shared_bytes=SHARED_BYTES, seed=seed)
    expected = np.zeros_like(out)
    expected[:5, :14] = tensor[1:6, 4:18]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.emulated
def test_each_field_is_what_the_type_says() -> None:
    """Elements of 16 bits, and NaN outside."""
    tensor = np.arange(8 * 24, dtype=np.uint16).reshape(8, 24)
    out = np.zeros((ROWS, COLUMNS), np.uint16)
    ptx = _ptx(TARGETS["sm_90a"], 4, BF16, fill_nan=True)
    emulate(ptx, 1, [tensor, np.zeros(16, np.uint64), 8, 24, 24, 0, 16, out], shared_bytes=1024)
    np.testing.assert_array_equal(out[:, :8], tensor[:, 16:])
    assert np.isnan(out.view(ml_dtypes.bfloat16)[:, 8:].astype(np.float32)).all()


@pytest.mark.emulated
@pytest.mark.parametrize(
    ("missing", "match"),
    [
        ("tensormap.cp_fenceproxy", "no tensor map"),
        ("fence.proxy.tensormap", "generic.acquire between"),
        ("tensormap.replace.tile.global_address", "no buffer"),
        ("tensormap.replace.tile.rank", "no dimension 1"),
    ],
)
def test_what_must_not_be_left_out(missing: str, match: str) -> None:
    """Each of these is found by the emulator if the backend forgets it."""
    lines = _ptx(TARGETS["sm_90a"], 4, FP32).splitlines()
    lines_left = [line for line in lines if not line.lstrip().startswith(missing)]
    assert len(lines_left) == len(lines) - 1
    tensor, out = np.ones((8, 16), np.float32), np.zeros((8, 16), np.float32)
    args = [tensor, np.zeros(16, np.uint64), 8, 16, 16, 0, 0, out]
    with pytest.raises(Fault, match=match):
        emulate("\n".join(lines_left), 1, args, shared_bytes=SHARED_BYTES)


@pytest.mark.emulated
def test_a_stride_of_no_16_bytes_is_found() -> None:
    tensor, out = np.ones((8, 18), np.float32), np.zeros((8, 16), np.float32)
    args = [tensor, np.zeros(16, np.uint64), 8, 16, 18, 0, 0, out]
    with pytest.raises(Fault, match="not a multiple of 16"):
        emulate(_ptx(TARGETS["sm_90a"], 1, FP32), 1, args, shared_bytes=SHARED_BYTES)
