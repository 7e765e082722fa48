"""Memory bandwidth of launches only reading as many bytes as a decode of one sequence.

    aotc build benchmarks/read_pages.toml -o dist
    python benchmarks/read_pages.py dist/read_pages.aotc [--lengths 8192 …]

The cache is decode.py's, in pages in any order or in sequence, copied by TMA as decode does.
Then its keys alone are one tensor of as many bytes, loaded by threads. Launches in a row read
different bytes, and start while the previous one ends (PDL). Every configuration runs in turn
with a copy reading and writing as many bytes; the fastest of each kind are printed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from decode import PROGRAMS, OfSet, copy_of_set
from decode_work import Shape, Tensors
from peers import Launch, built, of_turn, ranked

ROUNDS = 9
# Programs of the kernel with loads by threads: some for each of 132 SMs.
THREAD_PROGRAMS = (132, 264, 528, 1056)


def page_candidates(tensors: Tensors, library: Any, kind: str) -> Iterator[tuple[str, OfSet]]:
    """Yield launches copying pages, by the block table or in sequence."""
    import torch

    shape, kernel = tensors.shape, library["read_pages"]
    tables = tensors.tables
    if kind == "in order":
        tables = torch.sort(tables.flatten()).values.view(tables.shape)
    for config, programs in itertools.product(built(kernel), PROGRAMS):
        splits = tensors.splits(programs)
        sums = torch.empty(shape.kv_heads * shape.max_pages, device=tensors.device)
        numbers = (shape.kv_heads, shape.max_pages, splits)

        def of_set(index: int, config=config, sums=sums, numbers=numbers) -> Launch:
            arguments = [tensors.k, tensors.v, tables[index, 0], sums, *numbers]
            return lambda: kernel.launch(arguments, config=config, pdl=True)

        yield f"pages {kind} {config}, {splits} pages a split", of_set


def row_candidates(tensors: Tensors, library: Any) -> Iterator[tuple[str, OfSet]]:
    """Yield launches loading as many contiguous bytes by threads."""
    import torch

    shape, kernel = tensors.shape, library["read_rows"]
    whole = tensors.k.view(torch.int32).view(-1)
    elems = shape.read // 4
    sums = torch.empty(max(THREAD_PROGRAMS), dtype=torch.int32, device=tensors.device)
    for config, programs in itertools.product(built(kernel), THREAD_PROGRAMS):

        def of_set(index: int, config=config, programs=programs) -> Launch:
            start = index % (whole.numel() // elems) * elems
            part = whole[start : start + elems]
            arguments = [part, sums, elems // int(config["BLOCK"]), programs]
            return lambda: kernel.launch(arguments, config=config, pdl=True)

        yield f"rows {config}, {programs} programs", of_set


def main() -> int:
    """Print launch times, 1, 3 and 8 in a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--lengths", nargs="+", type=int, default=[8192])
    options = parser.parse_args()
    import torch

    import aotc

    library = aotc.load(options.archive)
    print(torch.cuda.get_device_name())
    for length in options.lengths:
        shape = Shape(1, length)
        tensors, turns = Tensors(shape), itertools.count()
        kinds = {
            "pages in any order": page_candidates(tensors, library, "in any order"),
            "pages in order": page_candidates(tensors, library, "in order"),
            "rows": row_candidates(tensors, library),
        }
        copies = copy_of_set(tensors)
        sets = range(shape.num_sets)
        peers = {"copy": of_turn([copies(index) for index in sets], turns)}
        for candidates in kinds.values():
            for name, of_set in candidates:
                peers[name] = of_turn([of_set(index) for index in sets], turns)
        for launches in (1, 3, 8):
            ranking = ranked(peers, ROUNDS, launches, ahead=True)
            for kind in ("copy", *kinds):
                took, name = next(
                    candidate for candidate in ranking if candidate[1].startswith(kind)
                )
                rate = shape.read / took / 1e9
                print(
                    f"{shape.name}, {launches} in a row: {took * 1e3:6.2f} us {rate:.2f} TB/s {name}"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
