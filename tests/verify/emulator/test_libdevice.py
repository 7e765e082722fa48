"""libdevice functions run whole: their documented errors hold only if every instruction is right.

Their parts (fused multiply-adds with a correction, carry chains, conversions in every rounding)
fail loudly: one instruction off by a bit costs many digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from aotc.backend import emit_ptx
from aotc.target import TARGETS
from aotc.verify.emulator.run import emulate
from aotc.verify.emulator.text.parse import parse_module
from aotc.verify.emulator.text.program import Module

THREADS, COUNT = 128, 512
RANDOM = np.random.default_rng(3)
PLAIN = RANDOM.standard_normal(COUNT)
POSITIVE = np.exp2(RANDOM.uniform(-20, 20, COUNT))
# Beyond 105615, fp32 sines reduce their argument with a product of 160 bits.
FAR = np.concatenate([PLAIN[: COUNT // 2] * 3, RANDOM.standard_normal(COUNT // 2) * 1e10])


# Name, function, arguments, ulps of fp32 and of fp64. Source: CUDA C++ Programming Guide,
# "Mathematical Functions", maximum errors.
FUNCTIONS: list[tuple[str, Callable[..., Any], list[Any], float, float]] = [
    ("sin", np.sin, [FAR], 2, 2),
    ("exp", np.exp, [10 * PLAIN], 2, 1),
    ("log", np.log, [POSITIVE], 1, 1),
    ("pow", np.power, [POSITIVE, PLAIN], 4, 2),
    ("tanh", np.tanh, [PLAIN], 2, 2),
    ("erf", np.frompyfunc(math.erf, 1, 1), [PLAIN], 2, 2),
    ("atan2", np.arctan2, [PLAIN, FAR], 3, 2),
    ("fmod", np.fmod, [FAR, PLAIN], 0, 0),
    ("sqrt", np.sqrt, [POSITIVE], 0.5, 0.5),
]


SREG = "@llvm.nvvm.read.ptx.sreg"


def kernel_of(name: str, kind: str, count: int) -> str:
    """Return a kernel applying a function to elements of `count` arrays, one per thread."""
    pointers = "".join(f", ptr addrspace(1) %p{index}" for index in range(count))
    loads = "".join(
        f"%q{index} = getelementptr {kind}, ptr addrspace(1) %p{index}, i32 %i\n"
        f"%v{index} = load {kind}, ptr addrspace(1) %q{index}\n"
        for index in range(count)
    )
    return (
        f"declare {kind} @{name}({', '.join([kind] * count)})\n"
        f"define ptx_kernel void @run{name}(ptr addrspace(1) %out{pointers}) {{\n"
        f"%thread = call i32 {SREG}.tid.x()\n%block = call i32 {SREG}.ctaid.x()\n"
        f"%first = mul i32 %block, {THREADS}\n%i = add i32 %thread, %first\n{loads}"
        f"%r = call {kind} @{name}({', '.join(f'{kind} %v{index}' for index in range(count))})\n"
        f"%q = getelementptr {kind}, ptr addrspace(1) %out, i32 %i\n"
        f"store {kind} %r, ptr addrspace(1) %q\nret void\n}}\n"
    )


@lru_cache
def module() -> Module:
    """Return the kernels of all functions: the library is read once."""
    text = f"declare i32 {SREG}.tid.x()\ndeclare i32 {SREG}.ctaid.x()\n"
    for stem, _, arguments, _, _ in FUNCTIONS:
        text += kernel_of(f"__nv_{stem}f", "float", len(arguments))
        text += kernel_of(f"__nv_{stem}", "double", len(arguments))
    return parse_module(emit_ptx(text, TARGETS["sm_90a"]))


@pytest.mark.parametrize("double", [False, True], ids=["fp32", "fp64"])
@pytest.mark.parametrize("case", FUNCTIONS, ids=lambda case: case[0])
def test_documented_errors_hold(case, double) -> None:
    stem, function, arguments, single_ulps, double_ulps = case
    dtype = np.float64 if double else np.float32
    arrays = [array.astype(dtype) for array in arguments]
    name = f"__nv_{stem}" if double else f"__nv_{stem}f"
    out = np.full(COUNT, np.nan, dtype)
    grid = COUNT // THREADS
    emulate(module(), grid, [out, *arrays], kernel=f"run{name}", cta_threads=THREADS)
    exact = np.asarray(function(*(array.astype(np.float64) for array in arrays)), np.float64)
    ulp = np.spacing(np.abs(exact).astype(dtype)).astype(np.float64)
    # The reference of fp64 is itself off by up to one.
    bound = double_ulps + 1 if double and double_ulps else single_ulps
    assert np.max(np.abs(out.astype(np.float64) - exact) / ulp) <= bound


def test_sines_of_far_arguments_use_carries() -> None:
    opcodes = {instruction.opcode for instruction in module().kernels["run__nv_sinf"].instructions}
    assert {"madc", "mad"} <= opcodes
