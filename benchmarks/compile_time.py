"""Cold compile of one variant, aotc against Triton, alternating on the same CPU.

    python benchmarks/compile_time.py [--runs 9]          (with Triton installed beside aotc)
    python benchmarks/compile_time.py --stages [--passes 8] [--runs 25] [--kernel NAME]…   (alone)

Both compile the same source file for sm_90a, in process, everything imported and warmed by one
compile of each kernel, caches off. `aotc build` pays this for each variant, Triton at the first
launch. No GPU is used. Besides wall time, the CPU time of the process and its children, such as
ptxas, is reported. Neither compiler runs in parallel, so CPU time is comparable on a busy
machine too.

With `--stages` it reports the CPU time of each stage instead, and of the slowest passes of the
schedule: the least of all runs. The time of ptxas is its process's.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from aotc.compiler import CompileRequest, compile_kernel
from aotc.config import Config
from aotc.ir.passes import Observer
from aotc.timings import Timings

ROOT = Path(__file__).parents[1]
DIVISIBLE = 16

# kernel -> (file, function, signature, constants, config)
WORK = {
    "vector_add": (
        "elementwise",
        "vector_add_kernel",
        {"x_ptr": "*fp32:16", "y_ptr": "*fp32:16", "out_ptr": "*fp32:16", "n_elements": "i32:16"},
        {"BLOCK": 1024},
        {"num_warps": 4},
    ),
    "softmax": (
        "softmax",
        "softmax_kernel",
        {
            "x_ptr": "*bf16:16",
            "out_ptr": "*bf16:16",
            "stride": "i32:16",
            "n_rows": "i32",
            "n_cols": "i32:16",
        },
        {"BLOCK": 4096, "LOOP": False},
        {"num_warps": 8},
    ),
    "wide softmax": (
        "softmax",
        "softmax_kernel",
        {
            "x_ptr": "*bf16:16",
            "out_ptr": "*bf16:16",
            "stride": "i32:16",
            "n_rows": "i32",
            "n_cols": "i32:16",
        },
        {"BLOCK": 16384, "LOOP": False},
        {"num_warps": 4},
    ),
    "matmul": (
        "matmul",
        "matmul_kernel",
        {
            "a_ptr": "*bf16:16",
            "b_ptr": "*bf16:16",
            "bias_ptr": "*bf16:16",
            "residual_ptr": "*bf16:16",
            "out_ptr": "*bf16:16",
            "M": "i32",
            "N": "i32:16",
            "K": "i32:16",
            "stride_am": "i32:16",
            "stride_ak": "i32=1",
            "stride_bk": "i32:16",
            "stride_bn": "i32=1",
            "stride_om": "i32:16",
            "stride_on": "i32=1",
        },
        {
            "BLOCK_M": 128,
            "BLOCK_N": 128,
            "BLOCK_K": 32,
            "GROUP_M": 8,
            "BIAS": False,
            "RESIDUAL": False,
            "ACTIVATION": "none",
            "EVEN_K": False,
        },
        {"num_warps": 4},
    ),
    "persistent": (
        "persistent_matmul",
        "persistent_matmul_kernel",
        {
            "a": "tensordesc<bf16[128, 64]>",
            "b": "tensordesc<bf16[256, 64]>",
            "c": "tensordesc<bf16[128, 256]>",
            "M": "i32",
            "N": "i32",
            "K": "i32",
        },
        {
            "BLOCK_M": 128,
            "BLOCK_N": 256,
            "BLOCK_K": 64,
            "EPILOGUE_N": 256,
            "GROUP_M": 8,
            "NUM_SMS": 132,
            "TRANSPOSED": True,
            "ACTIVATION": "none",
            "SCALES": "none",
            "FLATTEN": True,
            "WARP_SPECIALIZE": False,
            "bias_ptr": None,
            "residual": None,
            "scale_a_ptr": None,
            "scale_b_ptr": None,
            "COLUMNS": 0,
            "REST_N": 0,
            "c_rest": None,
        },
        {"num_warps": 8},
    ),
    "attention": (
        "attention_descriptor",
        "attention_descriptor_kernel",
        {
            "q": "tensordesc<bf16[1, 128, 128]>",
            "k": "tensordesc<bf16[1, 128, 128]>",
            "v": "tensordesc<bf16[1, 128, 128]>",
            "out": "tensordesc<bf16[1, 128, 128]>",
            "scale_log2": "fp32",
            "n_heads": "i32",
            "heads_per_kv_head": "i32",
            "n_queries": "i32",
            "n_keys": "i32",
        },
        {"HEAD_DIM": 128, "BLOCK_M": 128, "BLOCK_N": 128, "CAUSAL": True, "TOGETHER": 8},
        {"num_warps": 8, "num_stages": 2, "mma_stages": 2},
    ),
}


def request(name: str) -> CompileRequest:
    module, function, signature, constants, config = WORK[name]
    source = str(ROOT / "kernels" / f"{module}.py")
    return CompileRequest(
        *(source, function, tuple(signature.items()), tuple(constants.items()), "sm_90a"),
        config=Config.of(config),
    )


def triton_compile(name: str) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, function, signature, constants, config = WORK[name]
    spec = importlib.util.spec_from_file_location(module, ROOT / "kernels" / f"{module}.py")
    loaded = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(ROOT / "kernels"))
    spec.loader.exec_module(loaded)
    constants = constants | {key: 1 for key, text in signature.items() if text.endswith("=1")}
    types = {
        key: "constexpr" if key in constants else text.partition(":")[0]
        for key, text in signature.items()
    }
    attrs = {
        (position,): [["tt.divisibility", DIVISIBLE]]
        for position, text in enumerate(signature.values())
        if text.endswith(":16")
    }
    source = ASTSource(
        getattr(loaded, function),
        signature=types | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        attrs=attrs,
    )
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        # Every key Triton has; the others are aotc's alone.
        options = {key: value for key, value in config.items() if key != "mma_stages"}
        triton.compile(source, GPUTarget("cuda", 90, 32), options=options)


def seconds(function, name: str) -> tuple[float, float]:
    """Return seconds of the wall clock and of CPU time."""
    start, cpu_start = time.perf_counter(), cpu_seconds()
    function(name)
    return time.perf_counter() - start, cpu_seconds() - cpu_start


def cpu_seconds() -> float:
    """Return the CPU time of this process and its finished children."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def least(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the least milliseconds of each part in any run."""
    return {part: 1e3 * min(run[part] for run in runs) for part in runs[0]}


def measure_stages(name: str, num_runs: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the least CPU milliseconds of each stage and of each pass of the schedule."""
    stages: list[dict[str, float]] = []
    passes: list[dict[str, float]] = []
    for _ in range(num_runs):
        timings = Timings(clock=cpu_seconds)
        compile_kernel(request(name), timings=timings)
        other_seconds = [
            s for stage, s in timings.seconds.items() if stage not in ("llvm", "ptxas")
        ]
        stages.append({**timings.seconds, "all but llvm and ptxas": sum(other_seconds)})
        observer = Observer(clock=time.process_time)
        compile_kernel(request(name), observer=observer)
        passes.append(observer.seconds)
    return least(stages), least(passes)


def report_stages(names: Sequence[str], num_runs: int, num_passes: int) -> None:
    """Print a row of CPU times for each kernel, and its slowest passes."""
    for name in names:
        compile_kernel(request(name))
    for index, name in enumerate(names):
        stages, passes = measure_stages(name, num_runs)
        if index == 0:
            print(
                f"{'CPU ms':12}"
                + "".join(f"{stage:>{max(10, len(stage) + 2)}}" for stage in stages)
            )
        print(
            f"{name:12}"
            + "".join(f"{ms:{max(10, len(stage) + 2)}.1f}" for stage, ms in stages.items())
        )
        slowest = sorted(passes, key=lambda pass_name: -passes[pass_name])[:num_passes]
        if slowest:
            print(
                f"{'':12}  "
                + "  ".join(f"{pass_name} {passes[pass_name]:.1f}" for pass_name in slowest)
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--no-triton", action="store_true")
    parser.add_argument(
        "--stages", action="store_true", help="CPU time of each stage, without Triton"
    )
    parser.add_argument("--passes", type=int, default=0, help="with --stages: the slowest N passes")
    parser.add_argument("--kernel", action="append", choices=list(WORK), help="only these kernels")
    options = parser.parse_args()
    names = options.kernel or list(WORK)
    if options.stages:
        report_stages(names, options.runs, options.passes)
        return 0
    peers = {"aotc": lambda name: compile_kernel(request(name))}
    if not options.no_triton:
        peers["triton"] = triton_compile
    for function in peers.values():
        for name in names:
            function(name)
    for name in names:
        times = {peer: [] for peer in peers}
        for _ in range(options.runs):
            for peer, function in peers.items():
                times[peer].append(seconds(function, name))
        for column, clock in enumerate(("wall", "CPU")):
            samples = {
                peer: [sample[column] for sample in values] for peer, values in times.items()
            }
            shown = "  ".join(
                f"{peer} {1e3 * statistics.median(values):6.1f} ms (min {1e3 * min(values):.1f})"
                for peer, values in samples.items()
            )
            ratio = ""
            if "triton" in samples:
                pairs = zip(samples["aotc"], samples["triton"], strict=True)
                ratio = f"  aotc/triton {statistics.median(a / t for a, t in pairs):.2f}"
            print(f"{name:12} {clock:4} {shown}{ratio}")
        timings = Timings()
        compile_kernel(request(name), timings=timings)
        stages = "  ".join(f"{stage} {1e3 * s:.1f}" for stage, s in timings.seconds.items())
        print(f"{'':12} stages, ms: {stages}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
