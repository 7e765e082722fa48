"""An autotuned function without records takes the config of its archive's selection."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aotc import cli
from aotc.ir.expression import parse
from aotc.package.archive import file as archives
from aotc.package.archive.index import Archive, num_combinations
from aotc.package.archive.selection import ANY_GPU, Branch, Selection
from aotc.package.emit.sources import read_sources

pytestmark = pytest.mark.usefixtures("one_worker")

START = """
install(stand_in=True)
import ops, triton, triton.language as tl
grid = lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)
"""


def _selecting(archive: Archive) -> Archive:
    """Return the archive with trees for `copy`: 64 elements a program up to n = 1500, and above 3000."""

    def changed(kernel: Any) -> Any:
        if kernel.name != "copy":
            return kernel
        blocks = [dict(config)["BLOCK"] for config in kernel.configs]
        small, large = (blocks.index(64),), (blocks.index(128),)
        tree = Branch(parse("n"), 1500, small, Branch(parse("n"), 3000, large, small))
        numbers = range(num_combinations(kernel.type_variables, kernel.choices))
        selections = tuple(Selection("sm_90a", ANY_GPU, number, tree) for number in numbers)
        return replace(kernel, selections=selections)

    return replace(archive, kernels=tuple(map(changed, archive.kernels)))


@pytest.fixture
def selecting(project: Path, tmp_path: Path) -> Path:
    """The project with an archive with selections."""
    for name in ("ops.py", "helpers.py", "libcuda.so.1"):
        shutil.copy(project / name, tmp_path / name)
    source = project / "dist" / "ops.aotc"
    sources = read_sources(source)
    assert sources is not None
    archive, data = archives.changed(source.read_bytes(), _selecting)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "ops.aotc").write_bytes(data)
    text = sources.text([kernel.name for kernel in archive.kernels], data)
    (tmp_path / "dist" / "ops.sources.json").write_text(text)
    return tmp_path


def threads_for(n: int) -> int:
    return 128 if 1500 < n <= 3000 else 64


@pytest.mark.parametrize("key", [["n"], [], ["x"]])
def test_the_selection_decides_by_values(launches: Any, selecting: Path, key: list[str]) -> None:
    sizes = (1000, 2000, 2000, 1000, 4000, 1024, 2048, 1500, 1501, 2000, 1000)
    launched = launches(
        f"""{START}
ops.copy.keys = {key}
for n in {sizes}:
    launched(lambda: ops.copy[grid](x, y, n))
for n in {sizes}:
    launched(lambda: ops.copy.run(x, y, n=n, grid=grid, warmup=False))
""",
        folder=selecting,
    )
    assert [block for _, block in launched] == 2 * [threads_for(n) for n in sizes]


def test_configs_that_are_pruned_are_not_selected(launches: Any, selecting: Path) -> None:
    launched = launches(
        f"""{START}
ops.copy.early_config_prune = lambda configs, args, **_: [one for one in configs if one.num_warps > 2]
for n in (1000, 2000):
    launched(lambda: ops.copy[grid](x, y, n))
""",
        folder=selecting,
    )
    assert [block for _, block in launched] == [128, 128]


def test_what_is_kept_of_values_is_bounded(launches: Any, selecting: Path) -> None:
    *_, num_entries = launches(
        f"""{START}
from aotc.triton import tuning
tuning._MAX_KNOWN = 4
ops.copy.keys = []
for n in range(1490, 1510):
    ops.copy[grid](x, y, n)
    seen.append(len(ops.copy.__dict__["_aotc_configs"]))
seen.append(max(seen))
""",
        folder=selecting,
    )
    assert num_entries <= 6


_TIED = """
[package]
name = "ops"
version = "0.1.0"
targets = ["sm_90a"]

[[kernel]]
name = "add"
source = "ops.py:add"
[kernel.signature]
x = "*fp32"
y = "*fp32"
bias = "none"
n = "i32"
stride = "i32"
scale = "fp32"
[kernel.constants]
BLOCK = 64
[kernel.configs]
num_warps = [1, 2, 8]
"""


def _by_size(archive: Archive) -> Archive:
    (kernel,) = archive.kernels
    tree = Branch(parse("n"), 1500, (2,), Branch(parse("n"), 3000, (1,), (0,)))
    return replace(
        archive, kernels=(replace(kernel, selections=(Selection("sm_90a", ANY_GPU, 0, tree),)),)
    )


@pytest.fixture
def tied(project: Path, tmp_path: Path) -> Path:
    """A project with one kernel, its configs differing only in warps, without selections."""
    for name in ("ops.py", "helpers.py", "libcuda.so.1"):
        shutil.copy(project / name, tmp_path / name)
    (tmp_path / "kernels.toml").write_text(_TIED)
    built = ["build", str(tmp_path / "kernels.toml"), "-o", str(tmp_path / "dist"), "--no-tuning"]
    assert cli.run([*built, "-j", "1"]) == 0
    return tmp_path


def select_by_size(folder: Path) -> None:
    """Give the archive of a project selections."""
    path = folder / "dist" / "ops.aotc"
    sources = read_sources(path)
    assert sources is not None
    _, data = archives.changed(path.read_bytes(), _by_size)
    path.write_bytes(data)
    path.with_suffix(".sources.json").write_text(sources.text(["add"], data))


def test_what_a_launch_leaves_open_is_selected(launches: Any, tied: Path) -> None:
    """The archive decides on the number of warps, unless the launch gives it."""
    body = f"""{START}
for n in (1000, 2000, 4000, 1000):
    launched(lambda: ops.add[(1,)](x, y, None, n, 2, 0.5, BLOCK=64))
launched(lambda: ops.add[(1,)](x, y, None, 2000, 2, 0.5, BLOCK=64, num_warps=8))
"""
    before = [block for _, block in launches(body, folder=tied)]
    assert before == [32, 32, 32, 32, 256]
    select_by_size(tied)
    after = [block for _, block in launches(body, folder=tied)]
    assert after == [256, 64, 32, 256, 256]


def test_other_values_do_not_try_every_config_again(launches: Any, tied: Path) -> None:
    select_by_size(tied)
    *launched, chosen = launches(
        f"""{START}
from aotc.triton.tuning import Tuning
choose, calls = Tuning._choose, []
Tuning._choose = lambda *args: calls.append(args) or choose(*args)
configs = [triton.Config({{}}, num_warps=warps) for warps in (1, 2, 8)]
tuned = triton.autotune(configs, key=[])(ops.add)
for n in (1000, 2000, 4000, 1000, 1001, 2001, 4001):
    launched(lambda: tuned[(1,)](x, y, None, n, 2, 0.5, BLOCK=64))
seen.append(len(calls))
""",
        folder=tied,
    )
    assert [block for _, block in launched] == [256, 64, 32, 256, 256, 64, 32]
    assert chosen == 1


def test_a_class_that_tunes_in_its_own_way_times_what_the_archive_has(launches: Any) -> None:
    """Without a launch: other configs take forever."""
    assert launches("""
install(stand_in=True)
import ops
tuner = ops.copy
configs = tuner.prune_configs({})
seen.append([one.num_warps for one in configs])
times = [tuner._bench(x, y, 1000, config=one, grid=(1,)) for one in configs]
seen.append([time[0] == 1.0 for time in times])
assert gpu.launches == 0
tuner.early_config_prune = lambda configs, args, **_: configs[2:]
seen.append([one.num_warps for one in tuner.prune_configs({})])
""") == [[2, 4, 8], [True, True, False], [8]]
