"""Descriptors passed through branches and loops: their form, and accesses to the same tensors."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.diagnostics import CompileError
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.tensor_maps.lower_descriptors import lower_descriptors
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run

TEXT = """\
kernel @k(%x: desc<4x8xfp32>, %y: desc<4x8xfp32>, %out: desc<4x8xfp32>, %n: i32) {num_warps = 1} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %four = arith.constant {value = 4, type = i32} : i32
  %is = arith.compare(%zero, %n) {predicate = "lt"} : i1
  %first, %second = scf.if(%is) () {
    scf.yield(%x, %y)
  } () {
    scf.yield(%y, %x)
  } : desc<4x8xfp32>, desc<4x8xfp32>
  %last, %other = scf.for(%zero, %n, %one, %first, %second) (%i: i32, %now: desc<4x8xfp32>, %then: desc<4x8xfp32>) {
    %row = arith.mul(%i, %four) : i32
    %loaded = tile.descriptor_load(%now, %i, %zero) : tile<4x8xfp32>
    tile.descriptor_store(%out, %loaded, %row, %zero)
    scf.yield(%then, %now)
  } : desc<4x8xfp32>, desc<4x8xfp32>
  %rows = tile.descriptor_extent(%last) {axis = 0} : i32
  %tile = tile.descriptor_load(%last, %rows, %zero) : tile<4x8xfp32>
  USE
  %end = arith.mul(%n, %four) : i32
  tile.descriptor_store(%out, %tile, %end, %zero)
  scf.return
}
"""


def _lowered(text: str, target: str = "sm_90a", num_ctas: int = 1) -> tuple[Kernel, str]:
    kernel = parse_kernel(text.replace("USE", ""))
    config = Config(num_ctas=num_ctas)
    lower_descriptors(kernel, Schedule(TARGETS[target], config, map_pointers=True))
    verify(kernel)
    printed = print_kernel(kernel)
    assert print_kernel(parse_kernel(printed)) == printed
    flow = [line for line in printed.splitlines() if "scf." in line or line.startswith("  } :")]
    assert not any("desc<" in line for line in flow)
    return kernel, printed


def test_maps_of_parameters_are_chosen_by_their_addresses() -> None:
    _, text = _lowered(TEXT)
    assert text.count("tile.map_address") == 2
    assert text.count("tile.descriptor_in") == 2
    assert "tile.descriptor_of" not in text


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("USE", "tile.descriptor_store(%last, %tile, %zero, %zero)"),
        TEXT.replace("USE", "tile.descriptor_store(%x, %tile, %zero, %zero)"),
    ],
)
def test_what_is_written_has_no_map_of_the_launch(text: str) -> None:
    """Nor one of the kernel: accesses of one tensor keep their order through pointers."""
    kernel = parse_kernel(text)
    lower_descriptors(kernel, Schedule(TARGETS["sm_90a"], map_pointers=True))
    verify(kernel)
    printed = print_kernel(kernel)
    assert "tile.map_address" not in printed
    assert "tile.load" in printed


def test_maps_of_clusters_are_made_by_the_kernel() -> None:
    """Their boxes are of the slices of one CTA."""
    _, text = _lowered(TEXT, num_ctas=2)
    assert "tile.map_address" not in text
    assert text.count("tile.descriptor_of") == 2


def test_a_kernel_of_one_cta_chooses_maps_in_a_cluster_too() -> None:
    """All of its boxes are whole tiles."""
    _, text = _lowered(
        TEXT.replace("num_warps = 1", "num_warps = 1, runs_by_cta = true"), num_ctas=2
    )
    assert text.count("tile.map_address") == 2
    assert "tile.descriptor_of" not in text


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("n", [-1, 0, 1, 2, 3])
def test_tiles_are_of_the_tensors_that_were_chosen(target: str, n: int) -> None:
    text = TEXT.replace("USE", "")
    kernel, _ = _lowered(TEXT, target)
    rng = np.random.default_rng(n + 1)
    x, y = (rng.normal(size=(rows, 8)).astype(np.float32) for rows in (6, 9))
    before, after = (np.zeros((16, 8), np.float32) for _ in range(2))
    run(parse_kernel(text), (1,), [x, y, before, n])
    run(kernel, (1,), [x, y, after, n])
    np.testing.assert_array_equal(before, after)
    assert after.any() == (n > 0)


def test_maps_in_memory_are_not_passed_on() -> None:
    text = TEXT.replace("%n: i32)", "%n: i32, %p: *i8)").replace(
        "scf.yield(%x, %y)",
        "%m = tile.descriptor_at(%p) {element = fp32, shape = [4, 8]} : desc<4x8xfp32>\n"
        "    scf.yield(%m, %y)",
    )
    with pytest.raises(CompileError, match="which tensor map in memory this is"):
        _lowered(text)
