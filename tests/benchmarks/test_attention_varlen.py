"""benchmarks/attention_varlen.py without a GPU: its workloads and their kernels in the manifest."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from aotc.package.manifest.read import load

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(name="varlen")
def _varlen(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("attention_varlen")


def test_every_workload_has_its_kernel_with_its_constants(varlen: ModuleType) -> None:
    kernels = {
        kernel_spec.name: kernel_spec
        for kernel_spec in load(str(BENCHMARKS / "attention_varlen.toml")).kernels
    }
    assert {shape.kernel for shape in varlen.WORK.values()} == {*kernels}
    for shape in varlen.WORK.values():
        kernel = kernels[shape.kernel]
        for name, value in shape.constants.items():
            assert value in kernel.choices.get(name, [kernel.constants.get(name)])


def test_sequences_of_queries_have_keys(varlen: ModuleType) -> None:
    for shape in varlen.WORK.values():
        assert all(0 < queries <= keys for queries, keys in shape.lengths)
        assert shape.heads % shape.kv_heads == 0
