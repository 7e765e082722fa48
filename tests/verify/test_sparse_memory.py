"""Zeroed memory with pages allocated on write."""

from __future__ import annotations

import mmap

import pytest

from aotc.verify import sparse_memory
from aotc.verify.sparse_memory import sparse_zeros


def _refuse(size_bytes: int) -> mmap.mmap:
    raise OSError(12, f"Cannot allocate memory for {size_bytes} bytes")


@pytest.mark.parametrize("is_counted", [False, True])
def test_far_more_than_a_machine_has(is_counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_counted:
        monkeypatch.setattr(sparse_memory, "_unreserved", _refuse)
    arrays = [sparse_zeros(1 << 38) for _ in range(3)]
    for number, zeros in enumerate(arrays):
        zeros[-1] = number + 1
        assert zeros[[0, 1 << 37, -1]].tolist() == [0, 0, number + 1]


def test_where_there_is_no_room_at_all_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_memory, "_unreserved", _refuse)
    monkeypatch.setattr(sparse_memory, "_in_file", _refuse)
    with pytest.raises(MemoryError, match="Cannot allocate"):
        sparse_zeros(1 << 30)
