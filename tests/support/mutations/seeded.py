"""Bugs at random seeded positions of the compiler's source, and the checks against them.

A place is an operator, a number, a condition or a call of a line run while ordinary kernels compile.
The compiler runs from a copy changed at that place. A bug is effective if it changes the PTX or the
launch metadata of a kernel. It is found if the compiler refuses a kernel or `verify` reports one.

`python -m tests.support.mutations.seeded --seed N --count 30` prints a line for each, and a table.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from aotc.compiler import PtxKernel, compile_ptx
from aotc.package.verify.subjects import Subject, load_subjects
from aotc.package.verify.variants import verify_variant

ROOT = Path(__file__).parents[3]
_PARTS = (
    "aotc/schedule",
    "aotc/backend",
    "aotc/package/builder/condition.py",
    "aotc/package/builder/assemble.py",
)
_LIMIT_S = 240
_KERNELS = (
    ("kernels.toml", "vector_add", "sm_80", "T=fp16 x_ptr:16"),
    ("kernels.toml", "vector_add", "sm_80", "T=fp16 -x_ptr:16"),
    ("kernels.toml", "softmax", "sm_80", "T=fp32 BLOCK=1024"),
    ("kernels.toml", "argmax_rows", "sm_80", "T=fp32"),
    ("kernels.toml", "cumsum_rows", "sm_80", "T=fp32"),
    ("kernels.toml", "transpose2d", "sm_80", "T=fp16 x_ptr:16"),
    ("kernels.toml", "rotary", "sm_80", "T=fp16 x_ptr:16"),
    ("kernels.toml", "layernorm", "sm_90a", "T=bf16 x_ptr:16 LOOP=true"),
    ("kernels/functions.toml", "average_pool", "sm_80", "T=u8"),
    ("kernels/functions.toml", "linear_recurrence", "sm_80", "T=fp32"),
    ("kernels/functions.toml", "route", "sm_80", "T=bf16 BLOCK=4"),
    ("kernels/matrix.toml", "histogram", "sm_80", ""),
    ("kernels/matrix.toml", "matmul", "sm_80", "T=fp16 BIAS=false BLOCK_M=64"),
    ("kernels/matrix.toml", "int8_matmul", "sm_80", "BLOCK_M=16"),
    ("kernels/matrix.toml", "matmul", "sm_90a", "T=bf16 BIAS=false BLOCK_M=128"),
    ("kernels/descriptors.toml", "transpose_blocks", "sm_90a", "T=bf16"),
    ("kernels/descriptors.toml", "scale_long_rows", "sm_90a", "T=bf16"),
    ("kernels/hopper.toml", "small_linear_split", "sm_90a", "EVEN=true"),
    ("kernels/hopper.toml", "persistent_matmul", "sm_90a", "T=fp16"),
    ("kernels/rows.toml", "softmax", "sm_90a", "T=bf16 num_ctas=8"),
    ("kernels/descriptors.toml", "matmul_descriptor", "sm_90a", "num_ctas=2"),
    ("kernels/cooperative.toml", "long_softmax", "sm_90a", ""),
)

Place = tuple[str, int, int]
"""A file, and which of its changes that can be made, by line and number."""


# ---- changes ----------------------------------------------------------------------------------

_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.FloorDiv: ast.Mult,
}
_LEFT_OUT = (ast.Raise, ast.Assert, ast.AnnAssign, ast.JoinedStr, ast.Import, ast.ImportFrom)
_LARGEST_NUMBER = 128


def _changes(node: ast.AST) -> Iterator[tuple[str, int, Callable[[], None]]]:
    """Yield possible changes of a tree: a description, its line, and a function to make it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _LEFT_OUT):
            continue
        yield from _changes_of(node, child)
        yield from _changes(child)


def _changes_of(parent: ast.AST, node: ast.AST) -> Iterator[tuple[str, int, Callable[[], None]]]:
    line = getattr(node, "lineno", 0)
    match node:
        case ast.BinOp() | ast.BoolOp() if type(node.op) in _SWAPPED:
            new: Any = _SWAPPED[type(node.op)]()
            yield _said(node.op, new), line, lambda: setattr(node, "op", new)
        case ast.Compare(ops=[op]) if type(op) in _SWAPPED:
            new = _SWAPPED[type(op)]()
            yield _said(op, new), line, lambda: setattr(node, "ops", [new])
        case ast.Constant(value=int(value)) if type(value) is int and value <= _LARGEST_NUMBER:
            yield f"{value} is {value + 1}", line, lambda: setattr(node, "value", value + 1)
        case ast.If() | ast.IfExp():
            wrong = ast.UnaryOp(ast.Not(), node.test)
            yield "condition flipped", line, lambda: setattr(node, "test", wrong)
        case ast.Expr(value=ast.Call()) if not isinstance(parent, ast.Module):
            null = ast.Constant(None)
            yield "call dropped", line, lambda: setattr(node, "value", null)
        case _:
            pass


def _said(old: ast.AST, new: ast.AST) -> str:
    return f"{type(old).__name__} is {type(new).__name__}"


# ---- places -----------------------------------------------------------------------------------


def _lines_run(subjects: Sequence[Subject]) -> dict[str, set[int]]:
    """Return the lines executed while subjects compile, by file."""
    run: dict[str, set[int]] = {}
    lines_of_code: dict[CodeType, set[int] | None] = {}
    prefixes = tuple(str(ROOT / part) for part in _PARTS)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if code not in lines_of_code:
            is_part = code.co_filename.startswith(prefixes)
            lines_of_code[code] = run.setdefault(code.co_filename, set()) if is_part else None
        lines = lines_of_code[code]
        if lines is None:
            return None
        if event == "line":
            lines.add(frame.f_lineno)
        return trace

    for subject in subjects:
        assert subject.request is not None
        sys.settrace(trace)
        try:
            compile_ptx(subject.request)
        finally:
            sys.settrace(None)
    return {os.path.relpath(file, ROOT): lines for file, lines in sorted(run.items())}


def _places(run: dict[str, set[int]]) -> list[Place]:
    places: list[Place] = []
    for file, lines in run.items():
        tree = ast.parse((ROOT / file).read_text())
        places += [
            (file, line, index)
            for index, (_, line, _) in enumerate(_changes(tree))
            if line in lines
        ]
    return places


def _change(location: Place, root: Path) -> str:
    """Change a place in a copy of the compiler; return a description."""
    file, line, index = location
    tree = ast.parse((ROOT / file).read_text())
    text, _, make = list(_changes(tree))[index]
    make()
    target = root / file
    target.unlink()
    target.write_text(ast.unparse(ast.fix_missing_locations(tree)))
    return f"{file}:{line}: {text}"


# ---- judging ----------------------------------------------------------------------------------


def _subjects() -> Iterator[Subject]:
    for path, kernel, target, parts in _KERNELS:
        for subject in load_subjects(str(ROOT / path), [kernel], [target]):
            label = subject.label.split()
            if all((word.lstrip("-") in label) != word.startswith("-") for word in parts.split()):
                yield subject
                break


def _told(kernel: PtxKernel) -> list[str]:
    """Return a kernel's program and the metadata for its launcher."""
    parts = (kernel.ptx, kernel.shared_bytes, kernel.params, kernel.guards, kernel.scratch_bytes)
    return [*map(str, parts), str(kernel.cooperative)]


def _judge(baseline: dict[str, list[str]]) -> str:
    """Return the outcome of the bug in this process's compiler: "no effect", "missed", or a kind."""
    is_effective = False
    for subject in _subjects():
        assert subject.request is not None
        try:
            if _told(compile_ptx(subject.request)) == baseline[subject.label]:
                continue
            is_effective = True
            failures = [
                f for f in verify_variant(subject).launches if f.status in ("wrong", "fault")
            ]
        except Exception as error:  # noqa: BLE001 - whatever the compiler says of itself
            return f"compiler ({type(error).__name__})"
        if failures:
            kind = failures[0].detail.partition(":")[0]
            return "mismatch" if failures[0].status == "wrong" else kind[:40]
    return "missed" if is_effective else "no effect"


def _judged(root: Path, baseline: Path) -> str:
    command = [sys.executable, "-m", "tests.support.mutations.seeded", "--judge", str(baseline)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    try:
        process = subprocess.run(
            command,
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "out of time"
    return process.stdout.strip() or f"compiler (exit {process.returncode})"


def _copied(folder: Path) -> Path:
    """Return a copy of the compiler's tree, made of links to files."""
    for name in ("aotc", "kernels", "tests/support"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, copy_function=os.symlink, ignore=ignored)
    (folder / "kernels.toml").symlink_to(ROOT / "kernels.toml")
    for name in ("tests", "tests/support"):
        (folder / name / "__init__.py").touch()
    return folder


def main(arguments: Sequence[str]) -> None:
    """Print the outcome of each bug, then a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--judge", default="")
    options = parser.parse_args(arguments)
    if options.judge:
        sys.stdout.write(_judge(json.loads(Path(options.judge).read_text())))
        return
    start = time.monotonic()
    subjects = list(_subjects())
    locations = _places(_lines_run(subjects))
    random.Random(options.seed).shuffle(locations)
    kinds: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        baseline = Path(name, "baseline.json")
        metadata = {
            s.label: _told(compile_ptx(s.request)) for s in subjects if s.request is not None
        }
        baseline.write_text(json.dumps(metadata))
        for number, location in enumerate(locations):
            effective = kinds.total() - kinds["no effect"] - kinds["out of time"]
            if effective == options.count or time.monotonic() - start > 60 * options.minutes:
                break
            root = _copied(Path(name, str(number)))
            text = _change(location, root)
            kind = _judged(root, baseline)
            kinds[kind] += 1
            sys.stdout.write(f"{kind:28} {text}\n")
            sys.stdout.flush()
            shutil.rmtree(root)
    sys.stdout.write("".join(f"{count:4} {kind}\n" for kind, count in sorted(kinds.items())))


if __name__ == "__main__":
    main(sys.argv[1:])
