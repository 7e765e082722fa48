"""Bugs in tensor maps stored by a kernel for others: fields, slots, fences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from aotc.backend import nvvm_tensor
from aotc.backend.nvvm_tensor import MapFields
from tests.support.mutations.plant import Mutation, Plant, in_llvm, in_ptx, replacing

_PUBLISH = r"(tensormap\.cp_fenceproxy\S+ \[%rd\d+)\]"


def _fields(change: Callable[[MapFields], MapFields]) -> Plant:
    return replacing(nvvm_tensor, "MapFields", lambda *fields: change(MapFields(*fields)))


_PLANTS: tuple[tuple[str, str, Plant], ...] = (
    (
        "extents of a stored map in the other order",
        "outermost first is taken for innermost first",
        _fields(lambda fields: replace(fields, extents=fields.extents[::-1])),
    ),
    (
        "a box of a stored map in the other order",
        "outermost first is taken for innermost first",
        _fields(lambda fields: replace(fields, box=fields.box[::-1])),
    ),
    (
        "a stored map of another dtype",
        "bf16 and fp16 have as many bits",
        _fields(lambda fields: replace(fields, element=10)),
    ),
    (
        "a stored map with half the swizzle",
        "its span is that of half a row",
        _fields(lambda fields: replace(fields, swizzle=fields.swizzle - 1)),
    ),
    (
        "what lies outside of a stored map is NaN",
        "the fill mode is that of another tensor",
        _fields(lambda fields: replace(fields, fill=1)),
    ),
    (
        "strides of a stored map in elements",
        "they are not multiplied by an element's size",
        in_llvm(r"(mul i64 %\S+), 2", r"\1, 1"),
    ),
    (
        "a map is stored to the slot after",
        "slots are counted from 1",
        in_ptx(_PUBLISH, r"\1+128]"),
    ),
    (
        "a map is stored of what its template held",
        "edits come after the copy",
        in_ptx(r"tensormap\.replace\.tile\.global_address.*;", ""),
    ),
)

MUTATIONS = tuple(
    Mutation(name, stands_for, "describe_rows", plant, "sm_90a")
    for name, stands_for, plant in _PLANTS
)
