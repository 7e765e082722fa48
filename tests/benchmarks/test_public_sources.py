"""benchmarks/public_sources.py without its sources: manifests have the kernels of each work."""

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
    named: dict[str, set[str]] = {}
    for source in public.SOURCES.values():
        named.setdefault(source.manifest, set()).update(source.kernels)
    assert {*named} <= {file.stem for file in public.MANIFESTS.glob("*.toml")}
    for name, kernels in named.items():
        manifest = tomli.loads((public.MANIFESTS / f"{name}.toml").read_text(encoding="utf-8"))
        assert {kernel["name"] for kernel in manifest["kernel"]} == kernels
        libraries = {kernel["source"].split("/")[0] for kernel in manifest["kernel"]}
        assert libraries <= {*public.LIBRARIES}


def test_triton_gets_no_key_of_aotc_alone(public: ModuleType) -> None:
    configs = [
        {"BLOCK": 64, "num_warps": 4, "mma_stages": stages, "persistent": persistent}
        for stages in (1, 2)
        for persistent in (False, True)
    ]
    assert public.without_own_keys(configs) == [{"BLOCK": 64, "num_warps": 4}]
