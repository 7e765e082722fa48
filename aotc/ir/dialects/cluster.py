"""Exchanges of tiles between the CTAs of a cluster, in kernels with `Kernel.runs_by_cta`.

Such a kernel is written for one CTA: all CTAs of a cluster run it, each with tiles of its own, and
reach every op of this dialect together, like a barrier. Its tiles are slices of tiles with one more
axis, the block bits of a layout, which index the CTA. An exchange has two parts: a permutation or a
function of the CTAs, and one layout for all, since all do the same in their own shared memory.

`cluster.permute`, `cluster.transpose` and `cluster.read` are the same in tile IR and in gpu IR,
until `expand_cluster_exchanges` makes copies, mbarriers and phases of them. `gpu.cluster_send_tile`
and `gpu.cluster_send_parts` write to other CTAs, and `gpu.cluster_load` reads from one.

Invariant: every CTA gets one tile for each one it gives.
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
    """Send this tile to the CTA of rank `to[rank]`, and return the tile received.

    `to` has no rank twice. A rank of `NOBODY` sends its tile to no CTA; a CTA without a sender gets
    zeros. Other accesses to memory are not ordered.
    """

    value: Value = operand()
    to: tuple[int, ...] = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        targets = [rank for rank in self.to if rank != NOBODY]
        fits = len({*targets}) == len(targets) and all(0 <= rank < len(self.to) for rank in targets)
        self.expect(fits and bool(targets), f"{self.to} does not permute {len(self.to)} CTAs")
        return (tile_type(self, self.value),)


class ClusterRead(
    Op, opcode="cluster.read", effects=(orders(Resource.SHARED),), traits=(Trait.BARRIER,)
):
    """Return this tile as the CTA of rank `rank` holds it.

    Each CTA chooses a rank of the cluster by itself. Other accesses to memory are not ordered.
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
    """Transpose the first axis with the ranks: element i comes from the CTA of rank i.

    Element i of the first axis of `value` goes to the CTA of rank i. In gpu IR the result has this
    `layout`. Other accesses to memory are not ordered.
    """

    value: Value = operand()
    layout: LinearLayout | None = attribute(default=None)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        kind = tile_type(self, self.value)
        self.expect(bool(kind.shape), "a scalar has no parts")
        return (kind.with_layout(self.layout),)


def _check_sent(op: SendTile | SendParts) -> None:
    """Refuse a tile that does not fit its buffer, or pieces unsupported by `st.async`."""
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

    Its bytes complete at this mbarrier of the receiver. One thread arrives at the CTA's own
    mbarrier, and its phase then expects a tile of the same size from the CTA that sends here. The
    receiver's buffer is empty: the sender has waited for the arrivals of the receiver's threads.
    Vectors are as in `gpu.shared_store`, of 4 bytes at least.

    A CTA that only `gives` or only `takes` a tile leaves out the other half.

    With a `warp_stride` all this holds warp by warp, between equal warps of both CTAs. The mbarriers
    of consecutive warps are `warp_stride` mbarriers apart. No element of the tile is in two threads then.
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
    """Store element i of a tile's first axis to the CTA of rank i, as its element `rank`.

    The stores are asynchronous, `vector` elements an access, and their bytes complete at this
    mbarrier of the receiver. One thread arrives at the CTA's own mbarrier, and its phase then
    expects as many bytes as the tile has. The buffers of all CTAs are free, and their elements of
    the first axis lie one after the other.
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

    A warp's earlier reads happen before all that the other CTA sends after its wait. With a
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

    Cluster barriers separate it from the other CTA's writes before, and from its next writes or its
    end.
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
