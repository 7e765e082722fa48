"""`aotc tune` on the fake driver: timed and rejected configs, and the state after a kill."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import aotc
from aotc.cli import EXIT_DONE, EXIT_WRONG, run
from aotc.package.tuning.table import KernelTuning
from aotc.package.tuning.text import read_tuning
from tests.support.fake_gpu import FakeGpu, build
from tests.support.tuned_archive import scale_archive, shapes

# The first is the fastest of large n, the second of small; the third is slow.
KERNELS = "scale_0_=20+0.01*2;scale_1_=3+0.1*2;scale_2_=50+1*2;scale_3_=40+0.1*2"
TWO_GPUS = "9.0:232448,9.0:232448"


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fake_cuda"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an archive and shapes, and kernels' times for the fake driver."""
    (tmp_path / "scaled.aotc").write_bytes(scale_archive())
    (tmp_path / "shapes.toml").write_text(shapes(64, 2000))
    monkeypatch.setenv("FAKE_CUDA_KERNELS", KERNELS)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def arguments(folder: Path, driver: Path, *options: str) -> list[str]:
    archive, listed = str(folder / "scaled.aotc"), str(folder / "shapes.toml")
    return ["tune", archive, "--shapes", listed, "--driver", str(driver), *options]


def table(folder: Path) -> KernelTuning:
    (kernel,) = read_tuning(folder / "scaled.tuning.toml").kernels
    return kernel


def best(folder: Path) -> dict[int, int]:
    """Return the fastest config by n."""
    by_extent: dict[int, int] = {}
    for launch in table(folder).measurements:
        timed = [(time, config) for config, time in enumerate(launch.seconds) if time is not None]
        by_extent[launch.key["n"]] = min(timed)[1]
    return by_extent


def test_the_fastest_config_depends_on_the_launch(
    folder: Path, driver: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments(folder, driver, "--json")) == EXIT_DONE
    report = json.loads(capsys.readouterr().out)
    assert best(folder) == {64: 1, 2000: 0}
    tuning = table(folder)
    assert (tuning.gpu, tuning.target, tuning.driver) == ("Fake GPU", "sm_90a", "13.0")
    assert (tuning.l2, tuning.confidence, tuning.clock_mhz) == ("cold", 0.95, 1980)
    small = next(m for m in tuning.measurements if m.key["n"] == 64)
    assert small.seconds[1] == pytest.approx((3 + 0.1 * 64) * 1e-6, rel=1e-3)
    assert report["launches"] == report["tuned"] == 2
    assert [best_launch["config"] for best_launch in report["best"]] == [
        {"BLOCK": 128},
        {"BLOCK": 64},
    ]
    assert not (folder / "scaled.tuning.toml.journal").exists()


def test_an_archive_takes_what_was_measured(folder: Path, driver: Path) -> None:
    """Launches of the archive take the fastest config of each measured launch from then on."""
    archive = str(folder / "scaled.aotc")
    assert run(arguments(folder, driver, "--into", archive)) == EXIT_DONE
    gpu = FakeGpu(driver)
    gpu.reset()
    gpu.make_current(0)
    with aotc.load(archive, driver=driver) as library:
        kernel = library["scale"]
        for n, config in {64: 1, 2000: 0, 65: 1}.items():
            chosen = kernel.select(((0x1000, "fp32"), (0x2000, "fp32"), n))
            assert kernel.info.variants[chosen.variant].config == kernel.info.configs[config]


def test_what_cannot_be_packed_into_is_said(
    folder: Path, driver: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(folder / "missing.aotc")
    assert run(arguments(folder, driver, "--into", missing)) == EXIT_WRONG
    assert f"cannot pack into {missing}" in capsys.readouterr().err
    assert table(folder).measurements  # they stay


def test_the_winner_is_found_with_a_quarter_of_the_launches(
    folder: Path, driver: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_configs = 8
    (folder / "scaled.aotc").write_bytes(scale_archive(num_configs))
    times = [random.uniform(10, 100) for _ in range(num_configs)]
    script = ";".join(f"scale_{config_number}_={time}" for config_number, time in enumerate(times))
    monkeypatch.setenv("FAKE_CUDA_KERNELS", script)
    monkeypatch.setenv("FAKE_CUDA_NOISE", "0.02")
    timed: list[int] = []
    for options in (["--exhaustive", "--fresh"], ["--fresh"]):
        assert run(arguments(folder, driver, "--json", *options)) == EXIT_DONE
        timed.append(json.loads(capsys.readouterr().out)["timed"])
    assert timed[1] <= timed[0] / 4
    for config in best(folder).values():
        assert min(times) / times[config] >= 0.98


@pytest.mark.parametrize(
    ("effect", "reason"),
    [
        ("hang", "does not end within 1 s"),
        ("fault", "fails: "),
        ("wrong", "differs from the result of the others"),
    ],
)
def test_what_goes_wrong_is_put_aside_and_named(
    effect: str,
    reason: str,
    folder: Path,
    driver: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(
        "FAKE_CUDA_KERNELS", KERNELS.replace("scale_1_=3+0.1*2", f"scale_1_={effect}")
    )
    assert run(arguments(folder, driver, "--launch-timeout", "1s")) == EXIT_DONE
    tuning = table(folder)
    assert list(tuning.rejected) == [1]
    assert reason in tuning.rejected[1]
    warnings = capsys.readouterr().err
    assert f"warning: scale BLOCK=128: {reason}" in warnings
    assert "at scale n=" in warnings
    # The others are tuned, and the rejected ones have no time.
    assert set(best(folder)) == {64, 2000}
    for launch in tuning.measurements:
        assert launch.seconds[1] is None
        assert launch.seconds[0] is not None


def test_a_config_that_does_not_fit_a_launch_is_not_timed_there(folder: Path, driver: Path) -> None:
    (folder / "shapes.toml").write_text(shapes(63, 64))
    assert run(arguments(folder, driver)) == EXIT_DONE
    times = {launch.key["n"]: launch.seconds[3] for launch in table(folder).measurements}
    assert times[63] is None
    assert times[64] is not None
    assert not table(folder).rejected


def test_a_config_whose_ctas_do_not_fit_at_once_is_not_timed(folder: Path, driver: Path) -> None:
    (folder / "scaled.aotc").write_bytes(scale_archive(is_cooperative=True))
    assert run(arguments(folder, driver)) == EXIT_DONE
    times = {launch.key["n"]: launch.seconds[0] for launch in table(folder).measurements}
    assert times[2000] is None
    assert times[64] is not None
    assert not table(folder).rejected


def test_buffers_of_no_known_size_are_asked_for(
    folder: Path, driver: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "shapes.toml").write_text('[[shape]]\nkernel = "scale"\nn = 7\n')
    assert run(arguments(folder, driver)) == EXIT_WRONG
    output = capsys.readouterr().out
    assert "nothing says how large the buffer of out_ptr is" in output
    assert '"out_ptr.size" in the shapes' in output


def test_no_gpu_is_said(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments(folder, tmp_path / "no.so")) == EXIT_WRONG
    assert "expected a GPU to tune on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", "3"], "expected GPUs below 1, got 3"),
        (["--gpus", "x"], 'expected "all" or ordinals'),
        (["--only", "scal"], "expected a kernel of"),
        (["--budget", "soon"], "expected a duration such as"),
        (["--record", "."], "expected --shapes FILE or --record DIR"),
    ],
)
def test_wrong_options_are_said(
    options: list[str], message: str, folder: Path, driver: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments(folder, driver, *options)) != EXIT_DONE
    assert message in capsys.readouterr().err


def test_a_budget_that_is_over_leaves_a_journal_to_go_on_from(folder: Path, driver: Path) -> None:
    assert run(arguments(folder, driver, "--budget", "0.001s")) == EXIT_WRONG
    assert (folder / "scaled.tuning.toml.journal").exists()
    assert run(arguments(folder, driver)) == EXIT_DONE
    assert best(folder) == {64: 1, 2000: 0}


def test_a_journal_of_another_run_is_not_gone_on_with(
    folder: Path, driver: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(arguments(folder, driver, "--budget", "0.001s"))
    assert run(arguments(folder, driver, "--seed", "1")) == EXIT_WRONG
    assert "--fresh begins anew" in capsys.readouterr().err
    assert run(arguments(folder, driver, "--seed", "1", "--fresh")) == EXIT_DONE


def _killed(folder: Path, driver: Path, kills: int, number: signal.Signals) -> None:
    """Run `aotc tune` with two GPUs and end it at random times, then let it end itself."""
    environment = {**os.environ, "FAKE_CUDA_DEVICES": TWO_GPUS, "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-m", "aotc", *arguments(folder, driver, "--launch-timeout", "2s")]
    journal = folder / "scaled.tuning.toml.journal"
    for _ in range(kills):
        before = journal.read_bytes() if journal.exists() else b""
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        size_limit = len(before) + random.randint(1, 2000)
        while process.poll() is None:
            if journal.exists() and journal.stat().st_size >= size_limit:
                process.send_signal(number)
                break
            time.sleep(0.01)
        process.communicate(timeout=60)
        if journal.exists():
            whole = before[: before.rfind(b"\n") + 1]
            assert journal.read_bytes().startswith(whole)  # nothing is lost
    resumed = subprocess.run(
        command, env=environment, check=False, timeout=100, capture_output=True
    )
    assert resumed.returncode == EXIT_DONE, resumed.stderr


@pytest.mark.parametrize(("number", "kills"), [(signal.SIGKILL, 2), (signal.SIGINT, 1)])
def test_runs_that_are_ended_lose_nothing(
    number: signal.Signals,
    kills: int,
    folder: Path,
    driver: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = KERNELS.replace("scale_1_=3+0.1*2", "scale_1_=wrong")
    monkeypatch.setenv("FAKE_CUDA_KERNELS", kernels)
    (folder / "shapes.toml").write_text(shapes(64, 2000, 63, 129, 4096, 12))
    assert run(arguments(folder, driver)) == EXIT_DONE
    undisturbed = (folder / "scaled.tuning.toml").read_text()
    (folder / "scaled.tuning.toml").unlink()
    _killed(folder, driver, kills, number)
    assert (folder / "scaled.tuning.toml").read_text() == undisturbed


@pytest.mark.exhaustive
def test_twenty_kills_lose_nothing(folder: Path, driver: Path) -> None:
    (folder / "shapes.toml").write_text(shapes(*range(2, 82)))
    assert run(arguments(folder, driver)) == EXIT_DONE
    undisturbed = (folder / "scaled.tuning.toml").read_text()
    (folder / "scaled.tuning.toml").unlink()
    _killed(folder, driver, 20, signal.SIGKILL)
    assert (folder / "scaled.tuning.toml").read_text() == undisturbed


def test_shapes_may_be_of_other_kernels_too(folder: Path, driver: Path) -> None:
    with (folder / "shapes.toml").open("a") as file:
        file.write('[[shape]]\nkernel = "other"\nn = 1\n')
    assert run(arguments(folder, driver)) == EXIT_WRONG
    assert run(arguments(folder, driver, "--only", "scale")) == EXIT_DONE
    assert best(folder) == {64: 1, 2000: 0}


def test_shapes_of_a_record_are_taken(folder: Path, driver: Path) -> None:
    archive = str(folder / "scaled.aotc")
    options = ["--record", str(folder), "--driver", str(driver), "--l2", "warm"]
    assert run(["tune", "run", archive, *options]) == EXIT_DONE
    assert best(folder) == {64: 1, 2000: 0}
    assert table(folder).l2 == "warm"


def test_tables_are_merged(folder: Path, driver: Path, capsys: pytest.CaptureFixture[str]) -> None:
    halves: list[str] = []
    for half, sizes in enumerate(((64,), (2000,))):
        (folder / "shapes.toml").write_text(shapes(*sizes))
        halves.append(str(folder / f"{half}.toml"))
        assert run(arguments(folder, driver, "-o", halves[-1])) == EXIT_DONE
    output = str(folder / "scaled.tuning.toml")
    assert run(["tune", "merge", *halves, "-o", output]) == EXIT_DONE
    assert "2 launches" in capsys.readouterr().out
    assert best(folder) == {64: 1, 2000: 0}


def test_launches_tuned_before_stay_in_the_table(folder: Path, driver: Path) -> None:
    for sizes in ((64, 12), (2000, 12)):
        (folder / "shapes.toml").write_text(shapes(*sizes))
        assert run(arguments(folder, driver)) == EXIT_DONE
    assert best(folder) == {64: 1, 12: 1, 2000: 0}


@pytest.mark.slow
def test_gpus_of_a_dask_cluster_give_the_same_table(
    folder: Path, driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = KERNELS.replace("scale_2_=50+1*2", "scale_2_=wrong")
    monkeypatch.setenv("FAKE_CUDA_KERNELS", kernels)
    assert run(arguments(folder, driver)) == EXIT_DONE
    local_table = (folder / "scaled.tuning.toml").read_text()
    (folder / "scaled.tuning.toml").unlink()
    assert run(arguments(folder, driver, "--dask", "local")) == EXIT_DONE
    assert (folder / "scaled.tuning.toml").read_text() == local_table
    assert list(table(folder).rejected) == [2]
