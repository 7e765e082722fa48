"""Depfiles, as Make reads them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from aotc.package.emit.depfile import depfile_text

NAMES = ["plain.py", "a b.py", "a#b.py", "a$b.py", "back\\slash.py"]


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
def test_make_reads_every_path(tmp_path: Path) -> None:
    """The rule's output is made again after each input changes, and not otherwise."""
    for name in NAMES:
        (tmp_path / name).touch()
    (tmp_path / "out.d").write_text(depfile_text([Path("out.aotc"), Path("out.h")], NAMES))
    (tmp_path / "Makefile").write_text(
        "all: out.aotc\ninclude out.d\nout.aotc:\n\ttouch out.aotc\n"
    )

    def make() -> str:
        command = ["make", "-C", str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def set_time(name: str, seconds: int) -> None:
        os.utime(tmp_path / name, (seconds, seconds))

    assert "touch" in make()
    for name in NAMES:
        set_time(name, 1000)
    for name in NAMES:
        set_time("out.aotc", 1001)
        assert "touch" not in make()
        set_time(name, 1002)
        assert "touch" in make(), name
        set_time(name, 1000)
    assert "touch" not in make()
    (tmp_path / "a b.py").unlink()  # a deleted input is no error of Make's
    assert "touch" in make()


def test_inputs_are_sorted_and_listed_once() -> None:
    text = depfile_text([Path("dist/llm.aotc")], ["b.py", "a.py", "b.py"])
    assert text == "dist/llm.aotc: \\\n a.py \\\n b.py\na.py:\nb.py:\n"
