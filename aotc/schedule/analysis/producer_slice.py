"""The slice of a kernel that decides which tensor loads are issued: loops, branches, scalars.

A producer warp can issue the loads if that takes no tiles, nothing that dots or other
threads compute, and no order with what the kernel writes. Loads by its threads may take tiles: pointers
and masks, which each thread computes of its own elements and of what it loads. `find_slice` collects
what it takes, or says why it cannot be; `SliceCopy` clones it.

A producer has other warps than consumers: in its clone a tile's layout has the highest bits of the warp
index as its last register bits. That changes nothing between ops that move nothing between threads.

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
    """Return what the kernel's tensor loads depend on, waits for other grids included."""
    search = _Search(kernel.body)
    for op in kernel.walk():
        if isinstance(op, grid.GridWait):
            search.need_op(op)
            search.run(())
        if isinstance(op, tma.SyncLoad) and not search.found.obstacle:
            search.need_op(op)
            search.run(op.inputs, tiles=isinstance(op, thread_copy.SyncThreadLoad))
    return search.found


def tile_obstacle(kernel: Kernel, values: Iterable[Value]) -> str:
    """Return why the threads of a producer cannot compute some tiles, or an empty string."""
    search = _Search(kernel.body)
    search.run(values, tiles=True)
    return search.found.obstacle


def find_map_slice(block: Block) -> Slice:
    """Return what those tensor maps depend on that a block makes in loops and a warp can make alone."""
    found = Slice()
    for op in block.walk():
        if makes_map_in_loop(op):
            search = _Search(block)
            search.run(op.results)
            if not search.found.obstacle:
                found.ops |= search.found.ops
                found.values |= search.found.values
    return found


def makes_map_in_loop(op: Op) -> bool:
    """Return whether an op makes a tensor map that a loop makes anew."""
    is_maker = isinstance(op, tma.MakeTensorMap)
    return is_maker and any(each.has(Trait.LOOP) for each in op.ancestors())


class _Search:
    """Walk from values to all that they are computed from, through loops and branches."""

    def __init__(self, body: Block) -> None:
        self.body = body
        self.found = Slice()
        self.worklist: list[Value] = []
        self.tiles = False

    def run(self, values: Iterable[Value], *, tiles: bool = False) -> None:
        """Add what `values` depend on, which may be `tiles` that threads compute by themselves."""
        self.worklist += values
        self.tiles = tiles
        while self.worklist and not self.found.obstacle:
            value = self.worklist.pop()
            if value in self.found.values:
                continue
            self.found.values[value] = None
            if value.op is None:
                self._need_argument(value)
            elif value.op.has(Trait.CONTROL_FLOW):
                self.need_op(value.op)
                self.worklist += _sources(value.op, value.index)
            else:
                self._need_computed(value.op)

    def need_op(self, op: Op) -> None:
        """Add an op, and the conditions of whether and how often it runs."""
        for each in (op, *op.ancestors()):
            if each in self.found.ops:
                return
            self.found.ops[each] = None
            if isinstance(each, scf.For):
                self.worklist += [each.lower, each.upper, each.step]
            elif isinstance(each, scf.If):
                self.worklist.append(each.condition)
            elif isinstance(each, scf.While):
                self.worklist.append(each.before.terminator.operands[0])

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
            self.worklist += [op.pointer, op.slot, *op.sizes]  # whoever runs it has the template
            return
        involved = [each.type for each in (*op.operands, *op.results)]
        is_local = self.tiles and (op.has(*_LOCAL) or isinstance(op, gpu.Load | gpu.Convert))
        foreign = SharedType if is_local else TileType | SharedType
        if any(isinstance(kind, foreign) for kind in involved) or op.blocks:
            self.found.obstacle = Reason.LOADS_NEED_TILE(op=op.opcode)
        elif (pointer := accessed_pointer(op)) is not None and not op.writes():
            self.found.obstacle = self._disorder(pointer)
            if getattr(op, "volatile", False):
                self.found.obstacle = Reason.LOADS_NEED_VOLATILE()
        elif not op.pure and not op.reads(Resource.TENSOR_MAP):
            self.found.obstacle = Reason.LOADS_NEED_OP(op=op.opcode)
        self.need_op(op)
        self.worklist += op.operands

    def _disorder(self, pointer: Value) -> str:
        for fence in fences(self.body):
            target = written_pointer(fence)
            if target is not None and shared_roots(pointer, target):
                return Reason.LOADS_NEED_WRITTEN(names=root_names(pointer))
        return ""


def _sources(op: Op, index: int) -> list[Value]:
    """Return the values that a result of a loop or branch, or its carried value, may be."""
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
    kept = log2_exact(num_warps)
    moved = {"warp": columns[:kept], "register": (*layout.columns("register"), *columns[kept:])}
    if len(columns) <= kept:
        return layout
    ins = [(dim, moved.get(dim, layout.columns(dim))) for dim in layout.in_dims]
    return LinearLayout.from_columns(ins, layout.outs)


class SliceCopy:
    """Clone a slice, with values of the clone's own carried along.

    `issue` emits what stands for a load: it is given the place, the cloned
    inputs and the state there, and returns the state after it. A state is a list of
    values that every loop carries. `advance` is given a loop, the end of an iteration of its clone and
    the state there, and returns the state that the next iteration begins with. `make` is given an op
    that makes a tensor map, and emits what stands for it, as `issue` does. With `num_warps` tiles of the
    clone are in as many warps.
    """

    State = list[Value]

    def __init__(
        self,
        found: Slice,
        issue: Callable[[tma.SyncLoad, Builder, dict[Value, Value], list[Value]], list[Value]],
        advance: Callable[[scf.For, Builder, list[Value]], list[Value]] | None = None,
        make: Callable[[tma.MakeTensorMap, Builder, dict[Value, Value], list[Value]], list[Value]]
        | None = None,
        num_warps: int = 0,
    ) -> None:
        self._slice = found
        self._issue = issue
        self._advance = advance
        self._make = make
        self._num_warps = num_warps
        self._mapping: dict[Value, Value] = {}

    def copy_block(self, source: Block, place: Builder, state: list[Value]) -> list[Value]:
        """Clone the ops of a block that belong to the slice; return the state at its end."""
        for op in source:
            if op not in self._slice.ops:
                continue
            if isinstance(op, tma.SyncLoad):
                state = self._issue(op, place, self._mapping, state)
            elif isinstance(op, tma.MakeTensorMap) and self._make is not None:
                state = self._make(op, place, self._mapping, state)
            elif isinstance(op, scf.For):
                state = self._copy_for(op, place, state)
            elif isinstance(op, scf.If):
                state = self._copy_if(op, place, state)
            elif isinstance(op, scf.While):
                state = self._copy_while(op, place, state)
            else:
                place(op.clone(self._mapping, **self._relaid(op)))
        return state

    def _relaid(self, op: Op) -> dict[str, object]:
        """Return the attributes of an op that name layouts, for the warps of the clone."""
        if not self._num_warps or not any(isinstance(each.type, TileType) for each in op.results):
            return {}
        found: dict[str, object] = {}
        for name, value in op.attributes.items():
            if isinstance(value, LinearLayout):
                found[name] = layout_for_warps(value, self._num_warps)
            elif isinstance(value, TileType):
                found[name] = self._retyped(value)
        return found

    def _retyped(self, kind: Type) -> Type:
        """Return a type for the warps of the clone."""
        if not self._num_warps or not isinstance(kind, TileType) or kind.layout is None:
            return kind
        return replace(kind, layout=layout_for_warps(kind.layout, self._num_warps))

    def _mapped(self, value: Value) -> Value:
        return self._mapping.get(value, value)

    def _kept(self, values: Sequence[Value]) -> list[int]:
        return [index for index, value in enumerate(values) if value in self._slice.values]

    def _take(self, made: Op, old: Sequence[Value], kept: Sequence[int]) -> list[Value]:
        """Map the kept results of a copied op; return the rest, the state."""
        for new, index in zip(made.results, kept, strict=False):
            self._mapping[old[index]] = new
        return list(made.results[len(kept) :])

    def _copy_for(self, op: scf.For, place: Builder, state: list[Value]) -> list[Value]:
        carried, yielded = op.carried, op.body.terminator.operands
        kept = sorted({*self._kept(carried), *self._kept(op.outs)})
        body = Block()
        self._mapping[op.induction] = body.add_arg(op.induction.type, op.induction.hint)
        for index in kept:
            kind = self._retyped(carried[index].type)
            self._mapping[carried[index]] = body.add_arg(kind, carried[index].hint)
        inner = [body.add_arg(value.type, value.hint) for value in state]
        inner = self.copy_block(op.body, Builder(body), inner)
        if self._advance is not None:
            inner = self._advance(op, Builder(body), inner)
        Builder(body)(scf.Yield([*(self._mapped(yielded[index]) for index in kept), *inner]))
        bounds = [self._mapped(value) for value in (op.lower, op.upper, op.step)]
        inits = [self._mapped(op.init[index]) for index in kept]
        attributes = {**op.attributes, "unroll": op.unroll or scf.NEVER_UNROLLED}
        made = place(build(scf.For, [*bounds, *inits, *state], attributes, [body], op.loc))
        return self._take(made, op.outs, kept)

    def _copy_if(self, op: scf.If, place: Builder, state: list[Value]) -> list[Value]:
        kept = self._kept(op.outs)
        arms: list[Block] = []
        for arm in op.blocks:
            copied = Block()
            end = self.copy_block(arm, Builder(copied), state)
            values = [self._mapped(arm.terminator.operands[index]) for index in kept]
            Builder(copied)(scf.Yield([*values, *end]))
            arms.append(copied)
        made = place(build(scf.If, [self._mapped(op.condition)], {}, arms, op.loc))
        return self._take(made, op.outs, kept)

    def _copy_while(self, op: scf.While, place: Builder, state: list[Value]) -> list[Value]:
        condition, yielded = op.before.terminator.operands, op.after.terminator.operands
        carried = self._kept(op.before.args)
        kept = sorted({*self._kept(op.after.args), *self._kept(op.outs)})
        before, after = Block(), Block()
        for index in carried:
            arg = op.before.args[index]
            self._mapping[arg] = before.add_arg(self._retyped(arg.type), arg.hint)
        inner = [before.add_arg(value.type, value.hint) for value in state]
        inner = self.copy_block(op.before, Builder(before), inner)
        passed = [self._mapped(condition[index + 1]) for index in kept]
        Builder(before)(scf.Condition(self._mapped(condition[0]), [*passed, *inner]))
        for index in kept:
            arg = op.after.args[index]
            self._mapping[arg] = after.add_arg(self._retyped(arg.type), arg.hint)
        inner = [after.add_arg(value.type, value.hint) for value in state]
        inner = self.copy_block(op.after, Builder(after), inner)
        Builder(after)(scf.Yield([*(self._mapped(yielded[index]) for index in carried), *inner]))
        inits = [*(self._mapped(op.init[index]) for index in carried), *state]
        made = place(build(scf.While, inits, op.attributes, [before, after], op.loc))
        return self._take(made, op.outs, kept)
