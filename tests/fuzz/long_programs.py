"""Kinds of programs of hundreds to thousands of operations, each with one theme.

The theme is the program's most frequent kind: chains of arithmetic, loads, stores, reductions,
branches or loops. Other ops stand between, so passes meet all of them at length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aotc.ir.dialects import tile
from tests.fuzz import memory
from tests.fuzz.choices import Choices, Seeded
from tests.fuzz.control import make_for, make_if, make_while
from tests.fuzz.elements import ELEMENTS
from tests.fuzz.elementwise import ELEMENTWISE
from tests.fuzz.generator import Generator, Maker
from tests.fuzz.movement import MOVEMENT
from tests.fuzz.programs import GROUPS, Kind, Program, from_seed, generate, one_of
from tests.fuzz.reductions import REDUCTIONS

FIRST_LONG_SEED = 1_000_000_000
_LONG = 50
MIN_SIZE, MAX_SIZE = 300, 3000
SIZES = (MIN_SIZE, 500, 800, 1200, 2000, MAX_SIZE)


def _store(g: Generator) -> None:
    g.store(g, g.any_item(lambda _: True, ELEMENTS))


# The most frequent makers, and the depth of loops and branches.
_THEMES: tuple[tuple[Sequence[tuple[int, Maker]], int], ...] = (
    (ELEMENTWISE, 2),
    ([(1, memory.make_load)], 2),
    ([(1, _store)], 2),
    (REDUCTIONS, 2),
    (MOVEMENT, 2),
    ([(1, make_if)], 8),
    ([(3, make_for), (1, make_while)], 3),
    ([(2, memory.make_gather), (1, memory.make_round_trip), (1, memory.make_atomic)], 2),
)
_THEME_WEIGHT = 60


def long_program(choices: Choices, min_size: int | None = None) -> Program:
    """Return a program of at least so many operations; without a number, of random size."""
    makers, nesting = choices.pick(_THEMES)
    kind = Kind(
        first=None,
        makers=[
            (_THEME_WEIGHT, one_of(makers)),
            *((weight, one_of(group)) for weight, group in GROUPS),
        ],
        ops=(8,),
        grids=((1,), (2,)),
        num_warps=(4, 1, 2),
        targets=("sm_90a", "sm_90a", "sm_90a", "sm_80", "sm_120a"),
        nesting=nesting,
        outputs=MAX_SIZE,  # store unused values, so no operation is dead
        elems=(64, 256, 512),
        min_size=choices.pick(SIZES) if min_size is None else min_size,
    )
    program = generate(choices, kind)
    # Other targets lack some atomics, and would refuse most long programs for one of them.
    if any(isinstance(op, tile.AtomicRmw) for op in program.kernel().walk()):
        program = replace(program, target="sm_90a")
    return program


def of_seed(seed: int) -> Program:
    """Return the program of a seed; from `FIRST_LONG_SEED` on they are long."""
    return long_program(Choices(Seeded(seed))) if seed >= FIRST_LONG_SEED else from_seed(seed)


def with_long(seeds: Sequence[int]) -> list[int]:
    """Return the seeds with every 50th replaced by a long program's."""
    return [seed + FIRST_LONG_SEED * (seed % _LONG == _LONG - 1) for seed in seeds]
