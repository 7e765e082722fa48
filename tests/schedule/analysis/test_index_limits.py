"""Extents at and above which 32-bit address products overflow."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.frontend.translate import translate
from aotc.schedule.analysis.index_limits import index_limits

_HEAD = """import triton
import triton.language as tl


@triton.jit
def rows(x, out, n, stride, wide, D: tl.constexpr):
    r = tl.program_id(0)
    d = tl.arange(0, D)
"""


def _limits(tmp_path: Path, *lines: str) -> list[str]:
    path = tmp_path / "kernels.py"
    path.write_text(_HEAD + "".join(f"    {line}\n" for line in lines))
    signature = {"x": "*fp32", "out": "*fp32", "n": "i32", "stride": "i32", "wide": "i64"}
    kernel = translate(str(path), "rows", signature, {"D": 32}, target="sm_90a").kernel
    limits = index_limits(kernel)
    assert all(loc.file == str(path) for loc, _ in limits)
    return [text.removesuffix(" > 2147483647") for _, text in limits]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("r * stride + d", ["(num_programs(0) - 1) * stride"]),
        ("(r * D + d) * stride", ["((num_programs(0) - 1) * 32 + 31) * stride"]),
        ("r * 8192 + d", ["(num_programs(0) - 1) * 8192"]),
        ("r * D + d", []),  # of 2**26 programs
        ("(r % n) * stride + d", ["n * stride"]),
        ("(r << 13) + d", ["(num_programs(0) - 1) * 8192"]),
        ("r.to(tl.int64) * stride + d", []),
        ("r * wide + d", []),
        ("(r * stride) // 2 + d", []),  # no address is linear in it
        ("tl.load(out.to(tl.pointer_type(tl.int32)) + r) * stride + d", []),  # nothing bounds it
    ],
)
def test_the_condition_of_an_overflow(tmp_path: Path, offset: str, expected: list[str]) -> None:
    condition = _limits(tmp_path, f"tl.store(out + r * D + d, tl.load(x + {offset}))")
    assert condition == expected


def test_a_loops_variable_is_below_its_end(tmp_path: Path) -> None:
    lines = ["for k in range(0, n, D):", f"    tl.store(out + k * stride + d, {1.0})"]
    assert _limits(tmp_path, *lines) == ["(n - 1) * stride"]


def test_one_condition_is_told_once_and_a_long_one_never(tmp_path: Path) -> None:
    twice = "tl.store(out + r * stride + d, tl.load(x + r * stride + d))"
    assert _limits(tmp_path, twice) == ["(num_programs(0) - 1) * stride"]
    doubled = ["k = n", *["k = k + k"] * 40, "tl.store(out + k * stride + d, d * 1.0)"]
    assert _limits(tmp_path, *doubled) == []
