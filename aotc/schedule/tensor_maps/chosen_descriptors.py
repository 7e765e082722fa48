"""Split descriptors passed through branches and loops into their parts.

Such a descriptor is carried as its parts: address, extents and strides of its tensor. It is rebuilt after
the branch or at the start of an iteration, and then treated like any descriptor made in the kernel. For
parameters only loaded through, the addresses of their tensor maps are carried too, and no map is made.

Invariant: afterwards no branch or loop yields a descriptor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotc.ir.core import Block, Kernel, Op, Value, build
from aotc.ir.diagnostics import CompileError, at
from aotc.ir.dialects import descriptor, scf
from aotc.ir.effects import Resource, Trait
from aotc.ir.parameter_access import pointer_roots
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32, I64, DescriptorType, PointerType, Type

PartsOf = Callable[[Value], Sequence[Value]]


def pass_on_parts(kernel: Kernel, parts_of_parameter: PartsOf, *, has_maps: bool) -> None:
    """Replace descriptors passed through control flow by their parts.

    `parts_of_parameter` returns the address, the extents and the strides of a parameter's tensor.
    With `has_maps`, parameters have tensor maps with whole tiles as boxes.

    Raises: CompileError for a descriptor with a map in memory: its parts are unknown.
    """
    chosen = [value for value in _passed_on(kernel) if _is_descriptor(value)]
    if chosen:
        by_map = has_maps and _are_loaded_parameters(chosen)
        _Copy(kernel, parts_of_parameter, by_map=by_map).run()


def _passed_on(kernel: Kernel) -> list[Value]:
    flow = [op for op in kernel.walk() if op.has(Trait.CONTROL_FLOW)]
    args = [arg for op in flow for block in op.blocks for arg in block.args]
    return [*args, *(value for op in flow for value in op.results)]


def _is_descriptor(value: Value) -> bool:
    return isinstance(value.type, DescriptorType)


def _are_loaded_parameters(chosen: Sequence[Value]) -> bool:
    """Return whether descriptors are parameters, loaded through maps and never written through."""
    roots = dict.fromkeys(root for value in chosen for root in pointer_roots(value))
    users = [user for value in (*chosen, *roots) for user in value.users]
    are_parameters = all(root.op is None and _is_descriptor(root) for root in roots)
    by_pointers = descriptor.DescriptorRows
    return are_parameters and not any(
        user.writes(Resource.GLOBAL) or isinstance(user, by_pointers) for user in users
    )


class _Copy:
    """Copy a kernel's body; `parts` maps old descriptors to parts in the new body."""

    def __init__(self, kernel: Kernel, parts_of_parameter: PartsOf, *, by_map: bool) -> None:
        self.kernel = kernel
        self.parts_of_parameter = parts_of_parameter
        self.by_map = by_map
        self.values: dict[Value, Value] = {}
        self.parts: dict[Value, Sequence[Value]] = {}

    def run(self) -> None:
        """Replace the kernel's ops; parameters stay, and new ones may be added."""
        body = self.kernel.body
        old = Block()
        for op in list(body):
            op.remove()
            old.insert(op)
        self._copy_ops(old, Builder(body))
        body.insert(old.terminator.clone(self.values))
        old.clear()

    def _value(self, value: Value) -> Value:
        return self.values.get(value, value)

    def _flat(self, values: Sequence[Value]) -> list[Value]:
        """Return new values, with descriptors flattened to their parts."""
        flat: list[Value] = []
        for value in values:
            flat += self._parts_of(value) if _is_descriptor(value) else [self._value(value)]
        return flat

    def _parts_of(self, value: Value) -> Sequence[Value]:
        if value not in self.parts:
            op = value.op
            if isinstance(op, descriptor.DescriptorAt):
                raise CompileError(
                    "which tensor map in memory this is, is decided at run time",
                    op.loc,
                    remedy="choose between the addresses of the maps instead",
                )
            if isinstance(op, descriptor.DescriptorOf):
                self.parts[value] = [self._value(operand) for operand in op.operands]
            else:
                parts = self.parts_of_parameter(value)
                if self.by_map:
                    entry = Builder(self.kernel.body, self.kernel.body.first)
                    parts = [parts[0], entry(descriptor.MapAddress(value)).out, *parts[1:]]
                self.parts[value] = parts
        return self.parts[value]

    def _part_types(self, kind: DescriptorType) -> list[Type]:
        rank = len(kind.block)
        maps = [I64] if self.by_map else []
        return [PointerType(kind.element), *maps, *[I32] * rank, *[I64] * (rank - 1)]

    # -- ops ---------------------------------------------------------------------------------

    def _copy_ops(self, source: Block, builder: Builder) -> None:
        for op in source:
            if op.terminator:
                continue
            with at(op.loc):
                if isinstance(op, scf.For):
                    self._copy_for(op, builder)
                elif isinstance(op, scf.If):
                    self._copy_if(op, builder)
                elif isinstance(op, scf.While):
                    self._copy_while(op, builder)
                else:
                    builder(op.clone(self.values))

    def _args(self, old: Sequence[Value], block: Block, builder: Builder) -> None:
        """Add arguments for an old block's, and rebuild its descriptors."""
        for arg in old:
            kinds = (
                self._part_types(arg.type) if isinstance(arg.type, DescriptorType) else [arg.type]
            )
            self._bind(arg, [block.add_arg(kind, arg.hint) for kind in kinds], builder)

    def _results(self, old: Sequence[Value], new: Sequence[Value], builder: Builder) -> None:
        left = iter(new)
        for value in old:
            kind = value.type
            count = len(self._part_types(kind)) if isinstance(kind, DescriptorType) else 1
            self._bind(value, [next(left) for _ in range(count)], builder)

    def _bind(self, old: Value, new: Sequence[Value], builder: Builder) -> None:
        kind = old.type
        if not isinstance(kind, DescriptorType):
            (self.values[old],) = new
            new[0].hint = old.hint
            return
        self.parts[old] = new
        if any(not user.has(Trait.CONTROL_FLOW) and not user.terminator for user in old.users):
            pointer, *rest = new
            form = kind.block, kind.fill_nan
            if self.by_map:
                copy = builder(descriptor.DescriptorIn(pointer, rest[0], rest[1:], *form)).out
            else:
                copy = builder(descriptor.DescriptorOf(pointer, rest, *form)).out
            copy.hint = old.hint
            self.values[old] = copy

    def _copy_for(self, op: scf.For, builder: Builder) -> None:
        body = Block()
        inner = Builder(body)
        self.values[op.induction] = body.add_arg(op.induction.type, op.induction.hint)
        self._args(op.carried, body, inner)
        self._copy_ops(op.body, inner)
        inner(scf.Yield(self._flat(op.body.terminator.operands)))
        bounds = [self._value(value) for value in (op.lower, op.upper, op.step)]
        slots = [*bounds, *self._flat(op.init)]
        copy = builder(build(scf.For, slots, op.attributes, [body], op.loc))
        self._results(op.outs, copy.outs, builder)

    def _copy_if(self, op: scf.If, builder: Builder) -> None:
        arms: list[Block] = []
        for arm in op.blocks:
            copied = Block()
            self._copy_ops(arm, Builder(copied))
            Builder(copied)(scf.Yield(self._flat(arm.terminator.operands)))
            arms.append(copied)
        copy = builder(build(scf.If, [self._value(op.condition)], {}, arms, op.loc))
        self._results(op.outs, copy.outs, builder)

    def _copy_while(self, op: scf.While, builder: Builder) -> None:
        before, after = Block(), Block()
        self._args(op.before.args, before, Builder(before))
        self._copy_ops(op.before, Builder(before))
        condition, *passed = op.before.terminator.operands
        Builder(before)(scf.Condition(self._value(condition), self._flat(passed)))
        self._args(op.after.args, after, Builder(after))
        self._copy_ops(op.after, Builder(after))
        Builder(after)(scf.Yield(self._flat(op.after.terminator.operands)))
        slots = self._flat(op.init)
        copy: Op = builder(build(scf.While, slots, op.attributes, [before, after], op.loc))
        self._results(op.outs, copy.results, builder)
