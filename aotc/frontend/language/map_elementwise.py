"""`tl.map_elementwise`: a function of scalars for each element, with branches and loops of its own."""

from __future__ import annotations

from collections.abc import Callable

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language.convert import broadcast, static_int, to_value
from aotc.frontend.values import Builtin, Closure, Function, Operand, element, is_tuple, show
from aotc.ir.core import Block, Op, Value
from aotc.ir.diagnostics import at
from aotc.ir.dialects import scf
from aotc.ir.dialects.mapped import Map
from aotc.ir.types import TileType

_NAME = "tl.map_elementwise"


def map_elementwise(
    emit: Emitter, scalar_fn: Operand, *args: Operand, pack: Operand = 1
) -> Operand:
    """Apply a function of scalars to the elements of tiles, `pack` of each at a time.

    It takes `pack` elements of the first argument, then of the next, and returns as many of each
    result.
    """
    if not isinstance(scalar_fn, Function | Builtin | Closure | str):  # a text names one
        raise mistake(
            f"{_NAME} takes a @triton.jit function of scalars first, got {show(scalar_fn)}"
        )
    if not args:
        raise mistake(f"{_NAME} takes a function and at least one tile")
    count = static_int(pack, f"the pack of {_NAME}")
    if count < 1 or count & (count - 1):
        raise mistake(f"the pack of {_NAME} must be a power of two, got {count}")
    values = broadcast(emit, *(to_value(emit, arg, f"a tile for {_NAME}") for arg in args))
    if not isinstance(values[0].type, TileType):
        raise mistake(
            f"{_NAME} takes a tile, got {show(values)}", remedy="call the function of scalars"
        )
    body = Block([element(value) for value in values for _ in range(count)])
    with emit.into(body):
        returned = emit.call(scalar_fn, body.args)
        results = returned if is_tuple(returned) else (returned,)
        yielded = [to_value(emit, arg, f"a scalar from the function of {_NAME}") for arg in results]
        emit(scf.Yield(yielded))
    _check_results(yielded, count)
    _refuse_effects(body)
    outs = tuple(emit(Map(values, count, body)).outs)
    return outs if is_tuple(returned) else outs[0]


def _check_results(yielded: list[Value], count: int) -> None:
    """Check that results are scalars in whole groups of `pack`. Raises: CompileError."""
    for scalar in yielded:
        if isinstance(scalar.type, TileType):
            raise mistake(f"the function of {_NAME} must return scalars, it returns {show(scalar)}")
    groups = [yielded[start : start + count] for start in range(0, len(yielded), count)]
    if len(yielded) % count or any(
        scalar.type != group[0].type for group in groups for scalar in group
    ):
        raise mistake(
            f"the function of {_NAME} must return {count} scalars of one type for each result, "
            f"since pack is {count}; it returns {show(tuple(yielded))}"
        )


def _refuse_effects(body: Block) -> None:
    """Refuse ops with side effects, at their locations. Raises: CompileError."""
    for op in body.walk():
        if _has_effects(op):
            with at(op.loc):
                raise mistake(
                    f"the function of {_NAME} may only compute: whether an element's memory is "
                    "accessed, and when, would be open",
                    remedy="load before and store after, with a mask",
                )


def _has_effects(op: Op) -> bool:
    return not op.pure and not isinstance(op, scf.While)


FUNCTIONS: dict[str, Callable[..., Operand]] = {"map_elementwise": map_elementwise}
