"""Tiles prefetched before a grid's wait: the instructions, and unchanged results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.descriptors import compiled, launch, like, tensor

SOURCE = """def k(x, out, n, EARLY: tl.constexpr):
    if EARLY:
        x.prefetch([n, 0])
        x.prefetch([n + 16, 1024])
    tl.extra.cuda.gdc_wait()
    out.store([n, 0], x.load([n, 0]) + 1.0)
"""
SIGNATURE = {"x": "tensordesc<fp32[16,64]>", "out": "tensordesc<fp32[16,64]>", "n": "i32"}


def test_each_box_is_one_instruction_ahead_of_the_wait(tmp_path: Path) -> None:
    ptx = compiled(tmp_path, SOURCE, SIGNATURE, {"EARLY": True}).ptx
    before, _, after = ptx.partition("griddepcontrol.wait")
    assert before.count("cp.async.bulk.prefetch.tensor.2d.L2.global.tile") == 4
    assert "prefetch.tensor.2d" not in after


def test_without_tensor_copies_there_is_none(tmp_path: Path) -> None:
    plain, early = (
        compiled(tmp_path, SOURCE, SIGNATURE, {"EARLY": is_early}, target="sm_80").ptx
        for is_early in (False, True)
    )
    assert plain == early
    assert "prefetch" not in early


@pytest.mark.parametrize("n", [0, 30, 48])
def test_the_result_is_the_same(tmp_path: Path, n: int) -> None:
    """Also with the prefetched tile partly or wholly out of bounds."""
    results: list[np.ndarray] = []
    for early in (False, True):
        x = tensor((37, 64), "fp32")
        out = like(x)
        kernel = compiled(tmp_path, SOURCE, SIGNATURE, {"EARLY": early})
        launch(kernel, (1,), {"x": x, "out": out, "n": n})
        assert (out[n : n + 16] == x[n : n + 16] + 1.0).all()
        results.append(out)
    assert (results[0] == results[1]).all()
