"""Grouped GEMM with groups of different M, N, K and strides, against Triton and cuBLAS calls.

    aotc build benchmarks/grouped_gemm.toml -o dist
    python benchmarks/grouped_gemm.py dist/grouped_gemm.aotc [--groups N] [--no-triton] [--rows N,…]
        [--as-given] [--json FILE]

aotc and Triton compile the same source, `kernels/grouped_gemm.py`, with tensor maps of a group
made in the kernel; both get scratch memory for them. A launch is two kernels: the first sorts
the groups by K, unless they are computed `--as-given`. Each peer picks its fastest configuration
first. Then these and cuBLAS run in turn, and ratios are taken round by round. The same runs on
one large group, for the kernel's rate on a dense product. Every configuration is checked against
float64 before it is timed. Data are random, results are poisoned.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from peers import Launch, built, rates_in_turn, triton_holds

KERNELS = Path(__file__).parents[1] / "kernels"
ROUNDS, TRIALS, LAUNCHES = 41, 5, 3
# Rows of the second one do not begin at multiples of 128 bytes, as most of the groups' do not.
DENSE = (((8192, 8192, 4096),), ((8192, 8192, 4104),))
# BLOCK_N, warps, stages
TRITON_CONFIGS = ((128, 4, 4), (128, 8, 4), (256, 8, 3))
# How many programs go through the tiles, for each SM.
PROGRAMS = (1, 2)
ORDERED = 64  # groups sorted by one of Triton's programs

Size = tuple[int, int, int]


def sizes_of_groups(count: int, multiple: int = 8) -> Sequence[Size]:
    """Return M, N and K of groups: rows of any number, the others multiples of 8 or of another one."""
    dice = random.Random(count)
    sizes: list[Size] = []
    for _ in range(count):
        m, n, k = dice.randint(64, 2048), 8 * dice.randint(64, 512), 8 * dice.randint(64, 512)
        sizes.append((m, -(-n // multiple) * multiple, -(-k // multiple) * multiple))
    return sizes


class Groups:
    """The operands of all groups, their addresses in memory, and how products are checked."""

    def __init__(self, sizes: Sequence[Size]) -> None:
        import torch

        self.sizes = sizes
        padding = 0 if all(k % 64 == 0 for _, _, k in sizes) else 8
        self.a = [self._rows(m, k, padding * (index % 3)) for index, (m, _, k) in enumerate(sizes)]
        self.b = [self._rows(n, k, 0) for _, n, k in sizes]
        self.c = [self._rows(m, n, padding * (index % 2)) for index, (m, n, _) in enumerate(sizes)]
        kinds = (self.a, self.b, self.c)
        self.pointers = [
            torch.tensor([tensor.data_ptr() for tensor in kind], dtype=torch.int64, device="cuda")
            for kind in kinds
        ]
        strides = [[kind[index].stride(0) for kind in kinds] for index in range(len(sizes))]
        self.numbers = [
            torch.tensor(values, dtype=torch.int32, device="cuda") for values in (sizes, strides)
        ]
        self.order = torch.arange(len(sizes), dtype=torch.int32, device="cuda")
        self.num_sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.flop = sum(2 * m * n * k for m, n, k in sizes)

    @staticmethod
    def _rows(rows: int, columns: int, padding: int) -> Any:
        import torch

        tensor = torch.randn(rows, columns + padding, device="cuda", dtype=torch.bfloat16)
        return tensor[:, :columns]

    def arguments(self, programs: int, num_ctas: int = 1) -> list[Any]:
        """Return the arguments of the kernel, for so many programs of some CTAs on as many SMs."""
        num_programs = programs * (self.num_sms // num_ctas)
        return [*self.pointers, *self.numbers, self.order, len(self.sizes), num_programs]

    @property
    def to_order(self) -> list[Any]:
        """The arguments of the sorting kernel."""
        return [self.numbers[0], self.order, len(self.sizes)]

    def check(self, name: str, launch: Launch) -> bool:
        """Return whether a launch is right, over poisoned results."""
        for tensor in self.c:
            tensor.fill_(float("nan"))
        launch()
        for a, b, c in zip(self.a, self.b, self.c, strict=True):
            expected = a.double() @ b.double().T
            # bf16 rounds to 2^-9 of a value; sums of products have a smaller error of their size.
            error = (c.double() - expected).abs().max() / expected.abs().max()
            if not error < 2**-8:
                print(f"    {name} is wrong by {error:.3g} of the largest result", file=sys.stderr)
                return False
        return True


def aotc_candidates(
    groups: Groups, archive: str, *, as_given: bool
) -> Iterator[tuple[str, Launch]]:
    """Yield a launch of each configuration of the archive."""
    import torch

    import aotc

    library = aotc.load(archive)
    kernel, order = library["grouped_gemm"], library["order_groups"]
    for config, programs in itertools.product(built(kernel), PROGRAMS):
        arguments = groups.arguments(programs, int(config.get("num_ctas", 1)))
        size = kernel.select(arguments, config=config).scratch_bytes
        memory = torch.empty(size, dtype=torch.uint8, device="cuda")

        def launch(config=config, arguments=arguments, memory=memory) -> None:
            scratch = memory.data_ptr(), memory.numel()
            if not as_given:
                order.launch(groups.to_order)
            kernel.launch(arguments, config=config, scratch=scratch)

        yield f"{config}, {programs} programs an SM", launch


def triton_candidates(groups: Groups, *, as_given: bool) -> Iterator[tuple[str, Launch]]:
    """Yield a launch of each configuration Triton compiles."""
    import torch
    import triton

    sys.path.insert(0, str(KERNELS))
    # This script's folder comes after.
    from grouped_gemm import grouped_gemm_kernel, order_groups_kernel

    triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device="cuda"))
    for (block_n, warps, stages), programs in itertools.product(TRITON_CONFIGS, PROGRAMS):
        blocks = {"BLOCK_M": 128, "BLOCK_N": block_n, "BLOCK_K": 64, "EPILOGUE_N": block_n}

        def launch(blocks=blocks, options=(warps, stages), programs=programs) -> None:
            if not as_given:
                grid = (triton.cdiv(len(groups.sizes), ORDERED),)
                order_groups_kernel[grid](*groups.to_order, BLOCK=ORDERED)
            grouped_gemm_kernel[(programs * groups.num_sms,)](
                *groups.arguments(programs), **blocks, num_warps=options[0], num_stages=options[1]
            )

        name = f"{blocks}, {warps} warps, {stages} stages, {programs} programs an SM"
        if triton_holds(name, launch):
            yield name, launch


def cublas_candidates(groups: Groups) -> Iterator[tuple[str, Launch]]:
    """Yield a product by cuBLAS for each group, one after the other."""
    import torch

    def launch() -> None:
        for a, b, c in zip(groups.a, groups.b, groups.c, strict=True):
            torch.mm(a, b.T, out=c)

    yield "torch.mm", launch


def measure(
    sizes: Sequence[Size],
    candidates: dict[str, Callable[[Groups], Iterator[tuple[str, Launch]]]],
) -> dict[str, object]:
    """Return the row of some groups: TFLOP/s of each peer, and how much faster aotc is."""
    groups = Groups(sizes)
    name = f"{len(sizes)} groups, {groups.flop / 1e12:.2f} TFLOP, first {sizes[0]}"
    print(name, flush=True)
    right = {
        peer: {label: launch for label, launch in of_groups(groups) if groups.check(label, launch)}
        for peer, of_groups in candidates.items()
    }
    rates = rates_in_turn(right, groups.flop, trials=TRIALS, rounds=ROUNDS, launches=LAUNCHES)
    return {"groups": len(sizes), "first": sizes[0], **rates}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("archive")
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--no-triton", action="store_true")
    parser.add_argument("--rows", help="the numbers of the rows that are measured, from 0")
    parser.add_argument("--as-given", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    as_given: bool = options.as_given
    candidates: dict[str, Callable[[Groups], Iterator[tuple[str, Launch]]]] = {
        "aotc": lambda groups: aotc_candidates(groups, options.archive, as_given=as_given),
        "triton": lambda groups: triton_candidates(groups, as_given=as_given),
        "cublas": cublas_candidates,
    }
    if options.no_triton:
        del candidates["triton"]
    option_sizes = sizes_of_groups(options.groups)
    of_lines = sizes_of_groups(options.groups, 64)
    works: list[Sequence[Size]] = [option_sizes, of_lines, *DENSE]
    chosen = range(len(works)) if options.rows is None else map(int, options.rows.split(","))
    rows = [measure(works[number], candidates) for number in chosen]
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
