"""Joined tables: nothing is lost, the later time stays, and the order does not matter."""

from __future__ import annotations

import itertools

from aotc.package.tuning.merge import merge_tunings
from aotc.package.tuning.table import KernelTuning, Measurement, TuningTable

A, B, C = {"BLOCK": 64}, {"BLOCK": 128}, {"BLOCK": 256}


def tuning(
    times: dict[int, tuple[float | None, ...]],
    *,
    configs: tuple[dict[str, int], ...] = (A, B),
    date: str = "2026-11-01",
    rejected: dict[int, str] | None = None,
    gpu: str = "NVIDIA H200",
) -> TuningTable:
    launches = tuple(Measurement({"n": n}, {}, {}, seconds) for n, seconds in times.items())
    kernel = KernelTuning("k", "sm_90a", gpu, configs, launches, rejected or {}, date=date)
    return TuningTable((kernel,))


def times_of(table: TuningTable) -> dict[int, dict[int, float | None]]:
    (kernel,) = table.kernels
    blocks = [int(config["BLOCK"]) for config in kernel.configs]
    return {
        launch.key["n"]: dict(zip(blocks, launch.seconds, strict=True))
        for launch in kernel.measurements
    }


def test_halves_of_the_launches_and_of_the_configs_join() -> None:
    first = tuning({1: (1.0, 2.0)})
    second = tuning({1: (3.0, None), 5: (4.0, 5.0)}, configs=(C, A))
    merged = merge_tunings([first, second])
    assert times_of(merged) == {
        1: {64: 1.0, 128: 2.0, 256: 3.0},
        5: {64: 5.0, 128: None, 256: 4.0},
    }


def test_the_later_date_stays_and_of_one_date_the_shorter() -> None:
    old, new = tuning({1: (1.0, 2.0)}), tuning({1: (9.0, None)}, date="2026-11-02")
    assert times_of(merge_tunings([old, new])) == {1: {64: 9.0, 128: 2.0}}
    same = tuning({1: (0.5, 3.0)})
    assert times_of(merge_tunings([old, same])) == {1: {64: 0.5, 128: 2.0}}


def test_the_order_of_tables_does_not_matter() -> None:
    tables = [
        tuning({1: (1.0, 2.0), 3: (2.0, None)}, rejected={1: "hangs"}),
        tuning({1: (7.0, 6.0)}, configs=(B, C), date="2026-11-02"),
        tuning({1: (7.0, 8.0)}, configs=(C, A), date="2026-11-02", rejected={0: "is wrong"}),
        tuning({1: (1.0, 2.0)}, gpu="NVIDIA L4"),
    ]
    results = [merge_tunings(order) for order in itertools.permutations(tables)]
    assert all(result == results[0] for result in results)
    assert len(results[0].kernels) == 2


def test_a_config_that_was_measured_later_is_not_rejected_any_more() -> None:
    old = tuning({1: (1.0, None)}, rejected={1: "hangs"})
    assert merge_tunings([old, tuning({5: (1.0, 1.0)})]).kernels[0].rejected == {1: "hangs"}
    later = tuning({1: (1.0, 2.0)}, configs=(B, A), date="2026-11-02")
    assert merge_tunings([old, later]).kernels[0].rejected == {}
    planted = tuning({1: (1.0, None)}, date="2026-11-03", rejected={1: "is wrong"})
    assert list(merge_tunings([old, later, planted]).kernels[0].rejected.values()) == ["is wrong"]


def test_one_and_true_are_two_configs() -> None:
    first, second = (
        tuning({1: (1.0,)}, configs=({"X": 1},)),
        tuning({1: (2.0,)}, configs=({"X": True},)),
    )
    (kernel,) = merge_tunings([first, second]).kernels
    assert len(kernel.configs) == 2
