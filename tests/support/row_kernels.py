"""Kernels with loads of rows in loops, and the expected copies: the cases of bulk copies.

A kernel adds up blocks of `x_ptr`; integers make every order of sums exact. Cases differ in the load
of an iteration: `load` is its code, `element` its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.support.descriptors import DTYPES

SOURCE = """def k(
    x_ptr, out_ptr, stride, n, m, BLOCK: tl.constexpr, STAGES: tl.constexpr, WS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.TYPE)
    x_ptr += row * stride
    SETUP
    for start in tl.range(0, n, STEP, num_stages=STAGES, warp_specialize=WS):
        x = LOAD
        total += x.to(tl.TYPE)
        TURN
    tl.store(out_ptr + row * BLOCK + cols, total)
"""
SIGNATURE = {"out_ptr": "*fp32:16", "stride": "i32:16", "n": "i32:16", "m": "i32"}
NUM_ROWS = 2
ROOM = 512  # elements past a row's end, so that a read past the end is possible


@dataclass(frozen=True)
class Rows:
    """One way to load a block; `other` is the value of masked-off lanes."""

    load: str
    setup: str = "pass"
    turn: str = "pass"
    element: str = "fp16"
    block: int = 1024
    other: int = 0
    signature: Mapping[str, str] = field(default_factory=dict[str, str])
    constants: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def source(self) -> str:
        """The kernel, without its decorator."""
        kind = "int32" if self.element.startswith("i") else "float32"
        text = SOURCE.replace("TYPE", kind).replace("LOAD", self.load)
        text = text.replace("SETUP", self.setup).replace("TURN", self.turn)
        return text.replace("STEP", "BLOCK")

    @property
    def types(self) -> dict[str, str]:
        """The signature."""
        out = {"out_ptr": "*i32:16"} if self.element.startswith("i") else {}
        return {"x_ptr": f"*{self.element}:16", **SIGNATURE, **out, **self.signature}

    def arguments(self, n: int, m: int = NUM_ROWS) -> dict[str, Any]:
        """Return random data for rows of `n` elements, and an output to be written over."""
        stride = n + ROOM
        data = np.random.default_rng(n).integers(-9, 9, (NUM_ROWS, stride))
        out = np.full((NUM_ROWS, self.block), 99, DTYPES[self.types["out_ptr"][1:].split(":")[0]])
        x = data.astype(DTYPES[self.element])
        return {"x_ptr": x, "out_ptr": out, "stride": stride, "n": n, "m": m}

    def expected(self, args: Mapping[str, Any]) -> np.ndarray:
        """Return the sums over the blocks of each row."""
        n, x = args["n"], args["x_ptr"].astype(args["out_ptr"].dtype)
        blocks = -(-n // self.block)
        padded = np.full((NUM_ROWS, blocks * self.block), self.other, x.dtype)
        padded[:, :n] = x[:, :n]
        return padded.reshape(NUM_ROWS, blocks, self.block).sum(1, dtype=x.dtype)


def lengths(block: int) -> tuple[int, ...]:
    """Return numbers of columns around multiples of a block: whole pieces all of them."""
    return (0, 16, block - 16, block, block + 16, 3 * block, 5 * block + 48)


MASKED = "tl.load(x_ptr + start + cols, mask=start + cols < n, other={})"

LINES = "tl.reshape(tl.load(x_ptr + start + lines * 16 + places, mask={}, other=0.0), [BLOCK])"
TWO_AXES = "lines, places = tl.arange(0, BLOCK // 16)[:, None], tl.arange(0, 16)[None, :]"

COPIED = {
    "masked": Rows(MASKED.format("0.0")),
    "other": Rows(MASKED.format("-3.0"), other=-3),
    "whole": Rows("tl.load(x_ptr + start + cols)"),
    "what is left": Rows("tl.load(x_ptr + start + cols, mask=cols < n - start, other=0.0)"),
    "mask turned round": Rows("tl.load(x_ptr + start + cols, mask=n > start + cols, other=0)"),
    "at most": Rows("tl.load(x_ptr + start + cols, mask=start + cols <= n - 1, other=0)"),
    "two ends": Rows(
        "tl.load(x_ptr + start + cols, mask=(start + cols < n) & (cols < n - start), other=0)"
    ),
    "a condition": Rows(
        "tl.load(x_ptr + start + cols, mask=(start + cols < n) & (row < m), other=0)"
    ),
    "carried": Rows(
        "tl.load(x_ptrs, mask=start + cols < n, other=0)",
        setup="x_ptrs = x_ptr + cols",
        turn="x_ptrs += BLOCK",
    ),
    "bytes": Rows(MASKED.format(0), element="i8", block=2048),
    "words": Rows(MASKED.format(0), element="i32", block=512),
    "doubles": Rows(MASKED.format(0) + ".to(tl.float32)", element="fp64", block=256),
    "fp8": Rows(MASKED.format(0.0), element="fp8e5", block=2048),
    "rows": Rows(LINES.format("lines < (n - start) // 16"), setup=TWO_AXES),
    "rows, one after the other": Rows(
        LINES.format("start + lines * 16 + places < n"), setup=TWO_AXES
    ),
    "rows with all columns": Rows(
        LINES.format("(lines < (n - start) // 16) & (places < 16)"), setup=TWO_AXES
    ),
    "evicted": Rows(
        "tl.load(x_ptr + start + cols, mask=start + cols < n, other=0.0, "
        "eviction_policy='evict_first')"
    ),
}

NOT_COPIED = {
    "an end that is no whole piece": (
        Rows(MASKED.format("0.0"), signature={"n": "i32"}),
        "it is not known to end at a multiple of 16 bytes; promise ':16' in the signature",
    ),
    "a start that is no whole piece": (
        Rows(MASKED.format("0.0"), signature={"stride": "i32"}),
        "it is not known to begin at a multiple of 16 bytes; promise ':16' in the signature",
    ),
    "gaps": (
        Rows("tl.load(x_ptr + start + 2 * cols)"),
        "its elements do not lie one after the other",
    ),
    "backwards": (
        Rows("tl.load(x_ptr + start + BLOCK - cols)"),
        "its elements do not lie one after the other",
    ),
    "a gather": (
        Rows("tl.load(x_ptr + tl.load(out_ptr + start + cols).to(tl.int32))"),
        "its address is no sum of a pointer and products of scalars and indices",
    ),
    "a mask of its own": (
        Rows("tl.load(x_ptr + start + cols, mask=cols % 2 == 0, other=0)"),
        "its mask is no conjunction of indices that are compared with scalars",
    ),
    "a mask with a beginning": (
        Rows("tl.load(x_ptr + start + cols, mask=start + cols >= m, other=0)"),
        "its mask does not just cut off its end",
    ),
    "columns that are cut off": (
        Rows(LINES.format("start + places < n"), setup=TWO_AXES),
        "its mask does not just cut off its end",
    ),
    "volatile": (Rows("tl.load(x_ptr + start + cols, volatile=True)"), "it is volatile"),
    "an address that is loaded": (
        Rows("tl.load(x_ptr + tl.multiple_of(tl.load(out_ptr + start).to(tl.int32), 16) + cols)"),
        "its address or mask depends on what the loop loads",
    ),
    "written": (
        Rows(MASKED.format("0.0"), turn="tl.store(x_ptr + cols, x)"),
        "the kernel writes through it, too",
    ),
    "written before, perhaps": (
        Rows(MASKED.format("0.0"), setup="tl.store(out_ptr + cols, total)"),
        "the kernel writes through out_ptr before, which may be the same memory",
    ),
    "behind a barrier": (
        Rows(MASKED.format("0.0"), setup="tl.debug_barrier()"),
        "tile.barrier before it keeps memory accesses in order",
    ),
    "no room": (
        Rows(MASKED.format("0.0"), block=65536),
        "shared memory has no room for 3 stages of 131072 bytes; ask for fewer stages",
    ),
}
