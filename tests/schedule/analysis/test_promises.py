"""Advice to promise something: followed to the letter, it makes the remark go away."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aotc import frontend
from aotc.config import Config
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.target import TARGETS

_SOURCE = """\
import triton
import triton.language as tl

@triton.jit
def matmul(a, b, c, M, N, K, sam, sak, sbk, sbn, scm, BM: tl.constexpr, BK: tl.constexpr):
    om = (tl.program_id(0) * BM + tl.arange(0, BM)) % M
    on = (tl.program_id(1) * BM + tl.arange(0, BM)) % N
    ok = tl.arange(0, BK)
    ap = a + om[:, None] * sam + ok[None, :] * sak
    bp = b + ok[:, None] * sbk + on[None, :] * sbn
    acc = tl.zeros((BM, BM), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        x = tl.load(ap, mask=ok[None, :] < K - k * BK, other=0.0)
        y = tl.load(bp, mask=ok[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(x, y, acc)
        ap += BK * sak
        bp += BK * sbk
    om = tl.program_id(0) * BM + tl.arange(0, BM)
    on = tl.program_id(1) * BM + tl.arange(0, BM)
    cp = c + om[:, None] * scm + on[None, :]
    tl.store(cp, acc.to(tl.float16), mask=(om[:, None] < M) & (on[None, :] < N))

@triton.jit
def rows(x, out, n, stride, rows, B: tl.constexpr):
    o = tl.arange(0, B)
    acc = tl.zeros((B,), tl.float32)
    for i in tl.range(0, rows, num_stages=3):
        acc += tl.load(x + i * stride + o, mask=o < n, other=0.0)
    tl.store(out + o, acc, mask=o < n)

@triton.jit
def gathered_rows(x, index, out, rows, B: tl.constexpr):
    o = tl.arange(0, B)
    first = tl.load(index)
    acc = tl.zeros((B,), tl.float32)
    for i in tl.range(0, rows, num_stages=3):
        acc += tl.load(x + first + i * B + o)
    tl.store(out + o, acc)

@triton.jit
def gathered_matmul(a, index, b, c, K, sbk, BM: tl.constexpr, BK: tl.constexpr):
    on, ok = tl.arange(0, BM), tl.arange(0, BK)
    ap = a + tl.load(index + ok)[None, :] + tl.load(index + on)[:, None]
    bp = b + ok[:, None] * sbk + on[None, :]
    acc = tl.zeros((BM, BM), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        acc = tl.dot(tl.load(ap), tl.load(bp), acc)
        ap += BK
        bp += BK * sbk
    tl.store(c + on[:, None] * BM + on[None, :], acc)
"""
_MULTIPLES = re.compile(r"promise ':16' in the signature, or .* of ([\w, ]+)$")
_ONE = re.compile(r"promise that (\w+)[ \w]* is 1, [\w ]*'=1' in the signature")

_BLOCKS = {"BM": 64, "BK": 64}
_MATMUL = {"a": "*fp16", "b": "*fp16", "c": "*fp16"} | dict.fromkeys(
    ("M", "N", "K", "sam", "sak", "sbk", "sbn", "scm"), "i32"
)
_ROWS = {"x": "*fp32", "out": "*fp32", "n": "i32", "stride": "i32", "rows": "i32"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "k.py"
    path.write_text(_SOURCE)
    return path


def _remarks(
    source: Path, kernel: str, signature: dict[str, str], constants: dict[str, int], target: str
) -> list[str]:
    translation = frontend.translate(str(source), kernel, signature, constants, target=target)
    maps = target == "sm_90a"
    schedule = Schedule(TARGETS[target], Config(4, 3), map_pointers=maps)
    schedule_kernel(translation.kernel, schedule)
    return list(schedule.remarks)


def _follow(signature: dict[str, str], remark: str) -> dict[str, str]:
    """Return the signature with the promise advised by a remark, or unchanged."""
    multiples, unit_argument = _MULTIPLES.search(remark), _ONE.search(remark)
    promised = dict(signature)
    for name in multiples[1].split(", ") if multiples else ():
        assert not promised[name].endswith(":16"), "it is promised already"
        promised[name] += ":16"
    if unit_argument:
        promised[unit_argument[1]] = "i32=1"
    return promised


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("kernel", "signature", "constants"),
    [
        ("matmul", _MATMUL, _BLOCKS),
        ("matmul", _MATMUL | {"sak": "i32=1", "sbn": "i32=1", "a": "*fp16:16"}, _BLOCKS),
        ("matmul", _MATMUL | {"sam": "i32=1", "sbk": "i32=1", "K": "i32:16"}, _BLOCKS),
        ("rows", _ROWS, {"B": 1024}),
        ("gathered_matmul", {**_MATMUL, "index": "*i32"}, _BLOCKS),
    ],
)
def test_advice_that_is_followed_helps(
    source: Path, kernel: str, signature: dict[str, str], constants: dict[str, int], target: str
) -> None:
    names = {"gathered_matmul": ("a", "index", "b", "c", "K", "sbk")}.get(kernel, tuple(signature))
    signature = {name: signature[name] for name in names}
    followed = 0
    for _ in range(20):
        remarks = _remarks(source, kernel, signature, constants, target)
        advice = next(
            (remark for remark in remarks if _follow(signature, remark) != signature), None
        )
        if advice is None:
            break
        signature = _follow(signature, advice)
        followed += 1
        left = _remarks(source, kernel, signature, constants, target)
        assert advice not in left, signature
    else:
        pytest.fail("the advice does not end")
    assert followed or (kernel, target) == ("rows", "sm_80")  # has no bulk copies
    if kernel == "matmul":
        assert not any("not by cp.async" in remark for remark in remarks)


def test_a_modulus_is_what_keeps_columns_from_being_contiguous(source: Path) -> None:
    signature = dict.fromkeys(_MATMUL, "i32:16") | {
        "a": "*fp16:16",
        "b": "*fp16:16",
        "c": "*fp16:16",
    }
    signature |= {"N": "i32", "M": "i32", "sak": "i32=1", "sbn": "i32=1"}
    (advice,) = (
        remark
        for remark in _remarks(source, "matmul", signature, _BLOCKS, "sm_80")
        if "promise" in remark
    )
    assert "b goes through registers" in advice
    assert advice.endswith("to have both variants built, of N")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_nothing_is_advised_for_what_is_gathered(source: Path, target: str) -> None:
    signature = {"x": "*fp32:16", "index": "*i32:16", "out": "*fp32:16", "rows": "i32"}
    remarks = _remarks(source, "gathered_rows", signature, {"B": 1024}, target)
    assert remarks
    assert not any("promise" in remark for remark in remarks)
    signature = {"a": "*fp16", "index": "*i32", "b": "*fp16:16", "c": "*fp16:16", "K": "i32"}
    remarks = _remarks(source, "gathered_matmul", signature | {"sbk": "i32:16"}, _BLOCKS, target)
    assert any("a goes through registers" in remark for remark in remarks)
    assert not any("promise" in remark for remark in remarks if " a " in remark)
