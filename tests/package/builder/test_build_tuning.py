"""Builds with a tuning table: selections in the archive, warnings on stale tables, fewer configs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aotc.package.archive import file as archive
from aotc.package.archive.index import Kernel
from aotc.package.archive.selection import Selection
from aotc.package.builder.run import BuildOptions, BuildResult, build
from aotc.package.manifest.read import load
from aotc.package.tuning import cost_model  # noqa: F401 - it keeps the fit that it is imported with
from aotc.package.tuning import fit as fits
from aotc.package.tuning.table import KernelTuning, TuningTable
from tests.support.fake_compiler import compile_empty

_MANIFEST = """\
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a", "sm_80"]

[[kernel]]
source = "k.py:add"
grid = ["cdiv(n, BLOCK)"]
[kernel.signature]
n = "i32"
[kernel.configs]
BLOCK = [64, 128]
num_warps = [4, 8]
"""
_CONFIGS = tuple({"BLOCK": block, "num_warps": warps} for block in (64, 128) for warps in (4, 8))
_TABLE = TuningTable((KernelTuning("add", "sm_90a", "NVIDIA H200", _CONFIGS, (), {}),))
_SELECTION = Selection("sm_90a", "NVIDIA H200", 0, (2, 1))


class _Warnings:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def started(self, num_variants: int, num_cached: int) -> None: ...

    def finished(self, outcome: object) -> None: ...

    def warned(self, message: str) -> None:
        self.lines.append(message)


@pytest.fixture(autouse=True)
def _fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fitted(tuning: KernelTuning, *_: object) -> tuple[Selection, ...]:
        return (_SELECTION,) if tuning.configs == _CONFIGS else ()

    monkeypatch.setattr(fits, "fit", fitted)


def built(folder: Path, **options: Any) -> tuple[Kernel, BuildResult, list[str]]:
    (folder / "k.py").write_text("def add(n, BLOCK: tl.constexpr):\n    pass\n")
    (folder / "kernels.toml").write_text(_MANIFEST)
    warnings = _Warnings()
    with ThreadPoolExecutor(1) as executor:
        result = build(
            load(str(folder / "kernels.toml")),
            BuildOptions(folder / "dist", 1, **options),
            warnings,
            cache=None,
            compiler=compile_empty,
            executor=executor,
        )
    assert not result.failures
    return archive.read(folder / "dist" / "demo.aotc").kernels[0], result, warnings.lines


def test_a_table_is_packed(tmp_path: Path) -> None:
    kernel, _, warnings = built(tmp_path, tuning=_TABLE)
    assert (kernel.selections, warnings) == ((_SELECTION,), [])
    assert len(kernel.variants) == 8
    assert built(tmp_path, tuning=_TABLE, has_selections=False)[0].selections == ()
    assert built(tmp_path)[0].selections == ()


def test_what_is_stale_is_a_warning(tmp_path: Path) -> None:
    old = KernelTuning("add", "sm_80", "NVIDIA A100", ({"BLOCK": 32},), (), {})
    unknown_target = KernelTuning("sub", "sm_80", "NVIDIA A100", (), (), {})
    kernel, _, warnings = built(
        tmp_path, tuning=TuningTable((*_TABLE.kernels, old, unknown_target))
    )
    assert kernel.selections == (_SELECTION,)
    assert len(warnings) == 2
    assert "kernel 'sub'" in warnings[0]
    assert "BLOCK=32" in warnings[1]


def test_targets_that_are_not_built_are_no_mistake(tmp_path: Path) -> None:
    kernel, _, warnings = built(tmp_path, tuning=_TABLE, targets=("sm_80",))
    assert (kernel.selections, warnings) == ((), [])


def test_only_tuned_configs(tmp_path: Path) -> None:
    kernel, _, _ = built(tmp_path, tuning=_TABLE, only_tuned=True)
    built_variants = [(v.target, kernel.configs[v.config]) for v in kernel.variants]
    every = [(("BLOCK", c["BLOCK"]), ("num_warps", c["num_warps"])) for c in _CONFIGS]
    assert built_variants == [*(("sm_80", config) for config in every), ("sm_90a", every[2])]
    assert kernel.selections[0].tree == (2,)
