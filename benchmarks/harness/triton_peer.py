"""Triton as a peer: the same sources, arguments and grids, with its own configs.

Other processes compile the configs into the cache first: Triton takes seconds for each, and some
failures end the process. Of a tensor they need the dtype alone.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from benchmarks.harness.manifest import block_of, function, grid_of, tables, triton_configs
from benchmarks.harness.operands import Arguments
from benchmarks.harness.workload import Config, Configs, Launch, Plan, Step, Workload

_WORKERS = 12
_ENDED = "it ended the process"
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
Point = tuple[str, dict[str, Any], dict[str, Any], dict[str, list[int]]]
"""A kernel, its constants and options, its described arguments, and blocks of descriptors."""


def configs_of(workload: Workload, archive_configs: Configs) -> Configs:
    """Return the function from a kernel to Triton's configs."""

    def configs(kernel: str, choices: Mapping[str, Any] | None = None) -> Sequence[Config]:
        assert workload.triton is not None
        if kernel not in tables(workload.manifest):
            return ()
        if kernel in workload.triton:
            return workload.triton[kernel]
        return triton_configs([dict(config) for config in archive_configs(kernel, choices)])

    return configs


def _options(workload: Workload, step: Step) -> dict[str, Any]:
    """Return constants, choices, config, and overlapping launches where the source waits by itself."""
    table = tables(workload.manifest)[step.kernel]
    config = step.config
    if config is None:
        (config,) = triton_configs(_listed(table))[:1]
    options = {**table.get("constants", {}), **step.choices, **config}
    names = function(workload.manifest, table).arg_names
    launch = ("num_warps", "num_stages", "maxnreg")
    options = {key: value for key, value in options.items() if key in (*names, *launch)}
    return options | ({"launch_pdl": True} if step.pdl and options.get("PDL") else {})


def _typed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with Triton's dtypes for the manifest's names."""
    language = importlib.import_module("triton.language")
    return {
        key: getattr(language, _DTYPES[value]) if value in _DTYPES else value
        for key, value in options.items()
    }


def _listed(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the first config of a kernel's table."""
    if "config" in table:
        configs = table["config"]
        return [dict(configs[0] if isinstance(configs, list) else configs)]
    return [{name: values[0] for name, values in table.get("configs", {}).items()}]


def bind(workload: Workload, plan: Plan, args: Arguments) -> Launch:
    """Return the launches of a plan by Triton on operands, as one."""
    calls = [_call(workload, step, step.arguments(args)) for step in plan]

    def launch() -> None:
        for call in calls:
            call()

    return calls[0] if len(calls) == 1 else launch


def _call(workload: Workload, step: Step, values: Mapping[str, Any]) -> Launch:
    from triton.tools.tensor_descriptor import TensorDescriptor

    table, options = tables(workload.manifest)[step.kernel], _options(workload, step)
    kernel = function(workload.manifest, table)
    passed = _arguments(table, kernel, step, values, options)
    for name, block in _blocks(table, step, options).items():
        if (tensor := passed[name]) is not None:
            passed[name] = TensorDescriptor(
                tensor, list(tensor.shape), list(tensor.stride()), block
            )
    grid = step.grid or grid_of(table, {**values, **options})
    options = _typed(options)
    return lambda: kernel[grid](**passed, **options)


def _arguments(
    table: Mapping[str, Any],
    kernel: Any,
    step: Step,
    values: Mapping[str, Any],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the arguments that the manifest's signature names, and more that the step has."""
    signature = table["signature"]
    names = [name for name in signature if name not in options]
    names += [name for name in step.blocks if name not in names and name in kernel.arg_names]
    return {name: None if signature.get(name) == "none" else values[name] for name in names}


def _blocks(
    table: Mapping[str, Any], step: Step, options: Mapping[str, Any]
) -> dict[str, list[int]]:
    """Return the blocks of descriptors."""
    kinds = {name: block_of(kind, options) for name, kind in table["signature"].items()}
    return {name: block for name, block in kinds.items() if block} | dict(step.blocks)


def compiled(
    workload: Workload,
    steps: Iterable[Step],
    args: Arguments,
    cache: str,
    progress: Callable[[str], None],
) -> Callable[[Step], str]:
    """Compile into `cache`; return the function from a step to its error, if Triton cannot hold it.

    `progress` is told of each kernel and its options.
    """
    os.environ["TRITON_CACHE_DIR"] = cache
    torch = importlib.import_module("torch")
    # Scratch memory, of kernels that make tensor maps.
    importlib.import_module("triton").set_allocator(
        lambda size, *_: torch.empty(size, dtype=torch.int8, device="cuda")
    )
    points: dict[str, Point] = {}
    for step in steps:
        points.setdefault(_key(workload, step), _point(workload, step, step.arguments(args)))
    errors = _warmed(workload.manifest, points, progress)
    return lambda step: errors[_key(workload, step)]


def _key(workload: Workload, step: Step) -> str:
    return f"{step.kernel} {sorted(_options(workload, step).items())} {step.blocks}"


def _point(workload: Workload, step: Step, values: Mapping[str, Any]) -> Point:
    table, options = tables(workload.manifest)[step.kernel], _options(workload, step)
    kernel = function(workload.manifest, table)
    described = {
        name: str(value.dtype).removeprefix("torch.") if hasattr(value, "dtype") else value
        for name, value in _arguments(table, kernel, step, values, options).items()
    }
    return step.kernel, options, described, _blocks(table, step, options)


def _warmed(
    manifest: str, points: Mapping[str, Point], progress: Callable[[str], None]
) -> dict[str, str]:
    """Compile in processes; return the error of each point."""
    with ProcessPoolExecutor(_WORKERS, get_context("spawn")) as pool:
        futures = {key: pool.submit(_warm, manifest, *point) for key, point in points.items()}
        errors: dict[str, str] = {}
        for key, future in futures.items():
            errors[key] = _result(future)
            progress(key)
    # If one ends its process, the others' work is lost with the pool: each has its own now.
    for key in [key for key, error in errors.items() if error == _ENDED]:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            errors[key] = _result(pool.submit(_warm, manifest, *points[key]))
    return errors


def _result(future: Future[str]) -> str:
    try:
        return future.result()
    except BrokenProcessPool:
        return _ENDED


def _warm(
    manifest: str,
    kernel: str,
    options: dict[str, Any],
    described: dict[str, Any],
    blocks: dict[str, list[int]],
) -> str:
    """Compile one config into the cache; return the error, if any."""
    torch = importlib.import_module("torch")
    descriptors = importlib.import_module("triton.tools.tensor_descriptor")
    passed: dict[str, Any] = {}
    for name, value in described.items():
        block = blocks.get(name)
        passed[name] = value
        if isinstance(value, str):
            passed[name] = torch.empty(block or 16, dtype=getattr(torch, value), device="cuda")
        if block and passed[name] is not None:
            passed[name] = descriptors.TensorDescriptor.from_tensor(passed[name], block)
    try:
        function(manifest, tables(manifest)[kernel]).warmup(grid=(1,), **passed, **_typed(options))
    except Exception as error:  # noqa: BLE001 - a config that Triton cannot hold
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""
