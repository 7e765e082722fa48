"""Whole rows without a GPU: an archive's launches go to the interpreter, and take a fixed time."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import peers
from benchmarks.harness import archive_peer, bench, dry, measure
from benchmarks.harness.operands import HostArrays
from benchmarks.harness.registry import tiny
from benchmarks.harness.task import Task
from benchmarks.harness.workload import Step, Workload


class _Kernel:
    """A kernel of the loader, as far as the harness asks it."""

    def __init__(self, manifest: str, name: str) -> None:
        self.manifest, self.name = manifest, name
        self.launched: list[dict[str, Any]] = []
        subjects = dry._subjects(manifest, name)
        expansion, _ = subjects[0].expanded
        variants = [
            SimpleNamespace(choices=dry._choices(s), config=dry._config(s), waits_pdl=False)
            for s in subjects
        ]
        configs: list[dict[str, Any]] = []
        for variant in variants:
            configs += [] if variant.config in configs else [variant.config]
        params = [SimpleNamespace(name=name) for name in expansion.variants[0].kernel.signature]
        choices = expansion.variants[0].kernel.choices
        self.info = SimpleNamespace(
            params=params, choices=choices, configs=configs, variants=variants
        )

    def select(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(scratch_bytes=0)

    def launch(self, arguments: list[Any], **words: Any) -> None:
        self.launched.append(words)
        names = (param.name for param in self.info.params)
        step = Step(self.name, words["config"], choices=words["choices"], grid=words["grid"])
        dry._launch(self.manifest, step, dict(zip(names, arguments, strict=True)))


class _Library(dict[str, _Kernel]):
    """An archive with the kernels of a manifest."""

    def __init__(self, workload: Workload, *names: str) -> None:
        super().__init__({name: _Kernel(workload.manifest, name) for name in names})


def _row(workload: Workload, library: _Library, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    def milliseconds(launch: Any, launches: int, *, ahead: bool) -> float:
        assert ahead
        return 2.0

    monkeypatch.setattr(peers, "milliseconds", milliseconds)
    monkeypatch.setattr(bench, "GpuArrays", HostArrays)
    monkeypatch.setattr(bench, "survive", lambda: None)
    clocks = SimpleNamespace(median={"sm_mhz": 1980.0})
    monkeypatch.setattr(measure, "Clocks", lambda: contextlib.nullcontext(clocks))
    task = Task("", [], [], "x.aotc", 60.0, [*workload.rivals], False, "", [], [])
    return measure.measure(workload, task, library)


def test_a_row_of_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = tiny("transpose")[1]
    library = _Library(workload, "transpose2d")
    row = _row(workload, library, monkeypatch)
    assert row["figure"] == float(f"{workload.work / 2e9:.4g}")
    assert row["configs"]["aotc"].startswith("transpose2d BLOCK_M=")
    assert (row["ratios"], row["failed"], row["clocks"]) == ({}, {}, {"sm_mhz": 1980.0})
    tried = {str(words["config"]) for words in library["transpose2d"].launched}
    assert tried == {str(config) for config in library["transpose2d"].info.configs}


def test_a_row_of_several_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = tiny("attention_plain")[2]
    names = ("delta", "backward_keys", "backward_queries")
    library = _Library(workload, *names)
    for name in names[1:]:  # a few of the many configs
        library[name].info.configs = library[name].info.configs[:3]
    row = _row(workload, library, monkeypatch)
    assert [part.split()[0] for part in row["configs"]["aotc"].split(", ")] == [*names]
    assert all(library[name].launched for name in names)


def test_a_rival_has_other_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = tiny("split_k")[1]
    library = _Library(workload, "split_k")
    row = _row(workload, library, monkeypatch)
    assert row["ratios"] == {"threads": 1.0}
    assert "SCOPE=gpu" in row["configs"]["aotc"]
    assert "SCOPE=sys" in row["configs"]["threads"]


def test_an_archive_without_the_kernel_has_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = tiny("transpose")[1]
    with pytest.raises(RuntimeError, match="the archive has no config for it"):
        _row(workload, _Library(workload), monkeypatch)


def test_a_launch_starts_early_if_its_kernel_waits_by_itself() -> None:
    workload = tiny("transpose")[1]
    library = _Library(workload, "transpose2d")
    kernel = library["transpose2d"]
    args = workload.operands(HostArrays())
    config = kernel.info.configs[0]
    for variant in kernel.info.variants:
        variant.waits_pdl = variant.config == config
    for step, pdl in (
        (Step("transpose2d", config), True),
        (Step("transpose2d", config, pdl=False), False),
        (Step("transpose2d", kernel.info.configs[1]), False),
        (Step("transpose2d"), False),
    ):
        archive_peer.bind(library, (step,), args)()
        assert kernel.launched[-1]["pdl"] == pdl
