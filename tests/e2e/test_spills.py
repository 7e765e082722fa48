"""Register pressure: the most demanding variants on each target, and the benchmark's script.

`python benchmarks/spills.py` looks at every variant of the manifests, in some minutes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aotc.compiler import CompileRequest, autotune_configs, compile_kernel
from aotc.config import Config
from aotc.package.manifest import read as manifest
from aotc.package.manifest.variant_grid import VariantSpec, expand
from aotc.target import TARGETS

ROOT = Path(__file__).parents[2]
EPILOGUE = {"BIAS": True, "RESIDUAL": True, "ACTIVATION": "silu", "EVEN_K": True}
# (target, disabled features, rows, columns and K of the tile, warps, stages): 128
# accumulators a thread.
TILES = [
    ("sm_80", (), (128, 128, 32), 4, 4),
    ("sm_86", (), (128, 256, 32), 8, 3),
    ("sm_89", (), (128, 128, 32), 4, 3),
    ("sm_90a", ("wgmma",), (128, 256, 64), 8, 3),
    ("sm_90a", (), (128, 128, 64), 4, 3),
    ("sm_90a", (), (128, 256, 64), 8, 3),
    ("sm_120a", (), (128, 128, 32), 4, 3),
]


def matmul(
    target: str, without: tuple[str, ...], block: tuple[int, int, int], warps: int, stages: int
) -> CompileRequest:
    pointers = dict.fromkeys(("a_ptr", "b_ptr", "bias_ptr", "residual_ptr", "out_ptr"), "*bf16:16")
    scalars = {"M": "i32", **dict.fromkeys(("N", "K", "stride_am"), "i32:16")}
    strides = {"stride_ak": "i32=1", "stride_bk": "i32:16", "stride_bn": "i32=1"}
    signature = {**pointers, **scalars, **strides, "stride_om": "i32:16", "stride_on": "i32=1"}
    sizes = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), block, strict=True))
    constants = {**sizes, "GROUP_M": 8, **EPILOGUE}
    return CompileRequest(
        *(str(ROOT / "kernels" / "matmul.py"), "matmul_kernel"),
        *(tuple(signature.items()), tuple(constants.items()), target),
        config=Config(warps, stages),
        without=without,
    )


@pytest.mark.parametrize(("target", "without", "block", "warps", "stages"), TILES)
def test_a_fused_epilogue_of_many_accumulators(
    target: str, without: tuple[str, ...], block: tuple[int, int, int], warps: int, stages: int
) -> None:
    metadata = compile_kernel(matmul(target, without, block, warps, stages)).metadata
    assert (metadata.spill_bytes, metadata.ptxas_warnings) == (0, ())
    assert metadata.registers > 160, "this is no longer a test of many registers"


def variants(path: str, name: str, target: str, **constants: object) -> list[VariantSpec]:
    """Return the variants with these constants."""
    spec = next(kernel for kernel in manifest.load(str(ROOT / path)).kernels if kernel.name == name)
    all_variants = expand(spec, [TARGETS[target]], autotune_configs).variants
    matches = [
        candidate
        for candidate in all_variants
        if constants.items() <= dict(candidate.request.constants).items()
    ]
    if not matches:
        raise LookupError(f"{name} has no such variant")
    return matches


def variant(path: str, name: str, target: str, **constants: object) -> VariantSpec:
    """Return the first variant with these constants and no promises."""
    for candidate in variants(path, name, target, **constants):
        if not any(":" in text for text in dict(candidate.request.signature).values()):
            return candidate
    raise LookupError(f"{name} has no such variant")


@pytest.mark.parametrize(
    ("path", "name", "target", "without", "constants"),
    [
        ("kernels/matrix.toml", "matmul", "sm_120a", (), {**EPILOGUE, "BLOCK_M": 128}),
        ("kernels/matrix.toml", "matmul_split_k_atomic", "sm_90a", ("wgmma",), {"SPLIT_K": 4}),
        ("kernels/matrix.toml", "linear", "sm_120a", (), {"BIAS": True, "ACTIVATION": "gelu"}),
        ("kernels.toml", "rmsnorm", "sm_80", (), {"BLOCK": 16384, "LOOP": False}),
        ("kernels.toml", "layernorm", "sm_90a", (), {"BLOCK": 4096, "LOOP": False}),
    ],
)
def test_nothing_promised(
    path: str, name: str, target: str, without: tuple[str, ...], constants: dict[str, object]
) -> None:
    request = replace(variant(path, name, target, **constants).request, without=without)
    assert compile_kernel(request).metadata.spill_bytes == 0


@pytest.mark.parametrize(
    ("path", "name", "target", "constants"),
    [
        pytest.param(
            *("kernels.toml", "softmax", "sm_120a", {"BLOCK": 16384, "LOOP": False}),
            marks=pytest.mark.slow,
        ),
        *(("kernels.toml", "transpose2d", target, {}) for target in ("sm_80", "sm_86", "sm_89")),
        *(
            pytest.param(
                *("kernels/matrix.toml", "int8_matmul", target, {"BLOCK_M": rows}),
                marks=pytest.mark.slow,
            )
            for target, rows in (("sm_90a", 16), ("sm_120a", 64))
        ),
    ],
)
def test_whatever_is_promised(
    path: str, name: str, target: str, constants: dict[str, object]
) -> None:
    for candidate in variants(path, name, target, **constants):
        metadata = compile_kernel(candidate.request).metadata
        assert metadata.spill_bytes == 0, candidate.request.signature
