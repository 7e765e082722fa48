"""Find the backward slice of a loop's value, and the staging of a load through shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from aotc.ir.core import Op, Value
from aotc.ir.dialects import gpu, scf
from aotc.ir.effects import Resource, Trait
from aotc.ir.layout_access import run_elems_in_order
from aotc.ir.rewrite import is_pure
from aotc.ir.types import TileType
from aotc.ir.walks import reached
from aotc.schedule.analysis.global_order import free_operands
from aotc.schedule.remarks import Reason

_CHEAP = (Trait.ELEMENTWISE, Trait.SOURCE, Trait.SAME_VALUES, Trait.SHAPE_ONLY)


@dataclass
class Slice:
    """The ops of a loop's body behind a load, or the obstacle to issuing it ahead."""

    ops: dict[Op, None] = field(default_factory=dict[Op, None])
    carried: dict[Value, None] = field(default_factory=dict[Value, None])
    loads: dict[gpu.Load, None] = field(default_factory=dict["gpu.Load", None])
    obstacle: str = ""


@dataclass(eq=False)
class Staging:
    """The staging of a loaded tile through shared memory: renaming ops, store, buffer."""

    renames: list[Op]
    store: gpu.SharedStore
    buffer: gpu.SharedAlloc

    @property
    def feeds_wgmma(self) -> bool:
        """True if a wgmma reads the buffer."""
        return any(user.has(Trait.DOT) for user in self.buffer.out.users)

    @property
    def vector(self) -> int:
        """Number of lowest registers contiguous in the buffer, in order."""
        kind = self.store.value.type
        assert isinstance(kind, TileType)
        assert kind.layout is not None
        return run_elems_in_order(kind.layout, self.buffer.layout)


def is_cheap(op: Op) -> bool:
    """Return whether an op may be repeated, or moved, for the address it is part of."""
    return (op.has(*_CHEAP) or isinstance(op, scf.If)) and is_pure(op)


def collect_slice(loop: scf.For, values: Iterable[Value]) -> Slice:
    """Return the backward slice of `values` in the body of `loop`."""
    loop_slice = Slice()
    worklist = list(values)
    seen: dict[Value, None] = {}
    yielded = loop.body.terminator.operands
    while worklist:
        value = worklist.pop()
        if value in seen:
            continue
        seen[value] = None
        op = value.op
        if op is None and value.owner is loop.body:
            if value.index > 0:
                loop_slice.carried[value] = None
                worklist.append(yielded[value.index - 1])
        elif op is None or op.block is not loop.body:
            continue
        elif isinstance(op, gpu.Load):
            loop_slice.loads[op] = None
        elif is_cheap(op):
            loop_slice.ops[op] = None
            worklist += free_operands(op)
        else:
            loop_slice.obstacle = Reason.ADDRESS_DEPENDS(op=op.opcode)
    return loop_slice


def reads_in_loop(op: Op) -> bool:
    """Return whether an op only reads a buffer, complete at once or as a dot."""
    is_done = op.has(Trait.DOT) or not op.effects_on(None, "start")
    return op.reads(Resource.SHARED) and not op.writes(Resource.SHARED) and is_done


def find_staging(load: gpu.Load) -> Staging | None:
    """Return the staging through shared memory, if a load's only use, or None."""
    renames: list[Op] = []
    value = load.out
    while True:
        users = list(value.users)
        if len(users) != 1:
            return None
        user = users[0]
        if user.has(Trait.VIEW) and user.block is load.block:
            renames.append(user)
            value = user.results[0]
            continue
        break
    if not isinstance(user, gpu.SharedStore) or user.block is not load.block:
        return None
    buffer = user.buffer.op
    if not isinstance(buffer, gpu.SharedAlloc) or buffer.block is not load.block:
        return None
    is_whole = all(map(reads_in_loop, _readers(user.buffer, user)))
    return Staging(renames, user, buffer) if is_whole else None


def _readers(buffer: Value, writer: Op) -> Iterator[Op]:
    """Return the users of a buffer and of its views, besides its writer."""

    def is_view(op: Op) -> bool:
        return op.has(Trait.ALIAS) and op.block is writer.block

    users = reached(buffer.users, lambda op: op.results[0].users if is_view(op) else ())
    return (user for user in users if user is not writer and not is_view(user))
