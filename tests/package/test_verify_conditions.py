"""What launches of a subject are checked."""

from __future__ import annotations

from aotc.ir import expression
from aotc.package.verify_conditions import grid_blocks


def test_blocks_of_the_grids_arguments() -> None:
    grid = [expression.parse(text) for text in ("cdiv(n, 128)", "rows * 2", "m // 64 + n")]
    assert grid_blocks(grid) == {"n": 128, "rows": 1, "m": 64}
    (block,) = set(grid_blocks([expression.parse("cdiv(images * height * width, 128)")]).values())
    assert block == 5
