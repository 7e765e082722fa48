"""The launcher's limits on grids, and long extents within them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aotc.verify.checks.dataflow import roles_of
from aotc.verify.checks.grid_limits import MAX_GRID, is_launchable, long_blocks
from aotc.verify.checks.launches import Chooser, Conditions
from aotc.verify.checks.noise import is_inexact
from tests.support.verify_subjects import kernel_of


def test_the_limits_are_the_launchers() -> None:
    source = Path("runtime_c/src/select.c").read_text()
    stated = re.search(r"max_grid\[3\] = \{INT32_MAX, (\d+), (\d+)\}", source)
    assert stated is not None
    assert (2**31 - 1, int(stated[1]), int(stated[2])) == MAX_GRID


@pytest.mark.parametrize("num_ctas", [1, 2, 3, 8, 16])
def test_a_program_is_a_cluster_of_ctas(num_ctas: int) -> None:
    most = MAX_GRID[0] // num_ctas
    assert is_launchable((most, 65535, 65535), num_ctas)
    assert not is_launchable((most + 1,), num_ctas)
    assert not is_launchable((1, 65536), num_ctas)
    assert not is_launchable((1, 1, 65536), num_ctas)
    counts = long_blocks(1 << 31, num_ctas)
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == most


@pytest.mark.parametrize("num_ctas", [1, 4, 8])
@pytest.mark.parametrize("factor", [1, 3])
@pytest.mark.parametrize("block", [2, 16])
def test_a_long_extent_is_one_that_can_be_launched(num_ctas: int, factor: int, block: int) -> None:
    kernel = kernel_of("leaky", block)
    conditions = Conditions(
        lambda scalars: (factor * -(-scalars["n"] // block),),
        lambda _: True,
        may_be_left_out=True,
        num_ctas=num_ctas,
    )
    chooser = Chooser(kernel, roles_of(kernel, {}, is_inexact), conditions, 0)
    launch = chooser.launch(chooser.labels.index("long: n"))
    assert launch is not None
    assert is_launchable(launch.grid, num_ctas)
    ctas = launch.grid[0] * num_ctas
    # Four times more programs could not be launched, or four times more elements counted.
    assert 4 * ctas > MAX_GRID[0] or 4 * int(launch.scalars["n"]) > MAX_GRID[0]
