"""Random programs as cases: right in the emulator, and wrong results are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.soak import programs
from benchmarks.soak.devices import Emulator
from benchmarks.soak.programs import ProgramCase
from benchmarks.soak.variants import Settings
from tests.fuzz.arguments import Scalar
from tests.fuzz.programs import parse_program

_SEEDS = (2, 7, 16)
_SCRATCH = Path(__file__).parents[2] / "fuzz/regressions/scratch_of_a_tensor_made.txt"
_RAGGED = """\
// sm_90a, 1 warps, 1 stages, grid (1,)
// Tensor(name='p0', dtype='fp32', shape=(4, 27), fill='exact', padding=0)
// Tensor(name='p1', dtype='fp32', shape=(4, 32), fill='poison', padding=0)
kernel @fuzzed(%p0: desc<4x8xfp32>, %p1: desc<4x8xfp32>) {num_warps = 1} {
  %0 = arith.constant {value = 0, type = i32} : i32
  %1 = tile.descriptor_load(%p0, %0, %0) : tile<4x8xfp32>
  tile.descriptor_store(%p1, %1, %0, %0)
  scf.return
}
"""


def _cases() -> list[ProgramCase]:
    prepared = programs.prepare(_SEEDS, Settings(emulates=True), "programs")
    assert prepared.outcomes == []
    return prepared.cases


def _problems(case: ProgramCase, device: Any) -> list[str]:
    with case.opened(device) as launches:
        return [attempt() for _, attempt in launches]


@dataclass
class _Spoiling:
    """The emulator, with a fault added after the kernel."""

    spoil: Callable[[np.ndarray], None]

    @contextmanager
    def loaded(self, case: ProgramCase) -> Iterator[Callable[[Sequence[Any]], None]]:
        with Emulator().loaded(case) as launch:

            def spoilt(args: Sequence[Any]) -> None:
                launch(args)
                written = next(a for a in case.program.arguments if not isinstance(a, Scalar))
                index = case.passed.index(written.name)
                self.spoil(args[index])

            yield spoilt


def test_programs_are_right_in_the_emulator_each_time() -> None:
    cases = _cases()
    assert [case.name for case in cases] == ["program 2", "program 7", "program 16"]
    for case in cases:
        assert _problems(case, Emulator()) == ["", ""]


def test_what_no_launcher_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "of_seed", lambda _seed: parse_program(_RAGGED))
    prepared = programs.prepare([0], Settings(emulates=True), "programs")
    assert prepared.cases == []
    (outcome,) = prepared.outcomes
    assert outcome.status == "refused"
    assert "rows of 108 bytes, which launchers refuse" in outcome.detail


def test_programs_that_make_tensor_maps_get_scratch_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "of_seed", lambda _seed: parse_program(_SCRATCH.read_text()))
    (case,) = programs.prepare([0], Settings(emulates=True), "programs").cases
    (scratch,) = (param for param in case.passed if isinstance(param, np.ndarray))
    assert scratch.nbytes == 128 * 3  # a map for each program
    assert _problems(case, Emulator()) == ["", ""]


def _case_with_an_array() -> ProgramCase:
    return next(
        case
        for case in _cases()
        if next(a for a in case.program.arguments if not isinstance(a, Scalar)).name in case.passed
    )


def test_a_wrong_element_is_told() -> None:
    def spoil(array: np.ndarray) -> None:
        array.base.reshape(-1).view(np.uint8)[1024] ^= 0x41

    problems = _problems(_case_with_an_array(), _Spoiling(spoil))
    assert all("expected" in problem for problem in problems)


def test_an_element_beyond_is_told() -> None:
    def spoil(array: np.ndarray) -> None:
        array.base.reshape(-1).view(np.uint8)[-1024] ^= 1

    problems = _problems(_case_with_an_array(), _Spoiling(spoil))
    assert all(problem.startswith("writes beyond") for problem in problems)
