"""Share of a random sample of files with an `aotc init` manifest that builds unedited.

Run: `python benchmarks/init_sample.py FOLDER… --seed 9 --count 21 [--all-variants] [--verify]`

The folders hold unpacked packages. Files with kernels are drawn with the seed and shown. A file
counts if at least 90 % of its kernels build from its manifest unedited: the first variant of
each is compiled to a cubin, or all of them with `--all-variants`. With `--verify`, the variant's
first launch with a store must also agree with the interpreter. Device functions, and kernels for
other vendors, do not count. The reasons for all other files are printed.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import aotc
from aotc.compiler import autotune_configs, compile_variant
from aotc.ir.diagnostics import DiagnosticError, IRError
from aotc.package.archive import file as archive
from aotc.package.inspect.survey import check
from aotc.package.manifest.read import load
from aotc.package.manifest.spec import KernelSpec
from aotc.package.manifest.variant_grid import expand
from aotc.package.verify.subjects import Subject, VerifyOptions, subject_of
from aotc.package.verify.variants import members_of
from aotc.target import parse
from aotc.verify.checks.check import Finding
from aotc.verify.emulator.errors import EmulationError

_SHARE = 0.9
_VENDORS = re.compile(
    r"ascend|npu|xpu|/tests?/|/test_|mlu|amd|rocm|hip|/backend/_(?!nvidia)", re.IGNORECASE
)
_REFUSED = re.compile(
    r"^note: as a comment: (?P<kernel>\S+ \(.*?:\d+\)): (?P<why>.*)$", re.MULTILINE
)
_HELPER = "it is for other kernels to call"


def main() -> None:
    """Draw files, write and build a manifest for each, and print whether it counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--count", type=int, default=21)
    parser.add_argument("--all-variants", action="store_true", help="run `aotc build`")
    parser.add_argument("--verify", action="store_true", help="compare launches as well")
    parser.add_argument(
        "--seconds", type=int, default=60, help="of processor time, for the launches of a kernel"
    )
    args = parser.parse_args()
    files = sorted(
        str(python_file)
        for folder in args.folders
        for python_file in ([folder] if folder.is_file() else folder.rglob("*.py"))
    )
    files = [
        python_file
        for python_file in files
        if not _VENDORS.search(python_file) and _may_have_kernels(python_file)
    ]
    random.Random(args.seed).shuffle(files)
    sample = sorted(islice(filter(_has_kernels, files), args.count))
    print(f"{len(sample)} of {len(files)} files, seed {args.seed}, by {aotc.__file__}")
    seconds = args.seconds if args.verify else 0
    count_built = _all_built if args.all_variants else lambda path: _first_built(path, seconds)
    counted = sum(_counts(file, count_built) for file in sample)
    print(f"{counted} of {len(sample)} files count")


def _may_have_kernels(file: str) -> bool:
    return "@triton.jit" in Path(file).read_text(errors="replace")


def _has_kernels(file: str) -> bool:
    try:
        kernels = check([file], "sm_90a", 1).kernels
    except DiagnosticError:
        return False
    return any("." not in kernel.name or "<locals>" in kernel.name for kernel in kernels)


def _counts(file: str, built: Callable[[Path], tuple[int, list[tuple[str, str]]]]) -> bool:
    """Print a file's outcome; return whether it counts."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "kernels.toml"
        ran = _aotc("init", str(Path(file).absolute()), "-o", str(manifest))
        refused = [match.groups() for match in _REFUSED.finditer(ran.stderr)]
        refused = [(kernel, why) for kernel, why in refused if _HELPER not in why]
        written = manifest.read_text() if manifest.exists() else ""
        num_kernels = len(re.findall(r"(?m)^\[\[kernel\]\]", written)) + len(refused)
        num_written = num_kernels - len(refused)
        if num_written:
            num_written, failed = built(manifest)
            refused += failed
    is_counted = bool(num_written) and num_written >= _SHARE * num_kernels
    seconds = time.perf_counter() - start
    print(
        f"{'yes' if is_counted else 'NO '} {num_written}/{num_kernels} {seconds:5.1f} s {file}",
        flush=True,
    )
    for kernel, why in refused:
        print(f"      {kernel}: {why}")
    if not num_written and not refused:
        print(f"      {ran.stderr.strip()[-2000:]}")
    return is_counted


def _first_built(manifest: Path, seconds: int) -> tuple[int, list[tuple[str, str]]]:
    """Compile a variant of each kernel; return how many do, and why the others do not.

    With `seconds`, its launches are compared for as long.
    """
    failed: list[tuple[str, str]] = []
    try:
        kernels = load(str(manifest)).kernels
    except DiagnosticError as error:
        return 0, [("manifest", error.message)]
    for kernel in kernels:
        problem = _problem_of(kernel, seconds)
        failed += [(kernel.name, problem)] * bool(problem)
    return len(kernels) - len(failed), failed


def _problem_of(kernel: KernelSpec, seconds: int) -> str:
    """Return why the first variant of a kernel does not compile, or computes something else."""
    try:
        expansion = expand(kernel, [parse("sm_90a")], autotune_configs)
        (variant, *_) = expansion.variants
        compile_variant(variant.request)
    except (DiagnosticError, IRError) as error:
        return str(error).splitlines()[0]
    if not seconds:
        return ""
    # Random offsets of sequences mean nothing: others have None for a pointer, or other choices.
    absent = [candidate for candidate in expansion.variants if candidate.absent != variant.absent]
    other_choices = [
        candidate for candidate in expansion.variants if candidate.choices != variant.choices
    ]
    problem = ""
    for candidate in (variant, *absent[:1], *other_choices[-1:]):
        problem = _disagreement(subject_of(expansion, candidate), seconds)
        if not problem or problem.startswith(("wrong", "fault")):
            break
    return problem


def _disagreement(subject: Subject, seconds: int) -> str:
    """Return why no launch of a variant is known to agree with the interpreter."""
    try:
        with _limited(seconds):
            finding = _first_launch(subject)
    except (DiagnosticError, IRError, EmulationError) as error:
        return f"not verified: {str(error).splitlines()[0]}"
    except TimeoutError:
        return f"not verified: no answer in {seconds} s"
    except Exception as error:  # noqa: BLE001 - a bug of any type loses one kernel
        return f"not verified: a bug: {type(error).__name__}: {error}"
    if finding is None:
        return "not verified: no launch stores anything"
    return "" if finding.status == "right" else f"{finding.status}: {finding.detail}"


def _first_launch(subject: Subject) -> Finding | None:
    """Return the outcome of the first launch with a store, None if there is none."""
    for member in members_of(subject, VerifyOptions()):
        for finding in [] if isinstance(member, str) else member.launches():
            is_meant = finding.label not in ("far", "backwards")
            if finding.num_stored or (is_meant and finding.status in ("wrong", "fault")):
                return finding
    return None


@contextmanager
def _limited(seconds: int) -> Generator[None]:
    """Raise TimeoutError in code over the limit of processor time."""

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _all_built(manifest: Path) -> tuple[int, list[tuple[str, str]]]:
    """Build a manifest; return the number of kernels in its archive, and the failures."""
    out = manifest.parent / "dist"
    built = _aotc("build", "--keep-going", "-j", "2", "-o", str(out), str(manifest))
    failed = [("build", line) for line in built.stderr.splitlines() if "error: " in line]
    return sum(
        len(archive.read(archive_path).kernels) for archive_path in out.glob("*.aotc")
    ), failed


def _aotc(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aotc", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()
