"""`aotc bench`: the timed configs, their order, and the reason for launches without a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aotc.ir.expression import parse
from aotc.package.archive.index import Guard, Kernel, Param, Variant
from aotc.package.tuning.shapes import Launch
from aotc.package.tuning.work import Work, peak_of
from aotc.tuning.bench import BenchOptions, time_launch
from aotc.tuning.bench_report import Machine, Measured, describe, text
from aotc.tuning.buffers import UnsizedError
from aotc.tuning.launcher import LostError
from aotc.tuning.messages import Identity, Times

KERNEL = Kernel(
    "copy",
    b"",
    tuple(
        Variant("sm_90a", "k", b"", 128, guards=guards, config=config, grid=(parse("n"),))
        for config, guards in ((0, (0,)), (1, ()), (2, ()), (3, ()))
    ),
    params=(Param("x", "pointer", "bf16"), Param("n", "scalar", "i32")),
    guards=(Guard(parse("n <= 64"), "n <= 64"),),
    configs=tuple((("BLOCK", 64 << exponent),) for exponent in range(4)),
)


class Fake:
    """Times of 1, 2, … µs by config, plus a tenth of the pass."""

    identity = Identity("NVIDIA H200", "13.0", (9, 0))

    def __init__(self, misfits: dict[int, str] | None = None, lost: int | None = None) -> None:
        self.misfits, self.lost = misfits or {}, lost
        self.asked: list[tuple[tuple[int, ...], bool, int]] = []

    def prepare(self, launch: Launch, subjects: object, seed: int) -> dict[int, str]:
        if launch.key["n"] == 13:
            raise UnsizedError("nothing says how large it is")
        return self.misfits

    def times(self, configs: Sequence[int], *, is_cold: bool, repeats: int) -> Times:
        self.asked.append((tuple(configs), is_cold, repeats))
        if self.lost in configs:
            raise LostError("does not end within 20 s")
        drift = len(self.asked) / 10
        return Times(tuple((config + 1 + drift) * 1e-6 for config in configs), 1980)


def launch(n: int) -> Launch:
    return Launch("copy", {}, {}, {"n": n}, weight=3)


def test_what_is_taken_is_timed_beside_the_first_that_serves() -> None:
    fake = Fake()
    timed = time_launch(fake, KERNEL, "sm_90a", launch(64), (), BenchOptions(passes=5))
    assert timed.variant == KERNEL.variants[0]
    assert list(timed.by_config) == [0]
    timed = time_launch(fake, KERNEL, "sm_90a", launch(65), (), BenchOptions(passes=5))
    assert timed.variant == KERNEL.variants[1]
    timed = time_launch(fake, KERNEL, "sm_90a", launch(5), (), BenchOptions(3, all_configs=True))
    assert list(timed.by_config) == [0, 1, 2, 3]
    assert timed.seconds == timed.by_config[0]
    assert timed.low is not None
    assert timed.high is not None
    assert timed.low <= timed.seconds <= timed.high
    assert timed.clock_mhz == 1980


def test_passes_are_interleaved_and_the_first_launch_does_not_count() -> None:
    fake = Fake()
    options = BenchOptions(passes=4, is_cold=False, all_configs=True)
    time_launch(fake, KERNEL, "sm_90a", launch(65), (), options)
    firsts, passes = fake.asked[:3], fake.asked[3:]
    assert [configs for configs, _, _ in firsts] == [(1,), (2,), (3,)]
    assert [configs for configs, _, _ in passes] == [(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 2, 3)]
    assert {repeats for _, _, repeats in passes} == {5}


def test_a_config_that_is_lost_is_left_out() -> None:
    options = BenchOptions(passes=2, all_configs=True)
    timed = time_launch(Fake(lost=2), KERNEL, "sm_90a", launch(65), (), options)
    assert list(timed.by_config) == [1, 3]
    assert not timed.problem
    timed = time_launch(Fake(lost=1), KERNEL, "sm_90a", launch(65), (), options)
    assert timed.seconds is None
    assert timed.problem == "the launch does not end within 20 s"


@pytest.mark.parametrize(
    ("n", "target", "misfits", "problem"),
    [
        (13, "sm_90a", {}, "nothing says how large it is"),
        (65, "sm_80", {}, "no variant for sm_80"),
        (65, "sm_90a", dict.fromkeys(range(4), "too much shared memory"), "too much shared memory"),
    ],
)
def test_a_launch_without_a_time_says_why(
    n: int, target: str, misfits: dict[int, str], problem: str
) -> None:
    timed = time_launch(Fake(misfits), KERNEL, target, launch(n), (), BenchOptions())
    assert timed.seconds is None
    assert problem in timed.problem


def test_a_refused_config_is_not_what_is_taken() -> None:
    timed = time_launch(Fake({1: "no"}), KERNEL, "sm_90a", launch(65), (), BenchOptions())
    assert timed.variant == KERNEL.variants[2]
    assert list(timed.by_config) == [2]


def test_the_data_has_speeds_and_shares_of_the_roofline() -> None:
    timed = time_launch(Fake(), KERNEL, "sm_90a", launch(5), (), BenchOptions(passes=1))
    failed = time_launch(Fake(), KERNEL, "sm_90a", launch(13), (), BenchOptions())
    peers = ({"name": "Triton", "seconds": 2e-6}, {"name": "cuBLAS", "problem": "no\x1bway"})
    machine = Machine("NVIDIA H200", "13.0", "sm_90a", "cold", 1, peak_of("NVIDIA H200"))
    work = Work(1000, 2_400_000)
    rows = [Measured(timed, work, peers), Measured(failed, Work(None, None))]
    report = describe("demo.aotc", machine, rows)
    row, lost = report["launches"]
    seconds = row["seconds"]
    assert row["bytes_per_second"] == 2_400_000 / seconds
    assert row["roofline"] == pytest.approx(0.5e-6 / seconds)
    assert row["bound"] == "memory"
    assert row["weight"] == 3
    assert lost["seconds"] is lost["roofline"] is None
    shown = text(report)
    assert "copy n=13: nothing says how large it is" in shown
    assert "cuBLAS: no" in shown
    assert "\x1b" not in shown
    assert f"{2e-6 / seconds:.2f}x" in shown
    unlisted = Machine("GPU", "13.0", "sm_90a", "cold", 1, None)
    assert describe("demo.aotc", unlisted, rows)["launches"][0]["roofline"] is None
    assert "GPU" in text(describe("demo.aotc", unlisted, rows))
