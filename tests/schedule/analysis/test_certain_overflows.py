"""Launches whose certain accesses overflow an address."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.frontend.translate import translate
from aotc.schedule.analysis.certain_overflows import certain_overflows

_HEAD = """import triton
import triton.language as tl


@triton.jit
def rows(x, out, n, m, stride, wide, D: tl.constexpr):
    r = tl.program_id(0)
    d = tl.arange(0, D)
    i = r * D + d
"""
_OTHERS = "num_programs(1) > 0 and num_programs(2) > 0"
_ROW = "(num_programs(0) - 1) * stride > 2147483647 and num_programs(0) > 0"
_TILE = "(n - 1) * stride > 2147483647 and n > 0 and (n - 1) // 32 < num_programs(0)"


def _conditions(tmp_path: Path, *lines: str) -> list[str]:
    path = tmp_path / "kernels.py"
    path.write_text(_HEAD + "".join(f"    {line}\n" for line in lines))
    signature = {
        "x": "*fp32",
        "out": "*fp32",
        "wide": "i64",
        "n": "i32",
        "m": "i32",
        "stride": "i32",
    }
    kernel = translate(str(path), "rows", signature, {"D": 32}, target="sm_90a").kernel
    overflows = [overflow.partition(": ") for overflow in certain_overflows(kernel)]
    assert all(position.startswith("kernels.py:") for position, _, _ in overflows)
    return [condition for _, _, condition in overflows]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tl.store(out + r * stride + d, 1.0)", _ROW),
        ("tl.store(out + (r * stride + d), 1.0)", _ROW),
        ("tl.store(out + r * stride + d, 1.0, mask=d < m)", f"{_ROW} and m > 0"),
        ("tl.store(out + r * stride + d, 1.0, mask=(d < m) & (d >= 0))", f"{_ROW} and m > 0"),
        ("tl.atomic_add(out + r * stride + d, 1.0)", _ROW),
        ("tl.store(out + i * stride, 1.0, mask=i < n)", _TILE),
        ("tl.store(out + tl.multiple_of(i * stride, 4), 1.0, mask=i < n)", _TILE),
        (
            "tl.store(out + i[:, None] * stride + d, 1.0, mask=(i < n)[:, None] & (d < m)[None, :])",
            f"{_TILE} and m > 0",
        ),
        ("tl.store(out + i[:, None] * stride + d[None, :] * m, 1.0, mask=i[:, None] < n)", _TILE),
    ],
)
def test_the_condition_of_a_store(tmp_path: Path, line: str, expected: str) -> None:
    assert _conditions(tmp_path, line) == [f"{expected} and {_OTHERS}"]


@pytest.mark.parametrize(
    "line",
    [
        "tl.store(out + r.to(tl.int64) * stride + d, 1.0)",
        "tl.store(out + r * wide + d, 1.0)",
        "tl.store(out + r * D + d, 1.0)",  # of 2**26 programs
        "tl.store(out + (r * stride - m), 1.0)",  # may come back to where 32 bits reach
        "tl.store(out + (r * stride + m * D), 1.0)",  # may be negative
        "tl.store(out + (r * stride).to(tl.uint32), 1.0)",  # of a wider type
        "tl.store(out + (r * stride) % n, 1.0)",
        "tl.store(out + i * stride, 1.0, mask=i < n * m)",  # where the mask may wrap around
        "tl.store(out + i * stride, 1.0, mask=tl.load(x + d) > 0)",
        "tl.load(x + r * stride)",  # unused
        "tl.store(out + r * stride + d, 1.0, mask=(d < m) & (d > 0))",  # not the lane under test
    ],
)
def test_what_is_not_certain(tmp_path: Path, line: str) -> None:
    assert _conditions(tmp_path, line) == []


def test_a_load_counts_where_a_store_needs_it(tmp_path: Path) -> None:
    line = "tl.store(out + d, tl.load(x + r * stride + d, mask=d < m, other=0.0))"
    assert _conditions(tmp_path, line) == [f"{_ROW} and m > 0 and {_OTHERS}"]


def test_paths_are_part_of_the_condition(tmp_path: Path) -> None:
    store = "tl.store(out + r * stride + d, 1.0)"
    assert _conditions(tmp_path, "if m > 3:", f"    {store}") == [f"{_ROW} and m > 3 and {_OTHERS}"]
    (condition,) = _conditions(tmp_path, "if m > 3:", "    pass", "else:", f"    {store}")
    assert "(m > 3) == 0" in condition
    loop = [
        "for k in range(0, m, D):",
        "    tl.store(out + r * stride + k + d, 1.0, mask=d < m - k)",
    ]
    assert _conditions(tmp_path, *loop) == [f"{_ROW} and m > 0 and {_OTHERS}"]
    lines = ["p = out + r * stride + d", "for k in range(m):", "    tl.store(p, 1.0)", "    p += D"]
    assert _conditions(tmp_path, *lines) == [f"{_ROW} and m > 0 and {_OTHERS}"]
    assert _conditions(tmp_path, "while tl.load(x) > 0:", "    pass", store) == []


def test_long_chains_are_given_up(tmp_path: Path) -> None:
    """Paths double with each self-addition, and so would the expressions."""
    lines = ["o = d", "for _ in tl.static_range(200):", "    o = o + n", "    o = o + o"]
    assert _conditions(tmp_path, *lines, "tl.store(out + r * stride + o, 1.0)") == []
