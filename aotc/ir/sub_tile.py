"""Layouts of the parts of a tile cut along register bits.

A tile is cut along an axis with its bits on registers alone. Then each part is held by the same
threads in the same way, and a thread's registers of one part are the ones with these bits fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from aotc.ir import gf2
from aotc.ir.layout import LinearLayout, log2_exact
from aotc.ir.layout_bits import scatter


@lru_cache(maxsize=1024)
def sub_tile(layout: LinearLayout, shape: tuple[int, ...]) -> LinearLayout | None:
    """Return the layout of the part of `shape` at the origin, or None if threads differ in it.

    #ll<register=[[1],[4]] lane=[[2]] : [8]>  ->  #ll<register=[[1]] lane=[[2]] : [4]> for [4]
    """
    register_bases: list[tuple[int, ...]] = []
    for basis in layout.bases("register"):
        outside = [step >= extent for step, extent in zip(basis, shape, strict=True)]
        if not any(outside):
            register_bases.append(basis)
        elif sum(map(bool, basis)) > 1 or basis[outside.index(True)].bit_count() > 1:
            return None
    bases = {name: layout.bases(name) for name in layout.in_dims} | {
        "register": tuple(register_bases)
    }
    columns = [basis for name in layout.in_dims for basis in bases[name]]
    if any(step >= extent for basis in columns for step, extent in zip(basis, shape, strict=True)):
        return None
    return LinearLayout(bases, shape)


@lru_cache(maxsize=1024)
def within(layout: LinearLayout, shape: tuple[int, ...]) -> LinearLayout:
    """Return the layout of a part as places in the whole tile, the part at the origin."""
    if layout.shape == shape:
        return layout
    outs = tuple((f"dim{axis}", log2_exact(extent)) for axis, extent in enumerate(shape))
    unit_columns = scatter(layout.outs, outs)
    return LinearLayout.from_columns(
        [(name, [gf2.combine(unit_columns, c) for c in columns]) for name, columns in layout.ins],
        outs,
    )


def part_registers(
    layout: LinearLayout, part: LinearLayout, start: Sequence[int]
) -> tuple[int, ...]:
    """Return the registers of a tile in the part at `start`.

    Raises: ValueError when a thread does not hold them.
    """
    where = {element: register for register, element in enumerate(layout.table("register"))}
    origin = layout.pack(start)
    matches = [where.get(origin ^ e) for e in within(part, layout.shape).table("register")]
    registers = tuple(register for register in matches if register is not None)
    if len(registers) < len(matches):
        raise ValueError(f"threads of {layout} do not hold the part at {tuple(start)}")
    return registers
