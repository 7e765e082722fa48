"""Early release of buffers read by all iterations: before the last iteration's remaining work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotc.ir.dialects import mbarrier, roles, wgmma
from aotc.ir.text import parse_kernel
from aotc.ir.types import SharedType
from aotc.schedule.analysis.alias import allocation_of
from tests.schedule.pipelining.test_pipeline_mma import ATTENTION_SIGNATURE, SOFTMAX
from tests.support.descriptors import compiled, launch, like, lowered, tensor

SOURCE = """def k(a, b, v, c, n):
    at = tl.program_id(0) * 64
    query = a.load([at, 0])
    total = tl.zeros((64, 64), tl.float32)
    for key in range(0, n, 64):
        score = tl.dot(query, b.load([key, 0]).T)
        total = tl.dot(tl.exp2(score).to(tl.float16), v.load([key, 0]), total)
    c.store([at, 0], total)
"""
SIGNATURE = {
    **dict.fromkeys("abv", "tensordesc<fp16[64,64]>"),
    "c": "tensordesc<fp32[64,64]>",
    "n": "i32",
}


def _order(text: str) -> list[str]:
    """Return the consumers' steps in order: release the queries, or multiply."""
    kernel = parse_kernel(text)
    (role,) = (op for op in kernel.walk() if isinstance(op, roles.Specialize))
    order: list[str] = []
    for op in role.consumers.walk():
        if isinstance(op, wgmma.Wgmma):
            order.append("scores" if isinstance(op.a.type, SharedType) else "sum")
        elif isinstance(op, mbarrier.MbarrierArrive) and _has_one_stage(op):
            order.append("release")
    return order


def _has_one_stage(op: mbarrier.MbarrierArrive) -> bool:
    kind = allocation_of(op.barrier).type
    return isinstance(kind, SharedType) and kind.num_stages == 1


def test_the_last_product_of_a_peeled_iteration_does_not_keep_the_queries(tmp_path: Path) -> None:
    text, remarks = lowered(tmp_path, SOURCE, SIGNATURE, 4, num_stages=2, mma_stages=2)
    assert "a dot is in flight while the result of the one before is used" in remarks
    # The last two are on the paths without iterations.
    assert _order(text) == ["scores", "scores", "sum", "release", "sum", "release", "release"]


def _given_back(text: str) -> list[bool]:
    """Return of each release of the queries whether it is under a condition, as in one of many iterations."""
    arrivals = [op for op in parse_kernel(text).walk() if isinstance(op, mbarrier.MbarrierArrive)]
    return [op.enabled is not None for op in arrivals if _has_one_stage(op)]


def test_queries_are_given_back_in_the_last_iteration(tmp_path: Path) -> None:
    """Its second dot is in flight at the end, after all computation of the threads."""
    config = {"num_stages": 2, "mma_stages": 2, "map_pointers": True, "persistent": True}
    text, _ = lowered(tmp_path, SOFTMAX, ATTENTION_SIGNATURE, 4, **config)
    # The last one is on the path without iterations.
    assert _order(text) == ["scores", "release", "sum", "release"]
    assert _given_back(text) == [True, False]
    # With one program per CTA, no load waits for it.
    text, _ = lowered(tmp_path, SOFTMAX, ATTENTION_SIGNATURE, 4, num_stages=2, mma_stages=2)
    assert _order(text) == ["release", "scores", "sum", "release"]
    assert _given_back(text) == [False, False]


def test_a_loop_that_is_left_whole_releases_them_after_it(tmp_path: Path) -> None:
    text, _ = lowered(tmp_path, SOURCE, SIGNATURE, 4, num_stages=2)
    assert _order(text) == ["scores", "sum", "release", "release"]


@pytest.mark.emulated
@pytest.mark.parametrize("num_ctas", [1, 3])
def test_results(tmp_path: Path, num_ctas: int) -> None:
    """With several programs per CTA, the next queries are loaded early."""
    kernel = compiled(tmp_path, SOURCE, SIGNATURE, num_warps=4, num_stages=2, mma_stages=2)
    for n in (0, 1, 64, 65, 64 * 4 + 1):
        rng = np.random.default_rng(n)
        shapes = ((64 * 5, 64), (max(n, 1), 64), (max(n, 1), 64))
        a, b, v = ((rng.normal(size=shape) / 8).astype(np.float16) for shape in shapes)
        c = like(tensor((64 * 5, 64), "fp32"))
        values = {"a": a, "b": b, "c": c, "v": v, "n": n}
        launch(kernel, (5,), values, seed=n, num_ctas=num_ctas)
        padded = -(-n // 64) * 64
        keys, rows = (np.zeros((padded, 64)) for _ in range(2))
        keys[:n], rows[:n] = b[:n], v[:n]
        expected = np.exp2(a.astype(np.float64) @ keys.T) @ rows
        np.testing.assert_allclose(c, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())
