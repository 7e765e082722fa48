"""Kernels of public libraries, unchanged, by aotc and by Triton, interleaved in one process.

    python benchmarks/public_sources.py FOLDER [--work prefill chunk …] [--json FILE] [-j N]

FOLDER holds unpacked sources: `sglang` (0.4.9) and `fla` (flash-linear-attention). Archives are built of
`public/public_sources.toml` beside them. A work is one kernel or several in a row, as the library
launches them; aotc and Triton take turns with the best of the same configurations, which are those of
the manifest, each held against float64 before it is timed. Data are random, results are poisoned.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers import Launch, built, in_turn, ranked, ratio

ROOT = Path(__file__).parents[1]
# Apart from manifests whose sources are here.
MANIFEST = Path(__file__).parent / "public" / "public_sources.toml"
LIBRARIES = ("sglang", "fla")
ROUNDS, TRIALS, LAUNCHES = 31, 5, 3
TOLERANCE = 1e-2
# Of aotc alone: what Triton has no word for.
OWN_KEYS = ("mma_stages", "persistent", "warp_specialize", "maxnreg", "num_consumer_groups")
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One kernel of a work: of the manifest, its module and function, arguments and grid."""

    kernel: str
    module: str
    function: str
    values: Values
    constants: Values
    grid: Callable[[Values], tuple[int, ...]]


@dataclass
class Work:
    """What is timed: kernels in a row, and what they leave, as a multiple of what is tolerated."""

    name: str
    flops: float
    steps: Sequence[Step]
    wrong: Callable[[], float]
    outputs: Sequence[Any] = field(default_factory=list[Any])

    def error_of(self, launch: Launch) -> float:
        """Return the error of a launch, on poisoned outputs."""
        import torch

        for each in self.outputs:
            each.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        return self.wrong()


# ---- works --------------------------------------------------------------------------------------


def _random(*shape: int) -> Any:
    import torch

    return torch.randn(shape, device="cuda").to(torch.bfloat16)


def _numbers(*values: int) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.int32, device="cuda")


def error_of(found: Any, expected: Any) -> float:
    """Return the largest error, as a multiple of what is tolerated; infinite if there is a NaN."""
    error = ((found.double() - expected).abs().max() / expected.abs().max()).item()
    return math.inf if math.isnan(error) else error / TOLERANCE


def _attended(q: Any, k: Any, v: Any, rows: Any | None = None) -> Any:
    """Return rows of attention in float64; causal if rows are given."""
    import torch

    scores = q.double() @ k.double().T * q.shape[-1] ** -0.5
    if rows is not None:
        columns = torch.arange(k.shape[0], device="cuda")
        scores.masked_fill_(columns > rows[:, None], -math.inf)
    return scores.softmax(-1) @ v.double()


def _causal_work(
    name: str, step: Step, q: Any, k: Any, v: Any, out: Any, heads_per_kv_head: int
) -> Work:
    """Return a work of causal attention on tensors (batch, length, heads, features)."""
    import torch

    batch, length, heads, features = q.shape
    rows = torch.cat([torch.randint(0, length, (126,)), torch.tensor([0, length - 1])]).cuda()
    picked = [(0, 0), (batch - 1, heads - 1)]
    expected: list[Any] = []
    for b, h in picked:
        keys, seen = (each[b, :, h // heads_per_kv_head] for each in (k, v))
        expected.append(_attended(q[b, rows, h], keys, seen, rows))

    def wrong() -> float:
        found = [out[b, rows, h] for b, h in picked]
        return max(map(error_of, found, expected))

    flops = 2.0 * batch * heads * length**2 * features
    return Work(f"{name} {batch}x{heads}x{length}", flops, [step], wrong, [out])


def prefill() -> Iterator[Work]:
    """SGLang's prefill: causal, sequences without padding."""
    for batch, length, heads, kv_heads in ((4, 4096, 16, 16), (2, 4096, 64, 8)):
        q, k, v = (_random(batch, length, h, 128) for h in (heads, kv_heads, kv_heads))
        out = _random(batch, length, heads, 128)
        flat = [each.view(batch * length, -1, 128) for each in (q, k, v, out)]
        strides = dict(
            zip(
                [f"stride_{t}{axis}" for t in "qkvo" for axis in ("bs", "h")],
                [each.stride(axis) for each in flat for axis in range(2)],
                strict=True,
            )
        )
        values = {
            **dict(zip(("Q", "K", "V"), flat, strict=False)), "sm_scale": 128**-0.5,
            "B_Start_Loc": _numbers(*range(0, batch * length, length)),
            "B_Seqlen": _numbers(*[length] * batch), "Out": flat[3], **strides,
        }  # fmt: skip
        constants = {
            "kv_group_num": heads // kv_heads, "BLOCK_DMODEL": 128, "IS_CAUSAL": True, "Lk": 128,
        }  # fmt: skip
        step = Step(
            "sglang_prefill", "sglang.srt.layers.attention.triton_ops.prefill_attention",
            "_fwd_kernel", values, constants,
            lambda config, batch=batch, heads=heads, length=length: (
                batch, heads, -(-length // config["BLOCK_M"])
            ),
        )  # fmt: skip
        yield _causal_work("sglang prefill", step, q, k, v, out, heads // kv_heads)


def extend() -> Iterator[Work]:
    """SGLang's extend: new tokens see a prefix, gathered token by token, and those before them."""
    import torch

    batch, new, prefix, heads, kv_heads = 4, 2048, 2048, 32, 8
    k_cache, v_cache = (_random(batch * prefix, kv_heads, 128) for _ in range(2))
    q, k, v, out = (_random(batch * new, h, 128) for h in (heads, kv_heads, kv_heads, heads))
    order = torch.randperm(batch * prefix, device="cuda")
    strided = {"q": q, "k": k, "v": v, "o": out, "buf_k": k_cache, "buf_v": v_cache}
    values = {
        "Q_Extend": q, "K_Extend": k, "V_Extend": v, "O_Extend": out, "K_Buffer": k_cache,
        "V_Buffer": v_cache, "qo_indptr": _numbers(*range(0, (batch + 1) * new, new)),
        "kv_indptr": _numbers(*range(0, (batch + 1) * prefix, prefix)), "kv_indices": order,
        "mask_ptr": None, "mask_indptr": None, "sm_scale": 128**-0.5,
        "kv_group_num": heads // kv_heads,
        **{
            f"stride_{name}{axis}": each.stride(at)
            for name, each in strided.items()
            for at, axis in enumerate(("bs", "h"))
        },
    }  # fmt: skip
    constants = {
        "SLIDING_WINDOW_SIZE": -1, "logit_cap": 0.0, "Lq": 128, "Lv": 128, "BLOCK_DMODEL": 128,
        "BLOCK_DPE": 0, "BLOCK_DV": 128, "USE_CUSTOM_MASK": False, "IS_CAUSAL": True,
        "SKIP_PREFIX_CUSTOM_MASK": True, "STORE_TRANSPOSE": False,
    }  # fmt: skip
    step = Step(
        "sglang_extend", "sglang.srt.layers.attention.triton_ops.extend_attention", "_fwd_kernel",
        values, constants, lambda config: (batch, heads, -(-new // config["BLOCK_M"])),
    )  # fmt: skip
    rows = torch.randint(0, new, (128,), device="cuda")
    picked = [(0, 0), (batch - 1, heads - 1)]
    expected: list[Any] = []
    for b, h in picked:
        before, own = order[b * prefix : (b + 1) * prefix], slice(b * new, (b + 1) * new)
        kv_head = h // (heads // kv_heads)
        keys, seen = (
            torch.cat([cache[before, kv_head], fresh[own, kv_head]])
            for cache, fresh in ((k_cache, k), (v_cache, v))
        )
        expected.append(_attended(q[own][rows, h], keys, seen, rows + prefix))

    def wrong() -> float:
        pairs = zip(picked, expected, strict=True)
        return max(error_of(out[b * new + rows, h], each) for (b, h), each in pairs)

    flops = 4.0 * batch * heads * new * (prefix + new / 2) * 128
    yield Work(f"sglang extend {batch}x{new} behind {prefix}", flops, [step], wrong, [out])


def decode() -> Iterator[Work]:
    """SGLang's decode: tokens gathered one by one, split, then combined."""
    import torch

    heads, kv_heads, splits = 64, 8, 16
    for batch, length in ((16, 8192), (64, 8192)):
        k, v = (_random(batch * length, kv_heads, 128) for _ in range(2))
        q, out = _random(batch, heads, 128), _random(batch, heads, 128)
        order = torch.randperm(batch * length, device="cuda")
        parts = torch.zeros(batch, heads, splits, 128, device="cuda")
        lse = torch.zeros(batch, heads, splits, device="cuda")
        shared = {
            "kv_indptr": _numbers(*range(0, (batch + 1) * length, length)),
            "num_kv_splits": _numbers(*[splits] * batch),
            **{f"stride_mid_o{axis}": parts.stride(at) for at, axis in enumerate("bhs")},
        }
        buffers = {
            f"stride_buf_{t}{axis}": each.stride(at)
            for t, each in (("k", k), ("v", v))
            for at, axis in enumerate(("bs", "h"))
        }
        module = "sglang.srt.layers.attention.triton_ops.decode_attention"
        split = Step(
            "sglang_decode", module, "_fwd_grouped_kernel_stage1",
            {
                "Q": q, "K_Buffer": k, "V_Buffer": v, "sm_scale": 128**-0.5, "kv_indices": order,
                "Att_Out": parts, "Att_Lse": lse, "stride_qbs": q.stride(0),
                "stride_qh": q.stride(1), **buffers, **shared,
            },
            {
                "kv_group_num": 8, "q_head_num": 64, "BLOCK_DMODEL": 128, "BLOCK_DPE": 0,
                "BLOCK_DV": 128, "BLOCK_H": 16, "MIN_BLOCK_KV": 32, "logit_cap": 0.0, "Lk": 128,
                "Lv": 128,
            },
            lambda _, batch=batch: (batch, kv_heads, splits),
        )  # fmt: skip
        combine = Step(
            "sglang_combine", module, "_fwd_kernel_stage2",
            {
                "Mid_O": parts, "Mid_O_1": lse, "O": out, "stride_obs": out.stride(0),
                "stride_oh": out.stride(1), **shared,
            },
            {"MAX_KV_SPLITS": splits, "MIN_BLOCK_KV": 32, "BLOCK_DV": 128, "Lv": 128},
            lambda _, batch=batch: (batch, heads),
        )  # fmt: skip
        picked = [(0, 0), (batch - 1, heads - 1)]
        expected: list[Any] = []
        for b, h in picked:
            tokens = order[b * length : (b + 1) * length]
            expected.append(_attended(q[b, h : h + 1], k[tokens, h // 8], v[tokens, h // 8])[0])

        def wrong(out=out, picked=picked, expected=expected) -> float:
            return max(
                error_of(out[b, h], each) for (b, h), each in zip(picked, expected, strict=True)
            )

        yield Work(
            f"sglang decode {batch}x{length} 64/8", 4.0 * batch * heads * length * 128,
            [split, combine], wrong, [out, parts],
        )  # fmt: skip


def attention() -> Iterator[Work]:
    """FLA's attention: a loop over whole blocks, then one along the diagonal."""
    batch, length, heads = 4, 4096, 16
    q, k, v, out = (_random(batch, length, heads, 128) for _ in range(4))
    import torch

    lse = torch.empty(batch, length, heads, device="cuda")
    values = {"q": q, "k": k, "v": v, "o": out, "lse": lse, "scale": 128**-0.5, "T": length}
    values |= dict.fromkeys(("g_cumsum", "sink_bias", "cu_seqlens", "chunk_indices"))
    constants = {
        "W": None, "B": batch, "H": heads, "HQ": heads, "G": 1, "K": 128, "V": 128, "BK": 128,
        "BV": 128, "USE_G": False, "USE_SINK_BIAS": False, "USE_WINDOW": False, "IS_VARLEN": False,
    }  # fmt: skip
    step = Step(
        "fla_attention", "fla.ops.attn.parallel", "parallel_attn_fwd_kernel", values, constants,
        lambda config: (-(-length // config["BT"]), batch * heads),
    )  # fmt: skip
    yield _causal_work("fla attention", step, q, k, v, out, 1)


def chunk() -> Iterator[Work]:
    """FLA's chunked linear attention: states of chunks, then outputs."""
    import torch

    batch, length, heads, width, size = 4, 8192, 16, 128, 64
    q, k, v, out = (_random(batch, length, heads, width) for _ in range(4))
    states = torch.empty(
        batch, length // size, heads, width, width, device="cuda", dtype=torch.bfloat16
    )
    absent = ("g", "g_gamma", "cu_seqlens")
    common = {"H": heads, "K": width, "V": width, "BT": size, "USE_G": False, "USE_G_GAMMA": False}
    common |= {"IS_VARLEN": False, "STATE_V_FIRST": False}
    scale = width**-0.5
    state = Step(
        "fla_chunk_h", "fla.ops.common.chunk_h", "chunk_fwd_kernel_h",
        {
            "k": k, "v": v, "h": states, "T": length,
            **dict.fromkeys((*absent, "gk", "gv", "h0", "ht", "split_offsets")),
        },
        {
            **common, "BS": size, "USE_GK": False, "USE_GV": False, "USE_INITIAL_STATE": False,
            "STORE_FINAL_STATE": False,
        },
        lambda config: (width // config["BK"] * (width // config["BV"]) * batch * heads,),
    )  # fmt: skip
    output = Step(
        "fla_chunk_o", "fla.ops.common.chunk_o", "chunk_fwd_kernel_o",
        {
            "q": q, "k": k, "v": v, "h": states, "o": out, "scale": scale, "T": length,
            **dict.fromkeys((*absent, "chunk_indices")),
        },
        {**common, "HV": heads},
        lambda config: (width // config["BV"] * (length // size), batch * heads),
    )  # fmt: skip
    scores = q[0, :, 0].double() @ k[0, :, 0].double().T * scale
    expected = scores.tril() @ v[0, :, 0].double()

    def wrong() -> float:
        # States are rounded to bf16, and sums of thousands of tokens are large.
        return error_of(out[0, :, 0], expected)

    flops = 2.0 * batch * length * heads * width * (2 * width + 2 * size)
    yield Work(f"fla chunk {batch}x{heads}x{length}", flops, [state, output], wrong, [out, states])


WORK: dict[str, Callable[[], Iterator[Work]]] = {
    "prefill": prefill, "extend": extend, "decode": decode, "attention": attention, "chunk": chunk,
}  # fmt: skip
KERNELS = {
    "prefill": ("sglang_prefill",), "extend": ("sglang_extend",), "decode": ("sglang_decode", "sglang_combine"),
    "attention": ("fla_attention",), "chunk": ("fla_chunk_h", "fla_chunk_o"),
}  # fmt: skip


# ---- peers --------------------------------------------------------------------------------------


def archive_of(
    folder: Path,
    kernels: Sequence[str],
    jobs: int,
    manifest: Path = MANIFEST,
    libraries: Sequence[str] = LIBRARIES,
) -> Path:
    """Build the manifest's kernels of the sources in a folder; return the archive."""
    place = Path(tempfile.mkdtemp())
    for name in libraries:
        (place / name).symlink_to((folder / name).resolve())
    (place / manifest.name).write_bytes(manifest.read_bytes())
    words = [sys.executable, "-m", "aotc", "build", manifest.name, "-o", "dist", "-j", str(jobs)]
    asked = itertools.chain.from_iterable(("--kernel", each) for each in kernels)
    subprocess.run([*words, "--no-lineinfo", *asked], cwd=place, check=True)
    return place / "dist" / f"{manifest.stem}.aotc"


def aotc_launch(step: Step, library: Any, config: Values) -> Launch:
    """Return a launch from the archive."""
    kernel = library[step.kernel]
    arguments = [step.values[each.name] for each in kernel.info.params]
    choices = {name: step.constants[name] for name in kernel.info.choices}
    grid = step.grid({**step.constants, **config})
    return lambda: kernel.launch(arguments, grid=grid, config=config, choices=choices)


def triton_launch(step: Step, config: Values) -> Launch:
    """Return a launch by Triton of the function below its decorators."""
    function, given = _triton_function(step), {**step.values, **step.constants, **config}
    grid = step.grid(given)
    return lambda: function[grid](**given)


def _triton_function(step: Step) -> Any:
    function = getattr(importlib.import_module(step.module), step.function)
    while type(function).__name__ != "JITFunction":
        function = function.fn
    return function


def compile_ahead(work: Work, configs: Sequence[Sequence[Values]]) -> None:
    """Have Triton compile all configurations at once; what fails will say so when it is launched."""

    def compiled(step: Step, config: Values) -> None:
        given = {**step.values, **step.constants, **config}
        _triton_function(step).warmup(**given, grid=step.grid(given))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for step, each in zip(work.steps, configs, strict=True):
            for config in each:
                pool.submit(compiled, step, config)


def chosen(
    peer: str,
    work: Work,
    launch_of: Callable[[Step, Values], Launch],
    configs: Sequence[list[Values]],
) -> tuple[Launch, str] | None:
    """Return a peer's launch of a work with the best configuration of each kernel that is right."""
    best: list[tuple[str, Launch]] = []
    for number, step in enumerate(work.steps):
        right: dict[str, Launch] = {}
        for config in configs[number]:
            name = " ".join(f"{key}={value}" for key, value in config.items())
            try:
                own = launch_of(step, config)
                before = [launch for _, launch in best]
                later = [
                    launch_of(other, configs[number + 1 + at][0])
                    for at, other in enumerate(work.steps[number + 1 :])
                ]
                error = work.error_of(in_a_row([*before, own, *later]))
            except Exception as problem:  # noqa: BLE001 - a configuration that a peer cannot hold
                reason = str(problem).strip()[:80]
                print(f"    {peer} {name}: {type(problem).__name__} {reason}", flush=True)
                continue
            if error <= 1.0:
                right[name] = own
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
    configs: list[list[Values]] = [list(built(library[step.kernel])) for step in work.steps]
    plain = list(map(without_own_keys, configs))
    compile_ahead(work, plain)
    found = {
        "aotc": chosen("aotc", work, lambda step, each: aotc_launch(step, library, each), configs),
        "triton": chosen("triton", work, triton_launch, plain),
    }
    row: dict[str, object] = {"work": work.name}
    peers: dict[str, Launch] = {}
    for peer, best in found.items():
        if best is not None:
            peers[peer], row[f"{peer}_config"] = best
    times = in_turn(peers, ROUNDS, LAUNCHES, ahead=True)
    for peer, values in times.items():
        row[f"{peer}_us"] = statistics.median(values) * 1e3
        row[f"{peer}_tflops"] = work.flops / statistics.median(values) / 1e9
    if len(times) == len(found):
        row["over_triton"] = ratio(times["triton"], times["aotc"])
    return row


def without_own_keys(configs: Sequence[Values]) -> list[Values]:
    """Return configurations without what Triton has no word for, each once."""
    plain = [{k: v for k, v in each.items() if k not in OWN_KEYS} for each in configs]
    return list({str(each): each for each in plain}.values())


def main() -> int:
    """Build, measure, print rows, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", nargs="+", choices=WORK, default=list(WORK))
    parser.add_argument("--json", type=Path)
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp())
    kernels = [kernel for name in options.work for kernel in KERNELS[name]]
    archive = archive_of(options.folder, kernels, options.jobs)
    sys.path.insert(0, str(options.folder))
    if {"prefill", "extend", "decode"} & set(options.work):
        importlib.import_module("library_sglang")  # stands in for what SGLang imports besides
    import torch

    import aotc

    library = aotc.load(archive)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    rows: list[dict[str, object]] = []
    for work in itertools.chain.from_iterable(WORK[name]() for name in options.work):
        row = measure(work, library)
        rows.append(row)
        parts = [
            f"{key.replace('_', ' ')} {value:.3f}"
            for key, value in row.items()
            if isinstance(value, float)
        ]
        print(f"{row['work']:32} {'  '.join(parts)}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=2) + "\n")
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
