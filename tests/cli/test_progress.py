"""The progress of a build on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from aotc import cli
from tests.support.command_line import start, use_mode


@pytest.mark.parametrize("mode", ["ok", "user_error"])
def test_a_terminal_gets_a_progress_bar(folder: Path, mode: str) -> None:
    use_mode(folder, mode)
    master, slave = pty.openpty()
    build = start(
        folder,
        "build",
        "--no-cache",
        env={"TERM": "xterm"},
        stdout=subprocess.DEVNULL,
        stderr=slave,
    )
    os.close(slave)
    written = _read_all(master)
    os.close(master)
    assert build.wait(timeout=30) == (0 if mode == "ok" else cli.EXIT_WRONG)
    assert "compiling" in written
    assert "[1/2]" not in written
    assert ("failed: add sm_90a T=fp16" in written) == (mode == "user_error")
    assert "\x1b[?25h" in written  # the cursor is back


def _read_all(descriptor: int) -> str:
    content = b""
    while True:
        try:
            piece = os.read(descriptor, 4096)
        except OSError:  # the last writer is gone
            piece = b""
        if not piece:
            return content.decode()
        content += piece
