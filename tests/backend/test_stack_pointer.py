"""Cubins that overwrite their stack pointer are detected and rejected."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.backend import CrashError, assemble, disassemble
from aotc.backend.cubin_code import code_sections
from aotc.backend.stack_pointer import may_overwrite_stack, overwritten_stack
from tests.backend.programs import SM_90
from tests.backend.test_ptxas import EMPTY, fake_ptxas, live_values

LINE = "        /*0{at}*/              {text} ;"


def _sass(*texts: str) -> str:
    lines = ["LDC R1, c[0x0][0x28]", "VIADD R1, R1, 0xffffffe8", *texts]
    return "\n".join(
        LINE.format(at=f"{16 * index:03x}", text=text) for index, text in enumerate(lines)
    )


@pytest.mark.parametrize(
    "text",
    [
        "IMAD R1, R12, 0x2, R1",
        "@!P1 LDG.E R1, desc[UR4][R2.64]",
        "S2R R1, SR_TID.X",
        "SHFL.BFLY PT, R1, R2, 0x1, 0x1f",
    ],
)
def test_a_value_in_the_stack_pointer_is_found(text: str) -> None:
    assert overwritten_stack(_sass("STL [R1+0x4], R9", text)) == text
    assert overwritten_stack(_sass(text)) == "", "without a stack it is a register like others"


@pytest.mark.parametrize(
    "text",
    [
        "VIADD R1, R1, 0x18",
        "IADD3 R1, R1, -0x18, RZ",
        "IMAD R10, R1, R2, RZ",
        "LDL R2, [R1]",
        "R2UR UR1, R1",
    ],
)
def test_steps_of_the_pointer_and_reads_are_none(text: str) -> None:
    assert overwritten_stack(_sass("STL [R1+0x4], R9", text)) == ""


def _spilling() -> tuple[bytes, bytes]:
    """Return a cubin with spills, and one with loads into the stack pointer."""
    right = assemble(live_values(36, ".maxnreg 24\n"), SM_90).cubin
    (code,) = code_sections(right)
    broken = bytearray(code)
    for start in range(0, len(code), 16):
        if int.from_bytes(code[start : start + 2], "little") & 0xFFF == 0x981:  # LDG
            broken[start + 2] = 1
    return right, right.replace(code, bytes(broken))


def test_few_cubins_have_to_be_disassembled() -> None:
    right, broken = _spilling()
    assert not may_overwrite_stack(right)
    assert may_overwrite_stack(broken)
    assert overwritten_stack(disassemble(broken)).startswith("LDG.E R1,")
    assert not may_overwrite_stack(b"no cubin")


def test_a_cubin_that_overwrites_it_is_made_in_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, broken = _spilling()
    (tmp_path / "right").write_bytes(right)
    (tmp_path / "broken").write_bytes(broken)
    copy_script = 'while [ "$1" != -o ]; do shift; done; cp {} "$2"; echo "8 bytes spill stores"\n'
    nvdisasm = f'case "$1" in -c) echo "{_sass("STL [R1], R9", "S2R R1, SR_TID.X")}"; exit;; esac\n'
    pick_script = (
        f'case "$*" in *level=10*) file={tmp_path}/right;; *) file={tmp_path}/broken;; esac\n'
    )
    fake_ptxas(tmp_path, monkeypatch, nvdisasm + pick_script + copy_script.format("$file"))
    assembly = assemble(EMPTY, SM_90)
    assert (assembly.cubin, assembly.level, assembly.crash) == (right, "", "")
    fake_ptxas(tmp_path, monkeypatch, nvdisasm + copy_script.format(tmp_path / "broken"))
    with pytest.raises(CrashError, match=r"overwrites the stack pointer: S2R R1, SR_TID.X"):
        assemble(EMPTY, SM_90)
