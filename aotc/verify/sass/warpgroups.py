"""Compare ptxas' warpgroup instructions with the PTX.

If ptxas cannot prove that nothing accesses an accumulator in flight it serializes: each matrix
instruction becomes a group of its own and is waited for at once. Without a known block size it
drops `setmaxnreg`, and roles with promised registers spill or never start. And it may merge two
matrix instructions if it takes their descriptors for equal.
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
_COMMIT: Final = "gsb0"  # the scoreboard of a commit group's last matrix instruction


def find_serialized(instructions: tuple[Instruction, ...], ptx: str) -> Iterator[Finding]:
    """Yield a finding if matrix instructions overlap in the PTX but not in the cubin."""
    first = next((instruction for instruction in instructions if instruction.name in MATRIX), None)
    if first is None or not _is_serialized(instructions, ptx):
        return
    meaning = "each matrix instruction is waited for before the next; in the PTX they overlap"
    yield Finding("serialized", first.address, first.text, meaning, (), first.source)


def find_merged(instructions: tuple[Instruction, ...], ptx: str) -> Iterator[Finding]:
    """Yield a finding if a cubin's commit groups lack matrix instructions of the PTX.

    An unrolled loop may repeat a group. Every matrix instruction in compiled code has a use. If
    they are serialized, each is a group, and only their number counts.
    """
    matrices = [instruction for instruction in instructions if instruction.name in MATRIX]
    expected, actual = Counter(_ptx_groups(ptx)), Counter(_sass_groups(matrices))
    if _is_serialized(instructions, ptx):
        is_whole = len(matrices) >= sum(expected.elements())
    else:
        is_whole = expected <= actual and set(actual) == set(expected)
    if not expected or not matrices or is_whole:
        return
    first = matrices[0]
    meaning = (
        f"the PTX has commit groups of {_sizes(expected)} matrix instructions, the cubin of "
        f"{_sizes(actual)}: results are missing"
    )
    yield Finding(
        "matrix instructions merged", first.address, first.text, meaning, (), first.source
    )


def _ptx_groups(ptx: str) -> Iterator[int]:
    """Yield the number of matrix instructions in each commit group."""
    num = 0
    for match in _PTX_GROUPS.finditer(_code(ptx)):
        if match["matrix"]:
            num += 1
        else:
            yield num
            num = 0


def _sass_groups(matrices: Iterable[Instruction]) -> Iterator[int]:
    num = 0
    for matrix in matrices:
        num += 1
        if _COMMIT in matrix.operands:
            yield num
            num = 0


def _sizes(groups: Counter[int]) -> str:
    return ", ".join(map(str, sorted(groups.elements())))


def find_dropped_registers(instructions: tuple[Instruction, ...], ptx: str) -> Iterator[Finding]:
    """Yield a finding if the PTX reallocates warps' registers and the cubin does not."""
    if (
        "setmaxnreg." not in ptx
        or not instructions
        or any(instruction.name == "USETMAXREG" for instruction in instructions)
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
    """Yield None for each matrix instruction, and the pending groups of each wait."""
    for match in _PTX.finditer(_code(ptx)):
        yield None if match["matrix"] else int(match["left"])


def _sass_events(instructions: tuple[Instruction, ...]) -> Iterator[int | None]:
    for instruction in instructions:
        if instruction.name in MATRIX:
            yield None
        elif instruction.name == "WARPGROUP" and "DEPBAR" in instruction.modifiers:
            yield int(instruction.operands[-1], 0)


def _overlaps(events: Iterable[int | None]) -> bool:
    """Return whether two matrix instructions may be in flight at once."""
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
