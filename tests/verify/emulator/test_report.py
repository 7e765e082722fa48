"""The report of a fault."""

from __future__ import annotations

from aotc.verify.emulator.errors import Fault
from aotc.verify.emulator.report import render_fault
from aotc.verify.emulator.syntax import SourceLocation

LOCATION = SourceLocation("kernel.py", 3, 9, SourceLocation("model.py", 1, 0))


def fault(**changes):
    settings = {
        "line": 12,
        "text": "st.shared.b32 [%r1], %r2",
        "location": LOCATION,
        "cta": (1, 0, 2),
        "thread": 70,
        "notes": ["the other access: line 9"],
    }
    return Fault("race", "two warps write byte 4", **{**settings, **changes})


def test_full_report(tmp_path):
    source = tmp_path / "kernel.py"
    source.write_text("def k():\n    x = 1\n    y = x + load(p)\n")
    report = render_fault(fault(), sources=[source], reproduction="aotc verify --seed 3")
    assert report.splitlines() == [
        "race: two warps write byte 4",
        "  PTX line 12: st.shared.b32 [%r1], %r2",
        "  at kernel.py:3:9",
        "      y = x + load(p)",
        "          ^",
        "  called from model.py:1:0",
        "  in CTA (1, 0, 2), thread 70 (warp 2, lane 6)",
        "  the other access: line 9",
        "  to see it again: aotc verify --seed 3",
    ]


def test_unknown_fields_are_left_out():
    report = render_fault(fault(location=None, cta=(), thread=None, notes=(), line=0))
    assert report == "race: two warps write byte 4"


def test_unreadable_source_files(tmp_path):
    short = tmp_path / "kernel.py"
    short.write_text("one line\n")
    binary = tmp_path / "more" / "kernel.py"
    binary.parent.mkdir()
    binary.write_bytes(b"\xff\xfe\n\n\n\n")
    for sources in ([], [short], [binary], [tmp_path / "absent" / "kernel.py"]):
        lines = render_fault(fault(), sources=sources).splitlines()
        assert lines[2:4] == ["  at kernel.py:3:9", "  called from model.py:1:0"]


def test_long_instructions_are_cut():
    text = "wgmma.mma_async {" + ", ".join(f"%r{i}" for i in range(200)) + "}"
    line = render_fault(fault(text=text)).splitlines()[1]
    assert line.endswith(" …")
    assert len(line) < 200


def test_a_fault_says_itself_where():
    assert str(fault()) == "race: two warps write byte 4; line 12: st.shared.b32 [%r1], %r2"
