"""Rematerialize indices where they are used again instead of keeping them in registers.

An epilogue often uses the indices, masks and offsets of the first loads, and a thread's offset in shared
memory is computed first of all. Kept live through a loop whose accumulators fill the registers, each costs
a register; recomputed, it costs a few instructions a kernel. Neither LLVM nor ptxas does so, and both would
merge equal computations. `gpu.opaque_thread_id` prevents the merge.

Invariant: only pure index ops, private to each thread, are recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import gpu, opaque, scf
from aotc.ir.effects import Trait
from aotc.ir.rewrite import Builder
from aotc.ir.tiles import is_elementwise, is_tile
from aotc.ir.types import TileType
from aotc.ir.walks import Steps, run
from aotc.schedule.analysis.global_order import free_operands
from aotc.schedule.context import Schedule

# A thread's elements of a tile large enough to make registers scarce.
_LARGE_ELEMS = 16


def recompute_addresses(kernel: Kernel, schedule: Schedule) -> None:
    """Rematerialize indices after loops over dots and before stores of large tiles.

    Only ops of the kernel's own block are candidates: nested ops may run many times.
    """
    del schedule
    for op in list(kernel.body):
        if _stores_much(op) or isinstance(op, opaque.Opaque):
            _recompute_from(op)
        loops = (candidate for candidate in (op, *_inside(op)) if isinstance(candidate, scf.For))
        if any(map(_multiplies, loops)) and op.next is not None and not op.next.terminator:
            _recompute_from(op.next)


def _multiplies(loop: scf.For) -> bool:
    return any(op.has(Trait.DOT) for op in loop.body.walk())


def _stores_much(op: Op) -> bool:
    if not isinstance(op, gpu.Store) or not isinstance(op.value.type, TileType):
        return False
    layout = op.value.type.layout
    return layout is not None and layout.in_size("register") >= _LARGE_ELEMS


def _inside(op: Op) -> Iterator[Op]:
    for block in op.blocks:
        yield from block.walk()


def _recompute_from(first: Op) -> None:
    """Recompute cheap tiles at `first` for it and all later ops."""
    Builder.before_op(first)(opaque.OpaqueThreadId())
    before: dict[Op, None] = {}
    op = first.prev
    while op is not None:
        before[op] = None
        op = op.prev
    anew = _Recomputation(before)
    op = first
    while op is not None:
        anew.replace_operands(op)
        op = op.next


def _is_cheap(op: Op) -> bool:
    return op.has(Trait.SOURCE, Trait.SHAPE_ONLY) or isinstance(op, gpu.Convert)


class Indices:
    """Recognize tiles computed from scalars and indices alone, cheap to recompute."""

    def __init__(self) -> None:
        self.known: dict[Value, bool] = {}

    def is_index(self, value: Value) -> bool:
        """Return whether a value is a tile computed from scalars and indices alone."""
        if value not in self.known:
            run(self._learn(value))
        return self.known[value]

    def _learn(self, value: Value) -> Steps[None]:
        op = value.op
        is_cheap = op is not None and is_tile(value) and (_is_cheap(op) or is_elementwise(op))
        for source in op.operands if op is not None and is_cheap else ():
            if is_cheap and is_tile(source):
                if source not in self.known:
                    yield self._learn(source)
                is_cheap = self.known[source]
        self.known[value] = is_cheap


class _Recomputation:
    """Clone indices computed by the ops `before`, at their first use."""

    def __init__(self, before: dict[Op, None]) -> None:
        self.before = before
        self.made: dict[Value, Value] = {}
        self.indices = Indices()

    def replace_operands(self, op: Op) -> None:
        """Make an op and its nested ops use the clones."""
        builder = Builder.before_op(op)
        for value in dict.fromkeys(free_operands(op)):
            if value.op in self.before and self.indices.is_index(value):
                new = run(self._anew(value, builder))
                for user in (op, *_inside(op)):
                    user.replace_operand(value, new)

    def _anew(self, value: Value, builder: Builder) -> Steps[Value]:
        if value not in self.made:
            op = value.op
            assert op is not None
            sources: dict[Value, Value] = {}
            for operand in op.operands:
                if is_tile(operand):
                    sources[operand] = yield self._anew(operand, builder)
            self.made.update(zip(op.results, builder(op.clone(sources)).results, strict=True))
        return self.made[value]
