"""Regression tests: reduced programs of past failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.check import check
from tests.fuzz.programs import from_seed, parse_program

FILES = sorted((Path(__file__).parent / "regressions").glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_was_wrong_once(file: Path) -> None:
    check(parse_program(file.read_text()), seeds=(0, 1, 2))


@pytest.mark.parametrize("seed", range(5))
def test_a_program_is_read_as_it_was_printed(seed: int) -> None:
    program = from_seed(seed)
    assert parse_program(str(program)) == program


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(ValueError, match="expected target"):
        parse_program("// nothing\n")
    with pytest.raises(ValueError, match="expected an argument"):
        parse_program("// sm_80, 1 warps, 1 stages, grid (1,)\n// 5\n" + _EMPTY)


_EMPTY = "kernel @k() {num_warps = 1} {\n  scf.return\n}\n"
