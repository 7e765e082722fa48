"""The preferred layout of each tile, chosen for its computation before others are required.

A loaded tile has the coalesced layout of its load, an elementwise result the layout of its
operands, a reduced or reshaped tile the layout implied by its operand's. Values cheap to compute
anywhere (constants, index arithmetic, broadcasts, the loads of `index_loads`) have no preferred
layout. They are computed wherever required, so address computations are never converted.

Invariant: values carried by loops and yielded by branches always have a preferred layout, one
through all iterations and both arms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import assembly, cluster, indexing, mapped, tile
from aotc.ir.layout import LinearLayout
from aotc.ir.tiles import (
    Join,
    is_elementwise,
    is_tile,
    is_uniform,
    joins_of,
    slot_targets,
    tile_shape,
)
from aotc.ir.types import element_of
from aotc.schedule.layout.layouts import (
    blocked_for,
    default_blocked,
    rows_in_registers,
    shared_among_warps,
)

_MAX_RELATIVES = 64  # tiles looked at for the layout of one


@dataclass(frozen=True, slots=True)
class DotLayouts:
    """The layouts of a dot: `shape` is (m, n, k) of its `mma.sync`, or ().

    Of a wgmma, an operand without a layout is read from shared memory.
    """

    shape: tuple[int, ...]
    a: LinearLayout | None
    b: LinearLayout | None
    acc: LinearLayout
    wgmma: bool = False

    def operands(self) -> tuple[LinearLayout | None, LinearLayout | None, LinearLayout]:
        """Return the layouts in the order of the op's operands."""
        return self.a, self.b, self.acc


class PreferredLayouts:
    """The preferred layout of every tile, if it has one.

    `anchors` are the layouts of memory accesses, `dots` the layouts of dots, and `pulled` the
    layouts of values computed in the layout of a dot's operand. `gathers` are accesses in the
    layout of their addresses.
    """

    def __init__(
        self,
        kernel: Kernel,
        anchors: dict[Op, LinearLayout],
        dots: Mapping[Op, DotLayouts] = MappingProxyType({}),
        pulled: Mapping[Value, LinearLayout] = MappingProxyType({}),
        gathers: Sequence[Op] = (),
    ) -> None:
        self.num_warps = kernel.num_warps
        self.anchors = dict(anchors)
        self.gathers = set(gathers)
        self.dots = dots
        # Set from the start, so all computations with an accumulator join it.
        self._homes = {op.results[0]: layouts.acc for op, layouts in dots.items()} | dict(pulled)
        self._works_in: dict[Op, LinearLayout] = {}
        self.has_all_reasons = False
        joins = [join for op in kernel.walk() for join in joins_of(op)]
        while True:
            self._visit_to_fixpoint(kernel.body)
            unsettled = next((join for join in joins if join.targets[0] not in self._homes), None)
            if unsettled is None:
                break
            # A variable used by index arithmetic alone has the layout of its users.
            variable = unsettled.targets[0]
            home = self._layout_of_users(unsettled.targets) or self.default(variable)
            self._homes.update(dict.fromkeys(unsettled.targets, home))
        # Nothing prefers a layout for the rest. Not before: a variable may get one only once the
        # body of its loop is known.
        self.has_all_reasons = True
        self._visit_to_fixpoint(kernel.body)

    def get(self, value: Value) -> LinearLayout | None:
        """Return the preferred layout of `value`, or None if it is recomputed where required."""
        return self._homes.get(value)

    def default(self, value: Value) -> LinearLayout:
        """Return a layout for a tile without a preference."""
        return default_blocked(tile_shape(value), self.num_warps)

    def or_default(self, value: Value) -> LinearLayout:
        """Return the preferred layout of `value`, or a default layout."""
        return self._homes.get(value) or self.default(value)

    def source(self, op: Op) -> LinearLayout | None:
        """Return the first operand's preferred layout; in the end, a relative's or a default."""
        home = next((home for value in op.operands if (home := self.get(value))), None)
        if home is None and self.has_all_reasons:
            value = op.operands[0]
            home = self._layout_of_relatives(value) or self.default(value)
        return home

    def source_like(self, op: Op, value: Value) -> LinearLayout | None:
        """Return the preferred layout of `value`, else in the end of users of the result."""
        home = self.get(value)
        if home is None and self.has_all_reasons:
            home = self._layout_of_users(op.results) or self.default(op.results[0])
        return home

    def works_in(self, op: Op) -> LinearLayout | None:
        """Return the operand layout of a reduction, scan or split.

        The first answer stands, since the layouts of the results follow from it: an operand that
        gets its own layout later is converted. In the end there is one.
        """
        layout = self._works_in.get(op) or self.source(op)
        if layout is not None and isinstance(op, tile.Split):
            layout = splittable(layout, self.num_warps)
        if layout is not None:
            self._works_in[op] = layout
        return layout

    def slot_layouts(self, op: Op) -> list[LinearLayout | None]:
        """Return the preferred layout of the variable of each operand of a loop or terminator."""
        return [
            self.or_default(target) if target is not None and is_tile(target) else None
            for target in slot_targets(op)
        ]

    # -- forward ---------------------------------------------------------------

    def _visit_to_fixpoint(self, block: Block) -> None:
        before = -1
        while len(self._homes) != before:
            before = len(self._homes)
            self._visit(block)

    def _visit(self, block: Block) -> None:
        for op in block:
            joins = list(joins_of(op))
            # Carried values enter the body before it is visited and are settled after.
            for join in joins:
                self._settle(join)
            for nested in op.blocks:
                self._visit(nested)
            for join in joins:
                self._settle(join)
            rule = _RULES.get(type(op))
            if rule is None:
                if all(value in self._homes for value in op.results):
                    continue  # since an earlier visit
                rule = _elementwise if is_elementwise(op) else _anchored
            for value, home in zip(op.results, rule(op, self), strict=True):
                if home is not None and is_tile(value):
                    self._homes.setdefault(value, home)

    def _settle(self, join: Join) -> None:
        """Give a variable the layout of a dot flowing into it, or the first there is."""
        candidates = (*join.targets, *join.sources)
        products = (value for value in join.sources if value.op in self.dots)
        settled = (value for value in candidates if value in self._homes)
        value = next(products, None) or next(settled, None)
        if value is not None:
            for target in join.targets:
                self._homes.setdefault(target, self._homes[value])

    # -- backward --------------------------------------------------------------

    def _layout_of_relatives(self, value: Value) -> LinearLayout | None:
        """Return the layout of the nearest tile computed or accessed with `value`.

        Only elementwise ops and reshapes, which change no basis, are in between.
        """
        worklist, seen = [value], {value: None}
        while worklist and len(seen) < _MAX_RELATIVES:
            current = worklist.pop(0)
            home = self._homes.get(current)
            if home is not None:
                return home.reshape(tile_shape(value))
            for op in (current.op, *current.users):
                anchor = None if op is None else self.anchors.get(op)
                if anchor is not None and prod(anchor.shape) == prod(tile_shape(value)):
                    return anchor.reshape(tile_shape(value))
                if op is None or not (is_elementwise(op) or isinstance(op, tile.Reshape)):
                    continue
                for other in (*op.operands, *op.results):
                    if is_tile(other) and other not in seen and not is_uniform(other):
                        seen[other] = None
                        worklist.append(other)
        return None

    def _layout_of_users(self, values: Sequence[Value]) -> LinearLayout | None:
        """Return the layout of the nearest user of one of `values`."""
        worklist = list(values)
        seen: dict[Value, None] = {}
        while worklist:
            current = worklist.pop(0)
            if current in seen:
                continue
            seen[current] = None
            for user in current.users:
                if user in self.anchors:
                    return self.anchors[user]
                if is_elementwise(user):
                    out = user.results[0]
                    if out in self._homes:
                        return self._homes[out]
                    worklist.append(out)
        return None


# ---- variables joined by loops and branches ---------------------------------------------------


# ---- rules: the preferred layout of each result -----------------------------------------------

Rule = Callable[[Op, PreferredLayouts], "Sequence[LinearLayout | None]"]


def _elementwise(op: Op, preferred: PreferredLayouts) -> Sequence[LinearLayout | None]:
    """Prefer the layout of most operands; among equals, of the widest."""
    votes: dict[LinearLayout, tuple[int, int]] = {}
    for value in op.operands:
        home = preferred.get(value)
        if home is not None:
            count, bits = votes.get(home, (0, 0))
            votes[home] = (count + 1, max(bits, element_of(value.type).bits))
    return [max(votes, key=lambda home: votes[home]) if votes else None]


def _load(op: Op, preferred: PreferredLayouts) -> Sequence[LinearLayout | None]:
    assert isinstance(op, tile.Load)
    if op in preferred.gathers and op in preferred.anchors:
        home = preferred.get(op.pointer)
        if home is None and not preferred.has_all_reasons:
            return [None]
        preferred.anchors[op] = home or preferred.anchors[op]
    return _anchored(op, preferred)


def _anchored(op: Op, preferred: PreferredLayouts) -> Sequence[LinearLayout | None]:
    """Prefer the layout of the op's own access, if any."""
    return [preferred.anchors.get(op)] * len(op.results)


def _expand_dims(op: Op, preferred: PreferredLayouts) -> Sequence[LinearLayout | None]:
    assert isinstance(op, tile.ExpandDims)
    home = preferred.get(op.value)
    return [None if home is None else home.expand_dims(op.axis)]


def _reshape(op: Op, preferred: PreferredLayouts) -> Sequence[LinearLayout | None]:
    assert isinstance(op, tile.Reshape)
    home = preferred.source(op)
    return [None if home is None else home.reshape(op.shape)]


def _trans(op: Op, preferred: PreferredLayouts) -> Sequence[LinearLayout | None]:
    assert isinstance(op, tile.Trans)
    home = preferred.source(op)
    return [None if home is None else home.transpose(op.order)]


def _join(op: Op, preferred: PreferredLayouts) -> Sequence[LinearLayout | None]:
    home = preferred.source(op)
    return [None if home is None else home.join()]


def splittable(layout: LinearLayout, num_warps: int) -> LinearLayout:
    """Return `layout`, or one near it with both halves of a pair in each thread.

    The bit of the half is swapped with a register bit. A bit of the first axis, the rows, is best:
    a butterfly along the other axes never needs it. Otherwise it is the bit joined last, needed
    last by a butterfly through the bits of an index in order. If a warp bit selects the half, the
    other warp bits are swapped, too, and rows are distributed over warps as far as there are any:
    all of it is one exchange through shared memory.
    """
    if layout.split_register_bit() is not None:
        return layout
    registers, lanes, warps = (layout.columns(name) for name in ("register", "lane", "warp"))
    columns, first_warp = [*registers, *lanes, *warps], len(registers) + len(lanes)
    if 1 not in columns or sum(column & 1 for column in columns) != 1:
        half = layout.shape[:-1]
        return blocked_for(half, (1,) * len(half), num_warps).join()
    row = 1 << layout.total_out_bits - layout.out_bits("dim0")
    half_bits = [columns.index(1)]
    if half_bits[0] >= first_warp:
        other_warp_bits = (bit for bit in range(first_warp, len(columns)) if bit != half_bits[0])
        half_bits += [bit for bit in other_warp_bits if columns[bit] % row]
    register_bits = sorted(range(len(registers)), key=lambda bit: columns[bit] % row != 0)
    for first, second in zip(half_bits, register_bits, strict=False):
        _swap(columns, first, second)
    if not registers:
        # There is nothing to swap with: threads hold replicas.
        columns[half_bits[0]] = 0
    rows = [bit for bit in range(len(registers), first_warp) if columns[bit] % row == 0]
    if half_bits[0] >= first_warp:
        moved_bits = (bit for bit in half_bits if columns[bit] % row)
        for first, second in zip(moved_bits, rows, strict=False):
            _swap(columns, first, second)
    return (
        layout.with_columns("register", columns[: len(registers)] or [1])
        .with_columns("lane", columns[len(registers) : first_warp])
        .with_columns("warp", columns[first_warp:])
    )


def _swap(columns: list[int], first: int, second: int) -> None:
    columns[first], columns[second] = columns[second], columns[first]


def _split(op: Op, preferred: PreferredLayouts) -> Sequence[LinearLayout | None]:
    home = preferred.works_in(op)
    return [None if home is None else home.split()] * 2


def _reduce(op: Op, preferred: PreferredLayouts) -> Sequence[LinearLayout | None]:
    assert isinstance(op, tile.Reduce)
    home = preferred.works_in(op)
    if home is None or len(home.shape) == 1:
        return [None] * len(op.results)
    rest = home.reduce(op.axis).remove_zero_bases()
    if any(basis[op.axis] for basis in home.bases("warp")):
        rest = shared_among_warps(rest, rest.in_bits("register"))
    return [rest] * len(op.results)


def _assembly(op: Op, preferred: PreferredLayouts) -> Sequence[LinearLayout | None]:
    """Have one layout, so there is one instance for all results and effects."""
    if is_elementwise(op):
        return _elementwise(op, preferred)
    home = preferred.works_in(op) if is_tile(op.results[0]) else None
    return [home] * len(op.results)


def _at_work(op: Op, preferred: PreferredLayouts) -> Sequence[LinearLayout | None]:
    return [preferred.works_in(op)] * len(op.results)


def _of_all_ctas(op: Op, preferred: PreferredLayouts) -> Sequence[LinearLayout | None]:
    """Have all CTAs' contributions to an element in one thread, which mostly reduces them."""
    assert isinstance(op, cluster.ClusterTranspose)
    return [rows_in_registers(tile_shape(op.out), preferred.num_warps)]


def _gather(op: Op, preferred: PreferredLayouts) -> Sequence[LinearLayout | None]:
    """Have the layout of the index: the source goes through shared memory from anywhere."""
    assert isinstance(op, indexing.Gather)
    return [preferred.source_like(op, op.index)]


def _histogram(op: Op, preferred: PreferredLayouts) -> Sequence[LinearLayout | None]:
    return [preferred.source_like(op, op.results[0])]


_RULES: dict[type[Op], Rule] = {
    assembly.InlineAsm: _assembly,
    assembly.VolatileAsm: _assembly,
    mapped.Map: _assembly,
    tile.ExpandDims: _expand_dims,
    tile.Load: _load,
    tile.Reshape: _reshape,
    tile.Trans: _trans,
    tile.Join: _join,
    tile.Split: _split,
    tile.Reduce: _reduce,
    tile.Scan: _at_work,
    cluster.ClusterPermute: _at_work,
    cluster.ClusterRead: _at_work,
    cluster.ClusterTranspose: _of_all_ctas,
    indexing.Gather: _gather,
    indexing.Histogram: _histogram,
}
