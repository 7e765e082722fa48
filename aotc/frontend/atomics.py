"""Atomic updates of memory: operands brought to what `tile.atomic_rmw` and `tile.atomic_cas` take.

The types each function takes are Triton's: sums of integers of 32 and 64 bits and of floats from
16 bits, minimum and maximum of integers and of fp32 and fp64, logic of integers, exchanges of 32
and 64 bits. Without `sem` an atomic is "acq_rel", without `scope` it holds for the "gpu".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast as type_cast

from aotc.frontend.convert import converted, static_str
from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.memory import beside, mask_argument, pointer_argument
from aotc.frontend.values import Operand, shape, show_type
from aotc.ir.core import Value
from aotc.ir.dialects import tile
from aotc.ir.types import SCALARS, ScalarType

_SEMS = ("relaxed", "acquire", "release", "acq_rel")
_SCOPES = ("gpu", "cta", "sys")


def _order(sem: Operand, scope: Operand) -> tuple[tile.AtomicSem, tile.AtomicScope]:
    order = "acq_rel" if sem is None else static_str(sem, "sem", _SEMS)
    reach = "gpu" if scope is None else static_str(scope, "scope", _SCOPES)
    return type_cast("tile.AtomicSem", order), type_cast("tile.AtomicScope", reach)


def _content(emit: Emitter, pointer: Value, operand: Operand, kind: ScalarType, name: str) -> Value:
    """Return a value that goes to memory, in the pointee's type and the pointer's shape."""
    value = converted(emit, operand, kind, shape(pointer), "a value for an atomic")
    return beside(emit, pointer, value, "the value", name)


def _update(kind: tile.AtomicKind) -> Callable[..., Operand]:
    name = f"atomic_{kind}"

    def run(
        emit: Emitter,
        pointer: Operand,
        val: Operand,
        mask: Operand = None,
        sem: Operand = None,
        scope: Operand = None,
    ) -> Operand:
        target, element = pointer_argument(emit, pointer, name)
        if not tile.supports_atomic(kind, element):
            known = [each for each in SCALARS.values() if tile.supports_atomic(kind, each)]
            raise mistake(
                f"tl.{name} does not take a pointer to {show_type(element)}",
                remedy=f"it takes pointers to {', '.join(map(show_type, known))}",
            )
        value = _content(emit, target, val, element, name)
        masked = None if mask is None else mask_argument(emit, target, mask, name)
        return emit(tile.AtomicRmw(target, value, kind, masked, *_order(sem, scope))).out

    return run


def atomic_cas(
    emit: Emitter,
    pointer: Operand,
    cmp: Operand,
    val: Operand,
    sem: Operand = None,
    scope: Operand = None,
) -> Value:
    """Replace what is in memory by `val` where it equals `cmp`; return what was there."""
    target, element = pointer_argument(emit, pointer, "atomic_cas")
    if not tile.supports_atomic("cas", element):
        raise mistake(
            f"tl.atomic_cas does not take a pointer to {show_type(element)}",
            remedy="it takes pointers to types of 16, 32 or 64 bits",
        )
    compare, value = (_content(emit, target, each, element, "atomic_cas") for each in (cmp, val))
    return emit(tile.AtomicCas(target, compare, value, *_order(sem, scope))).out


FUNCTIONS: dict[str, Callable[..., Operand]] = {
    **{
        f"atomic_{kind}": _update(kind)
        for kind in ("add", "max", "min", "and", "or", "xor", "xchg")
    },
    "atomic_cas": atomic_cas,
}
