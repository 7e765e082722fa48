"""Every kernel of the repository, interpreted, against its float64 reference.

This holds the kernels, the frontend and every pass of the schedule to the references before any
GPU is involved: all types of the manifest, boundary shapes, padded rows, misaligned pointers, in
place, and several poisons, so that nothing may depend on what a masked-off lane holds.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

import numpy as np
import pytest

from aotc.frontend.translate import translate
from aotc.ir.core import Kernel
from aotc.ir.passes import Observer
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.types import SCALARS
from aotc.ir.verify import verify
from aotc.schedule.context import Config, Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.target import TARGETS
from aotc.verify.interpreter import InterpretError, run
from tests.support.kernel_cases import CASES, DENSE, Arrangement, KernelCase, Launch, _manifest

POINTS = [
    pytest.param(case, dtype, arrangement, id=f"{case.name}-{dtype}-{index}")
    for case in CASES.values()
    for dtype in case.dtypes
    for index, arrangement in enumerate(case.arrangements)
]


@lru_cache(maxsize=256)
def _translated(name: str, signature: tuple[tuple[str, str], ...]) -> Kernel:
    source, function = CASES[name].source
    made = translate(source, function, dict(signature), CASES[name].small, target="sm_90a")
    verify(made.kernel)
    return made.kernel


def _interpret(case: KernelCase, dtype: str, launch: Launch, *, promised: bool, seed: int) -> None:
    signature = case.signature(dtype, launch, promised=promised)
    kernel = _translated(case.name, tuple(signature.items()))
    run(kernel, case.grid(launch, case.small), launch.values(), poison_seed=seed)


def test_every_kernel_of_the_manifest_has_a_case() -> None:
    assert list(CASES) == [spec.name for spec in _manifest().kernels]


@pytest.mark.parametrize(("case", "dtype", "arrangement"), POINTS)
def test_against_reference(case: KernelCase, dtype: str, arrangement: Arrangement) -> None:
    seed = zlib.crc32(f"{case.name} {dtype} {arrangement}".encode())
    rng = np.random.default_rng(seed)
    for index, shape in enumerate(case.shapes(case.small)):
        launch = case.make(rng, SCALARS[dtype], shape, arrangement)
        print(f"seed {seed}, shape {shape}")  # noqa: T201 - shown by pytest when the test fails
        _interpret(case, dtype, launch, promised=index % 2 == 0, seed=index % 3)
        launch.check()


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_translation_survives_printing_and_parsing(case: KernelCase) -> None:
    dtype = case.dtypes[0]
    shape = list(case.shapes(case.small))[-1]
    launch = case.make(np.random.default_rng(1), SCALARS[dtype], shape, DENSE)
    signature = case.signature(dtype, launch, promised=True)
    kernel = _translated(case.name, tuple(signature.items()))
    again = parse_kernel(print_kernel(kernel, locs=True))
    assert print_kernel(again, locs=True) == print_kernel(kernel, locs=True)
    verify(again)
    run(again, case.grid(launch, case.small), launch.values())
    launch.check()


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_a_mask_that_reaches_one_too_far_is_found(case: KernelCase) -> None:
    """Seed a mistake in every mask: if this passes unseen, so would a compiler's."""
    dtype = case.dtypes[0]
    found = 0
    for shape in case.shapes(case.small):
        launch = case.make(np.random.default_rng(1), SCALARS[dtype], shape, DENSE)
        signature = case.signature(dtype, launch, promised=False)
        text = print_kernel(_translated(case.name, tuple(signature.items())))
        wrong = parse_kernel(text.replace('{predicate = "lt"}', '{predicate = "le"}'))
        try:
            run(wrong, case.grid(launch, case.small), launch.values())
            launch.check()
        except (InterpretError, AssertionError):
            found += 1
    assert found > 0


@pytest.mark.parametrize("num_warps", [1, 4, 8])
@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_every_pass_keeps_the_meaning(case: KernelCase, num_warps: int) -> None:
    """Run the IR that each pass of the schedule leaves; on gpu IR vectors and barriers count."""
    source, function = case.source
    for index, shape in enumerate(list(case.shapes(case.small))[-3:]):
        dtype = case.dtypes[index % len(case.dtypes)]
        arrangement = case.arrangements[index % len(case.arrangements)]

        def launch() -> Launch:
            rng = np.random.default_rng(7)
            return case.make(rng, SCALARS[dtype], shape, arrangement)  # noqa: B023 - used at once

        def check(name: str, kernel: Kernel) -> None:
            made = launch()
            print(f"after {name}, {dtype}, shape {shape}")  # noqa: T201, B023 - for a failure
            has_barriers = name == "insert_barriers"
            grid = case.grid(made, case.small)
            run(kernel, grid, made.values(), check_races=has_barriers)
            made.check()

        signature = case.signature(dtype, launch(), promised=True)
        made = translate(source, function, signature, case.small, num_warps=num_warps)
        schedule = Schedule(TARGETS["sm_90a"], Config(num_warps=num_warps))
        schedule_kernel(made.kernel, schedule, Observer(verify_each=True, on_pass=check))
