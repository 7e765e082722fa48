"""Decode over a paged cache against an equal-sized copy, Triton and torch, interleaved.

    aotc build benchmarks/decode.toml -o dist
    python benchmarks/decode.py dist/decode.aotc [--work gqa mla …] [--only 64x8192 …] [--no-triton]
        [--triton 'single pointers (16, 64, 4' …] [--serving FOLDER] [--parts]

aotc and Triton compile the same source file, and a launch is a split kernel and a combining
kernel. Each starts while the previous one still runs (PDL), except for MLA's splits. Triton also
tries gathering tokens through pointers. Both try a single kernel, in which the last split
combines. aotc also prefetches, and Triton has no equivalent. With a FOLDER of vLLM's and
SGLang's sources, their Triton kernels are peers too.

Each first picks its fastest configuration, split sizes included. Then the fastest ones, a copy
of as many bytes as the cache, and torch's attention on a dense copy of the cache run in turn.
Medians of rounds are compared. Every configuration is checked against float64 before it is
timed. Data are random, results are poisoned. Missing peers are left out.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from decode_work import LATENT, LOG2_E, MLA_SCALE, WORK, Shape, Tensors
from peers import Launch, built, in_turn, of_turn, ranked, ratio

ROOT = Path(__file__).parents[1]
ROUNDS, TRIALS, LAUNCHES = 41, 5, 3
# Candidates tried again after a first trial of all.
FINALISTS = 16
# CTAs of a launch: one or two for each of 132 SMs, or a few rounds of them.
PROGRAMS = (132, 264, 528, 1056)
DENSE_LIMIT = 20 << 30  # largest cache in bytes with a dense copy for torch
# BLOCK_H, BLOCK_N, warps, stages
TRITON_CONFIGS = {
    False: ((16, 64, 4, 2), (16, 64, 4, 3), (16, 128, 4, 2), (64, 64, 4, 2), (64, 64, 4, 3)),
    True: ((16, 32, 4, 2), (32, 32, 8, 2), (64, 32, 8, 2), (64, 64, 8, 2)),
}
TRITON_POINTER_CONFIGS = ((16, 64, 4, 2), (16, 64, 4, 3), (16, 128, 4, 2), (16, 32, 4, 4))
# Of a set of pages; the launches of a candidate go through the sets in turn.
OfSet = Callable[[int], Launch]


class Parts:
    """Partial results of splits, and the arguments of the combining kernel."""

    def __init__(self, tensors: Tensors, pages_per_split: int) -> None:
        import torch

        shape = tensors.shape
        extents = (shape.batch, shape.heads, -(-shape.max_pages // pages_per_split))
        self.part = torch.full((*extents, shape.out_dim), float("nan"), device=tensors.device)
        self.lse = torch.full(extents, float("nan"), device=tensors.device)
        numbers = (shape.batch, shape.heads, shape.max_pages, pages_per_split)
        self.combine = (self.part, self.lse, tensors.lengths, tensors.out, *numbers)
        counters = torch.zeros(shape.batch * shape.heads, dtype=torch.int32, device=tensors.device)
        self.single = [tensors.out, counters]


def split_arguments(tensors: Tensors, parts: Parts, pages_per_split: int, index: int) -> list[Any]:
    """Return the arguments of the split kernel for a set of pages."""
    shape = tensors.shape
    tables = [tensors.tables[index], tensors.lengths, parts.part, parts.lse]
    if shape.mla:
        described = [
            *(tensors.q[..., :LATENT], tensors.q[..., LATENT:]),
            *(tensors.cache[..., :LATENT], tensors.cache[..., LATENT:]),
        ]
        numbers = [shape.batch, shape.heads, shape.max_pages, pages_per_split]
        return [*described, *tables, MLA_SCALE * LOG2_E, *numbers]
    described = [tensors.q.view(shape.batch * shape.kv_heads, -1, shape.dim), tensors.k, tensors.v]
    numbers = [shape.batch, shape.heads, shape.kv_heads, shape.max_pages, pages_per_split]
    scales = [tensors.k_scale, tensors.v_scale] if shape.fp8 else []
    return [*described, *tables, shape.dim**-0.5 * LOG2_E, *numbers, *scales]


def aotc_candidates(
    tensors: Tensors,
    library: Any,
    *,
    splits: bool = True,
    combines: bool = True,
    pdl: bool = True,
) -> Iterator[tuple[str, OfSet]]:
    """Yield each configuration of the archive with each size of splits, as one or two kernels.

    In one kernel, the last split combines, or the splits of a cluster do so together.
    """
    single, cluster = (f"{tensors.shape.kernel}_{form}" for form in ("single", "cluster"))
    if splits and combines and single in library:
        yield from _single_candidates(tensors, library[single], pdl=pdl)
    if splits and combines and cluster in library:
        yield from _cluster_candidates(tensors, library[cluster], pdl=pdl)
    shape = tensors.shape
    kernel, combine = library[shape.kernel], library[f"combine_{shape.out_dim}"]
    choices = {"PAGE": shape.page}
    waits = pdl and all(variant.waits_pdl for variant in kernel.info.variants)
    sizes = sorted({tensors.splits(programs) for programs in PROGRAMS})
    for config, pages_per_split in itertools.product(built(kernel), sizes):
        # Poisoned partial results for each: a configuration must not read an earlier one's.
        parts = Parts(tensors, pages_per_split)

        def of_set(
            index: int, config=config, parts=parts, pages_per_split=pages_per_split
        ) -> Launch:
            arguments = split_arguments(tensors, parts, pages_per_split, index)

            def launch() -> None:
                if splits:
                    kernel.launch(arguments, config=config, pdl=waits)
                if combines:
                    combine.launch(parts.combine, choices=choices, pdl=pdl)

            return launch

        yield f"{config}, {pages_per_split} pages a split", of_set


def _single_candidates(tensors: Tensors, kernel: Any, *, pdl: bool) -> Iterator[tuple[str, OfSet]]:
    """Yield configurations with the last split combining."""
    sizes = sorted({tensors.splits(programs) for programs in PROGRAMS})
    for config, pages_per_split in itertools.product(built(kernel), sizes):
        parts = Parts(tensors, pages_per_split)

        def of_set(
            index: int, config=config, parts=parts, pages_per_split=pages_per_split
        ) -> Launch:
            arguments = split_arguments(tensors, parts, pages_per_split, index) + parts.single
            return lambda: kernel.launch(arguments, config=config, pdl=pdl)

        yield f"single {config}, {pages_per_split} pages a split", of_set


def _cluster_candidates(tensors: Tensors, kernel: Any, *, pdl: bool) -> Iterator[tuple[str, OfSet]]:
    """Yield configurations with a cluster's CTAs as splits, enough to fill the GPU or more."""
    shape = tensors.shape
    clusters = shape.batch * shape.kv_heads
    for config in built(kernel):
        num_ctas: Any = config["num_ctas"]
        if num_ctas > 2 and clusters * num_ctas >= 2 * max(PROGRAMS):
            continue

        def of_set(index: int, config=config) -> Launch:
            described = [tensors.q.view(shape.batch * shape.kv_heads, -1, shape.dim)]
            described += [tensors.k, tensors.v, tensors.tables[index], tensors.lengths, tensors.out]
            numbers = [shape.batch, shape.heads, shape.kv_heads, shape.max_pages]
            arguments = [*described, shape.dim**-0.5 * LOG2_E, *numbers]
            return lambda: kernel.launch(arguments, config=config, pdl=pdl)

        yield f"cluster {config}", of_set


def triton_candidates(
    tensors: Tensors, beginnings: tuple[str, ...] = ("",)
) -> Iterator[tuple[str, OfSet]]:
    """Yield the configurations Triton compiles, with each size of splits.

    Only names with one of the prefixes are tried.
    """
    if str(ROOT / "kernels") not in sys.path:
        sys.path.insert(0, str(ROOT / "kernels"))
    paged = importlib.import_module("paged_decode")
    shape = tensors.shape
    forms = [("descriptors", config) for config in TRITON_CONFIGS[shape.mla]]
    if not shape.mla:
        forms += [("single descriptors", config) for config in TRITON_CONFIGS[False]]
        for form in ("pointers", "single pointers"):
            forms += [(form, config) for config in TRITON_POINTER_CONFIGS]
    sizes = sorted({tensors.splits(programs) for programs in PROGRAMS})
    for (form, config), pages_per_split in itertools.product(forms, sizes):
        name = f"{form} {config}, {pages_per_split} pages a split"
        if (config[1] > shape.page and shape.mla) or not name.startswith(beginnings):
            continue
        parts = Parts(tensors, pages_per_split)

        def of_set(
            index: int, form=form, config=config, parts=parts, pages_per_split=pages_per_split
        ) -> Launch:
            split = _triton_split(form, tensors, parts, pages_per_split, index, config)
            if form.startswith("single"):
                return split

            def launch() -> None:
                split()
                paged.combine_splits_kernel[(shape.heads, shape.batch)](
                    *parts.combine,
                    HEAD_DIM=shape.out_dim, PAGE=shape.page, BLOCK_S=4096 // shape.out_dim,
                    PDL=True, launch_pdl=True,
                )  # fmt: skip

            return launch

        yield name, of_set


def held(candidates: Iterator[tuple[str, OfSet]]) -> Iterator[tuple[str, OfSet]]:
    """Yield the candidates Triton can launch."""
    for name, of_set in candidates:
        try:
            of_set(0)()
        except Exception as error:  # noqa: BLE001 - whatever Triton and the driver raise
            reason = str(error).strip().splitlines()[:1]
            print(f"    Triton: {name}: {type(error).__name__} {reason}", file=sys.stderr)
            continue
        yield name, of_set


def _triton_split(
    form: str,
    tensors: Tensors,
    parts: Parts,
    pages_per_split: int,
    index: int,
    config: tuple[int, int, int, int],
) -> Launch:
    """Return a launch of the split kernel by Triton, through descriptors or pointers."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    shape = tensors.shape
    block_h, block_n, warps, stages = config
    module = importlib.import_module("mla_decode" if shape.mla else "paged_decode")
    constants: dict[str, Any] = {"HEAD_DIM": shape.dim}
    heads = shape.kv_heads * -(-(shape.heads // shape.kv_heads) // block_h)
    rows = min(block_n, shape.page)
    boxes = [[1, block_h, shape.dim], *2 * [[1, 1, rows, shape.dim]]]
    if shape.mla:
        boxes = [[1, block, of] for block in (block_h, block_n) for of in (LATENT, 64)]
        constants = {"LATENT": LATENT, "ROPE": 64}
        heads = -(-shape.heads // block_h)
    arguments = split_arguments(tensors, parts, pages_per_split, index)
    if shape.fp8:
        # Scales are named: they come after the constants.
        constants |= {"k_scale_ptr": tensors.k_scale, "v_scale_ptr": tensors.v_scale}
        arguments = arguments[:-2]
    if form.startswith("single"):
        constants |= dict(zip(("out_ptr", "counter_ptr"), parts.single, strict=True))
    if form.endswith("descriptors"):
        name = "mla_decode_kernel" if shape.mla else "paged_decode_descriptor_kernel"
        arguments[: len(boxes)] = [
            TensorDescriptor.from_tensor(tensor, box)
            for tensor, box in zip(arguments[: len(boxes)], boxes, strict=True)
        ]
    else:
        name = "paged_decode_kernel"
        arguments += [stride for cache in (tensors.k, tensors.v) for stride in cache.stride()[:3]]
    kernel = getattr(module, name)
    grid = (heads, shape.batch, -(-shape.max_pages // pages_per_split))
    constants |= {"PAGE": shape.page, "BLOCK_H": block_h, "BLOCK_N": block_n, "PDL": True}
    options = {"num_warps": warps, "num_stages": stages, "launch_pdl": not shape.mla}
    return lambda: kernel[grid](*arguments, **constants, **options)


def copy_of_set(tensors: Tensors) -> OfSet:
    """Return copies reading and writing together as many bytes as a launch has to read."""
    import torch

    shape = tensors.shape
    whole = (tensors.cache if shape.mla else tensors.k).view(torch.uint8).view(-1)
    size = min(shape.read // 2, whole.numel() // shape.num_sets) // 16 * 16
    # Each set has its own target: one alone would stay in the L2.
    targets = torch.empty(shape.num_sets, size, dtype=torch.uint8, device=tensors.device)

    def of_set(index: int) -> Launch:
        source, target = whole[index * size : (index + 1) * size], targets[index]
        return lambda: target.copy_(source)

    return of_set


def torch_of_set(tensors: Tensors) -> OfSet | None:
    """Return torch's attention on dense copies of the sets, if it does the same work."""
    import torch

    shape = tensors.shape
    if shape.mla or shape.fp8 or shape.ragged or shape.read * shape.num_sets > DENSE_LIMIT:
        return None
    dense = [
        [
            torch.stack([tensors.tokens(cache, i, index) for i in range(shape.batch)])
            for cache in (tensors.k, tensors.v)
        ]
        for index in range(shape.num_sets)
    ]

    def of_set(index: int) -> Launch:
        k, v = dense[index]

        def launch() -> None:
            attended = torch.nn.functional.scaled_dot_product_attention(
                tensors.q[:, :, None], k, v, enable_gqa=shape.heads != shape.kv_heads
            )
            tensors.out = attended[:, :, 0]

        return launch

    return of_set


def chosen(
    peer: str, candidates: Mapping[str, OfSet], tensors: Tensors, turns: Iterator[int]
) -> tuple[str, Launch] | None:
    """Return the fastest of the correct candidates."""
    shape = tensors.shape
    right: dict[str, Launch] = {}
    for name, of_set in candidates.items():
        wrong = tensors.wrong(of_set(0))
        if wrong <= 1.0:
            right[name] = of_turn([of_set(index) for index in range(shape.num_sets)], turns)
        else:
            print(f"    {peer}: {name} is wrong by {wrong:.3g} of what is tolerated")
    if not right:
        return None
    if len(right) > FINALISTS:
        first = ranked(right, 1, LAUNCHES, ahead=True)
        right = {name: right[name] for _, name in first[:FINALISTS]}
    ranking = ranked(right, TRIALS, LAUNCHES, ahead=True)
    for took, name in ranking[:4]:
        print(f"    {peer:7} {shape.read / took / 1e9:6.3f} TB/s  {name}", flush=True)
    return ranking[0][1], right[ranking[0][1]]


def measure_parts(shape: Shape, library: Any) -> None:
    """Print times of the best configuration's kernels together and alone, launches in a row.

    Beside them are the best single-kernel configurations and a copy.
    """
    tensors, turns = Tensors(shape), itertools.count()
    candidates = dict(aotc_candidates(tensors, library))
    forms: dict[str, dict[str, OfSet]] = {"": {}, "single": {}, "cluster": {}}
    for name, of_set in candidates.items():
        form = name.split()[0]
        forms[form if form in forms else ""][name] = of_set
    best, *configs = (chosen("aotc", form, tensors, turns) for form in forms.values())
    if best is None:
        return
    copies = copy_of_set(tensors)
    peers = {"copy": of_turn([copies(index) for index in range(shape.num_sets)], turns)}
    for config, form in zip(configs, ("single", "cluster"), strict=True):
        if config is not None:
            peers[f"{form} with PDL"] = config[1]
    kinds = {"both": (True, True), "splits": (True, False), "combine": (False, True)}
    for (kind, (splits, combines)), pdl in itertools.product(kinds.items(), (True, False)):
        candidate = dict(
            aotc_candidates(tensors, library, splits=splits, combines=combines, pdl=pdl)
        )[best[0]]
        name = f"{kind}{' with PDL' if pdl else ''}"
        peers[name] = of_turn([candidate(index) for index in range(shape.num_sets)], turns)
    for launches in (1, LAUNCHES, 8):
        for name, values in in_turn(peers, ROUNDS, launches, ahead=True).items():
            took = statistics.median(values) * 1e3
            print(f"    {launches} in a row {took:8.2f} us  {name}", flush=True)


def measure(
    shape: Shape, library: Any, triton: tuple[str, ...], serving: Path | None = None
) -> dict[str, object]:
    """Return the row of a workload, with Triton's configurations by name prefix."""
    import torch

    tensors, turns = Tensors(shape), itertools.count()
    launches: dict[str, dict[str, OfSet]] = {"aotc": dict(aotc_candidates(tensors, library))}
    if triton:
        launches["triton"] = dict(held(triton_candidates(tensors, triton)))
    if serving is not None:
        launches["serving"] = dict(
            held(importlib.import_module("decode_serving").candidates(tensors))
        )
    dense = torch_of_set(tensors)
    if dense is not None:
        launches["torch"] = {"scaled_dot_product_attention": dense}
    peers: dict[str, Launch] = {}
    configs: dict[str, str] = {}
    for peer, candidates in launches.items():
        best = chosen(peer, candidates, tensors, turns)
        if best is not None:
            configs[f"{peer}_config"], peers[peer] = best
    copies = copy_of_set(tensors)
    peers["copy"] = of_turn([copies(index) for index in range(shape.num_sets)], turns)
    times = in_turn(peers, ROUNDS, LAUNCHES, ahead=True)
    row: dict[str, object] = {"work": shape.name, "bytes": shape.read}
    for name, values in times.items():
        row[f"{name}_tb_s"] = shape.read / statistics.median(values) / 1e9
        if name != "aotc" and "aotc" in times:
            row[f"over_{name}"] = ratio(values, times["aotc"])
    if shape.mla and "aotc" in times:
        row["aotc_tflops"] = shape.flops / statistics.median(times["aotc"]) / 1e9
    torch.cuda.empty_cache()
    return {**row, **configs}


def line(row: Mapping[str, object]) -> str:
    """Return a row as it is printed."""
    parts = [
        f"{key.removesuffix('_tb_s')} {value:6.3f}"
        for key, value in row.items()
        if key.endswith("_tb_s")
    ]
    parts += [
        f"{key.replace('_', ' ')} {value:.3f}" for key, value in row.items() if "over_" in key
    ]
    if "aotc_tflops" in row:
        parts.append(f"{row['aotc_tflops']:.0f} TFLOP/s")
    return f"{row['work']:32} {'  '.join(parts)}"


def has_triton() -> bool:
    """Return whether Triton is installed, with host-side descriptors."""
    try:
        return importlib.util.find_spec("triton.tools.tensor_descriptor") is not None
    except ImportError:
        return False


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--work", nargs="+", choices=WORK, default=list(WORK))
    parser.add_argument(
        "--only", nargs="+", default=[""], help="names of rows begin with one of these"
    )
    parser.add_argument("--no-triton", action="store_true")
    parser.add_argument(
        "--triton", nargs="+", default=[""], help="configurations of Triton begin with one of these"
    )
    parser.add_argument(
        "--serving", type=Path, help="a folder with vllm and sglang, whose kernels are a peer"
    )
    parser.add_argument("--parts", action="store_true", help="time kernels alone, without peers")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def main() -> int:
    """Measure, print rows in TB/s of the cache, and write them as JSON."""
    options = options_of()
    os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp())
    import torch

    import aotc

    library = aotc.load(options.archive)
    with_triton = not options.no_triton and has_triton()
    if options.serving:
        importlib.import_module("decode_serving").stand_in(options.serving)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton: {with_triton}")
    rows: list[dict[str, object]] = []
    for shape in itertools.chain.from_iterable(WORK[name] for name in options.work):
        if not shape.name.startswith(tuple(options.only)):
            continue
        if options.parts:
            print(shape.name)
            measure_parts(shape, library)
            continue
        try:
            chosen_triton = tuple(options.triton) if with_triton else ()
            row = measure(shape, library, chosen_triton, options.serving)
        except torch.cuda.OutOfMemoryError:
            print(f"{shape.name:32} does not fit the GPU's memory", flush=True)
            continue
        rows.append(row)
        print(line(row), flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
