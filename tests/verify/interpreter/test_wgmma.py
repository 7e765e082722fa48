"""wgmma in flight under the interpreter: promises, and registers not to be written."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.core import Block, Kernel, Value
from aotc.ir.dialects import arith, gpu, scf, tile, wgmma
from aotc.ir.params import ParamInfo
from aotc.ir.rewrite import Builder
from aotc.ir.types import BF16, FP32, I1, I32, PointerType, TileType
from aotc.schedule.layout.layouts import blocked, nvmma_shared, wgmma_accumulator, wgmma_operand_a
from aotc.verify.interpreter.program import InterpretError
from aotc.verify.interpreter.run import run

M, N, K = 64, 16, 16
ACC = TileType(FP32, (M, N), wgmma_accumulator((M, N), (1, 1)))
HELD = TileType(BF16, (M, K), wgmma_operand_a((M, K), (1, 1), 16))
STORED = TileType(BF16, (K, N), blocked((K, N), (1, 2), (4, 8), (4, 1), (1, 0)))


class Program:
    """Multiply threes by twos, sixteen deep, plus the old accumulator."""

    def __init__(self) -> None:
        self.add = Builder(Block([PointerType(FP32)]))
        layout = nvmma_shared((K, N), 16, 32)
        self.b = self.add(gpu.SharedAlloc(BF16, (K, N), layout, 1024)).out
        self.a = self.constant(3.0, HELD)
        self.acc = self.constant(1.0, ACC)

    def constant(self, value: float, kind: TileType) -> Value:
        return self.add(arith.Constant(value, kind)).out

    def store(self, value: float = 2.0) -> None:
        self.add(gpu.SharedStore(self.constant(value, STORED), self.b))

    def barrier(self) -> None:
        self.add(gpu.Barrier())

    def start(self, acc: Value, accumulate: Value | None = None) -> Value:
        return self.add(wgmma.Wgmma(self.a, self.b, acc, accumulate)).out

    def wait(self, *values: Value, pending: int = 0) -> tuple[Value, ...]:
        return tuple(self.add(wgmma.WgmmaWait(values, pending)).outs)

    def result(self, value: Value) -> np.ndarray:
        """Run the program with a store of `value`; return the stored elements."""
        count = M * N
        index = self.add(tile.Arange(0, count)).out
        index = self.add(tile.Reshape(index, (M, N))).out
        index = self.add(gpu.Convert(index, ACC.layout)).out if ACC.layout else index
        base = self.add(tile.Splat(self.add.block.args[0], (M, N), ACC.layout)).out
        self.add(gpu.Store(self.add(arith.AddPtr(base, index)).out, value))
        self.add(scf.Return())
        out = np.full((M, N), -7, np.float32)
        run(Kernel("k", (ParamInfo("out", 16),), self.add.block, num_warps=4), (1,), [out])
        return out


@pytest.fixture
def program() -> Program:
    built = Program()
    built.store()
    built.barrier()
    return built


def test_a_result_is_available_after_the_wait(program: Program) -> None:
    (acc,) = program.wait(program.start(program.acc))
    assert (program.result(acc) == 1 + 6 * K).all()


def test_a_result_is_not_there_before(program: Program) -> None:
    promise = program.start(program.acc)
    out = program.result(promise)
    assert not (out == 1 + 6 * K).any()


def test_a_product_may_ignore_the_accumulator(program: Program) -> None:
    never = program.add(arith.Constant(value=False, type=I1)).out
    (acc,) = program.wait(program.start(program.add(gpu.Undefined(ACC)).out, never))
    assert (program.result(acc) == 6 * K).all()


def test_products_add_to_one_in_flight(program: Program) -> None:
    (acc,) = program.wait(program.start(program.start(program.acc)))
    assert (program.result(acc) == 1 + 12 * K).all()


def test_a_wait_covers_all_but_the_newest(program: Program) -> None:
    first, second = program.start(program.acc), program.start(program.acc)
    oldest, two = program.wait(first, second, pending=1)
    total = program.add(arith.Add(oldest, program.wait(two)[0])).out
    assert (program.result(total) == 2 + 12 * K).all()


def test_a_wait_may_leave_a_promise_in_flight(program: Program) -> None:
    (still,) = program.wait(program.start(program.acc), pending=1)
    assert not (program.result(still) == 1 + 6 * K).any()


def test_loops_carry_promises(program: Program) -> None:
    bounds = [program.add(arith.Constant(value, I32)).out for value in (0, 3, 1)]
    body = Block([I32, ACC])
    inside = Builder(body)
    product = inside(wgmma.Wgmma(program.a, program.b, body.args[1])).out
    inside(scf.Yield(inside(wgmma.WgmmaWait([product], pending=1)).outs))
    loop = program.add(scf.For(*bounds, [program.acc], body))
    (acc,) = program.wait(*loop.outs)
    assert (program.result(acc) == 1 + 18 * K).all()


def test_operands_in_flight_must_not_be_written(program: Program) -> None:
    promise = program.start(program.acc)
    program.barrier()
    program.store(5.0)
    with pytest.raises(InterpretError, match="which a product in flight reads"):
        program.result(program.wait(promise)[0])


def test_it_may_be_written_after_the_wait_and_a_barrier(program: Program) -> None:
    (acc,) = program.wait(program.start(program.acc))
    program.barrier()
    program.store(5.0)
    assert (program.result(acc) == 1 + 6 * K).all()


def test_after_the_wait_alone_another_warp_may_still_read(program: Program) -> None:
    (acc,) = program.wait(program.start(program.acc))
    program.store(5.0)
    with pytest.raises(InterpretError, match="touched since the last barrier"):
        program.result(acc)


def test_unfenced_writes_must_not_be_read() -> None:
    program = Program()
    program.store()
    with pytest.raises(InterpretError, match="starts to read shared byte .*, which warp 0 wrote"):
        program.result(program.wait(program.start(program.acc))[0])


def test_a_wait_may_cover_another_waits_results(program: Program) -> None:
    first, second = program.start(program.acc), program.start(program.acc)
    (two,) = program.wait(second)
    total = program.add(arith.Add(two, program.wait(first)[0])).out
    assert (program.result(total) == 2 + 12 * K).all()
