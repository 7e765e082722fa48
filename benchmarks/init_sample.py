"""How many files of a random sample `aotc init` writes a manifest for that builds without an edit.

Run: `python benchmarks/init_sample.py FOLDER… --seed 9 --count 21 [--all-variants]`

The folders hold unpacked packages. Files with kernels are drawn with the seed and shown; a file
counts if at least 90 % of its kernels build from its manifest without an edit: the first variant of
each is compiled to a cubin, or all of them with `--all-variants`. Functions that only kernels call, and those for other vendors, are no
kernels. The reasons for all others are printed.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aotc
from aotc.compiler import autotune_configs, compile_variant
from aotc.ir.diagnostics import DiagnosticError, IRError
from aotc.package.archive import file as archive
from aotc.package.inspect.survey import check
from aotc.package.manifest.read import load
from aotc.package.manifest.spec import KernelSpec
from aotc.package.manifest.variant_grid import expand
from aotc.target import parse

_SHARE = 0.9
_VENDORS = re.compile(r"ascend|npu|xpu|/tests?/|/test_|mlu|amd|rocm|hip", re.IGNORECASE)
_REFUSED = re.compile(
    r"^note: as a comment: (?P<kernel>\S+ \(.*?:\d+\)): (?P<why>.*)$", re.MULTILINE
)
_HELPER = "it is for other kernels to call"


def main() -> None:
    """Draw files, write and build a manifest for each, and print which count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--count", type=int, default=21)
    parser.add_argument("--all-variants", action="store_true", help="run `aotc build`")
    args = parser.parse_args()
    files = sorted(str(one) for folder in args.folders for one in folder.rglob("*.py"))
    files = [one for one in files if not _VENDORS.search(one) and _has_kernels(one)]
    sample = sorted(random.Random(args.seed).sample(files, min(args.count, len(files))))
    print(f"{len(sample)} of {len(files)} files with kernels, seed {args.seed}, by {aotc.__file__}")
    counted = sum(_counts(file, has_all=args.all_variants) for file in sample)
    print(f"{counted} of {len(sample)} files count")


def _has_kernels(file: str) -> bool:
    text = Path(file).read_text(errors="replace")
    if "@triton.jit" not in text:
        return False
    try:
        kernels = check([file], "sm_90a", 1).kernels
    except DiagnosticError:
        return False
    return any("." not in one.name or "<locals>" in one.name for one in kernels)


def _counts(file: str, *, has_all: bool) -> bool:
    """Print what comes of a file; return whether it counts."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "kernels.toml"
        ran = _aotc("init", str(Path(file).absolute()), "-o", str(manifest))
        refused = [one.groups() for one in _REFUSED.finditer(ran.stderr)]
        refused = [(kernel, why) for kernel, why in refused if _HELPER not in why]
        written = manifest.read_text() if manifest.exists() else ""
        wanted = len(re.findall(r"(?m)^\[\[kernel\]\]", written)) + len(refused)
        made = wanted - len(refused)
        if made:
            made, failed = _all_built(manifest) if has_all else _first_built(manifest)
            refused += failed
    is_counted = bool(made) and made >= _SHARE * wanted
    seconds = time.perf_counter() - start
    print(f"{'yes' if is_counted else 'NO '} {made}/{wanted} {seconds:5.1f} s {file}", flush=True)
    for kernel, why in refused:
        print(f"      {kernel}: {why}")
    if not made and not refused:
        print(f"      {ran.stderr.strip()[-2000:]}")
    return is_counted


def _first_built(manifest: Path) -> tuple[int, list[tuple[str, str]]]:
    """Compile a variant of each kernel; return how many do, and why the others do not."""
    failed: list[tuple[str, str]] = []
    try:
        kernels = load(str(manifest)).kernels
    except DiagnosticError as error:
        return 0, [("manifest", error.message)]
    for kernel in kernels:
        problem = _problem_of(kernel)
        failed += [(kernel.name, problem)] * bool(problem)
    return len(kernels) - len(failed), failed


def _problem_of(kernel: KernelSpec) -> str:
    """Return why the first variant of a kernel does not compile."""
    try:
        (variant, *_) = expand(kernel, [parse("sm_90a")], autotune_configs).variants
        compile_variant(variant.request)
    except (DiagnosticError, IRError) as error:
        return str(error).splitlines()[0]
    return ""


def _all_built(manifest: Path) -> tuple[int, list[tuple[str, str]]]:
    """Build a manifest; return how many kernels are in its archive, and what failed."""
    out = manifest.parent / "dist"
    built = _aotc("build", "--keep-going", "-j", "2", "-o", str(out), str(manifest))
    failed = [("build", line) for line in built.stderr.splitlines() if "error: " in line]
    return sum(len(archive.read(one).kernels) for one in out.glob("*.aotc")), failed


def _aotc(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aotc", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()
