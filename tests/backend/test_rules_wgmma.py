"""Warpgroup products as PTX: emulated in several warp orders, and assembled.

The emulator refuses accumulators read or moved too early, operands written too early or never
fenced, and invalid descriptors.
"""

from __future__ import annotations

import re

import pytest

from aotc.backend import nvvm_wgmma
from aotc.backend.emitter import Emitter
from aotc.backend.lower import lower_kernel
from aotc.backend.nvvm_wgmma import WgmmaKind, WgmmaStep
from aotc.backend.ptxas import assemble
from aotc.ir.diagnostics import IRError
from aotc.ir.text import parse_kernel
from aotc.target import TARGETS
from tests.support.products import Matmul, emulated, ptx_of

pytestmark = pytest.mark.emulated

TYPES = [
    Matmul("fp16", "fp32"),
    Matmul("fp16", "fp16"),
    Matmul("bf16", "fp32", shape=(61, 43, 70)),
    Matmul("fp32", "fp32", block=(64, 64, 32), shape=(64, 64, 96)),
    Matmul("i8", "i32"),
    Matmul("u8", "i32", block=(64, 64, 32)),
    Matmul("fp8e4nv", "fp32"),
    Matmul("fp8e5", "fp32", "fp8e4nv", block=(64, 64, 128)),
]
MAJORS = [(False, False), (False, True), (True, False), (True, True)]


def _with(matmul: Matmul, **changes: object) -> Matmul:
    return Matmul(**{**matmul.__dict__, **changes})  # type: ignore[arg-type]


def test_an_accumulator_that_holds_nothing_is_no_input() -> None:
    """Each operand costs LLVM time; a dot's accumulator enters and leaves in the same register."""
    emit = Emitter()
    steps = [WgmmaStep(0, 8, 0, 0, first=True), WgmmaStep(0, 8, 2, 2, first=False)]
    kind = WgmmaKind("k16.f32.bf16.bf16", "float", ", 1, 1, 0, 0")
    for word, operands in (("poison", "=&f,=&f,l,l,b"), ("%x", "=f,=f,0,1,l,l,b")):
        (out,) = nvvm_wgmma.wgmma(emit, kind, steps, [[word] * 2], "%a", "%b", "false")
        call = emit.lines[-3]
        assert f'"{operands}"' in call
        assert "{$0, $1}, a1, b1, 1, 1, 1, 0, 0;" in call
        operand = operands.count(",") - 2
        assert f"{{$0, $1}}, ${operand}, ${operand + 1}, ${operand + 2}, 1, 1, 0, 0;" in call
        assert len(out) == 2


@pytest.mark.emulated
@pytest.mark.parametrize(("a_is_t", "b_is_t"), MAJORS)
@pytest.mark.parametrize("matmul", TYPES, ids=lambda product: f"{product.dtype}-{product.acc}")
def test_types_and_majors(matmul: Matmul, *, a_is_t: bool, b_is_t: bool) -> None:
    case = _with(matmul, a_is_t=a_is_t, b_is_t=b_is_t)
    assert "wgmma.mma_async" in ptx_of(case)
    emulated(case, seed=2 * a_is_t + b_is_t)


@pytest.mark.emulated
@pytest.mark.parametrize("n", [8, 16, 32, 128, 256])
@pytest.mark.parametrize("b_is_t", [False, True])
def test_columns(n: int, *, b_is_t: bool) -> None:
    case = Matmul(block=(64, n, 32), shape=(64, n + (n == 8), 64), b_is_t=b_is_t)
    assert set(re.findall(r"m64n\d+k16", ptx_of(case))) == {f"m64n{n}k16"}
    emulated(case, seed=1)


@pytest.mark.emulated
@pytest.mark.parametrize(
    ("num_warps", "m", "n"),
    [(4, 128, 32), (4, 256, 16), (8, 64, 64), (8, 128, 16), (8, 256, 32), (16, 128, 32)],
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_warps(num_warps: int, m: int, n: int, seed: int) -> None:
    emulated(Matmul(block=(m, n, 32), shape=(m, n, 96), num_warps=num_warps), seed)


@pytest.mark.emulated
@pytest.mark.parametrize("k", [0, 1, 16, 63, 64, 65, 320])
@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_lengths_of_the_loop(k: int, num_stages: int) -> None:
    emulated(Matmul(shape=(64, 64, k), num_stages=num_stages, block=(64, 64, 16)), seed=k)


@pytest.mark.emulated
@pytest.mark.parametrize("way", ["scaled", "two_sums", "chained"])
@pytest.mark.parametrize(("num_warps", "m"), [(4, 64), (8, 128), (8, 64)])
def test_operands_from_registers_and_several_products(way: str, num_warps: int, m: int) -> None:
    case = Matmul(block=(m, 32, 32), shape=(m - 1, 31, 80), num_warps=num_warps, way=way)
    for seed in (0, 3):
        emulated(case, seed)


@pytest.mark.emulated
@pytest.mark.parametrize("k", [0, 32, 96])
@pytest.mark.parametrize("promised", [False, True])
def test_blocks_one_after_the_other(k: int, *, promised: bool) -> None:
    """Copies for a block go to the slots read by the previous products."""
    shape = (190, 120, k)
    case = Matmul(block=(64, 64, 32), shape=shape, promised=promised, way="persistent")
    for seed in (0, 1, 2):
        emulated(case, seed)


@pytest.mark.emulated
@pytest.mark.parametrize("num_warps", [4, 8])
def test_sums_of_fp8_that_are_kept_short(num_warps: int) -> None:
    case = Matmul("fp8e4nv", block=(64, 32, 128), shape=(64, 32, 256), way="precise")
    case = _with(case, num_warps=num_warps)
    assert ptx_of(case).count("wgmma.mma_async") == ptx_of(case).count("wgmma.wait_group") == 4
    emulated(case, seed=1)


@pytest.mark.emulated
@pytest.mark.parametrize("a_is_t", [False, True])
def test_an_operand_that_is_widened_in_registers(*, a_is_t: bool) -> None:
    case = Matmul("i8", "fp32", "bf16", shape=(63, 64, 80), way="scaled", a_is_t=a_is_t)
    assert "wgmma.mma_async" in ptx_of(case)
    emulated(case, seed=1)


@pytest.mark.emulated
def test_what_is_loaded_by_elements_goes_through_registers() -> None:
    case = Matmul(shape=(63, 50, 70), promised=False)
    assert "cp.async" not in ptx_of(case)
    emulated(case, seed=1)


@pytest.mark.emulated
@pytest.mark.parametrize(("a_is_t", "b_is_t"), MAJORS)
@pytest.mark.parametrize(
    ("matmul", "most"),
    [
        (Matmul(block=(128, 64, 64), shape=(128, 64, 128)), 0),
        (Matmul(block=(64, 128, 32), shape=(64, 128, 64)), 0),
        (Matmul(block=(64, 32, 16), shape=(64, 32, 32)), 0),
        (Matmul("fp32", "fp32", block=(64, 128, 32), shape=(64, 128, 64)), 0),
        (Matmul("i8", "i32", block=(64, 128, 64), shape=(64, 128, 128)), 1),
    ],
)
def test_operands_are_written_without_bank_conflicts(
    matmul: Matmul, most: int, *, a_is_t: bool, b_is_t: bool
) -> None:
    """`most` is how many more wavefronts an access may take on average."""
    counts = emulated(_with(matmul, a_is_t=a_is_t, b_is_t=b_is_t))
    writes = {line: n for line, n in counts.items() if "cp.async" in line or "st.shared" in line}
    assert writes
    for line, count in writes.items():
        assert count.excess <= most * count.phases, line


@pytest.mark.parametrize("matmul", TYPES, ids=lambda product: f"{product.dtype}-{product.acc}")
def test_types_assemble(matmul: Matmul) -> None:
    for case in (matmul, _with(matmul, a_is_t=True, block=(128, 8, matmul.block[2]), num_warps=8)):
        assembly = assemble(ptx_of(case), TARGETS["sm_90a"])
        assert assembly.warnings == ()
        assert assembly.spill_bytes == 0


def test_a_turn_is_a_named_barrier_of_each_warpgroup() -> None:
    """An arrive targets the other warpgroup's barrier; initially, only the first one's counts."""
    lines = "\n".join(f'gpu.turn {{kind = "{kind}"}}' for kind in ("begin", "take", "pass"))
    kernel = parse_kernel(f"kernel @k() {{num_warps = 8}} {{\n{lines}\nscf.return\n}}\n")
    text = lower_kernel(kernel, TARGETS["sm_90a"]).llvm_ir
    calls = re.findall(r"barrier\.cta\.(\w+)\.aligned\.count\(i32 (%v\d+), i32 256\)", text)
    assert [kind for kind, _ in calls] == ["arrive", "sync", "arrive"]
    warpgroup = re.search(r"(%v\d+) = udiv i32 %\w+, 128\n", text)
    assert warpgroup is not None
    numbers = [re.search(rf"{name} = (.*)\n", text) for _, name in calls]
    assert [number and number[1] for number in numbers] == [
        f"add i32 {warpgroup[1]}, 13",
        f"add i32 {warpgroup[1]}, 14",
        f"sub i32 15, {warpgroup[1]}",
    ]


def test_turns_are_of_two_warpgroups() -> None:
    text = 'kernel @k() {num_warps = 4} {\ngpu.turn {kind = "take"}\nscf.return\n}\n'
    with pytest.raises(IRError, match="turns are of two warpgroups"):
        lower_kernel(parse_kernel(text), TARGETS["sm_90a"])
