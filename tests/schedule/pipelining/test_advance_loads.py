"""Loads move up past what does not concern them, and no further than they may."""

from __future__ import annotations

import re

import numpy as np

from tests.support.pipelined import Args, Case

THREE = {"x_ptr": "*fp32:16", "weight_ptr": "*fp32:16", "out_ptr": "*fp32:16"}


def test_a_load_moves_above_a_reduction_but_not_above_a_store() -> None:
    case = Case("normalized", THREE, {"BLOCK": 256}, num_warps=4)
    text = case.gpu_ir
    first, second, third = (at for at in range(len(text)) if text.startswith("gpu.load", at))
    assert first < second < text.index("gpu.reduce") < text.index("gpu.store") < third

    def make() -> Args:
        random = np.random.default_rng(0)
        x, weight = (random.integers(-3, 4, 256).astype(np.float32) for _ in range(2))
        return [x, weight, np.full(256, 77, np.float32)]

    case.check_each_pass(make)

    def in_place() -> Args:
        x = np.random.default_rng(0).integers(-3, 4, 256).astype(np.float32)
        return [x, np.ones(256, np.float32), x]

    case.check_each_pass(in_place)


def test_no_more_is_in_flight_than_registers_hold() -> None:
    """8 words a load: four before the first is used, then one for each that is done with."""
    signature = {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16"}
    case = Case("many_loads", signature, {"COUNT": 9, "BLOCK": 256})
    order = re.findall(r"gpu\.load|arith\.mul", case.gpu_ir)
    assert "".join(op.split(".")[1][0] for op in order) == "llll" + "ml" * 5 + "m" * 4

    def make() -> Args:
        x = np.random.default_rng(0).integers(-9, 10, 9 * 256).astype(np.float32)
        return [x, np.full(256, 77, np.float32)]

    case.check_each_pass(make)
