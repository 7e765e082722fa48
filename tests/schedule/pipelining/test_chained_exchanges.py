"""Two dots with an exchange between CTAs in between: what is given is taken an iteration later."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from aotc.compiler import compile_kernel, compile_ptx
from tests.support.descriptors import launch, like
from tests.support.requests import request_of

SOURCE = """import triton
import triton.language as tl
from aotc.language import cluster_permute, cluster_rank


@triton.jit
def k(a, b, c, out, n, SHARED: tl.constexpr, TO: tl.constexpr):
    rank = cluster_rank()
    block = a.load([rank * 64, 0])
    acc = tl.zeros((64, 64), tl.float32)
    for first in range(0, n, 64):
        tile = b.load([first, 0])
        own = tl.dot(block, tile.T)
        given = cluster_permute(own.to(tl.float16), TO)
        weights = own + 0.5 * given.to(tl.float32)
        values = tile if SHARED else c.load([first, 0])
        acc = tl.dot(weights.to(tl.float16), values, acc)
    out.store([rank * 64, 0], acc)
"""
SIGNATURE = {
    **dict.fromkeys("abc", "tensordesc<fp16[64,64]>"),
    "out": "tensordesc<fp32[64,64]>",
    "n": "i32",
}
APART = "tiles that CTAs exchange between dots are on their way for an iteration"


def _request(folder: Path, shared: bool, to: tuple[int | None, ...] = (1, 0), **options: int):
    path = folder / "kernel.py"
    path.write_text(SOURCE, encoding="utf-8")
    constants = (("SHARED", shared), ("TO", to))
    options = {"num_warps": 4, "num_stages": 4, "mma_stages": 3, "num_ctas": 2} | options
    return request_of(str(path), "k", tuple(SIGNATURE.items()), constants, "sm_90a", **options)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_every_length_is_right(tmp_path: Path, num_stages: int, shared: bool) -> None:
    made = compile_kernel(_request(tmp_path, shared, num_stages=num_stages))
    # Where both dots read one ring, it needs a stage more than there are dots of it under way.
    assert (APART in "\n".join(made.metadata.remarks)) == (num_stages > 3 or not shared)
    assert not made.metadata.ptxas_warnings
    kernel = compile_ptx(_request(tmp_path, shared, num_stages=num_stages))
    dice = np.random.default_rng(num_stages)
    for seed, n in enumerate((0, 1, 64, 65, 129, 256, 64 * 9)):
        a, b, c = (
            dice.integers(-1, 2, (rows, 64)).astype(np.float16)
            for rows in (128, max(n, 1), max(n, 1))
        )
        out = like(np.zeros((128, 64), np.float32))
        launch(kernel, (2,), {"a": a, "b": b, "c": c, "out": out, "n": n}, seed=seed)
        own = a.astype(np.float64) @ b[:n].astype(np.float64).T
        weights = own + 0.5 * np.roll(own, 64, 0)
        np.testing.assert_array_equal(out, weights @ (b if shared else c)[:n].astype(np.float64))


def test_the_order_of_an_iteration(tmp_path: Path) -> None:
    text = compile_kernel(_request(tmp_path, shared=True), keep_asm=True).asm["gpu"]
    loop = text[: text.index("scf.yield(", text.index("gpu.wgmma", text.index("scf.for")))]
    body = loop[loop.rindex("scf.for") :]
    words = r"gpu\.(wgmma_wait|wgmma\b|mbarrier_wait|mbarrier_arrive|cluster_\w+|shared_load)"
    assert re.findall(words, body) == [
        *(
            "mbarrier_wait",
            "wgmma",
            "wgmma",
        ),  # the one after the next, and this iteration's second dot
        *("mbarrier_wait", "shared_load", "cluster_arrive_at"),  # what was given an iteration ago
        *("wgmma_wait", "mbarrier_wait", "cluster_send_tile"),
        *("wgmma_wait", "mbarrier_arrive"),
    ]


def test_who_only_gives_is_ahead_as_it_is(tmp_path: Path) -> None:
    made = compile_kernel(_request(tmp_path, shared=True, to=(1, None)))
    assert APART not in "\n".join(made.metadata.remarks)
