"""`aotc verify` on programs of several CTAs with uses of atomic results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc.cli import EXIT_DONE, run
from aotc.verify.emulator.run import emulate

pytestmark = pytest.mark.emulated

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def slots(counter, out, N: tl.constexpr):
    o = tl.arange(0, N)
    t = tl.atomic_add(counter + tl.program_id(0) * N + o, o)
    tl.store(out + tl.program_id(0) * N + o, t)


@triton.jit
def swap(counter, out, N: tl.constexpr):
    p = tl.program_id(0)
    old = tl.atomic_cas(counter + p, 0, p + 7)
    o = tl.arange(0, N)
    tl.store(out + p * N + o, o + old)


@triton.jit
def last(counter, out, N: tl.constexpr):
    # The program that comes last sums what all have stored.
    p = tl.program_id(0)
    o = tl.arange(0, N)
    tl.store(out + p * N + o, tl.sum(o * (p + 1)) + o)
    if tl.atomic_add(counter + 64, 1) == tl.num_programs(0) - 1:
        total = tl.zeros([N], tl.int32)
        for i in range(tl.num_programs(0)):
            total += tl.load(out + i * N + o)
        tl.store(counter + o, total)


@triton.jit
def turns(counter, out, N: tl.constexpr):
    p = tl.program_id(0)
    seen = 0
    for i in range(3):
        seen += tl.atomic_max(counter + p, i + p, sem="relaxed")
        seen += tl.atomic_add(counter + 64 + p, 2, sem="acquire")
    tl.store(out + p, seen)


@triton.jit
def locked(counter, out, N: tl.constexpr):
    o = tl.arange(0, N)
    while tl.atomic_cas(counter + 64, 0, 1) == 1:
        pass
    x = tl.load(counter + o)
    tl.store(counter + o, x + tl.sum(x + 1) + o)
    tl.atomic_xchg(counter + 64, 0)
    tl.store(out + tl.program_id(0) * N + o, tl.sum(o) + o)
"""
MANIFEST = """
[package]
name = "clusters"
version = "0.1.0"
targets = ["sm_90a"]
"""
KERNEL = """
[[kernel]]
source = "kernel.py:{name}"
grid = ["3"]
constants = {{ N = 64 }}
configs = {{ num_ctas = [2, 4] }}
signature = {{ counter = "*i32:16", out = "*i32:16" }}
[kernel.verify]
counter = {{ low = 0, high = 1 }}
"""


@pytest.mark.parametrize("name", ["slots", "swap", "last", "turns"])
@pytest.mark.usefixtures("one_worker")
def test_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "kernel.py").write_text(SOURCE)
    (tmp_path / "kernels.toml").write_text(MANIFEST + KERNEL.format(name=name))
    code = run(["verify", str(tmp_path / "kernels.toml"), "--json", "-j", "1"])
    out, err = capsys.readouterr()
    assert code == EXIT_DONE, err
    assert [variant["status"] for variant in json.loads(out)["variants"]] == ["verified"] * 2


@pytest.mark.parametrize("num_ctas", [1, 2, 4])
def test_a_lock_keeps_other_clusters_out(num_ctas: int) -> None:
    seed = 1  # without one, the round robin of warps rarely finds a lock free
    kernel = aotc.compile(
        "locked",
        source=SOURCE,
        signature={"counter": "*i32:16", "out": "*i32:16"},
        constants={"N": 64},
        num_ctas=num_ctas,
    )
    assert kernel.metadata.num_ctas == num_ctas
    counter, out = np.zeros(65, np.int32), np.zeros(192, np.int32)
    counter[:64] = expected = np.random.default_rng(seed).integers(0, 9, 64, np.int32)
    shared_bytes = kernel.metadata.shared_bytes
    grid = (3 * num_ctas, 1, 1)
    emulate(kernel.asm["ptx"], grid, [counter, out], shared_bytes=shared_bytes, seed=seed)
    lane = np.arange(64, dtype=np.int32)
    for _ in range(3):
        expected = expected + (expected + 1).sum(dtype=np.int32) + lane
    np.testing.assert_array_equal(counter, [*expected, 0])
    np.testing.assert_array_equal(out.reshape(3, 64), [lane.sum() + lane] * 3)
