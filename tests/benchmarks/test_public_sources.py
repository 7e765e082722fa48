"""benchmarks/public_sources.py without its sources: the manifest has the kernels of each work."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import tomli

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(name="public")
def _public(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("public_sources")


def test_works_and_kernels_are_the_same(public: ModuleType) -> None:
    manifest = tomli.loads(public.MANIFEST.read_text(encoding="utf-8"))
    assert {*public.KERNELS} == {*public.WORK}
    named = {name for names in public.KERNELS.values() for name in names}
    assert {kernel["name"] for kernel in manifest["kernel"]} == named
    assert all(kernel["source"].split("/")[0] in public.LIBRARIES for kernel in manifest["kernel"])


def test_triton_gets_no_key_of_aotc_alone(public: ModuleType) -> None:
    configs = [
        {"BLOCK": 64, "num_warps": 4, "mma_stages": stages, "persistent": persistent}
        for stages in (1, 2)
        for persistent in (False, True)
    ]
    assert public.without_own_keys(configs) == [{"BLOCK": 64, "num_warps": 4}]
