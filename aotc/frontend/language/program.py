"""Functions about the program instance: its id in the grid, checks, dependent launch."""

from __future__ import annotations

from collections.abc import Callable

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language import math_functions, operators
from aotc.frontend.language.convert import (
    bitcast,
    cast,
    static_bool,
    static_int,
    static_str,
    to_value,
)
from aotc.frontend.values import Operand, element, is_tuple, show, text_of
from aotc.ir.core import Value
from aotc.ir.dialects import assembly, grid, tile
from aotc.ir.types import FP32, FP64, I1, I32, I64, U32, U64, PointerType

_MAX_GRID_AXES = 3


def _grid_axis(operand: Operand, name: str) -> int:
    axis = static_int(operand, f"the axis of tl.{name}")
    if not 0 <= axis < _MAX_GRID_AXES:
        raise mistake(f"the axis of tl.{name} must be 0, 1 or 2, got {axis}")
    return axis


def program_id(emit: Emitter, axis: Operand) -> Value:
    """Return the id of this program instance along a grid axis."""
    return emit(tile.ProgramId(_grid_axis(axis, "program_id"))).out


def num_programs(emit: Emitter, axis: Operand) -> Value:
    """Return the extent of the grid along an axis."""
    return emit(tile.NumPrograms(_grid_axis(axis, "num_programs"))).out


# ---- checks and messages ----------------------------------------------------------------------


def assume(emit: Emitter, cond: Operand) -> None:
    """Promise a condition."""
    if not isinstance(cond, Value):
        if not static_bool(cond, "the assumption"):
            raise mistake("tl.assume is given a condition that is known to be false")
        return
    emit(tile.Assume(operators.truth(emit, cond, "tl.assume")))


def static_assert(emit: Emitter, cond: Operand, msg: Operand = "") -> None:
    """Stop the compilation unless a condition known at compile time holds."""
    del emit
    if not static_bool(cond, "the condition of tl.static_assert"):
        detail = f": {msg}" if msg else ""
        raise mistake(f"static assertion failed{detail}")


def static_print(
    emit: Emitter,
    *values: Operand,
    sep: Operand = " ",
    end: Operand = "\n",
    file: Operand = None,
    flush: Operand = False,
) -> None:
    """Print while compiling."""
    del end, file, flush
    texts = [
        show(value) if isinstance(value, Value) or is_tuple(value) else text_of(value)
        for value in values
    ]
    emit.prints.append(static_str(sep, "sep").join(texts))


def device_assert(emit: Emitter, cond: Operand, msg: Operand = "", mask: Operand = None) -> None:
    """Stop the program unless the condition holds in every element (where the mask is true)."""
    message = static_str(msg, "the message of an assertion")
    if not isinstance(cond, Value):
        if not static_bool(cond, "the condition") and mask is None:
            raise mistake(f"the assertion is known to fail{': ' + message if message else ''}")
        if static_bool(cond, "the condition"):
            return
    if not emit.debug:
        return
    condition = math_functions.logical_argument(emit, cond)
    if mask is not None:
        unmasked = operators.logical_not(emit, to_value(emit, mask, "a mask"))
        condition = operators.bit_or(emit, condition, unmasked)
    if element(condition) != I1:
        raise mistake(f"an assertion takes truth values, got {show(condition)}")
    emit(tile.Assert(condition, message))


def device_print(emit: Emitter, prefix: Operand, *args: Operand, hex: Operand = False) -> None:  # noqa: A002
    """Print values while the kernel runs, each element with the program ids and its index."""
    text = static_str(prefix, "the text of tl.device_print")
    if not text.isascii():
        raise mistake(f"tl.device_print prints ASCII, got {text!r}")
    in_hex = static_bool(hex, "hex")
    x, y, z = (emit(tile.ProgramId(axis)).out for axis in range(_MAX_GRID_AXES))
    if not args:
        emit(tile.Print(x, y, z, None, text and f" {text.strip()}"))
    for number, arg in enumerate(args):
        position = f"(operand {number}) " if len(args) > 1 else ""
        value = _printable(emit, to_value(emit, arg, "a value to print"))
        name = text.strip().removesuffix(":")
        emit(tile.Print(x, y, z, value, f" {name}: {position}", in_hex))


def _printable(emit: Emitter, value: Value) -> Value:
    """Cast a number to a printable type, at least 32 bits wide."""
    kind = element(value)
    if isinstance(kind, PointerType):
        return bitcast(emit, value, U64)
    if kind.is_float:
        return value if kind == FP64 else cast(emit, value, FP32)
    if kind.bits < I32.bits:
        return cast(emit, value, I32 if kind.is_signed else U32)
    return value


def debug_barrier(emit: Emitter) -> None:
    """Wait for all threads of the program instance."""
    emit(tile.Barrier())


# ---- programmatic dependent launch ------------------------------------------------------------


def gdc_wait(emit: Emitter) -> None:
    """Wait for the grids before this one."""
    emit(grid.GridWait())


def gdc_launch_dependents(emit: Emitter) -> None:
    """Let the next grid start."""
    emit(grid.LaunchDependents())


# ---- special registers and launch facts -------------------------------------------------------


def globaltimer(emit: Emitter) -> Value:
    """Return the time of the GPU's clock, in nanoseconds, an i64."""
    return emit(assembly.VolatileAsm("mov.u64 $0, %globaltimer;", "=l", (I64,), 1, ())).outs[0]


def smid(emit: Emitter) -> Value:
    """Return the program's multiprocessor id, an i32."""
    return emit(assembly.InlineAsm("mov.u32 $0, %smid;", "=r", (I32,), 1, ())).outs[0]


def num_warps(emit: Emitter) -> int:
    """Return the number of computing warps."""
    return emit.num_warps


def num_threads(emit: Emitter) -> int:
    """Return the number of computing threads."""
    return 32 * emit.num_warps


FUNCTIONS: dict[str, Callable[..., Operand]] = {
    "program_id": program_id,
    "num_programs": num_programs,
    "assume": assume,
    "static_assert": static_assert,
    "static_print": static_print,
    "device_assert": device_assert,
    "device_print": device_print,
    "debug_barrier": debug_barrier,
}

CUDA_FUNCTIONS: dict[str, Callable[..., Operand]] = {
    "gdc_wait": gdc_wait,
    "gdc_launch_dependents": gdc_launch_dependents,
    "globaltimer": globaltimer,
    "smid": smid,
    "num_warps": num_warps,
    "num_threads": num_threads,
}
"""Functions of `tl.extra.cuda`."""
