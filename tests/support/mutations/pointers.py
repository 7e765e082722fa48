"""Bugs in tensor copies for pointer loads: maps, coordinates, clipping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from aotc.ir.core import Kernel
from aotc.ir.dialects import descriptor
from aotc.ir.params import TensorSource
from tests.support.mutations.plant import Edit, Mutation, after_pass, each


def _described(name: str, change: Callable[[TensorSource], TensorSource]) -> Edit:
    """Return an edit: change the tensor maps of some pointers."""

    def edit(kernel: Kernel) -> None:
        kernel.params = tuple(
            replace(info, tensor=change(info.tensor))
            if info.tensor is not None and info.tensor.address in name.split()
            else info
            for info in kernel.params
        )

    return edit


def _rows(name: str, text: str) -> Edit:
    return _described(
        name, lambda tensor: replace(tensor, shape=(f"{tensor.shape[0]}{text}", *tensor.shape[1:]))
    )


def _columns(name: str, text: str) -> Edit:
    return _described(
        name,
        lambda tensor: replace(tensor, shape=(*tensor.shape[:-1], f"{tensor.shape[-1]}{text}")),
    )


def _strided(name: str, text: str) -> Edit:
    return _described(name, lambda tensor: replace(tensor, strides=(text,)))


def _exchanged(load: descriptor.DescriptorLoad) -> None:
    load.set_slots([load.slots[0], *load.slots[:0:-1]])


def _still(load: descriptor.DescriptorLoad) -> None:
    load.set_slots([*load.slots[:-1], load.slots[1]])


def _stored_crosswise(store: descriptor.DescriptorStore) -> None:
    store.set_slots([*store.slots[:2], *store.slots[:1:-1]])


_LOADED, _STORED = "a_ptr b_ptr", "out_ptr"

MUTATIONS = tuple(
    Mutation(name, stands_for, "multiply", after_pass("map_pointers", edit), "sm_90a")
    for name, stands_for, edit in (
        (
            "a map with a row too many",
            "a bound of the mask is taken for the last index",
            _rows(_LOADED, " + 1"),
        ),
        ("a map with a row too few", "the last row is clipped", _rows(_LOADED, " - 1")),
        (
            "a map with the strides of another",
            "a stride is multiplied twice",
            _described(
                _LOADED, lambda tensor: replace(tensor, strides=(f"2 * {tensor.strides[0]}",))
            ),
        ),
        (
            "coordinates in the wrong order",
            "the axes of a map are in the kernel's order",
            each(descriptor.DescriptorLoad, _exchanged),
        ),
        (
            "a coordinate that stays",
            "a pointer that a loop moves is taken to stand still",
            each(descriptor.DescriptorLoad, _still),
        ),
        (
            "a row too many is stored",
            "a bound of the mask is taken for the last index",
            _rows(_STORED, " + 1"),
        ),
        ("a row too few is stored", "the last row is clipped", _rows(_STORED, " - 1")),
        (
            "rows are stored to whole pieces",
            "the end of a row is rounded up",
            _columns(_STORED, " + 4"),
        ),
        (
            "products are stored at the stride of an operand",
            "strides are taken for each other",
            _strided(_STORED, "stride_a"),
        ),
        (
            "products are stored crosswise",
            "the axes of a map are in the kernel's order",
            each(descriptor.DescriptorStore, _stored_crosswise),
        ),
    )
)
