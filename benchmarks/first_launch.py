"""Time of a process to its first launch of a kernel, from an archive and from cubins.

    aotc build kernels.toml --target sm_90a -o dist
    python -m benchmarks.first_launch dist/kernels.aotc [--variants 1000] [--runs 15] [--json FILE]

Each figure is for a fresh process with a context and its memory, everything imported and nothing
loaded. It ends when the first launch of vector_add has finished:

- `bare`: `cuLibraryLoadData`, `cuLibraryGetKernel` and a launch, for the launched cubin alone;
- `bare, all`: the same, with every variant of the kernel loaded, as the archive does;
- `archive`: `aotc.load` with this kernel from a file in the page cache, and a launch;
- `archive, one`: the same from an archive with one variant of each kernel.

`archive_scale` makes archives of the requested number of variants. The ways alternate, process
by process; a ratio is the median of pairs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import aotc
from aotc.package.archive import file as archives
from aotc.package.archive.index import Archive, Kernel, Variant
from aotc.runtime import Pointer
from benchmarks.archive_scale import multiplied

_KERNEL = "vector_add"
_TARGET = "sm_90a"
_ELEMENTS = 1 << 16
_BLOCK, _THREADS = 1024, 128
_WAYS = ("bare", "bare, all", "archive", "archive, one")


def _variants(kernel: Kernel) -> list[Variant]:
    """Return a kernel's variants for the target, the launched one first: fp32, four warps."""
    variants = [variant for variant in kernel.variants if variant.target == _TARGET]
    fits = [v for v in variants if "fp32" in v.types and v.num_threads == _THREADS]
    first = max(fits, key=lambda variant: len(variant.guards))
    return [first, *(variant for variant in variants if variant is not first)]


class _Driver:
    """The CUDA driver of this process, a context and three arrays in it."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.arrays: list[int] = []
        for _ in range(3):
            pointer = ctypes.c_uint64()
            self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(4 * _ELEMENTS))
            self.call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(0), ctypes.c_size_t(4 * _ELEMENTS))
            self.arrays.append(pointer.value)
        self.call("cuCtxSynchronize")

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise SystemExit(f"{name} reports error {status}")


def _bare(driver: _Driver, cubins: list[tuple[bytes, bytes]]) -> None:
    """Load cubins, each with its symbol, and launch the first."""
    kernels: list[ctypes.c_void_p] = []
    for cubin, symbol in cubins:
        library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        no_options = (None, None, 0, None, None, 0)
        driver.call("cuLibraryLoadData", ctypes.byref(library), cubin, *no_options)
        driver.call("cuLibraryGetKernel", ctypes.byref(kernel), library, symbol)
        kernels.append(kernel)
    values = [*map(ctypes.c_uint64, driver.arrays), ctypes.c_int32(_ELEMENTS)]
    params = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    size = (_ELEMENTS // _BLOCK, 1, 1, _THREADS, 1, 1)
    driver.call("cuLaunchKernel", kernels[0], *size, 0, None, params, None)


def _archive(driver: _Driver, path: str, name: str) -> object:
    library = aotc.load(path, kernels=[name])
    x, y, out = (Pointer(address, "fp32") for address in driver.arrays)
    library[name](x, y, out, _ELEMENTS)
    return library


def measure(way: str, folder: Path) -> None:
    """Print the nanoseconds of one way, in its own process."""
    names = json.loads((folder / "names.json").read_text())
    cubins = [
        (path.read_bytes(), names[path.name].encode()) for path in sorted(folder.glob("*.cubin"))
    ]
    import zstandard  # noqa: F401 - as a program has that loads its second archive

    driver = _Driver()
    path, name = names["archives"].get(way, ("", ""))
    if path:
        Path(path).read_bytes()  # it is in the page cache
    start = time.perf_counter_ns()
    if path:
        _library = _archive(driver, path, name)
    else:
        _bare(driver, cubins if way == "bare, all" else cubins[:1])
    driver.call("cuCtxSynchronize")
    print(time.perf_counter_ns() - start)


def _write(source: Archive, folder: Path, num_variants: int) -> None:
    """Write archives, cubins and names for the processes to come."""
    single = replace(
        source,
        kernels=tuple(
            replace(
                kernel,
                variants=tuple(_variants(kernel)[:1])
                if kernel.name == _KERNEL
                else kernel.variants,
            )
            for kernel in source.kernels
        ),
    )
    names: dict[str, object] = {}
    archive_of: dict[str, tuple[str, str]] = {}
    for way, of in (("archive", source), ("archive, one", single)):
        large = multiplied([of], num_variants)
        kernels = [kernel for kernel in large.kernels if kernel.name.startswith(_KERNEL)]
        path = folder / f"{len(archive_of)}.aotc"
        archives.write(large, path)
        archive_of[way] = (str(path), kernels[len(kernels) // 2].name)
    (kernel,) = (kernel for kernel in source.kernels if kernel.name == _KERNEL)
    for number, variant in enumerate(_variants(kernel)):
        (folder / f"{number:03}.cubin").write_bytes(variant.cubin)
        names[f"{number:03}.cubin"] = variant.symbol
    names["archives"] = archive_of
    (folder / "names.json").write_text(json.dumps(names))


def main() -> None:
    """Make archives, run a process for each figure, and print a line for each way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archive", type=Path)
    parser.add_argument("--variants", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--way", choices=_WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        measure(options.way, options.archive)
        return
    times: dict[str, list[float]] = {way: [] for way in _WAYS}
    with tempfile.TemporaryDirectory() as made:
        _write(archives.read(options.archive), Path(made), options.variants)
        for _ in range(options.runs):
            for way, values in times.items():
                command = [sys.executable, "-m", "benchmarks.first_launch", made, "--way", way]
                process = subprocess.run(command, check=True, capture_output=True, text=True)
                values.append(int(process.stdout) / 1e6)
    for way, values in times.items():
        over = [
            statistics.median(a / b for a, b in zip(values, times[p], strict=True))
            for p in _WAYS[:2]
        ]
        print(
            f"{way:14} {statistics.median(values):8.3f} ms ({min(values):.3f} to {max(values):.3f}), "
            f"{over[0]:.3f} of bare, {over[1]:.3f} of bare, all"
        )
    if options.json:
        options.json.write_text(json.dumps(times, indent=2) + "\n")


if __name__ == "__main__":
    main()
