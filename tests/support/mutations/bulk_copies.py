"""Bugs in bulk copies of runs of memory: in their lengths, their ends, their order, and in masks."""

from __future__ import annotations

from typing import Any

from aotc.backend import nvvm_tensor
from aotc.ir.core import Kernel
from aotc.ir.dialects import arith, gpu, tma
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32
from tests.support.mutations.plant import Edit, Mutation, after_pass, found, without, wrapping

_AFTER = "bulk_loads"
_BLOCK_BYTES = 2048


def _whole_blocks(kind: type[tma.SyncBulkLoad | tma.StagedBulkStore]) -> Edit:
    """Let copies of a kind be of a whole tile."""

    def edit(kernel: Kernel) -> None:
        for copy in found(kernel, kind):
            size_bytes = Builder.before_op(copy)(arith.Constant(_BLOCK_BYTES, I32)).out
            copy.set_slots([*copy.slots[:-1], size_bytes])

    return edit


def _rounded_down(kind: type[tma.SyncBulkLoad | tma.StagedBulkStore]) -> Edit:
    """Let copies of a kind be of a multiple of 128 bytes."""

    def edit(kernel: Kernel) -> None:
        for copy in found(kernel, kind):
            build = Builder.before_op(copy)
            mask = build(arith.Constant(-128, I32)).out
            size_bytes = build(arith.And(copy.size_bytes, mask)).out
            copy.set_slots([*copy.slots[:-1], size_bytes])

    return edit


def _barrier_before_copy(kernel: Kernel) -> None:
    (store,) = found(kernel, tma.BulkStore)
    assert isinstance(store.prev, gpu.Barrier)
    store.prev.erase()


def _without_masks(kernel: Kernel) -> None:
    for load in found(kernel, gpu.MaskedSharedLoad):
        load.set_slots([load.buffer, None, None])


def _ones_forgotten(kernel: Kernel) -> None:
    for load in found(kernel, gpu.MaskedSharedLoad):
        load.set_slots([load.buffer, load.mask, None])


def _without_fences(kernel: Kernel) -> None:
    for fence in found(kernel, tma.ProxyFence):
        fence.erase()


def _announces_all(expect: Any) -> Any:
    return lambda emit, barrier, _, issuer, **rest: expect(
        emit, barrier, str(_BLOCK_BYTES), issuer, **rest
    )


_STORES = tuple(
    Mutation(name, stands_for, "double_rows", after_pass(pass_name, edit), "sm_90a")
    for name, stands_for, pass_name, edit in (
        (
            "a row's end is not stored",
            "the length of a store is rounded down",
            "bulk_stores",
            _rounded_down(tma.StagedBulkStore),
        ),
        (
            "a store goes on behind the end of a row",
            "the length is that of a whole tile",
            "bulk_stores",
            _whole_blocks(tma.StagedBulkStore),
        ),
        (
            "a row is stored before it is written",
            "the copy is issued without a barrier",
            "insert_barriers",
            _barrier_before_copy,
        ),
        (
            "a row is written over while it is stored",
            "nobody waits for the store of the iteration before",
            "insert_barriers",
            without(tma.TmaStoreWait, 0),
        ),
    )
)

_LOADS = tuple(
    Mutation(name, stands_for, "add_up_rows", plant, "sm_90a")
    for name, stands_for, plant in (
        (
            "a copy goes on behind the end of a row",
            "the length is that of a whole tile",
            after_pass(_AFTER, _whole_blocks(tma.SyncBulkLoad)),
        ),
        (
            "a copy ends too early",
            "its length is rounded down",
            after_pass(_AFTER, _rounded_down(tma.SyncBulkLoad)),
        ),
        (
            "what was not copied is read",
            "the mask of a copied tile is left out",
            after_pass(_AFTER, _without_masks),
        ),
        (
            "what was not copied is 0",
            "what stands for masked elements is left out",
            after_pass(_AFTER, _ones_forgotten),
        ),
        (
            "a row is written over while threads read it",
            "no fence ahead of what lets the next copy go",
            after_pass("insert_barriers", _without_fences),
        ),
        (
            "more bytes are announced than come",
            "a phase waits for a whole tile",
            wrapping(nvvm_tensor, "mbarrier_expect", _announces_all),
        ),
    )
)

MUTATIONS = (*_LOADS, *_STORES)
