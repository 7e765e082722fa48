"""The checked launches of a subject."""

from __future__ import annotations

from aotc.ir import expression
from aotc.package.manifest.read import parse
from aotc.package.verify.conditions import _admits, _named, grid_blocks
from aotc.package.verify.subjects import subjects_of_manifest
from tests.support.verify_subjects import manifest_text


def test_blocks_of_the_grids_arguments() -> None:
    grid = [expression.parse(text) for text in ("cdiv(n, 128)", "rows * 2", "m // 64 + n")]
    assert grid_blocks(grid) == {"n": 128, "rows": 1, "m": 64}
    (block,) = set(grid_blocks([expression.parse("cdiv(images * height * width, 128)")]).values())
    assert block == 5


def test_the_arguments_that_conditions_look_at() -> None:
    roots = [expression.parse(text) for text in ("cdiv(n, 128) * x.shape[0]", "rows % 2 == 0")]
    assert _named(roots) == {"n", "x.shape[0]", "rows"}


def test_pointers_are_of_different_memory_where_that_is_promised() -> None:
    plain = manifest_text("scale_rows")
    promised = plain.replace('x_ptr = "*fp32"', 'x_ptr = "*fp32 noalias"')
    assert promised != plain
    (subject,) = subjects_of_manifest(parse(promised, "kernels.toml"))
    assert _admits(subject)({"n_rows": 3, "n_cols": 5, "stride": 5})
