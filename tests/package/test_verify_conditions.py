"""What launches of a subject are checked."""

from __future__ import annotations

from aotc.ir import expression
from aotc.package.verify_conditions import _named, grid_blocks


def test_blocks_of_the_grids_arguments() -> None:
    grid = [expression.parse(text) for text in ("cdiv(n, 128)", "rows * 2", "m // 64 + n")]
    assert grid_blocks(grid) == {"n": 128, "rows": 1, "m": 64}
    (block,) = set(grid_blocks([expression.parse("cdiv(images * height * width, 128)")]).values())
    assert block == 5


def test_the_arguments_that_conditions_look_at() -> None:
    roots = [expression.parse(text) for text in ("cdiv(n, 128) * x.shape[0]", "rows % 2 == 0")]
    assert _named(roots) == {"n", "x.shape[0]", "rows"}
