"""Host cost of a launch: raw driver, aotc from C and from Python, Triton; interleaved.

    aotc build benchmarks/launch.toml -o dist
    python benchmarks/launch.py dist/launch.aotc [--json FILE]

Three kernels are launched over and over with the same arguments: `vector_add` takes pointers,
`scale_rows` three tensors with maps encoded by the launcher, and `matmul` pointers with
conditional tensor maps made by the launcher. The CPU time until the call returns is measured.
`raw` is cuLaunchKernelEx in a loop in C, with aotc's function, dimensions and parameters,
encoded maps included: the cost of a perfect caller. Batches are shorter than the driver's queue
(about a thousand launches), and the GPU is idle before each, so the queue never blocks. Problems
are small on purpose.

`--fake LIBCUDA` runs without a GPU and without torch, on the fake driver of the tests: the time
is then aotc's own share.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

import aotc
from aotc.runtime import Pointer, Tensor

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 41
BATCH = 400
SIZE = 64
DTYPE_NUMBERS = {"i32": 4, "fp16": 10, "bf16": 11, "fp32": 12}  # enum aotc_dtype
OK, NO_MEMORY = 0, -1

Batch = Callable[[int], float]  # number of launches -> nanoseconds for each
Decompress = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    *(ctypes.c_void_p, ctypes.c_size_t),
)


@dataclass(frozen=True)
class Memory:
    """Address of a dense tensor, and its Python argument."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    value: Any

    def fake(self, *, is_tensor: bool) -> Tensor | Pointer:
        """Return a stand-in for a tensor without a GPU."""
        location = self.address, self.dtype
        return Tensor(*location, self.shape) if is_tensor else Pointer(*location)

    @property
    def strides(self) -> tuple[int, ...]:
        return (*self.shape[1:], 1)


# Arguments are `Memory`, passed as a pointer or a tensor, or integers.
Arguments = Sequence["Memory | int"]


def compile_loops() -> ctypes.CDLL:
    """Compile the library and the loops around it."""
    sources = [
        ROOT / "benchmarks" / "launch_loops.c",
        *sorted((ROOT / "runtime_c/src").glob("*.c")),
    ]
    command = [os.environ.get("CC", "cc"), "-std=c11", "-O3", "-DNDEBUG", "-shared", "-fPIC"]
    command += ["-fvisibility=hidden", "-pthread", "-DAOTC_API="]
    command += ["-I", str(ROOT / "runtime_c/include"), "-I", str(ROOT / "runtime_c/src")]
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory, "loops.so")
        subprocess.run([*command, *map(str, sources), "-ldl", "-o", str(library)], check=True)
        loops = ctypes.CDLL(str(library))
    loops.bench_message.restype = ctypes.c_char_p
    loops.bench_open.restype = loops.bench_new.restype = ctypes.c_void_p
    loops.bench_aotc.restype = loops.bench_raw.restype = ctypes.c_double
    return loops


@Decompress
def decompress(_: int, source: int, source_bytes: int, target: int, target_bytes: int) -> int:
    """Decode one frame for the library."""
    content = zstandard.ZstdDecompressor().decompress(ctypes.string_at(source, source_bytes))
    if len(content) != target_bytes:
        return NO_MEMORY
    ctypes.memmove(target, content, target_bytes)
    return OK


class CLoops:
    """Launches in loops in C."""

    def __init__(self, path: Path, driver: Path | None, stream: int) -> None:
        self.loops, self.content, self.stream = compile_loops(), path.read_bytes(), stream
        where = None if driver is None else str(driver).encode()
        self.archive = self._checked(
            self.loops.bench_open(
                self.content, ctypes.c_size_t(len(self.content)), decompress, where
            )
        )

    def _checked(self, handle: int | None) -> ctypes.c_void_p:
        if handle is None:
            raise SystemExit(self.loops.bench_message().decode())
        return ctypes.c_void_p(handle)

    def batches(self, name: str, args: Arguments, *, are_tensors: bool) -> dict[str, Batch]:
        loops, stream = self.loops, ctypes.c_void_p(self.stream)
        bench = self._checked(loops.bench_new(self.archive, name.encode(), stream))
        for arg in args:
            if isinstance(arg, int):
                loops.bench_integer(bench, DTYPE_NUMBERS["i32"], ctypes.c_int64(arg))
                continue
            location = DTYPE_NUMBERS[arg.dtype], ctypes.c_uint64(arg.address)
            if are_tensors:
                sizes = ctypes.c_int64 * len(arg.shape)
                lists = sizes(*arg.shape), sizes(*arg.strides)
                loops.bench_tensor(bench, *location, len(arg.shape), *lists)
            else:
                loops.bench_pointer(bench, *location)
        if loops.bench_record(bench) != 0:
            raise SystemExit(loops.bench_message().decode())
        print(f"{name}: {loops.bench_map_count(bench)} tensor maps")

        def batch(run: Callable[[ctypes.c_void_p, int], float]) -> Batch:
            def timed(count: int) -> float:
                nanoseconds = run(bench, count)
                if nanoseconds < 0:
                    raise SystemExit(f"{name}: {loops.bench_message().decode()}")
                return nanoseconds

            return timed

        return {"raw": batch(loops.bench_raw), "aotc, C": batch(loops.bench_aotc)}


def python_batch(call: Callable[[], object]) -> Batch:
    """Time calls from Python; the loop itself costs about 10 ns of each."""

    def run(count: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(count):
            call()
        return (time.perf_counter_ns() - start) / count

    return run


def python_batches(
    library: aotc.runtime.Library, name: str, args: tuple[object, ...]
) -> dict[str, Batch]:
    kernel = library[name]
    return {
        "aotc, Python": python_batch(lambda: library[name](*args)),
        "aotc, kernel kept": python_batch(lambda: kernel(*args)),
        "aotc, stream=": python_batch(lambda: kernel(*args, stream=0)),
        "aotc, launch()": python_batch(lambda: kernel.launch(args)),
    }


def triton_batches(values: dict[str, Memory]) -> dict[str, dict[str, Batch]]:
    """Return the same sources through Triton's own launcher, if it is installed."""
    try:
        import triton
        from triton.tools.tensor_descriptor import TensorDescriptor
    except ImportError:
        return {}
    sys.path.insert(0, str(ROOT / "kernels"))
    from descriptor_copy import scale_rows_kernel
    from elementwise import vector_add_kernel

    x, y, out, scales, a, c = (values[n].value for n in ("x", "y", "out", "scales", "a", "c16"))
    blocks = ((a, [32, 64]), (scales, [32]), (c, [32, 64]))

    def scale_rows() -> None:
        described = [TensorDescriptor.from_tensor(*block) for block in blocks]
        scale_rows_kernel[(2,)](*described, BLOCK_M=32, BLOCK_N=64, num_warps=4)

    grid = (triton.cdiv(SIZE * SIZE, 1024),)
    vector_add = python_batch(
        lambda: vector_add_kernel[grid](x, y, out, SIZE * SIZE, BLOCK=1024, num_warps=4)
    )
    return {
        "vector_add": {"triton": vector_add},
        "scale_rows": {"triton": python_batch(scale_rows)},
    }


_TENSORS = {
    **dict.fromkeys(("x", "y", "out"), ("fp32", (SIZE, SIZE))),
    "scales": ("fp32", (SIZE,)),
    **dict.fromkeys(("a", "b", "c"), ("bf16", (SIZE, SIZE))),
    "c16": ("fp16", (SIZE, SIZE)),
}
_TENSOR_KERNEL = "scale_rows"


def cases(values: dict[str, Memory]) -> dict[str, Arguments]:
    """Return the arguments of each kernel."""
    x, y, out, scales, a, b, c, c16 = (values[name] for name in _TENSORS)
    sizes = (SIZE, SIZE, SIZE, SIZE, 1, SIZE, 1, SIZE, 1)
    return {
        "vector_add": (x, y, out, SIZE * SIZE),
        _TENSOR_KERNEL: (a, scales, c16),
        "matmul": (a, b, c, c, c, *sizes),
    }


def memory_on_gpu() -> dict[str, Memory]:
    import torch

    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    memories: dict[str, Memory] = {}
    for name, (dtype, shape) in _TENSORS.items():
        value = torch.randn(*shape, device="cuda").to(kinds[dtype])
        memories[name] = Memory(value.data_ptr(), dtype, shape, value)
    return memories


def memory_on_fake(driver: ctypes.CDLL) -> dict[str, Memory]:
    driver.fake_cuda_primary_context.restype = ctypes.c_void_p
    driver.fake_cuda_set_current(ctypes.c_void_p(driver.fake_cuda_primary_context(0)))
    driver.fake_cuda_set_recording(0)
    memories: dict[str, Memory] = {}
    for index, (name, (dtype, shape)) in enumerate(_TENSORS.items(), 1):
        address = index << 16
        memories[name] = Memory(address, dtype, shape, None)
    return memories


def batches_of(path: Path, fake: Path | None) -> dict[str, dict[str, Batch]]:
    """Return the peers of each kernel."""
    stream = 0
    if fake is None:
        import torch

        values, stream = memory_on_gpu(), torch.cuda.current_stream().cuda_stream
    else:
        values = memory_on_fake(ctypes.CDLL(str(fake)))
    library = aotc.load(path, driver=fake)
    loops = CLoops(path, fake, stream)
    triton = triton_batches(values) if fake is None else {}
    batches: dict[str, dict[str, Batch]] = {}
    for name, args in cases(values).items():
        are_tensors = name == _TENSOR_KERNEL
        passed = tuple(
            arg
            if isinstance(arg, int)
            else arg.value
            if fake is None
            else arg.fake(is_tensor=are_tensors)
            for arg in args
        )
        batches[name] = {
            **loops.batches(name, args, are_tensors=are_tensors),
            **python_batches(library, name, passed),
            **triton.get(name, {}),
        }
    return batches


def time_all(
    batches: dict[str, Batch], synchronize: Callable[[], object]
) -> dict[str, list[float]]:
    """Return the nanoseconds of a launch in each round, the peers taking turns."""
    rounds: dict[str, list[float]] = {name: [] for name in batches}
    for batch in batches.values():
        batch(BATCH)
    for _ in range(ROUNDS):
        for name, batch in batches.items():
            synchronize()
            rounds[name].append(batch(BATCH))
    synchronize()
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--fake", type=Path, metavar="LIBCUDA", help="run without a GPU")
    options = parser.parse_args()
    device, synchronize = "fake driver", lambda: None
    if options.fake is None:
        import torch

        device, synchronize = torch.cuda.get_device_name(), torch.cuda.synchronize
    figures: dict[str, dict[str, list[float]]] = {}
    for kernel, batches in batches_of(options.archive, options.fake).items():
        figures[kernel] = rounds = time_all(batches, synchronize)
        medians = {name: statistics.median(times) for name, times in rounds.items()}
        print(f"{kernel}, {device}: host nanoseconds a launch, median of {ROUNDS} x {BATCH}")
        for name, median in medians.items():
            low, high = min(rounds[name]), max(rounds[name])
            over = f"raw + {median - medians['raw']:6.0f}"
            print(f"  {name:20} {median:8.0f}  {over}  ({low:.0f} to {high:.0f})")
    if options.json is not None:
        options.json.write_text(json.dumps({"device": device, "nanoseconds": figures}, indent=1))


if __name__ == "__main__":
    main()
