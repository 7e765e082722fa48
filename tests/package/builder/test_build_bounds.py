"""Configs certain to lose to another are refused before code generation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aotc.compiler import CompiledKernel, CompileRequest
from aotc.package.archive import file as archive
from aotc.package.builder.run import BuildOptions, BuildResult, build
from aotc.package.builder.workers import Outcome
from aotc.package.cache.store import Cache
from aotc.package.manifest.read import load
from tests.support.fake_compiler import compile_empty

_SOURCE = """\
def add(x_ptr, n, LIVE: tl.constexpr = 0, SPILL: tl.constexpr = 0):
    pass
"""
_MANIFEST = """\
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_80"]

[[kernel]]
source = "k.py:add"
{where}
[kernel.signature]
x_ptr = "*fp32"
n = "i32"
{configs}
[kernel.limits]
spill_bytes = {spill_bytes}
"""


class _Listener:
    def __init__(self) -> None:
        self.labels: list[str] = []
        self.num_variants = 0

    def started(self, num_variants: int, num_cached: int) -> None:
        self.num_variants = num_variants - num_cached

    def finished(self, outcome: Outcome) -> None:
        self.labels.append(outcome.task.label)

    def warned(self, message: str) -> None:
        del message


class _Project:
    """Builds of a kernel with configs of many live registers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.generated: list[int] = []

    def build(
        self, configs: list[tuple[int, int]], *, spill_bytes: int = 256, where: str = ""
    ) -> tuple[BuildResult, list[int]]:
        """Build with pairs of live registers and spilled bytes; also return the shipped ones."""
        tables = "".join(f"[[kernel.config]]\nLIVE = {a}\nSPILL = {b}\n" for a, b in configs)
        (self.folder / "k.py").write_text(_SOURCE)
        path = self.folder / "kernels.toml"
        path.write_text(_MANIFEST.format(configs=tables, spill_bytes=spill_bytes, where=where))
        self.generated.clear()
        listener = _Listener()
        with ThreadPoolExecutor(1) as executor:
            result = build(
                load(str(path)),
                BuildOptions(self.folder / "dist", 1),
                listener,
                cache=Cache(self.folder / "cache", "c", listener.warned),
                compiler=self._compile,
                executor=executor,
            )
        assert len(listener.labels) == len(set(listener.labels)) == listener.num_variants
        (kernel,) = archive.read(self.folder / "dist" / "demo.aotc").kernels
        return result, [variant.spill_bytes for variant in kernel.variants]

    def _compile(self, request: CompileRequest) -> CompiledKernel:
        kernel = compile_empty(request)
        self.generated.append(int(str(dict(request.constants)["LIVE"])))
        return kernel


@pytest.fixture
def project(tmp_path: Path) -> _Project:
    return _Project(tmp_path)


def test_no_code_is_generated_for_a_config_that_loses(project: _Project) -> None:
    result, shipped = project.build([(2000, 9000), (100, 0), (510, 200)])
    assert (result.failures, shipped) == ((), [0, 200])
    assert sorted(project.generated) == [100, 510]
    assert [line for line in result.dropped if "LIVE=2000" in line and "are live" in line]
    again, shipped = project.build([(2000, 9000), (100, 0), (510, 200)])
    assert (again.num_compiled, again.dropped, shipped) == (0, result.dropped, [0, 200])


def test_a_config_that_spills_a_little_wins(project: _Project) -> None:
    _, shipped = project.build([(2000, 9000), (100, 1000)])
    assert (shipped, project.generated) == ([1000], [100])


@pytest.mark.parametrize(
    ("configs", "shipped"),
    [
        ([(2000, 9000), (1000, 4000)], [4000]),
        ([(2000, 9000), (100, 1020)], [1020]),
        ([(2000, 9000), (5000, 0)], [9000]),
        ([(2000, 9000)], [9000]),
    ],
)
def test_where_none_fits_all_are_compiled(
    project: _Project, configs: list[tuple[int, int]], shipped: list[int]
) -> None:
    result, compiled = project.build(configs)
    assert (result.failures, compiled) == ((), shipped)
    assert sorted(project.generated) == sorted(live for live, _ in configs if live <= 4080)
    again, compiled = project.build(configs)
    assert (again.num_compiled, again.dropped, compiled) == (0, result.dropped, shipped)


def test_what_may_be_shipped_is_compiled(project: _Project) -> None:
    _, shipped = project.build([(2000, 9000), (100, 0)], spill_bytes=9000)
    assert shipped == [9000, 0]


def test_a_config_for_launches_that_no_other_serves_is_compiled(project: _Project) -> None:
    _, shipped = project.build([(2000, 9000), (100, 0)], where='where = "LIVE == 100 or n > 64"')
    assert shipped == [0]
    where = 'where = "LIVE == 100 and n > 64 or LIVE == 2000 and n <= 64"'
    _, shipped = project.build([(2000, 9000), (100, 0)], where=where)
    assert shipped == [9000, 0]
