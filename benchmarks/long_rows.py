"""Rows of 1k to 256k columns, each by a cluster of 1 to 8 CTAs, against a copy, Triton and torch.

    aotc build benchmarks/long_rows.toml -o dist
    python benchmarks/long_rows.py dist/long_rows.aotc [--work softmax …] [--columns 4096 …] [--no-triton]
        [--liger FOLDER] [--json FILE]

aotc and Triton compile the same sources of kernels/, one program instance for each row. Triton
has one CTA for a row, and 4 to 32 warps. Every configuration is checked against float64 on some
rows before it is timed, over a poisoned result. The fastest of each, a copy of as many bytes and
torch's own function run in turn, on bf16 operands larger than the L2; ratios are medians of
rounds. With FOLDER, liger_kernel's cross-entropy is a peer, launched by its own function under
Triton: it stores gradients over the logits. The loss alone only reads, so its ratio to the copy
is one of rates.
"""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from peers import Launch, built, in_turn, of_turn, ratio
from row_table import Config, fastest, parser, tabulate

ROOT = Path(__file__).parents[1]
ELEMENTS = 1 << 27
SETS = 2
ROUNDS, TRIALS, LAUNCHES = 41, 7, 3
COLUMNS = (1024, 4096, 16384, 32768, 65536, 131072, 262144)
EPS = 1e-6
# Elements per thread under Triton with fewer than 32 warps; more of them spill and compile for
# minutes.
MAX_HELD = 128
LOOP_BLOCKS = (4096, 8192, 16384)
ALWAYS_LOOPS = ("cross_entropy",)
LIGER_BLOCK, LIGER_WARPS = 32768, 32


@dataclass(frozen=True)
class Work:
    """A kernel, its source, and its vectors of weights and statistics.

    Arguments are rows, weights, the result, statistics, and numbers.
    """

    file: str
    weights: int = 0
    statistics: int = 0
    has_loop: bool = True
    accesses: int = 2
    """How often a row's elements are read or written."""

    def arguments(self, rows: int, columns: int) -> list[Any]:
        """Return random operands, and room for results."""
        import torch

        def random(*shape: int) -> Any:
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

        x = random(rows, columns)
        weights = [random(columns) for _ in range(self.weights)]
        statistics = [torch.empty(rows, device="cuda") for _ in range(self.statistics)]
        eps = [EPS] if self.weights else []
        return [x, *weights, torch.empty_like(x), *statistics, columns, rows, columns, *eps]

    def weights_of(self, arguments: list[Any]) -> list[Any]:
        """Return the arguments between rows and the result."""
        return arguments[1 : 1 + self.weights]

    def out(self, arguments: list[Any]) -> Any:
        """Return the result among the arguments."""
        return arguments[1 + self.weights]


@dataclass(frozen=True)
class Gradient(Work):
    """Cross-entropy and its gradient: targets stand in the place of weights, one of each row."""

    def arguments(self, rows: int, columns: int) -> list[Any]:
        """Return random logits and targets; the loss is the mean over rows."""
        import torch

        x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
        target = torch.randint(columns, (rows,), device="cuda")
        statistics = [torch.empty(rows, device="cuda") for _ in range(self.statistics)]
        return [x, target, torch.empty_like(x), *statistics, columns, rows, columns, -100, 1 / rows]


@dataclass(frozen=True)
class Loss(Gradient):
    """Cross-entropy alone: the loss of every row and its log-sum-exp."""

    def arguments(self, rows: int, columns: int) -> list[Any]:
        """Return random logits and targets, and room for the results."""
        x, target, _, *rest = super().arguments(rows, columns)
        return [x, target, *rest[:-1]]

    def out(self, arguments: list[Any]) -> Any:
        """Return the losses among the arguments."""
        return arguments[2]


WORK = {
    "softmax": Work("softmax.py"),
    "rmsnorm": Work("norm.py", weights=1),
    "layernorm": Work("norm.py", weights=2, statistics=2),
    "cross_entropy": Loss("softmax.py", weights=1, statistics=2, accesses=1),
    "cross_entropy_grad": Gradient("softmax.py", weights=1, statistics=2, has_loop=False),
}


def by_torch(name: str, x: Any, weights: list[Any]) -> Any:
    """Return torch's own function of rows, of any dtype."""
    from torch.nn import functional

    if name == "softmax":
        return functional.softmax(x, -1)
    if name == "cross_entropy":
        return functional.cross_entropy(x, *weights, reduction="none")
    if name == "cross_entropy_grad":
        import torch

        logits = x.detach().requires_grad_()
        return torch.autograd.grad(functional.cross_entropy(logits, *weights), logits)[0]
    normalize = functional.rms_norm if name == "rmsnorm" else functional.layer_norm
    return normalize(x, x.shape[-1:], *weights, eps=EPS)


def serves(config: Config, columns: int, *, always_loops: bool = False) -> bool:
    """Return whether a config fits rows of a length: a block held in registers is the whole row."""
    if always_loops:
        return config["BLOCK"] <= columns
    return config["BLOCK"] < columns if config.get("LOOP") else config["BLOCK"] == columns


def triton_configs(
    columns: int, *, has_loop: bool = True, always_loops: bool = False
) -> Iterator[Config]:
    """Yield configs with one block for a row within the register limit, and with loops over it."""
    if always_loops:
        for block, warps in itertools.product(LOOP_BLOCKS, (4, 8, 16, 32)):
            if block <= columns and block <= 64 * 32 * warps:
                yield {"BLOCK": block, "num_warps": warps}
        return
    choice = {"LOOP": False} if has_loop else {}
    for warps in (4, 8, 16, 32):
        if warps == 32 or columns <= MAX_HELD * 32 * warps:
            yield {"BLOCK": columns, **choice, "num_warps": warps}
    if not has_loop:
        return
    for block, warps in itertools.product(LOOP_BLOCKS, (4, 8, 16, 32)):
        if block < columns and block <= 64 * 32 * warps:
            yield {"BLOCK": block, "LOOP": True, "num_warps": warps}


def problem(name: str, launch: Callable[[], object], arguments: list[Any]) -> str:
    """Return the error in a launch's result, if any: some rows against float64."""
    import torch

    work = WORK[name]
    x, weights, out = arguments[0], work.weights_of(arguments), work.out(arguments)
    out.fill_(float("nan"))
    launch()
    if out.isnan().any():
        return "parts of the result are not written"
    rows = torch.linspace(0, x.shape[0] - 1, 8).long().cuda()
    if isinstance(work, Loss):
        actual, expected = out[rows].double(), by_torch(name, x[rows].double(), [weights[0][rows]])
        wrong = (actual - expected).abs() > 1e-5 * expected.abs() + 1e-5
        return f"{int(wrong.sum())} losses are wrong" if wrong.any() else ""
    if isinstance(work, Gradient):
        expected = by_torch(name, x[rows].double(), [weights[0][rows]]) * (len(rows) / len(x))
    else:
        expected = by_torch(name, x[rows].double(), [weight.double() for weight in weights])
    slack = 1e-3 * float(expected.abs().median())
    wrong = (out[rows].double() - expected).abs() > 2**-7 * expected.abs() + slack
    return f"{int(wrong.sum())} elements are wrong" if wrong.any() else ""


def aotc_candidates(name: str, kernel: Any, columns: int) -> Iterator[tuple[Config, Any]]:
    """Yield the archive's launches for rows of a length."""
    for config in built(kernel):
        if serves(config, columns, always_loops=name in ALWAYS_LOOPS):
            yield (
                config,
                lambda args, config=config: lambda: kernel.launch(tuple(args), config=config),
            )


def triton_candidates(name: str, rows: int, columns: int) -> Iterator[tuple[Config, Any]]:
    """Yield Triton's launches of the same source; none without Triton."""
    if importlib.util.find_spec("triton") is None:
        return
    path = ROOT / "kernels" / WORK[name].file
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, f"{name}_kernel")
    looped = {"has_loop": WORK[name].has_loop, "always_loops": name in ALWAYS_LOOPS}
    for config in triton_configs(columns, **looped):
        yield (
            config,
            lambda args, config=config: lambda: function[(rows,)](*args, **config),
        )


def liger(name: str, arguments: list[Any]) -> Launch:
    """Return a launch of Liger's kernel as its own function has it, on logits of its own."""
    import torch
    from liger_kernel.ops.cross_entropy import (  # pyright: ignore[reportMissingImports]
        liger_cross_entropy_kernel,
    )

    x, target = arguments[0].clone(), arguments[1]
    (rows, columns), loss = x.shape, torch.zeros(len(x), device="cuda", dtype=x.dtype)
    gives_gradients = name == "cross_entropy_grad"
    constants = {"RETURN_Z_LOSS": False, "RETURN_TOKEN_ACCURACY": False}
    constants |= {"RETURN_PREDICTED_TOKENS": False, "HAS_WEIGHT": False, "HAS_SOFTCAPPING": False}

    def launch() -> None:
        liger_cross_entropy_kernel[(rows,)](
            X_ptr=x,
            X_stride=columns,
            Y_ptr=target,
            Y_stride=1,
            weight_ptr=None,
            loss_ptr=loss,
            z_loss_ptr=None,
            loss_stride=1,
            token_accuracy_ptr=None,
            token_accuracy_stride=0,
            predicted_tokens_ptr=None,
            predicted_tokens_stride=0,
            n_cols=columns,
            n_non_ignore=rows,
            sum_non_ignore_weight=rows,
            weight_sum=0.0,
            ignore_index=-100,
            lse_square_scale=0.0,
            label_smoothing=0.0,
            reduction="mean" if gives_gradients else "none",
            softcap=None,
            BLOCK_SIZE=min(LIGER_BLOCK, columns),
            HAS_GRADIENTS=gives_gradients,
            num_warps=LIGER_WARPS,
            **constants,
        )

    return launch


def measure(
    library: Any, name: str, columns: int, *, has_triton: bool, has_liger: bool
) -> dict[str, Any]:
    """Choose each peer's best, run them in turn, and return the row."""
    work, rows = WORK[name], ELEMENTS // columns
    sets = [work.arguments(rows, columns) for _ in range(SETS)]
    print(f"{name} {rows}x{columns}", flush=True)
    best = partial(
        fastest, problem=partial(problem, name), sets=sets, trials=TRIALS, launches=LAUNCHES
    )
    chosen = {"aotc": best(aotc_candidates(name, library[name], columns))}
    if has_triton:
        chosen["triton"] = best(triton_candidates(name, rows, columns))
    fastest_of = {peer: choice for peer, choice in chosen.items() if choice}
    turns = itertools.count()
    copied = [work.out(args) if work.accesses == 2 else args[0].clone() for args in sets]
    pairs = zip(copied, sets, strict=True)
    copies = [lambda args=args, out=out: out.copy_(args[0]) for out, args in pairs]
    torch_launches = [
        lambda args=args: by_torch(name, args[0], work.weights_of(args)) for args in sets
    ]
    peers = {peer: launch for peer, (_, launch) in fastest_of.items()}
    peers |= {"torch": of_turn(torch_launches, turns), "copy": of_turn(copies, turns)}
    if has_liger and isinstance(work, Gradient):
        peers["liger"] = of_turn([liger(name, args) for args in sets], turns)
    for launch in peers.values():
        launch()
    times = in_turn(peers, ROUNDS, LAUNCHES, ahead=True)
    num_bytes = {peer: 2 * ELEMENTS * (2 if peer == "copy" else work.accesses) for peer in times}
    return {
        "work": f"{name} {rows}x{columns}",
        "tb_s": {
            peer: num_bytes[peer] / statistics.median(samples) / 1e9
            for peer, samples in times.items()
        },
        "over": {
            peer: ratio(samples, times["aotc"]) * num_bytes["aotc"] / num_bytes[peer]
            for peer, samples in times.items()
            if "aotc" in times and peer != "aotc"
        },
        "configs": {peer: key for peer, (key, _) in fastest_of.items()},
    }


def main() -> int:
    """Measure the requested work."""
    import torch

    import aotc

    options_parser = parser(__doc__, WORK, COLUMNS)
    options_parser.add_argument("--liger", type=Path)
    options = options_parser.parse_args()
    if options.liger:
        sys.path.insert(0, str(options.liger))
    torch.manual_seed(0)
    library = aotc.load(options.archive)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    peers = {"has_triton": not options.no_triton, "has_liger": bool(options.liger)}
    rows = (
        measure(library, name, columns, **peers)
        for name, columns in itertools.product(options.work, options.columns)
        if any(aotc_candidates(name, library[name], columns))
    )
    tabulate(rows, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
