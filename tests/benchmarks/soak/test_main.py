"""The command line, in the emulator: phases, figures, and going on where a soak was stopped."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.soak.__main__ import _seeds, main
from tests.fuzz.long_programs import FIRST_LONG_SEED


@pytest.mark.slow
def test_a_smoke_run_of_programs_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["-o", str(tmp_path), "-j", "1", "--smoke"]
    assert main(["programs", *arguments, "--seeds", "2"]) == 0
    figures = json.loads((tmp_path / "soak.json").read_text())
    assert figures["phases"]["programs"]["right"] == 1
    assert figures["devices"] == ["the emulator"]
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert main(["programs", *arguments, "--seeds", "2", "7"]) == 0
    more = (tmp_path / "journal.jsonl").read_text().splitlines()[len(lines) :]
    assert sum('"done"' in line for line in more) == 1
    capsys.readouterr()
    assert main(["report", "-o", str(tmp_path)]) == 0
    assert "programs        2    2" in capsys.readouterr().out


def test_what_ended_with_the_soak_fails(tmp_path: Path) -> None:
    attempt = {"try": {"case": "program 5", "launch": "(1,)", "phase": "programs"}}
    (tmp_path / "journal.jsonl").write_text(json.dumps(attempt) + "\n")
    assert main(["report", "-o", str(tmp_path)]) == 1
    figures = json.loads((tmp_path / "soak.json").read_text())
    assert [(failure["case"], failure["status"]) for failure in figures["failures"]] == [
        ("program 5", "lost")
    ]


@pytest.mark.slow
def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    try:
        from aotc.verify.checks.device import Driver, NoDeviceError

        Driver()
    except NoDeviceError:
        pass
    else:
        pytest.skip("there is a GPU")
    assert main(["programs", "-o", str(tmp_path), "-j", "1", "--seeds", "0"]) == 2
    assert "no" in capsys.readouterr().err


@pytest.mark.parametrize("seed", [0, 137, 1128, 50_000])
def test_one_program_of_fifty_is_long(seed: int) -> None:
    options = argparse.Namespace(seeds=None, seed=seed, smoke=False, programs=1000)
    assert sum(number >= FIRST_LONG_SEED for number in _seeds(options)) == 1000 // 50
