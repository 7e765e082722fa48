"""Blocks that are transposed between tensor copies meet no bank twice, whatever their swizzles."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def _transposes() -> list[Any]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("bank_conflicts").TRANSPOSES
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("transpose", _transposes(), ids=str)
def test_a_transpose_has_no_bank_conflicts(transpose: Any) -> None:
    kernel = transpose.compile()
    conflicts = transpose.run(kernel).conflicts
    assert conflicts
    lines = kernel.ptx.splitlines()
    excess = {lines[line - 1]: count.excess for line, count in conflicts.items() if count.excess}
    assert not excess


def test_every_swizzle_occurs_on_both_sides() -> None:
    spans = {(each.row_bytes, each.column_bytes) for each in _transposes()}
    assert spans == {(one, two) for one in (32, 64, 128) for two in (32, 64, 128)}
