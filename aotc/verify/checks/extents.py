"""Extents for the classes of launches at which a kernel is verified.

Mistakes in masks, tails and loops show where an extent meets its block: the first classes,
`CLASSES`, go through these boundaries. Other mistakes need launches of their own,
`MORE_CLASSES`: rings of stages that wrap around often, axes confused because all counts are
equal, programs with several tiles, offsets beyond 31 bits.

Invariant: an extent is a multiple of its divisor.
"""

from __future__ import annotations

import math

CLASSES = ("over", "under", "full", "one", "several", "none")
# "float" is followed by an argument and a key of `FLOATS`, "long" and "longer" by an extent,
# "in place" by the aliased pointers.
MORE_CLASSES = (
    *("deep", "sums", "apart", "persistent", "special", "float", "far", "long", "longer"),
    "in place",
)

LONG_SUM = 2048
"""Elements covered by loops at launches of the class "sums": their rounding errors add up."""

LONG = {"long": 1 << 31, "longer": 5 << 29}
"""The upper limit of an extent at launches of these classes."""

APART = (2, 3, 5)
"""Numbers of blocks that cannot be confused."""

# Special values of a float argument. Large ones leave room in fp16 and fp32: where everything
# overflows, nothing shows. A negative one makes exponentials overflow where the assumed maximum
# of their arguments is the minimum.
FLOATS = {
    "negative": -16.0,
    "minus zero": -0.0,
    "large": 2.0**12,
    "infinite": math.inf,
    "NaN": math.nan,
}

COUNTS = {"apart": APART, "far": (4, 4, 2)}
"""Programs along axes without an extent; enough rows for 32-bit strides to reach beyond 2**32."""

_FALLBACKS: dict[str, tuple[str, ...]] = {
    "over": ("two thirds", "half"),
    "several": ("half", "two thirds"),
}
_COUNTS = {"over": 2, "under": 1, "full": 3, "one": 2, "several": 1, "none": 2}


def is_float(label: str) -> bool:
    """Return whether a launch of this label tests a float argument."""
    return label.startswith("float: ")


def is_deep(label: str) -> bool:
    """Return whether a launch of this label tests loops with many iterations."""
    return label in ("deep", "sums")


def is_long(label: str) -> bool:
    """Return whether a launch of this label tests a long extent."""
    return label.startswith(tuple(LONG))


def may_store_nothing(label: str) -> bool:
    """Return whether a correct kernel may store nothing at a launch of this label."""
    return label == "none" or is_float(label)


def extent_of(kind: str, block: int, divisor: int) -> int:
    """Return an extent of a class, for blocks of `block`: a multiple of `divisor`.

    An extent covered one at a time is a number of programs: 1 to 3.
    """
    if block == 1:
        return _COUNTS.get(kind, 1) * divisor
    whole = -(-block // divisor)
    values = {
        "over": block // divisor + 1,
        "under": max(1, whole - 1),
        "full": whole,
        "one": 1,
        "several": _next_prime((2 * block + block // 3) // divisor + 1),
        "two thirds": max(1, 2 * whole // 3),
        "half": whole // 2 + 1,
        "none": 0,
    }
    return values[kind] * divisor


def candidates(index: int, position: int, block: int, divisor: int) -> list[int]:
    """Return the extents to try for class `index`, the preferred ones first.

    `position` counts extents, to keep them out of step.
    """
    regular = CLASSES[:-1]
    if CLASSES[index % len(CLASSES)] == "none":
        first: tuple[str, ...] = ("none",)
        start = 0
    else:
        start = (index + 2 * position) % len(regular)
        first = (regular[start], *_FALLBACKS.get(regular[start], ()))
    order = (*first, *(regular[(start + step) % len(regular)] for step in range(len(regular))))
    return [extent_of(kind, block, divisor) for kind in order]


def part_beyond(num_blocks: int, block: int, divisor: int) -> int:
    """Return an extent of so many blocks and, where possible, a part of one more.

    >>> part_beyond(7, 32, 16), part_beyond(7, 1, 1) (240, 8)
    """
    return (num_blocks * block // divisor + 1) * divisor


def last_in_part(num_blocks: int, block: int, divisor: int, part: int) -> int:
    """Return an extent of so many blocks, the last of them partial: a third plus `part`.

    >>> last_in_part(3, 64, 1, 5), last_in_part(3, 1, 1, 5) (155, 3)
    """
    if block == 1:
        return num_blocks * divisor
    size = (num_blocks - 1) * block + min(block, block // 3 + part)
    return max(1, -(-size // divisor)) * divisor


def just_below(num_blocks: int, block: int, divisor: int) -> int:
    """Return the largest extent below so many whole blocks; for blocks of 1, so many."""
    if block == 1:
        return num_blocks * divisor
    return max(1, -(-num_blocks * block // divisor) - 1) * divisor


def _next_prime(value: int) -> int:
    while value > 2 and any(value % factor == 0 for factor in range(2, math.isqrt(value) + 1)):
        value += 1
    return value
