"""What ptxas leaves of the warpgroup instructions of PTX: matrix instructions one by one, registers.

If ptxas cannot prove that nothing touches an accumulator in flight it serializes: each matrix
instruction becomes a group of its own that is waited for at once. If it does not know how many threads
a block has, it drops `setmaxnreg`, and roles that were promised registers spill or never start. And it
may take two matrix instructions for one, if it takes their descriptors for the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from aotc.verify.sass.findings import Finding
from aotc.verify.sass.instructions import MATRIX
from aotc.verify.sass.text import Instruction

_PTX: Final = re.compile(
    r"\bwgmma\.(?:(?P<matrix>mma_async)|wait_group\.sync\.aligned\s+(?P<left>\d+))"
)

_PTX_GROUPS: Final = re.compile(r"\bwgmma\.(?:(?P<matrix>mma_async)|commit_group)")
_COMMIT: Final = (
    "gsb0"  # the scoreboard that the last matrix instruction of a commit group is counted by
)


def find_serialized(instructions: tuple[Instruction, ...], ptx: str) -> Iterator[Finding]:
    """Yield a finding if no two matrix instructions of a cubin overlap, and those of its PTX do."""
    first = next((each for each in instructions if each.name in MATRIX), None)
    if first is None or not _is_serialized(instructions, ptx):
        return
    meaning = "each matrix instruction is waited for before the next; in the PTX they overlap"
    yield Finding("serialized", first.address, first.text, meaning, (), first.source)


def find_merged(instructions: tuple[Instruction, ...], ptx: str) -> Iterator[Finding]:
    """Yield a finding if commit groups of a cubin have other matrix instructions than those of its PTX.

    A group may be there more often, where a loop is unrolled. No matrix instruction is without a use in
    what is compiled here. If they are serialized, each is a group, and they are counted.
    """
    found = [each for each in instructions if each.name in MATRIX]
    expected, got = Counter(_ptx_groups(ptx)), Counter(_sass_groups(found))
    if _is_serialized(instructions, ptx):
        is_whole = len(found) >= sum(expected.elements())
    else:
        is_whole = expected <= got and set(got) == set(expected)
    if not expected or not found or is_whole:
        return
    first = found[0]
    meaning = (
        f"the PTX has commit groups of {_sizes(expected)} matrix instructions, the cubin of "
        f"{_sizes(got)}: results are missing"
    )
    yield Finding(
        "matrix instructions merged", first.address, first.text, meaning, (), first.source
    )


def _ptx_groups(ptx: str) -> Iterator[int]:
    """Yield how many matrix instructions each commit group has."""
    num = 0
    for match in _PTX_GROUPS.finditer(_code(ptx)):
        if match["matrix"]:
            num += 1
        else:
            yield num
            num = 0


def _sass_groups(found: Iterable[Instruction]) -> Iterator[int]:
    num = 0
    for each in found:
        num += 1
        if _COMMIT in each.operands:
            yield num
            num = 0


def _sizes(groups: Counter[int]) -> str:
    return ", ".join(map(str, sorted(groups.elements())))


def find_dropped_registers(instructions: tuple[Instruction, ...], ptx: str) -> Iterator[Finding]:
    """Yield a finding if the PTX gives registers to warps and the cubin does not."""
    if (
        "setmaxnreg." not in ptx
        or not instructions
        or any(each.name == "USETMAXREG" for each in instructions)
    ):
        return
    first = instructions[0]
    meaning = (
        "the PTX has setmaxnreg and the cubin no USETMAXREG: warps keep the registers of a launch"
    )
    yield Finding("setmaxnreg dropped", first.address, first.text, meaning, (), first.source)


def _is_serialized(instructions: tuple[Instruction, ...], ptx: str) -> bool:
    return _overlaps(_ptx_events(ptx)) and not _overlaps(_sass_events(instructions))


def _code(ptx: str) -> str:
    return re.sub(r"//[^\n]*", "", ptx)


def _ptx_events(ptx: str) -> Iterator[int | None]:
    """Yield None for each matrix instruction and, for each wait, how many groups it leaves."""
    for match in _PTX.finditer(_code(ptx)):
        yield None if match["matrix"] else int(match["left"])


def _sass_events(instructions: tuple[Instruction, ...]) -> Iterator[int | None]:
    for each in instructions:
        if each.name in MATRIX:
            yield None
        elif each.name == "WARPGROUP" and "DEPBAR" in each.modifiers:
            yield int(each.operands[-1], 0)


def _overlaps(events: Iterable[int | None]) -> bool:
    """Whether two matrix instructions may be in flight at once."""
    in_flight = 0
    for left in events:
        if left is None:
            in_flight += 1
            if in_flight > 1:
                return True
        elif left == 0:
            in_flight = 0
        elif in_flight:
            return True
    return False
