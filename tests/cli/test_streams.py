"""Colours of reports on a terminal, and quiet commands."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aotc.cli.streams import coloured
from tests.support.command_line import ROOT

pytestmark = pytest.mark.usefixtures("one_worker")

REPORT = "k.toml:4:2: error: expected error: or note: x\n  [a]\n   ^^\n  help: b\n  note: c"


def test_colours_are_of_the_first_word_and_the_carets() -> None:
    assert coloured(REPORT).splitlines() == [
        "k.toml:4:2: \x1b[31m\x1b[1merror:\x1b[0m expected error: or note: x",
        "  [a]",
        "\x1b[31m\x1b[1m   ^^\x1b[0m",
        "  \x1b[32m\x1b[1mhelp:\x1b[0m b",
        "  \x1b[36m\x1b[1mnote:\x1b[0m c",
    ]
    assert coloured("warning: a").startswith("\x1b[33m")
    assert coloured("7 kernels, no error: at all") == "7 kernels, no error: at all"


@pytest.mark.parametrize(
    ("environment", "has_colours"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_errors_are_coloured_on_a_terminal_alone(
    tmp_path: Path, environment: dict[str, str], has_colours: bool
) -> None:
    (tmp_path / "k.toml").write_text("[package]\nnam = 1\n")
    command = [sys.executable, "-m", "aotc", "build", "k.toml"]
    inherited = {key: text for key, text in os.environ.items() if key != "NO_COLOR"}
    env = {**inherited, "TERM": "xterm", "PYTHONPATH": str(ROOT), **environment}
    reader, writer = pty.openpty()
    process = subprocess.run(command, cwd=tmp_path, env=env, stderr=writer, check=False)
    os.close(writer)
    output = os.read(reader, 1 << 16).decode()
    assert process.returncode == 1
    assert ("\x1b[31m\x1b[1merror:\x1b[0m" in output) is has_colours
    piped = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    assert b"\x1b" not in piped.stderr
    assert b"error: " in piped.stderr


@pytest.mark.usefixtures("folder")
def test_a_quiet_build_writes_results_alone(run: Any) -> None:
    code, out, err = run("build", "--no-cache", "-q")
    assert (code, err) == (0, "")
    assert out.startswith("dist/demo.aotc\n")


def test_a_quiet_build_still_tells_mistakes_and_warnings(folder: Path, run: Any) -> None:
    text = (folder / "kernels.toml").read_text()
    (folder / "kernels.toml").write_text(text.replace('"ok"', '"ok"  # TODO: say which'))
    assert run("build", "--no-cache", "--quiet")[2] == (
        'warning: kernels.toml:13: MODE = "ok" is a guess: say which\n'
    )
    (folder / "kernels.toml").write_text(text.replace("x_ptr", "y_ptr"))
    assert "error: expected an argument of add, got 'y_ptr'" in run("build", "-q")[2]
