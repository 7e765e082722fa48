"""Tiles that the CTAs of a cluster give each other, in kernels that tell their CTAs apart.

Such a kernel is that of one CTA (`Kernel.runs_by_cta`): all CTAs of a cluster run it, each with
tiles of its own, and come to every op of this dialect together, as to a barrier. A tile of such a
kernel is a slice of one that has a further axis, the block bits of a layout, which name the CTA that
holds it. What moves is given in two parts: a permutation, or a function, of the CTAs, and a layout
for what each of them does, since all do the same in their own shared memory.

`cluster.permute`, `cluster.transpose` and `cluster.read` are the same in tile IR and in gpu IR, until
`expand_cluster_exchanges` makes copies, mbarriers and phases of them: `gpu.cluster_send_tile` and
`gpu.cluster_send_parts`, which write to other CTAs, and `gpu.cluster_load`, which reads from one.

Invariant: every CTA gets one tile for each that it gives.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.core import Op, Value, attribute, operand, result
from aotc.ir.dialects.gpu import memory_element, shared_type
from aotc.ir.dialects.mbarrier import check_mbarrier
from aotc.ir.dialects.tile import tile_type
from aotc.ir.effects import Resource, Trait, orders, reads, starts, writes
from aotc.ir.layout import LinearLayout
from aotc.ir.types import I32, PointerType, ScalarType, TileType, Type

MIN_SENT_BYTES = 4
NOBODY = -1
"""The rank that stands for no CTA."""


class ClusterPermute(
    Op, opcode="cluster.permute", effects=(orders(Resource.SHARED),), traits=(Trait.BARRIER,)
):
    """Give this tile to the CTA of rank `to[rank]`, and return the one that this CTA is given.

    `to` has no rank twice. A CTA of `NOBODY` gives its tile to none; who is given none gets zeros. No other
    memory is ordered by it.
    """

    value: Value = operand()
    to: tuple[int, ...] = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        given = [rank for rank in self.to if rank != NOBODY]
        fits = len({*given}) == len(given) and all(0 <= rank < len(self.to) for rank in given)
        self.expect(fits and bool(given), f"{self.to} does not permute {len(self.to)} CTAs")
        return (tile_type(self, self.value),)


class ClusterRead(
    Op, opcode="cluster.read", effects=(orders(Resource.SHARED),), traits=(Trait.BARRIER,)
):
    """Return what the CTA of rank `rank` has as this tile.

    Ranks are each CTA's own choice, of those that there are. No other memory is ordered by it.
    """

    value: Value = operand()
    rank: Value = operand()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        self.expect(self.rank.type == I32, f"the rank is {self.rank.type}, not i32")
        return (tile_type(self, self.value),)


class ClusterTranspose(
    Op, opcode="cluster.transpose", effects=(orders(Resource.SHARED),), traits=(Trait.BARRIER,)
):
    """Return a tile whose element i of the first axis is this CTA's of the CTA of rank i.

    Element i of the first axis of `value` is for that CTA. In gpu IR the result has this layout. No other
    memory is ordered by it.
    """

    value: Value = operand()
    layout: LinearLayout | None = attribute(default=None)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        kind = tile_type(self, self.value)
        self.expect(bool(kind.shape), "a scalar has no parts")
        return (kind.with_layout(self.layout),)


def _check_sent(op: SendTile | SendParts) -> None:
    """Refuse a tile that does not fit its buffer, or is sent in pieces that `st.async` does not have."""
    source, buffer = tile_type(op, op.value), shared_type(op, op.buffer)
    if source.shape != buffer.shape or memory_element(source) != buffer.element:
        op.error(f"{source} does not fit {buffer}")
    size_bytes = op.vector * buffer.element.size_bytes
    op.expect(size_bytes in (4, 8, 16), f"sends {size_bytes} bytes at a time")
    check_mbarrier(op, op.barrier)


class SendTile(
    Op,
    opcode="gpu.cluster_send_tile",
    effects=(
        writes(Resource.SHARED, of="buffer", proxy="async"),
        writes(Resource.MBARRIER, of="barrier"),
        starts(Resource.MBARRIER, of="barrier"),
    ),
):
    """Store a tile to this buffer of the CTA `cta`, asynchronously, `vector` elements an access.

    Its bytes complete at this mbarrier of that CTA. One thread arrives at the CTA's own mbarrier,
    whose phase then expects a tile of as many bytes, from whichever CTA sends here. The buffer of
    the other CTA is empty, which its threads have told by arrivals that are waited for before.
    Vectors are those of `gpu.shared_store`, of 4 bytes at least.

    Of a CTA that only `gives` or only `takes` a tile, the other half is left out.

    With a `warp_stride` that holds for each warp, the same one of the other CTA, and mbarriers of its own:
    so many after those of the warp before it. No element of the tile is in two threads then.
    """

    value: Value = operand()
    buffer: Value = operand()
    barrier: Value = operand()
    cta: Value = operand()
    vector: int = attribute()
    warp_stride: int = attribute(default=0)
    gives: bool = attribute(default=True)
    takes: bool = attribute(default=True)

    def infer(self) -> Sequence[Type]:
        _check_sent(self)
        self.expect(self.cta.type == I32, f"the rank is {self.cta.type}, not i32")
        self.expect(self.warp_stride >= 0, f"mbarriers of warps are {self.warp_stride} apart")
        return ()


class SendParts(
    Op,
    opcode="gpu.cluster_send_parts",
    effects=(
        writes(Resource.SHARED, of="buffer", proxy="async"),
        writes(Resource.MBARRIER, of="barrier"),
        starts(Resource.MBARRIER, of="barrier"),
    ),
):
    """Store element i of a tile's first axis to the CTA of rank i: there it is element `rank` of this buffer.

    Asynchronously, `vector` elements an access, whose bytes complete at this mbarrier of that CTA. One
    thread arrives at the CTA's own mbarrier, whose phase then expects as many bytes as the tile has.
    The buffers of all CTAs are free, and have elements of the first axis one after the other.
    """

    value: Value = operand()
    buffer: Value = operand()
    barrier: Value = operand()
    rank: Value = operand()
    vector: int = attribute()

    def infer(self) -> Sequence[Type]:
        _check_sent(self)
        self.expect(self.rank.type == I32, f"the rank is {self.rank.type}, not i32")
        return ()


class RemoteArrive(
    Op,
    opcode="gpu.cluster_arrive_at",
    effects=(
        writes(Resource.MBARRIER, of="barrier"),
        orders(Resource.SHARED),
    ),
):
    """Let each of the kernel's `count` warps arrive at this mbarrier of the CTA `cta`.

    What a warp's threads read before happens before what that CTA sends once it has waited. With a
    `warp_stride` each warp arrives at a mbarrier of its own, as in `gpu.cluster_send_tile`, once.
    """

    barrier: Value = operand()
    cta: Value = operand()
    count: int = attribute()
    warp_stride: int = attribute(default=0)

    def infer(self) -> Sequence[Type]:
        check_mbarrier(self, self.barrier)
        self.expect(self.cta.type == I32, f"the rank is {self.cta.type}, not i32")
        self.expect(self.count > 0, f"{self.count} arrivals")
        self.expect(self.warp_stride >= 0, f"mbarriers of warps are {self.warp_stride} apart")
        self.expect(not self.warp_stride or self.count == 1, "each warp arrives once")
        return ()


class RemoteLoad(Op, opcode="gpu.cluster_load", effects=(reads(Resource.SHARED, of="buffer"),)):
    """Read a tile from this buffer of the CTA `cta`, under the terms of `gpu.shared_load`.

    Barriers of the cluster stand between what that CTA writes and this, and between this and what it
    writes next, or its end.
    """

    buffer: Value = operand()
    cta: Value = operand()
    layout: LinearLayout = attribute()
    vector: int = attribute(default=1)
    element: ScalarType | PointerType | None = attribute(default=None)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        buffer = shared_type(self, self.buffer)
        fits = self.layout.shape == buffer.shape
        self.expect(fits, f"{self.layout} is not of {buffer.shape}")
        self.expect(self.cta.type == I32, f"the rank is {self.cta.type}, not i32")
        return (TileType(self.element or buffer.element, buffer.shape, self.layout),)
