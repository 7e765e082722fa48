"""The content of a cache's folder, and pruning."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aotc.package.cache import folder as cache_folder
from aotc.package.cache.folder import Entry
from aotc.package.cache.store import FORMAT

DAY = 86400.0
NOW = 1000 * DAY


def entry(number: int, days: float, kind: str = "kernels", size_bytes: int = 100) -> Entry:
    return Entry(Path(f"{number:064x}"), kind, size_bytes, NOW - days * DAY)


def put(folder: Path, name: str, days: float) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(10))
    os.utime(path, (NOW - days * DAY, NOW - days * DAY))
    return path


def test_entries(tmp_path: Path) -> None:
    name = "0123456789abcdef" * 4
    kernel = put(tmp_path, f"{FORMAT}/kernels/01/{name}", 2)
    request = put(tmp_path, f"{FORMAT}/requests/01/{name}", 1)
    old = put(tmp_path, f"v1/kernels/01/{name}", 3)
    half = put(tmp_path, f"{FORMAT}/kernels/01/.{name[:16]}.{name[:16]}.tmp", 4)
    for other in (f"{FORMAT}/kernels/01/notes.txt", "vx/kernels/01/" + name, "notes", "v9"):
        put(tmp_path, other, 0)
    entries = cache_folder.entries(tmp_path)
    assert [(entry.path, entry.kind, entry.size_bytes) for entry in entries] == [
        (request, "requests", 10),
        (kernel, "kernels", 10),
        (old, "old", 10),
        (half, "temporary", 10),
    ]
    assert cache_folder.entries(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("max_age_days", "max_bytes", "removed"),
    [
        (None, None, [3, 4]),
        (2.0, None, [2, 3, 4]),
        (0.5, None, [1, 2, 3, 4]),
        (None, 150, [1, 2, 3, 4]),
        (None, 200, [2, 3, 4]),
        (None, 0, [0, 1, 2, 3, 4, 5]),
        (2.0, 200, [2, 3, 4]),
    ],
)
def test_outdated(max_age_days: float | None, max_bytes: int | None, removed: list[int]) -> None:
    entries = [
        entry(0, 0.0),
        entry(5, 0.01, "temporary", 1),  # somebody may be writing it
        entry(1, 1.0, size_bytes=99),
        entry(2, 3.0),
        entry(3, 4.0, "old"),
        entry(4, 5.0, "temporary"),
    ]
    chosen = cache_folder.outdated(entries, NOW, max_age_days=max_age_days, max_bytes=max_bytes)
    assert sorted(int(removed_entry.path.name, 16) for removed_entry in chosen) == removed


def test_a_folder_is_bounded_by_age_once_a_day(tmp_path: Path) -> None:
    used = put(tmp_path, f"{FORMAT}/kernels/01/{'01' * 32}", 80)
    unused = put(tmp_path, f"{FORMAT}/kernels/02/{'02' * 32}", 91)
    of_another_version = put(tmp_path, f"v1/kernels/03/{'03' * 32}", 91)
    cache_folder.bound(tmp_path, NOW, None)
    assert (used.exists(), unused.exists(), of_another_version.exists()) == (True, False, True)
    os.utime(tmp_path / "bounded", (NOW, NOW))
    cache_folder.bound(tmp_path, NOW + 0.9 * DAY, 10)  # a limit of the user's applies at once
    unused = put(tmp_path, f"{FORMAT}/kernels/02/{'02' * 32}", 91)
    os.utime(tmp_path / "bounded", (NOW, NOW))
    cache_folder.bound(tmp_path, NOW + 0.9 * DAY, None)
    assert unused.exists()
    cache_folder.bound(tmp_path, NOW + 1.1 * DAY, None)
    assert (used.exists(), unused.exists()) == (True, False)


def test_a_folder_is_bounded_by_size(tmp_path: Path) -> None:
    files = [put(tmp_path, f"{FORMAT}/kernels/01/{number:064x}", number) for number in range(1, 5)]
    cache_folder.bound(tmp_path, NOW, 25)
    assert [path.exists() for path in files] == [True, True, False, False]
    cache_folder.bound(tmp_path / "none", NOW, None)
    assert not (tmp_path / "none").exists()


def test_an_entry_that_is_gone_already(tmp_path: Path) -> None:
    path = put(tmp_path, f"{FORMAT}/kernels/01/{'01' * 32}", 1)
    entries = cache_folder.entries(tmp_path)
    path.unlink()
    assert cache_folder.remove(entries) == 0
    assert list(tmp_path.iterdir()) == []


def test_write_problem(tmp_path: Path) -> None:
    assert cache_folder.write_problem(tmp_path / "a" / "b") == ""
    (tmp_path / "file").write_text("")
    assert "is no folder" in cache_folder.write_problem(tmp_path / "file" / "cache")
