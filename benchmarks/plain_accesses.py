"""Kernels with plain accesses, aotc against Triton, interleaved with a cold L2 cache.

    aotc build benchmarks/plain_accesses.toml -o dist
    python benchmarks/plain_accesses.py dist/plain_accesses.aotc [NAME=OTHER.aotc …] [--json FILE]

Both compile the same source at the same config. Results are compared first, from poisoned memory.
The ratio is Triton's time by aotc's, of neighbouring launches; the median of all rounds is shown.
Further archives, such as one of an earlier compiler, have columns of their own.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plain_accesses_kernels as kernels
import tomli
import torch

import aotc

ROUNDS, WARM_ROUNDS = 40, 3
MANIFEST = Path(__file__).with_suffix(".toml")
TABLES = {
    kernel["name"]: kernel for kernel in tomli.loads(MANIFEST.read_text(encoding="utf-8"))["kernel"]
}
_FLUSHED_BYTES = 256 << 20
_POISON = 77
_MAX_UNEQUAL = 0.001  # where a rounding decides on an index


@dataclass(frozen=True)
class Case:
    """A launch: the kernel, arguments, and which of them are written."""

    name: str
    arguments: tuple[Any, ...]
    outs: tuple[int, ...]
    grid: tuple[int, ...]
    exact: bool = True


def cases() -> Iterator[Case]:
    """Yield the launches."""
    torch.manual_seed(0)
    yield from _quantizations()
    yield from _products()
    yield from _rows()


def _random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def _empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(*shape, device="cuda", dtype=dtype)


def _quantizations() -> Iterator[Case]:
    count, size, stride = 1 << 24, 96, 128
    count -= count % size
    x = _random(count // size * stride)
    out = _empty(x.numel(), dtype=torch.float8_e4m3fn)
    grid = (-(-count // 4096),)
    yield Case("quantize_heads", (x, out, stride, size, 0, count), (1,), grid)

    side, m, n = 128, 4096, 7168
    x = _random(m, n).to(torch.float8_e4m3fn)
    scales = torch.rand(m // side, n // side, device="cuda")
    out = _empty(m, n, dtype=torch.bfloat16)
    grid = (m // side, n // side)
    yield Case("dequantize_blocks", (x, scales, out, m, n), (2,), grid)

    count = 1 << 25
    x, out = _random(count), _empty(count, dtype=torch.float32)
    yield Case("widen", (x, out, count), (1,), (count // 4096,))

    code = torch.linspace(-1, 1, 16, device="cuda")
    packed = torch.randint(0, 256, (count,), device="cuda", dtype=torch.uint8)
    scales, out = torch.rand(count // 32, device="cuda"), _empty(2 * count, dtype=torch.bfloat16)
    arguments = (packed, code, scales, out, count)
    yield Case("dequantize_nibbles", arguments, (3,), (count // 2048,))

    x = _random(count)
    scales = _empty(count // 64, dtype=torch.float32)
    packed = _empty(count // 2, dtype=torch.uint8)
    arguments = (x, code, scales, packed, count)
    for name in ("quantize_nibbles", "bisect_nibbles"):
        yield Case(name, arguments, (2, 3), (count // 512,), exact=False)


def _products() -> Iterator[Case]:
    m, n, k = 4000, 4096, 4096
    a, b = _random(m, k), _random(k, n)
    arguments = (a, b, _empty(m, n, dtype=torch.bfloat16), m, n, k, k, n, n)
    yield Case("clamped_matmul", arguments, (2,), (-(-m // 128), -(-n // 128)), exact=False)

    x = _random(16, 128, 56, 56, dtype=torch.float16)
    weight = _random(128, 128, 3, 3, dtype=torch.float16) / 32
    out = _empty(16, 128, 56, 56, dtype=torch.float16)
    sizes = (16, 56, 56, 128, 56, 56)
    strides = (*x.stride(), *weight.stride(), *out.stride())
    arguments = (x, weight, out, *sizes, *strides)
    yield Case("convolve", arguments, (2,), (16 * 56 * 56 // 64, 2), exact=False)


def _rows() -> Iterator[Case]:
    tokens = 16384
    scores, bias = _random(tokens, 256), torch.rand(256, device="cuda")
    ids, weights = _empty(tokens, 8, dtype=torch.int32), _empty(tokens, 8, dtype=torch.float32)
    arguments = (scores, bias, ids, weights, tokens)
    yield Case("route_in_groups", arguments, (2, 3), (tokens // 4,), exact=False)

    rows = 1 << 18
    x = _random(rows, 64, dtype=torch.float32)
    yield Case("sort_rows", (x, torch.empty_like(x), rows), (1,), (rows // 32,))
    out = _empty(rows, 64, dtype=torch.int32)
    yield Case("argsort_rows", (x, out, rows), (1,), (rows // 16,))


def launches(case: Case, libraries: dict[str, Any]) -> dict[str, Callable[[], None]]:
    """Return the launch of Triton, and of each archive with the kernel."""
    function, table = getattr(kernels, case.name), TABLES[case.name]
    (config,) = table["config"]
    constants = {**table.get("constants", {}), **config}
    peers = {"triton": lambda: function[case.grid](*case.arguments, **constants)}
    # Strides of 1 are compiled in.
    signature = table["signature"]
    named = zip(function.arg_names, case.arguments, strict=False)
    passed = [value for name, value in named if "=" not in signature[name]]
    for name, library in libraries.items():
        kernel = library[case.name]
        peers[name] = lambda kernel=kernel: kernel.launch(passed, grid=case.grid)
    return peers


def results(case: Case, launch: Callable[[], None]) -> list[torch.Tensor]:
    """Return what a launch writes over poisoned memory."""
    for index in case.outs:
        case.arguments[index].view(torch.uint8).fill_(_POISON)
    launch()
    torch.cuda.synchronize()
    return [case.arguments[index].clone() for index in case.outs]


def difference(case: Case, actual: list[torch.Tensor], expected: list[torch.Tensor]) -> str:
    """Return how results differ, or an empty string."""
    for one, other in zip(actual, expected, strict=True):
        if case.exact and not torch.equal(one.view(torch.uint8), other.view(torch.uint8)):
            return "bits differ"
        if not one.is_floating_point():
            share = (one != other).float().mean()
            if share > _MAX_UNEQUAL:
                return f"{share:.2%} differ"
            continue
        error = (one.double() - other.double()).abs().max() / other.double().abs().max()
        if not error < 0.01:
            return f"error {error:.3g}"
    return ""


def microseconds(peers: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Return the time of each peer in each round; each launch finds the L2 cache cold."""
    flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in peers}
    for turn in range(ROUNDS + WARM_ROUNDS):
        events: dict[str, tuple[torch.cuda.Event, torch.cuda.Event]] = {}
        order = list(peers) if turn % 2 else list(reversed(peers))
        for name in order:
            flushed.fill_(turn)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            peers[name]()
            end.record()
            events[name] = start, end
        torch.cuda.synchronize()
        if turn >= WARM_ROUNDS:
            for name, (start, end) in events.items():
                times[name].append(1000 * start.elapsed_time(end))
    return times


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("archives", nargs="+", metavar="[NAME=]ARCHIVE")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    libraries: dict[str, Any] = {}
    for text in options.archives:
        name, _, path = text.rpartition("=")
        libraries[name or "aotc"] = aotc.load(path)
    rows: list[dict[str, Any]] = []
    for case in cases():
        peers = launches(case, libraries)
        expected = results(case, peers["triton"])
        wrong = {name: difference(case, results(case, peers[name]), expected) for name in libraries}
        times = microseconds(peers)
        row: dict[str, Any] = {"kernel": case.name, "triton": statistics.median(times["triton"])}
        text = f"{case.name:20s} triton {row['triton']:8.1f} us"
        for name in libraries:
            pairs = zip(times["triton"], times[name], strict=True)
            ratio = statistics.median(triton / ours for triton, ours in pairs)
            row[name] = {"us": statistics.median(times[name]), "ratio": ratio, "wrong": wrong[name]}
            text += f"  {name} {row[name]['us']:8.1f} us {ratio:5.3f} {wrong[name]}"
        print(text, flush=True)
        rows.append(row)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
