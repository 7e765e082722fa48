"""Rematerialize wide tiles after barriers or in loops, from narrower tiles kept live.

A row in bf16 takes half the registers of the same row in fp32, and a row in shared memory takes none. A
reduction across a CTA or cluster ends in a barrier. Tiles live across it decide how many rows an SM has in
flight. So the pass keeps the cheapest set of tiles that the later ops can be recomputed from. It is a
minimum vertex cut between tiles computed once, such as loads, and later uses. All other tiles are
recomputed at a few instructions per element.

Tiles computed before a loop and used in it are treated alike.

Neither LLVM nor ptxas does so, and both would merge equal computations. So kept tiles pass through
`gpu.opaque`, at one instruction a register.

Invariant: only pure elementwise ops, and reads of buffers filled by one copy, are repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, opaque, scf, tma
from aotc.ir.effects import Resource, Trait
from aotc.ir.order import enclosing_in
from aotc.ir.rewrite import Builder
from aotc.ir.tiles import is_elementwise, is_tile
from aotc.ir.types import PointerType, ScalarType, TileType
from aotc.ir.walks import Steps, run
from aotc.schedule.analysis.global_order import free_operands
from aotc.schedule.analysis.live_registers import is_made_again
from aotc.schedule.analysis.minimum_cut import Graph
from aotc.schedule.analysis.register_budget import tile_registers
from aotc.schedule.context import Schedule
from aotc.schedule.remarks import Remark

_LEAST_HELD = 48
"""The fewest tile registers of a thread to limit an SM's resident CTAs."""

_LEAST_SAVED = 16
"""The fewest registers of a thread worth saving at the cost of recomputation."""

_MAX_TILES = 256
"""The most tiles in the graph of a cut; sources beyond it are not recomputed."""

_REPEATED = (arith.Exp, arith.Exp2)
"""Costly ops still worth repeating: one special-function instruction each."""


def rematerialize_tiles(kernel: Kernel, schedule: Schedule) -> None:
    """Keep few registers across reductions and into loops; see the module docstring."""
    if any(op.has(Trait.DOT) for op in kernel.walk()):
        return  # accumulators dominate the registers there
    _visit(kernel.body, schedule)


def _visit(block: Block, schedule: Schedule) -> None:
    passed = _Passed(block)
    for op in list(block):
        if isinstance(op, scf.For):
            _Boundary(block, op, passed, inside=True).rematerialize(schedule)
        for nested in op.blocks:
            _visit(nested, schedule)
        if _is_exchange(op):
            _Boundary(block, op, passed).rematerialize(schedule)


def _is_exchange(op: Op) -> bool:
    """Return whether an op exchanges partial results of a reduction through a barrier."""
    return op.writes(Resource.SHARED) and any(
        isinstance(value.type, TileType | ScalarType) for value in op.operands
    )


@dataclass
class _Passed:
    """The ops of a block ahead of a boundary, and their tiles with later uses.

    Boundaries come in order, so each op is passed once.
    """

    block: Block
    ops: dict[Op, None] = field(default_factory=dict[Op, None])
    made_again: dict[Value, bool] = field(default_factory=dict[Value, bool])
    _open: dict[Value, None] = field(default_factory=dict[Value, None])
    _numbers: dict[Op, int] = field(default_factory=dict[Op, int])

    def reach(self, boundary: Op) -> None:
        """Pass all ops ahead of a boundary."""
        ahead: list[Op] = []
        op = boundary.prev
        while op is not None and op not in self.ops:
            ahead.append(op)
            op = op.prev
        for op in reversed(ahead):
            self.ops[op] = None
            self._open.update((value, None) for value in op.results if self.takes_registers(value))

    def forget(self) -> None:
        """Invalidate cached facts after a rewrite."""
        self.made_again.clear()
        self._numbers.clear()

    def takes_registers(self, value: Value) -> bool:
        """Return whether ptxas keeps a value in registers."""
        return is_tile(value) and not is_made_again(value, self.made_again, renames=False)

    def users_after(self, value: Value, boundary: Op) -> list[Op]:
        """Return the block's ops after a boundary that use a value, nested uses included."""
        users = dict.fromkeys(enclosing_in(user, self.block) for user in value.users)
        return [user for user in users if user not in self.ops and user is not boundary]

    def used_after(self, boundary: Op) -> dict[Value, None]:
        """Return tiles used after a boundary, ordered by first use."""
        users: dict[Op, None] = {}
        for value in list(self._open):
            after = self.users_after(value, boundary)
            users.update(dict.fromkeys(after))
            if not after:
                del self._open[value]
        if any(user not in self._numbers for user in users):
            self._numbers = {op: number for number, op in enumerate(self.block)}
        ordered = sorted(users, key=self._numbers.__getitem__)
        operands = (value for user in ordered for value in free_operands(user))
        return {value: None for value in operands if value in self._open}


@dataclass
class _Kept:
    """A cut: the tiles kept live, the tiles recomputed from them, and registers before and after."""

    registers: dict[Value, None]
    wanted: dict[Value, None]
    before: int
    after: int


@dataclass
class _Boundary:
    """A cut point in a block: at `op` (a barrier), or `inside` it (a loop)."""

    block: Block
    op: Op
    passed: _Passed
    inside: bool = False

    @property
    def before(self) -> dict[Op, None]:
        """The ops of the block ahead of the boundary."""
        return self.passed.ops

    def rematerialize(self, schedule: Schedule) -> None:
        """Recompute tiles after the boundary where their sources take fewer registers."""
        self.passed.reach(self.op)
        choice = self._choose()
        if choice is None:
            return
        saved = choice.before - choice.after
        if saved < max(_LEAST_SAVED, choice.before // 4):
            return
        _Copies(self, choice.registers).run()
        self.passed.forget()
        schedule.remark(
            self.op.loc, Remark.REMATERIALIZED(before=choice.before, after=choice.after)
        )

    # -- live tiles ------------------------------------------------------------

    def users(self) -> Iterator[Op]:
        """Yield the ops after the boundary, in the block the clones go to."""
        op = self.op.blocks[0].first if self.inside else self.op.next
        while op is not None:
            yield op
            op = op.next

    def _wanted(self) -> dict[Value, None]:
        """Return the tiles live across the boundary."""
        if not self.inside:
            return self.passed.used_after(self.op)
        operands = (value for user in self.users() for value in free_operands(user))
        return {v: None for v in operands if v.op in self.before and self.takes_registers(v)}

    def takes_registers(self, value: Value) -> bool:
        """Return whether a value is a tile that ptxas keeps in registers."""
        return self.passed.takes_registers(value)

    def _carried(self) -> int:
        """Return the registers of tiles carried by loops at or around the boundary."""
        loops = [*([self.op] if self.inside else []), *self.op.ancestors()]
        carried = [arg for loop in loops for block in loop.blocks for arg in block.args]
        return sum(tile_registers(arg.type) for arg in carried if isinstance(arg.type, TileType))

    def _escapes(self, value: Value) -> bool:
        """Return whether a tile used in the loop is used after it too."""
        return bool(self.passed.users_after(value, self.op))

    # -- the cut ---------------------------------------------------------------

    def _choose(self) -> _Kept | None:
        uses = self._wanted()
        if self.inside:
            uses = {value: None for value in uses if not self._escapes(value)}
        live = dict.fromkeys(map(self._renamed, uses))
        before = sum(map(self._registers, live))
        if not uses or before + self._carried() < _LEAST_HELD:
            return None
        graph = Graph[Value]()
        seen: dict[Value, None] = {}
        worklist = list(uses)
        for value in uses:
            graph.add_end(value)
        while worklist:
            value = worklist.pop()
            if value in seen:
                continue
            seen[value] = None
            graph.add_node(value, self._cost(value))
            sources = self.sources(value)
            if sources is None or len(seen) > _MAX_TILES:
                graph.add_start(value)
                continue
            for source in sources:
                graph.add_edge(source, value)
            worklist += sources
        cut = graph.minimum_cut()
        after = sum(map(self._registers, cut))
        return _Kept(dict.fromkeys(cut), uses, before, after)

    def _renamed(self, value: Value) -> Value:
        """Return the tile whose registers a value shares; a join of several tiles has its own."""
        while value.op is not None and value.op.has(Trait.SHAPE_ONLY) and value.op in self.before:
            sources = [operand for operand in value.op.operands if is_tile(operand)]
            if len(sources) != 1:
                break
            value = sources[0]
        return value

    def _registers(self, value: Value) -> int:
        if self.is_live_throughout(value):
            return 0
        assert isinstance(value.type, TileType)
        return tile_registers(value.type)

    def is_live_throughout(self, value: Value) -> bool:
        """Return whether a tile is defined outside the block and thus live anyway."""
        return value.op not in self.before and value.owner is not self.block

    def _cost(self, value: Value) -> int | None:
        """Return the registers to keep a tile live, or None if it may not be kept."""
        assert isinstance(value.type, TileType)
        is_renaming = value.op in self.before and value.op.has(Trait.SHAPE_ONLY)
        if is_renaming or isinstance(value.type.element, PointerType):
            return None
        return self._registers(value)

    def sources(self, value: Value) -> list[Value] | None:
        """Return the tiles a tile can be recomputed from, or None if it must not be repeated."""
        op = value.op
        if op is None or op not in self.before:
            return None
        if _rereads(op):
            return [operand for operand in op.operands if self.takes_registers(operand)]
        cheap = is_elementwise(op) or op.has(Trait.SHAPE_ONLY)
        if not cheap or not op.pure or op.blocks:
            return None
        if op.has(Trait.COSTLY) and not isinstance(op, _REPEATED):
            return None
        return [operand for operand in op.operands if self.takes_registers(operand)]


def _rereads(op: Op) -> bool:
    """Return whether an op reads a buffer filled by one bulk copy."""
    if not isinstance(op, gpu.SharedLoad) or not isinstance(op.buffer.op, gpu.SharedAlloc):
        return False
    writers = [user for user in op.buffer.users if not isinstance(user, gpu.SharedLoad)]
    return len(writers) == 1 and isinstance(writers[0], tma.SyncBulkLoad)


class _Copies:
    """Clone recomputed tiles after a boundary, each at its first use."""

    def __init__(self, boundary: _Boundary, kept: Iterable[Value]) -> None:
        self.boundary = boundary
        self.registers = dict.fromkeys(kept)
        self.made: dict[Value, Value] = {}
        self.scalar: Value | None = None

    def run(self) -> None:
        """Replace operands of all ops after the boundary by clones."""
        if self.boundary.inside:
            self.scalar = next(iter(self.boundary.op.blocks[0].args), None)
        for op in list(self.boundary.users()):
            builder = Builder.before_op(op)
            with at(op.loc):
                for value in dict.fromkeys(free_operands(op)):
                    if self._is_repeated(value):
                        new = run(self._copy(value, builder))
                        for user in (op, *(inner for block in op.blocks for inner in block.walk())):
                            user.replace_operand(value, new)
            self._learn(op)

    def _learn(self, op: Op) -> None:
        """Remember a scalar available only after the barrier."""
        if isinstance(op, gpu.Reduce) and isinstance(op.results[0].type, ScalarType):
            self.scalar = op.results[0]

    def _is_repeated(self, value: Value) -> bool:
        if value.op not in self.boundary.before or value in self.made:
            return value in self.made
        if value in self.registers or not is_tile(value):
            return False
        return self.boundary.takes_registers(value) and self.boundary.sources(value) is not None

    def _copy(self, value: Value, builder: Builder) -> Steps[Value]:
        if value not in self.made:
            if value in self.registers or not self._is_repeated(value):
                self.made[value] = builder(opaque.Opaque(value, self.scalar)).out
            else:
                op = value.op
                assert op is not None
                sources: dict[Value, Value] = {}
                for operand in self._copied_operands(op):
                    sources[operand] = yield self._copy(operand, builder)
                copy = builder(op.clone(sources))
                for old, new in zip(op.results, copy.results, strict=True):
                    self.made.setdefault(old, new)
        return self.made[value]

    def _copied_operands(self, op: Op) -> list[Value]:
        """Return the operands to clone: those not live throughout, or one, so that CSE finds no equal op."""
        tiles = [operand for operand in op.operands if self.boundary.takes_registers(operand)]
        anew = [operand for operand in tiles if not self.boundary.is_live_throughout(operand)]
        return anew or tiles[:1]
