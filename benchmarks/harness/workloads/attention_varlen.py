"""Serving forms of forward attention: packed lengths, windows and sinks, soft caps, prefixes, trees, fp8."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.harness.operands import Arguments, Arrays, Part, Wide
from benchmarks.harness.workload import Item, Launch, Peer, Workload, tiles
from benchmarks.harness.workloads.attention import TOLERANCE, softmax

_DIM = 128
_MANY = (8192, 512, 4096, 1024, 6000, 777, 3072, 2048)
_CHECKED_ROWS = 126


@dataclass(frozen=True)
class Shape:
    """Queries and keys of each sequence, heads, and constants of the mask."""

    name: str
    kernel: str
    queries: tuple[int, ...]
    keys: tuple[int, ...] = ()
    heads: int = 32
    kv_heads: int = 8
    constants: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Queries and keys of each sequence."""
        return list(zip(self.queries, self.keys or self.queries, strict=True))

    @property
    def work(self) -> float:
        """Floating-point operations of both dots, for unmasked scores; of trees the expected ones."""
        pairs = sum(self._pairs(queries, keys) for queries, keys in self.lengths)
        return 4.0 * _DIM * self.heads * pairs

    def _pairs(self, queries: int, keys: int) -> float:
        if self.kernel == "tree":
            return queries * (keys - queries + queries / 2)
        if not self.constants.get("CAUSAL", True):
            return queries * keys
        seen = np.arange(queries) + keys - queries + 1
        if self.kernel == "prefix":
            seen = np.maximum(seen, keys // 2)
        if self.kernel == "window":
            seen = np.minimum(seen, self.constants["WINDOW"])
        return float(seen.sum())

    def operands(self, arrays: Arrays) -> Arguments:
        """Return packed queries, keys and values, their offsets, and what the mask needs."""
        counts = [sum(lengths) for lengths in zip(*self.lengths, strict=True)]
        cache = "fp8e4nv" if "fp8" in self.kernel else "bf16"
        rows = cache if self.kernel == "fp8" else "bf16"
        args: Arguments = {
            "q_tokens": arrays.normal(counts[0], self.heads, _DIM, dtype=rows),
            "k_tokens": arrays.normal(counts[1], self.kv_heads, _DIM, dtype=cache),
            "v_tokens": arrays.normal(counts[1], self.kv_heads, _DIM, dtype=cache),
            "out_ptr": arrays.empty(counts[0], self.heads, _DIM),
        }
        args |= {name: args[f"{name}_tokens"].swapaxes(0, 1) for name in "qkv"}
        for name, lengths in zip(("q", "k"), zip(*self.lengths, strict=True), strict=True):
            args[f"cu_{name}_ptr"] = arrays.array(np.cumsum([0, *lengths]))
        heads = {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}
        args |= {f"{n}_scale_ptr": arrays.uniform(count, low=0.5) for n, count in heads.items()}
        args |= {
            "sink_ptr": arrays.normal(self.heads, dtype="fp32"),
            "prefix_ptr": arrays.array([keys // 2 for _, keys in self.lengths]),
            "tree_ptr": arrays.integers(-(1 << 62), 1 << 62, counts[0], dtype="i64"),
            "scale": _DIM**-0.5,
            "max_queries": max(self.queries),
            "n_sequences": len(self.lengths),
            "n_heads": self.heads,
            "n_kv_heads": self.kv_heads,
        }
        return args

    def seen(self, sequence: int, rows: Wide, bits: Wide) -> Wide:
        """Return the mask of a sequence's keys for rows of its queries; `bits` are of these rows."""
        queries, keys = self.lengths[sequence]
        last_key, key = (rows + keys - queries)[:, None], np.arange(keys)[None, :]
        if self.kernel == "tree":
            draft = key - (keys - queries)
            return (draft < 0) | ((bits[:, None] >> (draft & 63)) & 1 != 0)
        if not self.constants.get("CAUSAL", True):
            return np.ones((len(rows), keys), bool)
        seen = key <= last_key
        if self.kernel == "prefix":
            seen |= key < keys // 2
        if self.kernel == "window":
            seen &= key > last_key - self.constants["WINDOW"]
        return seen

    def reference(self, arrays: Arrays, args: Arguments) -> Iterator[Part]:
        """Yield rows of some sequences and heads."""
        rng, last = np.random.default_rng(0), len(self.lengths) - 1
        first_q, first_k = (np.cumsum([0, *n]) for n in zip(*self.lengths, strict=True))
        for sequence, head in ((0, 0), (last, self.heads - 1), (min(1, last), self.heads // 2)):
            queries, keys = self.lengths[sequence]
            rows = np.unique([0, queries - 1, *rng.integers(0, queries, _CHECKED_ROWS)])
            kv_head = head // (self.heads // self.kv_heads)
            at_q = slice(int(first_q[sequence]), int(first_q[sequence]) + queries)
            at_k = slice(int(first_k[sequence]), int(first_k[sequence]) + keys)
            q = arrays.wide(args["q_tokens"][at_q, head])[rows]
            k, v = (arrays.wide(args[f"{name}_tokens"][at_k, kv_head]) for name in "kv")
            scale = self._scales(arrays, args, head, kv_head)
            scores = q @ k.T * scale["q"] * scale["k"] * _DIM**-0.5
            if "SOFT_CAP" in self.constants:
                cap = self.constants["SOFT_CAP"]
                scores = np.tanh(scores / cap) * cap
            bits = args["tree_ptr"][at_q]
            bits = np.asarray(bits.cpu() if hasattr(bits, "cpu") else bits)[rows]
            scores = np.where(self.seen(sequence, rows, bits), scores, -np.inf)
            if self.kernel == "window":
                sinks = np.full((len(rows), 1), arrays.wide(args["sink_ptr"])[head])
                weights = softmax(np.concatenate([scores, sinks], 1))[:, :-1]
            else:
                weights = softmax(scores)
            yield Part("out_ptr", (at_q.start + rows, head), weights @ v * scale["v"])

    def _scales(self, arrays: Arrays, args: Arguments, head: int, kv_head: int) -> dict[str, float]:
        scaled = {"fp8": "qkv", "fp8_cache": "kv"}.get(self.kernel, "")
        heads = {"q": head, "k": kv_head, "v": kv_head}
        return {
            name: float(arrays.wide(args[f"{name}_scale_ptr"])[index]) if name in scaled else 1.0
            for name, index in heads.items()
        }

    def by_torch(self, args: Arguments) -> Launch:
        """Return torch's attention over packed sequences."""
        import inspect

        from torch.nn.attention.varlen import varlen_attn

        attend: Callable[..., Any] = varlen_attn
        group, causal = self.heads // self.kv_heads, self.constants["CAUSAL"]
        k, v = (args[f"{name}_tokens"].repeat_interleave(group, dim=1) for name in "kv")
        longest = [max(lengths) for lengths in zip(*self.lengths, strict=True)]
        words: dict[str, Any] = {"is_causal": causal}
        if "window_size" in inspect.signature(attend).parameters:  # of later versions
            words = {"window_size": (-1, 0 if causal else -1)}

        def launch() -> None:
            args["out_ptr"] = attend(
                args["q_tokens"], k, v, args["cu_q_ptr"], args["cu_k_ptr"], *longest, **words
            )

        return launch

    def workload(self) -> Workload:
        """Return the workload."""
        names = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
        configs = tiles(names, (128, 128, 8, 2), (128, 64, 8, 2), (128, 64, 8, 3), (64, 64, 4, 2))
        return Workload(
            name=self.name,
            manifest="benchmarks/attention_varlen.toml",
            work=self.work,
            unit="TFLOP/s",
            operands=self.operands,
            reference=self.reference,
            tolerance=TOLERANCE,
            outputs=("out_ptr",),
            kernels=(self.kernel,),
            choices={name: v for name, v in self.constants.items() if name == "CAUSAL"},
            triton={self.kernel: configs},
            peers={"torch": Peer(self.by_torch)} if self.kernel == "varlen" else {},
        )


_CAUSAL = {"CAUSAL": True}
_WINDOW, _CAP = {"WINDOW": 1024}, {"SOFT_CAP": 30.0}
_SHAPES = {
    "varlen": Shape("many lengths, causal", "varlen", _MANY, constants=_CAUSAL),
    "full": Shape("many lengths, full", "varlen", _MANY, constants={"CAUSAL": False}),
    "chunk": Shape("512 queries behind 8k", "varlen", (512,) * 8, (8704,) * 8, constants=_CAUSAL),
    "window": Shape("window of 1k, sinks", "window", (16384,) * 2, constants=_WINDOW),
    "soft_cap": Shape("soft cap", "soft_cap", _MANY, constants=_CAP),
    "prefix": Shape("prefixes", "prefix", _MANY),
    "tree": Shape("trees of 64 drafts", "tree", (64,) * 32, (8192 + 64,) * 32),
    "fp8_cache": Shape("fp8 keys and values", "fp8_cache", _MANY),
    "fp8": Shape("fp8", "fp8", _MANY),
}
ITEMS = {
    name: Item("attention", f"Attention for serving, 32 heads on 8, d128: {shape.name}", [
        shape.workload()
    ])
    for name, shape in _SHAPES.items()
}  # fmt: skip
_FEW: dict[str, Any] = {"heads": 2, "kv_heads": 1}
TINY = [
    Shape("causal", "varlen", (65, 7), constants=_CAUSAL, **_FEW).workload(),
    Shape("full", "varlen", (7, 30), constants={"CAUSAL": False}, **_FEW).workload(),
    Shape("chunk", "varlen", (9, 5), (90, 75), constants=_CAUSAL, **_FEW).workload(),
    Shape("window", "window", (9,), (1100,), constants=_WINDOW, **_FEW).workload(),
    Shape("soft cap", "soft_cap", (65, 7), constants=_CAP, **_FEW).workload(),
    Shape("prefixes", "prefix", (65, 7), **_FEW).workload(),
    Shape("trees", "tree", (64, 64), (100, 70), **_FEW).workload(),
    Shape("fp8 keys and values", "fp8_cache", (65, 7), **_FEW).workload(),
    Shape("fp8", "fp8", (65, 7), **_FEW).workload(),
]
