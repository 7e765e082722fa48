"""Random numbers: published words, and the distributions made from them."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.diagnostics import CompileError
from aotc.verify.interpreter.run import run
from tests.frontend.conftest import Sources

_PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
_ONES = 0xFFFFFFFF

WORDS = """
@triton.jit
def k(counter_ptr, out, seed):
    i = tl.arange(0, 4)
    c0, c1 = tl.load(counter_ptr + i), tl.load(counter_ptr + 4 + i)
    c2, c3 = tl.load(counter_ptr + 8 + i), tl.load(counter_ptr + 12 + i)
    a, b, c, d = tl.philox(seed, c0, c1, c2, c3)
    tl.store(out + i, a)
    tl.store(out + 4 + i, b)
    tl.store(out + 8 + i, c)
    tl.store(out + 12 + i, d)
"""


@pytest.mark.parametrize(
    ("dtype", "counter", "key", "expected"),
    [
        ("u32", (0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ("i32", (_ONES,) * 4, (_ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        ("u32", *_PI, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
        (
            "u64",
            (0,) * 4,
            (0, 0),
            (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B),
        ),
    ],
)
def test_words_are_those_that_are_published(
    sources: Sources,
    dtype: str,
    counter: tuple[int, ...],
    key: tuple[int, int],
    expected: tuple[int, ...],
) -> None:
    """Source: known-answer tests of Random123."""
    word = np.uint64 if dtype == "u64" else np.uint32
    counters = np.repeat(np.array(counter, word), 4)
    if dtype == "i32":
        counters = counters.view(np.int32)
    out = np.zeros(16, word)
    kernel = sources.translate(
        WORDS,
        {
            "counter_ptr": f"*{dtype}",
            "out": f"*{'u32' if dtype == 'i32' else dtype}",
            "seed": "u64",
        },
    ).kernel
    run(kernel, (1,), [counters, out, key[0] | key[1] << 32])
    assert (
        out.reshape(4, 4).tolist() == np.repeat(np.array(expected, word), 4).reshape(4, 4).tolist()
    )


def _philox(seed: int, offset: np.ndarray) -> np.ndarray:
    """Return the words for 64-bit offsets, (4, N)."""
    mask = np.uint64(_ONES)
    c = [
        offset.astype(np.uint64) & mask,
        offset.astype(np.uint64) >> np.uint64(32),
        0 * offset,
        0 * offset,
    ]
    c = [word.astype(np.uint64) for word in c]
    k = [np.uint64(seed & _ONES), np.uint64(seed >> 32 & _ONES)]
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (second >> np.uint64(32)) ^ c[1] ^ k[0],
            second & mask,
            (first >> np.uint64(32)) ^ c[3] ^ k[1],
            first & mask,
        ]
        k = [(k[0] + np.uint64(0x9E3779B9)) & mask, (k[1] + np.uint64(0xBB67AE85)) & mask]
    return np.array(c).astype(np.uint32)


def _uniform(words: np.ndarray) -> np.ndarray:
    signed = words.view(np.int32)
    return np.where(signed < 0, ~signed, signed).astype(np.float32) * np.float32(4.6566127342e-10)


def _run(sources: Sources, body: str, offset: str, seed: int, count: int = 1) -> np.ndarray:
    lines = "\n    ".join(f"tl.store(out + {256 * i} + i, r[{i}])" for i in range(count))
    text = f"""
@triton.jit
def k(out, seed):
    i = tl.arange(0, 256)
    o = {offset}
    r = {body}
    {lines if count > 1 else "tl.store(out + i, r)"}
"""
    dtype = "u32" if "randint" in body else "fp32"
    out = np.zeros(count * 256, np.uint32 if dtype == "u32" else np.float32)
    run(sources.translate(text, {"out": f"*{dtype}", "seed": "i64"}).kernel, (1,), [out, seed])
    return out.reshape(count, 256)


OFFSETS = {
    "i": 0,
    "i.to(tl.uint32) + 4000000000": 4_000_000_000,
    "i.to(tl.int64) + 12345678901": 12_345_678_901,
}


@pytest.mark.parametrize("seed", [0, 7, -1, 1 << 40])
@pytest.mark.parametrize("offset", OFFSETS)
def test_a_number_is_a_function_of_seed_and_offset(
    sources: Sources, offset: str, seed: int
) -> None:
    words = _philox(seed % (1 << 64), np.arange(256, dtype=np.uint64) + np.uint64(OFFSETS[offset]))
    assert (_run(sources, "tl.randint4x(seed, o)", offset, seed, 4) == words).all()
    assert (_run(sources, "tl.randint(seed, o)", offset, seed) == words[0]).all()
    assert (_run(sources, "tl.rand(seed, o)", offset, seed) == _uniform(words[0])).all()
    assert (_run(sources, "tl.rand4x(seed, o)", offset, seed, 4) == _uniform(words)).all()


def test_normal_numbers(sources: Sources) -> None:
    u1, u2, u3, u4 = _uniform(_philox(3, np.arange(256))).astype(np.float64)
    expected = [
        np.sqrt(-2 * np.log(radius)) * turn(2 * np.pi * angle)
        for radius, angle in ((u1, u2), (u3, u4))
        for turn in (np.cos, np.sin)
    ]
    actual = _run(sources, "tl.randn4x(seed, i)", "i", 3, 4)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert (_run(sources, "tl.randn(seed, i)", "i", 3) == actual[0]).all()


@pytest.mark.parametrize("bits", [32, 64])
def test_a_uniform_number_is_never_one(sources: Sources, bits: int) -> None:
    for word in (0, -1, -(1 << bits - 1), (1 << bits - 1) - 1):
        words = f"tl.full((256,), {word}, tl.int{bits})"
        assert 0 <= _run(sources, f"tl.uint_to_uniform_float({words})", "i", 0)[0, 0] < 1


def test_fewer_rounds(sources: Sources) -> None:
    assert (
        _run(sources, "tl.randint4x(seed, i, n_rounds=0)", "i", 5, 4)[0] == np.arange(256)
    ).all()
    samples = _run(sources, "tl.randint(seed, i, 7)", "i", 5)
    assert (samples != _run(sources, "tl.randint(seed, i)", "i", 5)).all()


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("tl.rand(0.5, i)", "the seed must be an integer, got float32"),
        ("tl.rand(0, i * 0.5)", "the offset must be an integer"),
        ("tl.rand(0, i, n_rounds=-1)", "n_rounds must not be negative, got -1"),
        ("tl.philox_impl(i, i, i, i, 0, 0)", "tl.philox_impl takes uint32 or uint64"),
        ("tl.philox(0, i, i, i, i.to(tl.int64))", "four words of 32 bits, or four of 64"),
        ("tl.uint_to_uniform_float(i.to(tl.int8))", "takes 32 or 64 bits"),
    ],
)
def test_mistakes(sources: Sources, expression: str, message: str) -> None:
    text = f"@triton.jit\ndef k(out):\n    i = tl.arange(0, 4)\n    x = {expression}\n"
    with pytest.raises(CompileError) as caught:
        sources.translate(text, {"out": "*fp32"})
    assert message in caught.value.render()
