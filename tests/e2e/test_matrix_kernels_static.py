"""The manifest of the matrix kernels: everything in it assembles, to the expected instructions.

Kernels are assembled for one target each, in rotation, so every target has its share.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from aotc.compiler import CompiledKernel, autotune_configs, compile_kernel
from aotc.package.manifest import read as manifest
from aotc.package.manifest.variant_grid import VariantSpec, expand
from aotc.target import TARGETS
from tests.support.matrix_cases import CASES

MANIFEST = Path(__file__).parents[2] / "kernels" / "matrix.toml"
KERNELS = [spec.name for spec in manifest.load(str(MANIFEST)).kernels]
POINTS = [(name, list(TARGETS)[index % len(TARGETS)]) for index, name in enumerate(KERNELS)]


@lru_cache(maxsize=64)
def variants(name: str) -> tuple[VariantSpec, ...]:
    spec = next(kernel for kernel in manifest.load(str(MANIFEST)).kernels if kernel.name == name)
    return expand(spec, [TARGETS["sm_90a"]], autotune_configs).variants


@lru_cache(maxsize=64)
def compiled(name: str, target: str, index: int = 0) -> CompiledKernel:
    return compile_kernel(replace(variants(name)[index].request, target=target))


def test_every_kernel_has_a_case() -> None:
    functions = {case.path.rsplit(":", 1)[1] for case in CASES.values()}
    assert {spec.function.name for spec in manifest.load(str(MANIFEST)).kernels} == functions


@pytest.mark.parametrize(("name", "target"), POINTS)
def test_assembles(name: str, target: str) -> None:
    kernel = compiled(name, target)
    assert kernel.metadata.ptxas_warnings == ()
    assert kernel.metadata.spill_bytes == 0
    assert kernel.metadata.shared_bytes <= TARGETS[target].max_shared_bytes


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_without_promises_a_matmul_is_assembled_too(target: str) -> None:
    assert variants("matmul")[-1].waived
    kernel = compiled("matmul", target, -1)
    assert kernel.metadata.ptxas_warnings == ()
    assert ("wgmma" if target == "sm_90a" else "mma.sync") in kernel.asm["ptx"]


@pytest.mark.parametrize("name", [name for name in KERNELS if "matmul" in name or name == "linear"])
def test_products_are_multiplied_by_tensor_cores(name: str) -> None:
    target = next(target for kernel, target in POINTS if kernel == name)
    assert re.search(r"\b(mma\.sync|wgmma)\b", compiled(name, target).asm["ptx"])


@pytest.mark.parametrize(("target", "vector"), [("sm_80", ""), ("sm_90a", r"\.v[24]")])
def test_split_k_adds_without_waiting(target: str, vector: str) -> None:
    """No answer is asked for, and where the hardware has them the sums go in vectors."""
    ptx = compiled("matmul_split_k_atomic", target).asm["ptx"]
    for mnemonic in re.findall(r"\b(?:red|atom)\.\S+", ptx):
        assert re.fullmatch(rf"red\.relaxed\.gpu\.global\.add{vector}\.f32", mnemonic)
