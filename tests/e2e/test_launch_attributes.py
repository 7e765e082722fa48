"""Launch attributes: programs as clusters, and overlapping grids.

The kernel for clusters is gpu IR written by hand. It goes through the backend into an archive, and
is launched from there on a GPU:

    pytest -m gpu tests/e2e/test_launch_attributes.py [--built FOLDER]
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

import aotc
from aotc.backend import assemble, emit_ptx, lower_kernel, param_places
from aotc.ir.text import parse_kernel
from aotc.package.archive import file as archive
from aotc.package.archive.index import Archive, CubinParam, Kernel, Param, Variant
from aotc.package.inspect.content import COLUMNS, rows
from aotc.runtime import ArgumentError
from aotc.target import TARGETS
from tests.support.built import Built

pytestmark = pytest.mark.usefixtures("one_worker")

TARGET = TARGETS["sm_90a"]
# Every CTA adds 1 to its program's counter, to count the CTAs of a program.
COUNT_CTAS = """#0 = #ll<register=[] lane=[[0],[0],[0],[0],[0]] warp=[] : [1]>
kernel @count_ctas_{num_ctas}(%out: *i32) {{num_warps = 1, num_ctas = {num_ctas}}} {{
  %x = tile.program_id {{axis = 0}} : i32
  %here = arith.addptr(%out, %x) : *i32
  %tile = tile.splat(%here) {{shape = [1], layout = #0}} : tile<1x*i32, #0>
  %one = arith.constant {{value = 1, type = tile<1xi32, #0>}} : tile<1xi32, #0>
  %old = gpu.atomic_rmw(%tile, %one, _) {{kind = "add"}} : tile<1xi32, #0>
  scf.return
}}
"""
SIZES = (1, 2, 4, 8)
SLOW_AND_READER = """import triton
import triton.language as tl

@triton.jit
def slow(x, n, SPINS: tl.constexpr):
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    value = tl.load(x + i, mask=i < n)
    for _ in range(SPINS):
        value = tl.load(x + i, mask=i < n, volatile=True) + 0 * value
    tl.store(x + i, value + 1, mask=i < n)


@triton.jit
def reader(x, out, n):
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    tl.extra.cuda.gdc_wait()
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def careless(x, out, n):
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)
"""
MANIFEST = """[package]
name = "overlap"
version = "0.1.0"
targets = ["sm_90a"]
"""
KERNELS = {
    "slow": ('x = "*i32"\nn = "i32"', "SPINS = 200"),
    "reader": ('x = "*i32"\nout = "*i32"\nn = "i32"', ""),
    "careless": ('x = "*i32"\nout = "*i32"\nn = "i32"', ""),
}


def _variant(num_ctas: int, config: int) -> Variant:
    kernel = parse_kernel(COUNT_CTAS.format(num_ctas=num_ctas))
    cubin = assemble(emit_ptx(lower_kernel(kernel, TARGET).llvm_ir, TARGET), TARGET).cubin
    ((offset, size),) = param_places(cubin, kernel.name)
    return Variant(
        target=TARGET.name,
        symbol=kernel.name,
        cubin=cubin,
        num_threads=32,
        config=config,
        cluster=(num_ctas, 1, 1),
        cubin_params=(CubinParam(offset, size),),
        grid=(),
    )


@pytest.fixture(scope="module")
def clusters(built: Built) -> Path:
    """Return an archive of one kernel with a variant for each size of a cluster."""

    def build(folder: Path) -> None:
        kernel = Kernel(
            "count_ctas",
            hashlib.sha256(COUNT_CTAS.encode()).digest(),
            tuple(_variant(count, number) for number, count in enumerate(SIZES)),
            (Param("out", "pointer", "i32"),),
            configs=tuple((("num_ctas", count),) for count in SIZES),
        )
        archive.write(Archive("clusters", "1", (kernel,)), folder / "clusters.aotc")

    return built("clusters", build)


@pytest.fixture(scope="module")
def overlap(built: Built) -> Path:
    """Return an archive of kernels with a wait for the previous launch, and of one without."""
    tables = [
        f'[[kernel]]\nsource = "slow_and_reader.py:{name}"\ngrid = ["cdiv(n, 256)"]\n'
        f"[kernel.signature]\n{signature}\n[kernel.constants]\n{constants}\n"
        for name, (signature, constants) in KERNELS.items()
    ]

    def build(folder: Path) -> None:
        from aotc import cli

        (folder / "slow_and_reader.py").write_text(SLOW_AND_READER, encoding="utf-8")
        manifest = folder / "overlap.toml"
        manifest.write_text("\n".join([MANIFEST, *tables]), encoding="utf-8")
        assert cli.run(["build", str(manifest), "-o", str(folder)]) == 0

    return built("overlap", build)


def test_an_archive_keeps_clusters(clusters: Path) -> None:
    contents = archive.read(clusters)
    assert [variant.cluster[0] for variant in contents.kernels[0].variants] == list(SIZES)
    shapes = [row.cells[COLUMNS.index("cluster")] for row in rows(contents.kernels[0])]
    assert shapes == ["", "2x1x1", "4x1x1", "8x1x1"]


def test_an_archive_keeps_who_waits(overlap: Path) -> None:
    kernels = {kernel.name: kernel for kernel in archive.read(overlap).kernels}
    waits = {name: kernel.variants[0].waits_pdl for name, kernel in kernels.items()}
    assert waits == {"slow": True, "reader": True, "careless": False}


@pytest.fixture
def torch() -> Any:
    """Return torch, with a context on the GPU."""
    module = pytest.importorskip("torch")
    module.zeros(1, device="cuda")
    return module


@pytest.mark.gpu
@pytest.mark.parametrize("num_ctas", SIZES)
def test_clusters_run(torch: Any, clusters: Path, num_ctas: int) -> None:
    counts = torch.zeros(1000, dtype=torch.int32, device="cuda")
    kernel = aotc.load(clusters)["count_ctas"]
    kernel.launch((counts,), grid=(997,), config={"num_ctas": num_ctas})
    assert counts.tolist() == [num_ctas] * 997 + [0] * 3


@pytest.mark.gpu
def test_overlapping_launches_wait(torch: Any, overlap: Path) -> None:
    library = aotc.load(overlap)
    size, rounds = 100_003, 50
    x = torch.zeros(size, dtype=torch.int32, device="cuda")
    outs = torch.full((rounds, size), -1, dtype=torch.int32, device="cuda")
    for out in outs:
        library["slow"].launch((x, size), pdl=True)
        library["reader"].launch((x, out, size), pdl=True)
    expected = torch.arange(1, rounds + 1, device="cuda", dtype=torch.int32)
    assert (outs == expected[:, None]).all()
    with pytest.raises(ArgumentError, match="AOTC_LAUNCH_PDL"):
        library["careless"].launch((x, outs[0], size), pdl=True)
