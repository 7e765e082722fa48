"""Find why neighbours are not accessed together, and the promises that would allow it."""

from __future__ import annotations

from functools import partial

from aotc.ir.core import Kernel, Op, Value
from aotc.ir.dialects import arith
from aotc.ir.types import PointerType, TileType, element_of
from aotc.schedule.analysis.axis import AxisAnalysis
from aotc.schedule.analysis.global_order import accessed_pointer
from aotc.schedule.analysis.promises import find_promises
from aotc.schedule.remarks import Reason

_MAX_ADDRESS_OPS = 256


def narrow_cause(op: Op, kernel: Kernel, infos: AxisAnalysis, min_elems: int) -> str:
    """Return why an access moves fewer than `min_elems` elements, with a remedy if there is one."""
    cause = _obstacle(op, min_elems, infos)
    if cause is None:
        return Reason.FEW_ELEMENTS()
    remedy = find_promises(kernel, _operands(op), partial(_is_wide, op, min_elems))
    return f"{cause}; {remedy}" if remedy else cause


def _operands(op: Op) -> list[Value]:
    values = (accessed_pointer(op), getattr(op, "mask", None))
    return [value for value in values if isinstance(value, Value)]


def _is_wide(op: Op, min_elems: int, infos: AxisAnalysis) -> bool:
    return _obstacle(op, min_elems, infos) is None


def _obstacle(op: Op, min_elems: int, infos: AxisAnalysis) -> str | None:
    """Return why `min_elems` neighbours cannot be accessed together, or None if they can."""
    pointer, *masks = _operands(op)
    facts, element = infos[pointer], element_of(pointer.type)
    assert isinstance(element, PointerType)
    fast = max(range(facts.rank), key=lambda axis: (facts.contiguity[axis], axis))
    run_elems = facts.contiguity[fast]
    if run_elems < min_elems:
        if _divides_unknown_sign(pointer, infos):
            return Reason.SIGN_UNKNOWN()
        return Reason.NOT_CONTIGUOUS() if run_elems == 1 else Reason.SHORT_RUNS(elems=run_elems)
    size_bytes = min_elems * element.pointee.size_bytes
    if facts.divisibility[fast] < size_bytes:
        return Reason.ROWS_NOT_ALIGNED(size=size_bytes)
    if any(infos[mask].constancy[fast] < min_elems for mask in masks):
        return Reason.MASK_DIFFERS()
    return None


def _divides_unknown_sign(pointer: Value, infos: AxisAnalysis) -> bool:
    """Return whether an address has a quotient or remainder of a tile that may be negative."""
    worklist, seen = [pointer], {pointer: None}
    while worklist and len(seen) < _MAX_ADDRESS_OPS:
        op = worklist.pop().op
        if op is None:
            continue
        if isinstance(op, arith.Div | arith.Rem) and not infos[op.operands[0]].nonnegative:
            return True
        for value in op.operands:
            if isinstance(value.type, TileType) and value not in seen:
                seen[value] = None
                worklist.append(value)
    return False
