"""Tuning tables as text: round trips, and errors in wrong texts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from aotc.ir.diagnostics import HostError, ManifestError
from aotc.package.tuning.table import KernelTuning, Measurement, TuningTable
from aotc.package.tuning.text import (
    parse_tuning,
    read_tuning,
    rounded,
    tuning_path,
    tuning_text,
    write_tuning,
)

CONFIGS = ({"BLOCK": 64, "MODE": "fast"}, {"BLOCK": 128, "MODE": 'a "b"\n'}, {"EVEN": True})


def measurement(**key: int) -> Measurement:
    times = [rounded(random.uniform(1e-6, 1e-2)) for _ in range(2)]
    return Measurement(
        key, {"T": "bf16"}, {"CAUSAL": True, "SCALE": 0.5}, (times[0], None, times[1]), 3.0
    )


def tuning(kernel: str = "matmul", gpu: str = "NVIDIA H200", **changes: object) -> KernelTuning:
    launches = (measurement(M=1, N=17), measurement(M=4096, N=2), measurement(M=129, N=2))
    fields = {"driver": "12.8", "clock_mhz": 1980, "date": "2026-11-28", "confidence": 0.95}
    fields |= {
        "rejected": {1: "hangs", 2: "differs from the others in out"},
        "l2": "warm",
        **changes,
    }
    return KernelTuning(kernel, "sm_90a", gpu, CONFIGS, launches, **fields)  # type: ignore[arg-type]


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    table = TuningTable((tuning("norm", ""), tuning(), tuning(gpu="NVIDIA L4", rejected={})))
    path = tmp_path / "kernels.tuning.toml"
    write_tuning(table, path)
    read = read_tuning(path)
    assert [kernel_tuning.identity for kernel_tuning in read.kernels] == sorted(
        t.identity for t in table.kernels
    )
    by_identity = {kernel_tuning.identity: kernel_tuning for kernel_tuning in table.kernels}
    for kernel_tuning in read.kernels:
        original = by_identity[kernel_tuning.identity]
        assert sorted(kernel_tuning.measurements, key=lambda m: m.identity) == sorted(
            original.measurements, key=lambda m: m.identity
        )
        assert (kernel_tuning.configs, kernel_tuning.rejected) == (
            original.configs,
            original.rejected,
        )
        assert (kernel_tuning.l2, kernel_tuning.confidence, kernel_tuning.date) == (
            original.l2,
            0.95,
            "2026-11-28",
        )
    assert tuning_text(read) == path.read_text()


def test_launches_are_sorted_by_number_and_one_time_is_on_one_line() -> None:
    text = tuning_text(TuningTable((tuning(),)))
    keys = [line for line in text.splitlines() if line.startswith("key")]
    assert keys == [
        "key = { M = 1, N = 17 }",
        "key = { M = 129, N = 2 }",
        "key = { M = 4096, N = 2 }",
    ]
    assert text.count("microseconds = [") == 3


def test_no_tunings_are_a_table_too() -> None:
    assert parse_tuning(tuning_text(TuningTable(())), "none.toml") == TuningTable(())


def test_the_table_lies_beside_the_manifest() -> None:
    assert tuning_path(Path("a/kernels.toml")) == Path("a/kernels.tuning.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("gpu =", "gqu =", "unknown key 'gqu'"),
        ("weight = 3.0", "weight = -1.0", "expected a weight from 0, got -1.0"),
        ("M = 129", 'M = "129"', "expected an integer for 'M', got the string '129'"),
        ("M = 129, N = 2", "M = 1, N = 17", "expected each launch once"),
        (", nan,", ",", "expected 3 times, one for each config, got 2"),
        (", nan,", ", 0.0,", "expected a time above 0, or nan, got the number 0.0"),
        (", nan,", ", inf,", "expected a time above 0, or nan, got the number inf"),
        ("config = 1", "config = 3", "expected the index of a config, 0 to 2, got the integer 3"),
        ('l2 = "warm"', 'l2 = "hot"', 'expected "cold" or "warm"'),
        ('T = "bf16"', "T = 16", "expected a dtype for 'T', got the integer 16"),
        ("[[tuning.launch]]", "[tuning.launch]", "expected"),
    ],
)
def test_mistakes_have_a_place(old: str, new: str, message: str) -> None:
    text = tuning_text(TuningTable((tuning(),)))
    assert old in text
    with pytest.raises(ManifestError) as raised:
        parse_tuning(text.replace(old, new, 1), "k.tuning.toml")
    assert message in str(raised.value)
    assert raised.value.loc is not None
    assert raised.value.loc.line > 1


def test_one_kernel_has_one_tuning_of_a_gpu() -> None:
    text = tuning_text(TuningTable((tuning(),)))
    with pytest.raises(ManifestError, match="expected one table of matmul on NVIDIA H200"):
        parse_tuning(text + text, "k.tuning.toml")


def test_files_that_cannot_be_read_or_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="expected a tuning table, cannot read"):
        read_tuning(tmp_path / "missing.tuning.toml")
    (tmp_path / "latin.tuning.toml").write_bytes(b"\xe9")
    with pytest.raises(ManifestError, match="in UTF-8"):
        read_tuning(tmp_path / "latin.tuning.toml")
    with pytest.raises(HostError, match="cannot write"):
        write_tuning(TuningTable(()), tmp_path)
