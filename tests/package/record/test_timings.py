"""`aotc record` keeps autotuners' measurements, as a tuning table of the recorded manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aotc import cli
from aotc.package.record.timings import seconds_of
from aotc.package.tuning.table import Measurement
from aotc.package.tuning.text import read_tuning, tuning_path, write_tuning

pytestmark = pytest.mark.usefixtures("one_worker")

SLOW, FAST = (
    {"BLOCK": size, "num_warps": warps, "num_stages": 3} for size, warps in ((256, 4), (1024, 8))
)


def test_times_of_all_configs_are_kept_with_the_launches_they_serve(
    record: Any, tmp_path: Path
) -> None:
    """The stand-in's autotuner takes 1 / num_warps milliseconds; the manifest has the launched configs."""
    code, _, err = record(
        "import ops\nfor n in (64, 64, 64, 4097): ops.run(n)\n"
        "ops.add.fn[(1,)]('*fp16', '*fp16', None, 64, 1, BLOCK=256, ACT='silu', num_warps=4)"
    )
    assert code == 0, err
    path = tuning_path(tmp_path / "record" / "kernels.toml")
    assert str(Path("record") / path.name) in err
    (tuning,) = read_tuning(path).kernels
    assert (tuning.kernel, tuning.target, tuning.gpu) == ("add", "sm_90a", "")
    assert tuning.configs == (SLOW, FAST)
    assert tuning.measurements == (
        Measurement({"n": 64}, {}, {}, (0.25e-3, 0.125e-3), 4.0),
        Measurement({"n": 4097}, {}, {}, (0.25e-3, 0.125e-3), 1.0),
    )


def test_the_build_takes_the_table_as_it_is(
    record: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A config without launches is in the records alone, so the table has no unknown configs."""
    record("import ops\nops.run(64)")
    (tuning,) = read_tuning(tuning_path(tmp_path / "record" / "kernels.toml")).kernels
    assert tuning.configs == (FAST,)
    assert cli.run(["build", "record/kernels.toml", "--no-cache", "-j", "1"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_times_that_were_measured_later_stay(record: Any, tmp_path: Path) -> None:
    from dataclasses import replace

    from aotc.package.tuning.table import TuningTable

    program = "import ops\nops.run(64)"
    record(program)
    path = tuning_path(tmp_path / "record" / "kernels.toml")
    (tuning,) = read_tuning(path).kernels
    slower = replace(tuning.measurements[0], seconds=(3e-6,))
    write_tuning(TuningTable((replace(tuning, date="2026-11-28", measurements=(slower,)),)), path)
    assert record(program)[0] == 0
    (tuning,) = read_tuning(path).kernels
    assert tuning.measurements[0].seconds == (3e-6,)


@pytest.mark.parametrize(
    ("timing", "expected"),
    [
        (2.5, 2.5e-3),
        ([0.5, 0.4, 0.6], 0.5e-3),
        (float("inf"), None),
        ([float("inf")] * 3, None),
        (float("nan"), None),
        (0.0, None),
        ([], None),
        ("quick", None),
        (None, None),
    ],
)
def test_seconds_of_what_an_autotuner_keeps(timing: Any, expected: float | None) -> None:
    assert seconds_of(timing) == expected
