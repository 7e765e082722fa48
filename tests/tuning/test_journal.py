"""The journal: whole lines only, one writer, one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.ir.diagnostics import HostError
from aotc.tuning.journal import Journal

RUN = {"archive": "a", "seed": 0, "date": "2026-11-28"}


def test_records_are_there_again(tmp_path: Path) -> None:
    path = tmp_path / "t.journal"
    with Journal(path, RUN) as journal:
        journal.add({"done": "é", "seconds": [[0, 1e-6]]})
        journal.add({"done": "b"})
    with Journal(path, {**RUN, "date": "2026-11-29"}) as journal:
        assert journal.records == [{"done": "é", "seconds": [[0, 1e-6]]}, {"done": "b"}]
        assert journal.run["date"] == "2026-11-28"  # the date of the run's beginning


@pytest.mark.parametrize("cut", [1, 5, 11])
def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "t.journal"
    with Journal(path, RUN) as journal:
        journal.add({"done": "a"})
        journal.add({"done": "b"})
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(path, RUN) as journal:
        assert journal.records == [{"done": "a"}]
        journal.add({"done": "c"})
    with Journal(path, RUN) as journal:
        assert journal.records == [{"done": "a"}, {"done": "c"}]


def test_the_first_line_may_be_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "t.journal"
    path.write_bytes(b'{"run": {"arch')
    with Journal(path, RUN) as journal:
        assert journal.records == []
        journal.add({"done": "a"})
    with Journal(path, RUN) as journal:
        assert journal.records == [{"done": "a"}]


def test_another_run_has_another_journal(tmp_path: Path) -> None:
    path = tmp_path / "t.journal"
    with Journal(path, RUN) as journal:
        journal.add({"done": "a"})
    with pytest.raises(HostError, match="is of another run"), Journal(path, {**RUN, "seed": 1}):
        pass
    with Journal(path, RUN) as journal:  # unlocked, and unchanged
        assert journal.records == [{"done": "a"}]


def test_two_processes_do_not_write_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "t.journal"
    with Journal(path, RUN), pytest.raises(HostError, match="another `aotc tune` writes"):
        Journal(path, RUN).__enter__()


def test_a_folder_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot write"):
        Journal(tmp_path, RUN).__enter__()
