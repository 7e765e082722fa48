"""Bitwise reductions of int64: of registers, by atomics, into tensors. Signs do not matter to bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aotc.cli import EXIT_DONE, run
from aotc.compiler import CompileRequest, compile_kernel
from aotc.config import Config
from aotc.ir.diagnostics import CompileError
from aotc.target import TARGETS

pytestmark = pytest.mark.usefixtures("one_worker")

SOURCE = """
import triton
import triton.language as tl

@triton.jit
def _and(a, b):
    return a & b

@triton.jit
def into_tensors(x, ones, some, odd, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    tile = x.load([tl.program_id(0) * ROWS, 0])
    ones.atomic_and([0, 0], tile)
    some.atomic_or([0, 0], tile)
    odd.atomic_xor([0, 0], tile)

@triton.jit
def by_atomics(x_ptr, ones_ptr, some_ptr, odd_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0)
    tl.atomic_and(ones_ptr, tl.reduce(x, 0, _and))
    tl.atomic_or(some_ptr, tl.reduce_or(x, 0))
    tl.atomic_xor(odd_ptr, tl.xor_sum(x, 0))

@triton.jit
def both(x, total, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    tile = x.load([0, 0])
    total.atomic_xor([0, 0], tile)
    total.atomic_max([0, 0], tile)
"""
TENSOR = "tensordesc<T[ROWS,COLUMNS]>"
MANIFEST = """
[package]
name = "bits"
version = "0.1.0"
targets = ["{target}"]

[[kernel]]
source = "bits.py:into_tensors"
grid = ["cdiv(x.shape[0], ROWS)"]
[kernel.signature]
{tensors}
[kernel.types]
T = ["i64", "u64"]
[[kernel.config]]
ROWS = 8
COLUMNS = 16
num_warps = 4

[[kernel]]
source = "bits.py:by_atomics"
grid = ["cdiv(n, BLOCK)"]
signature = {{ x_ptr = "*T", ones_ptr = "*T", some_ptr = "*T", odd_ptr = "*T", n = "i32" }}
[kernel.types]
T = ["i64", "u64"]
[[kernel.config]]
BLOCK = 256
num_warps = 2
"""


# The first uses TMA reductions; it represents all in a run of few cases.
@pytest.mark.parametrize("target", sorted(TARGETS, key=lambda target: target != "sm_90a"))
def test_they_are_right_on_every_target(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bits.py").write_text(SOURCE)
    manifest = tmp_path / "bits.toml"
    tensors = "\n".join(f'{name} = "{TENSOR}"' for name in ("x", "ones", "some", "odd"))
    manifest.write_text(MANIFEST.format(target=target, tensors=tensors))
    code = run(["verify", str(manifest), "--jobs", "1", "--json"])
    out, err = capsys.readouterr()
    assert code == EXIT_DONE, out + err
    variants = json.loads(out)["variants"]
    assert len(variants) == 4
    for variant in variants:
        assert "right" in {launch["status"] for launch in variant["launches"]}


def _request(tmp_path: Path, kernel: str) -> CompileRequest:
    (tmp_path / "bits.py").write_text(SOURCE)
    names = ["x", "total"] if kernel == "both" else ["x", "ones", "some", "odd"]
    tensor = "tensordesc<i64[8, 16]>"
    return CompileRequest(
        str(tmp_path / "bits.py"),
        kernel,
        tuple((name, tensor) for name in names),
        (("ROWS", 8), ("COLUMNS", 16)),
        "sm_90a",
        Config(num_warps=4),
    )


def test_maps_of_reduced_tensors_are_unsigned(tmp_path: Path) -> None:
    slots = compile_kernel(_request(tmp_path, "into_tensors")).metadata.params
    maps = {slot.argument: slot.tensor_map for slot in slots if slot.tensor_map is not None}
    assert {name: spec.element for name, spec in maps.items()} == {
        "x": "i64",
        "ones": "u64",
        "some": "u64",
        "odd": "u64",
    }


def test_a_map_has_one_sign(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="atomic_max and atomic_xor of one descriptor") as caught:
        compile_kernel(_request(tmp_path, "both"))
    assert caught.value.loc is not None
    assert "second descriptor" in caught.value.remedy
