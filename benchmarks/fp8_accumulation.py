"""Cost and accuracy of promoting fp8 products: five ways to accumulate, beside Triton on the same source.

    aotc build benchmarks/fp8_accumulation.toml -o dist
    python benchmarks/fp8_accumulation.py dist/fp8_accumulation.aotc

Prints TFLOP/s at 4096³ of each one's fastest configuration, all in turn. Also prints the root
mean square error at 512×512×8192 on positive data. Triton has more configurations: its fastest
are narrower tiles.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
from fp8_accumulation_kernel import fp8_accumulation_kernel

import aotc

WAYS = (0, 1, 128, 64, 32)
SIZE = 4096
LONG = 512, 512, 8192
ROUNDS, CALLS = 15, 5
TRITON_TILES = (
    (128, 128, 8, 4),
    (128, 256, 8, 3),
    (128, 128, 4, 3),
    (64, 128, 4, 4),
    (64, 256, 4, 3),
    (128, 64, 4, 4),
)


def operands(m: int, n: int, k: int, draw: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    a, b = (draw(extent, k, device="cuda").to(torch.float8_e4m3fn) for extent in (m, n))
    return [a, b, torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)]


def aotc_launches(kernel: aotc.runtime.Kernel) -> dict[str, Callable[..., None]]:
    def launch(a: Any, b: Any, c: Any, way: int, config: Mapping[str, Any]) -> None:
        arguments = (a, b, c, c.shape[0], c.shape[1], a.shape[1])
        kernel.launch(arguments, config=config, choices={"PROMOTED": way})

    return {
        str(config): lambda *given, config=config: launch(*given, config)
        for config in kernel.info.configs
    }


def triton_launches() -> dict[str, Callable[..., None]]:
    def launch(a: Any, b: Any, c: Any, way: int, tile: tuple[int, int, int, int]) -> None:
        bm, bn, warps, stages = tile
        (m, n), k = c.shape, a.shape[1]
        grid = (triton.cdiv(m, bm) * triton.cdiv(n, bn),)
        meta = {"PROMOTED": way, "BM": bm, "BN": bn, "BK": 128, "GROUP": 8}
        fp8_accumulation_kernel[grid](a, b, c, m, n, k, **meta, num_warps=warps, num_stages=stages)

    return {str(tile): lambda *given, tile=tile: launch(*given, tile) for tile in TRITON_TILES}


def seconds(run: Callable[[], None]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(CALLS):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / CALLS / 1e3


def rates(launches: Mapping[str, Mapping[str, Callable[..., None]]]) -> None:
    """Print the best of each compiler's configurations, timed in turn."""
    a, b, c = operands(SIZE, SIZE, SIZE, torch.randn)
    runs = {
        (way, name, config): lambda launch=launch, way=way: launch(a, b, c, way)
        for way, (name, forms) in itertools.product(WAYS, launches.items())
        for config, launch in forms.items()
    }
    times: dict[Any, list[float]] = {key: [] for key in runs}
    for _, (key, run) in itertools.product(range(ROUNDS + 1), runs.items()):
        times[key].append(seconds(run))
    for way, name in itertools.product(WAYS, launches):
        medians = {
            key[2]: statistics.median(times[key][1:]) for key in times if key[:2] == (way, name)
        }
        config = min(medians, key=medians.__getitem__)
        print(
            f"PROMOTED {way:4}  {name:7}{2 * SIZE**3 / medians[config] / 1e12:7.0f} TFLOP/s  {config}"
        )


def errors(launches: Mapping[str, Mapping[str, Callable[..., None]]]) -> None:
    """Print how far results are off where nothing cancels."""
    a, b, c = operands(*LONG, torch.rand)
    exact = a.double() @ b.double().T
    print(f"results of {'×'.join(map(str, LONG))}: rms {exact.square().mean().sqrt().item():.0f}")
    for way, (name, forms) in itertools.product(WAYS, launches.items()):
        c.fill_(float("nan"))
        next(iter(forms.values()))(a, b, c, way)
        off = (c.double() - exact).square().mean().sqrt().item()
        print(f"PROMOTED {way:4}  {name:7}{off:8.2f} rms error")


if __name__ == "__main__":
    print(torch.cuda.get_device_name(), "Triton", triton.__version__)
    compilers = {
        "aotc": aotc_launches(aotc.load(sys.argv[1])["fp8_accumulation"]),
        "Triton": triton_launches(),
    }
    rates(compilers)
    errors(compilers)
