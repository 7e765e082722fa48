"""Register budget of a thread: transfers between roles, and the share of tiles."""

from __future__ import annotations

import pytest

from aotc.config import Config
from aotc.ir.core import Block, Kernel
from aotc.ir.dialects import gpu, roles, scf
from aotc.ir.layout import LinearLayout
from aotc.ir.rewrite import Builder
from aotc.ir.types import BF16, FP32, I8, PointerType, ScalarType, TileType
from aotc.schedule.analysis.register_budget import (
    loaded_registers,
    register_split,
    registers_of_thread,
    remark_registers,
    reserve_registers,
    tile_registers,
)
from aotc.schedule.context import Schedule
from aotc.target import TARGETS

SM_90 = TARGETS["sm_90a"]
# Four elements a thread, of one warp.
FOUR = LinearLayout(
    {"register": [(1,), (2,)], "lane": [(4,), (8,), (16,), (32,), (64,)], "warp": []}, (128,)
)
# Two elements a thread, each in two registers.
TWICE = LinearLayout(
    {"register": [(1,), (0,)], "lane": [(2,), (4,), (8,), (16,), (32,)], "warp": []}, (64,)
)


def _kernel(warps: int, groups: int = 1, producers: int = 0, maxnreg: int = 0) -> Kernel:
    body = Block()
    Builder(body)(scf.Return())
    return Kernel(
        "k",
        (),
        body,
        num_warps=warps,
        maxnreg=maxnreg,
        producer_warps=producers,
        num_consumer_groups=groups,
    )


@pytest.mark.parametrize(
    ("warps", "groups", "producers", "maxnreg", "expected"),
    [
        (1, 1, 0, 0, 255),
        (8, 1, 0, 0, 255),
        (16, 1, 0, 0, 128),
        (32, 1, 0, 0, 64),
        (32, 1, 0, 255, 64),
        (8, 2, 4, 0, 96),  # 65536 / 640 is 102; a warp has 8 registers of each thread at a time
        (4, 1, 0, 40, 40),
    ],
)
def test_registers_of_a_thread(
    warps: int, groups: int, producers: int, maxnreg: int, expected: int
) -> None:
    kernel = _kernel(warps, groups, producers, maxnreg)
    assert registers_of_thread(kernel, SM_90) == expected


@pytest.mark.parametrize(
    ("warps", "groups", "expected"),
    [
        (4, 1, ()),  # all have 255 already
        (8, 1, (232, 40)),
        (4, 2, (232, 40)),
        (4, 3, (160, 32)),
        (16, 1, (112, 32)),
        (6, 1, ()),  # no multiple of the producer's warps
    ],
)
def test_what_consumers_have_if_the_producer_releases_its_registers(
    warps: int, groups: int, expected: tuple[int, ...]
) -> None:
    kernel = _kernel(warps, groups, producers=4)
    split = register_split(kernel, SM_90)
    assert split == expected
    if split:
        assert warps * groups * split[0] + 4 * split[1] <= SM_90.registers_per_sm // 32


@pytest.mark.parametrize(
    ("num_copies", "expected"),
    [
        (0, (232, 40)),
        (1, (232, 40)),
        (8, (232, 40)),
        (9, (224, 56)),
        (16, (224, 56)),
        (18, (216, 72)),
    ],
)
def test_a_producer_keeps_the_addresses_of_its_copies(
    num_copies: int, expected: tuple[int, ...]
) -> None:
    kernel = _kernel(8, producers=4)
    assert register_split(kernel, SM_90, num_copies=num_copies) == expected


@pytest.mark.parametrize(
    ("required_registers", "maxnreg", "fits", "expected"),
    [
        (168, 0, True, 0),  # as many as each thread has
        (169, 0, True, 232),
        (232, 0, True, 232),
        (233, 0, True, 240),  # spare registers of the producer
        (241, 0, False, 0),
        (96, 96, True, 0),
        (97, 96, False, 0),
        (200, 255, False, 0),  # a limit above the hardware's gives no more
    ],
)
def test_registers_are_moved_if_that_suffices(
    required_registers: int, maxnreg: int, fits: bool, expected: int
) -> None:
    kernel = _kernel(8, producers=4, maxnreg=maxnreg)
    blocks = Block(), Block()
    for block in blocks:
        Builder(block)(scf.Yield([]))
    role, schedule = roles.Specialize(*blocks), Schedule(SM_90, Config(8))
    assert reserve_registers(required_registers, role, kernel, schedule) == fits
    assert role.consumer_registers == expected
    kernel.body.insert(role, before=kernel.body.terminator)
    remark_registers(kernel, schedule)
    assert len(schedule.remarks) == bool(expected)


def test_a_pass_that_needs_more_registers_gets_more() -> None:
    blocks = Block(), Block()
    for block in blocks:
        Builder(block)(scf.Yield([]))
    role, schedule = roles.Specialize(*blocks, 232, 40), Schedule(SM_90, Config(8))
    kernel = _kernel(8, producers=4)
    assert reserve_registers(232, role, kernel, schedule)
    assert (role.consumer_registers, role.producer_registers) == (232, 40)
    assert not reserve_registers(241, role, kernel, schedule)
    assert (role.consumer_registers, role.producer_registers) == (232, 40)
    assert reserve_registers(240, role, kernel, schedule)
    assert (role.consumer_registers, role.producer_registers) == (240, 24)


@pytest.mark.parametrize(
    ("element", "layout", "expected"),
    [(FP32, FOUR, 4), (BF16, FOUR, 2), (I8, FOUR, 1), (FP32, TWICE, 2), (I8, TWICE, 1)],
)
def test_elements_share_registers_and_replicas_have_none(
    element: ScalarType, layout: LinearLayout, expected: int
) -> None:
    assert tile_registers(TileType(element, layout.shape, layout)) == expected


@pytest.mark.parametrize(
    ("element", "vector", "expected"),
    [(FP32, 1, 4), (FP32, 4, 4), (BF16, 1, 4), (BF16, 4, 2), (I8, 2, 2), (I8, 4, 1)],
)
def test_each_access_fills_registers_of_its_own(
    element: ScalarType, vector: int, expected: int
) -> None:
    pointer = Block([TileType(PointerType(element), (128,), FOUR)]).args[0]
    assert loaded_registers(gpu.Load(pointer, vector=vector)) == expected


def test_a_tile_without_a_layout_and_a_scalar_take_few() -> None:
    assert tile_registers(TileType(FP32, (128,))) == 0
    scalar = Block([PointerType(FP32)]).args[0]
    assert loaded_registers(gpu.Load(scalar)) == 1
