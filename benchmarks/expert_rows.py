"""Products of rows grouped by expert, masked and contiguous, against Triton and dense products.

    aotc build benchmarks/expert_rows.toml -o dist
    python benchmarks/expert_rows.py dist/expert_rows.aotc [--no-triton] [--json FILE]

aotc and Triton compile the same source, `kernels/grouped_experts.py`. The dense rate is for the
same kernel with one group of all rows, beside cuBLAS on as many. Each peer picks its fastest
configuration, checked against float64, then these run in turn. Padding rows do not count. Data
are random, results are poisoned.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from peers import Launch, built, rates_in_turn, triton_holds

KERNELS = Path(__file__).parents[1] / "kernels"
ROUNDS, TRIALS, LAUNCHES = 31, 3, 3
BLOCK = 128
# Groups, rows of each on average, N and K.
SIZES = ((16, 512, 4096, 4096), (64, 128, 4096, 4096))
DENSE = (1, 8192, 4096, 4096)
KINDS = ("masked", "contiguous")
# BLOCK_N, warps, stages
TRITON_CONFIGS = ((128, 4, 4), (128, 8, 4), (256, 8, 3))

Candidates = Iterator[tuple[str, Launch]]


class Experts:
    """The operands of groups; masked ones have room for half as many rows again, or none to spare."""

    def __init__(self, kind: str, groups: int, rows: int, n: int, k: int) -> None:
        import torch

        self.kind, self.n, self.k = kind, n, k
        low = rows if groups == 1 else rows // 2
        counts = torch.randint(low, 2 * rows - low + 1, (groups,))
        if kind == "contiguous":
            counts = (counts + BLOCK // 2) // BLOCK * BLOCK
            self.room, owners = int(counts.sum()), torch.arange(groups).repeat_interleave(counts)
        else:
            self.room, owners = -(-int(counts.max()) // BLOCK) * BLOCK, counts
        shape = (self.room,) if kind == "contiguous" else (groups, self.room)
        make = {"device": "cuda", "dtype": torch.bfloat16}
        self.a, self.b = torch.randn(*shape, k, **make), torch.randn(groups, n, k, **make)
        self.c, self.counts = torch.empty(*shape, n, **make), counts.tolist()
        self.owners = owners.to("cuda", torch.int32)
        self.num_sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.flop = 2 * sum(self.counts) * n * k

    @property
    def kernel(self) -> str:
        """The name of the kernel."""
        return f"{self.kind}_grouped_gemm"

    def scalars(self) -> dict[str, int]:
        """Return the integer arguments."""
        if self.kind == "contiguous":
            return {"M": self.room, "N": self.n, "K": self.k}
        sizes = {"n_groups": len(self.counts), "N": self.n, "K": self.k}
        return {**sizes, "n_programs": self.num_sms}

    def arguments(self) -> list[Any]:
        """Return the arguments of the kernel."""
        return [self.a, self.b, self.c, self.owners, *self.scalars().values()]

    def grid(self, block_n: int) -> tuple[int]:
        """Return the number of programs."""
        if self.kind == "masked":
            return (self.num_sms,)
        return (-(-self.room // BLOCK) * -(-self.n // block_n),)

    def parts(self) -> Iterator[tuple[int, Any, Any]]:
        """Yield each group with its rows of A and of C."""
        start = 0
        for group, count in enumerate(self.counts):
            if self.kind == "masked":
                yield group, self.a[group, :count], self.c[group, :count]
            else:
                yield group, self.a[start : start + count], self.c[start : start + count]
            start += count

    def check(self, name: str, launch: Launch) -> bool:
        """Return whether a launch is right, over poisoned results."""
        self.c.fill_(float("nan"))
        launch()
        for group, a, c in self.parts():
            expected = a.double() @ self.b[group].double().T
            error = (c.double() - expected).abs().max() / expected.abs().max()
            if not error < 2**-8:
                print(f"    {name} is wrong by {error:.3g} of the largest result", file=sys.stderr)
                return False
        return True


def aotc_candidates(experts: Experts, library: Any) -> Candidates:
    """Yield a launch of each configuration of the archive."""
    kernel = library[experts.kernel]
    for config in built(kernel):

        def launch(config=config) -> None:
            kernel.launch(experts.arguments(), config=config)

        yield str(config), launch


def triton_candidates(experts: Experts) -> Candidates:
    """Yield a launch of each configuration Triton compiles."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    sys.path.insert(0, str(KERNELS))
    import grouped_experts as kernels

    kernel = getattr(kernels, f"{experts.kernel}_kernel")
    masked, last = experts.kind == "masked", experts.arguments()[3:]
    for block_n, warps, stages in TRITON_CONFIGS:
        blocks = {"BLOCK_M": BLOCK, "BLOCK_N": block_n, "BLOCK_K": 64}
        shapes = [(BLOCK, 64), (1, block_n, 64), (BLOCK, block_n)]
        if masked:
            shapes = [(1, BLOCK, 64), (1, block_n, 64), (1, BLOCK, block_n)]
        operands = (experts.a, experts.b, experts.c)
        maps = [
            TensorDescriptor.from_tensor(operand, list(shape))
            for operand, shape in zip(operands, shapes, strict=True)
        ]
        blocks |= {"EPILOGUE_N": block_n} if masked else {"GROUP_M": 8}

        def launch(blocks=blocks, maps=maps, options=(warps, stages)) -> None:
            grid = experts.grid(blocks["BLOCK_N"])
            kernel[grid](*maps, *last, **blocks, num_warps=options[0], num_stages=options[1])

        name = f"{blocks}, {warps} warps, {stages} stages"
        if triton_holds(name, launch):
            yield name, launch


def cublas_candidates(experts: Experts) -> Candidates:
    """Yield a product by cuBLAS for each group, one after the other."""
    import torch

    def launch() -> None:
        for group, a, c in experts.parts():
            torch.mm(a, experts.b[group].T, out=c)

    yield "torch.mm", launch


def measure(
    experts: Experts, candidates: dict[str, Callable[[Experts], Candidates]]
) -> dict[str, object]:
    """Return the row of some groups: TFLOP/s of each peer, and how much faster aotc is."""
    size = (len(experts.counts), sum(experts.counts), experts.n, experts.k)
    print(
        f"{experts.kind}: {size[0]} groups, {size[1]} rows, N = {size[2]}, K = {size[3]}",
        flush=True,
    )
    right = {
        peer: {label: launch for label, launch in of(experts) if experts.check(label, launch)}
        for peer, of in candidates.items()
    }
    rates = rates_in_turn(right, experts.flop, trials=TRIALS, rounds=ROUNDS, launches=LAUNCHES)
    return {"kind": experts.kind, "groups": size[0], "rows": size[1], **rates}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive")
    parser.add_argument("--no-triton", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    import torch

    import aotc

    torch.manual_seed(0)
    library = aotc.load(options.archive)
    candidates: dict[str, Callable[[Experts], Candidates]] = {
        "aotc": lambda experts: aotc_candidates(experts, library),
        "triton": triton_candidates,
        "cublas": cublas_candidates,
    }
    if options.no_triton:
        del candidates["triton"]
    rows = [
        measure(Experts(kind, *size), candidates)
        for kind, size in itertools.product(KINDS, (*SIZES, DENSE))
    ]
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
