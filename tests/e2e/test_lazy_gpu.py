"""First launches with lazy loading, beside captures, on a GPU.

pytest -m gpu tests/e2e/test_lazy_gpu.py [--built FOLDER]
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import aotc
from tests.support.built import Built

pytestmark = pytest.mark.usefixtures("one_worker")

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)
"""
MANIFEST = """[package]
name = "lazy"
version = "0.1.0"
targets = ["sm_90a"]

[[kernel]]
name = "double"
source = "lazy.py:double"

[kernel.signature]
x_ptr = "*fp32:16?"
out_ptr = "*fp32:16?"
n = "i32"

[kernel.constants]
BLOCK = 256

[kernel.configs]
num_warps = [1, 2, 4, 8]
"""


@pytest.fixture(scope="module")
def torch() -> Any:
    """Return torch, with a context on the GPU."""
    module = pytest.importorskip("torch")
    module.zeros(1, device="cuda")
    return module


@pytest.fixture(scope="module")
def lazy(built: Built) -> Path:
    def build(folder: Path) -> None:
        from aotc import cli

        (folder / "lazy.py").write_text(SOURCE, encoding="utf-8")
        (folder / "lazy.toml").write_text(MANIFEST, encoding="utf-8")
        assert cli.run(["build", str(folder / "lazy.toml"), "-o", str(folder)]) == 0

    return built("lazy", build)


def _launch(torch: Any, kernel: Any, x: Any, num_warps: int) -> Any:
    out = torch.zeros_like(x)
    kernel(x, out, x.numel(), grid=(-(-x.numel() // 256),), config={"num_warps": num_warps})
    return out


@pytest.mark.gpu
def test_a_first_launch_may_be_captured(torch: Any, lazy: Path) -> None:
    x = torch.randn(1000, device="cuda")
    with aotc.load(lazy, lazy=True) as library:
        kernel = library["double"]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = _launch(torch, kernel, x, 1)
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, x * 2)


@pytest.mark.gpu
def test_a_first_launch_leaves_captures_of_other_threads_alone(torch: Any, lazy: Path) -> None:
    x = torch.randn(1000, device="cuda")
    seen: list[Any] = []
    with aotc.load(lazy, lazy=True) as library:
        kernel = library["double"]
        assert torch.equal(_launch(torch, kernel, x, 8), x * 2)
        stream, other = torch.cuda.Stream(), torch.zeros_like(x)
        torch.cuda.synchronize()

        def beside() -> None:
            with torch.cuda.stream(stream):
                kernel(x, other, x.numel(), grid=(4,), config={"num_warps": 2})
                seen.append(True)

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            out = _launch(torch, kernel, x, 8)
            thread = threading.Thread(target=beside)
            thread.start()
            thread.join(30)
        graph.replay()
        torch.cuda.synchronize()
        assert seen == [True]
        assert torch.equal(out, x * 2)
        assert torch.equal(other, x * 2)


@pytest.mark.gpu
def test_what_launches_have_loaded_is_captured_and_unloaded(torch: Any, lazy: Path) -> None:
    with aotc.load(lazy, device=0, lazy=True) as library:
        kernel = library["double"]
        for _ in range(3):
            x = torch.randn(1000, device="cuda")
            assert torch.equal(_launch(torch, kernel, x, 4), x * 2)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = _launch(torch, kernel, x, 4)
            x.copy_(torch.randn_like(x))
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out, x * 2)
            del graph
            library.unload(0)
            library.load(0, lazy=True)


@pytest.mark.gpu
def test_launches_of_a_new_context_are_refused_until_it_is_loaded(lazy: Path) -> None:
    """In a process of its own: other tests need their context."""
    script = f"""
import ctypes, aotc
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()

def renew():
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20)) == 0

def launch():
    kernel(memory.value, memory.value + 4096, 256, grid=(1,), config={{"num_warps": 1}})
    assert cuda.cuCtxSynchronize() == 0

assert cuda.cuInit(0) == 0
renew()
library = aotc.load({str(lazy)!r}, lazy=True)
kernel = library["double"]
launch()
assert cuda.cuDevicePrimaryCtxReset_v2(0) == 0
renew()
try:
    launch()
except aotc.runtime.AotcError as error:
    print("refused:", error)
else:
    print("launched")
library.load(lazy=True)
launch()
library.close()
print("done")
"""
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("refused:"), process.stdout
    assert process.stdout.endswith("done\n")
