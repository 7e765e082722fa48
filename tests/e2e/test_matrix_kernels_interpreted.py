"""Kernels around matrix products and atomics, interpreted, against float64 references."""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any

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
from aotc.schedule.pipeline import TILE_TO_GPU, schedule_kernel
from aotc.target import TARGETS
from aotc.verify.interpreter.run import InterpretError, run
from tests.support.kernel_cases import Launch
from tests.support.matrix_cases import CASES, Constants, MatrixCase, signature_of, values_of

POINTS = [
    pytest.param(case, dtype, id=f"{case.name}-{dtype}")
    for case in CASES.values()
    for dtype in map(str, case.dtypes)
]


@lru_cache(maxsize=256)
def _translated(name: str, build: int, signature: tuple[tuple[str, str], ...]) -> Kernel:
    case = CASES[name]
    path, function = case.path.rsplit(":", 1)
    constants = case.constants(case.builds[build])
    translation = translate(path, function, dict(signature), constants, target="sm_90a")
    verify(translation.kernel)
    return translation.kernel


def _kernel(case: MatrixCase, build: int, launch: Launch, *, promised: bool) -> Kernel:
    signature = signature_of(launch, promised=promised)
    return _translated(case.name, build, tuple(signature.items()))


def _run(
    case: MatrixCase, kernel: Kernel, launch: Launch, constants: Constants, **options: Any
) -> None:
    names = [info.name for info in kernel.params]
    run(kernel, case.grid_of(launch, constants), values_of(launch, names), **options)


@pytest.mark.parametrize(("case", "dtype"), POINTS)
def test_against_reference(case: MatrixCase, dtype: str) -> None:
    seed = zlib.crc32(f"{case.name} {dtype}".encode())
    rng = np.random.default_rng(seed)
    for build, constants in enumerate(case.builds):
        for index, shape in enumerate(case.shapes):
            print(f"seed {seed}, shape {shape}, {constants}")  # noqa: T201 - for a failure
            launch = case.make(rng, SCALARS[dtype], shape, constants)
            kernel = _kernel(case, build, launch, promised=index % 2 == 1)
            _run(case, kernel, launch, constants, poison_seed=index % 3)
            launch.check()


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_a_mask_too_wide_by_one_is_found(case: MatrixCase) -> None:
    """Seed a mistake in every mask: if this passes unseen, so would a compiler's."""
    constants, failures = case.builds[0], 0
    for shape in case.shapes:
        launch = case.make(np.random.default_rng(1), case.dtypes[0], shape, constants)
        text = print_kernel(_kernel(case, 0, launch, promised=False))
        wrong = parse_kernel(text.replace('{predicate = "lt"}', '{predicate = "le"}'))
        try:
            _run(case, wrong, launch, constants)
            launch.check()
        except (InterpretError, AssertionError):
            failures += 1
    assert failures > 0


@pytest.mark.parametrize(("target", "num_warps"), [("sm_80", 4), ("sm_90a", 1)])
@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_the_schedule_keeps_the_meaning(case: MatrixCase, target: str, num_warps: int) -> None:
    """Run the IR after the last pass, barriers and vectors checked; for a matmul after every pass."""
    index = (num_warps == 1) % len(case.builds)
    constants, shape, dtype = case.builds[index], case.shapes[-1], case.dtypes[0]
    passes = [pass_function.__name__ for pass_function in TILE_TO_GPU.passes]
    watched = passes if case.name == "matmul" else passes[-1:]

    def check(name: str, kernel: Kernel) -> None:
        if name in watched:
            print(f"after {name}, {dtype}, shape {shape}, {constants}")  # noqa: T201
            launch = case.make(np.random.default_rng(7), dtype, shape, constants)
            _run(case, kernel, launch, constants, check_races=name == passes[-1])
            launch.check()

    launch = case.make(np.random.default_rng(7), dtype, shape, constants)
    path, function = case.path.rsplit(":", 1)
    signature = signature_of(launch, promised=True)
    options = {"target": target, "num_warps": num_warps}
    translation = translate(path, function, signature, case.constants(constants), **options)
    schedule = Schedule(TARGETS[target], Config(num_warps=num_warps))
    schedule_kernel(translation.kernel, schedule, Observer(verify_each=True, on_pass=check))


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_bounds_are_tight_enough_to_find_a_wrong_element(case: MatrixCase) -> None:
    """A result off by a few per cent anywhere is out of bounds."""
    constants, shape = case.builds[0], case.shapes[-1]
    launch = case.make(np.random.default_rng(3), case.dtypes[0], shape, constants)
    for name, expected in launch.expected.items():
        scale = np.sqrt(
            np.mean(np.square(np.where(np.isfinite(expected.value), expected.value, 0)))
        )
        bound = np.broadcast_to(expected.bound, expected.value.shape)
        assert np.median(bound) < 0.03 * scale, name
