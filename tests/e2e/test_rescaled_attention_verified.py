"""Attention as most sources have it, with and without `conditional_rescaling`: verified."""

from __future__ import annotations

from pathlib import Path

import pytest

import aotc
from aotc.package.manifest.read import load
from aotc.package.verify.subjects import VerifyOptions, subjects_of_manifest
from aotc.package.verify.variants import verify_next
from aotc.schedule.cleanup import rescale_lazily
from aotc.verify.checks import reference
from tests.support.verified import check_verified

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def attend(q_ptr, k_ptr, v_ptr, out_ptr, sum_ptr, scale, n, EXP: tl.constexpr, LOG: tl.constexpr,
           HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, HEAD_DIM)
    keys = tl.arange(0, BLOCK_N)
    q = tl.load(q_ptr + rows[:, None] * HEAD_DIM + columns, mask=rows[:, None] < n, other=0.0)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    s = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    whole = n // BLOCK_N * BLOCK_N
    for is_last in tl.static_range(2):  # whole blocks of keys, then the rest
        for start in range(whole if is_last else 0, n if is_last else whole, BLOCK_N):
            at = (start + keys)[:, None] * HEAD_DIM + columns
            is_key = start + keys < n
            k = tl.load(k_ptr + at, mask=is_key[:, None], other=0.0)
            scores = tl.dot(q, k.T) * scale
            if is_last:
                scores = tl.where(is_key[None, :], scores, float("-inf"))
            new = tl.maximum(m, tl.max(scores, 1))
            p = EXP(scores - new[:, None])
            factor = EXP(m - new)
            s = s * factor + tl.sum(p, 1)
            v = tl.load(v_ptr + at, mask=is_key[:, None], other=0.0)
            acc = tl.dot(p.to(v.dtype), v, acc * factor[:, None])
            m = new
    out = acc / s[:, None]
    tl.store(out_ptr + rows[:, None] * HEAD_DIM + columns, out, mask=rows[:, None] < n)
    tl.store(sum_ptr + rows, m + LOG(s), mask=rows < n)


@triton.jit
def exp2(x):
    return tl.exp2(x)


@triton.jit
def log2(x):
    return tl.log2(x)


@triton.jit
def attend_in_twos(q_ptr, k_ptr, v_ptr, out_ptr, sum_ptr, scale, n, HEAD_DIM: tl.constexpr,
                   BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    attend(q_ptr, k_ptr, v_ptr, out_ptr, sum_ptr, scale, n, exp2, log2, HEAD_DIM, BLOCK_M, BLOCK_N)


@triton.jit
def exp(x):
    return tl.exp(x)


@triton.jit
def log(x):
    return tl.log(x)


@triton.jit
def attend_in_e(q_ptr, k_ptr, v_ptr, out_ptr, sum_ptr, scale, n, HEAD_DIM: tl.constexpr,
                BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    attend(q_ptr, k_ptr, v_ptr, out_ptr, sum_ptr, scale, n, exp, log, HEAD_DIM, BLOCK_M, BLOCK_N)
"""
MANIFEST = """
[package]
name = "attention"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "kernels.py:attend_in_{base}"
grid = ["cdiv(n, BLOCK_M)"]
configs = {{ num_warps = [4], num_stages = [2], conditional_rescaling = [{is_rescaled}] }}
[kernel.signature]
q_ptr = "*{element}:16"
k_ptr = "*{element}:16"
v_ptr = "*{element}:16"
out_ptr = "*fp32:16"
sum_ptr = "*fp32:16"
scale = "fp32"
n = "i32"
[kernel.constants]
HEAD_DIM = 32
BLOCK_M = 64
BLOCK_N = 64
[kernel.verify]
n = [1, 64, 127, 128, 257]
scale = [0.25, 4.0]
"""


@pytest.mark.parametrize("is_rescaled", ["true", "false"])
@pytest.mark.parametrize(("base", "element"), [("twos", "bf16"), ("twos", "fp16"), ("e", "bf16")])
def test_attention_is_verified(base: str, element: str, is_rescaled: str, tmp_path: Path) -> None:
    check_verified(
        tmp_path, SOURCE, MANIFEST.format(base=base, element=element, is_rescaled=is_rescaled)
    )


def num_kept_shifts(folder: Path, source: str, *, is_rescaled: bool | None) -> int:
    """Return the number of loops that keep their shift."""
    (folder / "kernels.py").write_text(source)
    kernel = aotc.compile(
        f"{folder}/kernels.py:attend_in_twos",
        signature={
            **dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), "*bf16:16"),
            **dict.fromkeys(("out_ptr", "sum_ptr"), "*fp32:16"),
            "scale": "fp32",
            "n": "i32",
        },
        constants={"HEAD_DIM": 32, "BLOCK_M": 64, "BLOCK_N": 64},
        conditional_rescaling=is_rescaled,
    )
    return kernel.asm["gpu"].count("gpu.warp_all")


@pytest.mark.parametrize("is_rescaled", [True, False])
def test_each_of_two_loops_keeps_its_shift(tmp_path: Path, *, is_rescaled: bool) -> None:
    assert num_kept_shifts(tmp_path, SOURCE, is_rescaled=is_rescaled) == 2 * is_rescaled


@pytest.mark.parametrize(
    ("maximum", "count"),
    [
        ("tl.ceil(tl.max(scores, 1))", 2),
        ("tl.max(scores, 1) if is_last else tl.ceil(tl.max(scores, 1))", 0),
        ("tl.ceil(tl.max(scores, 1)) if is_last else tl.max(scores, 1)", 0),
    ],
)
def test_only_whole_shifts_of_all_loops_are_kept_unasked(
    tmp_path: Path, maximum: str, count: int
) -> None:
    source = SOURCE.replace("tl.max(scores, 1)", maximum)
    source = source.replace('tl.full((BLOCK_M,), float("-inf")', "tl.full((BLOCK_M,), -3.0e38")
    assert num_kept_shifts(tmp_path, source, is_rescaled=None) == count


def status_of_rescaled(folder: Path) -> str:
    """Verify attention in fp16 that keeps its shifts."""
    (folder / "kernels.py").write_text(SOURCE)
    manifest = MANIFEST.format(base="twos", element="fp16", is_rescaled="true")
    (folder / "kernels.toml").write_text(manifest)
    (subject,) = subjects_of_manifest(load(str(folder / "kernels.toml")))
    return verify_next(subject, VerifyOptions(seed=1)).status


def test_weights_that_overflow_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescale_lazily, "_LARGEST_SUM", 2.0**40)
    assert status_of_rescaled(tmp_path) == "wrong"


def test_other_roundings_are_wrong_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "weight_casts", lambda _: [])
    assert status_of_rescaled(tmp_path) == "wrong"
