"""Bounded reads: a non-regular or too large file is an immediate error."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from aotc.regular_file import open_regular, read_regular


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for content in (b"", b"x", b"x" * 1000):
        path.write_bytes(content)
        assert read_regular(path, 1000) == content
        with open_regular(path, 1000) as file:
            assert file.size_bytes == len(content)
            assert file.read(10) + file.read(10000) == content


def test_what_is_no_regular_file_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket"))
    listening.close()
    for path, reason in (
        ("fifo", "expected a regular file, got a FIFO"),
        ("link", "expected a regular file, got a FIFO"),
        ("/dev/zero", "expected a regular file, got a character device"),
        ("/dev/null", "expected a regular file, got a character device"),
        ("socket", "No such device or address"),
        (".", "Is a directory"),
        ("absent", "No such file or directory"),
        ("a\0b", "embedded null byte"),
        ("a" * 300, "File name too long"),
    ):
        with pytest.raises(OSError) as caught:
            read_regular(tmp_path / path, 100)
        assert caught.value.strerror == reason


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(OSError) as caught:
        read_regular(path, 1 << 20)
    assert caught.value.strerror == "expected at most 1048576 bytes, got 1099511627776"


def test_a_file_that_grows_is_not_followed() -> None:
    # Its size is 0 until it is read.
    with pytest.raises(OSError) as caught:
        read_regular("/proc/self/status", 10)
    assert caught.value.strerror == "expected at most 10 bytes, got more"
