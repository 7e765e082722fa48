"""Size of large archives, where the bytes are, other encodings, and bytes decoded by a load.

    aotc build kernels/matrix.toml -o dist
    python -m benchmarks.archive_size dist/*.aotc

"raw" is the distinct cubins; "now" is the file as written today, and "of raw" its share of them.
"root" is the uncompressed part, "indices" the kernels' indices; "alone" has a zstd frame for
each cubin. The other columns give the size of frames encoded otherwise: other compression
levels, a dictionary trained on the archive's cubins, or one frame for all kernels. With one
frame, no kernel could be opened alone.

Next, the bytes read and decoded to load one kernel for sm_90a: median and maximum over all
kernels. At the end each kernel is loaded in both forms in turn, by the tests' fake driver, which
needs a C compiler. This times opening, checking and decoding. No GPU is needed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import zstandard

import aotc
from aotc.package.archive import file as archives
from aotc.package.archive.code_filter import filtered
from aotc.package.archive.decoder import stored_frames
from aotc.package.archive.index import Archive
from aotc.package.archive.layout import ZSTD_LEVEL
from tests.support.fake_gpu import FakeGpu, build

_DICTIONARY_BYTES = 112 << 10
_WINDOW_LOG = 24
_LEVELS = (12, 17, 22)
_TARGET = "sm_90a"
_LOADS = 15
_DEVICE = (9, 0, 228 << 10)
"""The fake driver counts the KiB of shared memory that is the system's, too."""


def _groups(archive: Archive) -> list[list[bytes]]:
    """Return the cubins of each kernel and target, without repeats of earlier ones."""
    seen: set[bytes] = set()
    groups: list[list[bytes]] = []
    for kernel in archive.kernels:
        for target in kernel.targets:
            cubins = dict.fromkeys(v.cubin for v in kernel.variants if v.target == target)
            groups.append([cubin for cubin in cubins if cubin not in seen])
            seen.update(cubins)
    return [group for group in groups if group]


def _compressor(level: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level, write_checksum=False)


def _total(parts: Sequence[bytes], compressor: zstandard.ZstdCompressor) -> int:
    return sum(len(compressor.compress(part)) for part in parts)


def _with_dictionary(parts: Sequence[bytes], cubins: Sequence[bytes]) -> int:
    """Return the size with a dictionary and the dictionary itself, or without if none helps."""
    without = _total(parts, _compressor(ZSTD_LEVEL))
    try:
        trained = zstandard.train_dictionary(_DICTIONARY_BYTES, list(cubins))
    except zstandard.ZstdError:  # too few cubins to learn from
        return without
    compressor = zstandard.ZstdCompressor(ZSTD_LEVEL, dict_data=trained, write_checksum=False)
    stored = len(_compressor(ZSTD_LEVEL).compress(trained.as_bytes()))
    return min(without, stored + _total(parts, compressor))


def _in_one(cubins: Sequence[bytes]) -> int:
    params = zstandard.ZstdCompressionParameters.from_level(ZSTD_LEVEL, window_log=_WINDOW_LOG)
    return _total([b"".join(cubins)], zstandard.ZstdCompressor(compression_params=params))


def _measure(archive: Archive) -> dict[str, int]:
    """Return the sizes of an archive's parts by name."""
    groups = _groups(archive)
    joined = [filtered(group) for group in groups]
    cubins = [filtered([cubin]) for group in groups for cubin in group]
    now = archives.encode(archive)
    stored = stored_frames(now)
    return {
        "raw": sum(map(len, cubins)),
        "alone": len(archives.encode(archive, is_grouped=False)),
        "now": len(now),
        "root": len(now) - sum(frame.stored_bytes for frame in stored),
        "indices": sum(frame.stored_bytes for frame in stored if not frame.target),
        "as they are": _total([b"".join(group) for group in groups], _compressor(ZSTD_LEVEL)),
        **{f"level {level}": _total(joined, _compressor(level)) for level in _LEVELS},
        "dictionary": _with_dictionary(joined, cubins),
        "one frame": _in_one(cubins),
    }


def _touched(archive: Archive) -> list[tuple[int, int]]:
    """Return the bytes read and decoded to load each kernel for the target, the root included."""
    now = archives.encode(archive)
    stored = stored_frames(now)
    root_bytes = len(now) - sum(frame.stored_bytes for frame in stored)
    bytes_by_kernel: dict[str, tuple[int, int]] = {}
    for frame in stored:
        if frame.target in ("", _TARGET):
            read, decoded = bytes_by_kernel.get(frame.kernel, (root_bytes, root_bytes))
            bytes_by_kernel[frame.kernel] = read + frame.stored_bytes, decoded + frame.raw_bytes
    return [bytes_by_kernel[kernel.name] for kernel in archive.kernels if _TARGET in kernel.targets]


def _load_seconds(archive: Archive, gpu: FakeGpu) -> dict[str, list[float]]:
    """Return the shortest time to open the archive and load a kernel, alone and in groups."""
    forms = [archives.encode(archive, is_grouped=is_grouped) for is_grouped in (False, True)]
    shortest: dict[str, list[float]] = {}
    for kernel in archive.kernels:
        if _TARGET not in kernel.targets:
            continue
        times: list[list[float]] = [[], []]
        for _ in range(_LOADS):
            for form, seconds in zip(forms, times, strict=True):
                gpu.reset(_DEVICE)
                gpu.make_current(0)
                start = time.perf_counter()
                library = aotc.load(form, kernels=[kernel.name], driver=str(gpu.path))
                seconds.append(time.perf_counter() - start)
                library.close()
        shortest[kernel.name] = list(map(min, times))
    return shortest


def _print_row(name: str, sizes: Mapping[str, int]) -> None:
    cells = (f"{size:11}" for size in sizes.values())
    print(f"{name:16}", *cells, f"{sizes['now'] / sizes['raw']:7.1%}", flush=True)


def main() -> None:
    """Print a row for each archive, and the sums as parts of the raw bytes."""
    sums: dict[str, int] = {}
    loads: dict[str, list[float]] = {}
    touched: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        gpu = FakeGpu(build(Path(folder)))
        for path in map(Path, sys.argv[1:]):
            archive = archives.read(path)
            sizes = _measure(archive)
            if not sums:
                print(f"{'archive':16}", *(f"{name:>11}" for name in sizes), f"{'of raw':>7}")
            _print_row(path.stem, sizes)
            sums = {name: sums.get(name, 0) + size for name, size in sizes.items()}
            touched += _touched(archive)
            seconds_by_case = _load_seconds(archive, gpu)
            loads.update(
                {f"{path.stem} {name}": seconds for name, seconds in seconds_by_case.items()}
            )
    _print_row("all", sums)
    print(f"{'of raw':16}", *(f"{size / sums['raw']:11.2%}" for size in sums.values()))
    for action, sizes_bytes in zip(("read", "decoded"), zip(*touched, strict=True), strict=True):
        middle, most = statistics.median(sizes_bytes), max(sizes_bytes)
        print(
            f"{action} to load a kernel alone: {middle / 1024:.1f} KiB, at most {most / 1024:.1f}"
        )
    alone, grouped = map(sum, zip(*loads.values(), strict=True))
    print(
        f"loading {len(loads)} kernels one by one: {alone * 1e3:.1f} ms alone, {grouped * 1e3:.1f} ms now"
    )
    name, (before, after) = max(loads.items(), key=lambda item: item[1][1] / item[1][0])
    print(
        f"the slowest beside before is {name}: {before * 1e3:.2f} ms alone, {after * 1e3:.2f} ms now"
    )


if __name__ == "__main__":
    main()
