"""Triton's configs for the kernels of `benchmarks/hopper.toml`.

Warp specialisation is not among them: Triton 3.6 specialises on Hopper with num_warps = 4 only,
and fails there on a descriptor's store.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness.workload import grid_of

Configs = list[dict[str, Any]]


def _persistent(block_k: int) -> Configs:
    """Return the tuning space of Triton's persistent tutorial."""
    configs = grid_of(
        BLOCK_M=[128],
        BLOCK_N=[256, 128],
        BLOCK_K=[block_k],
        num_warps=[8, 4],
        num_stages=[3, 4],
        EPILOGUE_N=[128, 256, 64],
        FLATTEN=[True, False],
        GROUP_M=[8],
        NUM_SMS=[132],
    )
    return [
        config
        for config in configs
        if config["EPILOGUE_N"] in (config["BLOCK_N"], config["BLOCK_N"] // 2)
        and config["BLOCK_M"] * config["BLOCK_N"] <= 4096 * config["num_warps"]
    ]


def _columns(**axes: list[int]) -> Configs:
    fixed = {"BLOCK_M": [128], "BLOCK_N": [256], "COLUMNS": [192], "num_warps": [8]}
    return grid_of(**fixed, **axes, num_stages=[3], NUM_SMS=[132], GROUP_M=[8])


def _split(**axes: list[int]) -> Configs:
    """Return configs of programs that share tiles along K."""
    return grid_of(**{"num_warps": [4], "num_stages": [3], **axes})


_SMALL = _split(
    BLOCK_M=[16, 64], BLOCK_N=[64], BLOCK_K=[128, 256], SPLIT_K=[1, 2], num_stages=[4, 6],
    PDL=[False, True],
)  # fmt: skip
CONFIGS: dict[str, Configs] = {
    "linear": _persistent(64),
    "linear_columns": _columns(REST_N=[64]),
    "split_tail": grid_of(
        BLOCK_M=[128], BLOCK_N=[256, 128], SPLIT_K=[2, 3], num_warps=[8], num_stages=[3],
        NUM_SMS=[132], GROUP_M=[8],
    ),
    "split_tail_columns": _columns(EPILOGUE_N=[64], SPLIT_K=[2, 3]),
    "linear_fp8": _persistent(128),
    "linear_fp8_columns": _columns(REST_N=[64]),
    "blockwise_fp8": grid_of(
        BLOCK_M=[128, 64], BLOCK_N=[128], num_warps=[8, 4], num_stages=[3, 4], NUM_SMS=[132],
        GROUP_M=[8],
    ),
    "blockwise_fp8_parts": [],  # Triton has the kernel above
    "weight_only_int8": grid_of(
        BLOCK_N=[128], BLOCK_M=[256, 128], BLOCK_K=[64, 128], num_warps=[8, 4],
        num_stages=[3, 4, 5], FLATTEN=[True, False], NUM_SMS=[132], GROUP_N=[8],
    ),
    "small_int4": _split(
        BLOCK_M=[16, 64], BLOCK_N=[64, 128], BLOCK_K=[128], WORDS_K=[16], GROUPS_K=[1],
        SPLIT_K=[2, 4],
    ),
    "small_int4_zeros": _split(BLOCK_M=[16, 64, 128], BLOCK_N=[64, 128], SPLIT_K=[1, 2]),
    "small_mxfp4": _split(
        BLOCK_M=[16, 64], BLOCK_N=[64, 128], SPLIT_K=[2, 4], num_stages=[3, 4]
    ),
    "mxfp4": grid_of(
        BLOCK_M=[128, 256], BLOCK_K=[128], BYTES_K=[64], num_warps=[8, 4], num_stages=[2, 3],
        FLATTEN=[False],
    ),
    "swiglu": grid_of(BLOCK_M=[128], BLOCK_N=[128, 64], num_warps=[8], num_stages=[3, 4]),
    "batched": grid_of(BLOCK_M=[128], BLOCK_N=[256, 128], num_warps=[8], num_stages=[3, 4]),
    "matmul": [
        tile | {"BLOCK_K": 64, "num_stages": stages, "GROUP_M": group}
        for tile in (
            {"BLOCK_M": m, "BLOCK_N": n, "num_warps": warps}
            for m, n, warps in ((128, 256, 8), (256, 128, 8), (128, 128, 8), (128, 128, 4))
        )
        for stages in (3, 4)
        for group in (8, 16)
    ],
    "small_descriptor": _SMALL + [config | {"EARLY": 2} for config in _SMALL if config["PDL"]],
    "small_pointer": _SMALL,
    "matvec": grid_of(
        BLOCK_N=[4, 8, 16], BLOCK_K=[1024], num_warps=[4], num_stages=[1], PDL=[False, True]
    )
    + grid_of(BLOCK_N=[4, 8], BLOCK_K=[2048], num_warps=[8], num_stages=[1], PDL=[False, True]),
}  # fmt: skip
