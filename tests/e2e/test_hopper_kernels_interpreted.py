"""The matrix kernels for Hopper, interpreted, at odd shapes against float64 references."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from aotc.config import Config
from aotc.frontend.translate import translate
from aotc.ir.core import Kernel
from aotc.ir.passes import Observer
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import TILE_TO_GPU, schedule_kernel
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run
from tests.support.hopper_cases import CASES, HopperCase, constants_of, points, scalar_of
from tests.support.kernel_cases import Launch
from tests.support.matrix_cases import values_of

POINTS = [pytest.param(*point, id=f"{point[0].name}-{point[1]}-{point[2]}") for point in points()]
# sm_80 has no products of fp8.
SCHEDULED = [
    pytest.param(case, target, id=f"{case.name}-{target}")
    for case in CASES.values()
    for target in ("sm_80", "sm_90a")
    if target == "sm_90a" or not case.dtypes[0].startswith("fp8")
]


def _translated(
    case: HopperCase, dtype: str, build: int, launch: Launch, target: str = "sm_90a"
) -> Kernel:
    constants = constants_of(case.builds[build])
    signature = case.types(dtype, constants, launch)
    kernel = translate(case.path, case.function, signature, constants, target=target).kernel
    verify(kernel)
    return kernel


def _run(case: HopperCase, kernel: Kernel, launch: Launch, build: int, **options: bool) -> None:
    names = list(dict.fromkeys(info.argument for info in kernel.params))
    run(kernel, case.grid_of(launch, case.builds[build]), values_of(launch, names), **options)
    launch.check()


@pytest.mark.parametrize(("case", "dtype", "build"), POINTS)
def test_against_reference(case: HopperCase, dtype: str, build: int) -> None:
    seed = zlib.crc32(f"{case.name} {dtype} {build}".encode())
    rng = np.random.default_rng(seed)
    kernel: Kernel | None = None
    for shape in case.shapes:
        print(f"seed {seed}, shape {shape}, {case.builds[build]}")  # noqa: T201 - for a failure
        launch = case.make(rng, scalar_of(dtype), shape, case.builds[build])
        kernel = kernel or _translated(case, dtype, build, launch)
        _run(case, kernel, launch, build)


@pytest.mark.parametrize(("case", "target"), SCHEDULED)
def test_the_schedule_keeps_the_meaning(case: HopperCase, target: str) -> None:
    """Run the IR after the last pass, with barriers, copies and dots checked."""
    build, dtype = len(case.builds) - 1, case.dtypes[-1]

    def made() -> Launch:
        rng = np.random.default_rng(11)
        return case.make(rng, scalar_of(dtype), case.shapes[-1], case.builds[build])

    def check(name: str, kernel: Kernel) -> None:
        if name == TILE_TO_GPU.passes[-1].__name__:
            _run(case, kernel, made(), build, check_races=True)

    kernel = _translated(case, dtype, build, made(), target)
    schedule_kernel(kernel, Schedule(TARGETS[target], Config()), Observer(on_pass=check))


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_bounds_are_tight_enough_to_find_a_wrong_element(case: HopperCase) -> None:
    """A result off by a few per cent anywhere is out of bounds."""
    dtype, build = case.dtypes[0], case.builds[0]
    shape = max(case.shapes, key=lambda shape: int(np.prod(shape)))
    launch = case.make(np.random.default_rng(3), scalar_of(dtype), shape, build)
    expected = launch.expected["c" if "c" in launch.expected else "out_ptr"]
    scale = np.sqrt(np.mean(np.square(expected.value)))
    assert np.median(expected.bound) < 0.03 * scale
