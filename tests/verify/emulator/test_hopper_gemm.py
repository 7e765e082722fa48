"""A warp-specialised matrix multiplication as it runs on Hopper, right and with planted faults."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from aotc.verify.emulator.context import Fault
from aotc.verify.emulator.run import emulate
from aotc.verify.emulator.tensor_argument import TensorArgument
from tests.support.hopper_gemm import (
    BLOCK_K,
    BLOCK_M,
    BLOCK_N,
    FAULTS,
    SHARED_BYTES,
    gemm_ptx,
)

BF16 = ml_dtypes.bfloat16
Array = npt.NDArray[Any]


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _padded(rows: int, cols: int, rng: np.random.Generator | None) -> Array:
    """Return a matrix with rows a multiple of 16 bytes apart, random or all NaN."""
    whole = np.full((rows, _cdiv(cols, 8) * 8), np.nan, BF16)
    if rng is not None:
        whole[...] = rng.standard_normal(whole.shape)
    return whole[:, :cols]


def _multiply(
    shape: tuple[int, int, int], ctas: int = 1, seed: int = 0, fault: str | None = None
) -> tuple[Array, Array]:
    """Return the kernel's product and the one in float64."""
    m, n, k = shape
    rng = np.random.default_rng(sum(shape))
    a, b, d = _padded(m, k, rng), _padded(n, k, rng), _padded(m, n, None)
    tiles_n = _cdiv(n, BLOCK_N)
    emulate(
        gemm_ptx(fault),
        ctas,
        [
            TensorArgument(a, (BLOCK_M, BLOCK_K), 128),
            TensorArgument(b, (BLOCK_N, BLOCK_K), 128),
            TensorArgument(d, (BLOCK_M, 64), 128),
            _cdiv(k, BLOCK_K),
            _cdiv(m, BLOCK_M) * tiles_n,
            tiles_n,
        ],
        shared_bytes=SHARED_BYTES,
        seed=seed,
    )
    return d.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64).T


@pytest.mark.parametrize(
    ("shape", "ctas", "seed"),
    [
        ((128, 256, 128), 1, 0),
        ((256, 512, 192), 3, 0),
        ((128, 256, 320), 2, 1),
        ((1, 1, 1), 1, 2),
        ((65, 129, 63), 3, 3),
        ((63, 127, 65), 5, 4),
    ],
)
def test_it_multiplies(shape: tuple[int, int, int], ctas: int, seed: int) -> None:
    got, expected = _multiply(shape, ctas, seed)
    # One rounding to bf16 beside those of the sums.
    np.testing.assert_allclose(got, expected, rtol=2**-8, atol=1e-5 * np.sqrt(shape[2]))


def test_the_order_of_warps_does_not_matter() -> None:
    first, _ = _multiply((128, 256, 192))
    for seed in (5, 6):
        np.testing.assert_array_equal(_multiply((128, 256, 192), 1, seed)[0], first)


EXPECTED = {
    "no proxy fence": "proxy",
    "producer waits for the wrong phase": "deadlock",
    "consumer waits for the wrong phase": "in-flight|uninitialised",
    "expects too few bytes": "in-flight|uninitialised",
    "expects too many bytes": "deadlock",
    "no fence before wgmma": "wgmma",
    "sums read in flight": "wgmma",
    "stage released too early": "race|in-flight",
    "result overwritten while it is stored": "in-flight",
    "result not stored in the tile's turn": "race|in-flight",
    "barriers not initialised in time": "race",
    "nobody says that a stage is empty": "deadlock",
}


@pytest.mark.parametrize("fault", EXPECTED)
def test_faults_are_found(fault: str) -> None:
    with pytest.raises(Fault) as caught:
        _multiply((128, 256, 128), fault=fault)
    assert caught.value.kind in EXPECTED[fault].split("|")
    assert caught.value.line > 0


def test_a_wrong_swizzle_shows_in_the_result() -> None:
    assert set(FAULTS) == {*EXPECTED, "wrong swizzle"}
    got, expected = _multiply((128, 256, 128), fault="wrong swizzle")
    assert np.abs(got - expected).max() > 1.0
