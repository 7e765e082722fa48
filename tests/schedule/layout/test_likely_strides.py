"""Lanes are along the axis whose stride is likely the least."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.frontend import translate
from aotc.ir.dialects import tile
from aotc.schedule.analysis.axis import AxisAnalysis
from aotc.schedule.layout.likely_strides import LikelyStrides

SOURCE = """\
import triton
import triton.language as tl

@triton.jit
def k(x, s, t):
    i, j = tl.arange(0, 16), tl.arange(0, 32)
    tl.store(x + PLACE, 0.0)
"""
BOTH = "i[:, None] * s + j[None, :] * t"


@pytest.mark.parametrize(
    ("place", "s", "t", "order"),
    [
        pytest.param(BOTH, "i32", "i32", (1, 0), id="the last argument"),
        pytest.param("i[:, None] * t + j[None, :] * s", "i32", "i32", (0, 1), id="turned"),
        pytest.param(BOTH, "i32", "i32:16", (0, 1), id="no multiple of 16"),
        pytest.param(BOTH, "i32:16", "i32", (1, 0), id="no multiple of 16, and the last"),
        pytest.param(BOTH, "i32:16", "i32:16", (1, 0), id="the last multiple"),
        pytest.param("i[:, None] * 5 + j[None, :] * (s * 6)", "i32", "i32", (0, 1), id="a number"),
        pytest.param("i[:, None] + j[None, :] * s", "i32", "i32", None, id="known"),
        pytest.param("(i // s)[:, None] * t + (j % s)[None, :]", "i32", "i32", None, id="likely"),
        pytest.param("i[:, None] * s + (j * j)[None, :]", "i32", "i32", None, id="no stride"),
    ],
)
def test_order_of_axes(
    tmp_path: Path, place: str, s: str, t: str, order: tuple[int, ...] | None
) -> None:
    path = tmp_path / "k.py"
    path.write_text(SOURCE.replace("PLACE", place))
    kernel = translate(str(path), "k", {"x": "*fp32:16", "s": s, "t": t}, {}).kernel
    (store,) = (op for op in kernel.walk() if isinstance(op, tile.Store))
    assert LikelyStrides(kernel, AxisAnalysis(kernel)).order(store.pointer) == order
