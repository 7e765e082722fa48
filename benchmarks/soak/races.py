"""Reports of racecheck, and the ones it cannot judge.

Racecheck follows barriers of threads, and the order from an arrival at an mbarrier to its
waiters, but not the two combined. In every ring here, a warp's threads read a stage,
synchronize, and one lane arrives for all. Racecheck then takes the other lanes' reads as
unordered with the next copy into the stage. With an arrival of each thread, and nothing else
changed, it reports nothing. With a barrier of all consumers before the lane's arrival it still
does (compute-sanitizer of CUDA 13.0, one H200, 26 November 2026). The emulator follows both.

Invariant: only a read by threads before a write by an asynchronous copy is set aside. For the
reverse, a stage read before its data arrive, racecheck follows both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from aotc.verify.sass.instructions import ISSUED_ONCE
from aotc.verify.sass.text import parse

_WORD: Final = re.compile(
    r"^launches (?P<case>.*)$|"
    r"Error: Race reported between (?P<first>Read|Write) access at (?P<name>[^\s+]+)\+0x(?P<at>[0-9a-f]+)\s"
    r"=*\s+and (?P<second>Read|Write) access at [^\s+]+\+0x(?P<then>[0-9a-f]+)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses of a kernel's code reported as unordered, in racecheck's order."""

    case: str
    function: str
    kinds: tuple[str, str]
    addresses: tuple[int, int]


def find_races(output: str) -> Iterator[Race]:
    """Yield racecheck's errors, each with the last launched case."""
    case = ""
    for word in _WORD.finditer(output):
        if word["case"] is not None:
            case = word["case"]
            continue
        addresses = int(word["at"], 16), int(word["then"], 16)
        yield Race(case, word["name"], (word["first"], word["second"]), addresses)


def count_unjudged(output: str, sass_of: Mapping[str, Callable[[], str]]) -> int:
    """Return the number of errors at stages a copy fills again.

    `sass_of` makes the text of a case's cubins.
    """
    return sum(
        race.kinds == ("Read", "Write")
        and race.case in sass_of
        and _is_copy(sass_of[race.case](), race.function, race.addresses[1])
        for race in find_races(output)
    )


def _is_copy(sass: str, function: str, address: int) -> bool:
    return any(
        instruction.address == address and instruction.name in ISSUED_ONCE
        for function_sass in parse(sass)
        if function_sass.name == function
        for instruction in function_sass.instructions
    )
