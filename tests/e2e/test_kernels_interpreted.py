"""Every kernel of the repository, interpreted, against its float64 reference.

This checks the kernels, the frontend and every pass of the schedule without a GPU. It covers all types
of the manifest, boundary shapes, padded rows, misaligned pointers and in-place launches. Several
poisons show any use of masked-off lanes.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

import numpy as np
import pytest

from aotc.config import Config
from aotc.frontend.translate import translate
from aotc.ir.core import Kernel
from aotc.ir.passes import Observer
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.types import SCALARS
from aotc.ir.verify import verify
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.target import TARGETS
from aotc.verify.interpreter.run import InterpretError, run
from tests.support.kernel_cases import (
    CASES,
    DENSE,
    Arrangement,
    Constants,
    KernelCase,
    Launch,
    _manifest,
)

POINTS = [
    pytest.param(case, dtype, arrangement, id=f"{case.name}-{dtype}-{index}")
    for case in CASES.values()
    for dtype in case.dtypes
    for index, arrangement in enumerate(case.arrangements)
]


@lru_cache(maxsize=256)
def _translated(name: str, build: int, signature: tuple[tuple[str, str], ...]) -> Kernel:
    case = CASES[name]
    translation = translate(*case.source, dict(signature), case.builds[build], target="sm_90a")
    verify(translation.kernel)
    return translation.kernel


def test_every_kernel_of_the_manifest_has_a_case() -> None:
    assert list(CASES) == [spec.name for spec in _manifest().kernels]


@pytest.mark.parametrize(("case", "dtype", "arrangement"), POINTS)
def test_against_reference(case: KernelCase, dtype: str, arrangement: Arrangement) -> None:
    seed = zlib.crc32(f"{case.name} {dtype} {arrangement}".encode())
    rng = np.random.default_rng(seed)
    for build, constants in enumerate(case.builds):
        launches = case.launches(rng, dtype, arrangement, constants)
        for index, (shape, launch) in enumerate(launches):
            print(f"seed {seed}, shape {shape}, {constants}")  # noqa: T201 - for a failure
            signature = case.signature(dtype, launch, promised=index % 2 == 0)
            kernel = _translated(case.name, build, tuple(signature.items()))
            run(kernel, case.grid(launch, constants), launch.values(), poison_seed=index % 3)
            launch.check()


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_translation_survives_printing_and_parsing(case: KernelCase) -> None:
    dtype, constants = case.dtypes[0], case.builds[0]
    _, launch = list(case.launches(np.random.default_rng(1), dtype, DENSE, constants))[-1]
    signature = case.signature(dtype, launch, promised=True)
    kernel = _translated(case.name, 0, tuple(signature.items()))
    again = parse_kernel(print_kernel(kernel, locs=True))
    assert print_kernel(again, locs=True) == print_kernel(kernel, locs=True)
    verify(again)
    run(again, case.grid(launch, constants), launch.values())
    launch.check()


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_a_mask_too_wide_by_one_is_found(case: KernelCase) -> None:
    """Seed a mistake in every mask: if this passes unseen, so would a compiler's."""
    dtype, constants = case.dtypes[0], case.builds[0]
    failures = 0
    for _, launch in case.launches(np.random.default_rng(1), dtype, DENSE, constants):
        signature = case.signature(dtype, launch, promised=False)
        text = print_kernel(_translated(case.name, 0, tuple(signature.items())))
        wrong = parse_kernel(text.replace('{predicate = "lt"}', '{predicate = "le"}'))
        try:
            run(wrong, case.grid(launch, constants), launch.values())
            launch.check()
        except (InterpretError, AssertionError):
            failures += 1
    assert failures > 0


@pytest.mark.parametrize("num_warps", [1, 4, 8])
@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_every_pass_keeps_the_meaning(case: KernelCase, num_warps: int) -> None:
    """Run the IR after each pass; on gpu IR, vectors and barriers are checked."""
    for constants in case.builds:
        for index, dtype in enumerate(case.dtypes):
            arrangement = case.arrangements[index % len(case.arrangements)]
            rng = np.random.default_rng(7)
            shape, launch = list(case.launches(rng, dtype, arrangement, constants))[-1 - index]
            _check_passes(case, constants, launch, dtype, shape, arrangement, num_warps)


def _check_passes(
    case: KernelCase,
    constants: Constants,
    first: Launch,
    dtype: str,
    shape: tuple[int, ...],
    arrangement: Arrangement,
    num_warps: int,
) -> None:
    last = ""

    def check(name: str, kernel: Kernel) -> None:
        nonlocal last
        has_barriers = name == "insert_barriers"
        # Most passes leave most kernels as they are, and printing is quicker than running.
        text = print_kernel(kernel)
        if text == last and not has_barriers:
            return
        last = text
        launch = case.make(np.random.default_rng(7), SCALARS[dtype], shape, arrangement)
        print(f"after {name}, {dtype}, shape {shape}, {constants}")  # noqa: T201 - for a failure
        run(kernel, case.grid(launch, constants), launch.values(), check_races=has_barriers)
        launch.check()

    signature = case.signature(dtype, first, promised=True)
    translation = translate(*case.source, signature, constants, num_warps=num_warps)
    schedule = Schedule(TARGETS["sm_90a"], Config(num_warps=num_warps))
    schedule_kernel(translation.kernel, schedule, Observer(verify_each=True, on_pass=check))
