"""Time to write and open an archive of many variants, and to load one of its kernels.

    aotc build kernels/serving.toml -o dist
    python -m benchmarks.archive_scale dist/serving.aotc [--variants 10000] [--device 0] [--keep FILE]

The archive repeats the variants of other archives under new names. Each cubin carries its own
number, so no two are equal and each compresses as real ones do. Then:

- writing: `archive.write` with checks and compression, and its peak memory;
- opening, by the C library: header and root, and the cost of a first query about one kernel;
- loading one kernel, from open to ready, beside the calls of a program without archives:
  `cuLibraryLoadData`, `cuLibraryGetKernel` and `cuFuncLoad` for the same cubins. Without `--device`
  this uses the tests' fake driver, which loads nothing, so the difference is the archive's whole cost.

Each figure is the shortest of several runs, with the file in the page cache.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import resource
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import aotc
from aotc.package.archive import file as archives
from aotc.package.archive.index import Archive, Kernel, Variant, parse_target
from aotc.package.archive.layout import HEADER
from aotc.runtime import Library
from tests.support.fake_gpu import FakeGpu, build

_RUNS = 15
_TARGET = "sm_90a"


def _numbered(variant: Variant, number: int) -> Variant:
    """Return a variant with a number in the last bytes of its cubin's code."""
    cubin = bytearray(variant.cubin)
    end = _end_of_code(variant.cubin, variant.symbol)
    struct.pack_into("<Q", cubin, end - 16, number)
    return replace(variant, cubin=bytes(cubin))


def _end_of_code(cubin: bytes, symbol: str) -> int:
    """Return the end of section `.text.SYMBOL`: its padding is never executed."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    count, names = struct.unpack_from("<HH", cubin, 60)
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + 64 * index) for index in range(count)]
    start = sections[names][4]
    section_name = f".text.{symbol}\0".encode()
    for name, _, _, _, offset, size in sections:
        if cubin.startswith(section_name, start + name):
            return offset + size
    raise SystemExit(f"there is no code of {symbol}")


def multiplied(sources: Sequence[Archive], num_variants: int) -> Archive:
    """Return an archive with at least so many variants, of kernels under numbered names."""
    kernels: list[Kernel] = []
    left = num_variants
    number = 0
    originals = [kernel for source in sources for kernel in source.kernels]
    for copy in itertools.count():
        for kernel in originals:
            if left <= 0:
                return Archive("scale", "1", tuple(kernels), "benchmark")
            variants: list[Variant] = []
            for variant in kernel.variants:
                number += 1
                variants.append(_numbered(variant, number))
            name = f"{kernel.name}_{copy:04}_{len(kernels):05}"
            kernels.append(replace(kernel, name=name, variants=tuple(variants)))
            left -= len(variants)
    raise AssertionError


def _shortest(act: Callable[[], object], runs: int = _RUNS) -> float:
    times: list[float] = []
    for _ in range(runs):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return min(times)


class _Bare:
    """Driver calls of a program with its own cubins: load, find the function, load its code."""

    def __init__(self, driver: str) -> None:
        self.find = ctypes.CDLL(driver).cuGetProcAddress_v2
        self.functions: dict[str, Callable[..., int]] = {}

    def call(self, name: str, *arguments: object) -> None:
        if name not in self.functions:
            function, result = ctypes.c_void_p(), ctypes.c_int()
            lookup_args = (ctypes.byref(function), 12040, ctypes.c_uint64(0), ctypes.byref(result))
            if self.find(name.encode(), *lookup_args) or function.value is None:
                raise SystemExit(f"the driver has no {name}")
            self.functions[name] = ctypes.CFUNCTYPE(ctypes.c_int)(function.value)
        status = self.functions[name](*arguments)
        if status:
            raise SystemExit(f"{name} reports error {status}")

    def load(self, variants: Sequence[Variant]) -> None:
        libraries: list[ctypes.c_void_p] = []
        for variant in variants:
            library, kernel, function = (ctypes.c_void_p() for _ in range(3))
            no_options = (None, None, 0, None, None, 0)
            self.call("cuLibraryLoadData", ctypes.byref(library), variant.cubin, *no_options)
            self.call("cuLibraryGetKernel", ctypes.byref(kernel), library, variant.symbol.encode())
            self.call("cuKernelGetFunction", ctypes.byref(function), kernel)
            self.call("cuFuncLoad", function)
            libraries.append(library)
        for library in libraries:
            self.call("cuLibraryUnload", library)


def _measure_loads(path: Path, archive: Archive, driver: str, device: int) -> None:
    bare = _Bare(driver)
    context = ctypes.c_void_p()
    bare.call("cuInit", 0)
    bare.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    bare.call("cuCtxSetCurrent", context)
    originals: dict[str, Kernel] = {}
    for kernel in archive.kernels:
        if _TARGET in kernel.targets:
            originals.setdefault(kernel.name[:-11], kernel)
    ratios: list[float] = []
    print(f"{'kernel':34} {'cubins':>6} {'raw bytes':>10} {'bare ms':>8} {'archive ms':>10} ratio")
    for name, kernel in originals.items():
        variants = [v for v in kernel.variants if v.target == _TARGET]

        def load(name: str = kernel.name) -> None:
            aotc.load(path, kernels=[name], device=device, driver=driver).close()

        def load_bare(variants: Sequence[Variant] = variants) -> None:
            bare.load(variants)

        load()
        load_bare()
        bare_s, archive_s = _shortest(load_bare), _shortest(load)
        ratios.append(archive_s / bare_s)
        raw = sum(len(v.cubin) for v in variants)
        times = f"{bare_s * 1e3:8.3f} {archive_s * 1e3:10.3f} {ratios[-1]:5.2f}"
        print(f"{name:34} {len(variants):6} {raw:10} {times}")
    ratios.sort()
    print(f"median {ratios[len(ratios) // 2]:.2f}, greatest {ratios[-1]:.2f}")


def main() -> None:
    """Make the archive, measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(description="Measure an archive of many variants.")
    parser.add_argument("archives", nargs="+", type=Path)
    parser.add_argument("--variants", type=int, default=10_000)
    parser.add_argument("--device", type=int, help="ordinal of a GPU; default: the fake driver")
    parser.add_argument("--keep", type=Path, help="where to leave the archive")
    options = parser.parse_args()
    archive = multiplied([archives.read(path) for path in options.archives], options.variants)
    count = sum(len(kernel.variants) for kernel in archive.kernels)
    raw = sum(len(variant.cubin) for kernel in archive.kernels for variant in kernel.variants)
    print(f"{len(archive.kernels)} kernels, {count} variants, {raw} bytes of cubins")
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "scale.aotc"
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.perf_counter()
        size = archives.write(archive, path)
        seconds = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        grown = (after.ru_maxrss - before.ru_maxrss) >> 10
        print(
            f"written in {seconds:.2f} s ({cpu:.2f} CPU-s), {size} bytes, {size / raw:.1%} of raw"
        )
        print(f"at most {after.ru_maxrss >> 10} MiB, {grown} MiB more than before it was written")
        with path.open("rb") as file:
            root = int.from_bytes(file.read(HEADER.size)[48:56], "little")
        name = archive.kernels[len(archive.kernels) // 2].name

        def opened() -> Library:
            return aotc.load(path, kernels=())

        def open_only() -> None:
            opened().close()

        def open_one() -> None:
            library = opened()
            _ = library[name]
            library.close()

        opening, with_kernel = _shortest(open_only), _shortest(open_one)
        print(
            f"opened in {opening * 1e3:.3f} ms: a root of {root} bytes; with a kernel {with_kernel * 1e3:.3f}"
        )
        if options.device is not None:
            _measure_loads(path, archive, "libcuda.so.1", options.device)
            return
        gpu = FakeGpu(build(Path(folder)))
        gpu.reset((*parse_target(_TARGET)[:2], 232448))
        gpu.make_current(0)
        _measure_loads(path, archive, str(gpu.path), 0)


if __name__ == "__main__":
    main()
