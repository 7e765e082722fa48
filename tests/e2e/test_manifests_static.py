"""The manifests of the repository assemble: without warnings, to the expected instructions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

from aotc.compiler import CompiledKernel, compile_kernel
from aotc.package.manifest.variant_grid import VariantSpec
from aotc.target import TARGETS
from tests.support import hopper_cases, matrix_cases
from tests.support.hopper_manifest import entries, entry_name, manifest_text
from tests.support.manifests import MANIFESTS

MATRIX, HOPPER = MANIFESTS["matrix"], MANIFESTS["hopper"]
MATRIX_KERNELS = [spec.name for spec in MATRIX.manifest.kernels]
# Kernels take turns at the targets.
MATRIX_POINTS = list(zip(MATRIX_KERNELS, len(MATRIX_KERNELS) * list(TARGETS), strict=False))
# Without promises they have addresses and masks for every element, and may spill.
ROWS = MANIFESTS["rows"].manifest.kernels
MAX_SPILL_BYTES = 256  # of a config with a limit of registers, for one more CTA per SM


def _points() -> Iterator[Any]:
    # Targets take turns at all promises and none: wide accesses and scalar ones.
    kernels = MANIFESTS["kernels"]
    for row, spec in enumerate(kernels.manifest.kernels):
        variants = kernels.hopper_variants(spec.name)
        for column, target in enumerate(sorted(TARGETS)):
            variant = variants[-((row + column) % 2)]
            yield pytest.param(variant, target, id=f"{spec.name}-{target}")
    for name, target in MATRIX_POINTS:
        yield pytest.param(MATRIX.hopper_variants(name)[0], target, id=f"{name}-{target}")
    for name in ("hopper", "rows", "serving", "functions"):
        for spec in MANIFESTS[name].manifest.kernels:
            for variant in MANIFESTS[name].variants(spec.name):
                yield pytest.param(variant, variant.target.name, id=variant.label)


@lru_cache(maxsize=64)
def _compiled(name: str, target: str, index: int = 0) -> CompiledKernel:
    request = MATRIX.hopper_variants(name)[index].request
    return compile_kernel(replace(request, target=target))


@pytest.mark.parametrize(("variant", "target"), list(_points()))
def test_a_variant_assembles_without_warnings(variant: VariantSpec, target: str) -> None:
    metadata = compile_kernel(replace(variant.request, target=target)).metadata
    assert metadata.ptxas_warnings == ()
    assert metadata.shared_bytes <= TARGETS[target].max_shared_bytes
    limit = 0 if variant.request.config.maxnreg is None else MAX_SPILL_BYTES
    if not (variant.waived and variant.kernel in ROWS):
        assert max(metadata.spill_bytes, metadata.stack_bytes) <= limit


@pytest.mark.parametrize("name", ["vector_add", "silu_mul", "softmax", "rmsnorm", "layernorm"])
def test_promised_arguments_are_accessed_16_bytes_at_a_time(name: str) -> None:
    variants = MANIFESTS["kernels"].hopper_variants(name)
    variant = next(variant for variant in variants if not variant.waived)
    sass = compile_kernel(variant.request).asm["sass"]
    accesses = re.findall(r"\b(?:LDG|STG)\.E[.\w]*", sass)
    narrow = [name for name in accesses if not name.endswith(".128")]
    assert len(accesses) > len(narrow)
    # Beside the tiles only scalars of a row: statistics stored by one thread.
    assert len(narrow) <= 2, narrow


@pytest.mark.parametrize("name", ["matrix", "hopper"])
def test_every_kernel_has_a_case(name: str) -> None:
    functions = {
        "matrix": {case.path.rsplit(":", 1)[1] for case in matrix_cases.CASES.values()},
        "hopper": {case.function for case in hopper_cases.CASES.values()},
    }
    kernels = MANIFESTS[name].manifest.kernels
    assert {spec.function.name for spec in kernels} == functions[name]


def test_the_manifest_for_a_gpu_has_every_build(tmp_path: Any) -> None:
    path = tmp_path / "cases.toml"
    path.write_text(manifest_text(), encoding="utf-8")
    checked = replace(HOPPER, path=path)
    names = [kernel.name for kernel in checked.manifest.kernels]
    assert names == [entry_name(*fields) for fields in entries()]
    assert all(len(checked.variants(name)) >= 4 for name in names)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_matmul_without_promises_assembles(target: str) -> None:
    assert MATRIX.hopper_variants("matmul")[-1].waived
    kernel = _compiled("matmul", target, -1)
    assert kernel.metadata.ptxas_warnings == ()
    assert ("wgmma" if target == "sm_90a" else "mma.sync") in kernel.asm["ptx"]


@pytest.mark.parametrize(
    ("name", "target"),
    [point for point in MATRIX_POINTS if "matmul" in point[0] or point[0] == "linear"],
)
def test_products_use_tensor_cores(name: str, target: str) -> None:
    assert re.search(r"\b(mma\.sync|wgmma)\b", _compiled(name, target).asm["ptx"])


@pytest.mark.parametrize(("target", "vector"), [("sm_80", ""), ("sm_90a", r"\.v[24]")])
def test_split_k_adds_without_a_result(target: str, vector: str) -> None:
    """Sums go in vectors where the hardware has them."""
    ptx = _compiled("matmul_split_k_atomic", target).asm["ptx"]
    for mnemonic in re.findall(r"\b(?:red|atom)\.\S+", ptx):
        assert re.fullmatch(rf"red\.relaxed\.gpu\.global\.add{vector}\.f32", mnemonic)
