"""Triton as a peer of benchmarks/hopper.py: the same source files, compiled by it, with its configs.

Arguments, grids and the blocks of descriptors follow from benchmarks/hopper.toml, so both
compilers get the same problem. Other processes compile the configurations into the cache first.
Triton takes seconds for each, and some failures end the process.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WORKERS = 12

Config = dict[str, Any]


def _grid(**axes: Iterable[object]) -> list[Config]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _persistent(block_k: int) -> list[Config]:
    """Return the tuning space of Triton's persistent tutorial.

    Warp specialisation is not included: Triton 3.6 specialises on Hopper with num_warps = 4
    only, and fails there on a descriptor's store.
    """
    configs = _grid(
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


def _small(**axes: Iterable[object]) -> list[Config]:
    """Return a grid, each also with overlapping launches."""
    return [
        config | {"PDL": overlap, "launch_pdl": overlap}
        for config in _grid(**axes)
        for overlap in (False, True)
    ]


_SPLIT = _small(
    BLOCK_M=[16, 64],
    BLOCK_N=[64],
    BLOCK_K=[128, 256],
    SPLIT_K=[1, 2],
    num_warps=[4],
    num_stages=[4, 6],
)

_COLUMNS = _grid(
    BLOCK_M=[128],
    BLOCK_N=[256],
    COLUMNS=[192],
    REST_N=[64],
    num_warps=[8],
    num_stages=[3],
    GROUP_M=[8],
    NUM_SMS=[132],
)

CONFIGS: dict[str, list[Config]] = {
    "linear": _persistent(64),
    "linear_columns": _COLUMNS,
    "split_tail": _grid(
        BLOCK_M=[128],
        BLOCK_N=[256, 128],
        SPLIT_K=[2, 3],
        num_warps=[8],
        num_stages=[3],
        NUM_SMS=[132],
        GROUP_M=[8],
    ),
    "split_tail_columns": _grid(
        BLOCK_M=[128],
        BLOCK_N=[256],
        COLUMNS=[192],
        EPILOGUE_N=[64],
        SPLIT_K=[2, 3],
        num_warps=[8],
        num_stages=[3],
        NUM_SMS=[132],
        GROUP_M=[8],
    ),
    "linear_fp8": _persistent(128),
    "linear_fp8_columns": _COLUMNS,
    "blockwise_fp8": _grid(
        BLOCK_M=[128, 64],
        BLOCK_N=[128],
        num_warps=[8, 4],
        num_stages=[3, 4],
        NUM_SMS=[132],
        GROUP_M=[8],
    ),
    "blockwise_fp8_parts": [],  # Triton has the kernel above
    "weight_only_int8": _grid(
        BLOCK_N=[128],
        BLOCK_M=[256, 128],
        BLOCK_K=[64, 128],
        num_warps=[8, 4],
        num_stages=[3, 4, 5],
        FLATTEN=[True, False],
        NUM_SMS=[132],
        GROUP_N=[8],
    ),
    "small_int4": _grid(
        BLOCK_M=[16, 64],
        BLOCK_N=[64, 128],
        BLOCK_K=[128],
        WORDS_K=[16],
        GROUPS_K=[1],
        SPLIT_K=[2, 4],
        num_warps=[4],
        num_stages=[3],
    ),
    "small_int4_zeros": _grid(
        BLOCK_M=[16, 64, 128],
        BLOCK_N=[64, 128],
        SPLIT_K=[1, 2],
        num_warps=[4],
        num_stages=[3],
    ),
    "small_mxfp4": _grid(
        BLOCK_M=[16, 64],
        BLOCK_N=[64, 128],
        SPLIT_K=[2, 4],
        num_warps=[4],
        num_stages=[3, 4],
    ),
    "mxfp4": _grid(
        BLOCK_M=[128, 256],
        BLOCK_K=[128],
        BYTES_K=[64],
        num_warps=[8, 4],
        num_stages=[2, 3],
        FLATTEN=[False],
    ),
    "swiglu": _grid(BLOCK_M=[128], BLOCK_N=[128, 64], num_warps=[8], num_stages=[3, 4]),
    "batched": _grid(BLOCK_M=[128], BLOCK_N=[256, 128], num_warps=[8], num_stages=[3, 4]),
    "matmul": [
        {
            "BLOCK_M": m,
            "BLOCK_N": n,
            "BLOCK_K": 64,
            "num_warps": warps,
            "num_stages": stages,
            **group,
        }
        for m, n, warps in ((128, 256, 8), (256, 128, 8), (128, 128, 8), (128, 128, 4))
        for stages in (3, 4)
        for group in ({"GROUP_M": 8}, {"GROUP_M": 16})
    ],
    "small_descriptor": _SPLIT + [config | {"EARLY": 2} for config in _SPLIT if config["PDL"]],
    "small_pointer": _SPLIT,
    "matvec": _small(BLOCK_N=[4, 8, 16], BLOCK_K=[1024], num_warps=[4], num_stages=[1])
    + _small(BLOCK_N=[4, 8], BLOCK_K=[2048], num_warps=[8], num_stages=[1]),
}


def kernels() -> dict[str, dict[str, Any]]:
    """Return the kernels' tables in the manifest, by name."""
    import tomllib

    text = (ROOT / "benchmarks" / "hopper.toml").read_text()
    return {table["name"]: table for table in tomllib.loads(text)["kernel"]}


def _function(table: dict[str, Any]):
    """Import the kernel as Triton's users do."""
    folder, _, name = table["source"].removeprefix("../").partition("/")
    module, _, function = name.partition(".py:")
    if (path := str(ROOT / folder)) not in sys.path:
        sys.path.insert(0, path)
    return getattr(importlib.import_module(module), function)


def _passed(
    table: dict[str, Any], args: dict[str, Any], constants: dict[str, Any]
) -> dict[str, Any]:
    """Return the kernel's arguments, descriptors made of tensors, with constants and options."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    passed: dict[str, Any] = {}
    for name, kind in table["signature"].items():
        passed[name] = args[name]
        if kind.startswith("tensordesc<"):
            extents = kind[kind.index("[") + 1 : kind.index("]")].split(",")
            block = [
                constants[extent] if extent in constants else int(extent) for extent in extents
            ]
            passed[name] = TensorDescriptor.from_tensor(args[name], block)
    return passed | constants


def launcher(name: str, config: Config) -> Callable[[dict[str, Any]], Callable[[], object]]:
    """Return a function from arguments by name to a launch of a kernel on them."""
    table = kernels()[name]
    constants = table.get("constants", {}) | config
    function = _function(table)
    rules = {"cdiv": lambda a, b: -(-a // b), "min": min, "max": max}

    def bind(args: dict[str, Any]) -> Callable[[], object]:
        values = {**args, **constants}
        extents = tuple(eval(text, rules, values) for text in table["grid"])
        return partial(function[extents], **_passed(table, args, constants))

    return bind


def _warm(name: str, config: Config, args: dict[str, Any]) -> str:
    """Compile a configuration into the cache; tensors are given by shape and dtype."""
    import torch

    fake_args = {
        key: torch.empty(value[0], dtype=getattr(torch, value[1]), device="cuda")
        if isinstance(value, tuple)
        else value
        for key, value in args.items()
    }
    table = kernels()[name]
    constants = table.get("constants", {}) | config
    try:
        _function(table).warmup(grid=(1,), **_passed(table, fake_args, constants))
    except Exception as error:  # noqa: BLE001 - a configuration that Triton cannot hold
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def compiled(
    points: Iterable[tuple[str, Config]], args: dict[str, Any], folder: str
) -> Iterator[tuple[str, Config, str]]:
    """Yield kernels and configurations, compiled into `folder`, and the error, if any."""
    os.environ["TRITON_CACHE_DIR"] = folder
    import torch

    described = {
        key: (tuple(value.shape), str(value.dtype).removeprefix("torch."))
        if isinstance(value, torch.Tensor)
        else value
        for key, value in args.items()
    }
    todo = list(points)
    again: list[tuple[str, Config]] = []
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        futures = [pool.submit(_warm, name, config, described) for name, config in todo]
        for (name, config), future in zip(todo, futures, strict=True):
            problem = _result(future)
            if problem == _ENDED:
                again.append((name, config))
            else:
                yield name, config, problem
    # When one ends its process the pool is gone with the others' work: each has its own now.
    for name, config in again:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            yield name, config, _result(pool.submit(_warm, name, config, described))


_ENDED = "it ended the process"


def _result(future: Future[str]) -> str:
    try:
        return future.result()
    except BrokenProcessPool:
        return _ENDED
