"""Moving 8x8 matrices between shared memory and a warp: `ldmatrix` and `stmatrix` as layouts.

A matrix is 8 rows of 16 bytes, each at the address of one lane, and its elements are spread over
the warp in one fixed way. Seen from memory, a lane moves a run of 16 bytes; seen from the
registers, it holds 4 bytes out of each matrix. Both are layouts of the same tile, with different
assignments of hardware bits. For 2-byte elements:

    mode     b16                            b16.trans
    run      register 0, lanes 0-1          lanes 2-4
    rows     lanes 2-4                      register 0, lanes 0-1

In general, a 4-byte word of a matrix is the lowest registers of the tile; the two registers above
tell up to four matrices apart, whose rows are the addresses of lanes 8-31. A transposing access
keeps the two bytes of a unit together, so with elements of one byte the run has register 0 too, and
the rows register 1.

So a matrix access of a tile is an access by vectors of 16 bytes under another layout, the *view*.
Fit to a buffer, addresses and bank conflicts are computed as for any vector access. The layouts
decide the fit, not a list of cases.

Source: PTX ISA, "ldmatrix" and "stmatrix".
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from aotc.ir import gf2
from aotc.ir.layout import LinearLayout, log2_exact

MatrixMode = Literal["", "b16", "b16.trans"]
"""The suffix of the instruction; "" is an access that exchanges nothing."""

RUN_BYTES = 16
_WORD_BYTES = 4
_UNIT_BYTES = 2
_ROW_LANES = 3
_LANE_BITS = 5


@lru_cache(maxsize=1024)
def matrix_view(layout: LinearLayout, element_bits: int, mode: MatrixMode) -> LinearLayout | None:
    """Return the layout of a tile for access by rows of matrices.

    Its lowest registers are the run of 16 bytes, in memory order. Returns None if the tile's layout
    has no such matrices. Without a mode it is `layout` itself.
    """
    if not mode:
        return layout
    registers, lanes = layout.columns("register"), layout.columns("lane")
    in_word, in_unit = word_register_bits(element_bits), _unit_register_bits(element_bits)
    if not 8 <= element_bits <= 32 or len(registers) < in_word or len(lanes) != _LANE_BITS:
        return None
    if mode == "b16":
        run, rows = (*registers[:in_word], *lanes[:2]), lanes[2:]
    elif in_unit < in_word:
        run, rows = (*registers[:in_unit], *lanes[2:]), (registers[in_unit], *lanes[:2])
    else:
        return None
    rest = registers[in_word:]
    # Copies in registers or in the runs have no place in a matrix.
    if len(gf2.independent((*run, *rest))) != len(run) + len(rest):
        return None
    matrices = rest[: _LANE_BITS - _ROW_LANES]
    idle = (0,) * (_LANE_BITS - _ROW_LANES - len(matrices))
    view = layout.with_columns("register", (*run, *rest[len(matrices) :]))
    return view.with_columns("lane", (*rows, *matrices, *idle))


def word_register_bits(element_bits: int) -> int:
    """Return how many register bits are inside a 4-byte word."""
    return log2_exact(max(1, 8 * _WORD_BYTES // element_bits))


def _unit_register_bits(element_bits: int) -> int:
    """Return the number of register bits inside the 2 bytes a transposition moves whole."""
    return log2_exact(max(1, 8 * _UNIT_BYTES // element_bits))


def num_matrices(layout: LinearLayout, element_bits: int) -> int:
    """Return how many matrices one access of a tile moves: 1, 2 or 4."""
    rest = layout.in_bits("register") - word_register_bits(element_bits)
    return 1 << min(_LANE_BITS - _ROW_LANES, rest)


def word_registers(
    layout: LinearLayout, element_bits: int, view_register: int
) -> list[tuple[int, ...]]:
    """Return the registers in each word of the access at a register of the view."""
    in_word = word_register_bits(element_bits)
    matrices = num_matrices(layout, element_bits)
    run = log2_exact(8 * RUN_BYTES // element_bits)
    start = view_register >> run << in_word + log2_exact(matrices)
    return [
        tuple(start | matrix << in_word | part for part in range(1 << in_word))
        for matrix in range(matrices)
    ]


def check_runs(view: LinearLayout, memory: LinearLayout, run_elems: int) -> None:
    """Check that runs of a view lie in memory in order, at multiples of their length.

    Raises: ValueError.
    """
    run = log2_exact(run_elems)
    offsets = view.invert_and_compose(memory).sublayout(view.in_dims, ["offset"])
    in_run = view.columns("register")[:run] == memory.columns("offset")[:run]
    starts = [
        column for name, columns in offsets.ins for column in columns[run * (name == "register") :]
    ]
    if not in_run or any(start & (run_elems - 1) for start in starts):
        raise ValueError(f"the rows of matrices of {view} are not runs of {memory}")
