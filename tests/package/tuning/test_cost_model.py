from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from aotc.compiler import autotune_configs, compile_variant
from aotc.ir import expression
from aotc.ir.expression import parse
from aotc.package.archive import index
from aotc.package.archive.selection import ANY_GPU, Branch, Tree, leaf_of
from aotc.package.builder.assemble import assemble
from aotc.package.cache.store import CachedKernel
from aotc.package.manifest.read import load
from aotc.package.manifest.spec import ListedConfigs
from aotc.package.manifest.variant_grid import expand
from aotc.package.tuning.cost_model import (
    MAX_LAUNCHES,
    TargetEstimates,
    sample_launches,
    selections,
)
from aotc.package.tuning.fit import fit
from aotc.package.tuning.table import KernelTuning, Measurement
from aotc.target import TARGETS
from aotc.work import Segment, Transfer, Work

_MANIFEST = Path(__file__).resolve().parents[3] / "benchmarks" / "tuning" / "kernels.toml"
_BLOCKS = (16, 256)


def _kernel(grid: str = "cdiv(n, {block})") -> tuple[index.Kernel, list[Work]]:
    """Return a kernel of one loop-free block, small or large, and its work."""
    variants: list[index.Variant] = []
    works: list[Work] = []
    for config, block in enumerate(_BLOCKS):
        axes = (parse(grid.format(block=block)),) if grid else ()
        variants.append(
            index.Variant("sm_90a", "k", b"", 128, config=config, grid=axes, registers=64)
        )
        load = Transfer("x", 2 * block, is_store=False, origins=(f"__p0 * {2 * block}",))
        segment = Segment(-1, "1", False, block / 8, 0, 0, (), 700 + 8 * block, (load,))
        works.append(Work((segment,)))
    kernel = index.Kernel(
        name="k",
        source_sha256=b"",
        variants=tuple(variants),
        params=(index.Param("x", "pointer", "bf16"), index.Param("n", "scalar", "i32", 0, 16)),
        configs=tuple((("BLOCK", block),) for block in _BLOCKS),
    )
    return kernel, works


def _features(tree: Tree) -> set[str]:
    if not isinstance(tree, Branch):
        return set()
    return {
        expression.to_text(tree.feature),
        *_features(tree.low),
        *_features(tree.high),
    }


def test_many_small_blocks_where_there_is_little_work_and_few_where_there_is_much() -> None:
    kernel, works = _kernel()
    (selection,) = selections(kernel, works)
    assert (selection.target, selection.gpu, selection.combination) == ("sm_90a", ANY_GPU, 0)
    assert leaf_of(selection.tree, {"n": 256})[0] == 0
    assert leaf_of(selection.tree, {"n": 1 << 18})[0] == 1
    assert _features(selection.tree) <= {"n", "cdiv(n, 16)", "cdiv(n, 256)"}


def test_equal_kernels_give_equal_selections() -> None:
    assert selections(*_kernel()) == selections(*_kernel())


@pytest.mark.parametrize("change", ["no grid", "no work", "one config"])
def test_nothing_is_selected_where_nothing_is_known(change: str) -> None:
    kernel, works = _kernel("" if change == "no grid" else "cdiv(n, {block})")
    if change == "no work":
        works = [Work(), Work()]
    if change == "one config":
        kernel, works = replace(kernel, variants=kernel.variants[:1]), works[:1]
    assert selections(kernel, works) == ()


def test_measured_launches_keep_their_best_config_and_estimates_say_the_rest() -> None:
    """Measured is one launch, where the large block is best against the estimate."""
    kernel, works = _kernel()
    configs = tuple({"BLOCK": block} for block in _BLOCKS)
    measured = Measurement({"n": 1024}, {}, {}, (2e-6, 1e-6))
    tuning = KernelTuning("k", "sm_90a", "NVIDIA H200", configs, (measured,), {})
    (selection,) = fit(tuning, kernel, TargetEstimates(kernel, works, "sm_90a"))
    assert selection.gpu == "NVIDIA H200"
    assert leaf_of(selection.tree, {"n": 1024})[0] == 1
    assert leaf_of(selection.tree, {"n": 1 << 18})[0] == 1


def test_launches_are_sampled_within_bounds() -> None:
    kernel, works = _kernel("cdiv(n, {block}) * cdiv(m, 8)")
    kernel = replace(
        kernel,
        params=(
            *kernel.params,
            index.Param("m", "scalar", "i32"),
            index.Param("s", "scalar", "i32"),
        ),
    )
    transfer = replace(works[0].segments[0].transfers[0], origins=("__p0 * s",))
    works = [Work((replace(works[0].segments[0], transfers=(transfer,)),))] * 2
    columns = sample_launches(kernel, list(zip(kernel.variants, works, strict=True)))
    assert sorted(columns) == ["m", "n", "s"]
    assert len(set(columns["s"].tolist())) == 1
    rows = list(zip(*(column.tolist() for column in columns.values()), strict=True))
    assert 100 < len(rows) == len(set(rows)) <= MAX_LAUNCHES
    assert (columns["n"] % 16 == 0).all()
    assert columns["m"].min() == 1
    assert columns["n"].max() <= 1 << 18


def test_what_the_compiler_counts_ranks_its_configs() -> None:
    """A row of 256 elements is for a small block and few warps, a long one for a large block."""
    spec = next(k for k in load(str(_MANIFEST)).kernels if k.name == "softmax")
    small = (("BLOCK", 512), ("num_warps", 4), ("num_stages", 1))
    large = (("BLOCK", 8192), ("num_warps", 16), ("num_stages", 1))
    spec = replace(spec, configs=ListedConfigs((small, large)))
    expansion = expand(spec, (TARGETS["sm_90a"],), autotune_configs)
    compiled = [compile_variant(variant.request) for variant in expansion.variants]
    cached = [CachedKernel(kernel.cubin, kernel.metadata) for kernel in compiled]
    assembled = assemble(expansion, list(zip(expansion.variants, cached, strict=True)))
    works = [metadata.work for metadata in assembled.metadata]
    (selection,) = selections(assembled.kernel, works)
    assert leaf_of(selection.tree, {"n_rows": 1 << 17, "n_cols": 256})[0] == 0
    assert leaf_of(selection.tree, {"n_rows": 256, "n_cols": 1 << 17})[0] == 1
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(works), type=list[Work]) == works
