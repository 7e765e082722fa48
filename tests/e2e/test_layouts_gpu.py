"""Layout conversions, reductions and scans on a GPU, over shapes and warp counts, bit for bit.

aotc build tests/support/layout_cases/cases.toml -o dist
pytest -m gpu tests/e2e/test_layouts_gpu.py --layouts dist/layout_cases.aotc
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aotc

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def library(request: pytest.FixtureRequest) -> Any:
    torch = pytest.importorskip("torch")
    archive = request.config.getoption("--layouts")
    if archive is None:
        pytest.skip("needs --layouts ARCHIVE")
    torch.zeros(1, device="cuda")
    return aotc.load(archive)


def reduce_reshape_broadcast(v: np.ndarray) -> np.ndarray:
    return v - v.max(axis=1, keepdims=True)


def turn_and_zip(v: np.ndarray) -> np.ndarray:
    rows, cols = v.shape
    pairs = np.stack([v, v.T.reshape(rows, cols)], axis=-1).reshape(rows, cols // 2, 2, 2)
    pairs = pairs.swapaxes(2, 3)
    return pairs[..., 0].reshape(rows, cols) - 2 * pairs[..., 1].reshape(rows, cols)


def compose(v: np.ndarray) -> np.ndarray:
    """Compose the maps `x -> (v % 3) * x + v`, with C's remainder, down axis 0."""
    slopes = np.fmod(v, 3)
    out = v.copy()
    for row in range(1, len(v)):
        out[row] = slopes[row] * out[row - 1] + v[row]
    return out


def scan_both_ways(v: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return compose(compose(v).T[::-1])[::-1].T


REFERENCES = {
    function.__name__: function
    for function in (reduce_reshape_broadcast, turn_and_zip, scan_both_ways)
}


@pytest.mark.parametrize("name", REFERENCES)
def test_every_shape_and_warp_count(library: Any, name: str) -> None:
    import torch

    kernel = library[name]
    rng = np.random.default_rng(11)
    for config in kernel.info.configs:
        shape = config["ROWS"], config["COLS"]
        v = rng.integers(-1000, 1000, shape).astype(np.int32)
        x = torch.from_numpy(v).cuda()
        y = torch.full_like(x, 77)
        kernel.launch((x, y), config=config)
        np.testing.assert_array_equal(
            y.cpu().numpy(), REFERENCES[name](v), err_msg=f"{name} {config}"
        )


@pytest.mark.parametrize("name", REFERENCES)
def test_the_archive_has_every_case(library: Any, name: str) -> None:
    assert len(library[name].info.configs) >= 30
