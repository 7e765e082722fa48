"""Registers of wgmmas in flight, in SASS: accesses on every path."""

from __future__ import annotations

import pytest

from aotc.verify.sass.audit import audit

FIRST = "HGMMA.64x16x16.F32.BF16 R24, R4, gdesc[UR4], R24"
SECOND = "HGMMA.64x16x16.F32.BF16 R24, R8, gdesc[UR8], R24, gsb0"
WAIT, WAIT_ONE = "WARPGROUP.DEPBAR.LE gsb0, 0x0", "WARPGROUP.DEPBAR.LE gsb0, 0x1"


def _found(*instructions: str) -> list[tuple[str, str]]:
    """Return premature accesses: the instruction, and the kind. A line may be a label."""
    lines: list[str] = []
    address = 0
    for line in (*instructions, "EXIT"):
        if line.startswith(".L"):
            lines.append(line)
            continue
        lines.append(f"        /*{address:04x}*/                   {line} ;")
        address += 16
    findings = [line for line in audit("\n".join(lines)) if line.kind == "in flight"]
    assert all(line.is_failure for line in findings)
    return [(line.text, line.meaning.partition(" while ")[0]) for line in findings]


@pytest.mark.parametrize(
    ("touch", "how"),
    [
        ("IMAD.MOV.U32 R5, RZ, RZ, R40", "R5 is written"),
        ("LDSM.16.M88.4 R8, [R91+UR5+0x8000]", "R8 is written"),
        ("LDG.E.128 R0, [R40.64]", ""),
        ("LDG.E.128 R2, [R40.64]", "R4 is written"),
        ("FADD R40, R31, R41", "R31 is read"),
        ("FADD R31, R40, R41", "R31 is written"),
        ("FADD R40, R32, R4", ""),
        ("STG.E desc[UR6][R2.64], R24", "R24 is read"),
    ],
)
def test_registers_are_touched_after_the_wait(touch: str, how: str) -> None:
    findings = _found(FIRST, SECOND, touch, WAIT)
    assert findings == ([(touch, how)] if how else [])
    assert not _found(touch, FIRST, SECOND, WAIT, touch)


def test_a_wait_covers_all_but_the_newest_groups() -> None:
    other = SECOND.replace("R24", "R48").replace("R8", "R12")
    touch = ["MOV R4, R60", "MOV R8, R60", "MOV R12, R60"]
    assert [text for text, _ in _found(SECOND, other, WAIT_ONE, *touch)] == [touch[2]]
    # The first instruction belongs to the group closed by the second one.
    assert not _found(FIRST, SECOND, other, WAIT_ONE, *touch[:2], WAIT)


def test_an_accumulator_is_continued_as_a_whole() -> None:
    assert not _found(FIRST, SECOND, FIRST, SECOND, WAIT)
    (finding,) = _found(SECOND, FIRST.replace("R24", "R28"), WAIT)
    assert finding[1] == "R28 is written"
    (finding,) = _found(SECOND, FIRST.replace("R4", "R24").replace("R24,", "R48,", 1), WAIT)
    assert finding[1] == "R24 is read"


def test_the_next_iteration_uses_the_registers_of_the_last_slice() -> None:
    """As ptxas 13.5 did where the PTX read all slices of an operand ahead of the first dot."""
    first = f"{FIRST}, gsb0"
    loop = [".L_x_1:", "LDC.64 R8, c[0x0][0x218]", "LDSM.16.M88.4 R4, [R91+UR5]", first]
    loop += [WAIT_ONE, "LDSM.16.M88.4 R8, [R92+UR5]", SECOND, WAIT_ONE]
    loop += ["@P0 BRA `(.L_x_1)", WAIT]
    assert _found(*loop) == [("LDC.64 R8, c[0x0][0x218]", "R8 is written")]
    assert not _found(*[line for line in loop if "LDC" not in line])
