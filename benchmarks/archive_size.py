"""How large archives are, where the bytes are, what else they could be, and what a load decodes.

    aotc build kernels/matrix.toml -o dist
    python -m benchmarks.archive_size dist/*.aotc

Raw are the distinct cubins. "now" is the file as it is written today; of that, "root" is what is not
compressed, and "indices" what it says of kernels; "alone" has a frame for each cubin. The others say what
the frames of cubins would take if they were made otherwise: by other presets, by zstd, or one frame for
all kernels, of which no kernel could be opened alone.

At the end each kernel for sm_90a is loaded alone, in both forms in turn, by the tests' fake driver, which a
C compiler makes: the time that opening, checking and decoding take. No GPU is needed.
"""

from __future__ import annotations

import lzma
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import zstandard

import aotc
from aotc.package import archive as archives
from aotc.package.decoder import stored_frames
from aotc.package.frame_codec import FAST_PRESET, PRESET, compress
from aotc.package.index import Archive
from tests.support.fake_gpu import FakeGpu, build

_BEST_PRESET = 9 | lzma.PRESET_EXTREME
_ZSTD_LEVELS = (9, 19)
_TARGET = "sm_90a"
_LOADS = 15


def _groups(archive: Archive) -> list[list[bytes]]:
    """Return the cubins of each kernel and target, without those of earlier ones."""
    seen: set[bytes] = set()
    groups: list[list[bytes]] = []
    for kernel in archive.kernels:
        for target in kernel.targets:
            cubins = dict.fromkeys(v.cubin for v in kernel.variants if v.target == target)
            groups.append([cubin for cubin in cubins if cubin not in seen])
            seen.update(cubins)
    return [group for group in groups if group]


def _total(parts: Sequence[bytes], preset: int) -> int:
    return sum(len(compress(part, preset)) for part in parts)


def _by_zstd(parts: Sequence[bytes], level: int) -> int:
    compressor = zstandard.ZstdCompressor(level, write_checksum=False)
    return sum(len(compressor.compress(part)) for part in parts)


def _measure(archive: Archive) -> dict[str, int]:
    """Return the sizes of an archive's parts by name."""
    groups = _groups(archive)
    joined = [b"".join(group) for group in groups]
    cubins = [cubin for group in groups for cubin in group]
    now = archives.encode(archive)
    stored = stored_frames(now)
    return {
        "raw": sum(map(len, cubins)),
        "alone": len(archives.encode(archive, is_grouped=False)),
        "now": len(now),
        "root": len(now) - sum(frame.stored_bytes for frame in stored),
        "indices": sum(frame.stored_bytes for frame in stored if not frame.target),
        "fast": _total(joined, FAST_PRESET),
        "best": _total(joined, _BEST_PRESET),
        **{f"zstd {level}": _by_zstd(joined, level) for level in _ZSTD_LEVELS},
        "one frame": _total([b"".join(cubins)], PRESET),
    }


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
                gpu.reset()
                gpu.make_current(0)
                start = time.perf_counter()
                library = aotc.load(form, kernels=[kernel.name], driver=str(gpu.path))
                seconds.append(time.perf_counter() - start)
                library.close()
        shortest[kernel.name] = list(map(min, times))
    return shortest


def main() -> None:
    """Print a row for each archive, and the sums as parts of the raw bytes."""
    sums: dict[str, int] = {}
    loads: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        gpu = FakeGpu(build(Path(folder)))
        for path in map(Path, sys.argv[1:]):
            archive = archives.read(path)
            sizes = _measure(archive)
            if not sums:
                print(f"{'archive':16}", *(f"{name:>11}" for name in sizes))
            print(f"{path.stem:16}", *(f"{size:11}" for size in sizes.values()), flush=True)
            sums = {name: sums.get(name, 0) + size for name, size in sizes.items()}
            found = _load_seconds(archive, gpu)
            loads.update({f"{path.stem} {name}": seconds for name, seconds in found.items()})
    print(f"{'all':16}", *(f"{size:11}" for size in sums.values()))
    print(f"{'of raw':16}", *(f"{size / sums['raw']:11.1%}" for size in sums.values()))
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
