"""The slice of a kernel that its tensor loads depend on: loops, branches, scalars.

A producer warp can issue the loads if the slice has no tiles, no results of dots or other threads,
and no order with the kernel's writes. Loads by its threads may use tiles: pointers and masks,
computed by each thread from its own elements and its own loads. `find_slice` collects the slice, or
the obstacle; `SliceCopy` clones it.

A producer has another number of warps than consumers: in its clone a tile's layout has the highest
bits of the warp index as its last register bits. This is the same for ops that move nothing between
threads.

Invariant: a clone of the slice issues the same tensor loads in the same order as the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from aotc.ir.core import Block, Kernel, Op, Value, build
from aotc.ir.dialects import gpu, grid, scf, thread_copy, tma
from aotc.ir.effects import Resource, Trait
from aotc.ir.layout import LinearLayout, log2_exact
from aotc.ir.rewrite import Builder
from aotc.ir.types import SharedType, TileType, Type
from aotc.schedule.analysis.global_order import (
    accessed_pointer,
    fences,
    root_names,
    shared_roots,
    written_pointer,
)
from aotc.schedule.remarks import Reason

_LOCAL = (Trait.ELEMENTWISE, Trait.SOURCE, Trait.SHAPE_ONLY, Trait.BROADCAST)


@dataclass
class Slice:
    """The ops and carried values that loads depend on, or the `obstacle` to cloning them."""

    ops: dict[Op, None] = field(default_factory=dict[Op, None])
    values: dict[Value, None] = field(default_factory=dict[Value, None])
    obstacle: str = ""


def find_slice(kernel: Kernel) -> Slice:
    """Return the slice of the kernel's tensor loads, waits for other grids included."""
    search = _Search(kernel.body)
    for op in kernel.walk():
        if isinstance(op, grid.GridWait):
            search.need_op(op)
            search.run(())
        if isinstance(op, tma.SyncLoad) and not search.slice.obstacle:
            search.need_op(op)
            search.run(op.inputs, tiles=isinstance(op, thread_copy.SyncThreadLoad))
    return search.slice


def tile_obstacle(kernel: Kernel, values: Iterable[Value]) -> str:
    """Return why the threads of a producer cannot compute some tiles, or an empty string."""
    search = _Search(kernel.body)
    search.run(values, tiles=True)
    return search.slice.obstacle


def find_map_slice(block: Block) -> Slice:
    """Return the slice of tensor maps made in a block's loops, if one warp can make them."""
    map_slice = Slice()
    for op in block.walk():
        if makes_map_in_loop(op):
            search = _Search(block)
            search.run(op.results)
            if not search.slice.obstacle:
                map_slice.ops |= search.slice.ops
                map_slice.values |= search.slice.values
    return map_slice


def makes_map_in_loop(op: Op) -> bool:
    """Return whether an op makes a tensor map in each iteration of a loop."""
    is_maker = isinstance(op, tma.MakeTensorMap)
    return is_maker and any(ancestor.has(Trait.LOOP) for ancestor in op.ancestors())


class _Search:
    """Walk from values to all their sources, through loops and branches."""

    def __init__(self, body: Block) -> None:
        self.body = body
        self.slice = Slice()
        self.worklist: list[Value] = []
        self.tiles = False

    def run(self, values: Iterable[Value], *, tiles: bool = False) -> None:
        """Add the sources of `values`, which may be `tiles` computed within each thread."""
        self.worklist += values
        self.tiles = tiles
        while self.worklist and not self.slice.obstacle:
            value = self.worklist.pop()
            if value in self.slice.values:
                continue
            self.slice.values[value] = None
            if value.op is None:
                self._need_argument(value)
            elif value.op.has(Trait.CONTROL_FLOW):
                self.need_op(value.op)
                self.worklist += _sources(value.op, value.index)
            else:
                self._need_computed(value.op)

    def need_op(self, op: Op) -> None:
        """Add an op, and the conditions of whether and how often it runs."""
        for nested in (op, *op.ancestors()):
            if nested in self.slice.ops:
                return
            self.slice.ops[nested] = None
            if isinstance(nested, scf.For):
                self.worklist += [nested.lower, nested.upper, nested.step]
            elif isinstance(nested, scf.If):
                self.worklist.append(nested.condition)
            elif isinstance(nested, scf.While):
                self.worklist.append(nested.before.terminator.operands[0])

    def _need_argument(self, value: Value) -> None:
        assert isinstance(value.owner, Block)
        parent = value.owner.parent
        if isinstance(parent, scf.For):
            self.need_op(parent)
            self.worklist += _sources(parent, value.index - 1) if value.index else []
        elif isinstance(parent, scf.While):
            self.need_op(parent)
            if value.owner is parent.before:
                self.worklist.append(parent.init[value.index])
                self.worklist.append(parent.after.terminator.operands[value.index])
            else:
                self.worklist.append(parent.before.terminator.operands[value.index + 1])

    def _need_computed(self, op: Op) -> None:
        if isinstance(op, tma.MakeTensorMap):
            self.need_op(op)
            # The template belongs to the warp that runs it.
            self.worklist += [op.pointer, op.slot, *op.sizes]
            return
        involved = [value.type for value in (*op.operands, *op.results)]
        is_local = self.tiles and (op.has(*_LOCAL) or isinstance(op, gpu.Load | gpu.Convert))
        foreign = SharedType if is_local else TileType | SharedType
        if any(isinstance(kind, foreign) for kind in involved) or op.blocks:
            self.slice.obstacle = Reason.LOADS_NEED_TILE(op=op.opcode)
        elif (pointer := accessed_pointer(op)) is not None and not op.writes():
            self.slice.obstacle = self._disorder(pointer)
            if getattr(op, "volatile", False):
                self.slice.obstacle = Reason.LOADS_NEED_VOLATILE()
        elif not op.pure and not op.reads(Resource.TENSOR_MAP):
            self.slice.obstacle = Reason.LOADS_NEED_OP(op=op.opcode)
        self.need_op(op)
        self.worklist += op.operands

    def _disorder(self, pointer: Value) -> str:
        for fence in fences(self.body):
            target = written_pointer(fence)
            if target is not None and shared_roots(pointer, target):
                return Reason.LOADS_NEED_WRITTEN(names=root_names(pointer))
        return ""


def _sources(op: Op, index: int) -> list[Value]:
    """Return the possible sources of a loop's or branch's result, or of its carried value."""
    if isinstance(op, scf.For):
        return [op.init[index], op.body.terminator.operands[index]]
    if isinstance(op, scf.If):
        return [op.then.terminator.operands[index], op.orelse.terminator.operands[index]]
    assert isinstance(op, scf.While)
    return [op.before.terminator.operands[index + 1]]


def layout_for_warps(layout: LinearLayout, num_warps: int) -> LinearLayout:
    """Return the layout of a tile in fewer warps: the highest bits of theirs become registers' last.

    Each thread has the elements of several. A layout of memory stays as it is.
    """
    columns = layout.columns("warp") if "warp" in layout.in_dims else ()
    num_warp_bits = log2_exact(num_warps)
    new_columns = {
        "warp": columns[:num_warp_bits],
        "register": (*layout.columns("register"), *columns[num_warp_bits:]),
    }
    if len(columns) <= num_warp_bits:
        return layout
    ins = [(dim, new_columns.get(dim, layout.columns(dim))) for dim in layout.in_dims]
    return LinearLayout.from_columns(ins, layout.outs)


class SliceCopy:
    """Clone a slice, with carried values of the clone's own.

    A state is a list of values carried by every loop. `issue` emits the replacement of a load: it
    takes the builder, the cloned inputs and the state there, and returns the state after it.
    `advance` takes a loop, the end of an iteration of its clone and the state there, and returns
    the next iteration's state. `make` takes an op that makes a tensor map, and emits its
    replacement, as `issue` does. With `num_warps` tiles of the clone are in as many warps.
    """

    State = list[Value]

    def __init__(
        self,
        source: Slice,
        issue: Callable[[tma.SyncLoad, Builder, dict[Value, Value], list[Value]], list[Value]],
        advance: Callable[[scf.For, Builder, list[Value]], list[Value]] | None = None,
        make: Callable[[tma.MakeTensorMap, Builder, dict[Value, Value], list[Value]], list[Value]]
        | None = None,
        num_warps: int = 0,
    ) -> None:
        self._slice = source
        self._issue = issue
        self._advance = advance
        self._make = make
        self._num_warps = num_warps
        self._mapping: dict[Value, Value] = {}

    def copy_block(self, source: Block, builder: Builder, state: list[Value]) -> list[Value]:
        """Clone the ops of a block in the slice; return the state at its end."""
        for op in source:
            if op not in self._slice.ops:
                continue
            if isinstance(op, tma.SyncLoad):
                state = self._issue(op, builder, self._mapping, state)
            elif isinstance(op, tma.MakeTensorMap) and self._make is not None:
                state = self._make(op, builder, self._mapping, state)
            elif isinstance(op, scf.For):
                state = self._copy_for(op, builder, state)
            elif isinstance(op, scf.If):
                state = self._copy_if(op, builder, state)
            elif isinstance(op, scf.While):
                state = self._copy_while(op, builder, state)
            else:
                builder(op.clone(self._mapping, **self._attributes_for_warps(op)))
        return state

    def _attributes_for_warps(self, op: Op) -> dict[str, object]:
        """Return an op's attributes with layouts, for the warps of the clone."""
        if not self._num_warps or not any(isinstance(out.type, TileType) for out in op.results):
            return {}
        attributes: dict[str, object] = {}
        for name, value in op.attributes.items():
            if isinstance(value, LinearLayout):
                attributes[name] = layout_for_warps(value, self._num_warps)
            elif isinstance(value, TileType):
                attributes[name] = self._retyped(value)
        return attributes

    def _retyped(self, kind: Type) -> Type:
        """Return a type for the warps of the clone."""
        if not self._num_warps or not isinstance(kind, TileType) or kind.layout is None:
            return kind
        return replace(kind, layout=layout_for_warps(kind.layout, self._num_warps))

    def _mapped(self, value: Value) -> Value:
        return self._mapping.get(value, value)

    def _indices_in_slice(self, values: Sequence[Value]) -> list[int]:
        return [index for index, value in enumerate(values) if value in self._slice.values]

    def _take(self, copy: Op, old: Sequence[Value], indices: Sequence[int]) -> list[Value]:
        """Map the kept results of a copied op; return the rest, the state."""
        for new, index in zip(copy.results, indices, strict=False):
            self._mapping[old[index]] = new
        return list(copy.results[len(indices) :])

    def _copy_for(self, op: scf.For, builder: Builder, state: list[Value]) -> list[Value]:
        carried, yielded = op.carried, op.body.terminator.operands
        indices = sorted({*self._indices_in_slice(carried), *self._indices_in_slice(op.outs)})
        body = Block()
        self._mapping[op.induction] = body.add_arg(op.induction.type, op.induction.hint)
        for index in indices:
            kind = self._retyped(carried[index].type)
            self._mapping[carried[index]] = body.add_arg(kind, carried[index].hint)
        inner = [body.add_arg(value.type, value.hint) for value in state]
        inner = self.copy_block(op.body, Builder(body), inner)
        if self._advance is not None:
            inner = self._advance(op, Builder(body), inner)
        Builder(body)(scf.Yield([*(self._mapped(yielded[index]) for index in indices), *inner]))
        bounds = [self._mapped(value) for value in (op.lower, op.upper, op.step)]
        inits = [self._mapped(op.init[index]) for index in indices]
        attributes = {**op.attributes, "unroll": op.unroll or scf.NEVER_UNROLLED}
        copy = builder(build(scf.For, [*bounds, *inits, *state], attributes, [body], op.loc))
        return self._take(copy, op.outs, indices)

    def _copy_if(self, op: scf.If, builder: Builder, state: list[Value]) -> list[Value]:
        indices = self._indices_in_slice(op.outs)
        arms: list[Block] = []
        for arm in op.blocks:
            copied = Block()
            end = self.copy_block(arm, Builder(copied), state)
            values = [self._mapped(arm.terminator.operands[index]) for index in indices]
            Builder(copied)(scf.Yield([*values, *end]))
            arms.append(copied)
        copy = builder(build(scf.If, [self._mapped(op.condition)], {}, arms, op.loc))
        return self._take(copy, op.outs, indices)

    def _copy_while(self, op: scf.While, builder: Builder, state: list[Value]) -> list[Value]:
        condition, yielded = op.before.terminator.operands, op.after.terminator.operands
        carried = self._indices_in_slice(op.before.args)
        indices = sorted({*self._indices_in_slice(op.after.args), *self._indices_in_slice(op.outs)})
        before, after = Block(), Block()
        for index in carried:
            arg = op.before.args[index]
            self._mapping[arg] = before.add_arg(self._retyped(arg.type), arg.hint)
        inner = [before.add_arg(value.type, value.hint) for value in state]
        inner = self.copy_block(op.before, Builder(before), inner)
        passed = [self._mapped(condition[index + 1]) for index in indices]
        Builder(before)(scf.Condition(self._mapped(condition[0]), [*passed, *inner]))
        for index in indices:
            arg = op.after.args[index]
            self._mapping[arg] = after.add_arg(self._retyped(arg.type), arg.hint)
        inner = [after.add_arg(value.type, value.hint) for value in state]
        inner = self.copy_block(op.after, Builder(after), inner)
        Builder(after)(scf.Yield([*(self._mapped(yielded[index]) for index in carried), *inner]))
        inits = [*(self._mapped(op.init[index]) for index in carried), *state]
        copy = builder(build(scf.While, inits, op.attributes, [before, after], op.loc))
        return self._take(copy, op.outs, indices)
