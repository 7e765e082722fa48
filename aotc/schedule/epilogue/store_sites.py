"""TMA stores that may stay in flight: the ops of each store, and its slices.

Invariant: nothing in the kernel reads what a site's copy writes, so it may complete later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from aotc.ir.core import Op, Value, build
from aotc.ir.dialects import arith, gpu, scf, tma
from aotc.ir.rewrite import Builder
from aotc.ir.sub_tile import sub_tile
from aotc.ir.types import I32, TensorMapType, TileType, Type
from aotc.schedule.layout.tensor_copies import block_buffer, write_buffer
from aotc.target import Target

TENSOR_COPIES = (tma.TmaStore, tma.TmaReduce)
COPIES = (*TENSOR_COPIES, tma.BulkStore)


@dataclass(frozen=True)
class StoreSite:
    """The ops that store a tile: the buffer, what fills it, the copy, and its wait.

    `loop` is the outermost loop around them.
    """

    alloc: gpu.SharedAlloc
    write: gpu.SharedStore
    copy: tma.TmaStore | tma.TmaReduce | tma.BulkStore
    wait: tma.TmaStoreWait
    loop: Op | None

    @property
    def part_shape(self) -> tuple[int, ...]:
        """The shape of the slices that the tile can be cut into, as wide as the tensor map's box.

        It is the whole tile if it has no map, or threads would hold slices in different ways.
        """
        value = self.write.value.type
        assert isinstance(value, TileType)
        if isinstance(self.copy, tma.BulkStore):
            return value.shape
        tensor = self.copy.tensor.type
        assert isinstance(tensor, TensorMapType)
        shape = (*value.shape[:-1], tensor.box[-1])
        held_alike = value.layout is not None and sub_tile(value.layout, shape) is not None
        return shape if held_alike else value.shape

    @property
    def num_parts(self) -> int:
        """How many slices the tile can be cut into."""
        return self.alloc.shape[-1] // self.part_shape[-1]

    @property
    def kind(self) -> tuple[Type, tuple[int, ...]]:
        """What stores that share a buffer have in common: kind of destination, shape of slices."""
        if isinstance(self.copy, tma.BulkStore):
            return self.alloc.out.type, self.part_shape
        return self.copy.tensor.type, self.part_shape

    @property
    def coords(self) -> Sequence[Value]:
        """Where in the tensor the tile begins; without a tensor map it has no coordinates."""
        return () if isinstance(self.copy, tma.BulkStore) else self.copy.coords

    def place_buffer(self, shape: tuple[int, ...], place: Builder) -> Value:
        """Allocate a buffer for the tile or a slice of it, and return it."""
        if isinstance(self.copy, tma.BulkStore):
            alloc = self.alloc
            kind = gpu.SharedAlloc(alloc.element, shape, alloc.layout, alloc.alignment_bytes)
            return place(kind).out
        return block_buffer(self.copy.tensor, shape, place)


def store_sites(ops: Iterable[Op]) -> Iterator[StoreSite]:
    """Yield the stores among some ops that may stay in flight."""
    for op in ops:
        if isinstance(op, tma.TmaStoreWait) and (site := _site_of(op)) is not None:
            yield site


def _site_of(wait: tma.TmaStoreWait) -> StoreSite | None:
    """Return the store that a wait completes, if it may stay in flight, or None."""
    copy = wait.prev
    if wait.written or wait.pending or not isinstance(copy, COPIES):
        return None
    alloc = copy.buffer.op
    writes = [user for user in copy.buffer.users if user is not copy]
    if not isinstance(alloc, gpu.SharedAlloc) or len(writes) != 1:
        return None
    write = writes[0]
    if not isinstance(write, gpu.SharedStore) or not alloc.block is write.block is copy.block:
        return None
    return StoreSite(alloc, write, copy, wait, _outermost_loop(copy))


def _outermost_loop(op: Op) -> Op | None:
    found: Op | None = None
    for ancestor in op.ancestors():
        if isinstance(ancestor, scf.For | scf.While):
            found = ancestor
        elif not isinstance(ancestor, scf.If):
            break
    return found


def write_part(
    site: StoreSite, value: Value, number: int, buffer: Value, target: Target, place: Builder
) -> None:
    """Write a slice of a site's tile to a buffer."""
    shape = site.part_shape
    if shape != site.alloc.shape:
        start = (*(0 for _ in shape[:-1]), number * shape[-1])
        value = place(gpu.Extract(value, start, shape)).out
    write_buffer(value, buffer, target, place)


def copy_part(
    site: StoreSite, coords: Sequence[Value], number: int, buffer: Value, place: Builder
) -> None:
    """Start the copy of a slice of a tile to some coordinates, if it has any."""
    if isinstance(site.copy, tma.BulkStore):
        place(tma.BulkStore(site.copy.pointer, buffer, site.copy.size_bytes))
        return
    if number:
        step = place(arith.Constant(number * site.part_shape[-1], I32)).out
        coords = [*coords[:-1], place(arith.Add(coords[-1], step)).out]
    slots = [site.copy.tensor, buffer, *coords]
    place(build(type(site.copy), slots, site.copy.attributes, (), site.copy.loc))
