"""Every family of workloads without a GPU: small ones interpreted, and Triton's configs complete."""

from __future__ import annotations

from typing import Any

import pytest

from aotc.package.manifest.read import load
from aotc.package.manifest.spec import missing_constexpr
from benchmarks.harness.dry import dry_run
from benchmarks.harness.manifest import ROOT, tables, triton_configs
from benchmarks.harness.registry import FAMILIES, items_of, selected, tiny
from benchmarks.harness.workload import Workload

_LAUNCH = ("num_warps", "num_stages", "maxnreg")
_CASES = [(family, workload) for family in FAMILIES for workload in tiny(family)]
_ROWS = [(f, w) for f in FAMILIES for item in items_of(f).values() for w in item.workloads]


def _names(cases: list[tuple[str, Workload]]) -> list[str]:
    return [f"{family} {workload.name}" for family, workload in cases]


@pytest.mark.parametrize(("family", "workload"), _CASES, ids=_names(_CASES))
def test_every_kind_of_candidate_agrees_with_the_reference(family: str, workload: Workload) -> None:
    errors = dict(dry_run(workload))
    assert errors, family
    assert {label: error for label, error in errors.items() if not error <= 1.0} == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_have_names_of_their_own_and_kernels_of_their_manifest(family: str) -> None:
    for item in items_of(family).values():
        names = [workload.name for workload in item.workloads]
        assert len(names) == len({*names})
        for workload in item.workloads:
            assert {*workload.kernels} <= {*tables(workload.manifest)}
            assert workload.work > 0
            assert workload.unit in {"TFLOP/s", "TB/s", "µs"}


def _triton(workload: Workload) -> dict[str, list[dict[str, Any]]]:
    """Return Triton's configs by kernel, those of the manifest where it has none of its own."""
    own = {name: [dict(c) for c in configs] for name, configs in (workload.triton or {}).items()}
    for name in workload.kernels if workload.triton is not None else ():
        table = tables(workload.manifest)[name]
        if name not in own and "config" in table:
            own[name] = triton_configs([dict(config) for config in table["config"]])
    return own


@pytest.mark.parametrize("family", FAMILIES)
def test_tritons_configs_give_every_constant(family: str) -> None:
    workloads = [workload for name, workload in _ROWS if name == family]
    specs = {
        manifest: {kernel.name: kernel for kernel in load(str(ROOT / manifest)).kernels}
        for manifest in {workload.manifest for workload in workloads}
    }
    configs = {
        f"{workload.manifest} {name} {config}": (workload.manifest, name, config)
        for workload in workloads
        for name, listed in _triton(workload).items()
        for config in (listed if name in specs[workload.manifest] else ())
    }
    for label, (manifest, name, config) in configs.items():
        kernel, table = specs[manifest][name], tables(manifest)[name]
        fixed = {*table["signature"], *kernel.constants, *kernel.choices, *config}
        assert missing_constexpr(kernel.function, fixed) is None, label
        params = {param.name for param in kernel.function.constexprs}
        assert {*config} - {*_LAUNCH, *params} == set(), label


def test_rows_are_selected_by_item_and_by_the_beginning_of_their_names() -> None:
    items = items_of("attention")
    assert selected("attention", ["d64"]) == list(items["d64"].workloads)
    (row,) = selected("attention", ["d64"], ["4×32×8192, d64, causal"])
    assert row is items["d64"].workloads[1]
    with pytest.raises(SystemExit, match="expected items of d128, .*; got nothing"):
        selected("attention", ["nothing"])


def test_forty_layers_of_language_models() -> None:
    assert len(selected("matmul", ["shapes"])) == 40
