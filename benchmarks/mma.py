"""Matrix kernels on mma.sync against Triton held to mma.sync, interleaved in one process.

    aotc build benchmarks/mma.toml --without wgmma -o dist
    python benchmarks/mma.py dist/mma.aotc [--work matmul attention] [--json FILE]

With `aotc build benchmarks/mma.toml` and `--triton-target 90` both use the GPU's own
instructions.

Both compile the same source files over the same grid of configurations. Triton is held to
mma.sync by compiling for sm_80, as for an A100; the driver assembles this PTX for the GPU at
hand. Each peer first picks its fastest configuration, then these run in turn, ROUNDS times, and
the medians are compared. cuBLAS and cuDNN (through torch) run along to show the rate of the
GPU's own instructions. Data are random; matmul's operands are fresh for each shape.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from peers import Launch, built, in_turn, ranked, ratio

ROOT = Path(__file__).parents[1]
ROUNDS = 41
TRIALS = 5
LAUNCHES = 4
DIVISIBLE = 16


def compile_with_triton(
    module: str, function: str, arguments: dict, constants: dict, config: dict, capability: int = 80
):
    """Return (PTX, entry, shared bytes, warps) of one configuration, or None if it does not compile.

    `arguments` gives each run-time argument its type, with ":16" where it is divisible.
    """
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    spec = importlib.util.spec_from_file_location(module, ROOT / "kernels" / f"{module}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    kernel = getattr(loaded, function)
    options = {key: config[key] for key in ("num_warps", "num_stages")}
    constants = constants | {key: value for key, value in config.items() if key not in options}
    constants |= {name: 1 for name, kind in arguments.items() if kind.endswith("=1")}
    defaults = {name: param.default for name, param in kernel.signature.parameters.items()}
    constants |= {
        name: defaults[name] for name in kernel.arg_names if name not in arguments | constants
    }
    types = {
        name: "constexpr" if name in constants else arguments[name].partition(":")[0]
        for name in kernel.arg_names
    }
    attrs = {
        (kernel.arg_names.index(name),): [["tt.divisibility", DIVISIBLE]]
        for name, kind in arguments.items()
        if kind.endswith(":16")
    }
    source = ASTSource(kernel, signature=types, constexprs=constants, attrs=attrs)
    try:
        compiled = triton.compile(source, GPUTarget("cuda", capability, 32), options=options)
    except Exception as error:  # noqa: BLE001 - a configuration that Triton cannot hold
        print(f"    Triton: {config}: {type(error).__name__}", file=sys.stderr)
        return None
    return (
        compiled.asm["ptx"],
        compiled.metadata.name,
        compiled.metadata.shared,
        compiled.metadata.num_warps,
    )


class TritonKernel:
    """A kernel of Triton's, loaded through the driver."""

    def __init__(self, compiled: tuple[str, str, int, int]) -> None:
        from cuda.bindings import driver

        self.driver = driver
        ptx, entry, self.shared, self.warps = compiled
        module = self.call(driver.cuModuleLoadData, ptx.encode() + b"\0")
        self.function = self.call(driver.cuModuleGetFunction, module, entry.encode())
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.call(driver.cuFuncSetAttribute, self.function, attribute, self.shared)

    @staticmethod
    def call(function, *arguments):
        status, *values = function(*arguments)
        if int(status):
            raise RuntimeError(f"{function.__name__}: {status}")
        return values[0] if values else None

    def bind(self, grid: tuple[int, ...], arguments: list[object]) -> Launch:
        """Return a launch; two null pointers for Triton's scratch buffers follow the arguments."""
        import ctypes

        import torch

        stream = torch.cuda.current_stream().cuda_stream
        values, types = [], []
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                values.append(argument.data_ptr())
                types.append(ctypes.c_void_p)
            else:
                values.append(argument)
                types.append(ctypes.c_float if isinstance(argument, float) else ctypes.c_int)
        parameters = ((*values, 0, 0), (*types, ctypes.c_void_p, ctypes.c_void_p))
        grid = (*grid, 1, 1)[:3]

        def launch() -> None:
            self.call(
                self.driver.cuLaunchKernel,
                *(self.function, *grid, 32 * self.warps, 1, 1, self.shared, stream, parameters, 0),
            )

        return launch


class Work:
    """One workload: its launches for each peer, and its floating-point operations."""

    kernel: str
    module: str
    function: str
    flops: float
    choices: dict[str, object]

    def arguments(self) -> list[object]:
        """Return the arguments of a launch, in the order of the kernel's parameters."""
        raise NotImplementedError

    def grid(self, config: dict[str, int]) -> tuple[int, ...]:
        raise NotImplementedError

    def library(self) -> Launch:
        """Return a launch of the vendor's library for the same work."""
        raise NotImplementedError


class Matmul(Work):
    kernel, module, function = "matmul", "matmul", "matmul_kernel"

    def __init__(self, size: int) -> None:
        import torch

        self.size, self.flops, self.choices = size, 2.0 * size**3, {}
        self.name = f"matmul {size}"
        self.a, self.b = (
            torch.randn(size, size, device="cuda").to(torch.bfloat16) for _ in range(2)
        )
        self.out = torch.empty_like(self.a)

    def arguments(self) -> list[object]:
        n = self.size
        return [self.a, self.b, self.out, self.out, self.out, n, n, n, n, 1, n, 1, n, 1]

    def grid(self, config: dict[str, int]) -> tuple[int, ...]:
        return (-(-self.size // config["BLOCK_M"]) * -(-self.size // config["BLOCK_N"]),)

    def library(self) -> Launch:
        import torch

        return lambda: torch.mm(self.a, self.b, out=self.out)


class Attention(Work):
    kernel, module, function = "attention", "attention", "attention_kernel"

    def __init__(
        self, *, causal: bool, batch: int = 4, heads: int = 16, length: int = 8192
    ) -> None:
        import torch

        self.choices = {"CAUSAL": causal}
        self.batch, self.heads, self.length, self.dim = batch, heads, length, 128
        self.flops = 4.0 * batch * heads * length * length * self.dim / (2 if causal else 1)
        self.name = f"attention {'causal' if causal else 'full'} d{self.dim}"
        shape = (batch, heads, length, self.dim)
        self.q, self.k, self.v = (
            torch.randn(shape, device="cuda").to(torch.bfloat16) for _ in range(3)
        )
        self.out = torch.empty_like(self.q)
        self.lse = torch.empty(shape[:3], device="cuda", dtype=torch.float32)

    def arguments(self) -> list[object]:
        strides = list(self.q.stride()[:3])
        length = self.length
        scalars = [self.dim**-0.5, self.heads, 1, length, length]
        return [self.q, self.k, self.v, self.out, self.lse, *scalars, *4 * strides]

    def grid(self, config: dict[str, int]) -> tuple[int, ...]:
        return (-(-self.length // config["BLOCK_M"]), self.batch * self.heads)

    def library(self) -> Launch:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def launch() -> None:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                self.out.copy_(
                    torch.nn.functional.scaled_dot_product_attention(
                        self.q, self.k, self.v, is_causal=self.choices["CAUSAL"]
                    )
                )

        return launch


WORK = {
    "matmul": [lambda: Matmul(8192), lambda: Matmul(4096)],
    "attention": [lambda: Attention(causal=False), lambda: Attention(causal=True)],
}


def triton_launches(
    work: Work, kernel, arguments: dict[str, str], capability: int
) -> dict[str, Launch]:
    """Compile every configuration with Triton, in processes of their own, and load them."""
    configs = built(kernel)
    constants = dict(kernel.info.constants) | work.choices
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=context) as pool:
        futures = [
            pool.submit(
                *(compile_with_triton, work.module, work.function, arguments, constants),
                {key: value for key, value in config.items() if key not in ("num_ctas", "maxnreg")},
                capability,
            )
            for config in configs
        ]
        compiled = [future.result() for future in futures]
    runtime = [
        argument
        for argument, kind in zip(work.arguments(), arguments.values(), strict=True)
        if not kind.endswith("=1")
    ]
    return {
        str(config): TritonKernel(compiled_kernel).bind(work.grid(config), runtime)
        for config, compiled_kernel in zip(configs, compiled, strict=True)
        if compiled_kernel is not None
    }


def aotc_launches(work: Work, kernel) -> dict[str, Launch]:
    arguments = (*work.arguments(),)
    return {
        str(config): lambda config=config: kernel.launch(
            arguments, grid=work.grid(config), config=config, choices=work.choices
        )
        for config in built(kernel)
    }


def agree(work: Work, peers: dict[str, Launch]) -> None:
    """Check the peers against each other before anything is compared."""

    results = []
    for launch in peers.values():
        work.out.fill_(float("nan"))
        launch()
        results.append(work.out.float())
    scale = results[-1].abs().max()
    for name, result in zip(peers, results, strict=True):
        error = ((result - results[-1]).abs().max() / scale).item()
        if not error < 1e-2:
            raise SystemExit(f"{work.name}: {name} is wrong by {error:.3g}")


def measure(work: Work, library, arguments: dict[str, str], capability: int) -> dict[str, object]:
    kernel = library[work.kernel]
    chosen, peers = {}, {}
    for peer, launches in (
        ("aotc", lambda: aotc_launches(work, kernel)),
        ("triton", lambda: triton_launches(work, kernel, arguments, capability)),
    ):
        candidates = launches()
        ranking = ranked(candidates, TRIALS, LAUNCHES)
        chosen[peer] = ranking[0][1]
        peers[peer] = candidates[chosen[peer]]
        for took, config in ranking[:4]:
            print(f"    {peer:7} {work.flops / took / 1e9:6.1f} TFLOP/s  {config}", flush=True)
    peers["library"] = work.library()
    agree(work, peers)
    times = in_turn(peers, ROUNDS, LAUNCHES)
    median = {name: statistics.median(values) for name, values in times.items()}
    return {
        "work": work.name,
        **{f"{name}_tflops": work.flops / took / 1e9 for name, took in median.items()},
        "over_triton": ratio(times["triton"], times["aotc"]),
        **{f"{peer}_config": config for peer, config in chosen.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--work", nargs="+", choices=WORK, default=list(WORK))
    parser.add_argument("--triton-target", type=int, default=80, help="80, or 90 for Hopper's own")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import tomli
    import torch
    import triton

    import aotc

    manifest = tomli.loads((ROOT / "benchmarks" / "mma.toml").read_text())
    signatures = {table["name"]: table["signature"] for table in manifest["kernel"]}
    library = aotc.load(options.archive)
    print(f"{torch.cuda.get_device_name()}, Triton {triton.__version__}, torch {torch.__version__}")
    rows = []
    for name in options.work:
        for make in WORK[name]:
            work = make()
            row = measure(work, library, signatures[work.kernel], options.triton_target)
            rows.append(row)
            rates = "  ".join(
                f"{p} {row[f'{p}_tflops']:6.1f}" for p in ("aotc", "triton", "library")
            )
            print(
                f"{work.name:22} TFLOP/s: {rates}   over Triton {row['over_triton']:.3f}",
                flush=True,
            )
            del work
            torch.cuda.empty_cache()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
