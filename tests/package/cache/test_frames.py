"""Cached frames: the same bytes as new ones, for any damage to an entry."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard

from aotc.package.archive import file as archives
from aotc.package.archive.file import encode
from aotc.package.cache.frames import FrameCache


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_second_archive_is_the_same_and_compresses_nothing(
    samples: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = FrameCache(tmp_path)
    data = encode(samples.archive)
    assert encode(samples.archive, cache=frames) == data
    assert files(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(archives.zstandard, "ZstdCompressor", fail)
    assert encode(samples.archive, cache=frames) == data


def test_damaged_entries_are_made_again(samples: SimpleNamespace, tmp_path: Path) -> None:
    frames = FrameCache(tmp_path)
    data = encode(samples.archive, cache=frames)
    for path in files(tmp_path):
        content = path.read_bytes()
        for damaged in (b"", content[:-1], content[:-1] + bytes([content[-1] ^ 1])):
            path.write_bytes(damaged)
            assert encode(samples.archive, cache=frames) == data
            assert path.read_bytes() == content


def test_an_entry_in_the_place_of_another_is_made_again(
    samples: SimpleNamespace, tmp_path: Path
) -> None:
    frames = FrameCache(tmp_path)
    data = encode(samples.archive, cache=frames)
    first, second, *_ = files(tmp_path)
    second.write_bytes(first.read_bytes())
    assert encode(samples.archive, cache=frames) == data


def test_a_folder_that_cannot_be_written_to_costs_nothing(
    samples: SimpleNamespace, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    data = encode(samples.archive)
    assert encode(samples.archive, cache=FrameCache(tmp_path / "file")) == data


def test_a_frame_is_of_a_level_and_of_a_zstd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = FrameCache(tmp_path)
    frames.store(b"content", 19, b"frame")
    assert frames.find(b"content", 19) == b"frame"
    assert frames.find(b"content", 9) is None
    assert frames.find(b"other", 19) is None
    monkeypatch.setattr(zstandard, "ZSTD_VERSION", (9, 9, 9))
    assert frames.find(b"content", 19) is None
    assert len(files(tmp_path)) == 1
