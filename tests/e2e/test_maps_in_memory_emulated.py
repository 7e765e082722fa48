"""Tensor maps in global memory: arrays of them, picked at run time, interpreted and emulated."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aotc.compiler import CompileRequest, compile_ptx
from aotc.config import Config
from aotc.ir.diagnostics import CompileError
from aotc.ir.text import parse_kernel
from aotc.stages import stage_text
from aotc.verify.emulator.async_copies.tensor_argument import TensorArgument, TensorTable
from aotc.verify.emulator.async_copies.tensor_map import TensorMap
from aotc.verify.emulator.errors import Fault
from aotc.verify.emulator.run import emulate
from aotc.verify.interpreter.memory import Memory
from aotc.verify.interpreter.run import Interpreter, InterpretError
from tests.support.grouped_products import GROUPED

SIGNATURE = (("maps", "*i8:16"), ("results", "*u8:16"), ("depths", "*i32"))
CONSTANTS = (("BM", 64), ("BN", 32), ("BK", 64))
BLOCKS = ((64, 64), (32, 64))
RESULT_BLOCK = (64, 32)
SHAPES = ((64, 32, 64), (67, 28, 130), (1, 40, 8))


def _request(tmp_path: Path, source: str = GROUPED, target: str = "sm_90a") -> CompileRequest:
    path = tmp_path / "kernel.py"
    path.write_text(source, encoding="utf-8")
    return CompileRequest(str(path), "k", SIGNATURE, CONSTANTS, target)


def _padded(shape: Sequence[int], dtype: type, seed: int) -> np.ndarray:
    """Return a tensor of small numbers with 16-byte aligned rows."""
    row = -(-shape[-1] // 8) * 8
    data = np.random.default_rng(seed).integers(-4, 5, (*shape[:-1], row))
    return data.astype(dtype)[..., : shape[-1]]


class _Groups:
    """The tensors of each group, and the expected products."""

    def __init__(self) -> None:
        self.operands: list[np.ndarray] = []
        self.results: list[np.ndarray] = []
        self.expected: list[np.ndarray] = []
        self.depths = np.array([depth for _, _, depth in SHAPES], np.int32)
        for seed, (m, n, depth) in enumerate(SHAPES):
            a = _padded((m, depth), ml_dtypes.bfloat16, seed)
            b = _padded((n, depth), ml_dtypes.bfloat16, seed + 100)
            self.operands += [a, b]
            self.results.append(_padded((m, n), np.float32, 0))
            self.expected.append(a.astype(np.float32) @ b.astype(np.float32).T)

    def check(self) -> None:
        for actual, expected in zip(self.results, self.expected, strict=True):
            np.testing.assert_array_equal(actual, expected)

    def described(self) -> Iterator[list[tuple[np.ndarray, tuple[int, int]]]]:
        """Yield the tensors of each array of maps, with their blocks."""
        yield list(zip(self.operands, BLOCKS * len(SHAPES), strict=True))
        yield [(tensor, RESULT_BLOCK) for tensor in self.results]


@pytest.mark.parametrize(("target", "num_ctas"), [("sm_90a", 1), ("sm_90a", 2), ("sm_120a", 1)])
def test_grouped_products(tmp_path: Path, target: str, num_ctas: int) -> None:
    kernel = compile_ptx(
        replace(_request(tmp_path, target=target), config=Config(num_ctas=num_ctas))
    )
    groups = _Groups()
    emulate(
        kernel.ptx,
        (2 * num_ctas, 2, len(SHAPES)),
        [*_tables(groups), groups.depths],
        kernel="k",
        shared_bytes=kernel.shared_bytes,
        seed=1,
    )
    groups.check()


@pytest.mark.parametrize("scope", ["", "gpu"])
def test_maps_that_are_not_acquired_from_the_host(tmp_path: Path, scope: str) -> None:
    text, groups = compile_ptx(_request(tmp_path)), _Groups()
    fence = r"fence\.proxy\.tensormap::generic\.acquire\.sys(.*)"
    new = rf"fence.proxy.tensormap::generic.acquire.{scope}\1" if scope else ""
    ptx, count = re.subn(fence, new, text.ptx)
    assert count
    arguments, shared = [*_tables(groups), groups.depths], text.shared_bytes
    with pytest.raises(Fault, match=r"no fence\.proxy\.tensormap::generic\.acquire\.sys"):
        emulate(ptx, (2, 2, len(SHAPES)), arguments, kernel="k", shared_bytes=shared)


def _tables(groups: _Groups) -> list[TensorTable]:
    """Return the arrays of maps; a box is no wider than its swizzle of 128 bytes."""
    return [
        TensorTable(
            tuple(
                TensorArgument(array, (rows, min(columns, 128 // array.itemsize)), 128)
                for array, (rows, columns) in described
            )
        )
        for described in groups.described()
    ]


def _interpreter(text: str, groups: _Groups) -> Interpreter:
    memory, args = Memory(), list[np.ndarray]()
    for number, described in enumerate(groups.described()):
        maps = b""
        for index, (array, block) in enumerate(described):
            kind = "bf16" if array.itemsize == 2 else "f32"
            address = memory.add(f"tensor {number}.{index}", array)
            layout = kind, address, array.shape[::-1], (array.strides[0],)
            maps += TensorMap(*layout, block[::-1], swizzle=3).pack()
        args.append(np.frombuffer(maps, np.uint8 if number else np.int8).copy())
    return Interpreter(parse_kernel(text), [*args, groups.depths], memory=memory)


@pytest.mark.parametrize("stage", ["tile", "gpu"])
def test_both_irs_mean_the_same(tmp_path: Path, stage: str) -> None:
    groups = _Groups()
    _interpreter(stage_text(_request(tmp_path), stage), groups).run((2, 2, len(SHAPES)))
    groups.check()


def test_what_is_no_map_is_said(tmp_path: Path) -> None:
    text = stage_text(_request(tmp_path), "tile")
    with pytest.raises(InterpretError, match="these bytes are no tensor map"):
        args = [np.zeros(768, np.int8), np.zeros(384, np.uint8), np.zeros(3, np.int32)]
        Interpreter(parse_kernel(text), args).run((1,))
    groups = _Groups()
    groups.operands[0] = groups.operands[0].astype(np.float32)
    with pytest.raises(InterpretError, match="finds a map of 2 axes of f32"):
        _interpreter(text, groups).run((1,))


def test_a_loop_takes_its_maps_before(tmp_path: Path) -> None:
    """One fence a map and role, none of them in a loop."""
    text = stage_text(_request(tmp_path), "gpu")
    assert text.count("gpu.tensor_map_at") == 3
    loops = re.findall(r"scf\.for.*?scf\.yield", text, re.DOTALL)
    assert len(loops) == 2, "one of the consumers, one of the producer"
    assert not any("tensor_map_at" in loop for loop in loops)


def test_maps_of_one_array_may_be_of_one_tensor(tmp_path: Path) -> None:
    """Then loads keep their order with the store."""
    source = GROUPED.replace("results + group * 128", "first + 256")
    text = stage_text(_request(tmp_path, source), "gpu")
    assert "gpu.specialize" not in text
    assert "gpu.tma_store_wait {written = true}" in text


def test_maps_are_taken_behind_a_wait(tmp_path: Path) -> None:
    """The preceding grid may write the maps; a loop with a wait per iteration acquires them each time."""
    wait = "    for k in range(0, 256, BK):\n        tl.extra.cuda.gdc_wait()\n"
    source = GROUPED.replace("    for k in range(0, tl.load(depths + group), BK):\n", wait)
    text = stage_text(_request(tmp_path, source), "tile")
    assert text.index("scf.for") < text.index("grid.wait") < text.rindex("shape = [32, 64]")
    text = stage_text(_request(tmp_path, source), "gpu")
    loop = text[text.rindex("scf.for") :]  # of the producer
    assert loop.index("grid.wait") < loop.index("gpu.tensor_map_at") < loop.index("scf.yield")


def test_targets_without_tensor_copies_refuse(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="which sm_80 does not have") as caught:
        stage_text(_request(tmp_path, target="sm_80"), "gpu")
    assert "sm_90a and newer" in caught.value.remedy
