"""Tables updated from earlier ones."""

from __future__ import annotations

from aotc.package.tuning.table import KernelTuning, Measurement, TuningTable
from aotc.tuning.results import updated

A, B = {"BLOCK": 64}, {"BLOCK": 128}


def table(
    times: dict[int, tuple[float | None, ...]],
    rejected: dict[int, str] | None = None,
    kernel: str = "k",
    date: str = "2026-11-28",
) -> TuningTable:
    launches = tuple(Measurement({"n": n}, {}, {}, seconds) for n, seconds in times.items())
    tuning = KernelTuning(kernel, "sm_90a", "H200", (A, B), launches, rejected or {}, date=date)
    return TuningTable((tuning,))


def test_what_is_measured_again_replaces_what_was_there() -> None:
    before = table({1: (1.0, 2.0), 3: (5.0, None)})
    (tuning,) = updated(before, table({1: (9.0, 8.0)})).kernels
    assert {m.key["n"]: m.seconds for m in tuning.measurements} == {
        1: (9.0, 8.0),  # though longer, and of the same date
        3: (5.0, None),
    }


def test_a_config_stays_put_aside_until_it_is_timed() -> None:
    before = table({1: (1.0, None)}, {1: "hangs"})
    (tuning,) = updated(before, table({3: (1.0, None)})).kernels
    assert tuning.rejected == {1: "hangs"}
    (cleared,) = updated(before, table({3: (1.0, 2.0)})).kernels
    assert cleared.rejected == {}


def test_other_kernels_stay() -> None:
    merged = updated(table({1: (1.0, 2.0)}), table({1: (1.0, 2.0)}, kernel="other"))
    assert [tuning.kernel for tuning in merged.kernels] == ["k", "other"]
