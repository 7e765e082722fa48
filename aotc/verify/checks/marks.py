"""What programs did to a buffer, and which of it they see.

Programs of a grid run in any order, so what one writes and another touches has no defined result,
unless an atomic that acquires has seen one that released after the write.

Invariant: all bytes of an element that was accessed have the same marks.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import Array, listed, reshape

NOBODY, SEVERAL = 0, -1
_Scalar = TypeVar("_Scalar", bound=np.generic)


Kind: TypeAlias = Literal["read", "written", "writer", "reader", "updater"]
"""Whether a byte was read or written at all; the last era that wrote it and the last that read it,
by anything but an atomic; the last era that updated it by one.

A read by a program that comes after the last reader takes its place; else the readers are SEVERAL.
"""

_DTYPES: dict[Kind, npt.DTypeLike] = {
    "read": np.bool_,
    "written": np.bool_,
    "writer": np.int32,
    "reader": np.int32,
    "updater": np.int32,
}


class Marks:
    """Hold marks for each granule of a buffer, which is the smallest element that was accessed.

    Those of a kind are made when they are first used.
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
        """Make granules smaller: of each become several with the same marks."""
        times = self.granule_bytes // granule_bytes
        for kind, marks in self._marks.items():
            self._marks[kind] = np.repeat(marks, times)
        self.granule_bytes = granule_bytes

    def of(self, kind: Kind, element_bytes: int) -> Array:
        """Return marks, one for each element of a size; several where it has several granules."""
        marks = self._marks.get(kind)
        if marks is None:
            marks = np.zeros(self.size_bytes // self.granule_bytes, _DTYPES[kind])
            self._marks[kind] = marks
        count = element_bytes // self.granule_bytes
        return marks if count == 1 else reshape(marks, -1, count)

    @property
    def end_bytes(self) -> int:
        """The first byte after all that was read or written."""
        ends = [0]
        for kind in ("read", "written"):
            marks = self._marks.get(kind)
            if marks is not None and marks.any():
                ends.append((marks.size - int(np.argmax(marks[::-1]))) * self.granule_bytes)
        return max(ends)


class Order:
    """Say which accesses of other programs the running one comes after.

    Programs run one after the other. Each goes through eras, numbered on and on: one ends with
    every atomic that releases. What a program knows is the last era of each other one that it comes
    after, and a flag or counter keeps what those who released there knew.
    """

    def __init__(self) -> None:
        self.era = 0
        self._first = 0
        self._programs = [0]  # of each era
        self._program = 0
        self._known: dict[int, int] = {}
        self._kept: dict[tuple[int, int], dict[int, int]] = {}
        self._met: dict[int, int] = {}  # what all programs know

    def begin_program(self) -> None:
        """Take note that another program runs from here on."""
        self._program += 1
        self._known = dict(self._met)
        self.end_era()
        self._first = self.era

    def meet(self) -> None:
        """Take note that all programs see what any has written so far."""
        for era, program in enumerate(self._programs):
            self._met[program] = era

    def end_era(self) -> None:
        """Take note that an atomic has released."""
        self.era += 1
        self._programs.append(self._program)

    def acquire(self, place: tuple[int, int]) -> None:
        """Take note that an atomic has acquired at a flag or counter."""
        for program, era in self._kept.get(place, {}).items():
            self._known[program] = max(era, self._known.get(program, 0))

    def release(self, place: tuple[int, int]) -> None:
        """Take note that an atomic releases at a flag or counter."""
        kept = self._kept.setdefault(place, {})
        for program, era in {**self._known, self._program: self.era}.items():
            kept[program] = max(era, kept.get(program, 0))

    def are_own(self, eras: Array) -> Array:
        """Return which eras are of the running program."""
        return eras >= self._first

    def are_behind(self, eras: Array) -> bool:
        """Return whether the running program comes after all of these eras."""
        return not self.unseen(eras).any()

    def unseen(self, eras: Array) -> Array:
        """Return which eras are of other programs and not known to be over."""
        others = (eras != NOBODY) & ~self.are_own(eras)
        if not self._known or not others.any():
            return others
        later = [era for era in listed(np.unique(eras[others])) if not self._is_over(era)]
        return others & np.isin(eras, later)

    def _is_over(self, era: int) -> bool:
        return era != SEVERAL and self._known.get(self._programs[era], 0) >= era


def extended(marks: npt.NDArray[_Scalar], size: int) -> npt.NDArray[_Scalar]:
    """Return marks with room for more, unmarked."""
    out = np.zeros(size, marks.dtype)
    out[: marks.size] = marks
    return out
