"""Choose each tile's split among the CTAs of a cluster.

The CTAs of a cluster run one program instance together. A tile is *split* along an axis, one slice per CTA,
or replicated in all. Stores decide: dots split the rows of their result, so each CTA reads its own rows of
A and all of B. Values computed from the result are split alike, and so on back to the pointers. Without
dots, reductions to a scalar split their inputs, and the CTAs combine the partial results
(`Parts.exchanged`). A value needed both ways is computed both ways; only values passed through loops or
branches have one way.

Invariant: `Parts.uses` has, for every way an op is needed, the ways of its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, descriptor, gpu, scf, tile
from aotc.ir.effects import Trait
from aotc.ir.types import DescriptorType, ScalarType, TileType
from aotc.schedule.analysis.global_order import accessed, accessed_pointer
from aotc.schedule.remarks import Reason

Part: TypeAlias = int | None
"""The split axis of a tile, or None for the whole tile."""

_MIN_PRODUCT_ROWS = 64


@dataclass
class Parts:
    """The ways each value is needed, and the split of each descriptor's boxes.

    `exchanged` are reductions of slices to a scalar, combined across the cluster.
    `obstacle` gives the reason if the program cannot be split; then nothing else counts.
    """

    uses: dict[Value, dict[Part, None]] = field(default_factory=dict[Value, dict[Part, None]])
    descriptors: dict[Value, Part] = field(default_factory=dict[Value, Part])
    roots: dict[Op, Part] = field(default_factory=dict[Op, Part])
    exchanged: dict[Op, None] = field(default_factory=dict[Op, None])
    obstacle: str = ""


def shape_of(value: Value) -> tuple[int, ...]:
    """Return the extents of a tile; a scalar has none."""
    return value.type.shape if isinstance(value.type, TileType) else ()


def operand_parts(op: Op, part: Part) -> Sequence[Part] | None:
    """Return the operands' splits for results split along `part`, or None if impossible."""
    count = len(op.operands)
    if part is None:
        return [None] * count
    rule = _RULES.get(type(op))
    if rule is not None:
        return rule(op, part)
    alike = op.has(Trait.ELEMENTWISE) or accessed_pointer(op) is not None
    return [part if shape_of(value) else None for value in op.operands] if alike else None


def _nothing(op: Op, part: int) -> Sequence[Part] | None:
    del part
    return [None] * len(op.operands)


def _broadcast(op: Op, part: int) -> Sequence[Part] | None:
    source, out = shape_of(op.operands[0]), shape_of(op.results[0])
    return [part if source[part] == out[part] else None]


def _expand_dims(op: Op, part: int) -> Sequence[Part] | None:
    assert isinstance(op, tile.ExpandDims)
    return None if part == op.axis else [part - (part > op.axis)]


def _trans(op: Op, part: int) -> Sequence[Part] | None:
    assert isinstance(op, tile.Trans)
    return [op.order[part]]


def _reshape(op: Op, part: int) -> Sequence[Part] | None:
    """Split the axis beginning at the same element as the result's: both slices have equal elements."""
    source, out = shape_of(op.operands[0]), shape_of(op.results[0])
    before, extent = prod(out[:part]), out[part]
    for axis, source_extent in enumerate(source):
        divides = min(source_extent, extent) > 1 and (
            source_extent % extent == 0 or extent % source_extent == 0
        )
        if prod(source[:axis]) == before and divides:
            return [axis]
    return None


def _join(op: Op, part: int) -> Sequence[Part] | None:
    return [part, part] if part < len(shape_of(op.operands[0])) else None


def _split(op: Op, part: int) -> Sequence[Part] | None:
    del op
    return [part]


def _dot(op: Op, part: int) -> Sequence[Part] | None:
    rank = len(shape_of(op.operands[2]))
    if part == rank - 2:
        return [part, None, part]
    return [None, part, part] if part == rank - 1 else [part, part, part]


def _reduce(op: Op, part: int) -> Sequence[Part] | None:
    assert isinstance(op, tile.Reduce)
    return [part + (part >= op.axis)] * len(op.operands)


def _scan(op: Op, part: int) -> Sequence[Part] | None:
    assert isinstance(op, tile.Scan)
    return None if part == op.axis else [part] * len(op.operands)


_RULES: dict[type[Op], Callable[[Any, int], Sequence[Part] | None]] = {
    arith.Constant: _nothing,
    gpu.Undefined: _nothing,
    tile.Arange: _nothing,
    tile.Splat: _nothing,
    descriptor.DescriptorLoad: _nothing,
    tile.Broadcast: _broadcast,
    tile.ExpandDims: _expand_dims,
    tile.Trans: _trans,
    tile.Reshape: _reshape,
    tile.Join: _join,
    tile.Split: _split,
    tile.Dot: _dot,
    tile.Reduce: _reduce,
    tile.Scan: _scan,
}


def result_part(op: Op, index: int, part: int) -> Part:
    """Return the results' split if operand `index` is split, or None if undecided."""
    out = op.results[0] if op.results else None
    for candidate in range(len(shape_of(out)) if out is not None else 0):
        operands = operand_parts(op, candidate)
        if operands is not None and operands[index] == part:
            return candidate
    return None


# ---- the kernel -------------------------------------------------------------------------------


def find_parts(kernel: Kernel, num_ctas: int, *, divides: bool = True) -> Parts:
    """Return the split of the kernel's tiles among `num_ctas` CTAs."""
    search = _Search(kernel, num_ctas)
    if divides:
        search.prefer_dots()
        search.prefer_rows()
    ops = list(kernel.walk())
    for op in ops:
        if op.has_side_effects and not op.terminator:
            search.need_root(op)
    for op in ops:
        if op.has(Trait.CONTROL_FLOW):
            search.need_passed(op)
    return search.parts


class _Search:
    def __init__(self, kernel: Kernel, num_ctas: int) -> None:
        self.kernel = kernel
        self.num_ctas = num_ctas
        self.parts = Parts()
        self.preferred: dict[Value, int] = {}

    # -- forward from dots -----------------------------------------------------

    def prefer_dots(self) -> None:
        """Split results of dots, and propagate the split to their users."""
        dots = [op for op in self.kernel.walk() if isinstance(op, tile.Dot)]
        worklist: list[Value] = []
        for dot in dots:
            shape = shape_of(dot.out)
            rows_fit = shape[-2] >= _MIN_PRODUCT_ROWS * self.num_ctas
            self._prefer(dot.out, len(shape) - (2 if rows_fit else 1), worklist)
        self._propagate(worklist)

    def prefer_rows(self) -> None:
        """Split the inputs of reductions to a scalar, unless the kernel has dots."""
        ops = list(self.kernel.walk())
        if any(isinstance(op, tile.Dot) for op in ops):
            return
        worklist: list[Value] = []
        for op in ops:
            if isinstance(op, tile.Reduce) and _is_exchange(op, self.num_ctas):
                self.parts.exchanged[op] = None
                for value in op.inputs:
                    self._prefer(value, 0, worklist)
        self._propagate(worklist)

    def _propagate(self, worklist: list[Value]) -> None:
        while worklist:
            value = worklist.pop()
            for user in list(value.users):
                self._carry_on(value, user, worklist)

    def _prefer(self, value: Value, part: int, worklist: list[Value]) -> None:
        divisible = shape_of(value)[part] % self.num_ctas == 0
        if value not in self.preferred and divisible:
            self.preferred[value] = part
            worklist.append(value)

    def _carry_on(self, value: Value, user: Op, worklist: list[Value]) -> None:
        part = self.preferred[value]
        for index, operand in enumerate(user.slots):
            if operand is not value:
                continue
            if user.terminator or user.has(Trait.CONTROL_FLOW):
                for other in _passed_on(user, index):
                    self._prefer(other, part, worklist)
            elif user.results:
                out = result_part(user, index, part)
                if out is not None:
                    for out_value in user.results:
                        self._prefer(out_value, out, worklist)

    # -- backward from stores --------------------------------------------------

    def need_root(self, op: Op) -> None:
        """Choose the split of an op with side effects, and require its operands."""
        values = [value for value in op.operands if shape_of(value)]
        suggested = [self._suggested(value) for value in values]
        chosen = next((part for part in suggested if part is not None), None)
        if chosen is None and self.parts.exchanged and self._is_row(values):
            chosen = 0
        written = accessed(op, "write")
        if written is not None and isinstance(written.type, DescriptorType):
            chosen = self._divide_descriptor(written, chosen)
        elif written is None:
            chosen = None
        if any(value.users and shape_of(value) for value in op.results):
            self.parts.obstacle = Reason.RESULT_IN_ONE_CTA(op=op.opcode)
        self.parts.roots[op] = chosen
        for value in op.operands:
            self._need(value, chosen if shape_of(value) else None)

    def need_passed(self, op: Op) -> None:
        """Require a loop's or branch's bounds or condition, and all values passed through it."""
        deciding = op.slots[:3] if isinstance(op, scf.For) else op.slots[:1]
        if isinstance(op, scf.While):
            deciding = op.before.terminator.slots[:1]
        for value in deciding:
            if value is not None:
                self._need(value, None)
        args = op.after.args if isinstance(op, scf.While) else []
        for value in (*op.results, *args):
            if value not in self.parts.uses:
                self._need(value, self.preferred.get(value))

    def _suggested(self, value: Value) -> Part:
        """Return the split of a value's inputs."""
        seen: dict[Value, None] = {}
        worklist = [value]
        while worklist:
            value_ = worklist.pop(0)
            if value_ in seen or not shape_of(value_):
                continue
            seen[value_] = None
            if value_ in self.preferred and shape_of(value_) == shape_of(value):
                return self.preferred[value_]
            if value_.op is not None and value_.op.has(Trait.ELEMENTWISE):
                worklist += value_.op.operands
        return None

    def _is_row(self, values: Sequence[Value]) -> bool:
        """Return whether values have one axis, and each CTA can compute its own slices.

        Other values stored with a reduced row, such as a row loaded again, are split like the row.
        """
        worklist = list(values)
        seen: dict[Value, None] = {}
        while worklist:
            source = worklist.pop()
            shape = shape_of(source)
            if len(shape) == 0 or source in seen:
                continue
            seen[source] = None
            if len(shape) > 1 or shape[-1] % self.num_ctas:
                return False
            if source.op is None or source.op.has(Trait.CONTROL_FLOW):
                if self.preferred.get(source) != 0:
                    return False
                continue
            parts = operand_parts(source.op, 0)
            if parts is None:
                return False
            worklist += [x for x, way in zip(source.op.operands, parts, strict=True) if way == 0]
        return bool(values)

    def _divide_descriptor(self, value: Value, part: Part) -> Part:
        """Return the split of a descriptor's boxes, the same in all its uses."""
        kind = value.type
        assert isinstance(kind, DescriptorType)
        if part is not None and isinstance(value.op, descriptor.DescriptorAt):
            self.parts.obstacle = Reason.MAP_IN_MEMORY()
        elif part_type(kind, part, self.num_ctas).row_bytes < descriptor.MIN_ROW_BYTES:
            self.parts.obstacle = Reason.SHORT_ROWS(kind=kind)
        return self.parts.descriptors.setdefault(value, part)

    def _need(self, value: Value, part: Part) -> None:
        worklist: list[tuple[Value, Part]] = [(value, part)]
        while worklist and not self.parts.obstacle:
            source, way = worklist.pop()
            ways = self.parts.uses.setdefault(source, {})
            if way in ways:
                continue
            if way is not None and shape_of(source)[way] % self.num_ctas:
                self.parts.obstacle = Reason.TOO_SMALL(shape=shape_of(source), slices=self.num_ctas)
                return
            passed = source.op is None or source.op.has(Trait.CONTROL_FLOW)
            if passed and ways and shape_of(source):
                self.parts.obstacle = Reason.CARRIED_TWO_WAYS()
                return
            ways[way] = None
            worklist += self._operands(source, way, passed=passed)

    def _operands(self, value: Value, part: Part, *, passed: bool) -> list[tuple[Value, Part]]:
        if passed:
            return [(other, part) for other in _alike(value)]
        op = value.op
        assert op is not None
        if isinstance(op, descriptor.DescriptorLoad):
            kind = op.descriptor.type
            assert isinstance(kind, DescriptorType)
            axis = None if part is None else axis_of_box(op, part)
            if axis is not None and kind.block[axis] % self.num_ctas:
                self.parts.obstacle = Reason.TOO_SMALL(shape=kind.block, slices=self.num_ctas)
            elif self._divide_descriptor(op.descriptor, axis) != axis:
                self.parts.obstacle = Reason.BOX_TWO_WAYS()
        parts = [0] * len(op.operands) if op in self.parts.exchanged else operand_parts(op, part)
        if parts is None:
            self.parts.obstacle = Reason.NEEDS_OTHER_CTAS(op=op.opcode)
            return []
        siblings = [(other, part) for other in op.results if other is not value]
        return [*zip(op.operands, parts, strict=True), *siblings]


def _is_exchange(op: tile.Reduce, num_ctas: int) -> bool:
    """Return whether CTAs can reduce slices to scalars and combine them."""
    return all(
        len(shape_of(value)) == 1 and shape_of(value)[0] % num_ctas == 0 for value in op.inputs
    ) and all(isinstance(out.type, ScalarType) for out in op.outs)


def _passed_on(user: Op, index: int) -> list[Value]:
    """Return the values that receive operand `index` of a loop, branch or terminator."""
    parent = user.parent_op if user.terminator else user
    if isinstance(parent, scf.For):
        position = index if user.terminator else index - 3
        return [parent.carried[position], parent.outs[position]] if position >= 0 else []
    if isinstance(parent, scf.If) and user.terminator:
        return [parent.outs[index]]
    if isinstance(parent, scf.While):
        if isinstance(user, scf.Condition):
            return [parent.after.args[index - 1], parent.outs[index - 1]] if index else []
        return [parent.before.args[index]]
    return []


def _alike(value: Value) -> list[Value]:
    """Return the values joined with `value` by a loop or branch."""
    op = value.op
    if op is None:
        assert isinstance(value.owner, Block)
        op = value.owner.parent if isinstance(value.owner.parent, Op) else None
    if isinstance(op, scf.For):
        position = value.index - (value.op is None)
        if position < 0:
            return [op.lower, op.upper, op.step]
        return [
            op.carried[position],
            op.outs[position],
            op.init[position],
            op.body.terminator.operands[position],
        ]
    if isinstance(op, scf.If):
        ends = [block.terminator.operands[value.index] for block in op.blocks]
        return [op.outs[value.index], *ends]
    if isinstance(op, scf.While):
        if value.owner is op.before:
            return [op.init[value.index], op.after.terminator.operands[value.index]]
        passed = op.before.terminator.operands[value.index + 1]
        return [op.after.args[value.index], op.outs[value.index], passed]
    return []


def axis_of_box(load: descriptor.DescriptorLoad, axis: int) -> int:
    """Return the box axis beginning at a tile's axis, which may merge several."""
    return load.num_dropped + axis + (load.num_merged if axis > 0 else 0)


def part_type(kind: DescriptorType, part: Part, num_ctas: int) -> DescriptorType:
    """Return the descriptor type for one CTA's slice of the box."""
    if part is None:
        return kind
    block = list(kind.block)
    block[part] //= num_ctas
    return DescriptorType(kind.element, tuple(block), kind.fill_nan)
