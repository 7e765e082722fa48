"""Time of a C program to its first launch, from an archive and from a single cubin.

    aotc build kernels/matrix.toml --target sm_90a -o dist
    python -m benchmarks.first_launch_in_c dist/matrix.aotc dist/kernels.aotc [--runs 40] [--fake]

For each kernel of `_CASES` and each way of `first_launch.c`, fresh processes run on one core.
The ways run in turn, every second time in the opposite order, after one warm-up of each. The
time is from a context with its memory until the launch has finished, every file in the page
cache; then again in the same process after unloading. `bare` reads the cubin from a file, loads
it and launches. `lazy` and `mapped` open an archive, `eager` loads all variants of the kernel.

Archives are unchanged (`shared` frames), written with a frame for each cubin (`alone`),
uncompressed (`stored`), or uncompressed with at least 10,000 variants (`scale`): copies of
kernels under new names. The tests' fake driver records the launched cubin and its parameters
first. A ratio is the median of pairs, with the 95 % interval of the median. "once the file is
open" leaves out the first part: opening an archive or reading the cubin. Next come medians of
each part and its page faults.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import struct
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import aotc
from aotc.package.archive import file as archives
from aotc.package.archive.index import DTYPE_CODES, Archive
from aotc.runtime import AotcError, Kernel, Pointer
from benchmarks.archive_scale import multiplied
from tests.support.fake_gpu import ROOT, FakeGpu, build

_TARGET = "sm_90a"
_RUNTIME = ROOT / "runtime_c"
_CASES: Mapping[str, Mapping[str, Any]] = {
    "vector_add": {},
    "softmax": {},
    "matmul": {"BIAS": False, "RESIDUAL": False, "ACTIVATION": "none"},
    "paged_decode_gather": {"HEAD_DIM": 128, "PAGE": 16},
}
_WAYS = ("bare", "lazy", "mapped", "lazy_trusted", "module")
_FORMS = ("shared", "alone", "stored")
_SCALE_VARIANTS = 10_000
_NUMBERS = (64, 65, 1)  # values of integers: the first selects a variant without tensor maps
_ADDRESS = 0x7A5A_0000_0000
_TIMES = 3


def _kind(value: object) -> tuple[int, int, str]:
    if isinstance(value, bool):
        return 1, int(value), "-"
    return (2, value, "-") if isinstance(value, int) else (3, 0, str(value))


def _arguments(kernel: Kernel, number: int, dtype: str) -> tuple[list[Any], list[str]]:
    """Return arguments for a launch, and their lines of text."""
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
    offsets = [
        param.offset
        for param in variant.cubin_params
        if param.source == "argument" and record.params[param.index].kind == "pointer"
    ]
    lines = [
        f"archive {path} {name}",
        f"cubin {cubin} {variant.symbol}",
        f"grid {' '.join(map(str, seen.grid))} {seen.block[0]} {seen.shared_bytes}",
        *(f"param {byte:02x}" for byte in params),
        *(f"address {offset}" for offset in offsets),
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
    """Return the original kernel of a copy from `multiplied`."""
    return re.sub(r"_[0-9]{4}_[0-9]{5}$", "", name)


def _forms(path: Path, folder: Path, forms: Collection[str]) -> Iterator[tuple[str, Path, Archive]]:
    """Yield the forms of an archive: name, path and contents."""
    archive = archives.read(path)
    if "shared" in forms:
        yield "shared", path.resolve(), archive
    for form, is_compressed in (("alone", True), ("stored", False)):
        if form in forms:
            form_path = folder / f"{path.stem}_{form}.aotc"
            data = archives.encode(archive, is_grouped=False, is_compressed=is_compressed)
            archives.write_file(form_path, data)
            yield form, form_path, archive


def _scale(paths: list[Path], folder: Path) -> Iterator[tuple[str, Path, Archive]]:
    """Yield an archive of many variants, from the kernels with a case."""
    sources = [archives.read(path) for path in paths]
    cases = [
        replace(source, kernels=tuple(k for k in source.kernels if k.name in _CASES))
        for source in sources
    ]
    archive = multiplied(cases, _SCALE_VARIANTS)
    scale_path = folder / "scale.aotc"
    archives.write_file(scale_path, archives.encode(archive, is_compressed=False))
    print(f"scale: {len(archive.kernels)} kernels, {scale_path.stat().st_size} bytes")
    yield "scale", scale_path, archive


def launches(
    paths: list[Path], folder: Path, gpu: FakeGpu, forms: Collection[str]
) -> Iterator[tuple[str, str, Path]]:
    """Yield kernel, form of the archive, and the recorded launch."""
    forms_of_archives = [form for path in paths for form in _forms(path, folder, forms)]
    forms_of_archives += _scale(paths, folder) if "scale" in forms else ()
    for form, form_path, archive in forms_of_archives:
        names: dict[str, list[str]] = {}
        for kernel in archive.kernels:
            if _TARGET in kernel.targets and _case(kernel.name) in _CASES:
                names.setdefault(_case(kernel.name), []).append(kernel.name)
        for case, kernels in names.items():
            written = _write(archive, form_path, kernels[len(kernels) // 2], gpu, folder)
            if written is not None:
                yield case, form, written


def _compile(folder: Path) -> Path:
    """Compile the program as C programs are compiled, with the library in it."""
    program = folder / "first_launch"
    command = [
        *("cc", "-std=gnu11", "-O2", f"-I{_RUNTIME / 'include'}", "-Wl,-z,now"),
        str(ROOT / "benchmarks/first_launch.c"),
        *map(str, sorted((_RUNTIME / "src").glob("*.c"))),
        *("-o", str(program), "-ldl", "-lpthread"),
    ]
    subprocess.run(command, check=True)
    return program


class _Run(NamedTuple):
    """A process's output in microseconds: its first launch by parts, and later ones."""

    parts: Mapping[str, float]
    faults: Mapping[str, int]
    again: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def after_opening(self) -> float:
        return self.total - self.parts["open"]


def _run(program: Path, way: str, written: Path, library: str) -> _Run:
    command = [str(program), way, str(written), library, str(_TIMES)]
    process = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    first, *later_launches = map(json.loads, process.stdout.splitlines())
    return _Run(
        {name: time / 1e3 for name, (time, _) in first["parts"].items()},
        {name: faults for name, (_, faults) in first["parts"].items()},
        tuple(sum(time for time, _ in other["parts"].values()) / 1e3 for other in later_launches),
    )


def _interval(values: Sequence[float]) -> str:
    """Return the median and its 95 % interval from order statistics."""
    ordered = sorted(values)
    count = len(ordered)
    least = max(0, round(count / 2 - 0.98 * count**0.5) - 1)
    return (
        f"{statistics.median(ordered):.3f} ({ordered[least]:.3f}-{ordered[count - 1 - least]:.3f})"
    )


def _report(label: str, runs: Sequence[_Run], bare: Sequence[_Run]) -> None:
    """Print times of a fresh process, of its later launches, and of the bare way."""
    pairs = [*zip(runs, bare, strict=True)]
    again = statistics.median(time for run in runs for time in run.again)
    again_bare = statistics.median(time for run in bare for time in run.again)
    print(
        f"{label} {statistics.median(run.total for run in runs):8.1f} us, "
        f"{_interval([run.total / other.total for run, other in pairs])} of bare, "
        f"{_interval([run.after_opening / other.after_opening for run, other in pairs])} once the file is "
        f"open; {statistics.median(sum(run.faults.values()) for run in runs):.0f} page faults; "
        f"again {again:.1f} us, {again / again_bare:.3f} of bare; {len(runs)} runs",
        flush=True,
    )


def _report_parts(label: str, runs: Sequence[_Run]) -> None:
    """Print medians of each part, with its page faults."""
    parts = [
        f"{name} {statistics.median(run.parts[name] for run in runs):.1f} "
        f"({statistics.median(run.faults[name] for run in runs):.0f})"
        for name in runs[0].parts
    ]
    print(f"{label}   parts: {', '.join(parts)}", flush=True)


def main() -> None:
    """Compile the program, write launches down, run all in turn, and print a line for each way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archives", type=Path, nargs="+")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument(
        "--ways", default=",".join(_WAYS), help="of first_launch.c; the first is the measure"
    )
    parser.add_argument("--kernels", default=",".join(_CASES), help="what to launch")
    parser.add_argument("--forms", default=",".join(_FORMS), help="of archives; scale is one, too")
    parser.add_argument("--core", type=int, help="where to run; default: the last there is")
    parser.add_argument("--limit-s", type=float, default=600.0, help="begin no turn after")
    parser.add_argument(
        "--fake", action="store_true", help="use the tests' driver: the host's share alone"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        program, gpu = _compile(folder), FakeGpu(build(folder))
        library = str(gpu.path) if options.fake else "libcuda.so.1"
        ways = options.ways.split(",")
        all_launches = launches(options.archives, folder, gpu, options.forms.split(","))
        selected = [launch for launch in all_launches if launch[0] in options.kernels.split(",")]
        core = max(os.sched_getaffinity(0)) if options.core is None else options.core
        os.sched_setaffinity(0, {core})
        runs: dict[tuple[str, str, str], list[_Run]] = {}
        end = monotonic() + options.limit_s
        for turn in range(options.runs + 1):
            for name, form, written in selected if monotonic() < end else ():
                for way in ways if turn % 2 else reversed(ways):
                    run = _run(program, way, written, library)
                    if turn != 0:
                        runs.setdefault((name, form, way), []).append(run)
        for name, form, _ in selected:
            for way in ways if runs else ():
                label = f"{name:20} {form:7} {way:13}"
                _report(label, runs[name, form, way], runs[name, form, ways[0]])
                _report_parts(label, runs[name, form, way])


if __name__ == "__main__":
    main()
