"""Attention over sequences of many lengths, interpreted, against float64: every mask and its ends."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from aotc.ir.types import BF16, FP8E4NV, FP32, ScalarType
from aotc.verify.interpreter.numerics import dtype_of
from tests.support.attention_reference import attend
from tests.support.decode_cases import cdiv, interpret, translated
from tests.support.references import within
from tests.support.tensors import Array, normal, poison, wide

HEAD_DIM = 32
TILES = [(16, 16), (64, 16), (16, 64)]
HEADS = [(4, 4), (6, 2), (3, 1)]
# Queries and keys of each sequence: one, tiles and one more or less, primes, chunks of a prompt, none.
LENGTHS = ((1, 1), (1, 65), (63, 63), (16, 16), (17, 81), (0, 7), (31, 200), (64, 64), (5, 5))
SIGNATURE = {
    "q": "tensordesc<Q[1,BLOCK_M,HEAD_DIM]>",
    "k": "tensordesc<C[1,BLOCK_N,HEAD_DIM]>",
    "v": "tensordesc<C[1,BLOCK_N,HEAD_DIM]>",
    "out_ptr": "*bf16",
    "cu_q_ptr": "*i32",
    "cu_k_ptr": "*i32",
    "scale": "fp32",
    **dict.fromkeys(("max_queries", "n_sequences", "n_heads", "n_kv_heads"), "i32"),
    "lse_ptr": "*fp32",
}
Seen = Callable[[Array, Array], Array]


class Packed:
    """Packed sequences, with the keys visible to each query."""

    def __init__(
        self, rng: np.random.Generator, heads: tuple[int, int], q: ScalarType, cached: ScalarType
    ) -> None:
        self.heads = heads
        self.starts_q, self.starts_k = (
            np.cumsum([0, *(lengths[axis] for lengths in LENGTHS)]).astype(np.int32)
            for axis in (0, 1)
        )
        self.q = normal(rng, (self.starts_q[-1], heads[0], HEAD_DIM), q)
        self.k, self.v = (
            normal(rng, (self.starts_k[-1], heads[1], HEAD_DIM), cached) for _ in range(2)
        )
        self.scalar = q

    def values(self) -> dict[str, Any]:
        """Return the arguments; tokens come before heads in memory."""
        tokens = len(self.q)
        return {
            **{name: getattr(self, name).swapaxes(0, 1) for name in ("q", "k", "v")},
            "out_ptr": poison((tokens, self.heads[0], HEAD_DIM), dtype_of(BF16)),
            "lse_ptr": poison((self.heads[0], tokens), dtype_of(FP32)),
            "cu_q_ptr": self.starts_q,
            "cu_k_ptr": self.starts_k,
            "scale": HEAD_DIM**-0.5,
            "max_queries": max(queries for queries, _ in LENGTHS),
            "n_sequences": len(LENGTHS),
            "n_heads": self.heads[0],
            "n_kv_heads": self.heads[1],
        }

    def check(self, values: Mapping[str, Any], seen: Callable[[int], Array], **of: Any) -> None:
        """Hold the result of a launch to float64; `seen` has a mask for each sequence."""
        group = self.heads[0] // self.heads[1]
        scales = {name: of.pop(name, np.ones(1)) for name in ("q_scale", "k_scale", "v_scale")}
        q, k, v = (
            np.swapaxes(wide(tensor), 0, 1) * wide(scales[f"{name}_scale"])[:, None, None]
            for name, tensor in (("q", self.q), ("k", self.k), ("v", self.v))
        )
        k, v = (np.repeat(tensor, group, axis=0) for tensor in (k, v))
        for i, (queries, keys) in enumerate(LENGTHS):
            rows = slice(self.starts_q[i], self.starts_q[i] + queries)
            columns = slice(self.starts_k[i], self.starts_k[i] + keys)
            output = attend(
                *(q[:, rows], k[:, columns], v[:, columns], seen(i), HEAD_DIM**-0.5),
                *(self.scalar,),
                weight_scalar=BF16,
                **of,
            )
            expected = within(output.value, output.error, BF16)
            expected.check(f"out of sequence {i}", values["out_ptr"][rows].swapaxes(0, 1))
            lse = values["lse_ptr"][:, rows]
            sees_any = seen(i).any(axis=1) | (of.get("sinks") is not None)
            assert np.array_equal(np.isfinite(lse), np.broadcast_to(sees_any, lse.shape))


def _positions(i: int) -> tuple[Array, Array]:
    """Return positions of queries, as a column, and of keys in sequence `i`."""
    queries, keys = LENGTHS[i]
    return np.arange(queries)[:, None] + keys - queries, np.arange(keys)[None, :]


def _run(
    tile: tuple[int, int],
    heads: tuple[int, int],
    seen: Seen | None = None,
    *,
    types: tuple[ScalarType, ScalarType] = (BF16, BF16),
    extra: Mapping[str, Array] | None = None,
    masks: Callable[[int], Array] | None = None,
    reference: Mapping[str, Any] | None = None,
    **constants: Any,
) -> None:
    extra = extra or {}
    rng = np.random.default_rng(zlib.crc32(f"{tile} {heads} {constants}".encode()))
    packed = Packed(rng, heads, *types)
    values = {**packed.values(), **extra}
    names = {name: f"*{'i64' if 'tree' in name else 'i32'}" for name in extra}
    names = {name: "*fp32" if extra[name].dtype == np.float32 else names[name] for name in extra}
    constants = {
        "HEAD_DIM": HEAD_DIM, "BLOCK_M": tile[0], "BLOCK_N": tile[1], "CAUSAL": False, **constants,
    }  # fmt: skip
    kernel = translated(
        "attention_varlen.py:attention_varlen_kernel",
        {**SIGNATURE, **names},
        constants,
        Q=str(types[0]),
        C=str(types[1]),
    )
    interpret(kernel, (cdiv(values["max_queries"], tile[0]), heads[0], len(LENGTHS)), values)
    if masks is None:
        assert seen is not None

        def masks(i: int) -> Array:
            positions, keys = _positions(i)
            return np.broadcast_to(seen(positions, keys), (len(positions), keys.size))

    packed.check(values, masks, **(reference or {}))


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_whole_sequences(causal: bool, tile: tuple[int, int], heads: tuple[int, int]) -> None:
    def seen(position: Array, key: Array) -> Array:
        return (key <= position) | (not causal)

    _run(tile, heads, seen, CAUSAL=causal)


@pytest.mark.parametrize("window", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_a_window_with_sinks(tile: tuple[int, int], window: int) -> None:
    sinks = np.array([0.5, -1.0, 2.0, 0.0], np.float32)

    def seen(position: Array, key: Array) -> Array:
        return (key <= position) & (key > position - window)

    _run(tile, (4, 2), seen, CAUSAL=True, WINDOW=window)
    _run(
        *(tile, (4, 2), seen),
        extra={"sink_ptr": sinks},
        reference={"sinks": sinks},
        CAUSAL=True,
        WINDOW=window,
    )


@pytest.mark.parametrize("cap", [0.25, 2.0, 30.0])
def test_a_soft_cap(cap: float) -> None:
    _run(
        (16, 16),
        (4, 2),
        lambda p, k: k <= p,
        CAUSAL=True,
        SOFT_CAP=cap,
        reference={"soft_cap": cap},
    )


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_a_prefix_that_all_see(tile: tuple[int, int]) -> None:
    prefix = np.array([0, 40, 63, 3, 17, 2, 100, 33, 9], np.int32)

    def masks(i: int) -> Array:
        position, key = _positions(i)
        return (key <= position) | (key < prefix[i])

    _run(tile, (4, 2), masks=masks, extra={"prefix_ptr": prefix}, CAUSAL=True)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_a_tree_of_drafts(tile: tuple[int, int]) -> None:
    tokens = sum(queries for queries, _ in LENGTHS)
    tree = np.random.default_rng(2).integers(-(2**63), 2**63, tokens, np.int64)
    starts = np.cumsum([0, *(queries for queries, _ in LENGTHS)])

    def masks(i: int) -> Array:
        queries, keys = LENGTHS[i]
        draft = np.arange(keys)[None, :] - (keys - queries)
        bits = tree[starts[i] : starts[i] + queries, None] >> np.maximum(draft, 0)
        return (draft < 0) | (bits & 1 == 1)

    _run(tile, (4, 2), masks=masks, extra={"tree_ptr": tree})


@pytest.mark.parametrize("q", [BF16, FP8E4NV], ids=str)
def test_fp8_with_a_scale_for_each_head(q: ScalarType) -> None:
    scales = {
        f"{name}_scale": np.abs(normal(np.random.default_rng(5), (heads,), FP32)) + np.float32(0.1)
        for name, heads in (("q", 6), ("k", 2), ("v", 2))
    }
    if q == BF16:
        del scales["q_scale"]
    _run(
        *((16, 16), (6, 2), lambda position, key: key <= position),
        types=(q, FP8E4NV),
        extra={f"{name}_ptr": scale for name, scale in scales.items()},
        reference=scales,
        CAUSAL=True,
    )
