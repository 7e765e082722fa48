"""Bugs in bulk copies of runs of memory: in their lengths, their ends, and what is masked off."""

from __future__ import annotations

from typing import Any

from aotc.backend import nvvm_tensor
from aotc.ir.core import Kernel
from aotc.ir.dialects import arith, gpu, tma
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32
from tests.support.mutations.plant import Mutation, after_pass, found, wrapping

_AFTER = "bulk_loads"
_BLOCK_BYTES = 2048


def _whole_blocks(kernel: Kernel) -> None:
    for fetch in found(kernel, tma.BulkFetch):
        size_bytes = Builder.before_op(fetch)(arith.Constant(_BLOCK_BYTES, I32)).out
        fetch.set_slots([fetch.pointer, fetch.buffer, size_bytes])


def _rounded_down(kernel: Kernel) -> None:
    """Copy a multiple of 128 bytes."""
    for fetch in found(kernel, tma.BulkFetch):
        place = Builder.before_op(fetch)
        size_bytes = place(arith.And(fetch.size_bytes, place(arith.Constant(-128, I32)).out)).out
        fetch.set_slots([fetch.pointer, fetch.buffer, size_bytes])


def _without_masks(kernel: Kernel) -> None:
    for load in found(kernel, gpu.MaskedSharedLoad):
        load.set_slots([load.buffer, None, None])


def _ones_forgotten(kernel: Kernel) -> None:
    for load in found(kernel, gpu.MaskedSharedLoad):
        load.set_slots([load.buffer, load.mask, None])


def _announces_all(expect: Any) -> Any:
    return lambda emit, barrier, _, issuer, **rest: expect(
        emit, barrier, str(_BLOCK_BYTES), issuer, **rest
    )


MUTATIONS = tuple(
    Mutation(name, stands_for, "add_up_rows", plant, "sm_90a")
    for name, stands_for, plant in (
        (
            "a copy goes on behind the end of a row",
            "the length is that of a whole block",
            after_pass(_AFTER, _whole_blocks),
        ),
        ("a copy ends too early", "its length is rounded down", after_pass(_AFTER, _rounded_down)),
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
            "more bytes are announced than come",
            "a phase waits for a whole block",
            wrapping(nvvm_tensor, "mbarrier_expect", _announces_all),
        ),
    )
)
