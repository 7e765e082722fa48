"""Let a tile be stored while the next one is multiplied.

Warps that compute leave the tensor cores idle between two tiles: they convert the sums, write them
to shared memory, meet, and issue the copies. All but the conversion can wait. So the loop

    for tile: { for k: multiply }; convert; store part 0; …; store part n - 1

becomes

    for tile: { for k: multiply; store part k of the tile before, while that runs }; convert
    store all parts

The converted tile is carried in registers. What the loop over k had no iterations for is stored
behind it. Coordinates of a tile are computed while its last product runs.

A part's buffer has been read by then: the copy before was issued a step of the loop over k ago.

Invariant: parts are stored once each and in their order, all of a tile before any of the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from aotc.ir.core import Block, Kernel, Op, Value, build
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, roles, scf, tma, wgmma
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32, ScalarType, TileType, Type, element_of
from aotc.schedule.allocate_shared import Buffer, lives, number_ops, place_buffers
from aotc.schedule.context import Schedule
from aotc.schedule.specialize_warps import register_share
from aotc.schedule.store_sites import COPIES, StoreSite, copy_part, store_sites, write_part
from aotc.schedule.tensor_copies import block_buffer
from aotc.target import Target

_REGISTER_BITS = 32
# What a thread needs beside sums and the tile that it carries: addresses, counters, coordinates.
_WORKING_REGISTERS = 36
_ORDERS_NOTHING = (
    *(gpu.SharedAlloc, gpu.SharedStore, gpu.SharedLoad, tma.MbarrierWait, tma.MbarrierArrive),
    *(wgmma.Wgmma, wgmma.WgmmaWait, tma.ProxyFence, tma.TmaStoreWait, *COPIES),
)


def delay_stores(kernel: Kernel, schedule: Schedule) -> None:
    """Rewrite every loop of tiles whose stores can wait for the next tile's products."""
    if kernel.num_consumer_groups > 1:
        return  # another group multiplies in the meantime
    for role in [op for op in kernel.body if isinstance(op, roles.Specialize)]:
        for loop in [op for op in role.consumers if isinstance(op, scf.For)]:
            tiles = _find(loop, role, kernel, schedule)
            if tiles is not None:
                with at(tiles.sites[0].copy.loc):
                    _Delay(tiles, schedule.target).rewrite()
                schedule.remark(loop.loc, "a tile is stored while the next one is multiplied")


# ---- where ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tiles:
    """Name a loop over tiles, the loop over products in it, and the stores behind that.

    `around` is the op of the body that is the loop over products, or holds it. Stores of one kind
    have `num_buffers` for their parts.
    """

    loop: scf.For
    products: scf.For
    around: scf.For | scf.If
    sites: Sequence[StoreSite]
    num_buffers: int


def _find(
    loop: scf.For, role: roles.Specialize, kernel: Kernel, schedule: Schedule
) -> _Tiles | None:
    sites = list(store_sites(list(loop.body)))
    products = _products(loop)
    if not sites or products is None or not _orders_nothing(loop, sites):
        return None
    around = products if products.block is loop.body else products.parent_op
    assert isinstance(around, scf.For | scf.If)
    order = {op: number for number, op in enumerate(loop.body)}
    behind = all(order[site.alloc] > order[around] for site in sites)
    if not behind or not _fits_registers(products, sites, role, kernel):
        return None
    num_buffers = _num_buffers(loop, sites, kernel, schedule)
    return _Tiles(loop, products, around, sites, num_buffers) if num_buffers else None


def _products(loop: scf.For) -> scf.For | None:
    """Return the one loop in which all products are, if they leave threads nothing to compute.

    Fragments that threads compute take registers, and nothing may come between them and the product.
    """
    products = [op for op in loop.body.walk() if isinstance(op, wgmma.Wgmma)]
    blocks = {op.block: None for op in products}
    if len(blocks) != 1 or any(isinstance(op.a.type, TileType) for op in products):
        return None
    (block,) = blocks
    inner = block.parent if block is not None else None
    if not isinstance(inner, scf.For) or inner is loop:
        return None
    if inner.block is loop.body:
        return inner
    branch = inner.parent_op
    if not isinstance(branch, scf.If) or branch.block is not loop.body:
        return None
    skips = branch.orelse.first is branch.orelse.terminator
    return inner if skips and inner.block is branch.then else None


def _orders_nothing(loop: scf.For, sites: Sequence[StoreSite]) -> bool:
    """Return whether the stores may change places with all else that the loop does."""
    copies = [site.copy for site in sites]
    for op in loop.body.walk():
        if isinstance(op, COPIES) and op not in copies:
            return False
        is_write = op.effect in ("write", "readwrite") and not op.terminator
        if is_write and not isinstance(op, _ORDERS_NOTHING):
            return False
        if isinstance(op, scf.While) or getattr(op, "volatile", False):
            return False
    return True


def _fits_registers(
    products: scf.For, sites: Sequence[StoreSite], role: roles.Specialize, kernel: Kernel
) -> bool:
    """Return whether a thread can hold the sums, and a converted tile beside them."""
    limit = role.consumer_registers or kernel.maxnreg or register_share(kernel)
    carried = [value for value in products.carried if isinstance(value.type, TileType)]
    begun = [
        op.out
        for op in products.body
        if isinstance(op, wgmma.Wgmma)
        and op.acc not in carried
        and not isinstance(op.acc.op, wgmma.Wgmma)
    ]
    held = sum(map(_words, [*carried, *begun]))
    tile = sum(_words(site.write.value) for site in sites)
    return held + tile + _WORKING_REGISTERS <= limit


def _words(value: Value) -> int:
    """Return how many 32-bit registers of a thread a tile takes."""
    kind = value.type
    assert isinstance(kind, TileType)
    assert kind.layout is not None
    return kind.layout.in_size("register") * element_of(kind).bits // _REGISTER_BITS


def _num_buffers(
    loop: scf.For, sites: Sequence[StoreSite], kernel: Kernel, schedule: Schedule
) -> int:
    """Return how many buffers there is room for, of each kind of part, or 0."""
    numbers = number_ops(kernel)
    mine = {site.alloc: site for site in sites}
    buffers = lives(kernel, numbers)
    others = [buffer for buffer in buffers if buffer.op not in mine]
    of_kind: dict[_Kind, list[Buffer]] = {}
    for buffer in buffers:
        site = mine.get(buffer.op)
        if site is not None:
            size_bytes = buffer.size_bytes // site.num_parts
            parts = [Buffer(site.alloc, size_bytes, *numbers[loop], buffer.num_copies)]
            of_kind.setdefault(_kind(site), []).extend(parts * site.num_parts)
    for count in range(max(map(len, of_kind.values())), 0, -1):
        taken = [replace(each) for parts in of_kind.values() for each in parts[:count]]
        if place_buffers([*others, *taken]) <= schedule.target.max_shared_bytes:
            return count
    return 0


_Kind = tuple[Type, tuple[int, ...]]


def _kind(site: StoreSite) -> _Kind:
    """Return what stores through one buffer have in common: the kind of tensor, and the part."""
    return site.copy.tensor.type, site.part_shape


# ---- rewriting --------------------------------------------------------------------------------


class _Delay:
    """Rewrite a loop of tiles.

    Parts of all stores are numbered. What a loop carries of them is the number of the next one that
    is to be stored, or how many there are if none is.
    """

    def __init__(self, tiles: _Tiles, target: Target) -> None:
        self.tiles = tiles
        self.target = target
        self.parts = [(site, part) for site in tiles.sites for part in range(site.num_parts)]
        # What it was before coordinates are computed elsewhere.
        self.stored = {site: [site.write.value, *site.copy.coords] for site in tiles.sites}
        before = Builder.before_op(tiles.loop)
        self.zero = before(arith.Constant(0, I32)).out
        self.none = before(arith.Constant(len(self.parts), I32)).out
        self.buffers: dict[_Kind, list[Value]] = {}
        self.places: list[Value] = []  # the buffer of each part
        for site, _ in self.parts:
            mine = self.buffers.setdefault(_kind(site), [])
            if len(mine) < tiles.num_buffers:
                self.places.append(block_buffer(site.copy.tensor, site.part_shape, before))
            else:
                self.places.append(mine[len(mine) % tiles.num_buffers])
            mine.append(self.places[-1])

    def rewrite(self) -> None:
        """Store in the loop that multiplies, behind it what is left, and all behind both loops."""
        loop = self.tiles.loop
        stored = dict.fromkeys(value for each in self.stored.values() for value in each)
        values = [value for value in stored if _is_of(loop, value)]
        before = Builder.before_op(loop)
        inits = [self._nothing(value, before) for value in values]
        old = {value: loop.body.add_arg(value.type, value.hint) for value in values}
        following = loop.body.add_arg(I32, "part")
        around, left, moved = self._in_products(old, following)
        self._store(left, "le", old, Builder.after_op(around))
        terminator = loop.body.terminator
        ends = [moved.get(value, value) for value in values]
        terminator.set_slots([*terminator.slots, *ends, self.zero])
        made = _rebuilt(loop, [*inits, self.none])
        *outs, left = made.results[-len(values) - 1 :]
        self._store_all(left, dict(zip(values, outs, strict=True)), Builder.after_op(made))
        for site in self.stored:
            for op in (site.wait, site.copy, site.write, site.alloc):
                op.erase()

    def _nothing(self, value: Value, place: Builder) -> Value:
        """Return what is carried into the first iteration, which stores nothing."""
        is_tile = isinstance(value.type, TileType)
        return place(gpu.Undefined(value.type)).out if is_tile else self.zero

    def _in_products(
        self, old: dict[Value, Value], following: Value
    ) -> tuple[Op, Value, dict[Value, Value]]:
        """Store in the loop over products, and compute coordinates behind it.

        Return the op that is or holds this loop now, which part is next behind it, and what
        coordinates have become.
        """
        inner, around = self.tiles.products, self.tiles.around
        part = inner.body.add_arg(I32, "part")
        last = max(
            (op for op in inner.body if isinstance(op, wgmma.Wgmma)),
            key=list(inner.body).index,
        )
        place = Builder.after_op(last)
        self._store(part, "eq", old, place)
        one = place(arith.Constant(1, I32)).out
        terminator = inner.body.terminator
        terminator.set_slots([*terminator.slots, place(arith.Add(part, one)).out])
        coords = [value for value in old if not isinstance(value.type, TileType)]
        late = self._late()
        made = _rebuilt(inner, [following])
        if around is inner:
            behind = Builder.after_op(made)
            for op in late:
                op.remove()
                behind(op)
            return made, made.results[-1], {}
        assert isinstance(around, scf.If)
        computed = [value for value in coords if value.op in late]
        arms = (
            (around.then, Builder.after_op(made), made.results[-1]),
            (around.orelse, Builder.before_op(around.orelse.terminator), following),
        )
        for block, place, end in arms:
            mapping: dict[Value, Value] = {}
            for op in late:
                place(op.clone(mapping))
            terminator = block.terminator
            own = [mapping[value] for value in computed]
            terminator.set_slots([*terminator.slots, end, *own])
        branch = _rebuilt(around, [])
        left, *outs = branch.results[-len(computed) - 1 :]
        moved = dict(zip(computed, outs, strict=True))
        for value, out in moved.items():
            value.replace_all_uses_with(out)
        for op in reversed(late):
            op.erase()
        return branch, left, moved

    def _late(self) -> list[Op]:
        """Return the scalar ops of the loop's body that are needed for coordinates alone."""
        ops = list(self.tiles.loop.body)
        behind = dict.fromkeys(ops[ops.index(self.tiles.around) :])
        late = {op: None for op in ops if op.pure and not op.blocks and _is_scalar(op)}
        copies = {site.copy: None for site in self.tiles.sites}
        while True:
            kept = {
                op: None
                for op in late
                if all(user in late or user in copies for user in _users(op))
                and all(each.op in late or each.op not in behind for each in op.operands)
            }
            if len(kept) == len(late):
                return list(late)
            late = kept

    def _store(
        self,
        following: Value,
        order: Literal["eq", "le"],
        values: dict[Value, Value],
        place: Builder,
    ) -> None:
        """Store the part that is next ("eq"), or from there on all ("le"), if there is one."""
        stores = Block()
        inside = Builder(stores)
        for number in range(len(self.parts)):
            due = inside(arith.Constant(number, I32)).out
            is_due = inside(arith.Compare(following, due, order)).out
            part = Block()
            # No more is known here of which copy is the newest.
            Builder(part)(tma.TmaStoreWait())
            self._store_part(number, values, Builder(part))
            Builder(part)(scf.Yield([]))
            inside(_only_if(is_due, part))
        inside(scf.Yield([]))
        place(_only_if(self._is_any(following, place), stores))

    def _store_all(self, following: Value, values: dict[Value, Value], place: Builder) -> None:
        """Store all parts behind both loops, unless the loop of tiles had no iteration."""
        stores = Block()
        inside = Builder(stores)
        inside(tma.TmaStoreWait())
        for number in range(len(self.parts)):
            if number >= self.tiles.num_buffers:
                inside(tma.TmaStoreWait(pending=self.tiles.num_buffers - 1))
            self._store_part(number, values, inside)
        inside(scf.Yield([]))
        place(_only_if(self._is_any(following, place), stores))
        place(tma.TmaStoreWait())

    def _is_any(self, following: Value, place: Builder) -> Value:
        return place(arith.Compare(following, self.none, "lt")).out

    def _store_part(self, number: int, values: dict[Value, Value], place: Builder) -> None:
        site, part = self.parts[number]
        buffer = self.places[number]
        tile, *coords = (values.get(value, value) for value in self.stored[site])
        write_part(site, tile, part, buffer, self.target, place)
        copy_part(site, coords, part, buffer, place)


def _is_of(loop: scf.For, value: Value) -> bool:
    """Return whether a value changes from one iteration to the next."""
    block = value.owner if isinstance(value.owner, Block) else value.owner.block
    return block is loop.body


def _is_scalar(op: Op) -> bool:
    """Return whether all results of an op, and there are some, are numbers."""
    kinds = [value.type for value in op.results]
    return bool(kinds) and all(isinstance(kind, ScalarType) for kind in kinds)


def _users(op: Op) -> Iterator[Op]:
    return (user for value in op.results for user in value.users)


def _only_if(condition: Value, then: Block) -> scf.If:
    orelse = Block()
    orelse.insert(scf.Yield([]))
    return scf.If(condition, then, orelse)


def _rebuilt(op: Op, inits: Sequence[Value]) -> Op:
    """Replace a loop or branch by one with more results: its blocks pass them on already."""
    blocks, op.blocks = op.blocks, ()
    slots = [*op.slots, *inits]
    made = Builder.before_op(op)(build(type(op), slots, op.attributes, blocks, op.loc))
    op.replace_with(made.results[: len(op.results)])
    return made
