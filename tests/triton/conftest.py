"""An archive of Triton kernels, and programs launching from it on the fake driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aotc import cli
from tests.support.fake_gpu import ROOT, build

KERNELS = """
import triton
import triton.language as tl
from helpers import double


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def add(x, y, bias, n, stride, scale, BLOCK: tl.constexpr, ACT: tl.constexpr = None):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = double(tl.load(x + at * stride, mask=at < n).to(tl.float32)) * scale
    if bias is not None:
        v += tl.load(bias)
    if ACT is not None:
        v = ACT(v)
    tl.store(y + at, v, mask=at < n)


@triton.autotune(
    [triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((64, 2), (128, 4), (256, 8))], key=["n"]
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def copy(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y + at, tl.load(x + at))
    else:
        tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)
"""
HELPERS = """
import triton

@triton.jit
def double(x):
    return x + x
"""
MANIFEST = """
[package]
name = "ops"
version = "0.1.0"
targets = ["sm_90a"]

[[kernel]]
name = "add"
source = "ops.py:add"
[kernel.signature]
x = "*fp32:16"
y = "*fp32:16"
bias = "none"
n = "i32:16?"
stride = "i32=1"
scale = "fp32"
[kernel.constants]
BLOCK = 64
[[kernel.config]]
num_warps = 1

[[kernel]]
name = "add_2"
source = "ops.py:add"
[kernel.signature]
x = "*fp32"
y = "*fp32"
bias = "none"
n = "i32"
stride = "i32"
scale = "fp32"
[kernel.constants]
BLOCK = 64
[[kernel.config]]
num_warps = 2

[[kernel]]
name = "add_3"
source = "ops.py:add"
[kernel.signature]
x = "*fp16"
y = "*fp32"
bias = "*fp32"
n = "i32"
stride = "i32"
scale = "fp32"
[kernel.constants]
BLOCK = 64
ACT = "ops.py:silu"

[[kernel]]
name = "add_4"
source = "ops.py:add"
[kernel.signature]
x = "*fp16"
y = "*fp16"
bias = "none"
n = "i32"
stride = "i32"
scale = "fp32=1.0"
[kernel.constants]
BLOCK = 64
[[kernel.config]]
num_warps = 8

[[kernel]]
name = "add_5"
source = "ops.py:add"
enable_fp_fusion = false
[kernel.signature]
x = "*fp32"
y = "*fp32"
bias = "none"
n = "i32"
stride = "i32"
scale = "fp32"
[kernel.constants]
BLOCK = 32

[[kernel]]
name = "copy"
source = "ops.py:copy"
[kernel.signature]
x = "*fp32"
y = "*fp32"
n = "i32"
[kernel.choices]
EVEN = [false, true]
[[kernel.config]]
BLOCK = 128
num_warps = 4
[[kernel.config]]
BLOCK = 64
num_warps = 2
"""
PRELUDE = """
import json
from pathlib import Path
from tests.support.fake_gpu import FakeGpu
from tests.support.gpu_arrays import CudaArray
gpu = FakeGpu(Path({driver!r}))
gpu.reset()
gpu.make_current(0)
seen = []
def launched(call):
    before = gpu.launches
    try:
        call()
    except Exception as error:
        seen.append([type(error).__name__, str(error)])
    else:
        last = gpu.last()
        seen.append([last.grid, last.block[0]] if gpu.launches > before else None)
x, y, half = CudaArray(4096), CudaArray(8192), CudaArray(4096, "<f2")
import aotc.triton
def install(**words):
    aotc.triton.install({archive!r}, driver={driver!r}, **words)
{body}
assert gpu.violation is None
print(json.dumps(seen))
"""


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with kernels, their archive in `dist`, and the fake driver."""
    folder = tmp_path_factory.mktemp("triton")
    (folder / "ops.py").write_text(KERNELS)
    (folder / "helpers.py").write_text(HELPERS)
    (folder / "kernels.toml").write_text(MANIFEST)
    arguments = ["build", str(folder / "kernels.toml"), "-o", str(folder / "dist"), "-j", "1"]
    assert cli.run([*arguments, "--no-cache"]) == 0
    build(folder)
    return folder


Launched = Callable[..., list[Any]]


@pytest.fixture
def run_program(project: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program in a separate Python, to isolate its installed archives."""

    def run_program(*command: str, path: tuple[str, ...] = (), cwd: Path = project) -> Any:
        folders = [*path, str(project), str(ROOT)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
        return subprocess.run(
            [sys.executable, *command],
            env=environment, cwd=cwd, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    return run_program


@pytest.fixture
def launches(project: Path, run_program: Any) -> Launched:
    """Run statements after the prelude; return the grid and block of each launch, or its error."""

    def launches(body: str, folder: Path = project, **options: Any) -> list[Any]:
        archive, driver = folder / "dist" / "ops.aotc", folder / "libcuda.so.1"
        text = PRELUDE.format(archive=str(archive), driver=str(driver), body=body)
        ran = run_program("-c", text, **options)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout.splitlines()[-1])

    return launches
