"""Peers run in a process of their own; a missing or failing one is only reported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from aotc.compiler import autotune_configs
from aotc.ir.types import SCALARS
from aotc.package.cover.choose import kernel_of
from aotc.package.manifest.read import load
from aotc.package.manifest.variant_grid import expand
from aotc.package.tuning.shapes import Launch
from aotc.tuning.bench import BenchOptions, Timed
from aotc.tuning.buffers import BufferPlan
from aotc.tuning.peers import ask, requests_of
from aotc.verify.checks.contents import HEAD_BYTES
from aotc.verify.checks.input_data import floats
from tests.support.cover_kernels import MANIFEST, write

TORCH = """
import contextlib, types
print("torch is imported")

class Tensor(list):
    is_floating_point = True
    def to(self, dtype): return self
    def view(self, *shape): return self
    def t(self): return self
    def zero_(self): pass
    dtype = None

class Event:
    def __init__(self, enable_timing): pass
    def record(self): pass
    def elapsed_time(self, end): return 0.25

float16 = bfloat16 = float32 = types.SimpleNamespace(is_floating_point=True)
int8 = int32 = types.SimpleNamespace(is_floating_point=False)
launched = []
def randn(count, **_): return Tensor([count])
def zeros(count, **_): return Tensor([count])
def empty(*count, **_): return Tensor(count)
def matmul(a, b, out): launched.append(1)
cuda = types.SimpleNamespace(Event=Event, synchronize=lambda: None)
"""
TRITON = """
import types
class JITFunction:
    def __init__(self, fn):
        self.fn, self.arg_names = fn, []
    def __getitem__(self, grid):
        def launch(**values):
            assert grid == (1,), grid
            assert values.pop("num_warps") == 2
            assert set(values) == {"x", "out", "n", "stride", "BLOCK", "NEGATE", "MODE"}, values
            assert values["stride"] == 1024 and values["NEGATE"] is True
            assert values["x"] == [272]
        return launch
jit = JITFunction
def set_allocator(f): pass
"""


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = tmp_path / "site"
    (site / "triton").mkdir(parents=True)
    (site / "torch.py").write_text(TORCH)
    (site / "triton" / "__init__.py").write_text(TRITON)
    (site / "triton" / "language.py").write_text("class constexpr: pass\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    return site


def requests(folder: Path, mode: str = "ok") -> list[dict[str, Any]]:
    constants = f"[kernel.constants]\nMODE = '{mode}'\n[kernel.choices]"
    text = MANIFEST.replace("[kernel.choices]", constants)
    text += "num_warps = [2]\n[kernel.bench]\nmatmul = ['n', '64', '8']\n"
    spec = load(str(write(folder, text))).kernels[0]
    manifest = load(str(folder / "kernels.toml"))
    kernel, _ = kernel_of(expand(spec, manifest.targets, autotune_configs))
    variant = next(candidate for candidate in kernel.variants if candidate.types == ("bf16",))
    launch = Launch("scale", {"T": "bf16"}, {"NEGATE": True}, {"n": 272})
    element = SCALARS["bf16"]
    size = HEAD_BYTES + 272 * 2
    plans = [BufferPlan(n, element, size, size, floats(element, 0)) for n in ("x", "out")]
    return requests_of(Timed(kernel, launch, variant), spec, plans, BenchOptions(passes=3))


def test_triton_launches_the_same_source_with_the_same_arguments(
    peers: Path, tmp_path: Path
) -> None:
    answers, problem = ask(sys.executable, requests(tmp_path), "0")
    assert problem == ""
    assert answers == [
        {"name": "Triton", "seconds": 0.25e-3},
        {"name": "cuBLAS", "seconds": 0.25e-3},
    ]


def test_a_peer_that_fails_leaves_the_others(peers: Path, tmp_path: Path) -> None:
    peer_requests = requests(tmp_path)
    (tmp_path / "scale.py").write_text("raise RuntimeError('at import')")
    answers, _ = ask(sys.executable, peer_requests, "0")
    assert answers[0] == {"name": "Triton", "problem": "RuntimeError: at import"}
    assert "seconds" in answers[1]
    (tmp_path / "scale.py").write_text("import os; os._exit(3)")
    answers, _ = ask(sys.executable, peer_requests, "0")
    assert [answer["problem"] for answer in answers] == ["the peers' process ended"] * 2


def test_without_pytorch_there_are_no_peers(peers: Path, tmp_path: Path) -> None:
    (peers / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    answers, problem = ask(sys.executable, requests(tmp_path), "0")
    assert answers == []
    assert problem.endswith("has no PyTorch")
    answers, _ = ask(str(tmp_path / "no-python"), requests(tmp_path), "0")
    assert "cannot run" in answers[0]["problem"]


def test_a_constant_that_is_a_function_is_told(tmp_path: Path) -> None:
    triton, library = requests(tmp_path, "ops.py:silu")
    assert triton == {"peer": "triton", "problem": "MODE is a function"}
    assert library["extents"] == [272, 64, 8]
