"""Bugs in the launcher's packing of arguments: parameter offsets, tensor maps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import reduce
from typing import Any

from aotc import compiler
from aotc.ir import expression
from aotc.ir.core import Kernel
from aotc.metadata import ParamSlot, TensorMapSpec
from aotc.package.builder import condition
from aotc.package.verify import planned_launch as planned
from aotc.package.verify import variants as verify
from tests.support.mutations.plant import Mutation, after_pass, replacing, together, wrapping

Slots = tuple[ParamSlot, ...]
Plant = Callable[[], AbstractContextManager[None]]


def _slots(change: Callable[[list[ParamSlot]], list[ParamSlot]]) -> Plant:
    def make(param_slots: Any) -> Any:
        return lambda kernel: tuple(change(list(param_slots(kernel))))

    return wrapping(compiler, "_param_slots", make)


def _each(change: Callable[[ParamSlot], ParamSlot]) -> Plant:
    return _slots(lambda slots: [change(slot) for slot in slots])


def _maps(change: Callable[[TensorMapSpec], TensorMapSpec]) -> Plant:
    def changed(slot: ParamSlot) -> ParamSlot:
        spec = slot.tensor_map
        return slot if spec is None else replace(slot, tensor_map=change(spec))

    return _each(changed)


def _other_argument(slots: list[ParamSlot]) -> list[ParamSlot]:
    """Swap the arguments of the first two parameters of one type."""
    for index, left in enumerate(slots):
        for other, right in enumerate(slots[index + 1 :], index + 1):
            if (left.type, left.tensor_map) == (right.type, None):
                slots[index] = replace(left, argument=right.argument, source=right.source)
                slots[other] = replace(right, argument=left.argument, source=left.source)
                return slots
    return slots


def _far(slots: list[ParamSlot]) -> list[ParamSlot]:
    last = slots[-1]
    return [*slots[:-1], replace(last, offset=last.offset + last.size_bytes)]


def _other_extent(slot: ParamSlot) -> ParamSlot:
    source = slot.source
    return replace(slot, source=source.replace("[0]", "[1]")) if ".shape" in source else slot


def _doubled(spec: TensorMapSpec) -> TensorMapSpec:
    return replace(spec, strides=tuple(f"{stride} * 2" for stride in spec.strides))


_PLANTS: tuple[tuple[str, str, Plant], ...] = (
    ("arguments swapped", "parameters are bound in another order", _slots(_other_argument)),
    ("a parameter at the wrong byte", "its alignment is not counted", _slots(_far)),
    (
        "another axis's extent is passed",
        "axes are counted from the other end",
        _each(_other_extent),
    ),
    (
        "extents of a map in the other order",
        "outermost first is taken for innermost first",
        _maps(lambda spec: replace(spec, shape=spec.shape[::-1])),
    ),
    ("strides of a map in wrong units", "elements are taken for twice their size", _maps(_doubled)),
    (
        "a map without its swizzle",
        "the mode is left at none",
        _maps(lambda spec: replace(spec, swizzle_bytes=0)),
    ),
    (
        "a box of half the rows",
        "the box is that of one of two copies",
        _maps(lambda spec: replace(spec, box=(max(1, spec.box[0] // 2), *spec.box[1:]))),
    ),
    (
        "a map one row too short",
        "a bound is taken for the last index",
        _maps(lambda spec: replace(spec, shape=(f"max(1, {spec.shape[0]} - 1)", *spec.shape[1:]))),
    ),
    (
        "what lies outside of a map is NaN",
        "the fill mode is that of another tensor",
        _maps(lambda spec: replace(spec, fill_nan=not spec.fill_nan)),
    ),
)


def _half_the_scratch(kernel: Kernel) -> None:
    kernel.scratch_bytes //= 2


def _without_part(index: int) -> Callable[[Any], Any]:
    """Return a change: leave out part `index` of a variant's launch condition for maps."""

    def make(launch_condition: Any) -> Any:
        def conditioned(*how: Any) -> Any:
            whole = launch_condition(*how)
            parts = list(expression.conjuncts(whole)) if whole is not None else []
            if index >= len(parts):
                return whole
            del parts[index]
            return reduce(lambda left, right: expression.Binary("and", left, right), parts)

        return conditioned

    return make


def _conditioned(make: Callable[[Any], Any]) -> Plant:
    new = make(condition.launch_condition)
    return together(*(replacing(module, "launch_condition", new) for module in (verify, planned)))


_OTHERS = (
    Mutation(
        "CTAs that wait for each other are not launched together",
        "nobody says that a kernel has a barrier of the grid",
        "turn_pieces",
        replacing(compiler, "_meets_grid", lambda _: False),
    ),
    Mutation(
        "half of the scratch memory",
        "its size is that of one of two slots",
        "add_groups",
        after_pass("insert_barriers", _half_the_scratch),
        "sm_90a",
    ),
    *(
        Mutation(
            f"maps are used without part {index + 1} of their condition",
            "what a map needs is not asked of the launch",
            "multiply",
            _conditioned(_without_part(index)),
            "sm_90a",
        )
        for index in range(7)
    ),
)

MUTATIONS = (
    *(
        Mutation(name, stands_for, "multiply_blocks", plant, "sm_90a")
        for name, stands_for, plant in _PLANTS
    ),
    *_OTHERS,
)
