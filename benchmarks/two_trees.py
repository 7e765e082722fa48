"""Compare the code of two states of aotc for the same kernels, interleaved in one process.

    python benchmarks/two_trees.py BEFORE [--after AFTER] [--jobs 2] [--only softmax …] [--json FILE]

BEFORE and AFTER are checkouts whose extension is built; AFTER is this one
by default. Each builds benchmarks/two_trees.toml with its own compiler, and its own loader opens
the archive, so their archive formats may differ. Months of compiler changes can so be compared
on one GPU, on the same data, at the same clocks. Both results are checked against torch in fp32
first. A ratio above 1 means AFTER is faster.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from peers import built, in_turn, of_turn, spread
from torch.nn import functional

ROOT = Path(__file__).parents[1]
MANIFEST = ROOT / "benchmarks" / "two_trees.toml"
NUM_ROWS, NUM_COLUMNS = 16384, 4096
BATCH, NUM_HEADS, LENGTH, HEAD_DIM = 4, 16, 4096, 128
EPS = 1e-6
L2_BYTES, MAX_SETS = 60 << 20, 8

Arguments = dict[str, Any]


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(torch.bfloat16)


def _linear(size: int = 8192) -> Arguments:
    a, b = _normal(size, size), _normal(size, size)
    sizes = dict.fromkeys("MNK", size)
    return {"a": a, "b": b, "c": torch.empty_like(a), **sizes}


def _matmul(size: int = 8192) -> Arguments:
    a, b = _normal(size, size), _normal(size, size)
    out = torch.empty_like(a)
    pointers = {"a_ptr": a, "b_ptr": b, "bias_ptr": out, "residual_ptr": out, "out_ptr": out}
    strides = dict.fromkeys(("stride_am", "stride_bk", "stride_om"), size)
    unit_strides = dict.fromkeys(("stride_ak", "stride_bn", "stride_on"), 1)
    return {**pointers, **dict.fromkeys("MNK", size), **strides, **unit_strides}


def _attention() -> Arguments:
    q, k, v = (_normal(BATCH * NUM_HEADS, LENGTH, HEAD_DIM) for _ in range(3))
    tensors = {"q": q, "k": k, "v": v, "out": torch.empty_like(q)}
    lengths = {"n_queries": LENGTH, "n_keys": LENGTH, "n_heads": NUM_HEADS, "heads_per_kv_head": 1}
    pointers = {f"{name}_ptr": tensor for name, tensor in tensors.items()}
    pointers["lse_ptr"] = torch.empty(q.shape[:2], device="cuda")
    steps = {"b": NUM_HEADS * LENGTH * HEAD_DIM, "h": LENGTH * HEAD_DIM}
    rows = {"q": "m", "k": "n", "v": "n", "o": "m"}
    strides = {f"stride_{t}{axis}": step for t in rows for axis, step in steps.items()}
    strides |= {f"stride_{t}{axis}": HEAD_DIM for t, axis in rows.items()}
    scale = HEAD_DIM**-0.5
    scales = {"scale": scale, "scale_log2": scale * math.log2(math.e)}
    return {**tensors, **pointers, **lengths, **strides, **scales}


def _rows() -> Arguments:
    x, y = _normal(NUM_ROWS, NUM_COLUMNS), _normal(NUM_ROWS, NUM_COLUMNS)
    sizes = {"n_rows": NUM_ROWS, "n_cols": NUM_COLUMNS, "stride": NUM_COLUMNS}
    weights = {"w_ptr": _normal(NUM_COLUMNS), "b_ptr": _normal(NUM_COLUMNS)}
    sums = {
        f"{name}_ptr": torch.empty(NUM_ROWS, device="cuda")
        for name in ("mean", "rstd", "loss", "lse")
    }
    target = torch.randint(0, NUM_COLUMNS, (NUM_ROWS,), device="cuda")
    operands = {"x_ptr": x, "y_ptr": y, "logits_ptr": x, "target_ptr": target}
    scalars = {"n_elements": x.numel(), "eps": EPS, "ignore_index": -100}
    return {**operands, "out_ptr": torch.empty_like(x), **weights, **sums, **sizes, **scalars}


def _heads(args: Arguments) -> torch.Tensor:
    q, k, v = (args[name].float() for name in "qkv")
    # Some heads are enough, and fp32 scores of all would not fit.
    return torch.softmax(q[:2] @ k[:2].mT * args["scale"], -1) @ v[:2]


def _layer_norm(args: Arguments) -> torch.Tensor:
    x, w, b = (args[name].float() for name in ("x_ptr", "w_ptr", "b_ptr"))
    return functional.layer_norm(x, (NUM_COLUMNS,), w, b, EPS)


# kernel: its arguments, the name of its result, and the expected result
WORK: dict[str, tuple[Callable[[], Arguments], str, Callable[[Arguments], torch.Tensor]]] = {
    "linear": (_linear, "c", lambda a: a["a"].float() @ a["b"].float().T),
    "matmul": (_matmul, "out_ptr", lambda a: a["a_ptr"].float() @ a["b_ptr"].float()),
    "attention": (_attention, "out", _heads),
    "attention_pointers": (_attention, "out", _heads),
    "vector_add": (_rows, "out_ptr", lambda a: a["x_ptr"].float() + a["y_ptr"].float()),
    "softmax": (_rows, "out_ptr", lambda a: torch.softmax(a["x_ptr"].float(), -1)),
    "cross_entropy": (
        _rows,
        "loss_ptr",
        lambda a: functional.cross_entropy(
            a["logits_ptr"].float(), a["target_ptr"], reduction="none"
        ),
    ),
    "rmsnorm": (
        _rows,
        "out_ptr",
        lambda a: functional.rms_norm(a["x_ptr"].float(), (NUM_COLUMNS,), a["w_ptr"].float(), EPS),
    ),
    "layernorm": (_rows, "out_ptr", _layer_norm),
}


def build(tree: Path, folder: Path, jobs: int) -> Path:
    """Build the manifest with the compiler of a tree; return the archive."""
    path = os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "aotc", "build", str(MANIFEST), "-o", str(folder)]
    command += ["-j", str(jobs), "--no-cache"]
    subprocess.run(
        command, check=True, cwd=tree, env={**os.environ, "PYTHONPATH": path}, stderr=sys.stderr
    )
    return folder / "two_trees.aotc"


class Tree:
    """A checkout, and its archive opened by its own loader.

    Both loaders have the same module names, and import some modules lazily. So code with such
    imports runs in `with tree.modules():`, where `aotc` is the tree's own.
    """

    def __init__(self, root: Path, folder: Path, jobs: int) -> None:
        self.root = root.resolve()
        self._modules: dict[str, ModuleType] = {}
        archive = build(self.root, folder, jobs)
        with self.modules():
            package = importlib.import_module("aotc")
            assert package.__file__ is not None
            assert Path(package.__file__).parents[1] == self.root, package.__file__
            self._library = package.load(archive)

    @contextmanager
    def modules(self) -> Generator[None]:
        """Make `aotc` mean this tree's package."""
        previous = _taken()
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self.root))
        try:
            yield
        finally:
            sys.path.remove(str(self.root))
            self._modules = _taken()
            sys.modules.update(previous)

    def configs(self, name: str) -> list[dict[str, object]]:
        """Return the configs of a kernel."""
        with self.modules():
            return built(self._library[name])

    def calls(
        self, name: str, config: dict[str, object], sets: Sequence[Arguments]
    ) -> list[Callable[[], None]]:
        """Return a launch of a kernel for each set of arguments; the first has run once."""
        with self.modules():
            kernel = self._library[name]
            names = [param.name for param in kernel.info.params]
            calls = [partial(kernel.launch, [s[n] for n in names], config=config) for s in sets]
            calls[0]()
        return calls


def _taken() -> dict[str, ModuleType]:
    """Remove all modules of aotc from the imported ones, and return them."""
    names = [name for name in sys.modules if name.partition(".")[0] == "aotc"]
    return {name: sys.modules.pop(name) for name in names}


def wrong(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Return how far a result is off, as a multiple of how far bf16 may be."""
    result = result[: len(expected)].float()
    bound = expected.abs() * 2**-7 + 0.02 * expected.square().mean().sqrt()
    return ((result - expected).abs() / bound).max().item()


def measure(name: str, trees: dict[str, Tree], rounds: int) -> list[dict[str, Any]]:
    """Time a kernel of both archives in turn, in each config; return a row for each."""
    make, out, exact = WORK[name]
    first = make()
    tensors = {v.data_ptr(): v for v in first.values() if isinstance(v, torch.Tensor)}
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    count = max(2, min(MAX_SETS, math.ceil(2.5 * L2_BYTES / nbytes)))
    sets = [first, *(make() for _ in range(count - 1))]
    expected = exact(first)
    rows: list[dict[str, Any]] = []
    for config in trees["after"].configs(name):
        turns = itertools.count()
        launches = {}
        for key, tree in trees.items():
            first[out].fill_(float("nan"))
            calls = tree.calls(name, config, sets)
            torch.cuda.synchronize()
            if (off := wrong(first[out], expected)) > 1:
                raise SystemExit(f"{name} {config}, {key}: wrong by {off:.3g} times the bound")
            launches[key] = of_turn(calls, turns)
        times = in_turn(launches, rounds, 1, ahead=True)
        row = {"kernel": name, "config": config}
        row |= {f"{key}_us": 1e3 * statistics.median(values) for key, values in times.items()}
        row["after_over_before"] = over = spread(times["before"], times["after"])
        rows.append(row)
        print(
            f"{name:20} before {row['before_us']:8.1f} us  after {row['after_us']:8.1f} us  "
            f"ratio {over['median']:.3f} ({over['low']:.3f}-{over['high']:.3f})  {config}",
            flush=True,
        )
    return rows


def main() -> None:
    """Build, open, measure, and print a line for each kernel and config."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("--after", type=Path, default=ROOT)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=401)
    parser.add_argument("--only", nargs="+", choices=list(WORK), default=list(WORK))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as made:
        trees = {
            name: Tree(root, Path(made) / name, options.jobs)
            for name, root in (("before", options.before), ("after", options.after))
        }
        rows = [row for name in options.only for row in measure(name, trees, options.rounds)]
    if options.json:
        device = torch.cuda.get_device_name()
        options.json.write_text(json.dumps({"device": device, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
