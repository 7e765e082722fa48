"""Atomic updates of memory: operand checks and conversions for `tile.atomic_rmw` and `tile.atomic_cas`.

The types are Triton's. Addition takes integers of 32 and 64 bits and floats from 16 bits; minimum and
maximum take integers, fp32 and fp64. Bitwise operations take integers, exchanges 32 and 64 bits.
 Without `sem` an atomic is "acq_rel", without `scope` it holds for the "gpu".

An atomic load is an update without a change, an atomic store an exchange, so passes and `verify`
handle both as updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast as type_cast

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language.convert import bitcast, constant, converted, static_str
from aotc.frontend.language.memory import aligned_with, mask_argument, pointer_argument
from aotc.frontend.language.program import globaltimer
from aotc.frontend.values import Operand, shape, show, show_type
from aotc.ir.core import Block, Value
from aotc.ir.diagnostics import CompileError
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.types import I64, SCALARS, U16, U32, U64, PointerType, ScalarType

_SEMS = ("relaxed", "acquire", "release", "acq_rel")
_SCOPES = ("gpu", "cta", "sys")
_BITS = {16: U16, 32: U32, 64: U64}


def _order(
    sem: Operand, scope: Operand, sems: tuple[str, ...] = _SEMS, default: str = "acq_rel"
) -> tuple[tile.AtomicSem, tile.AtomicScope]:
    order = default if sem is None else static_str(sem, "sem", sems)
    reach = "gpu" if scope is None else static_str(scope, "scope", _SCOPES)
    return type_cast("tile.AtomicSem", order), type_cast("tile.AtomicScope", reach)


def _stored_operand(
    emit: Emitter, pointer: Value, operand: Operand, kind: ScalarType, name: str
) -> Value:
    """Return the operand to store, in the pointee's type and the pointer's shape."""
    value = converted(emit, operand, kind, shape(pointer), "a value for an atomic")
    return aligned_with(emit, pointer, value, "the value", name)


def _emit_update(
    emit: Emitter,
    name: str,
    kind: tile.AtomicKind,
    operands: tuple[Operand, Operand, Operand],
    order: tuple[tile.AtomicSem, tile.AtomicScope],
) -> Value:
    """Emit tl.NAME on a pointer, a value and a mask; return the old value."""
    pointer, val, mask = operands
    target, element = pointer_argument(emit, pointer, name)
    if not _supports(kind, element):
        allowed = [scalar for scalar in SCALARS.values() if _supports(kind, scalar)]
        raise _unsupported_type(name, element, ", ".join(map(show_type, allowed)))
    value = _stored_operand(emit, target, val, element, name)
    masked = None if mask is None else mask_argument(emit, target, mask, name)
    return emit(tile.AtomicRmw(target, value, kind, masked, *order)).out


def _supports(kind: tile.AtomicKind, element: ScalarType) -> bool:
    """Return whether Triton has the update for pointers; descriptors also take min and max of 16-bit floats."""
    is_half = element.is_float and element.bits == 16
    return tile.supports_atomic(kind, element) and not (is_half and kind in ("min", "max"))


def _unsupported_type(name: str, element: ScalarType, allowed: str) -> CompileError:
    return mistake(
        f"tl.{name} does not take a pointer to {show_type(element)}",
        remedy=f"it takes pointers to {allowed}",
    )


def _update(kind: tile.AtomicKind) -> Callable[..., Operand]:
    def run(
        emit: Emitter,
        pointer: Operand,
        val: Operand,
        mask: Operand = None,
        sem: Operand = None,
        scope: Operand = None,
    ) -> Operand:
        operands = pointer, val, mask
        return _emit_update(emit, f"atomic_{kind}", kind, operands, _order(sem, scope))

    return run


def atomic_cas(
    emit: Emitter,
    pointer: Operand,
    cmp: Operand,
    val: Operand,
    sem: Operand = None,
    scope: Operand = None,
) -> Value:
    """Replace the value in memory by `val` where it equals `cmp`; return the old value."""
    target, element = pointer_argument(emit, pointer, "atomic_cas")
    if not tile.supports_atomic("cas", element):
        raise mistake(
            f"tl.atomic_cas does not take a pointer to {show_type(element)}",
            remedy="it takes pointers to types of 16, 32 or 64 bits",
        )
    compare, value = (
        _stored_operand(emit, target, operand, element, "atomic_cas") for operand in (cmp, val)
    )
    return emit(tile.AtomicCas(target, compare, value, *_order(sem, scope))).out


# ---- loads and stores -------------------------------------------------------------------------


def atomic_load(
    emit: Emitter,
    pointer: Operand,
    mask: Operand = None,
    sem: Operand = None,
    scope: Operand = None,
) -> Value:
    """Load from memory atomically."""
    target, element = pointer_argument(emit, pointer, "atomic_load")
    bits = _BITS.get(element.bits)
    if bits is None:
        raise _unsupported_type("atomic_load", element, "types of 16, 32 or 64 bits")
    order = _order(sem, scope, ("acquire", "relaxed"), "acquire")
    words = bitcast(emit, target, PointerType(bits))
    zero = constant(emit, 0, bits, shape(target))
    if tile.supports_atomic("or", bits):
        masked = None if mask is None else mask_argument(emit, target, mask, "atomic_load")
        return bitcast(emit, emit(tile.AtomicRmw(words, zero, "or", masked, *order)).out, element)
    if mask is not None:
        raise _unsupported_type("atomic_load", element, "types of 32 or 64 bits, with a mask")
    return bitcast(emit, emit(tile.AtomicCas(words, zero, zero, *order)).out, element)


def atomic_store(
    emit: Emitter,
    pointer: Operand,
    val: Operand,
    mask: Operand = None,
    sem: Operand = None,
    scope: Operand = None,
) -> None:
    """Store to memory atomically."""
    order = _order(sem, scope, ("release", "relaxed"), "release")
    _emit_update(emit, "atomic_store", "xchg", (pointer, val, mask), order)


def atomic_poll(
    emit: Emitter,
    pointer: Operand,
    expected_value: Operand,
    sem: Operand = None,
    scope: Operand = None,
    timeout_ns: Operand = None,
) -> Value:
    """Poll memory until it holds the expected number; return False on a timeout."""
    target, element = pointer_argument(emit, pointer, "atomic_poll")
    if shape(target) or not element.is_int or element.bits not in _BITS:
        raise mistake(
            f"tl.atomic_poll waits for one integer of 16, 32 or 64 bits, got {show(target)}"
        )
    expected = _stored_operand(emit, target, expected_value, element, "atomic_poll")
    limit = None if timeout_ns is None else converted(emit, timeout_ns, I64, (), "a timeout")
    start = None if limit is None else globaltimer(emit)
    with emit.into(Block()) as before:
        current = atomic_load(emit, target, None, sem, scope)
        waits = emit(arith.Compare(current, expected, "ne")).out
        if limit is not None and start is not None:
            elapsed = emit(arith.Sub(globaltimer(emit), start)).out
            waits = emit(arith.And(waits, emit(arith.Compare(elapsed, limit, "lt")).out)).out
        emit(scf.Condition(waits, [current]))
    with emit.into(Block([element])) as after:
        emit(scf.Yield([]))
    last = emit(scf.While([], before, after)).outs[0]
    return emit(arith.Compare(last, expected, "eq")).out


FUNCTIONS: dict[str, Callable[..., Operand]] = {
    **{
        f"atomic_{kind}": _update(kind)
        for kind in ("add", "max", "min", "and", "or", "xor", "xchg")
    },
    "atomic_cas": atomic_cas,
    "atomic_load": atomic_load,
    "atomic_store": atomic_store,
    "atomic_poll": atomic_poll,
}
