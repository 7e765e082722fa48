"""Programmatic dependent launch: a kernel's loads before and after its wait.

A change of memory at the wait stands in for the preceding grid. So a load moved across the wait, in
either direction, sees the wrong content. The interpreted tile IR, the interpreted gpu IR and the
emulated PTX must agree.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aotc.compiler import CompileRequest, PtxKernel, compile_kernel, compile_ptx
from aotc.config import Config
from aotc.ir.core import Op
from aotc.ir.dialects import grid, roles
from aotc.ir.text import parse_kernel
from aotc.stages import stage_text
from aotc.verify.emulator.engine.context import Context
from aotc.verify.emulator.engine.registry import EXECUTES, Execute
from aotc.verify.emulator.run import emulate
from aotc.verify.emulator.syntax import Instruction
from aotc.verify.interpreter.program import Program
from aotc.verify.interpreter.run import RULES, Interpreter
from tests.support.descriptors import launch

PRELUDE = """import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

@triton.jit
"""
STRAIGHT = """def k(x, w, out, n):
    i = tl.arange(0, 256)
    before = tl.load(x + i)
    scale = tl.load(w + i)
    total = tl.sum(before * scale)
    gdc_wait()
    after = tl.load(x + i)
    gdc_launch_dependents()
    tl.store(out + i, after * scale + total)
"""
# The loop is pipelined, and the loads of its first iterations stand before it.
BEFORE_A_LOOP = """def k(x, w, out, n):
    i = tl.arange(0, 32)
    a = tl.load(w + i[:, None] * 32 + i[None, :])
    gdc_wait()
    acc = tl.zeros((32, 32), tl.float32)
    for step in tl.range(0, n, num_stages=3):
        b = tl.load(x + step * 1024 + i[:, None] * 32 + i[None, :])
        acc = tl.dot(a, b, acc, input_precision="ieee")
    gdc_launch_dependents()
    tl.store(out + i[:, None] * 32 + i[None, :], acc)
"""
# A load at the end of an iteration must not move to the previous iteration.
INSIDE_A_LOOP = """def k(x, w, out, n):
    i = tl.arange(0, 256)
    acc = tl.load(x + i)
    for step in tl.range(0, n, num_stages=3):
        acc += tl.load(w + step * 256 + i)
        gdc_wait()
        acc += 2 * tl.load(x + step * 256 + i)
        gdc_launch_dependents()
    tl.store(out + i, acc)
"""
# One arm waits; the loads of the other are no reason to merge the two.
IN_A_BRANCH = """def k(x, w, out, n):
    i = tl.arange(0, 256)
    if n > 2:
        gdc_wait()
        value = tl.load(x + i)
    else:
        value = tl.load(w + i)
    tl.store(out + i, value + tl.load(x + i))
"""
SOURCES = {
    "straight": STRAIGHT,
    "before a loop": BEFORE_A_LOOP,
    "inside a loop": INSIDE_A_LOOP,
    "in a branch": IN_A_BRANCH,
}
SIGNATURE = (("x", "*fp32:16"), ("w", "*fp32:16"), ("out", "*fp32:16"), ("n", "i32"))
STEPS = 3


class _Launch:
    """The arguments of a launch, and the change of `x` by the preceding grid."""

    def __init__(self) -> None:
        random = np.random.default_rng(7)
        sizes = (STEPS * 1024, STEPS * 1024, 1024)
        self.x, self.w, self.out = (
            random.integers(-9, 10, size).astype(np.float32) for size in sizes
        )
        self._later = random.integers(-9, 10, self.x.size).astype(np.float32)

    @property
    def args(self) -> list[np.ndarray | int]:
        return [self.x, self.w, self.out, STEPS]

    def predecessor_ends(self) -> None:
        self.x[:] = self._later


def _interpreted(text: str) -> np.ndarray:
    played = _Launch()

    def wait(program: Program, op: Op) -> None:
        del program, op
        played.predecessor_ends()

    rules = {**RULES, grid.GridWait: wait}
    Interpreter(parse_kernel(text), played.args, rules=rules).run((1,))
    return played.out


_PLAYED: list[_Launch] = []
"""The launch that is emulated; the emulator keeps what it has made of a kernel's text."""


def _play(monkeypatch: pytest.MonkeyPatch, played: _Launch) -> None:
    """Let the emulator end the grid before at the first wait."""
    _PLAYED[:] = [played]

    def rule(instruction: Instruction) -> Execute:
        def execute(ctx: Context) -> None:
            del ctx
            if instruction.modifiers == ("wait",):
                _PLAYED[0].predecessor_ends()

        return execute

    monkeypatch.setitem(EXECUTES, "griddepcontrol", rule)


def _emulated(
    monkeypatch: pytest.MonkeyPatch, ptx: str, shared_bytes: int, *, seed: int
) -> np.ndarray:
    played = _Launch()
    _play(monkeypatch, played)
    emulate(ptx, (1,), played.args, kernel="k", shared_bytes=shared_bytes, seed=seed)
    return played.out


@pytest.mark.parametrize("target", ["sm_90a", "sm_120a"])
@pytest.mark.parametrize("name", SOURCES)
def test_loads_stay_on_their_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, target: str
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(PRELUDE + SOURCES[name], encoding="utf-8")
    request = CompileRequest(str(path), "k", SIGNATURE, (), target, Config(1))
    kernel = compile_kernel(request, keep_asm=True)
    expected = _interpreted(kernel.asm["tile"])
    assert (_interpreted(kernel.asm["gpu"]) == expected).all()
    for seed in (0, 1):
        shared_bytes = kernel.metadata.shared_bytes
        left = _emulated(monkeypatch, kernel.asm["ptx"], shared_bytes, seed=seed)
        assert (left == expected).all()


def _without_waits(text: str) -> str:
    return text.replace("  grid.wait\n", "")


def _waits_at_the_end(text: str) -> str:
    return _without_waits(text).replace("  scf.return\n", "  grid.wait\n  scf.return\n")


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("change", [_without_waits, _waits_at_the_end])
def test_a_wait_in_the_wrong_place_would_show(
    tmp_path: Path, name: str, change: Callable[[str], str]
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(PRELUDE + SOURCES[name], encoding="utf-8")
    kernel = compile_kernel(CompileRequest(str(path), "k", SIGNATURE, (), "sm_90a"), keep_asm=True)
    text = kernel.asm["tile"]
    assert (_interpreted(change(text)) != _interpreted(text)).any()


# ---- a producer warp ---------------------------------------------------------------------------

PRODUCT = """def k(x, w, out):
    i = tl.program_id(0) * 64
    acc = tl.zeros((64, 64), tl.float32)
    gdc_wait()
    for k in range(0, 256, 64):
        acc = tl.dot(x.load([i, k]), w.load([0, k]).T, acc)
    gdc_launch_dependents()
    out.store([i, 0], acc)
"""
BLOCK = "tensordesc<fp16[64,64]>"
PRODUCT_SIGNATURE = {"x": BLOCK, "w": BLOCK, "out": "tensordesc<fp32[64,64]>"}


class _Product(_Launch):
    def __init__(self) -> None:
        x, w, self._later = (
            np.random.default_rng(seed).integers(-4, 5, (64, 256)).astype(np.float16)
            for seed in range(3)
        )
        self.x, self.w, self.out = x, w, np.zeros((64, 64), np.float32)

    @property
    def is_right(self) -> bool:
        expected = self._later.astype(np.float32) @ self.w.astype(np.float32).T
        return bool((self.out == expected).all())


def _multiplied(monkeypatch: pytest.MonkeyPatch, kernel: PtxKernel, seed: int) -> bool:
    """Return whether the product is the one of the preceding grid's output."""
    product = _Product()
    _play(monkeypatch, product)
    values = {"x": product.x, "w": product.w, "out": product.out}
    launch(kernel, (1,), values, seed=seed)
    return product.is_right


def test_whoever_fetches_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(PRELUDE + PRODUCT, encoding="utf-8")
    request = CompileRequest(str(path), "k", tuple(PRODUCT_SIGNATURE.items()), (), "sm_90a")
    kernel = compile_ptx(request)
    assert all(_multiplied(monkeypatch, kernel, seed) for seed in range(3))
    # No schedule of warps is sure to catch a missing wait, so the code is checked as well.
    (role,) = (
        op
        for op in parse_kernel(stage_text(request, "gpu")).walk()
        if isinstance(op, roles.Specialize)
    )
    opcodes = [op.opcode for op in role.producer.walk()]
    assert opcodes.index("grid.wait") < opcodes.index("gpu.tma_load")
    assert "grid.launch_dependents" not in opcodes
