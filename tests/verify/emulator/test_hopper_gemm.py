"""A warp-specialised matrix multiplication as it runs on Hopper, right and with planted faults."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.verify.emulator.errors import Fault
from tests.support.hopper_gemm import FAULTS, largest_error, multiply


@pytest.mark.parametrize(
    ("shape", "ctas", "seed"),
    [
        ((128, 256, 128), 1, 0),
        ((256, 512, 192), 3, 0),
        ((128, 256, 320), 2, 1),
        ((1, 8, 1), 1, 2),
        ((65, 136, 63), 3, 3),
        ((63, 120, 65), 5, 4),
    ],
)
def test_it_multiplies(shape: tuple[int, int, int], ctas: int, seed: int) -> None:
    actual, expected = multiply(shape, ctas, seed)
    assert largest_error(actual, expected, shape[2]) <= 1


def test_the_order_of_warps_does_not_matter() -> None:
    first, _ = multiply((128, 256, 192))
    for seed in (5, 6):
        np.testing.assert_array_equal(multiply((128, 256, 192), 1, seed)[0], first)


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
        multiply((128, 256, 128), fault=fault)
    assert caught.value.kind in EXPECTED[fault].split("|")
    assert caught.value.line > 0


def test_a_wrong_swizzle_shows_in_the_result() -> None:
    assert set(FAULTS) == {*EXPECTED, "wrong swizzle"}
    actual, expected = multiply((128, 256, 128), fault="wrong swizzle")
    assert np.abs(actual - expected).max() > 1
