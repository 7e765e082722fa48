"""Division by a shared divisor: exact for all signs, sizes and powers of two."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.backend import emit_ptx, lower_kernel
from aotc.backend.shared_divisors import shared_divisions
from aotc.compiler import CompileRequest, check_request, compile_request, translate_request
from aotc.ir.core import Kernel
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.verify.emulator.run import emulate
from tests.backend.programs import SM_90
from tests.support.repeated_kernels import repeated

_HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
_KERNEL = """def kernel(x, d, q, r, BLOCK: tl.constexpr):
    p, i = tl.program_id(0), tl.arange(0, BLOCK)
    n, by = tl.load(x + i), tl.load(d + p)
    tl.store(q + p * BLOCK + i, n // by)
    tl.store(r + p * BLOCK + i, n % by)
"""
_BLOCK = 512


def _scheduled(request: CompileRequest) -> Kernel:
    target = check_request(request)
    return schedule_kernel(translate_request(request).kernel, Schedule(target, request.config))


def _kernel(body: str, signature: dict[str, str], num_warps: int, **constants: int) -> Kernel:
    return _scheduled(
        compile_request(
            "kernel",
            source=_HEAD + body,
            signature=signature,
            constants=constants,
            target="sm_90a",
            config={"num_warps": num_warps},
        )
    )


def _boundaries(dtype: type[np.integer]) -> list[int]:
    info = np.iinfo(dtype)
    near = [(1 << bit) + step for bit in range(32) for step in (-1, 0, 1)]
    values = [*near, *(-value for value in near), info.min, info.min + 1, info.max, info.max - 1]
    return sorted({value for value in values if info.min <= value <= info.max})


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_quotients_are_exact(dtype: type[np.integer]) -> None:
    element = "i32" if dtype is np.int32 else "u32"
    signature = {"x": f"*{element}", "d": f"*{element}", "q": f"*{element}", "r": f"*{element}"}
    kernel = _kernel(_KERNEL, signature, 1, BLOCK=_BLOCK)
    assert len(shared_divisions(kernel)) == 2
    rng = np.random.default_rng()
    info = np.iinfo(dtype)
    edges = np.array(_boundaries(dtype), dtype)
    spread = rng.integers(info.min, info.max, _BLOCK, dtype, endpoint=True)
    spread >>= rng.integers(0, 31, _BLOCK).astype(dtype)
    x = np.resize(np.concatenate([edges, spread]), _BLOCK)
    d = np.concatenate([edges, spread[:60]])
    # Neighbors of a divisor's multiples reveal a multiplier off by one.
    x[-120:] = (d[rng.permutation(len(d))[:120]].astype(np.int64) * 3 + 1).astype(dtype)
    q, r = (np.full(len(d) * _BLOCK, 77, dtype) for _ in range(2))
    emulate(emit_ptx(lower_kernel(kernel, SM_90).llvm_ir, SM_90), len(d), [x, d, q, r])
    # In wide integers, so that the smallest divided by -1 wraps as registers do.
    wide, by = x.astype(np.int64), d.astype(np.int64)[:, None]
    is_zero = by == 0
    safe = np.where(is_zero, 1, by)
    expected = np.abs(wide) // np.abs(safe) * np.sign(wide) * np.sign(safe)
    quotients = np.where(is_zero, -1, expected).astype(np.uint64).astype(np.uint32)
    np.testing.assert_array_equal(q.view(np.uint32).reshape(quotients.shape), quotients)
    remainders = (wide - expected * safe).astype(np.uint64).astype(np.uint32)
    is_defined = np.broadcast_to(~is_zero, remainders.shape)
    np.testing.assert_array_equal(
        r.view(np.uint32).reshape(remainders.shape)[is_defined], remainders[is_defined]
    )


_SHARED = {
    "quotient and remainder": ("v = i // n + i % n", 0),
    "enough elements": ("v = i // n + (i + 5) // n + (i + 7) % n", 3),
    "two divisors": ("v = i // n + (i + 5) // m + (i + 5) % m", 0),
    "a constant": ("v = i // 7 + (i + 5) // 7 + (i + 9) // 7", 0),
    "other integers": ("j = i.to(tl.int64)\n    v = j // n + (j + 5) // n + (j + 7) // n", 0),
    "tiles": ("j = tl.load(x + i)\n    v = i // j + (i + 5) // j + (i + 7) // j", 0),
    "within a loop": (
        "v = i // n\n    for k in range(m):\n        v += (i + k) // n + (i * k) % n",
        3,
    ),
    "two branches": (
        "v = i\n    if m > 0:\n        v += i // n\n    else:\n        v += (i * 2 + 1) // n",
        0,
    ),
}


@pytest.mark.parametrize("name", list(_SHARED))
def test_a_divisor_is_prepared_for_many_elements(name: str) -> None:
    line, count = _SHARED[name]
    body = f"""def kernel(x, n, m, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    {line}
    tl.store(x + i, v.to(tl.int32))
"""
    kernel = _kernel(body, {"x": "*i32:16", "n": "i32", "m": "i32"}, 1, BLOCK=128)
    assert len(shared_divisions(kernel)) == count


@pytest.mark.parametrize("size", [10, 40])
def test_a_chain_prepares_its_divisor_once(size: int) -> None:
    text = lower_kernel(_scheduled(repeated("remainders", size)), SM_90).llvm_ir
    assert text.count(" udiv ") == 1
    assert " srem " not in text
    assert text.count("\n") < 60 * size + 150
