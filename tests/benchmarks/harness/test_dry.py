"""Dry runs: a manifest's configs by choices, and launches that no variant takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.harness.dry import configs_of, dry_run
from benchmarks.harness.registry import tiny


def test_configs_are_of_the_variants_with_the_choices() -> None:
    configs = configs_of("benchmarks/fused_moe.toml")
    assert {config["BLOCK_N"] for config in configs("fused_moe", {"SWIGLU": True})} == {128}
    assert {config["BLOCK_N"] for config in configs("fused_moe", {"SWIGLU": False})} == {128, 256}
    assert configs("fused_moe", {"TOPK": 8}) == configs("fused_moe")
    assert configs("no_such_kernel") == ()


def test_a_reference_that_is_off_shows() -> None:
    workload = tiny("transpose")[1]
    (error,) = dict(dry_run(workload)).values()
    assert error == 0

    def reference(arrays, args):
        for part in workload.reference(arrays, args):
            yield part._replace(values=part.values + 1)

    (error,) = dict(dry_run(replace(workload, reference=reference))).values()
    assert error > 1


def test_a_launch_that_no_variant_takes_is_an_error() -> None:
    workload = tiny("transpose")[1]

    def operands(arrays):
        return workload.operands(arrays) | {"n_rows": 47}  # promised to be a multiple of 16

    with pytest.raises(ValueError, match="no variant of transpose2d takes"):
        dict(dry_run(replace(workload, operands=operands)))
