"""Shared memory available for optional buffers."""

from __future__ import annotations

import pytest

from aotc.ir.text import parse_kernel
from aotc.schedule.analysis.shared_budget import shared_budget_bytes
from aotc.target import TARGETS

LARGEST = TARGETS["sm_90a"].max_shared_bytes
HALF = 228 * 1024 // 2 - 1024


@pytest.mark.parametrize(
    ("maxnreg", "required_bytes", "expected"),
    [
        (0, 0, LARGEST),
        (128, 0, HALF),
        (128, HALF, HALF),
        (128, HALF + 1, LARGEST),
        (255, 0, LARGEST),
    ],
)
def test_several_ctas_share_what_an_sm_has(
    maxnreg: int, required_bytes: int, expected: int
) -> None:
    kernel = parse_kernel("kernel @k() {num_warps = 8} {\n  scf.return\n}")
    kernel.maxnreg = maxnreg
    assert shared_budget_bytes(kernel, TARGETS["sm_90a"], required_bytes) == expected
