"""What a launch costs the host: raw driver, aotc from Python, Triton; interleaved in one process.

    aotc build kernels.toml --kernel vector_add
    python benchmarks/launch.py dist/kernels.aotc [--json FILE]

Each peer launches the same work, `vector_add` with three torch tensors and one integer, over and
over; what is timed is the CPU until the call returns. `raw` is cuLaunchKernelEx in a loop in C, with
the function, the parameters and the dimensions that aotc would pass: what a perfect caller pays.
Batches are shorter than the driver's queue (about a thousand launches), and the GPU is idle before
each, so nobody waits for it. A problem is small on purpose.

`--fake LIBCUDA` runs without a GPU and without torch, on the fake driver of the tests: what is then
left of a launch is aotc's own share.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import aotc

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 41
BATCH = 400
N_ELEMENTS = 4096

Batch = Callable[[int], float]  # number of launches -> nanoseconds for each

# The loop around the raw call: the types are those of cuda.h, opaque here.
RAW = r"""
#include <stdint.h>
#include <string.h>
#include <time.h>
struct config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream, *attributes;
    unsigned attribute_count;
};
typedef int (*launch_fn)(const struct config *, void *, void **, void **);
double run(void *launch, void *function, const unsigned *grid, const unsigned *block,
           unsigned shared_bytes, void *stream, void **params, int count) {
    struct timespec a, b;
    struct config config = {{0}};
    memcpy(config.grid, grid, sizeof config.grid);
    memcpy(config.block, block, sizeof config.block);
    config.shared_bytes = shared_bytes;
    config.stream = stream;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < count; ++i) {
        if (((launch_fn)(uintptr_t)launch)(&config, function, params, 0) != 0) {
            return -1;
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    return (1e9 * (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec)) / count;
}
"""


def compile_raw() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as directory:
        source, library = Path(directory, "raw.c"), Path(directory, "raw.so")
        source.write_text(RAW)
        command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", str(source)]
        subprocess.run([*command, "-o", str(library)], check=True)
        raw = ctypes.CDLL(str(library))
    raw.run.restype = ctypes.c_double
    return raw


def driver_function(driver: ctypes.CDLL, name: str) -> int:
    """Return the address of a driver entry point, as the runtime finds it."""
    address, query = ctypes.c_void_p(), ctypes.c_int()
    driver.cuGetProcAddress_v2.argtypes = (
        ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p,
    )  # fmt: skip
    status = driver.cuGetProcAddress_v2(
        name.encode(), ctypes.addressof(address), 12000, 0, ctypes.addressof(query)
    )
    if status != 0 or address.value is None:
        raise SystemExit(f"{name}: CUDA error {status}")
    return address.value


def raw_batch(kernel: aotc.runtime.Kernel, args: tuple[object, ...], pointers: list[int],
              driver: ctypes.CDLL, stream: int) -> Batch:  # fmt: skip
    raw = compile_raw()
    launch = driver_function(driver, "cuLaunchKernelEx")
    chosen = kernel.select(args)
    values = [*map(ctypes.c_uint64, pointers), ctypes.c_int32(N_ELEMENTS)]
    params = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    grid, block = (ctypes.c_uint * 3)(*chosen.grid), (ctypes.c_uint * 3)(*chosen.block)

    def run(count: int) -> float:
        assert values  # what `params` points to
        nanoseconds = raw.run(
            ctypes.c_void_p(launch), ctypes.c_void_p(chosen.function), grid, block,
            chosen.dynamic_shared_bytes, ctypes.c_void_p(stream), params, count,
        )  # fmt: skip
        if nanoseconds < 0:
            raise SystemExit("cuLaunchKernelEx failed")
        return nanoseconds

    return run


def python_batch(call: Callable[[], object]) -> Batch:
    """Time calls from Python; the loop itself costs about 10 ns of each."""

    def run(count: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(count):
            call()
        return (time.perf_counter_ns() - start) / count

    return run


def aotc_batches(library: aotc.runtime.Library, args: tuple[object, ...]) -> dict[str, Batch]:
    kernel = library["vector_add"]
    x, y, out, n = args
    return {
        "aotc": python_batch(lambda: library["vector_add"](x, y, out, n)),
        "aotc, kernel kept": python_batch(lambda: kernel(x, y, out, n)),
        "aotc, stream=": python_batch(lambda: kernel(x, y, out, n, stream=0)),
        "aotc, launch()": python_batch(lambda: kernel.launch((x, y, out, n))),
    }


def triton_batch(args: tuple[object, ...]) -> dict[str, Batch]:
    """The same source through Triton's own launcher, if it is installed."""
    try:
        import triton
    except ImportError:
        return {}
    sys.path.insert(0, str(ROOT / "kernels"))
    from elementwise import vector_add_kernel

    grid = (triton.cdiv(N_ELEMENTS, 1024),)
    return {"triton": python_batch(lambda: vector_add_kernel[grid](*args, BLOCK=1024, num_warps=4))}


def on_gpu(path: Path) -> tuple[dict[str, Batch], Callable[[], object], str]:
    import torch

    tensors = [torch.randn(N_ELEMENTS, device="cuda") for _ in range(3)]
    args = (*tensors, N_ELEMENTS)
    library = aotc.load(path)
    driver = ctypes.CDLL("libcuda.so.1")
    stream = torch.cuda.current_stream().cuda_stream
    batches = {
        "raw": raw_batch(
            library["vector_add"], args, [tensor.data_ptr() for tensor in tensors], driver, stream
        ),
        **aotc_batches(library, args),
        **triton_batch(args),
    }
    return batches, torch.cuda.synchronize, torch.cuda.get_device_name()


def on_fake(path: Path, libcuda: Path) -> tuple[dict[str, Batch], Callable[[], object], str]:
    driver = ctypes.CDLL(str(libcuda))
    library = aotc.load(path, driver=libcuda)
    args = (aotc.runtime.Pointer(4096, "fp32"), 8192, 16384, N_ELEMENTS)
    library["vector_add"](*args)
    driver.fake_cuda_set_recording(0)
    raw = raw_batch(library["vector_add"], args, [4096, 8192, 16384], driver, 0)
    return {"raw": raw, **aotc_batches(library, args)}, lambda: None, "fake driver"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--fake", type=Path, metavar="LIBCUDA", help="run without a GPU")
    options = SimpleNamespace(**vars(parser.parse_args()))
    prepare = on_gpu if options.fake is None else lambda path: on_fake(path, options.fake)
    batches, synchronize, device = prepare(options.archive)
    for batch in batches.values():
        batch(BATCH)
    rounds: dict[str, list[float]] = {name: [] for name in batches}
    for _ in range(ROUNDS):
        for name, batch in batches.items():
            synchronize()
            rounds[name].append(batch(BATCH))
    synchronize()
    medians = {name: statistics.median(times) for name, times in rounds.items()}
    print(f"{device}: host nanoseconds a launch, median of {ROUNDS} x {BATCH}")
    for name, median in medians.items():
        low, high = min(rounds[name]), max(rounds[name])
        ratio = median / medians["raw"]
        print(f"{name:20} {median:8.0f}  {ratio:5.2f}x raw  ({low:.0f} to {high:.0f})")
    if options.json is not None:
        options.json.write_text(json.dumps({"device": device, "nanoseconds": rounds}, indent=1))


if __name__ == "__main__":
    main()
