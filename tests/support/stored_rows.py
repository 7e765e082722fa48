"""Kernels with stores of rows in loops, and the expected copies: the cases of bulk stores.

A kernel stores its input doubled, so results are exact. Cases differ in the store and in the
surrounding code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.support.descriptors import DTYPES

SOURCE = """def k(
    x_ptr, out_ptr, other_ptr, stride, n, m,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, WS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    x_ptr += row * stride
    out_ptr += row * stride
    SETUP
    for start in tl.range(0, n, BLOCK, num_stages=STAGES, warp_specialize=WS):
        x = tl.load(x_ptr + start + cols, mask=start + cols < n, other=0)
        x = (x + x).to(x.dtype)
        STORE
    BEHIND
"""
SIGNATURE = {"other_ptr": "*i32:16", "stride": "i32:16", "n": "i32:16", "m": "i32"}
NUM_ROWS = 2
ROOM = 512  # elements past a row's end, so that a write past the end is possible


@dataclass(frozen=True)
class Stored:
    """One way to store a block."""

    store: str
    setup: str = "pass"
    behind: str = "pass"
    element: str = "fp16"
    block: int = 1024
    num_stages: int | None = 3
    warp_specialize: bool = True
    signature: Mapping[str, str] = field(default_factory=dict[str, str])
    adds: int = 0
    """How often a row is added to what is there; 0: it is written over that."""

    @property
    def source(self) -> str:
        """The kernel, without its decorator."""
        parts = {"SETUP": self.setup, "STORE": self.store, "BEHIND": self.behind}
        text = SOURCE
        for name, part in parts.items():
            text = text.replace(name, part)
        return text

    @property
    def types(self) -> dict[str, str]:
        """The signature."""
        pointers = dict.fromkeys(("x_ptr", "out_ptr"), f"*{self.element}:16")
        return {**pointers, **SIGNATURE, **self.signature}

    @property
    def constants(self) -> dict[str, Any]:
        """The constants."""
        return {"BLOCK": self.block, "STAGES": self.num_stages, "WS": self.warp_specialize}

    @property
    def size_bytes(self) -> int:
        """The size of a block."""
        return self.block * np.dtype(DTYPES[self.element]).itemsize

    def arguments(self, n: int, m: int = NUM_ROWS) -> dict[str, Any]:
        """Return random data for rows of `n` elements, and an output to be written over."""
        stride, dtype = n + ROOM, DTYPES[self.element]
        x = np.random.default_rng(n).integers(-9, 9, (NUM_ROWS, stride)).astype(dtype)
        out = np.full((NUM_ROWS, stride), 99).astype(dtype)
        other = np.zeros(self.block, np.int32)
        values = {"x_ptr": x, "out_ptr": out, "other_ptr": other}
        return {**values, "stride": stride, "n": n, "m": m}

    def expected(self, args: Mapping[str, Any]) -> np.ndarray:
        """Return the stored rows, and the gaps between them."""
        out, n = args["out_ptr"].copy(), args["n"]
        rows = min(args["m"], NUM_ROWS) if "row < m" in self.store else NUM_ROWS
        x = args["x_ptr"][:rows, :n]
        added = x.astype(np.float64) * 2 * max(1, self.adds)
        out[:rows, :n] = (added + out[:rows, :n].astype(np.float64) * bool(self.adds)).astype(
            x.dtype
        )
        return out


MASKED = "tl.store(out_ptr + start + cols, x, mask=start + cols < n)"
LINES = "tl.store(out_ptr + start + lines * 16 + places, tl.reshape(x, [BLOCK // 16, 16]), mask={})"
TWO_AXES = "lines, places = tl.arange(0, BLOCK // 16)[:, None], tl.arange(0, 16)[None, :]"

STORED = {
    "masked": Stored(MASKED),
    "whole": Stored("tl.store(out_ptr + start + cols, x)"),
    "a condition": Stored(
        "tl.store(out_ptr + start + cols, x, mask=(start + cols < n) & (row < m))"
    ),
    "carried": Stored(
        "tl.store(out_ptrs, x, mask=start + cols < n); out_ptrs += BLOCK",
        setup="out_ptrs = out_ptr + cols",
    ),
    "bytes": Stored(MASKED, element="i8", block=2048),
    "words": Stored(MASKED, element="i32", block=512),
    "doubles": Stored(MASKED, element="fp64", block=256),
    "rows": Stored(LINES.format("lines < (n - start) // 16"), setup=TWO_AXES),
    "behind a barrier": Stored(MASKED, setup="tl.debug_barrier()"),
    "written elsewhere, too": Stored(MASKED, behind="tl.store(other_ptr + cols, cols)"),
    "two": Stored(f"{MASKED}; tl.store(other_ptr + cols, cols)"),
}
"""Stores that become copies."""

ADDED = 'tl.atomic_add(out_ptr + start + cols, x, mask=start + cols < n, sem="relaxed")'
_SUMS: dict[str, Any] = {"element": "i32", "block": 512, "adds": 1}
UPDATED = {
    "words": Stored(ADDED, **_SUMS),
    "twice": Stored(f"{ADDED}; {ADDED}", **{**_SUMS, "adds": 2}),
    "beside a store": Stored(f"{ADDED}; tl.store(other_ptr + cols, cols)", **_SUMS),
}
"""Atomics that become reductions."""

_AFTERWARDS = "the kernel loads through x_ptr afterwards, which may be the same memory"
NOT_STORED = {
    "no promise": (Stored(MASKED, num_stages=None), f"{_AFTERWARDS}; num_stages of tl.range"),
    "loaded behind the loop": (
        Stored(MASKED, behind="tl.store(other_ptr + cols, tl.load(x_ptr + cols).to(tl.int32))"),
        _AFTERWARDS,
    ),
    "in place": (
        Stored("tl.store(x_ptr + start + cols, x, mask=start + cols < n)"),
        "the kernel loads through it afterwards, too",
    ),
    "stored twice": (
        Stored(f"{MASKED}; tl.store(out_ptr + n + row, x.dtype(0))".replace("x.dtype(0)", "0.0")),
        "the kernel writes through it elsewhere, too",
    ),
    "a barrier": (
        Stored(f"{MASKED}; tl.debug_barrier()"),
        "tile.barrier after it keeps memory accesses",
    ),
    "an atomic": (
        Stored(MASKED, behind="tl.atomic_add(other_ptr, 1)"),
        "gpu.barrier after it keeps memory accesses",
    ),
    "every second": (
        Stored("tl.store(out_ptr + start + cols, x, mask=cols % 2 == 0)"),
        "its mask is no conjunction",
    ),
    "apart": (
        Stored("tl.store(out_ptr + (start + cols) * 2, x, mask=start + cols < n // 2)"),
        "its elements do not lie one after the other",
    ),
    "misaligned": (
        Stored("tl.store(out_ptr + 1 + start + cols, x, mask=start + cols < n)"),
        "it is not known to begin at a multiple of 16 bytes",
    ),
    "any end": (
        Stored(MASKED, signature={"n": "i32"}),
        "it is not known to end at a multiple of 16 bytes",
    ),
}
"""Stores that do not, and why."""

NOT_UPDATED = {
    "acquires and releases": (
        Stored(ADDED.replace(', sem="relaxed"', ""), **_SUMS),
        'gpu.barrier after it keeps memory accesses in order; sem="relaxed" asks for no order',
    ),
    "for the system": (
        Stored(ADDED.replace("sem=", 'scope="sys", sem='), **_SUMS),
        "copies are atomic for one GPU, not for the system",
    ),
    "of doubles": (Stored(ADDED, element="fp64", block=256), "copies have no atomic add of fp64"),
    "of floats": (
        Stored(ADDED, element="fp32", block=512),
        "threads update 16 bytes at a time",
    ),
    "of two kinds": (
        Stored(f"{ADDED}; {ADDED.replace('_add', '_max')}", element="i32", block=512),
        "the kernel writes through it elsewhere, too",
    ),
    "beside a store": (
        Stored(f"{ADDED}; {MASKED}", **_SUMS),
        "the kernel writes through it elsewhere, too",
    ),
    "any end": (
        Stored(ADDED, signature={"n": "i32"}, **_SUMS),
        "it is not known to end at a multiple of 16 bytes",
    ),
}
"""Atomics that do not, and why."""
