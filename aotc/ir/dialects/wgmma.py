"""Asynchronous dots: a warpgroup issues `wgmma` instructions and waits for them later.

This is gpu IR. A *warpgroup* is four warps and multiplies 64 rows at a time. B is read from shared
memory through the async proxy, and so is A unless it is in registers. A dot sees writes of threads
to shared memory only after a `gpu.proxy_fence` of each writer and a barrier.

Each op is one commit group; groups are counted from the newest. While a dot is in flight, loops may
carry its accumulator and another dot may add to it. Its elements may be used only once a
`gpu.wgmma_wait` for the group has returned it.

Invariant: until the wait for it, no thread writes the operands of a dot in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from aotc.ir.core import Op, Value, attribute, operand, operands, result, results
from aotc.ir.dialects.gpu import check_part, shared_type
from aotc.ir.dialects.tile import InputPrecision, dot_results, tile_type
from aotc.ir.effects import Resource, Trait, orders, reads, starts, writes
from aotc.ir.types import I1, SharedType, TileType, Type
from aotc.ir.wgmma_tiling import K_BYTES, MIN_COLUMNS, check_wgmma


class Wgmma(
    Op,
    opcode="gpu.wgmma",
    effects=(
        reads(Resource.SHARED, of="a", proxy="async"),
        reads(Resource.SHARED, of="b", proxy="async"),
        starts(Resource.DOTS),
    ),
    traits=(Trait.DOT,),
):
    """Issue `acc + dot(a, b)`, (M, N) + (M, K) x (K, N), as one commit group.

    `b` is a shared buffer, `a` a shared buffer or a tile in registers. If `accumulate` is false,
    `acc` counts as zero. `ir.wgmma_tiling` defines the legal layouts.

    `size_k`, unless 0, limits the dot to that many elements of K from `start_k` on; an `a` in
    registers has only these. `num_columns`, unless 0, limits it to the first columns: the others of
    `b` are not read, and the others of the result are undefined. With `start`, a row and a column,
    `acc` is the part of the result from there on; an `a` in registers has the rows of this part
    alone.
    """

    a: Value = operand()
    b: Value = operand()
    acc: Value = operand()
    accumulate: Value | None = operand(default=None)
    input_precision: InputPrecision = attribute(default="tf32")
    start_k: int = attribute(default=0)
    size_k: int = attribute(default=0)
    num_columns: int = attribute(default=0)
    start: tuple[int, ...] = attribute(default=())
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        acc, b = tile_type(self, self.acc), shared_type(self, self.b)
        a = self.a.type if isinstance(self.a.type, TileType) else shared_type(self, self.a)
        self.expect(len(acc.shape) == 2, f"results of {len(acc.shape)} axes")
        self._check_shapes(a, b, acc)
        is_supported = acc.element in dot_results(a.element, b.element)
        self.expect(is_supported, f"no dot of {a.element} and {b.element} in {acc.element}")
        step = 8 * K_BYTES // b.element.bits
        inside = 0 <= self.start_k <= self.start_k + self.size_k <= b.shape[0]
        inside &= self.start_k % step == self.size_k % step == 0
        self.expect(inside, f"{self.size_k} of K from {self.start_k} on are no steps of {step}")
        fits = 0 <= self.num_columns <= acc.shape[1] and self.num_columns % MIN_COLUMNS == 0
        self.expect(fits, f"{self.num_columns} columns of {acc.shape[1]}")
        if self.accumulate is not None:
            self.expect(self.accumulate.type == I1, f"accumulate is {self.accumulate.type}")
        if acc.layout is not None and a.layout is not None:
            in_memory = isinstance(a, SharedType)
            kinds = a.layout, b.layout, acc.layout, b.element.bits
            check_wgmma(self, *kinds, self.num_columns, in_memory=in_memory)
        return (acc,)

    def _check_shapes(self, a: TileType | SharedType, b: SharedType, acc: TileType) -> None:
        a_in_registers = isinstance(a, TileType)
        held_k = self.size_k if self.size_k and a_in_registers else b.shape[0]
        whole, start = acc.shape, self.start
        if start:
            # In registers are the rows of the part alone.
            whole = (acc.shape[0] if a_in_registers else a.shape[0], *b.shape[1:])
            check_part(self, whole, acc.shape, (0, *start[1:]) if a_in_registers else start)
        fits = a.shape == (whole[0], held_k) and b.shape[1:] == whole[1:]
        self.expect(fits, f"{a.shape} x {b.shape} + {acc.shape} do not fit")


class WgmmaWait(
    Op,
    opcode="gpu.wgmma_wait",
    effects=(
        orders(Resource.DOTS),
        orders(Resource.SHARED),
    ),
):
    """Wait until at most the newest `pending` dots are in flight; return the accumulators.

    Accumulators of dots that may still be in flight may not be used yet. With `num_columns`, only
    so many first columns of each accumulator are returned; 0 stands for all.
    """

    values: Sequence[Value] = operands()
    pending: int = attribute(default=0)
    num_columns: tuple[int, ...] = attribute(default=())
    outs: Sequence[Value] = results()

    def infer(self) -> Sequence[Type]:
        self.expect(self.pending >= 0, f"{self.pending} pending dots")
        self.expect(bool(self.values), "waits for no accumulator")
        counts = len(self.num_columns) in (0, len(self.values))
        self.expect(counts, f"{len(self.num_columns)} numbers for {len(self.values)} results")
        return [tile_type(self, value) for value in self.values]


class Turn(Op, opcode="gpu.turn", effects=(writes(Resource.CONTROL),)):
    """Let two warpgroups issue dots in turn; nothing is computed, and no memory access is ordered.

    `"begin"` gives the first turn to the first warpgroup, once. `"take"` waits until the other one
    has passed the turn on, `"pass"` passes it on. Both warpgroups come to as many of them.
    """

    kind: Literal["begin", "take", "pass"] = attribute()
