"""Decode over a paged cache: one token of each sequence, against an equal-sized copy.

A launch of a short context reads less than the L2 holds. So a cache has several sets of pages, and
launches take them in turn. The candidates are a split kernel and a combining kernel, one kernel in
which the last split combines, or one whose splits are a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import torch_peers
from benchmarks.harness.operands import Arguments, Array, Arrays, Part, Wide
from benchmarks.harness.workload import (
    Config,
    Configs,
    Item,
    Launch,
    Peer,
    Plans,
    Step,
    Workload,
    cdiv,
    tiles,
)
from benchmarks.harness.workloads.attention import LOG2_E, TOLERANCE, softmax

_LATENT, _ROPE = 512, 64
_MLA_SCALE = 192**-0.5  # of 128 + 64 features, before keys were absorbed
_LEAST_BYTES = 512 << 20  # of all sets together: ten times the L2
_DENSE_LIMIT = 20 << 30  # the largest cache with a dense copy for torch
# CTAs of a launch: one or two for each of 132 SMs, or a few rounds of them.
_PROGRAMS = (132, 264, 528, 1056)
_TILE = ("BLOCK_H", "BLOCK_N", "num_warps", "num_stages")


@dataclass(frozen=True)
class Shape:
    """A token for each of `batch` sequences."""

    batch: int
    length: int
    heads: int = 64
    kv_heads: int = 8
    dim: int = 128
    page: int = 64
    fp8: bool = False
    mla: bool = False
    ragged: bool = False
    least_bytes: int = _LEAST_BYTES

    @property
    def name(self) -> str:
        """Name in result rows."""
        kind = f"mla {self.heads}" if self.mla else f"{self.heads}/{self.kv_heads}"
        lengths = f"{self.length // 2}-{self.length}" if self.ragged else f"{self.length}"
        return f"{self.batch}×{lengths} {kind} page {self.page}{' fp8' if self.fp8 else ''}"

    @property
    def kernel(self) -> str:
        """The kernel of benchmarks/decode.toml for it."""
        return "mla_64" if self.mla else f"paged_{self.page}{'_fp8' if self.fp8 else ''}"

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence; of ragged ones from a half to all."""
        if not self.ragged:
            return [self.length] * self.batch
        return [self.length - i * (self.length // 2) // self.batch for i in range(self.batch)]

    @property
    def max_pages(self) -> int:
        """Columns of the block table."""
        return cdiv(self.length, self.page)

    @property
    def read(self) -> int:
        """Bytes of the cache that a launch has to read."""
        token = self.kv_heads * self.dim * 2 * (1 if self.fp8 else 2)
        return sum(self.lengths) * ((_LATENT + _ROPE) * 2 if self.mla else token)

    @property
    def out_dim(self) -> int:
        """Features of a head's result."""
        return _LATENT if self.mla else self.dim

    @property
    def num_sets(self) -> int:
        """Sets of pages, used by launches in turn."""
        return max(1, math.ceil(self.least_bytes / self.read))

    def operands(self, arrays: Arrays) -> Arguments:
        """Return the next set of pages of one cache, and the numbers of a launch."""
        cache = _CACHES.setdefault((self, type(arrays)), [])
        if not cache:
            cache += self._sets(arrays)
        return cache.pop()

    def _sets(self, arrays: Arrays) -> list[Arguments]:
        """Return all sets of pages."""
        pages = self.num_sets * self.batch * self.max_pages
        shared = self._latent(arrays, pages) if self.mla else self._keys(arrays, pages)
        shared |= {
            "lengths_ptr": arrays.array(self.lengths),
            "out_ptr": arrays.empty(self.batch, self.heads, self.out_dim),
            "n_sequences": self.batch,
            "n_heads": self.heads,
            "n_kv_heads": self.kv_heads,
            "max_pages": self.max_pages,
        }
        order = np.random.default_rng(0).permutation(pages)
        tables = order.reshape(self.num_sets, self.batch, self.max_pages)
        flat = arrays.view(shared["cache" if self.mla else "k"], "u8").reshape(-1)
        size = min(self.read // 2, len(flat) // self.num_sets) // 16 * 16
        target = arrays.empty(self.num_sets, size, dtype="u8")
        return [
            shared
            | {"table_ptr": arrays.array(table), "pages": table, "target": target[index]}
            | {"source": flat[index * size : (index + 1) * size]}
            for index, table in enumerate(tables)
        ]

    def _latent(self, arrays: Arrays, pages: int) -> Arguments:
        cache = arrays.normal(pages, self.page, _LATENT + _ROPE)
        q = arrays.normal(self.batch, self.heads, _LATENT + _ROPE)
        split = {"q_latent": q[..., :_LATENT], "q_rope": q[..., _LATENT:]}
        split |= {"latent": cache[..., :_LATENT], "rope": cache[..., _LATENT:]}
        return {"cache": cache, "all_q": q, "scale_log2": _MLA_SCALE * LOG2_E, **split}

    def _keys(self, arrays: Arrays, pages: int) -> Arguments:
        kind, size = "fp8e4nv" if self.fp8 else "bf16", (self.kv_heads, self.page, self.dim)
        q = arrays.normal(self.batch, self.heads, self.dim)
        scales = {f"{n}_scale_ptr": arrays.uniform(self.kv_heads, low=0.5) for n in "kv"}
        return {
            "all_q": q,
            "q": q.reshape(self.batch * self.kv_heads, -1, self.dim),
            "k": arrays.normal(pages, *size, dtype=kind),
            "v": arrays.normal(pages, *size, dtype=kind),
            "scale_log2": self.dim**-0.5 * LOG2_E,
            **scales,
        }

    def _tokens(self, arrays: Arrays, cache: Array, pages: Wide, part: Any) -> Wide:
        """Return a sequence's tokens of a cache in float64, of a head unless it is latent."""
        return np.concatenate([arrays.wide(cache[(int(page), *part)]) for page in pages])

    def reference(self, arrays: Arrays, args: Arguments) -> Iterator[Part]:
        """Yield the result of some sequences and heads."""
        last = (self.batch - 1, self.heads - 1)
        for sequence, head in {(0, 0), last, (self.batch // 2, self.heads // 2)}:
            pages, count = args["pages"][sequence], self.lengths[sequence]
            q = arrays.wide(args["all_q"][sequence, head])
            if self.mla:
                keys = self._tokens(arrays, args["cache"], pages, ())[:count]
                values, scale = keys[:, :_LATENT], _MLA_SCALE
            else:
                kv_head = head // (self.heads // self.kv_heads)
                part = (kv_head,)
                keys, values = (
                    self._tokens(arrays, args[name], pages, part)[:count] for name in "kv"
                )
                scale = self.dim**-0.5
                if self.fp8:
                    keys = keys * arrays.wide(args["k_scale_ptr"])[kv_head]
                    values = values * arrays.wide(args["v_scale_ptr"])[kv_head]
            weights = softmax((keys @ q * scale)[None])[0]
            yield Part("out_ptr", (sequence, head), weights @ values)

    def splits(self) -> Sequence[int]:
        """Return the sizes of splits in pages, for about so many working programs."""
        by_sequence = cdiv(self.heads, 64) if self.mla else self.kv_heads
        counts = (max(1, programs // (self.batch * by_sequence)) for programs in _PROGRAMS)
        return sorted({cdiv(self.max_pages, count) for count in counts})

    def plans(self, arrays: Arrays, args: Arguments, configs: Configs) -> Iterator[Plans]:
        """Yield clusters, single kernels, and splits with a combining kernel."""
        clusters = self.batch * self.kv_heads
        for config in configs(f"{self.kernel}_cluster"):
            if config["num_ctas"] <= 2 or clusters * config["num_ctas"] < 2 * max(_PROGRAMS):
                yield (Step(f"{self.kernel}_cluster", config),)
        combine = f"combine_{self.out_dim}"
        for pages in self.splits():
            values = self._parts(arrays, pages)
            note = f"{pages} pages a split"
            single = {**values, "counter_ptr": arrays.zeros(self.batch * self.heads)}
            for config in configs(f"{self.kernel}_single"):
                yield (Step(f"{self.kernel}_single", config, single, note=note),)
            end = Step(combine, None, values, {"PAGE": self.page})
            for config in configs(self.kernel):
                yield (Step(self.kernel, config, values, note=note), end)
            if not (self.mla or self.fp8):
                through = self._through_pointers(args, note)
                for config in configs("pointers"):
                    yield (through("pointers", config, values), end)
                for config in configs("pointers_single"):
                    yield (through("pointers_single", config, single),)

    def _parts(self, arrays: Arrays, pages: int) -> dict[str, Any]:
        """Return poisoned partial results: a config must not read those of an earlier one."""
        extents = (self.batch, self.heads, cdiv(self.max_pages, pages))
        part = arrays.empty(*extents, self.out_dim, dtype="fp32")
        lse = arrays.empty(*extents, dtype="fp32")
        arrays.poison(part)
        arrays.poison(lse)
        return {"part_ptr": part, "lse_ptr": lse, "pages_per_split": pages}

    def _through_pointers(
        self, args: Arguments, note: str
    ) -> Callable[[str, Config, dict[str, Any]], Step]:
        """Return the function to a step that gathers tokens through pointers."""
        strides = {
            f"stride_{name}{axis}": math.prod(args[name].shape[index + 1 :])
            for name in "kv"
            for index, axis in enumerate("phn")
        }
        shared = {f"{name}_ptr": args[name] for name in "qkv"} | strides
        choices = {"PAGE": self.page}
        return lambda kernel, config, values: Step(
            kernel, config, {**shared, **values}, choices, note=note
        )

    def by_torch(self, args: Arguments) -> Launch:
        """Return torch's attention on dense copies of the sets."""
        import torch

        if self.read * self.num_sets > _DENSE_LIMIT:
            raise ValueError("too large for a dense copy")
        k, v = (args[name][args["table_ptr"].long()].transpose(2, 3).flatten(1, 2) for name in "kv")
        k, v = (dense[:, : self.length].transpose(1, 2).contiguous() for dense in (k, v))
        q = args["all_q"][:, :, None]

        def launch() -> None:
            result = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, enable_gqa=self.heads != self.kv_heads
            )
            args["out_ptr"] = result[:, :, 0]

        return launch

    def workload(self) -> Workload:
        """Return the workload."""
        plain = ((16, 64, 4, 2), (16, 64, 4, 3), (16, 128, 4, 2), (64, 64, 4, 2), (64, 64, 4, 3))
        mla = ((16, 32, 4, 2), (32, 32, 8, 2), (64, 32, 8, 2), (64, 64, 8, 2))
        pointers = ((16, 64, 4, 2), (16, 64, 4, 3), (16, 128, 4, 2), (16, 32, 4, 4))
        splits = tiles(_TILE, *(mla if self.mla else plain))
        gathered = tiles(_TILE, *pointers)
        triton = {self.kernel: splits, "pointers": gathered, "pointers_single": gathered}
        triton[f"{self.kernel}_single"] = [] if self.mla else splits
        peers = {"copy": torch_peers.copy("source", "target")}
        if not (self.mla or self.fp8 or self.ragged):
            peers["torch"] = Peer(self.by_torch)
        return Workload(
            name=self.name,
            manifest="benchmarks/decode.toml",
            work=float(self.read),
            unit="TB/s",
            operands=self.operands,
            reference=self.reference,
            tolerance=TOLERANCE,
            outputs=("out_ptr",),
            plans=self.plans,
            triton=triton | {f"{self.kernel}_cluster": []},
            peers=peers,
            sets=self.num_sets,
        )


_CACHES: dict[Any, list[Arguments]] = {}
"""Sets of pages that are still to be taken, of one cache."""

_SHAPES = {
    "gqa": [Shape(b, length) for length in (8192, 32768, 65536) for b in (1, 8, 64)],
    "pages": [Shape(8, 32768, page=page) for page in (16, 256)],
    "ragged": [Shape(64, 16384, ragged=True)],
    "ratios": [Shape(16, 16384, heads=32, kv_heads=8), Shape(64, 16384, heads=16, kv_heads=1)],
    "fp8": [Shape(batch, length, fp8=True) for batch, length in ((8, 32768), (64, 8192))],
    "mla": [Shape(batch, 8192, heads=128, mla=True) for batch in (1, 16, 64)],
}
ITEMS = {
    name: Item("attention", f"Decode over a paged cache, {name}", [s.workload() for s in shapes])
    for name, shapes in _SHAPES.items()
}
_FEW: dict[str, Any] = {"heads": 4, "kv_heads": 2, "least_bytes": 1}
TINY = [
    Shape(2, 150, ragged=True, **_FEW).workload(),
    Shape(1, 33, page=16, **_FEW).workload(),
    Shape(1, 300, page=256, **_FEW).workload(),
    Shape(2, 70, fp8=True, **_FEW).workload(),
    Shape(1, 70, heads=4, mla=True, least_bytes=1).workload(),
]
