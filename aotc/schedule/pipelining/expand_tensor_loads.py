"""Expand tensor loads into their issue by one thread and the wait of all at a mbarrier.

Adjacent loads, none of which depends on another, are issued at once and awaited once. All of a
kernel share one mbarrier: each wait is for its next phase, so the parity is a variable that starts
at 0, flips with each wait, and is carried by every loop and branch that contains one.
`insert_barriers` keeps a thread from issuing into a phase that another still waits for.

Invariant: on every path through the kernel, waits have the parities 0, 1, 0, 1, …
"""

from __future__ import annotations

from collections.abc import Iterator

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import arith, gpu, scf, tma
from aotc.ir.rewrite import Builder, append_carried, is_pure
from aotc.ir.types import I32, SharedType
from aotc.schedule.context import Schedule
from aotc.schedule.shared_memory.mbarriers import place_mbarrier

_PARITY = "parity"


def expand_tensor_loads(kernel: Kernel, schedule: Schedule) -> None:
    """Replace every tensor load by its issue and a wait."""
    if not _holds_fetch(kernel.body):
        return
    place = Builder(kernel.body, kernel.body.first)
    barrier = place_mbarrier(place)
    place(tma.MbarrierInit(barrier))
    parity = place(arith.Constant(0, I32)).out
    one = place(arith.Constant(1, I32)).out
    _Expansion(barrier, one, schedule.target.max_shared_bytes // 2).visit(kernel.body, parity)


def _holds_fetch(block: Block) -> bool:
    return any(isinstance(op, tma.Fetch) for op in block.walk())


class _Expansion:
    """Walk the kernel with the parity of the next wait."""

    def __init__(self, barrier: Value, one: Value, max_group_bytes: int) -> None:
        self.barrier = barrier
        self.one = one
        self.max_group_bytes = max_group_bytes

    def visit(self, block: Block, parity: Value) -> Value:
        """Expand the tensor loads of a block; return the parity after it."""
        for op in block:
            if isinstance(op, tma.Fetch):
                parity = self._expand(op, parity)
            elif any(_holds_fetch(nested) for nested in op.blocks):
                parity = self._thread(op, parity)
        return parity

    def _expand(self, first: tma.Fetch, parity: Value) -> Value:
        group = list(_gather(first, self.max_group_bytes))
        place = Builder.after_op(group[-1])
        for fetch in group:
            with at(fetch.loc):
                load = fetch.as_async_load(
                    fetch.inputs, fetch.buffer, self.barrier, arrive=fetch is group[-1]
                )
                Builder.before_op(fetch)(load)
        with at(first.loc):
            place(tma.MbarrierWait(self.barrier, parity))
            parity = place(arith.Xor(parity, self.one)).out
        for fetch in group:
            fetch.erase()
        return parity

    def _thread(self, op: Op, parity: Value) -> Value:
        """Pass the parity through a loop or branch; return it as it comes out."""
        is_loop = isinstance(op, scf.For | scf.While)
        for block in op.blocks:
            before = block.add_arg(I32, _PARITY) if is_loop else parity
            _pass_on(block, self.visit(block, before))
        return append_carried(op, [parity] if is_loop else ()).results[-1]


def _pass_on(block: Block, value: Value) -> None:
    """Let the terminator of a block pass on one more value."""
    end = block.terminator
    end.set_slots([*end.slots, value])


# ---- groups -----------------------------------------------------------------------------------


def _gather(first: tma.Fetch, max_bytes: int) -> Iterator[tma.Fetch]:
    """Yield a fetch and those behind it that need not wait for it, moved up behind each other."""
    yield first
    last: Op = first
    left = max_bytes - _buffer_bytes(first)
    passed: dict[Op, None] = {}
    op = first.next
    while op is not None:
        following = op.next
        if isinstance(op, tma.Fetch):
            needed = _needed(op, passed)
            left -= _buffer_bytes(op)
            if needed is None or left < 0:
                return
            for moved in [*(each for each in passed if each in needed), op]:
                passed.pop(moved, None)
                moved.remove()
                Builder.after_op(last)(moved)
                last = moved
            yield op
        elif _can_stand_behind(op):
            passed[op] = None
        else:
            return
        op = following


def _can_stand_behind(op: Op) -> bool:
    reads = isinstance(op, gpu.SharedAlloc | gpu.SharedLoad)
    return reads or (is_pure(op) and not op.terminator and not op.blocks)


def _needed(fetch: Op, passed: dict[Op, None]) -> dict[Op, None] | None:
    """Return what must move up with a fetch, or None if it depends on what was loaded."""
    needed: dict[Op, None] = {}
    worklist = [fetch]
    while worklist:
        for value in worklist.pop().operands:
            op = value.op
            if op is None or op not in passed or op in needed:
                continue
            if isinstance(op, gpu.SharedLoad):
                return None
            needed[op] = None
            worklist.append(op)
    return needed


def _buffer_bytes(fetch: tma.Fetch) -> int:
    assert isinstance(fetch.buffer.type, SharedType)
    return fetch.buffer.type.size_bytes
