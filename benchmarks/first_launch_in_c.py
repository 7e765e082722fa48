"""How long a C program takes to its first launch: from an archive, and from the one cubin that it launches.

    aotc build kernels/matrix.toml --target sm_90a -o dist
    python -m benchmarks.first_launch_in_c dist/matrix.aotc dist/kernels.aotc [--runs 15] [--fake]

For each kernel of `_CASES` and each way of `first_launch.c`, fresh processes, way by way in turn: from a
context and its memory until the launch has finished, every file in the page cache; and in the same process
again, with unloading in between. `bare` reads the cubin from a file, loads it and launches; `lazy` and
`mapped` open an archive, `eager` loads all variants of the kernel. Archives are as they are (`shared`
frames), written with a frame for each cubin (`alone`), without compression (`stored`), or that with at
least 10,000 variants (`scale`): kernels again and again under new names. What is launched, and with what
parameters, the tests' fake driver writes down first. A ratio is the median of pairs; "once the file is open"
leaves out the first step, which opens an archive, or reads the cubin.
"""

from __future__ import annotations

import argparse
import re
import statistics
import struct
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import aotc
from aotc.package import archive as archives
from aotc.package.index import DTYPE_CODES, Archive
from aotc.runtime import AotcError, Kernel, Pointer
from benchmarks.archive_scale import multiplied
from tests.support.fake_gpu import ROOT, FakeGpu, build

_TARGET = "sm_90a"
_CASES: Mapping[str, Mapping[str, Any]] = {
    "vector_add": {},
    "softmax": {},
    "matmul": {"BIAS": False, "RESIDUAL": False, "ACTIVATION": "none"},
    "paged_decode_gather": {"HEAD_DIM": 128, "PAGE": 16},
}
_WAYS = ("bare", "lazy", "mapped")
_FORMS = ("shared", "alone", "stored")
_SCALE_VARIANTS = 10_000
_NUMBERS = (
    64,
    65,
    1,
)  # what integers are: the first for which there is a variant without tensor maps
_ADDRESS = 0x7A5A_0000_0000
_TIMES = 5


def _kind(value: object) -> tuple[int, int, str]:
    if isinstance(value, bool):
        return 1, int(value), "-"
    return (2, value, "-") if isinstance(value, int) else (3, 0, str(value))


def _arguments(kernel: Kernel, number: int, dtype: str) -> tuple[list[Any], list[str]]:
    """Return arguments for a launch, and the lines that say them."""
    values: list[Any] = []
    lines: list[str] = []
    for param in kernel.info.params:
        element = param.element if param.element in DTYPE_CODES else dtype
        code = DTYPE_CODES[element]
        if param.kind == "pointer":
            values.append(Pointer(_ADDRESS + (len(values) << 20), element))
            lines.append(f"arg 1 {code} 0")
        elif element.startswith("fp"):
            values.append(1.0)
            lines.append(f"arg 2 {code} {struct.unpack('<I', struct.pack('<f', 1.0))[0]}")
        else:
            values.append(number)
            lines.append(f"arg 2 {code} {number}")
    return values, lines


def _write(archive: Archive, path: Path, name: str, gpu: FakeGpu, folder: Path) -> Path | None:
    """Write down a launch of a kernel, or return None if none goes without tensor maps."""
    (record,) = (kernel for kernel in archive.kernels if kernel.name == name)
    choices = dict(_CASES[_case(name)])
    gpu.reset()
    gpu.make_current(0)
    with aotc.load(path, kernels=[name], driver=gpu.path, lazy=True) as library:
        kernel = library[name]
        dtypes = kernel.info.types
        dtype = next(iter(dtypes.values()))[0] if dtypes else ""
        grid = 1 if record.grid_rank == 0 else None
        for number in _NUMBERS:
            values, lines = _arguments(kernel, number, dtype)
            try:
                chosen = kernel.select(values, grid=grid, choices=choices)
            except AotcError as error:
                print(f"{name}, {number}: {error}")
                continue
            variant = record.variants[chosen.variant]
            if not variant.tensor_maps and not variant.scratch_bytes:
                break
        else:
            return None
        kernel.launch(values, grid=grid, choices=choices)
        seen = gpu.last()
    cubin = folder / f"{name}.cubin"
    cubin.write_bytes(variant.cubin)
    params = seen.params[: variant.param_bytes]
    at = [
        param.offset
        for param in variant.cubin_params
        if param.source == "argument" and record.params[param.index].kind == "pointer"
    ]
    lines = [
        f"archive {path} {name}",
        f"cubin {cubin} {variant.symbol}",
        f"grid {' '.join(map(str, seen.grid))} {seen.block[0]} {seen.shared_bytes}",
        *(f"param {byte:02x}" for byte in params),
        *(f"address {offset}" for offset in at),
        *lines,
        *(f"choice {key} {' '.join(map(str, _kind(value)))}" for key, value in choices.items()),
        f"programs {int(record.grid_rank == 0)} 1 1 1",
    ]
    target = folder / f"{path.stem}-{name}.launch"
    target.write_text("\n".join(lines) + "\n")
    print(
        f"{name}: {len(variant.cubin)} bytes, of {len(record.variants)} variants; integers are {number}"
    )
    return target


def _case(name: str) -> str:
    """Return the kernel that one of `multiplied` was made of."""
    return re.sub(r"_[0-9]{4}_[0-9]{5}$", "", name)


def _forms(path: Path, folder: Path, forms: Collection[str]) -> Iterator[tuple[str, Path, Archive]]:
    """Yield the forms of an archive: which, where, and what is in it."""
    archive = archives.read(path)
    if "shared" in forms:
        yield "shared", path.resolve(), archive
    for form, is_compressed in (("alone", True), ("stored", False)):
        if form in forms:
            place = folder / f"{path.stem}_{form}.aotc"
            data = archives.encode(archive, is_grouped=False, is_compressed=is_compressed)
            archives.write_file(place, data)
            yield form, place, archive


def _scale(paths: list[Path], folder: Path) -> Iterator[tuple[str, Path, Archive]]:
    """Yield an archive of many variants, of the kernels that there is a case for."""
    sources = [archives.read(path) for path in paths]
    cases = [
        replace(source, kernels=tuple(k for k in source.kernels if k.name in _CASES))
        for source in sources
    ]
    archive = multiplied(cases, _SCALE_VARIANTS)
    place = folder / "scale.aotc"
    archives.write_file(place, archives.encode(archive, is_compressed=False))
    print(f"scale: {len(archive.kernels)} kernels, {place.stat().st_size} bytes")
    yield "scale", place, archive


def _launches(
    paths: list[Path], folder: Path, gpu: FakeGpu, forms: Collection[str]
) -> Iterator[tuple[str, str, Path]]:
    """Yield kernel, form of the archive, and what was written down of the launch."""
    made = [form for path in paths for form in _forms(path, folder, forms)]
    made += _scale(paths, folder) if "scale" in forms else ()
    for form, place, archive in made:
        names: dict[str, list[str]] = {}
        for kernel in archive.kernels:
            if _TARGET in kernel.targets and _case(kernel.name) in _CASES:
                names.setdefault(_case(kernel.name), []).append(kernel.name)
        for case, found in names.items():
            written = _write(archive, place, found[len(found) // 2], gpu, folder)
            if written is not None:
                yield case, form, written


def main() -> None:
    """Compile the program, write launches down, run all in turn, and print a line for each way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archives", type=Path, nargs="+")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument(
        "--ways", default=",".join(_WAYS), help="of first_launch.c; the first is the measure"
    )
    parser.add_argument("--forms", default=",".join(_FORMS), help="of archives; scale is one, too")
    parser.add_argument("--limit-s", type=float, default=600.0, help="begin no run after")
    parser.add_argument(
        "--fake", action="store_true", help="use the tests' driver: the host's share alone"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        program = folder / "first_launch"
        sources = [
            ROOT / "benchmarks/first_launch.c",
            *sorted((ROOT / "runtime_c/src").glob("*.c")),
        ]
        command = [
            "cc",
            "-std=gnu11",
            "-O2",
            f"-I{ROOT / 'runtime_c/include'}",
            "-Wl,-z,now",
            *map(str, sources),
        ]
        subprocess.run([*command, "-o", str(program), "-ldl", "-lpthread"], check=True)
        gpu = FakeGpu(build(folder))
        library = str(gpu.path) if options.fake else "libcuda.so.1"
        ways = options.ways.split(",")
        found = [*_launches(options.archives, folder, gpu, options.forms.split(","))]
        steps: dict[tuple[str, str], dict[str, list[list[list[float]]]]] = {
            (name, form): {way: [] for way in ways} for name, form, _ in found
        }
        end = monotonic() + options.limit_s
        for _ in range(options.runs):
            for name, form, written in found:
                for way, runs in steps[name, form].items() if monotonic() < end else ():
                    command = [str(program), way, str(written), library, str(_TIMES)]
                    done = subprocess.run(
                        command, check=True, capture_output=True, text=True, timeout=30
                    )
                    lines = done.stdout.splitlines()
                    runs.append([[float(one) / 1e3 for one in line.split()] for line in lines])
        for (name, form), by_way in steps.items():
            for way, runs in by_way.items() if by_way[ways[0]] else ():
                _report(f"{name:20} {form:7} {way:6}", runs, by_way[ways[0]])


def _report(label: str, runs: list[list[list[float]]], bare: list[list[list[float]]]) -> None:
    """Print what a fresh process takes, step by step, and what it takes again; and of the bare way."""
    faults = [sum(run[0][4:]) * 1e3 for run in runs]
    runs = [[times[:4] for times in run] for run in runs]
    bare = [[times[:4] for times in run] for run in bare]
    fresh = [sum(run[0]) for run in runs]
    ratio = statistics.median(a / sum(b[0]) for a, b in zip(fresh, bare, strict=True))
    opened = statistics.median(
        sum(run[0][1:]) / sum(b[0][1:]) for run, b in zip(runs, bare, strict=True)
    )
    parts = " + ".join(
        f"{statistics.median(one):.1f}" for one in zip(*(run[0] for run in runs), strict=True)
    )
    again = statistics.median(sum(times) for run in runs for times in run[1:])
    again_bare = statistics.median(sum(times) for run in bare for times in run[1:])
    print(
        f"{label} {statistics.median(fresh):8.1f} us = {parts}; {ratio:.3f} of bare, "
        f"{opened:.3f} once the file is open; {statistics.median(faults):.0f} page faults; again {again:.1f} us, {again / again_bare:.3f} of bare; {len(runs)} runs",
        flush=True,
    )


if __name__ == "__main__":
    main()
