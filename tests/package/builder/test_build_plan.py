"""Plans: the variants of each kernel, their factors, the cached ones, and the time for the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.package.builder.build_plan import describe, makespan, plan, text
from aotc.package.builder.run import BuildOptions, build
from aotc.package.cache.compile_times import CompileTimes
from aotc.package.cache.store import Cache
from aotc.package.manifest.read import load
from tests.support.fake_compiler import compile_empty
from tests.support.listeners import Silent

_MANIFEST = """\
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a", "sm_80"]
[[kernel]]
source = "k.py:add"
[kernel.signature]
x_ptr = "*T:16?"
[kernel.types]
T = ["fp16", "fp32"]
[kernel.choices]
MODE = ["ok"]
[kernel.configs]
num_warps = [4, 8]
num_ctas = [1, 2]
"""
_SOURCE = "def add(x_ptr, MODE: tl.constexpr):\n    pass\n"


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    (tmp_path / "k.py").write_text(_SOURCE)
    (tmp_path / "kernels.toml").write_text(_MANIFEST)
    return str(tmp_path / "kernels.toml")


def _options(manifest: str, **chosen: tuple[str, ...]) -> BuildOptions:
    return BuildOptions(Path(manifest).parent / "dist", 3, **chosen)  # type: ignore[arg-type]


def _cache(manifest: str) -> Cache:
    return Cache(Path(manifest).parent / "cache", "c", pytest.fail)


def test_factors_multiply_to_the_variants(manifest: str) -> None:
    build_plan = plan(load(manifest), _options(manifest), cache=None, times=CompileTimes(None))
    (kernel,) = build_plan.kernels
    assert kernel.factors == ((2, "targets"), (2, "T"), (2, "guards"), (4, "configs"))
    assert (kernel.num_variants, kernel.num_dropped) == (24, 8)  # sm_80 has no clusters
    assert (kernel.num_cached, kernel.num_compiles) == (0, 24)
    assert build_plan.bases == {"guessed": 24}
    assert "2 targets x 2 T x 2 guards x 4 configs, less 8 dropped" in text(build_plan)
    assert "24 guessed, since nothing was measured yet" in text(build_plan)
    assert set(build_plan.seconds) == {1, 2, 3, 4, 16, 64, 256}
    assert build_plan.seconds[1] == pytest.approx(12.0)
    assert build_plan.seconds[256] == pytest.approx(0.5)


def test_what_is_cached_is_not_compiled_and_what_was_measured_is_known(manifest: str) -> None:
    options = _options(manifest, targets=("sm_80",))
    built = build(load(manifest), options, Silent(), cache=_cache(manifest), compiler=compile_empty)
    assert not built.failures
    cache = _cache(manifest)
    build_plan = plan(load(manifest), _options(manifest), cache=cache, times=cache.times)
    assert (build_plan.kernels[0].num_cached, build_plan.kernels[0].num_compiles) == (8, 16)
    assert build_plan.bases == {"estimated": 16}
    (Path(manifest).parent / "k.py").write_text("\n" + _SOURCE)
    cache = _cache(manifest)
    build_plan = plan(load(manifest), options, cache=cache, times=cache.times)
    assert (build_plan.kernels[0].num_cached, build_plan.kernels[0].num_compiles) == (0, 8)
    assert build_plan.bases == {"measured": 8}
    measured = sum(ran.seconds for ran in built.ran)
    assert build_plan.seconds[1] == pytest.approx(measured)
    data = json.loads(json.dumps(describe(build_plan)))
    assert (data["variants"], data["cached"], data["compiles"]) == (8, 0, 8)
    assert data["times"] == {"measured": 8, "estimated": 0, "guessed": 0}


def test_nothing_to_do_is_said(manifest: str) -> None:
    options = _options(manifest)
    build(load(manifest), options, Silent(), cache=_cache(manifest), compiler=compile_empty)
    cache = _cache(manifest)
    build_plan = plan(load(manifest), options, cache=cache, times=cache.times)
    assert text(build_plan).endswith("\n\nnothing to compile")
    assert not (options.output / "plan").exists()


@given(st.lists(st.floats(0.01, 10), max_size=30), st.integers(1, 40))
def test_makespan_is_between_its_bounds(seconds: list[float], num_workers: int) -> None:
    total = makespan(seconds, num_workers)
    least = max([sum(seconds) / num_workers, *seconds])
    assert least - 1e-9 <= total <= sum(seconds) + 1e-9
    assert total <= 4 / 3 * least + max(seconds, default=0) + 1e-9
    assert makespan(seconds, 1) == pytest.approx(sum(seconds))
