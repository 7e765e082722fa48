"""Rows held by clusters of 16 CTAs, on a GPU: above the portable cluster size.

pytest -m gpu tests/e2e/test_wide_clusters_gpu.py [--built FOLDER]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import aotc
from tests.support.built import Built

KERNELS = Path(__file__).parents[2] / "kernels"


@pytest.fixture(scope="module")
def torch() -> Any:
    """Return torch, with a context on the GPU."""
    module = pytest.importorskip("torch")
    module.zeros(1, device="cuda")
    return module


@pytest.fixture(scope="module")
def library(built: Built, torch: Any) -> Any:
    del torch

    def build(folder: Path) -> None:
        from aotc import cli

        words = [str(KERNELS / "clusters.toml"), "--kernel", "wide_softmax", "-o", str(folder)]
        assert cli.run(["build", *words]) == 0

    return aotc.load(built("clusters", build))


@pytest.mark.gpu
@pytest.mark.parametrize("n_cols", [16, 131072, 262144, 262160, 524288])
def test_rows_of_sixteen_ctas(torch: Any, library: Any, n_cols: int) -> None:
    kernel = library["wide_softmax"]
    x = (4 * torch.randn(37, n_cols, device="cuda")).bfloat16()
    expected = torch.softmax(x.double(), 1)
    for _ in range(3):
        out = torch.full_like(x, float("nan"))
        kernel(x, out, x.stride(0), len(x), n_cols)
        torch.cuda.synchronize()
        assert ((out.double() - expected).abs() <= 2**-7 * expected + 1e-9).all()
