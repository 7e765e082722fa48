"""benchmarks/hopper.py without a GPU: requested workloads, and lost processes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from aotc.compiler import autotune_configs
from aotc.package.manifest.read import load
from aotc.package.manifest.spec import missing_constexpr
from aotc.package.manifest.variant_grid import expand
from aotc.target import TARGETS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MANIFEST = load(str(BENCHMARKS / "hopper.toml"))

# A process measuring three workloads. The second has a hanging candidate, a crashing one, and a
# good one.
CHILD = """
import json, os, sys, time
task = json.load(sys.stdin)
def tell(**line): print(json.dumps(line), flush=True)
def peer(tflops): return dict(microseconds=1.0, tflops=tflops, terabytes_per_second=1.0)
for work in ("one", "two", "three"):
    if work in task["done"]:
        continue
    for name in ("hangs", "dies", "works"):
        candidate = f"{work} {name}"
        if candidate in task["bad"]:
            continue
        tell(trying=candidate)
        if candidate == "two hangs":
            time.sleep(60)
        if candidate == "two dies":
            os._exit(7)
    print("not for the parent", flush=True)
    over = dict(median=1.25, low=1.2, high=1.3)
    tell(row=dict(work=work, aotc=peer(5.0), library=peer(4.0), over_library=over, clocks={}))
"""


@pytest.fixture(name="hopper")
def _hopper(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("hopper")


def _results(hopper: ModuleType, folder: Path, **options: Any) -> Any:
    archive = folder / "x.aotc"
    if not archive.exists():
        archive.write_bytes(b"archive")
    return hopper.Results(archive, folder / "results.json", again=options.get("again", False))


def _command(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_lost_processes_cost_one_candidate_each(
    hopper: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = _results(hopper, tmp_path)
    hopper.measure(_command(CHILD), {}, results, quiet_seconds=1.0)
    assert list(results.rows) == ["one", "two", "three"]
    assert results.bad == ["two hangs", "two dies"]
    assert "over library 1.250 (1.200-1.300)" in capsys.readouterr().out
    again = _results(hopper, tmp_path)
    assert again.rows == results.rows
    assert again.bad == results.bad


def test_rows_of_another_archive_do_not_count(hopper: ModuleType, tmp_path: Path) -> None:
    results = _results(hopper, tmp_path)
    results.rows["one"] = {"work": "one"}
    results.bad.append("one hangs")
    results.write()
    assert _results(hopper, tmp_path).rows
    asked_again = _results(hopper, tmp_path, again=True)
    assert (asked_again.rows, asked_again.bad) == ({}, ["one hangs"])
    (tmp_path / "x.aotc").write_bytes(b"another")
    other = _results(hopper, tmp_path)
    assert (other.rows, other.bad) == ({}, [])


@pytest.mark.parametrize("text", ["raise SystemExit(1)", "import os; os._exit(9)"])
def test_a_process_that_fails_at_nothing_in_particular_ends_it(
    hopper: ModuleType, tmp_path: Path, text: str
) -> None:
    with pytest.raises(SystemExit, match="ended with exit code"):
        hopper.measure(_command(text), {}, _results(hopper, tmp_path))


def test_processes_that_are_always_lost_are_given_up(hopper: ModuleType, tmp_path: Path) -> None:
    text = 'import os; print(\'{"trying": "x"}\', flush=True); os._exit(5)'
    with pytest.raises(SystemExit, match="gave up"):
        hopper.measure(_command(text), {}, _results(hopper, tmp_path))


def test_the_mean_over_shapes_is_geometric(hopper: ModuleType) -> None:
    names = [shape.name for shape in hopper.SHAPES[:2]]
    rows = {
        name: {"work": name, "over_library": {"median": over}}
        for name, over in zip(names, (0.5, 2.0), strict=True)
    }
    assert f"2 shapes: geometric mean 1.000 of the library, least 0.500 ({names[0]})" in (
        hopper.shapes_summary(rows | {"descriptors 8192": {}})
    )
    assert hopper.shapes_summary({}) == "no shape was measured"


def test_there_are_forty_shapes(hopper: ModuleType) -> None:
    shapes = hopper.SHAPES
    assert len(shapes) == len({shape.name for shape in shapes}) == 40
    assert {shape.m for shape in shapes} == {1 << bit for bit in range(4, 15)}
    # Requirements of a tensor map.
    assert all(shape.n % 16 == shape.k % 16 == 0 for shape in shapes)


@pytest.mark.slow
def test_every_kernel_of_the_grid_has_configs_of_either_compiler(
    hopper: ModuleType,
) -> None:
    triton = importlib.import_module("hopper_triton")
    assert set(triton.CONFIGS) == {kernel.name for kernel in MANIFEST.kernels}
    tables = triton.kernels()
    for kernel in MANIFEST.kernels:
        assert len(expand(kernel, [TARGETS["sm_90a"]], autotune_configs).variants) > 2
        params = {*tables[kernel.name]["signature"], *tables[kernel.name].get("constants", {})}
        for config in triton.CONFIGS[kernel.name]:
            assert missing_constexpr(kernel.function, params | set(config)) is None, config
