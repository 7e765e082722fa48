"""Values recomputed in the layout of a product: chosen by bytes and other uses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aotc.ir.core import Value
from aotc.ir.dialects import arith, tile
from aotc.ir.rewrite import Builder
from aotc.ir.types import FP16, FP32, I8, U8, PointerType, ScalarType, TileType
from aotc.schedule.layout.layouts import dot_operand, mma_v2
from aotc.schedule.layout.operand_slices import leaves_of, pull_operands
from aotc.schedule.layout.preferred_layouts import DotLayouts
from tests.backend.programs import Program

M, N, K = 32, 32, 64
WARPS = (2, 2)
A = dot_operand(0, (M, K), WARPS, 16)
B = dot_operand(1, (K, N), WARPS, 16)
LAYOUTS = DotLayouts((16, 8, 16), A, B, mma_v2((M, N), WARPS))


class _Kernel:
    """Build tile IR around one product."""

    def __init__(self) -> None:
        self.program = Program(4)
        self.add: Builder = self.program.add

    def load(self, element: ScalarType, shape: tuple[int, ...]) -> Value:
        pointer = self.program.param(PointerType(element), 16)
        return self.add(tile.Load(self.add(tile.Splat(pointer, shape)).out)).out

    def constant(self, value: float, element: ScalarType, shape: tuple[int, ...]) -> Value:
        return self.add(arith.Constant(value, TileType(element, shape))).out

    def cast(self, value: Value, element: ScalarType = FP16) -> Value:
        return self.add(arith.Cast(value, element)).out

    def dot(self, a: Value, b: Value) -> tile.Dot:
        return self.add(tile.Dot(a, b, self.constant(0.0, FP32, (M, N))))


def pulled(make: Callable[[_Kernel], Value]) -> tuple[dict[Value, object], Value]:
    """Return the pulled ops of the operand B built by `make`, and that operand."""
    kernel = _Kernel()
    b = make(kernel)
    dot = kernel.dot(kernel.load(FP16, (M, K)), b)
    return dict(pull_operands({dot: LAYOUTS})), b


def test_a_cast_from_fewer_bytes_is_pulled_and_what_is_loaded_is_not() -> None:
    values, b = pulled(lambda kernel: kernel.cast(kernel.load(I8, (K, N))))
    assert values == {b: B}


def test_a_cast_from_more_bytes_stays() -> None:
    values, _ = pulled(lambda kernel: kernel.cast(kernel.load(FP32, (K, N))))
    assert not values


def test_two_loads_as_wide_as_the_operand_stay() -> None:
    def make(kernel: _Kernel) -> Value:
        return kernel.add(
            arith.Add(kernel.load(FP16, (K, N)), kernel.load(FP16, (K, N)))
        ).out  # fmt: skip

    values, _ = pulled(make)
    assert not values


def test_a_scale_that_is_spread_over_the_tile_counts_for_nothing() -> None:
    def make(kernel: _Kernel) -> Value:
        row = kernel.add(tile.ExpandDims(kernel.load(FP16, (N,)), 0)).out
        spread = kernel.add(tile.Broadcast(row, (K, N))).out
        return kernel.add(arith.Mul(kernel.load(FP16, (K, N)), spread)).out

    values, b = pulled(make)
    assert values == {b: B}


def test_masks_and_constants_on_the_way_have_no_home() -> None:
    def make(kernel: _Kernel) -> Value:
        zero = kernel.constant(0.0, FP16, (K, N))
        mask = kernel.add(arith.Compare(zero, zero, "eq")).out
        loaded = kernel.cast(kernel.load(I8, (K, N)))
        return kernel.add(arith.Select(mask, loaded, zero)).out

    values, b = pulled(make)
    select = b.op
    assert isinstance(select, arith.Select)
    assert list(values) == [b, select.if_true]


def test_what_others_use_too_is_not_pulled() -> None:
    kernel = _Kernel()
    middle = kernel.cast(kernel.load(I8, (K, N)))
    b = kernel.add(arith.Neg(middle)).out
    kernel.add(arith.Abs(middle))
    dot = kernel.dot(kernel.load(FP16, (M, K)), b)
    assert pull_operands({dot: LAYOUTS}) == {b: B}
    assert list(leaves_of(b, B)) == [middle]


def test_an_operand_of_two_products_with_two_layouts_is_not_pulled() -> None:
    kernel = _Kernel()
    b = kernel.cast(kernel.load(I8, (K, N)))
    a = kernel.load(FP16, (M, K))
    first, second = kernel.dot(a, b), kernel.dot(a, b)
    assert pull_operands({first: LAYOUTS, second: LAYOUTS}) == {b: B}
    wider = dot_operand(1, (K, N), WARPS, 16, 4)
    other = DotLayouts((16, 8, 16), A, wider, LAYOUTS.acc)
    assert not pull_operands({first: LAYOUTS, second: other})


@pytest.mark.parametrize("k_width", [2, 4])
def test_renamings_are_passed_and_joins_counted(k_width: int) -> None:
    kernel = _Kernel()
    packed = kernel.load(U8, (N, K // 2))
    low = kernel.add(arith.And(packed, kernel.constant(15, U8, (N, K // 2)))).out
    high = kernel.add(arith.Shr(packed, kernel.constant(4, U8, (N, K // 2)))).out
    pairs = kernel.add(tile.Join(low, high)).out
    rows = kernel.add(tile.Reshape(pairs, (N, K))).out
    b = kernel.cast(kernel.add(tile.Trans(rows, (1, 0))).out)
    layout = dot_operand(1, (K, N), WARPS, 16, k_width)
    ((leaf, reached),) = leaves_of(b, layout).items()
    assert leaf is packed
    assert reached.spread == 2
    # The bit between the two halves is not in the layout of the bytes.
    assert reached.layout.in_bits("register") == layout.in_bits("register") - 1
