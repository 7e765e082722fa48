"""Bugs in stores of tensors by asynchronous copies, in loops where they run on or come later."""

from __future__ import annotations

from aotc.ir.core import Kernel
from aotc.ir.dialects import arith, gpu, scf, tma
from aotc.ir.rewrite import Builder
from aotc.ir.types import I1, I32
from tests.support.mutations.plant import Edit, Mutation, after_pass, each, found, without

_LAST = "insert_barriers"


def _barrier_after_wait(kernel: Kernel) -> None:
    """Leave out the barrier after the issuing thread's wait."""
    wait = found(kernel, tma.TmaStoreWait)[0]
    assert isinstance(wait.next, gpu.Barrier)
    wait.next.erase()


def _barrier_before_store(kernel: Kernel) -> None:
    store = found(kernel, tma.TmaStore)[0]
    assert isinstance(store.prev, gpu.Barrier)
    store.prev.erase()


def _wait_for_reads_only(kernel: Kernel) -> None:
    """Leave stores on their way to memory when other threads are told of them."""
    for op in found(kernel, tma.TmaStoreWait):
        op.written = False


def _wait_if_only(slot: int) -> Edit:
    """Let tiles wait for the next one's products if one of the two conditions holds."""

    def edit(kernel: Kernel) -> None:
        (conjunction,) = (op for op in found(kernel, arith.And) if op.out.type == I1)
        conjunction.set_slots([conjunction.slots[slot]] * 2)

    return edit


def _forget_that_there_is_a_tile(kernel: Kernel) -> None:
    """Report no pending part to the next iteration."""
    loop = next(op for op in found(kernel, scf.For) if op.carried[-1].hint == "part")
    terminator = loop.body.terminator
    terminator.set_slots([*terminator.slots[:-1], loop.init[-1]])


def _begin_with_the_second_part(kernel: Kernel) -> None:
    """Report the second part as the next pending one."""
    (select,) = (
        op
        for op in found(kernel, arith.Select)
        if any(isinstance(user, scf.Yield) for user in op.out.users)
    )
    unit = Builder.before_op(select)(arith.Constant(1, I32)).out
    select.set_slots([select.slots[0], unit, select.slots[2]])


def _wait_for_no_part(kernel: Kernel) -> None:
    for op in found(kernel, tma.TmaStoreWait):
        if any(isinstance(outer, scf.For) for outer in op.ancestors()):
            op.erase()


_LATE = tuple(
    Mutation(name, stands_for, "multiply_and_store_late", after_pass(pass_name, edit), "sm_90a")
    for name, stands_for, pass_name, edit in (
        (
            "a part is lost where K is short",
            "a tile waits for the next one's products, though these are fewer than its parts",
            "overlap_epilogue",
            _wait_if_only(1),
        ),
        (
            "the last tile is lost",
            "the last tile waits for the next one's products",
            "overlap_epilogue",
            _wait_if_only(0),
        ),
        (
            "all tiles but the last are lost",
            "an iteration does not pass on that it has a tile",
            "overlap_epilogue",
            _forget_that_there_is_a_tile,
        ),
        (
            "the first part is lost",
            "parts are counted from 1",
            "overlap_epilogue",
            _begin_with_the_second_part,
        ),
        (
            "a part is written over the one before",
            "no part waits until its buffer has been read",
            _LAST,
            _wait_for_no_part,
        ),
        (
            "a part is sent before it is written",
            "a part is sent without a barrier",
            _LAST,
            _barrier_before_store,
        ),
    )
)

_ORDERED = Mutation(
    "a box is read before it is written",
    "ahead of a barrier of the user's it is waited for reads of shared memory only",
    "store_and_read",
    after_pass(_LAST, _wait_for_reads_only),
    "sm_90a",
)

_IN_TURN = tuple(
    Mutation(name, stands_for, "turn_blocks", after_pass(_LAST, edit), "sm_90a")
    for name, stands_for, edit in (
        (
            "a store's buffer is written while it is read",
            "nobody waits for the store of the iteration before",
            without(tma.TmaStoreWait, 0),
        ),
        (
            "a store is waited for one store too late",
            "a wait leaves the store in flight that it is for",
            each(tma.TmaStoreWait, lambda op: setattr(op, "pending", op.pending + 1)),
        ),
        (
            "only one thread knows that a buffer is free",
            "the wait for a store has no barrier behind it",
            _barrier_after_wait,
        ),
        (
            "a store begins before its box is written",
            "the copy is issued without a barrier",
            _barrier_before_store,
        ),
        (
            "a store does not see what was written",
            "the fence between the proxies is left out",
            without(tma.ProxyFence, 0),
        ),
        (
            "a CTA ends before its stores",
            "nobody waits for the last store of a loop",
            without(tma.TmaStoreWait, -1),
        ),
        (
            "a store to the wrong place",
            "the coordinates of a box are exchanged",
            each(tma.TmaStore, lambda op: op.set_slots([*op.slots[:2], *op.slots[:1:-1]])),
        ),
    )
)

MUTATIONS = (*_LATE, _ORDERED, *_IN_TURN)
