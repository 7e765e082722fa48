"""Bugs in tensor copies that stand for loads through pointers: maps, coordinates, clipping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from aotc.ir.core import Kernel, TensorSource
from aotc.ir.dialects import descriptor
from tests.support.mutations.plant import Edit, Mutation, after_pass, each


def _described(change: Callable[[TensorSource], TensorSource]) -> Edit:
    """Return the edit that describes every tensor in another way."""

    def edit(kernel: Kernel) -> None:
        kernel.params = tuple(
            info if info.tensor is None else replace(info, tensor=change(info.tensor))
            for info in kernel.params
        )

    return edit


def _rows(text: str) -> Edit:
    return _described(
        lambda tensor: replace(tensor, shape=(f"{tensor.shape[0]}{text}", *tensor.shape[1:]))
    )


def _exchanged(load: descriptor.DescriptorLoad) -> None:
    load.set_slots([load.slots[0], *load.slots[:0:-1]])


def _still(load: descriptor.DescriptorLoad) -> None:
    load.set_slots([*load.slots[:-1], load.slots[1]])


MUTATIONS = tuple(
    Mutation(name, stands_for, "multiply", after_pass("map_pointers", edit), "sm_90a")
    for name, stands_for, edit in (
        (
            "a map with a row too many",
            "a bound of the mask is taken for the last index",
            _rows(" + 1"),
        ),
        ("a map with a row too few", "the last row is clipped", _rows(" - 1")),
        (
            "a map with the strides of another",
            "a stride is multiplied twice",
            _described(lambda tensor: replace(tensor, strides=(f"2 * {tensor.strides[0]}",))),
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
    )
)
