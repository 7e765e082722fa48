"""Outputs: regular files are replaced whole, links stay, and nothing else is touched."""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import aotc
from aotc.output_file import make_folder, write_outputs


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def _device(path: Path) -> None:
    """Make a device as `/dev/null` is; the real one is not to be tested with."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("devices are made by root alone")


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize(
    ("make", "kind", "reason"),
    [
        (os.mkfifo, stat.S_ISFIFO, "expected a regular file, got a FIFO"),
        (_socket, stat.S_ISSOCK, "expected a regular file, got a socket"),
        (_device, stat.S_ISCHR, "expected a regular file, got a character device"),
        (os.mkdir, stat.S_ISDIR, "Is a directory"),
    ],
)
def test_what_is_no_file_is_left_as_it_is(
    tmp_path: Path,
    make: Callable[[Path], None],
    kind: Callable[[int], bool],
    reason: str,
    is_link: bool,
) -> None:
    make(tmp_path / "special")
    (tmp_path / "link").symlink_to("special")
    (tmp_path / "first").write_bytes(b"old")
    path = tmp_path / ("link" if is_link else "special")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError) as caught:
        write_outputs({tmp_path / "first": b"new", path: b"new"})
    assert (caught.value.strerror, caught.value.filename) == (reason, str(path))
    assert kind((tmp_path / "special").lstat().st_mode)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "first").read_bytes() == b"old"  # all or none
    assert sorted(tmp_path.iterdir()) == before


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link, file = tmp_path / "link", tmp_path / "elsewhere" / "file"
    link.symlink_to("second")
    (tmp_path / "second").symlink_to("elsewhere/file")
    for content in (b"made", b"replaced", b""):  # first by a link to nothing
        write_outputs({link: content})
        assert link.is_symlink()
        assert (tmp_path / "second").is_symlink()
        assert file.read_bytes() == content
    assert [path.name for path in file.parent.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("loop", "Too many levels of symbolic links"),
        ("nowhere", "No such file or directory"),
        ("missing/file", "No such file or directory"),
        ("file/file", "Not a directory"),
        ("a\0b", "embedded null byte"),
    ],
)
def test_a_path_that_leads_nowhere_is_told(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("missing/file")
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(OSError) as caught:
        write_outputs({tmp_path / "new": b"new", tmp_path / name: b"new"})
    assert caught.value.strerror == reason
    assert caught.value.filename == str(tmp_path / name)
    assert not (tmp_path / "new").exists()


def test_a_folder_where_a_file_is_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a")
    for name, reason in (
        ("file", "a file of that name is there"),
        ("file/below", "Not a directory"),
        ("a\0b", "embedded null byte"),
    ):
        with pytest.raises(OSError) as caught:
            make_folder(tmp_path / name)
        assert (caught.value.strerror, caught.value.filename) == (reason, str(tmp_path / name))


# Other writers of files choose their own paths.
_OWN_PATHS = {"output_file.py", "package/cache/entry.py", "backend/ptxas.py"}
_WRITE = re.compile(
    r"\.write_(text|bytes)\(|open\([^)]*['\"][wax]b?\+?['\"]|\bshutil\.(copy|move)|\bos\.(replace|rename)\("
)


def test_every_output_is_written_here() -> None:
    package = Path(aotc.__file__).parent
    written = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if any(_WRITE.search(line) for line in path.read_text().splitlines() if "(ctx," not in line)
    }
    assert written == _OWN_PATHS
