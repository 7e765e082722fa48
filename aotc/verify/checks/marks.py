"""Marks for accesses of programs to a buffer, and their order.

Programs of a grid run in any order. So if one writes memory that another accesses, the result
is undefined, unless a release after the write is acquired before the access.

Invariant: all bytes of an accessed element have the same marks.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import Array, listed, reshape

NOBODY, SEVERAL = 0, -1
_Scalar = TypeVar("_Scalar", bound=np.generic)


Kind: TypeAlias = Literal["read", "written", "writer", "reader", "updater"]
"""Whether a byte was read or written at all; the last era of a plain write and of a plain read; the
last era of an atomic update.

A reader ordered after the last reader replaces it; otherwise the readers are SEVERAL.
"""

_DTYPES: dict[Kind, npt.DTypeLike] = {
    "read": np.bool_,
    "written": np.bool_,
    "writer": np.int32,
    "reader": np.int32,
    "updater": np.int32,
}


class Marks:
    """Marks for each granule of a buffer: the smallest accessed element.

    Marks of a kind are allocated at their first use.
    """

    def __init__(self, granule_bytes: int) -> None:
        self.granule_bytes = granule_bytes
        self.size_bytes = 0
        self._marks: dict[Kind, Array] = {}

    def __contains__(self, kind: Kind) -> bool:
        return kind in self._marks

    def extend(self, size_bytes: int) -> None:
        """Make room for the granules of so many bytes."""
        self.size_bytes = size_bytes
        count = size_bytes // self.granule_bytes
        for kind, marks in self._marks.items():
            self._marks[kind] = extended(marks, count)

    def split(self, granule_bytes: int) -> None:
        """Split each granule into smaller ones with the same marks."""
        times = self.granule_bytes // granule_bytes
        for kind, marks in self._marks.items():
            self._marks[kind] = np.repeat(marks, times)
        self.granule_bytes = granule_bytes

    def of(self, kind: Kind, element_bytes: int) -> Array:
        """Return the marks by element: one for each, or a row of granules for each."""
        marks = self._marks.get(kind)
        if marks is None:
            marks = np.zeros(self.size_bytes // self.granule_bytes, _DTYPES[kind])
            self._marks[kind] = marks
        count = element_bytes // self.granule_bytes
        return marks if count == 1 else reshape(marks, -1, count)

    @property
    def end_bytes(self) -> int:
        """The end of all bytes read or written."""
        ends = [0]
        for kind in ("read", "written"):
            marks = self._marks.get(kind)
            if marks is not None and marks.any():
                ends.append((marks.size - int(np.argmax(marks[::-1]))) * self.granule_bytes)
        return max(ends)


class Order:
    """The happens-before order between programs.

    Programs run one after the other, in eras with increasing numbers: each releasing atomic
    ends one. A program knows, for each other program, the last era ordered before it. A
    flag or counter keeps the knowledge of all releasing programs (a vector clock).
    """

    def __init__(self) -> None:
        self.era = 0
        self._first = 0
        self._programs = [0]  # of each era
        self._program = 0
        self._known: dict[int, int] = {}
        self._kept: dict[tuple[int, int], dict[int, int]] = {}
        self._met: dict[int, int] = {}  # known to all programs

    def begin_program(self) -> None:
        """Start the next program."""
        self._program += 1
        self._known = dict(self._met)
        self.end_era()
        self._first = self.era

    def meet(self) -> None:
        """Order all writes so far before all programs (a grid barrier)."""
        for era, program in enumerate(self._programs):
            self._met[program] = era

    def end_era(self) -> None:
        """Start the next era, after a release."""
        self.era += 1
        self._programs.append(self._program)

    def acquire(self, flag: tuple[int, int]) -> None:
        """Acquire at a flag or counter."""
        for program, era in self._kept.get(flag, {}).items():
            self._known[program] = max(era, self._known.get(program, 0))

    def release(self, flag: tuple[int, int]) -> None:
        """Release at a flag or counter."""
        released = self._kept.setdefault(flag, {})
        for program, era in {**self._known, self._program: self.era}.items():
            released[program] = max(era, released.get(program, 0))

    def are_own(self, eras: Array) -> Array:
        """Return whether eras belong to the running program."""
        return eras >= self._first

    def are_behind(self, eras: Array) -> bool:
        """Return whether all eras happen before the running program's current point."""
        return not self.unseen(eras).any()

    def unseen(self, eras: Array) -> Array:
        """Return the eras of other programs not ordered before this point."""
        is_unseen = (eras != NOBODY) & ~self.are_own(eras)
        if not self._known or not is_unseen.any():
            return is_unseen
        later = [era for era in listed(np.unique(eras[is_unseen])) if not self._is_over(era)]
        return is_unseen & np.isin(eras, later)

    def _is_over(self, era: int) -> bool:
        return era != SEVERAL and self._known.get(self._programs[era], 0) >= era


def extended(marks: npt.NDArray[_Scalar], size: int) -> npt.NDArray[_Scalar]:
    """Return a longer array of marks, the new ones zero."""
    out = np.zeros(size, marks.dtype)
    out[: marks.size] = marks
    return out
