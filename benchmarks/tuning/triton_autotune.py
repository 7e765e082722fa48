"""Compare tuned launches with the fastest config of Triton's JIT on the same source and grid.

    aotc tune benchmarks/tuning/kernels.toml --shapes benchmarks/tuning/shapes.toml --into dist/tuning.aotc
    python benchmarks/tuning/triton_autotune.py dist/tuning.aotc [--kernels …] [--jobs 16] [--json FILE]

Triton's configs compile in separate processes first. For each launch all of them are timed in
turn, as `triton.autotune` does. The fastest then alternates with the launch from aotc's table
and with the manifest's first config. A ratio above 1 means aotc is faster.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from exhaustive import WORKS, Arguments, Timer

import aotc
from aotc.ir import expression
from aotc.package.manifest.read import load
from aotc.package.manifest.spec import KernelSpec
from aotc.runtime import AotcError

MANIFEST = Path(__file__).with_name("kernels.toml")
_OPTIONS = ("num_warps", "num_stages", "num_ctas")
_WARMUP_ELEMS = 1 << 16  # compiling depends on alignment, not on extents

Config = Mapping[str, Any]


def spec_of(name: str) -> KernelSpec:
    """Return the kernel of the manifest."""
    (spec,) = (kernel for kernel in load(str(MANIFEST)).kernels if kernel.name == name)
    return spec


def allocate(size_bytes: int, _alignment: int, _stream: Any) -> torch.Tensor:
    """Return scratch memory for a kernel's descriptors."""
    return torch.empty(size_bytes, dtype=torch.int8, device="cuda")


def triton_launch(
    spec: KernelSpec, args: Arguments, choices: Config, config: Config
) -> Callable[..., Any]:
    """Return a launch by Triton's JIT; with `warmup=True` it only compiles."""
    triton: Any = importlib.import_module("triton")
    triton.set_allocator(allocate)
    function = getattr(importlib.import_module("kernels"), spec.function.name)
    options = {key: value for key, value in config.items() if key in _OPTIONS}
    constants = {**spec.constants, **choices, **config}
    numbers = {k: v for k, v in {**args, **constants}.items() if isinstance(v, int)}
    grid = tuple(expression.evaluate(axis.root, numbers) for axis in spec.grid)
    passed = {key: value for key, value in constants.items() if key not in _OPTIONS}
    return lambda **how: function.run(
        **args, **passed, **options, grid=grid, warmup=how.get("warmup", False)
    )


def compile_ahead(job: tuple[str, Config, Config, dict[str, int | float]]) -> None:
    """Compile a config of Triton's into its cache."""
    name, choices, config, scalars = job
    spec = spec_of(name)
    dtypes = {"bf16": torch.bfloat16, "fp32": torch.float32, "i32": torch.int32}
    args: Arguments = dict(scalars)
    for key, argument in spec.signature.items():
        if key not in args:
            dtype = dtypes[str(argument.element)]
            args[key] = torch.empty(_WARMUP_ELEMS, dtype=dtype, device="cuda")
    try:
        triton_launch(spec, args, choices, config)(warmup=True)
    except Exception as error:  # noqa: BLE001 - the launch says it again
        print(f"{name} {dict(config)}: {type(error).__name__}")


def best_config(timer: Timer, launches: dict[int, Any]) -> int:
    """Return the config with the least median."""
    medians = timer.medians(launches)
    return min(medians, key=lambda index: medians[index])


def triton_launches(
    spec: KernelSpec, args: Arguments, choices: Config, configs: tuple[Config, ...]
) -> dict[int, Any]:
    """Return the launches of the configs Triton can launch."""
    launches: dict[int, Any] = {}
    problem: Exception | None = None
    for index, config in enumerate(configs):
        launch = triton_launch(spec, args, choices, config)
        try:
            launch()
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - out of shared memory, as autotune has it
            problem = error
            continue
        launches[index] = launch
    if not launches:
        raise RuntimeError(f"{spec.name}: Triton launches none: {problem}")
    return launches


def compared(kernel: Any, name: str, timers: tuple[Timer, Timer]) -> list[dict[str, Any]]:
    """Return for each launch the seconds of aotc's pick, of its first config, and of Triton's best."""
    spec, configs = spec_of(name), tuple(dict(config) for config in kernel.info.configs)
    names = [param.name for param in kernel.info.params]
    rows: list[dict[str, Any]] = []
    for args, choices in WORKS[name][0]():
        passed = [args[key] for key in names]
        launches = triton_launches(spec, args, choices, configs)
        triton = launches[best_config(timers[0], launches)]
        first = lambda: kernel.launch(passed, config=configs[0], choices=choices)  # noqa: B023, E731
        turns: dict[int, Any] = {
            0: lambda: kernel.launch(passed, choices=choices),  # noqa: B023
            1: triton,
        }
        try:
            first()
            turns[2] = first
        except AotcError:
            pass  # the first config takes no such launch
        seconds = timers[1].medians(turns)
        key = {key: value for key, value in args.items() if isinstance(value, int)}
        rows.append({"key": {**key, **choices}, "seconds": seconds})
        torch.cuda.empty_cache()
    return rows


def report(name: str, rows: list[dict[str, Any]]) -> None:
    """Print the ratios of a kernel."""
    for index, peer in ((1, "Triton's best"), (2, "the first config")):
        ratios = [
            row["seconds"][index] / row["seconds"][0] for row in rows if index in row["seconds"]
        ]
        if ratios:
            print(
                f"{name}: {statistics.geometric_mean(ratios):.3f} of {peer} over {len(ratios)} launches,"
                f" {min(ratios):.3f} to {max(ratios):.3f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archive")
    parser.add_argument("--kernels", nargs="*", default=list(WORKS))
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=0.3, help="of choosing Triton's config")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    library = aotc.load(options.archive)
    jobs = []
    for name in options.kernels:
        seen: dict[str, tuple[Config, dict[str, Any]]] = {}
        for args, choices in WORKS[name][0]():
            scalars = {k: v for k, v in args.items() if isinstance(v, (int, float))}
            divisible = tuple(v % 16 == 0 for v in scalars.values() if isinstance(v, int))
            seen.setdefault(repr((sorted(choices.items()), divisible)), (choices, scalars))
        configs = [dict(config) for config in library[name].info.configs]
        jobs += [(name, c, config, s) for c, s in seen.values() for config in configs]
    torch.cuda.empty_cache()
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_ahead, jobs, chunksize=4))
    timers = Timer(options.seconds), Timer(4 * options.seconds)
    results = {}
    for name in options.kernels:
        results[name] = compared(library[name], name, timers)
        report(name, results[name])
        if options.json:
            options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
