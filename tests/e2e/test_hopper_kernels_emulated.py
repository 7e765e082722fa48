"""The matrix kernels for Hopper: their PTX, emulated, against float64 references.

Programs sharing a tile are tested here, since `aotc verify` runs programs one by one. The last program
adds up the others' stores, in every order of the seeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc.compiler import PtxKernel, compile_ptx
from tests.support.descriptors import launch as emulate
from tests.support.hopper_cases import CASES, HopperCase, constants_of, scalar_of
from tests.support.kernel_cases import Launch
from tests.support.matrix_cases import values_of
from tests.support.requests import request_of

SHARED = {"small": (17, 64, 96), "small_even": (11, 64, 160), "small_descriptor": (17, 64, 96)}


def _compiled(case: HopperCase, dtype: str, build: int, launch: Launch, **config: Any) -> PtxKernel:
    constants = constants_of(case.builds[build])
    signature = tuple(case.types(dtype, constants, launch).items())
    request = request_of(
        case.path, case.function, signature, tuple(constants.items()), "sm_90a", **config
    )
    return compile_ptx(request)


def _check(case: HopperCase, build: int, kernel: PtxKernel, launch: Launch, seed: int) -> None:
    values = dict(zip(launch.args, values_of(launch, launch.args), strict=True))
    emulate(kernel, case.grid_of(launch, case.builds[build]), values, seed=seed)
    launch.check()


@pytest.mark.parametrize(
    ("case", "num_warps"),
    [
        pytest.param(case, 4 << number % 2, id=case.name)
        for number, case in enumerate(CASES.values())
    ],
)
def test_against_reference(case: HopperCase, num_warps: int) -> None:
    build, dtype = len(case.builds) - 1, case.dtypes[0]
    rng = np.random.default_rng(num_warps)
    launch = case.make(rng, scalar_of(dtype), case.shapes[-1], case.builds[build])
    kernel = _compiled(case, dtype, build, launch, num_warps=num_warps)
    _check(case, build, kernel, launch, num_warps)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", SHARED)
def test_whoever_is_last_sums_the_parts(name: str, seed: int) -> None:
    """The same counters serve launch after launch."""
    case, build = CASES[name], len(CASES[name].builds) - 1
    rng = np.random.default_rng(seed)
    launch = case.make(rng, scalar_of("bf16"), SHARED[name], case.builds[build])
    kernel = _compiled(case, "bf16", build, launch, num_stages=2 + seed)
    for again in range(2):
        _check(case, build, kernel, launch, seed + 10 * again)
