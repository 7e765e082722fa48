"""Cost of a launch: Triton's own, or one from an archive beside the loader's call.

    python benchmarks/launch_overhead.py [ARCHIVE] [--fake LIBCUDA]

Prints, as JSON, the microseconds of launches of kernels of `record_program.py`. With an archive
of that program it also times the loader's call of the same kernels. Needs torch and a GPU, or
the tests' fake driver as LIBCUDA instead. It then times the host's share without the driver, for
an archive of `launch_overhead.toml`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NUM_LAUNCHES, NUM_ROUNDS = 500, 100


def main() -> None:
    """Time all in turn: a disturbance then affects all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", nargs="?")
    parser.add_argument("--fake", help="the fake driver's library")
    options = parser.parse_args()
    make = _fake_tensors(options.fake) if options.fake else _tensors()
    if options.archive:
        import aotc.triton

        aotc.triton.install(options.archive, stand_in=True, driver=options.fake)
    timed = _launches(make)
    if options.archive:
        import aotc

        timed |= _loader_calls(aotc.load(options.archive, driver=options.fake), make)
    least = dict.fromkeys(timed, float("inf"))
    synchronize: Callable[[], object] = sys.modules["torch"].cuda.synchronize
    for _ in range(NUM_ROUNDS):
        for name, call in timed.items():
            synchronize()
            start = time.perf_counter()
            for _ in range(NUM_LAUNCHES):
                call()
            least[name] = min(least[name], (time.perf_counter() - start) / NUM_LAUNCHES * 1e6)
    print(json.dumps(least))


Make = Callable[..., Any]  # shape, and alignment offset -> tensor


def _launches(make: Make) -> dict[str, Callable[[], object]]:
    """Return launches as a program writes them: plain, with a function as grid, with decorators."""
    import record_program as program

    x, y, out, rows = make(64, 1000), make(64, 1000), make(64, 1000), make(64)
    column, n, stride = make(64, offset=3), 64, 1000
    grid, by_meta = (1,), lambda meta: (-(-n // meta["BLOCK"]),)
    return {
        "column": lambda: program.column[grid](column, rows, n, stride, 1, BLOCK=256),
        "column, grid of META": lambda: program.column[by_meta](
            column, rows, n, stride, 1, BLOCK=256
        ),
        "norm, heuristics": lambda: program.norm[(64,)](
            x, out, stride, stride, 1e-6, BLOCK=1024, num_warps=8
        ),
        "add, autotuned": lambda: program.add[grid](x, y, None, out, 64000),
    }


def _loader_calls(library: Any, make: Make) -> dict[str, Callable[[], object]]:
    """Return the loader's own calls of the same kernels."""
    x, y, out, rows, n, stride = make(64, 1000), make(64, 1000), make(64, 1000), make(64), 64, 1000
    passed = {
        "column": {
            "x_ptr": make(64, offset=3),
            "out_ptr": rows,
            "n": n,
            "stride_x": stride,
            "stride_out": 1,
        },
        "norm": {"x_ptr": x, "out_ptr": out, "stride": stride, "n_cols": stride, "eps": 1e-6},
        "add": {"x_ptr": x, "y_ptr": y, "out_ptr": out, "n": 64000},
    }

    def call(name: str, grid: tuple[int, ...]) -> Callable[[], object]:
        kernel = library[name]
        names = [param.name for param in kernel.info.params]
        scope = {**passed[name], "kernel": kernel, "grid": grid}
        return eval(f"lambda: kernel({', '.join(names)}, grid=grid)", scope)

    grids = {"column": (1,), "norm": (64,), "add": (1,)}
    return {f"{name}, loader": call(name, grid) for name, grid in grids.items()}


def _tensors() -> Make:
    import torch

    def make(*shape: int, offset: int = 0) -> Any:
        count = shape[0] * 1000 if offset else 1
        return (
            torch.randn(count, device="cuda")[offset::1000]
            if offset
            else torch.randn(*shape, device="cuda")
        )

    return make


def _fake_tensors(fake: str) -> Make:
    """Return a factory of tensors on the fake driver, read as fast as torch's."""
    sys.path.insert(0, str(ROOT))
    from tests.support.gpu_arrays import DLTensor, fill, Content, torch  # noqa: I001

    driver = ctypes.CDLL(fake)
    driver.fake_cuda_primary_context.restype = ctypes.c_void_p
    driver.fake_cuda_set_current(ctypes.c_void_p(driver.fake_cuda_primary_context(0)))
    driver.fake_cuda_set_recording(0)
    with tempfile.TemporaryDirectory() as folder:
        target = f"{folder}/fake_tensor.so"
        command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", f"-I{ROOT}/aotc/runtime"]
        source = str(Path(__file__).with_name("fake_tensor.c"))
        subprocess.run([*command, source, "-o", target], check=True)
        table = ctypes.addressof(ctypes.c_char.in_dll(ctypes.CDLL(target), "fake_exchange"))
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

    class Tensor(DLTensor):
        """A tensor of fp32."""

        dtype = torch.float32  # type: ignore[attr-defined]
        __dlpack_c_exchange_api__ = new_capsule(table, b"dlpack_exchange_api", None)

        def data_ptr(self) -> int:
            return self.data

        def get_device(self) -> int:
            return 0

    torch.cuda = type("cuda", (), {"synchronize": staticmethod(lambda: None)})  # type: ignore[attr-defined]
    sys.modules["torch"] = torch
    tensors: list[Any] = []

    def make(*shape: int, offset: int = 0) -> Any:
        tensor = Tensor()
        address = (1 + len(tensors)) * 4096 + 4 * offset
        tensors.append(fill(tensor, Content(address, "fp32", shape)))
        return tensor

    return make


if __name__ == "__main__":
    main()
