"""The element type encoded in a tensor map: mostly the one of its tensor."""

from __future__ import annotations

from aotc.ir.core import Value
from aotc.ir.diagnostics import CompileError
from aotc.ir.dialects import tma
from aotc.ir.dialects.descriptor import BITWISE
from aotc.ir.types import I64, U64, ScalarType, TensorMapType


def encoded_element(tensor: Value) -> ScalarType:
    """Return the element type to encode in a tensor map.

    Reductions take their type from the map, and bitwise ones of int64 are an illegal instruction:
    seen on an H200. Bits have no sign, so the map is of uint64 then.

    Raises: CompileError if other reductions need the sign.
    """
    kind = tensor.type
    assert isinstance(kind, TensorMapType)
    reductions = [user for user in tensor.users if isinstance(user, tma.TmaReduce)]
    bitwise = [op for op in reductions if op.kind in BITWISE]
    if not bitwise or kind.element != I64:
        return kind.element
    ordered = next((op for op in reductions if op.kind not in BITWISE), None)
    if ordered is not None:
        message = f"atomic_{ordered.kind} and atomic_{bitwise[0].kind} of one descriptor of int64"
        remedy = "make a second descriptor of the tensor for one of them"
        raise CompileError(message, ordered.loc, remedy=remedy)
    return U64
