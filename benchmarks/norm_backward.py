"""Gradients of RMSNorm and LayerNorm, bf16 rows of 4k to 16k columns, against torch.compile, Triton and a copy.

    aotc build benchmarks/norm_backward.toml -o dist
    python benchmarks/norm_backward.py dist/norm_backward.aotc [--work rmsnorm …] [--columns 4096 …] [--no-triton]
        [--json FILE]

A pass is two launches: persistent programs compute the rows' gradients and partial sums of the
weights' gradients, then a second kernel adds these up; LayerNorm has three. Triton runs the same
source. torch.compile has its backward pass timed alone. Each is checked against float64 before
it is timed. The fastest of each and a copy run in turn on operands larger than the L2. Rates are
of three times the rows; ratios are medians of rounds, and of rates for the copy.
"""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from peers import Launch, built, in_turn, of_turn, ratio
from row_table import Config, fastest, parser, tabulate

ROOT = Path(__file__).parents[1]
ELEMENTS = 1 << 27
SETS = 2
ROUNDS, TRIALS, LAUNCHES = 41, 5, 3
COLUMNS = (4096, 8192, 16384)
WORK = ("rmsnorm", "layernorm")
PER_SM = (1, 2, 4)
EPS = 1e-6
SUMS = {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4}


class Operands:
    """Random rows, their gradients, weights and statistics, and room for results."""

    def __init__(self, name: str, rows: int, columns: int, programs: int) -> None:
        import torch

        def random(*shape: int) -> Any:
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

        self.name, self.rows, self.columns = name, rows, columns
        self.x, self.dy, self.w, self.b = (
            random(*shape) for shape in ((rows, columns), (rows, columns), (columns,), (columns,))
        )
        self.found: tuple[Any, ...] = ()
        self.dx = torch.empty_like(self.x)
        self.partial = torch.empty(2, programs, columns, device="cuda")
        self.sums = torch.empty(2, columns, device="cuda", dtype=torch.bfloat16)
        parts = [self._statistics(part) for part in self.x.split(1024)]
        self.statistics = [
            torch.cat(parts_of_operand) for parts_of_operand in zip(*parts, strict=True)
        ]

    def _statistics(self, x: Any) -> list[Any]:
        wide = x.double()
        mean = wide.mean(1) if self.name == "layernorm" else wide.new_zeros(len(x))
        rstd = ((wide - mean[:, None]).square().mean(1) + EPS).rsqrt()
        return [mean.float(), rstd.float()] if self.name == "layernorm" else [rstd.float()]

    @property
    def grads(self) -> int:
        """Number of vectors with gradients: weights, and biases of a LayerNorm."""
        return 2 if self.name == "layernorm" else 1

    def rows_arguments(self, programs: int) -> list[Any]:
        """Return the arguments of the launch for the rows."""
        partial = list(self.partial[: self.grads])
        numbers = [self.columns, self.rows, self.columns, programs]
        return [self.dy, self.x, self.w, *self.statistics, self.dx, *partial, *numbers]

    def sums_arguments(self, programs: int) -> list[list[Any]]:
        """Return the arguments of the launches adding up the programs' partial sums."""
        ends = zip(self.partial[: self.grads], self.sums, strict=False)
        return [[partial, out, programs, self.columns] for partial, out in ends]

    @cached_property
    def expected(self) -> tuple[Any, Any, list[Any]]:
        """Return some rows, their gradients in float64, and the sums over all rows."""
        import torch

        mean = self.statistics[0] if self.grads == 2 else torch.zeros_like(self.statistics[0])
        rstd = self.statistics[-1]
        sums = [torch.zeros(self.columns, device="cuda", dtype=torch.float64) for _ in range(2)]
        for start in range(0, self.rows, 1024):
            part = slice(start, start + 1024)
            dy = self.dy[part].double()
            x_hat = (self.x[part].double() - mean[part, None].double()) * rstd[part, None].double()
            sums[0] += (dy * x_hat).sum(0)
            sums[1] += dy.sum(0)
        rows = torch.linspace(0, self.rows - 1, 16).long().cuda()
        x_hat = (self.x[rows].double() - mean[rows, None].double()) * rstd[rows, None].double()
        wdy = self.dy[rows].double() * self.w.double()
        dx = wdy - x_hat * (wdy * x_hat).mean(1, keepdim=True)
        if self.grads == 2:
            dx -= wdy.mean(1, keepdim=True)
        return rows, dx * rstd[rows, None].double(), sums[: self.grads]


def problem(launch: Callable[[], object], operands: Operands) -> str:
    """Return the error in a pass's results, if any."""
    operands.dx.fill_(float("nan"))
    operands.partial.fill_(float("nan"))
    operands.sums.fill_(float("nan"))
    launch()
    rows, dx, sums = operands.expected
    gradients = [operands.dx[rows].double(), *operands.sums[: operands.grads].double()]
    for actual, expected in zip(gradients, [dx, *sums], strict=True):
        slack = 2**-7 * expected.abs() + 2e-3 * float(expected.abs().median())
        wrong = ~((actual - expected).abs() <= slack)
        if wrong.any():
            return f"{int(wrong.sum())} elements are wrong"
    return "parts of the result are not written" if operands.dx.isnan().any() else ""


def aotc_candidates(
    library: Any, name: str, columns: int, counts: list[int]
) -> Iterator[tuple[Config, Any]]:
    """Yield the archive's passes for rows of a length, with each number of programs."""
    kernel, sums = library[f"{name}_backward"], library["partial_sums"]

    def bind(config: Config, programs: int, operands: Operands) -> Launch:
        rows = tuple(operands.rows_arguments(programs))
        ends = [tuple(args) for args in operands.sums_arguments(programs)]

        def launch() -> None:
            kernel.launch(rows, config=config)
            for args in ends:
                sums(*args)

        return launch

    for config, programs in itertools.product(built(kernel), counts):
        if config["BLOCK"] == columns:
            yield (
                {**config, "programs": programs},
                lambda args, config=config, programs=programs: bind(config, programs, args),
            )


def triton_candidates(name: str, columns: int, counts: list[int]) -> Iterator[tuple[Config, Any]]:
    """Yield Triton's passes from the same source; none without Triton."""
    if importlib.util.find_spec("triton") is None:
        return
    path = ROOT / "kernels" / "norm_backward.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel, sums = getattr(module, f"{name}_backward_kernel"), module.partial_sums_kernel

    def bind(config: Config, programs: int, operands: Operands) -> Launch:
        rows, ends = operands.rows_arguments(programs), operands.sums_arguments(programs)

        def launch() -> None:
            kernel[(programs,)](*rows, **config)
            for args in ends:
                sums[(-(-columns // SUMS["BLOCK_N"]),)](*args, **SUMS)

        return launch

    for warps, stages, programs in itertools.product((4, 8, 16, 32), (1, 2), counts):
        if columns <= 2048 * warps:
            config = {"BLOCK": columns, "STAGES": stages, "num_warps": warps}
            yield (
                {**config, "programs": programs},
                lambda args, config=config, programs=programs: bind(config, programs, args),
            )


def compiled(name: str, sets: list[Operands]) -> list[Launch]:
    """Return torch.compile's backward passes of torch's norm, one for each set of operands."""
    import torch
    from torch.nn import functional

    def forward(x: Any, w: Any, b: Any) -> Any:
        if name == "layernorm":
            return functional.layer_norm(x, x.shape[-1:], w, b, EPS)
        return functional.rms_norm(x, x.shape[-1:], w, EPS)

    torch._dynamo.reset()  # noqa: SLF001 - else shapes that were seen become symbols
    function = torch.compile(forward)

    def bind(operands: Operands) -> Launch:
        inputs = [
            tensor.detach().requires_grad_() for tensor in (operands.x, operands.w, operands.b)
        ]
        out, differentiated = function(*inputs), inputs[: 1 + operands.grads]

        def launch() -> None:
            operands.found = torch.autograd.grad(
                out, differentiated, operands.dy, retain_graph=True
            )

        return launch

    return [bind(operands_of_set) for operands_of_set in sets]


def check_compiled(launch: Launch, operands: Operands) -> None:
    """Check torch's gradients against float64 as well."""

    def run() -> None:
        launch()
        dx, *sums = operands.found
        operands.dx.copy_(dx)
        for out, gradient in zip(operands.sums, sums, strict=False):
            out.copy_(gradient)

    trouble = problem(run, operands)
    print(f"    torch.compile: {trouble or 'right'}", flush=True)


def measure(library: Any, name: str, columns: int, *, has_triton: bool) -> dict[str, Any]:
    """Choose each peer's best, run them in turn, and return the row."""
    import torch

    rows = ELEMENTS // columns
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    counts = [sms * per_sm for per_sm in PER_SM]
    sets = [Operands(name, rows, columns, counts[-1]) for _ in range(SETS)]
    print(f"{name} {rows}x{columns}", flush=True)
    best = partial(fastest, problem=problem, sets=sets, trials=TRIALS, launches=LAUNCHES)
    chosen = {"aotc": best(aotc_candidates(library, name, columns, counts))}
    if has_triton:
        chosen["triton"] = best(triton_candidates(name, columns, counts[:2]))
    best_of = {peer: choice for peer, choice in chosen.items() if choice}
    turns = itertools.count()
    peers = {peer: launch for peer, (_, launch) in best_of.items()}
    torch_launches = compiled(name, sets)
    check_compiled(torch_launches[0], sets[0])
    peers["torch.compile"] = of_turn(torch_launches, turns)
    peers["copy"] = of_turn(
        [lambda operands=operands: operands.dx.copy_(operands.x) for operands in sets], turns
    )
    for launch in peers.values():
        launch()
    times = in_turn(peers, ROUNDS, LAUNCHES, ahead=True)
    num_bytes = {peer: (2 if peer == "copy" else 3) * ELEMENTS * 2 for peer in times}
    rates = {
        peer: num_bytes[peer] / statistics.median(samples) / 1e9 for peer, samples in times.items()
    }
    over = {
        peer: ratio(samples, times["aotc"]) for peer, samples in times.items() if peer != "aotc"
    }
    return {
        "work": f"{name} {rows}x{columns}",
        "tb_s": rates,
        "over": over | {"copy": rates["aotc"] / rates["copy"]},
        "configs": {peer: key for peer, (key, _) in best_of.items()},
    }


def main() -> int:
    """Measure the requested work."""
    import torch

    import aotc

    options = parser(__doc__, WORK, COLUMNS).parse_args()
    torch.manual_seed(0)
    library = aotc.load(options.archive)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    rows = (
        measure(library, name, columns, has_triton=not options.no_triton)
        for name, columns in itertools.product(options.work, options.columns)
    )
    tabulate(rows, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
