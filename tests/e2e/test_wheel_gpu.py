"""The wheel of an archive on a GPU: in an environment without the compiler, and without torch.

pytest -m gpu tests/e2e/test_wheel_gpu.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc import cli
from aotc.package.inspect import cuda_driver
from tests.support import fresh_environment

ROOT = Path(__file__).parents[2]
_PROGRAM = """
import array
import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    assert status == 0, (name, status)


n = 1000
context = ctypes.c_void_p()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
memory = []
for values in (range(n), range(0, 2 * n, 2), [0] * n):
    pointer = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(4 * n))
    call("cuMemcpyHtoD_v2", pointer, array.array("f", values).tobytes(), ctypes.c_size_t(4 * n))
    memory.append(pointer)

module = __import__(sys.argv[1])
kernels = module.load()
x, y, out = ((pointer.value, "fp32") for pointer in memory)
kernels.add(x, y, out, n)
call("cuCtxSynchronize")
result = ctypes.create_string_buffer(4 * n)
call("cuMemcpyDtoH_v2", result, memory[2], ctypes.c_size_t(4 * n))
assert array.array("f", result.raw).tolist() == [3.0 * i for i in range(n)]
assert not {"llvmlite", "numpy", "torch"} & set(sys.modules)
print("right")
"""
_SOURCE = """
import triton
import triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    y = tl.load(y_ptr + at, mask=at < n)
    tl.store(out_ptr + at, x + y, mask=at < n)
"""
_MANIFEST = """
[package]
name = "shipped"
version = "0.1.0"
targets = ["TARGET"]
[[kernel]]
source = "k.py:add"
grid = ["cdiv(n, BLOCK)"]
[kernel.signature]
x_ptr = "*fp32:16"
y_ptr = "*fp32:16"
out_ptr = "*fp32:16"
n = "i32"
[kernel.configs]
BLOCK = [256]
"""


def build_wheel(folder: Path, target: str) -> Path:
    """Build the wheel of an addition for a target, and return its path."""
    (folder / "k.py").write_text(_SOURCE)
    (folder / "kernels.toml").write_text(_MANIFEST.replace("TARGET", target))
    assert cli.run(["build", str(folder / "kernels.toml"), "-o", str(folder), "--no-cache"]) == 0
    assert cli.run(["wheel", str(folder / "shipped.aotc"), "-o", str(folder)]) == 0
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.gpu
def test_the_wheel_launches_without_the_compiler(tmp_path: Path) -> None:
    gpu = cuda_driver.ask().gpus[0]
    letter = "a" if gpu.major >= 9 else ""
    name = f"sm{gpu.major}{gpu.minor}{letter}"
    path = build_wheel(tmp_path, f"sm_{gpu.major}{gpu.minor}{letter}")
    python = fresh_environment.make(tmp_path / "environment", path)
    assert fresh_environment.run(python, _PROGRAM, f"shipped_{name}") == "right\n"
