"""Run the loops of `loop_cases` before and after the schedule, and compare bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from aotc import frontend
from aotc.backend import emit_ptx, lower_kernel
from aotc.config import Config
from aotc.ir.core import Kernel
from aotc.ir.passes import Observer
from aotc.ir.text import parse_kernel, print_kernel
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run
from tests.support.each_pass import check_each_pass

SOURCE = str(Path(__file__).parent / "loop_cases" / "loop_kernels.py")
Args = list[Any]


@lru_cache(maxsize=256)
def _tile_ir(name: str, signature: tuple[tuple[str, str], ...], constants: tuple[Any, ...]) -> str:
    translation = frontend.translate(
        SOURCE, name, dict(signature), dict(constants), num_warps=4, target="sm_90a"
    )
    return print_kernel(translation.kernel)


class Case:
    """A kernel with its types, constants and configuration, scheduled; `remarks` are by then."""

    def __init__(
        self,
        name: str,
        signature: dict[str, str],
        constants: dict[str, Any],
        *,
        num_warps: int = 1,
        num_stages: int = 3,
        target: str = "sm_80",
    ) -> None:
        self.text = _tile_ir(name, tuple(signature.items()), tuple(constants.items()))
        self.target = TARGETS[target]
        self._config = Config(num_warps, num_stages)
        self.schedule = Schedule(self.target, self._config)
        self.kernel = self._scheduled(self.schedule, Observer())

    def _scheduled(self, schedule: Schedule, observer: Observer) -> Kernel:
        return schedule_kernel(parse_kernel(self.text), schedule, observer)

    @property
    def gpu_ir(self) -> str:
        return print_kernel(self.kernel)

    @property
    def remarks(self) -> str:
        return "\n".join(self.schedule.remarks)

    @property
    def ptx(self) -> str:
        return emit_ptx(lower_kernel(self.kernel, self.target).llvm_ir, self.target)

    def check(self, make: Callable[[], Args], grid: Sequence[int] = (1,)) -> None:
        """Interpret before and after, and compare."""
        _compare(self.outputs(parse_kernel(self.text), make, grid), self.kernel, make, grid, "all")

    def check_each_pass(self, make: Callable[[], Args], grid: Sequence[int] = (1,)) -> None:
        """Interpret after every pass, and compare."""
        expected = self.outputs(parse_kernel(self.text), make, grid)
        check_each_pass(
            parse_kernel(self.text),
            Schedule(self.target, self._config),
            lambda kernel, races: self.outputs(kernel, make, grid, check_races=races),
            expected,
        )

    @staticmethod
    def outputs(
        kernel: Kernel, make: Callable[[], Args], grid: Sequence[int], *, check_races: bool = True
    ) -> list[np.ndarray]:
        args = make()
        run(kernel, grid, args, check_races=check_races)
        return [arg for arg in args if isinstance(arg, np.ndarray)]


def _compare(
    expected: list[np.ndarray],
    kernel: Kernel,
    make: Callable[[], Args],
    grid: Sequence[int],
    after: str,
    *,
    check_races: bool = True,
) -> None:
    actual = Case.outputs(kernel, make, grid, check_races=check_races)
    for number, (want, actual_array) in enumerate(zip(expected, actual, strict=True)):
        wrong = np.flatnonzero(want.view(np.uint8) != actual_array.view(np.uint8))[:5]
        assert not wrong.size, f"after {after}: array {number} differs at bytes {wrong}"
