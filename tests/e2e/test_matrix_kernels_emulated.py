"""Kernels around matrix products and atomics: their PTX, emulated, against float64 references.

The whole way down, short of ptxas: fragments, late copies, barriers, and the order of programs by
atomics.
"""

from __future__ import annotations

import textwrap
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.backend import emit_ptx, lower_kernel
from aotc.config import Config
from aotc.frontend.translate import translate
from aotc.ir.types import SCALARS
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.target import TARGETS
from aotc.verify.emulator.run import emulate
from aotc.verify.interpreter.numerics import dtype_of
from tests.support.matrix_cases import CASES, MatrixCase, signature_of, values_of

POINTS = [
    pytest.param(case, str(dtype), ("sm_80", "sm_90a")[index % 2], id=f"{case.name}-{dtype}")
    for case in CASES.values()
    for index, dtype in enumerate(case.dtypes, start=len(case.name))
]


def _run(
    source: str,
    signature: dict[str, str],
    constants: dict[str, Any],
    target: str,
    grid: tuple[int, ...],
    values: dict[str, Any],
    *,
    num_warps: int = 4,
    seed: int = 0,
) -> None:
    path, function = source.rsplit(":", 1)
    options = {"target": target, "num_warps": num_warps}
    kernel = translate(path, function, signature, constants, **options).kernel
    kernel = schedule_kernel(kernel, Schedule(TARGETS[target], Config(num_warps=num_warps)))
    ptx = emit_ptx(lower_kernel(kernel, TARGETS[target]).llvm_ir, TARGETS[target])
    args = [values[info.name] for info in kernel.params]
    emulate(ptx, grid, args, shared_bytes=kernel.shared_bytes, seed=seed)


@pytest.mark.parametrize(("case", "dtype", "target"), POINTS)
def test_against_reference(case: MatrixCase, dtype: str, target: str) -> None:
    seed = zlib.crc32(f"{case.name} {dtype}".encode())
    build = case.builds[seed % len(case.builds)]
    launch = case.make(np.random.default_rng(seed), SCALARS[dtype], case.shapes[-1], build)
    names = list(launch.args)
    values = dict(zip(names, values_of(launch, names), strict=True))
    signature = signature_of(launch, promised=bool(seed & 1))
    grid = case.grid_of(launch, build)
    _run(case.path, signature, case.constants(build), target, grid, values)
    launch.check()


# ---- atomics between programs -----------------------------------------------------------------


def _source(folder: Path, text: str) -> str:
    path = folder / "kernel.py"
    path.write_text("import triton\nimport triton.language as tl\n" + textwrap.dedent(text))
    return f"{path}:k"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_was_stored_before_a_ticket_is_seen_by_the_last(
    tmp_path: Path, seed: int, target: str
) -> None:
    """All threads store, one takes the ticket; the last program sums all stores."""
    source = _source(
        tmp_path,
        """
        @triton.jit
        def k(x, parts, count, out, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
            program, cols = tl.program_id(0), tl.arange(0, BLOCK)
            mine = tl.load(x + program * BLOCK + cols)
            tl.store(parts + program * BLOCK + cols, mine * 2)
            if tl.atomic_add(count, 1) == PROGRAMS - 1:
                total = tl.zeros([BLOCK], tl.int32)
                for part in range(PROGRAMS):
                    total += tl.load(parts + part * BLOCK + cols)
                tl.store(out + cols, total)
        """,
    )
    x = np.random.default_rng(1).integers(-99, 99, (5, 256)).astype(np.int32)
    parts, count, out = np.zeros_like(x), np.zeros(1, np.int32), np.zeros(256, np.int32)
    values = {"x": x, "parts": parts, "count": count, "out": out}
    constants = {"BLOCK": 256, "PROGRAMS": 5}
    _run(source, dict.fromkeys(values, "*i32"), constants, target, (5,), values, seed=seed)
    assert count.item() == 5
    assert (out == 2 * x.sum(axis=0)).all()


@pytest.mark.parametrize("seed", [0, 3])
def test_a_lock_lets_one_program_in_at_a_time(tmp_path: Path, seed: int) -> None:
    source = _source(
        tmp_path,
        """
        @triton.jit
        def k(lock, total, BLOCK: tl.constexpr):
            cols = tl.arange(0, BLOCK)
            while tl.atomic_cas(lock, 0, 1, sem="acquire") == 1:
                pass
            tl.store(total + cols, tl.load(total + cols) + cols)
            tl.atomic_xchg(lock, 0, sem="release")
        """,
    )
    lock, total = np.zeros(1, np.int32), np.ones(64, np.int32)
    values = {"lock": lock, "total": total}
    signature = dict.fromkeys(values, "*i32")
    _run(source, signature, {"BLOCK": 64}, "sm_90a", (6,), values, num_warps=2, seed=seed)
    assert lock.item() == 0
    assert (total == 1 + 6 * np.arange(64)).all()


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize("promise", ["", ":16"])
def test_sums_of_every_float_from_many_programs(
    tmp_path: Path, promise: str, dtype: str, target: str
) -> None:
    """Small integers: exact in any order, as single elements, pairs, vectors and loops."""
    source = _source(
        tmp_path,
        """
        @triton.jit
        def k(x, out, n, BLOCK: tl.constexpr):
            cols = tl.arange(0, BLOCK)
            value = tl.load(x + tl.program_id(0) * n + cols, mask=cols < n, other=0.0)
            tl.atomic_add(out + cols, value, mask=cols < n)
        """,
    )
    n = 208 if promise else 205
    scalar = dtype_of(SCALARS[dtype])
    x = np.random.default_rng(2).integers(-9, 9, (4, n)).astype(scalar)
    out = np.zeros(n + 3, scalar)
    signature = {"x": f"*{dtype}{promise}", "out": f"*{dtype}{promise}", "n": f"i32{promise}"}
    values = {"x": x, "out": out, "n": n}
    _run(source, signature, {"BLOCK": 256}, target, (4,), values, num_warps=1)
    assert (out[:n].astype(float) == x.astype(float).sum(axis=0)).all()
    assert (out[n:].astype(float) == 0).all()


@pytest.mark.parametrize("kind", ["fp32", "fp64"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_of_floats_of_both_signs(tmp_path: Path, name: str, kind: str) -> None:
    source = _source(
        tmp_path,
        f"""
        @triton.jit
        def k(x, out, old, BLOCK: tl.constexpr):
            cols = tl.arange(0, BLOCK)
            value = tl.load(x + tl.program_id(0) * BLOCK + cols)
            before = tl.atomic_{name}(out + cols, value, sem="relaxed")
            tl.store(old + tl.program_id(0) * BLOCK + cols, before)
        """,
    )
    dtype = dtype_of(SCALARS[kind])
    x = np.random.default_rng(3).standard_normal((3, 128)).astype(dtype)
    x[0, :4] = [np.inf, -np.inf, 0.0, -0.0]
    out = np.random.default_rng(4).standard_normal(128).astype(dtype)
    start, old = out.copy(), np.zeros_like(x)
    values = {"x": x, "out": out, "old": old}
    _run(source, dict.fromkeys(values, f"*{kind}"), {"BLOCK": 128}, "sm_80", (3,), values)
    combine = np.maximum if name == "max" else np.minimum
    assert (out == combine.reduce([start, *x])).all()
    # Each program sees the initial value, or the result of others.
    extreme = combine(old, start)
    assert (extreme == old).all()
