"""Products stored through pointers by tensor copies, in the emulator, against NumPy.

Blocks are large enough for wgmma, so stores overlap the next program's product. The emulator reports
races and missing proxy fences.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aotc.compiler import PtxKernel, compile_ptx
from aotc.ir.expression import evaluate, parse
from tests.support.descriptors import is_persistent
from tests.support.descriptors import launch as emulated
from tests.support.requests import request_of
from tests.support.store_kernels import MAPPED, MASKED, UPDATED, Case, launch, request

SHAPES = ((64, 32, 32), (1, 8, 8), (65, 40, 8), (63, 48, 72), (67, 24, 40), (1, 1, 8), (64, 31, 8))


def run(
    kernel: PtxKernel,
    case: Case,
    shape: tuple[int, int, int],
    seed: int,
    num_ctas: int | None = None,
) -> bool:
    """Run a launch if the kernel's guards hold, and check it; return whether they do."""
    case_launch = launch(case, *shape)
    numbers = {name: value for name, value in case_launch.args.items() if isinstance(value, int)}
    if not all(evaluate(parse(guard), numbers) for guard in kernel.guards):
        return False
    emulated(kernel, case_launch.grid, case_launch.args, seed=seed, num_ctas=num_ctas)
    np.testing.assert_array_equal(case_launch.args["out_ptr"], case_launch.expected)
    return True


@pytest.mark.parametrize(("name", "case"), MAPPED.items(), ids=MAPPED)
def test_against_reference(tmp_path: Path, name: str, case: Case) -> None:
    kernel = compile_ptx(request(tmp_path, case, map_pointers=True))
    assert is_persistent(kernel)
    assert "cp.async.bulk.tensor" in kernel.ptx.partition("shared::cta.bulk_group")[0]
    seed = int(hashlib.sha256(name.encode()).hexdigest()[:4], 16)
    ran = [shape for shape in SHAPES if run(kernel, case, shape, seed)]
    assert ran == [shape for shape in SHAPES if case.holds(*shape[:2])]


@pytest.mark.parametrize(("name", "case"), UPDATED.items(), ids=UPDATED)
def test_updates_against_reference(tmp_path: Path, name: str, case: Case) -> None:
    kernel = compile_ptx(request(tmp_path, case, map_pointers=True))
    assert "cp.reduce.async.bulk.tensor" in kernel.ptx
    seed = int(hashlib.sha256(name.encode()).hexdigest()[:4], 16)
    ran = [shape for shape in SHAPES[1:5] if run(kernel, case, shape, seed)]
    assert ran == [shape for shape in SHAPES[1:5] if case.holds(*shape[:2])]


GRADIENT = """import triton
import triton.language as tl


@triton.jit
def k(
    q_ptr, k_ptr, dq_ptr, N,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
):
    n, d = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, D)
    keys = tl.load(k_ptr + n[:, None] * D + d[None, :], mask=(n < N)[:, None], other=0.0)
    for start in tl.range(0, N, BM, num_stages=2):
        m = start + tl.arange(0, BM)
        inside = (m < N)[:, None]
        q = tl.load(q_ptr + m[:, None] * D + d[None, :], mask=inside, other=0.0)
        s = tl.dot(q, keys.T)
        dq = tl.dot(s.to(tl.bfloat16), keys)
        tl.atomic_add(dq_ptr + m[:, None] * D + d[None, :], dq, mask=inside, sem="relaxed")
"""


@pytest.mark.parametrize("n", [64, 72, 200])
def test_iterations_add_to_gradients(tmp_path: Path, n: int) -> None:
    """As attention does backward: each program adds to the gradients of all queries."""
    path = tmp_path / "kernel.py"
    path.write_text(GRADIENT, encoding="utf-8")
    pointers = {"q_ptr": "*bf16:16", "k_ptr": "*bf16:16", "dq_ptr": "*fp32:16 noalias"}
    signature = tuple({**pointers, "N": "i32"}.items())
    constants = (("BM", 64), ("BN", 64), ("D", 32))
    request = request_of(
        str(path), "k", signature, constants, "sm_90a", num_warps=4, map_pointers=True
    )
    kernel = compile_ptx(request)
    assert "cp.reduce.async.bulk.tensor" in kernel.ptx
    random = np.random.default_rng(n)
    q, keys = (random.integers(-1, 2, (n, 32)).astype(ml_dtypes.bfloat16) for _ in range(2))
    dq = random.integers(-9, 10, (n, 32)).astype(np.float32)
    wide_q, wide_k = (array.astype(np.float32) for array in (q, keys))
    # A score is at most 32, exact in bf16.
    expected = dq + wide_q @ wide_k.T @ wide_k
    arguments = {"q_ptr": q, "k_ptr": keys, "dq_ptr": dq, "N": n}
    emulated(kernel, (-(-n // 64),), arguments, seed=n)
    np.testing.assert_array_equal(dq, expected)


@pytest.mark.parametrize(
    ("block", "options"),
    [
        ((64, 32, 32), {"num_stages": 1}),
        ((64, 32, 32), {"warp_specialize": False}),
        ((64, 32, 32), {"num_ctas": 2}),
        ((128, 32, 32), {"num_ctas": 2}),
        ((16, 16, 16), {}),
        ((128, 64, 64), {"num_warps": 8}),
        ((64, 256, 32), {"num_warps": 8, "num_stages": 4}),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["on top", "fp32", "turned", "updated"])
def test_every_configuration(
    tmp_path: Path, name: str, block: tuple[int, int, int], options: dict[str, Any]
) -> None:
    case = replace(MAPPED.get(name) or UPDATED["fp32"], block=block)
    kernel = compile_ptx(request(tmp_path, case, map_pointers=True, **options))
    assert "bulk_group" in kernel.ptx
    rows, columns, depth = block
    clusters = options.get("num_ctas", 1)
    assert run(kernel, case, (2 * rows + 8, columns + 8, depth + 8), 1, 2 * clusters)
    assert run(kernel, case, (8, 8, 8), 2, clusters)


@pytest.mark.parametrize(("block", "num_warps"), [((64, 32, 32), 4), ((128, 64, 32), 8)], ids=str)
def test_what_is_added_may_be_the_output_by_another_name(
    tmp_path: Path, block: tuple[int, int, int], num_warps: int
) -> None:
    added = "tl.load(other_ptr + m[:, None] * stride_om + n[None, :], mask=inside, other=0.0)"
    store = MASKED.replace("c,", f"(acc + {added}).to(c.dtype),")
    case = Case(store, signature={"other_ptr": "*fp16:16"}, adds=True, block=block)
    kernel = compile_ptx(request(tmp_path, case, num_warps, map_pointers=True))
    assert "bulk_group" in kernel.ptx
    case_launch = launch(case, 200, 72, 40)
    case_launch.args["other_ptr"] = case_launch.args["out_ptr"]
    emulated(kernel, case_launch.grid, case_launch.args, seed=num_warps, num_ctas=2)
    np.testing.assert_array_equal(case_launch.args["out_ptr"], case_launch.expected)
