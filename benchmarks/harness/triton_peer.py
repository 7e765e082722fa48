"""Triton as a peer: the same sources, arguments and grids, with its own configs.

Other processes compile the configs into the cache first: Triton takes seconds for each, and some
failures end the process. Of a tensor they need the dtype alone.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from benchmarks.harness.manifest import block_of, function, grid_of, tables, triton_configs
from benchmarks.harness.operands import Arguments
from benchmarks.harness.workload import Config, Configs, Launch, Plan, Step, Workload

_WORKERS = 12
_ENDED = "it ended the process"
Point = tuple[str, dict[str, Any], dict[str, Any]]
"""A kernel, its constants and options, and its described arguments."""


def configs_of(workload: Workload, archive_configs: Configs) -> Configs:
    """Return the function from a kernel to Triton's configs."""

    def configs(kernel: str, choices: Mapping[str, Any] | None = None) -> Sequence[Config]:
        assert workload.triton is not None
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
    passed = _arguments(table, values, options)
    for name, kind in table["signature"].items():
        if (block := block_of(kind, options)) and values[name] is not None:
            tensor = values[name]
            passed[name] = TensorDescriptor(
                tensor, list(tensor.shape), list(tensor.stride()), block
            )
    grid = step.grid or grid_of(table, {**values, **options})
    return lambda: kernel[grid](**passed, **options)


def _arguments(
    table: Mapping[str, Any], values: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments that the manifest's signature names."""
    names = [name for name in table["signature"] if name not in options]
    return {name: None if table["signature"][name] == "none" else values[name] for name in names}


def compiled(
    workload: Workload, steps: Iterable[Step], args: Arguments, cache: str
) -> Callable[[Step], str]:
    """Compile into `cache`; return the function from a step to its error, if Triton cannot hold it."""
    os.environ["TRITON_CACHE_DIR"] = cache
    points: dict[str, Point] = {}
    for step in steps:
        points.setdefault(_key(workload, step), _point(workload, step, step.arguments(args)))
    errors = _warmed(workload.manifest, points)
    return lambda step: errors[_key(workload, step)]


def _key(workload: Workload, step: Step) -> str:
    return f"{step.kernel} {sorted(_options(workload, step).items())}"


def _point(workload: Workload, step: Step, values: Mapping[str, Any]) -> Point:
    table, options = tables(workload.manifest)[step.kernel], _options(workload, step)
    described = {
        name: str(value.dtype).removeprefix("torch.") if hasattr(value, "dtype") else value
        for name, value in _arguments(table, values, options).items()
    }
    return step.kernel, options, described


def _warmed(manifest: str, points: Mapping[str, Point]) -> dict[str, str]:
    """Compile in processes; return the error of each point."""
    errors: dict[str, str] = {}
    with ProcessPoolExecutor(_WORKERS, get_context("spawn")) as pool:
        futures = {key: pool.submit(_warm, manifest, *point) for key, point in points.items()}
        for key, future in futures.items():
            try:
                errors[key] = future.result()
            except BrokenProcessPool:
                errors[key] = _ENDED
    # If one ends its process, the others' work is lost with the pool: each has its own now.
    for key in [key for key, error in errors.items() if error == _ENDED]:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            try:
                errors[key] = pool.submit(_warm, manifest, *points[key]).result()
            except BrokenProcessPool:
                errors[key] = _ENDED
    return errors


def _warm(manifest: str, kernel: str, options: dict[str, Any], described: dict[str, Any]) -> str:
    """Compile one config into the cache; return the error, if any."""
    torch = importlib.import_module("torch")
    descriptors = importlib.import_module("triton.tools.tensor_descriptor")
    table = tables(manifest)[kernel]
    passed: dict[str, Any] = {}
    for name, value in described.items():
        block = block_of(table["signature"][name], options)
        passed[name] = value
        if isinstance(value, str):
            passed[name] = torch.empty(block or 16, dtype=getattr(torch, value), device="cuda")
        if block and passed[name] is not None:
            passed[name] = descriptors.TensorDescriptor.from_tensor(passed[name], block)
    try:
        function(manifest, table).warmup(grid=(1,), **passed, **options)
    except Exception as error:  # noqa: BLE001 - a config that Triton cannot hold
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""
