"""Bugs in persistent CTAs: the set of programs and their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from aotc.ir.core import Kernel, Value
from aotc.ir.dialects import arith, scf
from aotc.ir.rewrite import Builder
from aotc.ir.types import I32
from tests.support.mutations.plant import Edit, Mutation, after_pass, found

_Bounds: TypeAlias = "tuple[Value, Value, Value]"


def _bounds(change: Callable[[Builder, Value, Value, Value], _Bounds]) -> Edit:
    """Give the loop over programs another start, end or step."""

    def edit(kernel: Kernel) -> None:
        if not kernel.is_persistent:  # the form without tensor maps
            return
        loop = next(op for op in kernel.body if isinstance(op, scf.For))
        build = Builder.before_op(loop)
        loop.set_slots(change(build, loop.lower, loop.upper, loop.step))

    return edit


def _without_the_last(build: Builder, first: Value, count: Value, step: Value) -> _Bounds:
    unit = build(arith.Constant(1, I32)).out
    return first, build(arith.Sub(count, unit)).out, step


def _in_double_steps(build: Builder, first: Value, count: Value, step: Value) -> _Bounds:
    return first, count, build(arith.Add(step, step)).out


def _until_its_like(build: Builder, first: Value, count: Value, step: Value) -> _Bounds:
    del build, count
    return first, step, step


def _by_columns(kernel: Kernel) -> None:
    """Divide by the other extent where a program's place in its row is found."""
    if not kernel.is_persistent:
        return
    place_in_row = found(kernel, arith.Rem)[0]
    columns = kernel.body.args[-2]
    place_in_row.set_slots([place_in_row.slots[0], columns])


_EDITS: tuple[tuple[str, str, Edit], ...] = (
    (
        "the last program is left out",
        "a CTA stops before the number of programs, less one",
        _bounds(_without_the_last),
    ),
    (
        "every second program is left out",
        "a CTA is counted twice",
        _bounds(_in_double_steps),
    ),
    (
        "a CTA runs one program",
        "the loop ends with the number of CTAs, not of programs",
        _bounds(_until_its_like),
    ),
    (
        "programs are numbered by columns",
        "a program's number is divided by the wrong extent",
        _by_columns,
    ),
)

MUTATIONS = tuple(
    Mutation(name, stands_for, "multiply", after_pass("make_persistent", edit), "sm_90a")
    for name, stands_for, edit in _EDITS
)
