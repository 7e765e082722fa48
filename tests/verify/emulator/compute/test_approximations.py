"""Approximate instructions: off as hardware is, by no more than PTX allows, the same each time."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.verify.emulator.run import emulate

_CASES = [
    # instruction, operands, fp64 reference, an H200's share of correct results, largest distance
    ("ex2.approx.ftz.f32", 1, np.exp2, 0.7143, 2),
    ("lg2.approx.ftz.f32", 1, np.log2, 0.7396, 2),
    ("rcp.approx.ftz.f32", 1, np.reciprocal, 0.8665, 1),
    ("rsqrt.approx.ftz.f32", 1, lambda x: 1 / np.sqrt(x), 0.8867, 1),
    ("sqrt.approx.ftz.f32", 1, np.sqrt, 0.9092, 1),
    ("div.full.f32", 2, np.divide, 0.7263, 2),
    ("div.approx.f32", 2, np.divide, 0.7273, 2),
]
_COUNT = 1 << 14


def _run(instruction: str, *words: np.ndarray, approximate: bool = True) -> np.ndarray:
    count = words[0].size
    out = np.zeros(count, np.uint32)
    params = ", ".join(f".param .u64 p{index}" for index in range(len(words) + 1))
    loads = "\n".join(
        f"ld.param.u64 %rd2, [p{index + 1}];\nadd.s64 %rd2, %rd2, %rd1;\n"
        f"ld.global.b32 %r{index + 1}, [%rd2];"
        for index in range(len(words))
    )
    operands = ", ".join(f"%r{index + 1}" for index in range(len(words)))
    ptx = f"""
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k({params})
.reqntid 128
{{
.reg .b32 %r<8>;
.reg .b64 %rd<4>;
mov.u32 %r4, %tid.x;
mov.u32 %r5, %ctaid.x;
mad.lo.s32 %r4, %r5, 128, %r4;
mul.wide.s32 %rd1, %r4, 4;
{loads}
{instruction} %r6, {operands};
ld.param.u64 %rd2, [p0];
add.s64 %rd2, %rd2, %rd1;
st.global.b32 [%rd2], %r6;
ret;
}}
"""
    emulate(ptx, count // 128, [out, *words], approximate=approximate)
    return out


def _operands(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.uniform(1.1, 9.7, _COUNT).astype(np.float32).view("u4") for _ in range(count)]


@pytest.mark.parametrize(("instruction", "count", "reference", "share", "most"), _CASES)
def test_errors_match_an_h200(
    instruction: str, count: int, reference: np.ufunc, share: float, most: int
) -> None:
    words = _operands(count)
    values = [word.view("f4").astype(np.float64) for word in words]
    right = reference(*values).astype(np.float32).view("i4")
    distance = np.abs(_run(instruction, *words).view("i4") - right)
    assert distance.max() == most
    assert abs((distance == 0).mean() - share) < 0.03


@pytest.mark.parametrize(("instruction", "count"), [case[:2] for case in _CASES])
def test_equal_operands_give_equal_results(instruction: str, count: int) -> None:
    words = _operands(count)
    order = np.random.default_rng(1).permutation(_COUNT)
    mixed = _run(instruction, *(word[order] for word in words))
    np.testing.assert_array_equal(_run(instruction, *words)[order], mixed)


def test_exact_hardware_results_stay_exact() -> None:
    special = np.array([0.0, -0.0, np.inf, np.nan, 1.0, -2.0, 3.0, 1e-40] * 16, np.float32)
    powers = _run("ex2.approx.f32", special.view("u4")).view("f4")
    expected = np.array([1, 1, np.inf, np.nan, 2, 0.25, 8, 1] * 16, np.float32)
    np.testing.assert_array_equal(powers, expected)


def test_exact_instructions_are_exact() -> None:
    (word,) = _operands(1)
    expected = np.sqrt(word.view("f4"))
    np.testing.assert_array_equal(_run("sqrt.rn.f32", word).view("f4"), expected)


def test_halves_are_moved_each_for_itself() -> None:
    rng = np.random.default_rng(3)
    words = rng.uniform(-3, 3, 2 * _COUNT).astype(np.float16).view("u4")
    exact = _run("ex2.approx.f16x2", words, approximate=False).view("u2").astype(int)
    off = np.abs(_run("ex2.approx.f16x2", words).view("u2").astype(int) - exact).reshape(-1, 2)
    assert off.max() == 1
    assert 0.2 < off[:, 0].mean() < 0.4
    assert 0.2 < off[:, 1].mean() < 0.4
    assert 0 < (off[:, 0] & off[:, 1]).mean() < 0.2
