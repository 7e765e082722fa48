"""Every kernel of the repository assembles for every target, without spills or warnings."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from aotc.compiler import autotune_configs, compile_kernel
from aotc.package.manifest import read as manifest
from aotc.package.manifest.variant_grid import VariantSpec, expand
from aotc.target import TARGETS

MANIFEST = Path(__file__).parents[2] / "kernels.toml"
KERNELS = [spec.name for spec in manifest.load(str(MANIFEST)).kernels]


@lru_cache(maxsize=64)
def variants(name: str) -> tuple[VariantSpec, ...]:
    spec = next(kernel for kernel in manifest.load(str(MANIFEST)).kernels if kernel.name == name)
    return expand(spec, [TARGETS["sm_90a"]], autotune_configs).variants


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("name", KERNELS)
def test_assembles_for_every_target(name: str, target: str) -> None:
    """With all promises and with none: wide accesses and scalar ones."""
    for spec in (variants(name)[0], variants(name)[-1]):
        kernel = compile_kernel(replace(spec.request, target=target))
        assert kernel.metadata.ptxas_warnings == ()
        # A cap on registers is a choice of the manifest's, and spills are its price.
        if spec.request.config.maxnreg is None:
            assert kernel.metadata.spill_bytes == 0
        assert kernel.metadata.shared_bytes <= TARGETS[target].max_shared_bytes


@pytest.mark.parametrize("name", ["vector_add", "silu_mul", "softmax", "rmsnorm", "layernorm"])
def test_promised_arguments_are_accessed_16_bytes_at_a_time(name: str) -> None:
    spec = next(variant for variant in variants(name) if not variant.waived)
    sass = compile_kernel(spec.request).asm["sass"]
    accesses = re.findall(r"\b(?:LDG|STG)\.E[.\w]*", sass)
    narrow = [name for name in accesses if not name.endswith(".128")]
    assert len(accesses) > len(narrow)
    # Beside the tiles only scalars of a row: statistics stored by one thread.
    assert len(narrow) <= 2, narrow
