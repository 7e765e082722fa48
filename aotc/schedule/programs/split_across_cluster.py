"""Split a program's tiles across the CTAs of a cluster.

With `num_ctas` above 1 a program is run by a cluster of as many CTAs. `cta_split` chooses the split of each
tile; this pass rewrites the kernel for one CTA. Split tiles are smaller, and index computations (ranges,
coordinates of descriptors) begin at the CTA's slice. A replicated value is stored by the first CTA. If a
program cannot be split, all CTAs compute all of it, correct but no faster, and a remark is given.

A row reduction reduces each CTA's slice, and combines the partial results by a `grid.cluster_reduce`. The
result of a scalar atomic is sent from the first CTA to all in the same way. A program using the result of a
tile's atomic runs in one CTA. A replicated tile of a descriptor is multicast: each CTA loads one slice for
all. A kernel that `runs_by_cta` is written for one CTA already.

Invariant: together the CTAs store each element of the program once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from aotc.ir.core import Block, Kernel, Op, Value, build, clone_block
from aotc.ir.diagnostics import CompileError, at
from aotc.ir.dialects import arith, descriptor, gpu, grid, scf, tile
from aotc.ir.effects import Resource, Trait
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32, DescriptorType, ScalarType, TileType
from aotc.schedule.analysis.global_order import accessed
from aotc.schedule.context import Schedule
from aotc.schedule.layout.tensor_copies import axis_of_parts, has_parts
from aotc.schedule.programs.cta_split import (
    Part,
    Parts,
    axis_of_box,
    find_parts,
    operand_parts,
    part_type,
    shape_of,
)
from aotc.schedule.remarks import Remark


def split_across_cluster(kernel: Kernel, schedule: Schedule) -> None:
    """Rewrite a program's kernel for one CTA of its cluster."""
    num_ctas = schedule.config.num_ctas
    if num_ctas == 1 or kernel.runs_by_cta:
        return
    for op in kernel.walk():
        is_used = op.writes(Resource.GLOBAL) and any(value.users for value in op.results)
        is_atomic = isinstance(op, tile.AtomicRmw | tile.AtomicCas)
        if (is_used and not is_atomic) or op.has(Trait.BARRIER) or op.writes(Resource.OUTPUT):
            raise CompileError(
                f"num_ctas = {num_ctas}: {op.opcode} is not shared by the CTAs of a cluster",
                op.loc,
                remedy="leave num_ctas at 1 for this kernel",
            )
        if isinstance(op, tile.AtomicRmw | tile.AtomicCas) and op.scope == "cta":
            op.scope = "gpu"  # the threads of a program are those of several CTAs
    tiled = next((op for op in kernel.walk() if _is_used_tile(op)), None)
    if tiled is not None:
        # The CTAs of a cluster exchange scalars only.
        kernel.num_ctas = 1
        schedule.config = replace(schedule.config, num_ctas=1)
        schedule.remark(tiled.loc, Remark.ONE_CTA(op=tiled.opcode))
        return
    parts = find_parts(kernel, num_ctas)
    if parts.obstacle:
        schedule.remark(kernel.loc, Remark.REPLICATED(reason=parts.obstacle))
        parts = find_parts(kernel, num_ctas, divides=False)
    _Distribution(kernel, parts, num_ctas).run()


def _is_used_tile(op: Op) -> bool:
    """Return whether an op is an atomic of a tile with used results."""
    is_atomic = isinstance(op, tile.AtomicRmw | tile.AtomicCas)
    return is_atomic and any(value.users and shape_of(value) for value in op.results)


class _Distribution:
    """Copy the kernel op by op, once for each way an op is needed."""

    def __init__(self, kernel: Kernel, parts: Parts, num_ctas: int) -> None:
        self.kernel = kernel
        self.parts = parts
        self.num_ctas = num_ctas
        self.made: dict[tuple[Value, Part], Value] = {}
        self.rank: Value | None = None

    def run(self) -> None:
        """Replace the kernel's body."""
        old = self.kernel.body
        new = Block()
        for arg in old.args:
            kind = self._own_type(arg) if isinstance(arg.type, DescriptorType) else arg.type
            self.made[arg, None] = new.add_arg(kind, arg.hint)
        builder = Builder(new)
        with at(self.kernel.loc):
            self.rank = builder(grid.CtaRank()).out
        self._copy_block(old, builder)
        builder(old.terminator.clone({}))
        self.kernel.body = new
        new.parent = self.kernel
        old.clear()

    def _own_type(self, value: Value) -> DescriptorType:
        """Return a descriptor's type for one CTA."""
        kind = value.type
        assert isinstance(kind, DescriptorType)
        part = self.parts.descriptors.get(value)
        if part is None and self._is_shared(value):
            return replace(kind, num_parts=self.num_ctas)
        return part_type(kind, part, self.num_ctas)

    def _is_shared(self, value: Value) -> bool:
        """Return whether loads of a descriptor can be multicast: only ever loaded, and large enough.

        Unit axes before the split axis are no axes of the tiles. Axes merged by a load are whole in one box, so
        they are not split.
        """
        kind = value.type
        assert isinstance(kind, DescriptorType)
        only_loaded = all(
            isinstance(user, descriptor.DescriptorQuery)
            or (accessed(user) is value and not user.writes())
            for user in value.users
        )
        axis = axis_of_parts(kind)
        begins = all(
            user.num_dropped == axis and not user.num_merged
            for user in value.users
            if isinstance(user, descriptor.DescriptorLoad)
        )
        return only_loaded and begins and has_parts(kind, self.num_ctas)

    # -- values ----------------------------------------------------------------

    def _get(self, value: Value, part: Part) -> Value:
        return self.made[value, part if shape_of(value) else None]

    def _ways(self, value: Value) -> list[Part]:
        return list(self.parts.uses.get(value, ()))

    def _way(self, value: Value) -> Part:
        return next(iter(self.parts.uses.get(value, {None: None})))

    def _start(self, extent: int, builder: Builder) -> Value:
        """Return the start of the CTA's slice of `extent` elements."""
        assert self.rank is not None
        size = builder(arith.Constant(extent // self.num_ctas, I32)).out
        return builder(arith.Mul(self.rank, size)).out

    # -- ops -------------------------------------------------------------------

    def _copy_block(self, source: Block, builder: Builder) -> None:
        for op in source:
            with at(op.loc):
                if op.terminator:
                    continue
                if isinstance(op, scf.For):
                    self._copy_for(op, builder)
                elif isinstance(op, scf.If):
                    self._copy_if(op, builder)
                elif isinstance(op, scf.While):
                    self._copy_while(op, builder)
                elif op in self.parts.roots:
                    self._copy_root(op, builder)
                else:
                    for part in self._needed_ways(op):
                        self._copy(op, part, builder)

    def _needed_ways(self, op: Op) -> list[Part]:
        return list(dict.fromkeys(way for value in op.results for way in self._ways(value)))

    def _copy(self, op: Op, part: Part, builder: Builder) -> None:
        """Copy an op whose results are split along `part`."""
        exchanged = op in self.parts.exchanged
        parts = [0] * len(op.operands) if exchanged else operand_parts(op, part)
        assert parts is not None
        values = [self._get(value, way) for value, way in zip(op.operands, parts, strict=True)]
        mapping = dict(zip(op.operands, values, strict=True))
        rule = _RULES.get(type(op))
        if isinstance(op, descriptor.DescriptorOf):
            kind = self._own_type(op.out)
            results = builder(op.clone(mapping, shape=kind.block, num_parts=kind.num_parts)).results
        elif part is not None and rule is not None:
            results = rule(self, op, part, mapping, builder)
        elif len(mapping) == len(values):
            results = builder(op.clone(mapping)).results
        else:
            # One value may be needed in two ways: an accumulator that is an operand as well.
            operands = iter(values)
            slots = [None if slot is None else next(operands) for slot in op.slots]
            blocks = [clone_block(block, {}) for block in op.blocks]
            results = builder(build(type(op), slots, op.attributes, blocks, op.loc)).results
        if exchanged:
            assert isinstance(op, tile.Reduce)
            results = builder(grid.ClusterReduce(results, clone_block(op.combine, {}))).results
        for old, new in zip(op.results, results, strict=True):
            new.hint = old.hint
            self.made[old, part if shape_of(old) else None] = new

    def _copy_root(self, op: Op, builder: Builder) -> None:
        part = self.parts.roots[op]
        mapping = {value: self._get(value, part) for value in op.operands}
        slots = [None if slot is None else mapping[slot] for slot in op.slots]
        if isinstance(op, descriptor.DescriptorWrite):
            slots[2:] = self._shift(op.coords, part, op.descriptor.type, mapping, builder)
        copy = build(type(op), slots, op.attributes, (), op.loc)
        if part is not None or not op.writes(Resource.GLOBAL):
            builder(copy)  # an op without writes, such as an assertion, runs in all CTAs
            return
        is_atomic = isinstance(op, tile.AtomicRmw | tile.AtomicCas)
        if is_atomic and not shape_of(op.out) and op.sem in ("release", "acq_rel"):
            # Order it after earlier accesses of all CTAs.
            builder(gpu.Fence(op.scope))
            builder(grid.ClusterBarrier())
        if any(value.users for value in op.results):
            self._share(op, copy, builder)
            return
        then, otherwise = Block(), Block()
        Builder(then)(copy)
        for block in (then, otherwise):
            Builder(block)(scf.Yield([]))
        builder(build(scf.If, [self._is_first(builder)], {}, [then, otherwise], op.loc))

    def _is_first(self, builder: Builder) -> Value:
        assert self.rank is not None
        zero = builder(arith.Constant(0, I32)).out
        return builder(arith.Compare(self.rank, zero, "eq")).out

    def _share(self, op: Op, copy: Op, builder: Builder) -> None:
        """Update a scalar in memory by the first CTA, and send the result to all, synchronizing them."""
        assert isinstance(op, tile.AtomicRmw | tile.AtomicCas)
        then, otherwise = Block(), Block()
        Builder(then)(copy)
        Builder(then)(scf.Yield(list(copy.results)))
        kind = op.out.type
        assert isinstance(kind, ScalarType)
        Builder(otherwise)(scf.Yield([Builder(otherwise)(arith.Constant(0, kind)).out]))
        branch = builder(build(scf.If, [self._is_first(builder)], {}, [then, otherwise], op.loc))
        combine = Block([kind, kind])
        Builder(combine)(scf.Yield([combine.args[0]]))
        (shared,) = builder(grid.ClusterReduce(branch.results, combine)).results
        if op.sem in ("acquire", "acq_rel"):
            # Sending a scalar orders no accesses to global memory.
            builder(grid.ClusterBarrier())
            builder(gpu.Fence(op.scope))
        shared.hint = op.out.hint
        self.made[op.out, None] = shared

    def _shift(
        self,
        coords: Sequence[Value],
        part: Part,
        kind: object,
        mapping: dict[Value, Value],
        builder: Builder,
    ) -> list[Value]:
        """Return the coordinates of the CTA's slice of a descriptor's box."""
        shifted = [mapping[coord] for coord in coords]
        if part is not None:
            assert isinstance(kind, DescriptorType)
            shifted[part] = builder(
                arith.Add(shifted[part], self._start(kind.block[part], builder))
            ).out
        return shifted

    # -- control flow ----------------------------------------------------------

    def _bind(self, old: Sequence[Value], new: Sequence[Value]) -> None:
        for before, after in zip(old, new, strict=True):
            after.hint = before.hint
            self.made[before, self._way(before) if shape_of(before) else None] = after

    def _copy_for(self, op: scf.For, builder: Builder) -> None:
        inits = [
            self._get(value, self._way(arg)) for value, arg in zip(op.init, op.carried, strict=True)
        ]
        body = Block([op.lower.type, *(value.type for value in inits)])
        self._bind(op.body.args, body.args)
        self._copy_block(op.body, Builder(body))
        ends = zip(op.body.terminator.operands, op.carried, strict=True)
        Builder(body)(scf.Yield([self._get(value, self._way(arg)) for value, arg in ends]))
        bounds = [self._get(value, None) for value in (op.lower, op.upper, op.step)]
        copy = builder(build(scf.For, [*bounds, *inits], op.attributes, [body], op.loc))
        self._bind(op.outs, copy.outs)

    def _copy_if(self, op: scf.If, builder: Builder) -> None:
        arms: list[Block] = []
        for arm in op.blocks:
            copied = Block()
            self._copy_block(arm, Builder(copied))
            ends = zip(arm.terminator.operands, op.outs, strict=True)
            Builder(copied)(scf.Yield([self._get(value, self._way(out)) for value, out in ends]))
            arms.append(copied)
        copy = builder(build(scf.If, [self._get(op.condition, None)], {}, arms, op.loc))
        self._bind(op.outs, copy.outs)

    def _copy_while(self, op: scf.While, builder: Builder) -> None:
        inits = [
            self._get(value, self._way(arg))
            for value, arg in zip(op.init, op.before.args, strict=True)
        ]
        before = Block([value.type for value in inits])
        self._bind(op.before.args, before.args)
        self._copy_block(op.before, Builder(before))
        condition, *passed = op.before.terminator.operands
        values = [
            self._get(value, self._way(arg))
            for value, arg in zip(passed, op.after.args, strict=True)
        ]
        Builder(before)(scf.Condition(self._get(condition, None), values))
        after = Block([value.type for value in values])
        self._bind(op.after.args, after.args)
        self._copy_block(op.after, Builder(after))
        ends = zip(op.after.terminator.operands, op.before.args, strict=True)
        Builder(after)(scf.Yield([self._get(value, self._way(arg)) for value, arg in ends]))
        copy = builder(build(scf.While, inits, op.attributes, [before, after], op.loc))
        self._bind(op.outs, copy.outs)

    # -- ops that index elements -----------------------------------------------

    def _cut(self, value: Value, part: int) -> tuple[int, ...]:
        shape = list(shape_of(value))
        shape[part] //= self.num_ctas
        return tuple(shape)

    def constant(
        self, op: Op, part: int, mapping: dict[Value, Value], builder: Builder
    ) -> list[Value]:
        """A smaller tile of the same."""
        del mapping
        kind = op.results[0].type
        assert isinstance(kind, TileType)
        cut = replace(kind, shape=self._cut(op.results[0], part))
        if isinstance(op, arith.Constant):
            return [builder(arith.Constant(op.value, cut)).out]
        return [builder(gpu.Undefined(cut)).out]

    def shaped(
        self, op: Op, part: int, mapping: dict[Value, Value], builder: Builder
    ) -> list[Value]:
        """An op with its result shape as an attribute."""
        return list(builder(op.clone(mapping, shape=self._cut(op.results[0], part))).results)

    def arange(
        self, op: Op, part: int, mapping: dict[Value, Value], builder: Builder
    ) -> list[Value]:
        """The CTA's own slice of a range."""
        del part, mapping
        assert isinstance(op, tile.Arange)
        extent = op.end - op.start
        size = extent // self.num_ctas
        indices = builder(tile.Arange(op.start, op.start + size)).out
        start = builder(tile.Splat(self._start(extent, builder), (size,))).out
        return [builder(arith.Add(start, indices)).out]

    def hint(self, op: Op, part: int, mapping: dict[Value, Value], builder: Builder) -> list[Value]:
        """A promise, of runs no longer than the slice."""
        assert isinstance(op, tile.Hint)
        shape = self._cut(op.out, part)
        runs = {
            name: tuple(
                min(run, extent) for run, extent in zip(getattr(op, name), shape, strict=False)
            )
            for name in ("contiguity", "constancy")
        }
        return list(builder(op.clone(mapping, **runs)).results)

    def load(self, op: Op, part: int, mapping: dict[Value, Value], builder: Builder) -> list[Value]:
        """The CTA's own slice of a descriptor's box."""
        assert isinstance(op, descriptor.DescriptorLoad)
        axis = axis_of_box(op, part)
        coords = self._shift(op.coords, axis, op.descriptor.type, mapping, builder)
        hints = op.cache, op.eviction, op.num_dropped, op.num_merged
        return [builder(descriptor.DescriptorLoad(mapping[op.descriptor], coords, *hints)).out]


_RULES: dict[
    type[Op], Callable[[_Distribution, Op, int, dict[Value, Value], Builder], Sequence[Value]]
] = {
    arith.Constant: _Distribution.constant,
    gpu.Undefined: _Distribution.constant,
    tile.Splat: _Distribution.shaped,
    tile.Broadcast: _Distribution.shaped,
    tile.Reshape: _Distribution.shaped,
    tile.Arange: _Distribution.arange,
    tile.Hint: _Distribution.hint,
    descriptor.DescriptorLoad: _Distribution.load,
}
