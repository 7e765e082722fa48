"""The work of a kernel, counted from its final schedule: instructions, dots, bytes, trip counts.

The compiler counts it, the cache keeps it, and the cost model of `aotc.package.tuning` turns it
into time.

Invariant: plain frozen data. Whatever depends on a launch is an expression as text. Its names are
the launch's integer arguments and extents, `UNKNOWN`, the names of `Work.values`, and reserved
ones. `__p0` to `__p2` and `__n0` to `__n2` are the program instance and the grid, `__p` the linear
index of a persistent kernel's program instance, `__n` the CTAs of its launch.
"""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = "__u"
"""The name of a value that no expression gives, such as a loaded number, in a bound."""


@dataclass(frozen=True)
class Part:
    """The number of elements of an axis `inside` of the tensor, of `extent` each time.

    With `of_loop`, it is the number for all iterations of the innermost loop, along this axis.
    """

    inside: str
    extent: int
    of_loop: bool


@dataclass(frozen=True)
class Transfer:
    """Bytes between global memory and a CTA, each time a segment runs.

    `argument` is the pointer or tensor, "" if it is not known. `origins` are the start of the
    bytes: a byte offset, or the coordinates of a box. Programs with equal origins load the same
    bytes. They are empty if not known. If it `moves`, iterations of the innermost loop load new
    bytes, else the same ones. `stages` is the number of these loads in flight, 0 for a load with
    waiting threads. Only its `parts` along axes are moved.
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
    """Straight-line code: its cost to a CTA each time, and its count of runs.

    It runs `times` for each run of the segment `parent`, or for each program if the parent is -1.
    `instructions` and `special` count instructions of warps, the latter those of the special
    function units, `wavefronts` accesses of 128 bytes to shared memory. `dots` is the number of
    multiply-adds for a kind of instruction and an operand type. `stall` is the cycles of one warp
    that runs alone.
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

    `values` are named expressions for use by others, after the ones they use themselves. Equal
    names stand for equal expressions in all kernels.
    """

    segments: tuple[Segment, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
