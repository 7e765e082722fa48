"""Bugs in stores of tensors by asynchronous copies, in loops where they run on."""

from __future__ import annotations

from aotc.ir.core import Kernel
from aotc.ir.dialects import gpu, tma
from tests.support.mutations.plant import Mutation, after_pass, each, found, without

_LAST = "insert_barriers"


def _barrier_after_wait(kernel: Kernel) -> None:
    """Leave out the barrier that tells all threads what the issuing one has waited for."""
    wait = found(kernel, tma.TmaStoreWait)[0]
    assert isinstance(wait.next, gpu.Barrier)
    wait.next.erase()


def _barrier_before_store(kernel: Kernel) -> None:
    store = found(kernel, tma.TmaStore)[0]
    assert isinstance(store.prev, gpu.Barrier)
    store.prev.erase()


MUTATIONS = tuple(
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
            "a store begins before its block is written",
            "the copy is issued without a barrier",
            _barrier_before_store,
        ),
        (
            "a store does not see what was written",
            "the fence between the proxies is left out",
            without(tma.ProxyFence, 0),
        ),
        (
            "a block ends before its stores",
            "nobody waits for the last store of a loop",
            without(tma.TmaStoreWait, -1),
        ),
        (
            "a store to the wrong place",
            "the coordinates of a block are exchanged",
            each(tma.TmaStore, lambda op: op.set_slots([*op.slots[:2], *op.slots[:1:-1]])),
        ),
    )
)
