"""Shared rules of bulk loads and stores: requests, qualification, free shared memory.

Invariant: every refused access gets a remark with the reason and, if possible, a remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import get_args

from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import gpu, scf, tile, tma
from aotc.ir.dialects.descriptor import ReduceKind, supports_reduce
from aotc.ir.effects import Trait
from aotc.ir.rewrite import is_inside
from aotc.ir.types import ScalarType, SharedType, TileType, Type, element_of
from aotc.schedule.analysis.global_order import accessed, is_promised_apart, root_names
from aotc.schedule.context import Schedule
from aotc.schedule.remarks import Remark
from aotc.schedule.tensor_maps.contiguous_run import AccessT, ContiguousRun
from aotc.schedule.tensor_maps.pointer_box import UnmappableError
from aotc.target import Feature

_MIN_BYTES = 2048
"""The fewest bytes of a copy worth a mbarrier round trip."""
_DONE = {gpu.Load: "loaded", gpu.Store: "stored", gpu.AtomicRmw: "updated"}
_RESERVED_BYTES = 1024  # mbarriers, and padding of buffers to their alignment


def may_copy(schedule: Schedule) -> bool:
    """Return whether the target has bulk copies and each program runs in one CTA."""
    return Feature.TMA in schedule.target.features and schedule.config.num_ctas == 1


def asks_for_copies(loop: scf.For, schedule: Schedule) -> bool:
    """Return whether a loop without dots and inner loops requests pipelining."""
    if schedule.stages_of(loop) == 1:
        return False
    is_requested = loop.num_stages or loop.warp_specialize or schedule.config.warp_specialize
    return bool(is_requested) and not any(op.has(Trait.LOOP, Trait.DOT) for op in loop.body.walk())


def is_long(kind: Type) -> bool:
    """Return whether a tile of whole bytes is large enough for a copy."""
    if not isinstance(kind, TileType) or not isinstance(kind.element, ScalarType):
        return False
    element = kind.element
    return element.bits % 8 == 0 and prod(kind.shape) * element.size_bytes >= _MIN_BYTES


def reduce_kind(op: tile.AtomicRmw | gpu.AtomicRmw) -> ReduceKind:
    """Return a copy's reduction for a relaxed atomic. Raises: UnmappableError if none exists."""
    element = element_of(op.value.type)
    reduction = next((kind for kind in get_args(ReduceKind) if kind == op.kind), None)
    assert isinstance(element, ScalarType)
    if reduction is None or not supports_reduce(reduction, element):
        raise UnmappableError(f"copies have no atomic {op.kind} of {element}")
    if op.scope == "sys":
        raise UnmappableError("copies are atomic for one GPU, not for the system")
    return reduction


def choose_runs(
    accesses: Sequence[AccessT],
    run_of: Callable[[AccessT], ContiguousRun],
    schedule: Schedule,
) -> list[tuple[AccessT, ContiguousRun]]:
    """Return the accesses with their runs, unless `run_of` refuses; remark either outcome."""
    runs: list[tuple[AccessT, ContiguousRun]] = []
    for access in accesses:
        name, verb = root_names(access.pointer), _DONE[type(access)]
        try:
            run = run_of(access)
        except UnmappableError as refusal:
            reason = f"{refusal.reason}; {refusal.remedy}" if refusal.remedy else refusal.reason
            text = Remark.NO_BULK_COPY(name=name, done=verb, reason=reason)
            schedule.remark(access.loc, text)
            continue
        text = Remark.BULK_COPY(name=name, done=verb, size=run.size_bytes)
        schedule.remark(access.loc, text)
        runs.append((access, run))
    return runs


def order_is_promised(first: Op, second: Op) -> bool:
    """Return whether the user promised no alias between two accesses of a loop."""
    if is_promised_apart(accessed(first), accessed(second)):
        return True
    loops = loops_around(first, second)
    return bool(loops) and all(isinstance(op, scf.For) and op.num_stages for op in loops)


def advise_order(first: Op, second: Op) -> str:
    """Return advice to make `order_is_promised` true, or an empty string."""
    loops = loops_around(first, second)
    helps = loops and all(isinstance(op, scf.For) for op in loops)
    return "num_stages of tl.range promises that it is not" if helps else ""


def loops_around(first: Op, second: Op) -> list[Op]:
    """Return the loops around both of two ops."""
    around = [op for op in second.ancestors() if is_inside(first, op)]
    return [op for op in around if op.has(Trait.LOOP)]


@dataclass
class Room:
    """Track free shared memory; rings of all loops are live at the same time."""

    left_bytes: int

    def take(self, size_bytes: int, num_stages: int) -> None:
        """Take a ring. Raises: UnmappableError if there is no room."""
        if size_bytes * num_stages > self.left_bytes:
            raise UnmappableError(
                f"shared memory has no room for {num_stages} stages of {size_bytes} bytes",
                "ask for fewer stages or a smaller tile",
            )
        self.left_bytes -= size_bytes * num_stages


def room_for_copies(kernel: Kernel, schedule: Schedule) -> Room:
    """Return the shared memory left by a kernel's other buffers."""
    taken_bytes = sum(_taken_bytes(op, schedule) for op in kernel.walk())
    return Room(schedule.target.max_shared_bytes - _RESERVED_BYTES - taken_bytes)


def _taken_bytes(op: Op, schedule: Schedule) -> int:
    """Return the bytes of a buffer, times the stages if tensor loads fill it."""
    if not isinstance(op, gpu.SharedAlloc):
        return 0
    assert isinstance(op.out.type, SharedType)
    loops = [user.parent_op for user in op.out.users if isinstance(user, tma.SyncLoad)]
    stages = [schedule.stages_of(loop) for loop in loops if isinstance(loop, scf.For)]
    return op.out.type.size_bytes * max(stages, default=1)
