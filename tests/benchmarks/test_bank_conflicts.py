"""Transposed tiles are free of bank conflicts, and are read in wide pieces."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def _transposes(name: str = "TRANSPOSES") -> list[Any]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return getattr(importlib.import_module("bank_conflicts"), name)
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("transpose", [*_transposes(), *_transposes("TILE_TRANSPOSES")], ids=str)
def test_a_transpose_has_no_bank_conflicts(transpose: Any) -> None:
    kernel = transpose.compile()
    conflicts = transpose.run(kernel).conflicts
    assert conflicts or "shared" not in kernel.ptx  # squares whole in a thread move nothing
    lines = kernel.ptx.splitlines()
    excess = {lines[line - 1]: count.excess for line, count in conflicts.items() if count.excess}
    assert not excess


def test_every_swizzle_occurs_on_both_sides() -> None:
    spans = {(transpose.row_bytes, transpose.column_bytes) for transpose in _transposes()}
    assert spans == {
        (row_bytes, column_bytes) for row_bytes in (32, 64, 128) for column_bytes in (32, 64, 128)
    }


@pytest.mark.parametrize("transpose", _transposes("TILE_TRANSPOSES"), ids=str)
def test_a_tile_by_pointers_is_read_by_words(transpose: Any) -> None:
    """Of bytes by many warps each thread has too few to be words on both sides."""
    kernel = transpose.compile()
    conflicts = [
        re.findall(rf"{opcode}(?:\.v(\d))?\.b(\d+)", kernel.ptx)
        for opcode in (r"ld\.shared", r"st\.global")
    ]
    assert conflicts[1]
    accesses = conflicts[0] or conflicts[1]
    share = transpose.rows * transpose.columns // (32 * transpose.warps)
    narrow = transpose.dtype == "i8" and share < 32
    assert all(int(count or 1) * int(bits) >= (16 if narrow else 32) for count, bits in accesses)
