"""Share of public packages' kernels supported by `aotc check`.

    pip download --no-deps --dest wheels liger-kernel fla-core
    for wheel in wheels/*.whl; do unzip -q -d packages/$(basename "${wheel%%-*}") "$wheel"; done
    python benchmarks/check_packages.py packages [--features 20] [--json FILE]

Each folder in `packages` is one package. Two counts of kernels are given: supported for some
values of their constants, as `aotc check` reports; and, strictly, without any missing feature.
Autotuners count if their configs can be read with nothing fixed. Heuristics count if they are
evaluated without argument values, or by a launcher from integers. A package's time is for its
check alone, with all cores.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from aotc.frontend import (
    autotune_configs,
    heuristic_problems,
    kernel_parameters,
    launch_heuristics,
)
from aotc.ir.diagnostics import CompileError
from aotc.package.inspect.survey import Checked, check

TARGET = "sm_90a"
LAUNCHED = "a launcher computes it"
_VERSION = re.compile(
    r"^(?:__)?version(?:__)?\s*(?::\s*str\s*)?=.*?['\"](\d[^'\"]*)['\"]", re.MULTILINE
)
_FILES = ("version.py", "_version.py", "_build_meta.py", "__init__.py")


@dataclass(frozen=True)
class Package:
    """Counts of one package."""

    name: str
    version: str
    files: int
    kernels: int
    supported: int
    strict: int
    autotuned: int
    autotuners_read: int
    heuristics: int
    heuristics_read: int
    seconds: float


PROBLEMS: collections.Counter[str] = collections.Counter()
_WORDS = re.compile(r"(?<=argument )\w+|(?<=item )'\w+'")


def look_at(folder: Path) -> tuple[Package, Checked]:
    """Check one package."""
    began = time.perf_counter()
    checked = check([str(folder)], TARGET, os.cpu_count() or 1)
    seconds = time.perf_counter() - began
    tuned = [
        is_read for kernel in checked.kernels for is_read in _autotuner(kernel.file, kernel.line)
    ]
    problems = [
        problem
        for kernel in checked.kernels
        for problem in _heuristics(kernel.file, kernel.name, kernel.line)
    ]
    PROBLEMS.update(_WORDS.sub("…", problem) for problem in problems if problem)
    return Package(
        folder.name,
        version_of(folder),
        checked.num_files,
        len(checked.kernels),
        sum(kernel_check.is_supported for kernel_check in checked.kernels),
        sum(not kernel_check.missing for kernel_check in checked.kernels),
        len(tuned),
        sum(tuned),
        len(problems),
        sum(problem in ("", LAUNCHED) for problem in problems),
        seconds,
    ), checked


def version_of(folder: Path) -> str:
    """Return the version in a package's metadata or code, or a dash."""
    for path in sorted(folder.glob("*.dist-info/METADATA")):
        version = re.search(r"^Version: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        if version is not None:
            return version[1]
    for name in _FILES:
        for path in sorted(folder.glob(f"*/{name}")):
            version = _VERSION.search(path.read_text(encoding="utf-8"))
            if version is not None:
                return version[1]
    return "–"


def _autotuner(file: str, line: int) -> Iterator[bool]:
    """Yield whether the autotuner of the kernel at a line can be read, if it has one."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.lineno != line:
            continue
        if any(
            "autotune" in ast.unparse(decorator).partition("(")[0]
            for decorator in node.decorator_list
        ):
            yield _is_read(file, node.name)


def _heuristics(file: str, name: str, line: int) -> list[str]:
    """Return why each heuristic of the kernel at a line is not evaluated, "" if it is.

    If a launcher computes it, with arguments taken to be integers, the reason is `LAUNCHED`.
    """
    text = Path(file).read_text(encoding="utf-8")
    if "heuristics" not in text:
        return []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.lineno == line:
            try:
                problems = heuristic_problems(file, name, target=TARGET)
                params = kernel_parameters(file, name)
                arguments = [param.name for param in params if not param.is_constexpr]
                constants = [param.name for param in params if param.is_constexpr]
                texts = launch_heuristics(file, name, arguments, constants, target=TARGET)
                return [
                    why and (LAUNCHED if heuristic in texts else why)
                    for heuristic, why in problems.items()
                ]
            except CompileError as error:
                is_one = any(
                    "heuristics" in ast.unparse(decorator) for decorator in node.decorator_list
                )
                return [error.message] if is_one else []
    return []


def _is_read(file: str, name: str) -> bool:
    try:
        return bool(autotune_configs(file, name, target=TARGET))
    except CompileError:
        return False


def table(packages: list[Package]) -> str:
    """Return the packages as a table, with all of them in the last row."""
    rows = [
        (
            "| Package | version | files | kernels | supported | strictly | autotuners read | "
            "heuristics read | time |"
        ),
        "|---|---|---|---|---|---|---|---|---|",
    ]
    total = Package(
        "all", "", *(sum(values) for values in zip(*map(_numbers, packages), strict=True))
    )
    rows += [
        f"| {package.name} | {package.version} | {package.files} | {package.kernels} "
        f"| {_share(package.supported, package.kernels)} | {_share(package.strict, package.kernels)} "
        f"| {package.autotuners_read} of {package.autotuned} | {package.heuristics_read} of {package.heuristics} "
        f"| {package.seconds:.1f} s |"
        for package in (*packages, total)
    ]
    return "\n".join(rows)


def _numbers(package: Package) -> tuple[float, ...]:
    return tuple(value for value in asdict(package).values() if not isinstance(value, str))


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.1f} %)" if whole else "–"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="with a folder for each package")
    parser.add_argument("--packages", nargs="*", help="of these names alone")
    parser.add_argument("--features", type=int, default=20, help="that are listed")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    options = parser.parse_args()
    folders = [path for path in sorted(options.folder.iterdir()) if path.is_dir()]
    folders = [path for path in folders if not options.packages or path.name in options.packages]
    if not folders:
        print(f"no packages in {options.folder}", file=sys.stderr)
        return 1
    packages: list[Package] = []
    features: collections.Counter[str] = collections.Counter()
    for folder in folders:
        package, checked = look_at(folder)
        packages.append(package)
        features.update(checked.features)
    print(table(packages))
    print("\n| kernels | feature |\n|---|---|")
    for feature, count in features.most_common(options.features):
        print(f"| {count} | {feature} |")
    print("\n| heuristics | why they are not read |\n|---|---|")
    for problem, count in PROBLEMS.most_common(options.features):
        print(f"| {count} | {problem} |")
    if options.json:
        document = {"packages": [asdict(path) for path in packages], "features": dict(features)}
        options.json.write_text(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
