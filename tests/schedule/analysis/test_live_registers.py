"""Registers of a thread taken by tiles: held, streamed, or not counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.config import Config
from aotc.frontend import translate
from aotc.ir.core import Kernel
from aotc.schedule.analysis.live_registers import Peak, find_peak
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.target import TARGETS

SOURCE = str(Path(__file__).parents[2] / "support" / "large_tiles.py")
WARPS = 4
POINTERS = {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16"}


def scheduled(
    name: str, signature: dict[str, str], constants: dict[str, int], target: str = "sm_80"
) -> Kernel:
    kernel = translate(SOURCE, name, signature, constants, num_warps=WARPS, target=target).kernel
    return schedule_kernel(kernel, Schedule(TARGETS[target], Config(WARPS)))


def peak(name: str, elems: int, **types: str) -> Peak:
    """Return the peak of a kernel with tiles of this many elements per thread."""
    signature = {**POINTERS, **types}
    if name != "copy":
        signature["n"] = "i32"
    return find_peak(scheduled(name, signature, {"BLOCK": 32 * WARPS * elems}))


@pytest.mark.parametrize("elems", [16, 256])
def test_what_is_stored_is_held_and_its_addresses_are_not(elems: int) -> None:
    assert peak("copy", elems).registers == elems


@pytest.mark.parametrize(("dtype", "share"), [("bf16", 2), ("i8", 4), ("fp64", 0.5)])
def test_elements_of_other_widths(dtype: str, share: float) -> None:
    types = dict.fromkeys(POINTERS, f"*{dtype}:16")
    assert peak("copy", 64, **types).registers == 64 / share


def test_what_is_summed_as_it_is_loaded_takes_next_to_nothing() -> None:
    assert peak("total", 256).registers <= WARPS


def test_what_is_used_after_a_reduction_is_held_across_it() -> None:
    peak_tiles = peak("shares", 64)
    assert 64 <= peak_tiles.registers <= 64 + WARPS
    assert peak_tiles.tiles[0].type == "8192xfp32"
    assert (peak_tiles.tiles[0].loc.line, peak_tiles.tiles[0].registers) == (24, 64)
    assert str(peak_tiles).startswith("tiles take ")
    assert "8192xfp32 at large_tiles.py:24 (64 registers)" in str(peak_tiles)


def test_what_a_loop_carries_is_held_once() -> None:
    assert peak("running", 64).registers == 64


def test_registers_that_repeat_others_are_those() -> None:
    """The accumulator of 64 x 64 is 32 registers of a thread; operands are a few."""
    pointers = dict.fromkeys(("a_ptr", "b_ptr"), "*bf16:16")
    signature = {**pointers, "c_ptr": "*fp32:16", "K": "i32:16"}
    kernel = scheduled("multiply", signature, {"M": 64, "N": 64, "BLOCK_K": 32})
    peak_tiles = find_peak(kernel)
    assert 32 <= peak_tiles.registers <= 64
    assert peak_tiles.tiles[0].registers == 32


def test_a_kernel_of_scalars_has_no_tiles() -> None:
    peak_tiles = find_peak(scheduled("repeated", POINTERS, {"COUNT": 3}))
    assert (peak_tiles.registers, peak_tiles.tiles) == (0, ())
    assert str(peak_tiles).startswith("tiles take 0 registers of a thread at large_tiles.py:")
