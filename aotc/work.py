"""The work of a kernel, counted from its finished schedule: instructions, dots, bytes, and how often.

The compiler counts it, the cache keeps it, and the cost model of `aotc.package.tuning` turns it into time.

Invariant: plain frozen data. Whatever depends on a launch is an expression as text over the launch's
integer arguments and extents, and over names that no argument has: `__p0` to `__p2` and `__n0` to
`__n2`, the program instance and their number, `__p`, the linear index of a program instance of a
persistent kernel, `__n`, the CTAs of its launch, `UNKNOWN`, and the names of `Work.values`.
"""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = "__u"
"""The name of a value that no expression gives, such as a loaded number, in a bound."""


@dataclass(frozen=True)
class Part:
    """How many elements of an axis, of `extent` each time, are `inside` of the tensor.

    With `of_loop`, that is the number for all iterations of the innermost loop, which walks along the axis.
    """

    inside: str
    extent: int
    of_loop: bool


@dataclass(frozen=True)
class Transfer:
    """Bytes between global memory and a CTA, each time a segment runs.

    `argument` is the pointer or tensor, "" if it is not known. `origins` say where the bytes begin: a byte
    offset, or the coordinates of a box; programs with equal origins load the same bytes. They are empty if
    that is not known. If it `moves`, iterations of the innermost loop load new bytes, else the same ones.
    `stages` is how many of these loads are in flight, 0 for a load whose result threads wait for. Only its
    `parts` along axes are moved.
    """

    argument: str
    size_bytes: int
    is_store: bool
    origins: tuple[str, ...] = ()
    moves: bool = False
    stages: int = 0
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Segment:
    """Straight-line code: its cost to a CTA each time, and how often it runs.

    It runs `times` for each run of the segment `parent`, or for each program if that is -1.
    `instructions` and `special` count instructions of warps, the latter those of the special function units,
    `wavefronts` accesses of 128 bytes to shared memory. `dots` is, for a kind of instruction and an operand
    type, how many multiply-adds it has. `stall` is the cycles of one warp that runs alone.
    """

    parent: int
    times: str
    is_producer: bool
    instructions: float
    special: float
    wavefronts: float
    dots: tuple[tuple[str, int], ...]
    stall: float
    transfers: tuple[Transfer, ...]


@dataclass(frozen=True)
class Work:
    """The segments of a kernel, parents before children.

    `values` are expressions with a name that others refer to, after those that they refer to themselves.
    Equal names stand for equal expressions in all kernels.
    """

    segments: tuple[Segment, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
