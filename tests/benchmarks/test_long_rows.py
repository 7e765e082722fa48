"""benchmarks/long_rows.py without a GPU: the manifest has configs for every length of a row."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from aotc.compiler import autotune_configs
from aotc.package.manifest.read import load
from aotc.package.manifest.spec import KernelSpec
from aotc.package.manifest.variant_grid import expand
from aotc.target import TARGETS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(name="long_rows")
def _long_rows(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("long_rows")


def _configs(kernel: KernelSpec) -> list[dict[str, object]]:
    variants = expand(kernel, [TARGETS["sm_90a"]], autotune_configs).variants
    return [dict(variant.config) for variant in variants]


def test_every_length_is_served_by_clusters_where_a_cta_cannot_hold_it(
    long_rows: ModuleType,
) -> None:
    kernels = {kernel.name: kernel for kernel in load(str(BENCHMARKS / "long_rows.toml")).kernels}
    assert set(kernels) == set(long_rows.WORK)
    for name, kernel in kernels.items():
        if name in long_rows.ALWAYS_LOOPS:
            assert all(
                any(
                    long_rows.serves(kernel_config, columns, always_loops=True)
                    for kernel_config in _configs(kernel)
                )
                for columns in long_rows.COLUMNS[1:]
            )
            continue
        for columns in long_rows.COLUMNS:
            lengths = [
                config["num_ctas"]
                for config in _configs(kernel)
                if long_rows.serves(config, columns) and not config.get("LOOP")
            ]
            assert lengths
            most = min(8, max(1, columns // 1024))
            assert max(lengths) == most or (columns >= 131072 and max(lengths) == 16), columns


def test_a_kernel_that_always_loops_has_no_choice_of_it(long_rows: ModuleType) -> None:
    for columns in long_rows.COLUMNS[1:]:
        configs = list(long_rows.triton_configs(columns, always_loops=True))
        assert configs
        assert all("LOOP" not in config and config["BLOCK"] <= columns for config in configs)


@pytest.mark.parametrize("has_loop", [True, False])
def test_triton_has_configs_for_every_length(long_rows: ModuleType, has_loop: bool) -> None:
    for columns in long_rows.COLUMNS:
        assert all(
            long_rows.serves(config, columns)
            for config in long_rows.triton_configs(columns, has_loop=has_loop)
        )
        assert any(
            not config.get("LOOP")
            for config in long_rows.triton_configs(columns, has_loop=has_loop)
        )
