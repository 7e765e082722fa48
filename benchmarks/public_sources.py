"""Kernels of public libraries, unchanged, by aotc and by Triton, interleaved in one process.

    python benchmarks/public_sources.py FOLDER [--work prefill chunk …] [--json FILE] [-j N] [--lock FILE]

FOLDER holds unpacked sources: `sglang` (0.4.9), `fla` (flash-linear-attention 0.6.0), `vllm`
(0.33.0), `flash_attn` (2.8.3), and `triton_tutorials/fused_attention.py`, Triton's tutorial 06
before it had descriptors. Archives are built of the manifests in `public/`, put beside them. A
work is one kernel or several in a row, as the library launches them. aotc and Triton take turns
with the fastest of the manifest's configurations, each checked against float64 before it is
timed. A configuration that fails for one peer stays available to the other. Triton compiles all
of them at once, in separate processes. Data are random, results are poisoned.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import public_attention
import public_fla
import public_sglang
import public_vllm
from peers import Launch, built, in_turn, ranked, ratio
from public_work import Step, Values, Work
from triton_ahead import begin, jit_function, workers

# Apart from manifests with sources in this repository.
MANIFESTS = Path(__file__).parent / "public"
LIBRARIES = ("sglang", "fla", "vllm", "flash_attn", "triton_tutorials")
ROUNDS, TRIALS, LAUNCHES = 31, 5, 3
# Config keys without an equivalent in Triton.
OWN_KEYS = ("mma_stages", "persistent", "warp_specialize", "maxnreg", "num_consumer_groups")


@dataclass(frozen=True)
class Source:
    """The works of one name: their manifest, its kernels, and their builder."""

    manifest: str
    kernels: tuple[str, ...]
    works: Callable[[], Iterator[Work]]


SOURCES = {
    "prefill": Source("public_sources", ("sglang_prefill",), public_sglang.prefill),
    "extend": Source("public_sources", ("sglang_extend",), public_sglang.extend),
    "decode": Source(
        "public_sources", ("sglang_decode", "sglang_decode_combine"), public_sglang.decode
    ),
    "mla": Source("public_sources", ("sglang_mla", "sglang_mla_combine"), public_sglang.mla),
    "attention": Source("public_sources", ("fla_attention",), public_fla.attention),
    "chunk": Source("public_sources", ("fla_chunk_h", "fla_chunk_o"), public_fla.chunk),
    "tutorial": Source("attention", ("tutorial_forward",), public_attention.tutorial),
    "tutorial_backward": Source(
        "attention",
        ("tutorial_backward_sums", "tutorial_backward"),
        public_attention.tutorial_backward,
    ),
    "flash": Source("attention", ("flash_forward",), public_attention.flash),
    "vllm_prefill": Source("vllm", ("vllm_prefill",), public_vllm.prefill),
    "vllm_unified": Source("vllm", ("vllm_unified",), public_vllm.unified),
    "vllm_unified_decode": Source(
        "vllm", ("vllm_unified_split", "vllm_segments"), public_vllm.unified_decode
    ),
    "vllm_decode": Source("vllm", ("vllm_decode", "vllm_decode_combine"), public_vllm.decode),
    "vllm_mla": Source("vllm", ("vllm_mla", "vllm_mla_combine"), public_vllm.mla),
    "vllm_paged": Source("vllm", ("vllm_paged",), public_vllm.paged),
    "vllm_prefix": Source("vllm", ("vllm_prefix",), public_vllm.prefix),
}


# ---- peers --------------------------------------------------------------------------------------


def archive_of(
    folder: Path,
    kernels: Sequence[str],
    jobs: int,
    manifest: Path,
    libraries: Sequence[str] = LIBRARIES,
) -> Path:
    """Build a manifest's kernels of the sources in a folder; return the archive."""
    folder_copy = Path(tempfile.mkdtemp())
    for name in libraries:
        (folder_copy / name).symlink_to((folder / name).resolve())
    (folder_copy / manifest.name).write_bytes(manifest.read_bytes())
    words = [sys.executable, "-m", "aotc", "build", manifest.name, "-o", "dist", "-j", str(jobs)]
    kernel_options = itertools.chain.from_iterable(("--kernel", kernel) for kernel in kernels)
    subprocess.run([*words, "--no-lineinfo", *kernel_options], cwd=folder_copy, check=True)
    return folder_copy / "dist" / f"{manifest.stem}.aotc"


def aotc_launch(step: Step, library: Any, config: Values) -> Launch:
    """Return a launch from the archive."""
    kernel = library[step.kernel]
    arguments = [step.values[param.name] for param in kernel.info.params]
    choices = {name: step.constants[name] for name in kernel.info.choices}
    grid = step.grid({**step.constants, **config})
    return lambda: kernel.launch(arguments, grid=grid, config=config, choices=choices)


def triton_launch(step: Step, config: Values) -> Launch:
    """Return a launch by Triton of the function below its decorators."""
    function = jit_function(step.module, step.function)
    kernel_args = {**step.values, **step.constants, **config}
    grid = step.grid(kernel_args)
    return lambda: function[grid](**kernel_args)


def compiled_ahead(
    pool: ProcessPoolExecutor, work: Work, configs: Sequence[Sequence[Values]]
) -> list[Future[None]]:
    """Begin Triton's compiles of a work; a failed compile raises when it is launched."""
    return [
        begin(pool, step.module, step.function, {**step.values, **step.constants, **step_config})
        for step, configs_of_step in zip(work.steps, configs, strict=True)
        for step_config in configs_of_step
    ]


def chosen(
    peer: str,
    work: Work,
    launch_of: Callable[[Step, Values], Launch],
    configs: Sequence[list[Values]],
) -> tuple[Launch, str] | None:
    """Return a peer's launch of a work with each kernel's fastest correct configuration."""
    best: list[tuple[str, Launch]] = []
    for number, step in enumerate(work.steps):
        right: dict[str, Launch] = {}
        for config in configs[number]:
            name = " ".join(f"{key}={value}" for key, value in config.items())
            try:
                own_launch = launch_of(step, config)
                before = [launch for _, launch in best]
                later = [
                    launch_of(other, configs[number + 1 + offset][0])
                    for offset, other in enumerate(work.steps[number + 1 :])
                ]
                error = work.error_of(in_a_row([*before, own_launch, *later]))
            except Exception as problem:  # noqa: BLE001 - a configuration that a peer cannot hold
                reason = str(problem).strip()[:80]
                print(f"    {peer} {name}: {type(problem).__name__} {reason}", flush=True)
                continue
            if error <= 1.0:
                right[name] = own_launch
            else:
                print(f"    {peer} {name} is wrong by {error:.3g} of what is tolerated", flush=True)
        ranking = ranked(right, TRIALS, LAUNCHES, ahead=True)
        if not ranking:
            return None
        for took, name in ranking[:3]:
            print(f"    {peer:7} {took * 1e3:8.1f} us  {step.kernel} {name}", flush=True)
        best.append((ranking[0][1], right[ranking[0][1]]))
    return in_a_row([launch for _, launch in best]), " | ".join(name for name, _ in best)


def in_a_row(parts: Sequence[Launch]) -> Launch:
    """Return a launch of several, one after the other."""

    def launch() -> None:
        for part in parts:
            part()

    return launch


def measure(work: Work, library: Any) -> dict[str, object]:
    """Return the row of a work."""
    configs: list[list[Values]] = []
    for step in work.steps:
        kernel = library[step.kernel]
        choices = {name: step.constants[name] for name in kernel.info.choices}
        configs.append(list(built(kernel, choices)))
    plain = plain_configs(work, library)
    best_by_peer = {
        "aotc": chosen(
            "aotc", work, lambda step, config: aotc_launch(step, library, config), configs
        ),
        "triton": chosen("triton", work, triton_launch, plain),
    }
    row: dict[str, object] = {"work": work.name}
    peers: dict[str, Launch] = {}
    for peer, best in best_by_peer.items():
        if best is not None:
            peers[peer], row[f"{peer}_config"] = best
    times = in_turn(peers, ROUNDS, LAUNCHES, ahead=True)
    for peer, values in times.items():
        row[f"{peer}_us"] = statistics.median(values) * 1e3
        row[f"{peer}_tflops"] = work.flops / statistics.median(values) / 1e9
    if len(times) == len(best_by_peer):
        row["over_triton"] = ratio(times["triton"], times["aotc"])
    return row


def plain_configs(work: Work, library: Any) -> list[list[Values]]:
    """Return Triton's configurations of each kernel of a work, also the ones aotc left out."""
    return [
        without_own_keys([dict(config) for config in library[step.kernel].info.configs])
        for step in work.steps
    ]


def without_own_keys(configs: Sequence[Values]) -> list[Values]:
    """Return distinct configurations without the keys Triton lacks."""
    plain = [{k: v for k, v in config.items() if k not in OWN_KEYS} for config in configs]
    return list({str(config): config for config in plain}.values())


@contextlib.contextmanager
def exclusive(lock: Path | None) -> Iterator[None]:
    """Lock the GPU against programs with the same file; others may compile meanwhile."""
    if lock is None:
        yield
        return
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def stand_in(names: Sequence[str]) -> None:
    """Replace the libraries' imports beside their kernels by stand-ins."""
    if any(SOURCES[name].kernels[0].startswith("sglang") for name in names):
        importlib.import_module("library_sglang")
    if any(SOURCES[name].manifest == "vllm" for name in names):
        public_vllm.stand_in()


def measured(
    sources: Mapping[str, Source],
    archives: Mapping[str, Path],
    pool: ProcessPoolExecutor,
    lock: Path | None,
) -> Iterator[dict[str, object]]:
    """Yield the row of each work, in the requested order."""
    stand_in(list(sources))
    import torch

    import aotc

    libraries = {name: aotc.load(archive) for name, archive in archives.items()}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    begun: list[tuple[Work, Any, list[Future[None]]]] = []
    for name, source in sources.items():
        library = libraries[source.manifest]
        try:
            for work in source.works():
                compiles = compiled_ahead(pool, work, plain_configs(work, library))
                begun.append((work, library, compiles))
        except Exception as problem:  # noqa: BLE001 - other works are to have their turn
            print(f"{name}: {type(problem).__name__} {problem}", flush=True)
    while begun:
        work, library, compiles = begun.pop(0)
        wait(compiles)
        try:
            with exclusive(lock):
                row = measure(work, library)
        except Exception as problem:  # noqa: BLE001 - as above
            print(f"{work.name}: {type(problem).__name__} {problem}", flush=True)
        else:
            yield row


def main() -> int:
    """Build, measure, print rows, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--lock", type=Path, help="a file that is locked while a work is timed")
    parser.add_argument("--archives", type=Path, help="a folder that they were built in before")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp())
    sources = {name: SOURCES[name] for name in options.work}
    kernels: dict[str, list[str]] = {}
    for source in sources.values():
        kernels.setdefault(source.manifest, []).extend(source.kernels)
    archives = {
        name: options.archives / f"{name}.aotc"
        if options.archives
        else archive_of(options.folder, kernel_names, options.jobs, MANIFESTS / f"{name}.toml")
        for name, kernel_names in kernels.items()
    }
    sys.path.insert(0, str(options.folder))
    rows: list[dict[str, object]] = []
    with workers(max(1, options.jobs - 2), functools.partial(stand_in, options.work)) as pool:
        for row in measured(sources, archives, pool, options.lock):
            rows.append(row)
            parts = [
                f"{key.replace('_', ' ')} {value:.3f}"
                for key, value in row.items()
                if isinstance(value, float)
            ]
            print(f"{row['work']:32} {'  '.join(parts)}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
