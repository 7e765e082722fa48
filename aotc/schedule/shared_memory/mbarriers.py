"""Allocate mbarriers in shared memory, alone or one for each stage of a ring."""

from __future__ import annotations

from aotc.ir.core import Value
from aotc.ir.dialects import gpu, tma
from aotc.ir.layout import LinearLayout
from aotc.ir.rewrite import Builder
from aotc.ir.types import U64


def place_mbarrier(place: Builder, num_stages: int = 1) -> Value:
    """Allocate a mbarrier or a ring of them, uninitialized, and return it."""
    layout = LinearLayout.from_columns([("offset", [])], (("dim0", 0),))
    return place(gpu.SharedAlloc(U64, (1,), layout, tma.MBARRIER_BYTES, num_stages=num_stages)).out
