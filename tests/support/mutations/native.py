"""Bugs in the launcher's C code, each compiled into its own runtime to plan `verify`'s launches.

`python -m tests.support.mutations.native` prints a line for each bug, then the number found. Words
select bugs by name. A crash of the process counts as found.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli

ROOT = Path(__file__).parents[3]
_NAME = "aotc.runtime._native"
_CASES = "tests/support/mutation_cases"
_KERNELS = (
    (f"{_CASES}/launched.toml", "negate_rows", "sm_80"),
    (f"{_CASES}/launched.toml", "negate_long_rows", "sm_80"),
    (f"{_CASES}/launched.toml", "negate_some_rows", "sm_80"),
    (f"{_CASES}/launched.toml", "add_corners", "sm_80"),
    (f"{_CASES}/kernels.toml", "add_aligned", "sm_80"),
    (f"{_CASES}/kernels.toml", "turn_pieces", "sm_80"),
    (f"{_CASES}/kernels.toml", "add_groups", "sm_90a"),
    (f"{_CASES}/kernels.toml", "turn_blocks", "sm_90a"),
    (f"{_CASES}/kernels.toml", "multiply", "sm_90a"),
    (f"{_CASES}/kernels.toml", "read_rows", "sm_90a"),
)
"""Kernels by manifest and target, of which every variant is verified until one is wrong."""


@dataclass(frozen=True, slots=True)
class NativeMutation:
    """A bug in a file of `runtime_c/src`: a piece of its text, once there, replaced by another."""

    name: str
    file: str
    old: str
    new: str


_SELECT, _GUARD, _LAUNCH, _MAP = "select.c", "guard.c", "launch.c", "tensor_map.c"

MUTATIONS = tuple(
    NativeMutation(*row)
    for row in (
        ("less is less or equal", _GUARD, "return value < test->constant;", "return value <= test->constant;"),
        ("less or equal is less", _GUARD, "return value <= test->constant;", "return value < test->constant;"),
        ("greater is greater or equal", _GUARD, "return value > test->constant;", "return value >= test->constant;"),
        ("greater or equal is greater", _GUARD, "return value >= test->constant;", "return value > test->constant;"),
        ("multiples are anything", _GUARD, "return (value & test->constant) == 0;", "return true;"),
        ("unequal is equal", _GUARD, "return value != test->constant;", "return value == test->constant;"),
        ("or is and", _GUARD, "found = found || other;", "found = found && other;"),
        ("or is its first half", _GUARD, "found = found || other;", "found = found || (other && false);"),
        ("or is its second half", _GUARD, "found = found || other;", "found = other;"),
        ("a guard that cannot be evaluated holds", _GUARD, "== NULL && value != 0;", "== NULL || value != 0;"),
        ("dtypes are not compared", "bind.c", "if (arg->dtype != param->dtype) {", "if (false) {"),
        ("bound types are not compared", "bind.c", "return binding->dtype == dtype;", "return true;"),
        ("a type variable takes its first dtype", "bind.c", "if (variable->dtypes[digit] == dtype) {", "if (digit == 0) {"),
        ("a grid has one program less", _SELECT, "(uint64_t)programs <= max_grid[dimension] / cluster", "(uint64_t)programs < max_grid[dimension] / cluster"),
        ("a grid has no limit", _SELECT, "(uint64_t)programs <= max_grid[dimension] / cluster", "true"),
        ("a grid's limit is not divided by clusters", _SELECT, "<= max_grid[dimension] / cluster)", "<= max_grid[dimension])"),
        ("programs that wait have no limit", _SELECT, "is_cooperative && total > at_once", "is_cooperative && total > at_once && false"),
        ("programs that wait are one fewer", _SELECT, "is_cooperative && total > at_once", "is_cooperative && total >= at_once"),
        ("guards are not asked for", _SELECT, "if (all_hold(kernel, desc->args, candidate->guards, &state) &&", "if ("),
        ("conditions are not asked for", _SELECT, "condition_holds(kernel, desc->args, &candidate->condition, &state)) {", "true) {"),
        ("what one guard says holds for all", _SELECT, "state->holding |= bit;", "state->holding |= ~UINT64_C(0);"),
        ("the grid's expressions in the other order", _SELECT, 'variant->grid[i], "grid"', 'variant->grid[own_rank - 1 - i], "grid"'),
        ("a grid of programs, not of CTAs", _SELECT, "chosen->grid[i] = programs[i] * cluster[i];", "chosen->grid[i] = programs[i];"),
        ("scratch memory for one program", _SELECT, "chosen->scratch_bytes = (uint64_t)total;", "chosen->scratch_bytes = (uint64_t)bytes;"),
        ("scratch memory for a row of programs", _SELECT, "for (unsigned i = 0; i < 3; ++i) {\n        valid = valid", "for (unsigned i = 1; i < 3; ++i) {\n        valid = valid"),
        ("half the scratch memory is taken", "scratch.c", "(size_t)(chosen->scratch_bytes + slack)", "(size_t)(chosen->scratch_bytes / 2)"),
        ("scratch memory is passed from its middle", "scratch.c", "(*taken + align - 1) / align * align)", "(*taken + align) / align * align + align)"),
        ("scratch memory is kept", _LAUNCH, "if (taken != 0) {", "if (false) {"),
        ("no launch is cooperative", _LAUNCH, "if ((variant->flags & VARIANT_COOPERATIVE) != 0) {", "if (false) {"),
        ("each launch is cooperative", _LAUNCH, "if ((variant->flags & VARIANT_COOPERATIVE) != 0) {", "if (true) {"),
        ("no launch has clusters", _LAUNCH, "!= 1) {\n        attributes", "!= 1 && false) {\n        attributes"),
        ("no shared memory", _LAUNCH, ".shared_bytes = variant->dynamic_shared_bytes,", ".shared_bytes = 0,"),
        ("one computed parameter for all", _LAUNCH, "aotci_plan_value(plan, value_count++);\n            break;\n        }\n    }", "aotci_plan_value(plan, 0 * value_count++);\n            break;\n        }\n    }"),
        ("computed parameters written over each other", "plan.c", "param, aotci_plan_value(plan, value_count++),", "param, aotci_plan_value(plan, 0 * value_count++),"),
        ("computed parameters of a plan are not kept", "plan.c", "(uint32_t)MAP_WORDS + value_count;", "(uint32_t)MAP_WORDS;"),
        ("a plan of another grid", "plan.c", "key->words[key->count++] = (uint64_t)desc->grid[i];", "key->words[key->count++] = 0;"),
        ("a plan of other values", "plan.c", "words[at++] = arg->as.bits;", "words[at++] = 0;"),
        ("a plan of another shape", "plan.c", "words[at++] = (uint64_t)tensor->shape[k];", "words[at++] = 0;"),
        ("a plan of other strides", "plan.c", "words[at++] = (uint64_t)tensor->strides[k];", "words[at++] = 0;"),
        ("maps of any strides", _MAP, "stride % alignment_bytes != 0) {", "false) {"),
        ("maps without extents", _MAP, "if (size < 1 || size > MAX_DIM) {", "if (size > MAX_DIM) {"),
        ("extents of maps without a limit", _MAP, "if (size < 1 || size > MAX_DIM) {", "if (size < 1) {"),
        ("strides of maps without a limit", _MAP, "stride >= MAX_STRIDE_BYTES || ", ""),
        ("a map's strides are its extents", _MAP, "map->strides[i - 1], &value", "map->dims[i], &value"),
        ("a rounded-up quotient is rounded down", "expression.c", "failure == NULL && other != 0;", "failure == NULL && other < 0;"),
        ("the least is the greatest", "expression.c", "*value = a < b ? a : b;", "*value = a > b ? a : b;"),
        ("and is or", "expression.c", "*value = a != 0 && b != 0;", "*value = a != 0 || b != 0;"),
    )
)  # fmt: skip


def build(mutation: NativeMutation | None, folder: Path, objects: Path) -> Path:
    """Compile the extension, optionally with a bug; `objects` holds the correct object files."""
    extension = tomli.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    (settings,) = (module for module in extension["ext-modules"] if module["name"] == _NAME)
    compiler = ["cc", "-O0", "-fPIC", "-w", *settings["extra-compile-args"]]
    include = [*settings["include-dirs"], "aotc/runtime", sysconfig.get_path("include")]
    flags = [f"-I{ROOT / path}" for path in include]
    linked: list[str] = []
    for source in map(Path, settings["sources"]):
        object_file = objects / f"{source.stem}.o"
        text = (ROOT / source).read_text()
        is_wrong = mutation is not None and source == Path("runtime_c/src", mutation.file)
        if mutation is not None and is_wrong:
            assert text.count(mutation.old) == 1, (
                f"{mutation.name}: {text.count(mutation.old)} places"
            )
            object_file = folder / f"{source.stem}.o"
            text = text.replace(mutation.old, mutation.new)
        if is_wrong or not object_file.exists():
            near = [f"-I{(ROOT / source).parent}"]
            subprocess.run(
                [*compiler, *near, *flags, "-x", "c", "-c", "-", "-o", str(object_file)],
                input=text.encode(),
                check=True,
            )
        linked.append(str(object_file))
    library = folder / f"native{sysconfig.get_config_var('EXT_SUFFIX')}"
    libraries = [f"-l{library}" for library in settings["libraries"]]
    subprocess.run(["cc", "-shared", *linked, "-o", str(library), *libraries], check=True)
    return library


def judge(library: Path) -> str:
    """Return the findings of a process with the runtime `library` on the kernels, or ""."""
    command = [sys.executable, "-m", "tests.support.mutations.native", "--judge", str(library)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if process.returncode:
        last = process.stderr.strip().splitlines()[-1:] or [f"exit {process.returncode}"]
        return f"crash: {last[0]}"
    return process.stdout.strip()


class _Finder(importlib.abc.MetaPathFinder):
    """Find the runtime in another library."""

    def __init__(self, library: str) -> None:
        self._library = library

    def find_spec(
        self, fullname: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return where the runtime is."""
        if fullname != _NAME:
            return None
        loader = importlib.machinery.ExtensionFileLoader(_NAME, self._library)
        return importlib.util.spec_from_file_location(_NAME, self._library, loader=loader)


def _verify_under(library: str) -> str:
    sys.meta_path.insert(0, _Finder(library))
    from aotc.package.verify.subjects import load_subjects
    from aotc.package.verify.variants import verify_variant

    for path, kernel, target in _KERNELS:
        for subject in load_subjects(str(ROOT / path), [kernel], [target]):
            for finding in verify_variant(subject).launches:
                if finding.status in ("wrong", "fault"):
                    return f"{kernel}: {finding.detail.splitlines()[0]}"
    return ""


def _chosen(words: Sequence[str]) -> Iterator[NativeMutation]:
    return (
        mutation
        for mutation in MUTATIONS
        if not words or any(word in mutation.name for word in words)
    )


def main(arguments: Sequence[str]) -> None:
    """Print the outcome of each bug."""
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("--judge", default="")
    options = parser.parse_args(arguments)
    if options.judge:
        sys.stdout.write(_verify_under(options.judge))
        return
    with tempfile.TemporaryDirectory() as name:
        objects = Path(name, "objects")
        objects.mkdir()
        assert judge(build(None, Path(name), objects)) == "", "the runtime is wrong as it is"
        outcomes: list[str] = []
        for mutation in _chosen(options.words):
            folder = Path(tempfile.mkdtemp(dir=name))
            outcomes.append(judge(build(mutation, folder, objects)))
            sys.stdout.write(f"{mutation.name}: {outcomes[-1] or 'MISSED'}\n")
            sys.stdout.flush()
        sys.stdout.write(f"{sum(map(bool, outcomes))} of {len(outcomes)} found\n")


if __name__ == "__main__":
    main(sys.argv[1:])
