"""Lists of numbers, one for each axis of a tile: extents, strides and offsets of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language.convert import cast, to_scalar, to_value
from aotc.frontend.values import Operand, element, is_tuple, show
from aotc.ir.core import Value
from aotc.ir.types import ScalarType


def items(operand: Operand, role: str, rank: int, name: str) -> Sequence[Operand]:
    """Return the `rank` entries of a list argument of tl.NAME. Raises: CompileError."""
    if not is_tuple(operand) or len(operand) != rank:
        actual = f"{len(operand)}" if is_tuple(operand) else show(operand)
        raise mistake(
            f"tl.{name} takes {role} of {rank} axes, as its block_shape has, got {actual}"
        )
    return operand


def integer(emit: Emitter, item: Operand, role: str, name: str) -> Value:
    """Return an entry as a scalar integer, of the type it has. Raises: CompileError."""
    value = to_scalar(emit, to_value(emit, item, f"an entry of {role}"))
    kind = element(value)
    if not isinstance(kind, ScalarType) or not kind.is_int:
        raise mistake(f"the {role} of tl.{name} must be integers, got {show(value)}")
    return value


def integers(
    emit: Emitter, entries: Sequence[Operand], role: str, kind: ScalarType, name: str
) -> list[Value]:
    """Return entries as scalars of type `kind`. Raises: CompileError."""
    return [cast(emit, integer(emit, entry, role, name), kind) for entry in entries]
