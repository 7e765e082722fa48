"""Bugs in dots with unused columns left out: too many, or at loads, buffers or waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aotc.backend import nvvm_tensor
from aotc.ir.core import Kernel
from aotc.ir.dialects import gpu, tile, tma
from aotc.ir.types import TensorMapType
from aotc.schedule.layout import trim_dot_columns
from tests.support.mutations.plant import Edit, Mutation, after_pass, each, entry, found, wrapping

_STEP = 8
_BLOCK_BYTES = 32 * 64 * 2


def _fewer_columns(op: Any) -> None:
    op.num_columns -= _STEP


def _fewer_rows(kernel: Kernel) -> None:
    for load in found(kernel, tma.SyncTmaLoad):
        if load.num_rows:
            load.num_rows -= _STEP
            kind = load.tensor.type
            assert isinstance(kind, TensorMapType)
            load.tensor.type = replace(kind, box=(load.num_rows, *kind.box[1:]))


def _too_short(kernel: Kernel) -> None:
    """Let the stages of B's ring begin eight rows earlier each."""
    for alloc in found(kernel, gpu.SharedAlloc):
        if alloc.unused_bytes:
            alloc.unused_bytes += _STEP * 64 * 2
            shorter = replace(alloc.out.type, unused_bytes=alloc.unused_bytes)
            alloc.out.type = shorter
            for stage in found(kernel, gpu.SharedStage):
                if stage.buffer is alloc.out:
                    stage.out.type = replace(stage.out.type, unused_bytes=alloc.unused_bytes)


def _left_half(demand: Any, op: Any) -> None:
    """Treat the right half of a split as unused."""
    mask = demand.places(op.lhs)
    spread = sum(1 << 2 * bit for bit in range(op.lhs.type.shape[1]) if mask >> bit & 1)
    demand.add(op.value, spread)


def _announces_blocks(expect: Any) -> Any:
    def announce(emit: Any, barrier: Any, num_bytes: str, issuer: str, **rest: Any) -> None:
        whole = str(_BLOCK_BYTES) if int(num_bytes) < _BLOCK_BYTES else num_bytes
        expect(emit, barrier, whole, issuer, **rest)

    return announce


_EDITS: tuple[tuple[str, str, str, Edit], ...] = (
    (
        "a step of columns too few",
        "the number of columns is rounded down",
        "trim_dot_columns",
        each(tile.Dot, _fewer_columns),
    ),
    (
        "rows of B that are not loaded",
        "a box has fewer rows than the product reads",
        "trim_operand_loads",
        _fewer_rows,
    ),
    (
        "a buffer that ends within its rows",
        "the next stage begins in what is read of this one",
        "choose_warp_roles",
        _too_short,
    ),
)

MUTATIONS = (
    *(
        Mutation(name, stands_for, "multiply_columns", after_pass(pass_name, edit), "sm_90a")
        for name, stands_for, pass_name, edit in _EDITS
    ),
    Mutation(
        "right halves are not looked at",
        "an op's second result is forgotten where demand goes backwards",
        "multiply_columns",
        entry(trim_dot_columns._RULES, tile.Split, _left_half),
        "sm_90a",
    ),
    Mutation(
        "bytes of whole boxes are announced",
        "a barrier expects what is not loaded",
        "multiply_columns",
        wrapping(nvvm_tensor, "mbarrier_expect", _announces_blocks),
        "sm_90a",
    ),
)
