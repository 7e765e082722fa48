"""Turn loads through pointers into tensor copies, where it can be seen what tensor they read.

`a_ptr + rows * stride + columns`, masked at the ends of a matrix, is a block of a matrix that the
launch describes with its arguments: address, extents, strides. So the launcher can encode a tensor
map of it, and an operand of a matrix product takes the way of a descriptor's blocks: hardware
copies it, clips it at the ends, and no thread computes an address or waits.

Only operands of products in loops are looked at, since others gain nothing. What cannot be mapped
is loaded as before, and a remark says why.

Tensor copies do not see what the kernel itself wrote before. A load that such a write may come
before is left alone.

Invariant: the kernel computes what it computed, in every launch for which all `guards` hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from aotc.ir.core import Kernel, Op, ParamInfo, TensorSource, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, descriptor, grid, scf, tile
from aotc.ir.parameter_access import pointer_roots
from aotc.ir.rewrite import Builder, rewrite
from aotc.ir.types import I32, DescriptorType, ScalarType, TileType, element_of, shape_of
from aotc.schedule.affine import AffineAnalysis, axis_names, axis_symbol
from aotc.schedule.axis import AxisAnalysis
from aotc.schedule.context import Schedule
from aotc.schedule.drop_carried import drop_unused_carried
from aotc.schedule.global_order import is_inside, may_precede, root_names, stands_before
from aotc.schedule.pointer_block import (
    TensorBlock,
    UnmappableError,
    block_of,
)
from aotc.schedule.polynomial import Polynomial
from aotc.schedule.wgmma_layouts import wgmma_layouts
from aotc.target import Feature

_RENAMES = (tile.Reshape, tile.Trans, tile.ExpandDims)
# What has a memory effect, but not one that a later load could miss.
_HARMLESS = (tile.Assume, tile.Assert, grid.GridWait, grid.LaunchDependents)


def map_pointers(kernel: Kernel, schedule: Schedule) -> None:
    """Replace loads by loads through descriptors; see the module docstring."""
    if not schedule.map_pointers or Feature.TMA not in schedule.target.features:
        return
    uses = list(_operands_in_loops(kernel))
    if not uses:
        return
    mapper, facts = _Mapper(kernel, AffineAnalysis(kernel)), AxisAnalysis(kernel)
    loops: dict[scf.For, None] = {}
    for load, dot in uses:
        name = root_names(load.pointer)
        try:
            _check_order(load, kernel)
            block = block_of(load, kernel, mapper.analysis, facts)
            _check_product(load, dot, block, schedule)
        except UnmappableError as refusal:
            text = f"{name} is not loaded by tensor copies: {refusal.reason}"
            schedule.remark(load.loc, f"{text}; {refusal.remedy}" if refusal.remedy else text)
            continue
        condition = f" where {' and '.join(block.guards)}" if block.guards else ""
        schedule.remark(load.loc, f"{name} is loaded by tensor copies{condition}")
        loops.update((op, None) for op in load.ancestors() if isinstance(op, scf.For))
        with at(load.loc):
            mapper.replace(load, block)
    for loop in loops:
        drop_unused_carried(loop)
    rewrite(kernel, {})  # what only computed addresses


# ---- which loads, and whether they may --------------------------------------------------------


def _operands_in_loops(kernel: Kernel) -> Iterator[tuple[tile.Load, tile.Dot]]:
    """Yield the loads of tiles that are operands of products in loops, each with its product."""
    found: dict[tile.Load, tile.Dot] = {}
    for op in kernel.walk():
        if isinstance(op, tile.Dot):
            for operand in (op.a, op.b):
                load = _renamed(operand).op
                is_in_loop = load is not None and any(
                    isinstance(outer, scf.For) for outer in load.ancestors()
                )
                if isinstance(load, tile.Load) and is_in_loop:
                    found.setdefault(load, op)
    yield from found.items()


def _renamed(value: Value) -> Value:
    """Return what a value has the elements of, under other indices."""
    while isinstance(value.op, _RENAMES):
        value = value.op.value
    return value


def _check_product(load: tile.Load, dot: tile.Dot, block: TensorBlock, schedule: Schedule) -> None:
    """Refuse an operand that tensor copies would bring in an order which its product has not.

    Products by warpgroups take operands of other than two bytes with K contiguous only; threads
    transpose others on their way to shared memory.
    """
    if element_of(load.out.type).bits == 16:
        return
    if wgmma_layouts(dot, schedule.config.num_warps, schedule.target) is None:
        return
    for operand, k_axis in ((dot.a, 1), (dot.b, 0)):
        axis = _axis_in(operand, load, block)
        if axis is not None and axis != k_axis:
            raise UnmappableError("its product needs elements along K to be contiguous")


def _axis_in(operand: Value, load: tile.Load, block: TensorBlock) -> int | None:
    """Return the axis of an operand along which a load is contiguous; None if it is another's."""
    op = operand.op
    if op is load:
        return block.axes[-1].tile_axis
    if not isinstance(op, _RENAMES):
        return None
    axis, names = _axis_in(op.value, load, block), axis_names(op)
    if axis is None or names is None:
        return None
    return -1 - names[axis_symbol(axis)]


def _check_order(load: tile.Load, kernel: Kernel) -> None:
    """Refuse a load that may read what the kernel wrote before it."""
    if load.volatile or load.cache == ".cv":
        raise UnmappableError("it is volatile")
    own = pointer_roots(load.pointer)
    for op in kernel.walk():
        if isinstance(op, tile.Load) and op.volatile and may_precede(op, load):
            raise UnmappableError("a volatile load before it may wait for other programs to write")
        if op.effect not in ("write", "readwrite") or op.terminator or isinstance(op, _HARMLESS):
            continue
        pointer = getattr(op, "pointer", None) or getattr(op, "descriptor", None)
        if not isinstance(pointer, Value):
            if may_precede(op, load):
                raise UnmappableError(
                    f"{op.opcode} comes before it, and what was written before that"
                )
        elif any(root in own for root in pointer_roots(pointer)):
            raise UnmappableError("the kernel writes through it, too")
        elif may_precede(op, load) and not _is_promised(op, load):
            name = root_names(pointer)
            raise UnmappableError(
                f"the kernel writes through {name} before, which may be the same memory"
            )


def _is_promised(write: Op, load: Op) -> bool:
    """Return whether a write comes before a load in earlier iterations only, of promised loops.

    `num_stages` of `tl.range` promises that iterations do not depend on each other through
    different arguments.
    """
    around = [write, *write.ancestors()]
    blocks = {op.block: op for op in around}
    for op in (load, *load.ancestors()):
        is_shared_loop = isinstance(op, scf.For | scf.While) and op in around
        if is_shared_loop and not (isinstance(op, scf.For) and op.num_stages):
            return False
        beside = blocks.get(op.block)
        if beside is not None and beside is not op and stands_before(beside, op):
            return False
    return True


# ---- the rewriting ----------------------------------------------------------------------------


@dataclass
class _Mapper:
    """Replace loads; `made` are the descriptors so far, by what they describe."""

    kernel: Kernel
    analysis: AffineAnalysis
    made: dict[tuple[TensorSource, DescriptorType], Value] = field(
        default_factory=dict[tuple[TensorSource, DescriptorType], Value]
    )

    def replace(self, load: tile.Load, block: TensorBlock) -> None:
        """Load `block` in place of `load`."""
        place = Builder.before_op(load)
        tensor = self._descriptor(load, block)
        coords = [self._coordinate(axis.start, load, place) for axis in block.axes]
        num_extra = sum(axis.tile_axis is None for axis in block.axes)
        loaded = descriptor.DescriptorLoad(tensor, coords, "", load.eviction, num_extra)
        load.replace_with([_as_loaded(place(loaded).out, load, block, place)])
        guards = dict.fromkeys((*self.kernel.guards, *block.guards))
        asked_twice = [f"{guard.removesuffix(' > 0')} >= 0" for guard in guards]
        self.kernel.guards = tuple(guard for guard in guards if guard not in asked_twice)

    def _descriptor(self, load: tile.Load, block: TensorBlock) -> Value:
        """Return the parameter that describes the tensor of a block."""
        element = element_of(load.out.type)
        assert isinstance(element, ScalarType)
        kind = DescriptorType(element, tuple(axis.box for axis in block.axes))
        source = block.source
        if (source, kind) not in self.made:
            own = sum(each.address == source.address for each, _ in self.made)
            name = f"{source.address}.map{own or ''}"
            self.made[source, kind] = self.kernel.body.add_arg(kind, name)
            self.kernel.params += (ParamInfo(name, tensor=source),)
        return self.made[source, kind]

    def _coordinate(self, start: Polynomial, load: tile.Load, place: Builder) -> Value:
        """Compute where a block begins; what changes within the innermost loop is added last."""
        for value in self.analysis.scalars(start):
            if _is_visible(value, load):
                return value
        loop = next(op for op in load.ancestors() if isinstance(op, scf.For))

        def changes(term: Polynomial) -> bool:
            sources = (self.analysis.sources[symbol] for symbol in term.symbols)
            return any(isinstance(each, Value) and is_inside(each.owner, loop) for each in sources)

        total: Value | None = None
        for term in sorted(start, key=changes):
            value = self._term(term, load, place)
            total = value if total is None else place(arith.Add(total, value)).out
        return place(arith.Constant(0, I32)).out if total is None else total

    def _term(self, term: Polynomial, load: tile.Load, place: Builder) -> Value:
        ((monomial, factor),) = term.terms
        product: Value | None = None
        for symbol in monomial:
            value = self._symbol(symbol, load, place)
            product = value if product is None else place(arith.Mul(product, value)).out
        if product is not None and factor == 1:
            return product
        constant = place(arith.Constant(factor, I32)).out
        return constant if product is None else place(arith.Mul(product, constant)).out

    def _symbol(self, symbol: int, load: tile.Load, place: Builder) -> Value:
        source = self.analysis.sources[symbol]
        if isinstance(source, Value):
            return source if source.type == I32 else place(arith.Cast(source, I32)).out
        dividend = self._coordinate(source.dividend, load, place)
        divisor = self._coordinate(source.divisor, load, place)
        return place(arith.Rem(dividend, divisor)).out


def _is_visible(value: Value, user: Op) -> bool:
    """Return whether `user` may use a value: whether it was computed before, around it."""
    op = value.op
    block = op.block if op is not None else value.owner
    for outer in (user, *user.ancestors()):
        if outer.block is block:
            return op is None or stands_before(op, outer)
    return False


def _as_loaded(value: Value, load: tile.Load, block: TensorBlock, place: Builder) -> Value:
    """Return a block with the axes of the load it replaces."""
    wanted = load.out.type
    assert isinstance(wanted, TileType)
    order = [axis.tile_axis for axis in block.axes if axis.tile_axis is not None]
    if order != sorted(order):
        ranks = tuple(order.index(axis) for axis in sorted(order))
        value = place(tile.Trans(value, ranks)).out
    if shape_of(value.type) != wanted.shape:
        value = place(tile.Reshape(value, wanted.shape)).out
    return value
