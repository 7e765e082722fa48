"""Loads and stores: checks and conversions of pointers, masks and hints for `tile.load` and `tile.store`.

Truth values have no memory format of their own: a pointer to them is read and written as bytes.
Cache modifiers are kept without their dot (`ca`, `cg`, `cv`, `wb`, `cs`, `wt`), and eviction
policies by Triton's names (`evict_first`, `evict_last`); an empty string is the default of each.
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language import block_pointers
from aotc.frontend.language.convert import (
    Shape,
    bitcast,
    cast,
    common_shape,
    converted,
    spread,
    static_bool,
    static_str,
    to_value,
)
from aotc.frontend.values import BlockPointer, Operand, element, shape, show
from aotc.ir.core import Value
from aotc.ir.dialects import tile
from aotc.ir.types import FP8E4B15, I1, I8, U8, PointerType, ScalarType

_LOAD_CACHES = ("", ".ca", ".cg", ".cs", ".cv")
_STORE_CACHES = ("", ".wb", ".cg", ".cs", ".wt")
_EVICTIONS = ("", "evict_normal", "evict_first", "evict_last")


def pointer_argument(emit: Emitter, operand: Operand, name: str) -> tuple[Value, ScalarType]:
    """Return a pointer operand of tl.NAME and its pointee. Raises: CompileError."""
    value = to_value(emit, operand, f"a pointer for tl.{name}")
    kind = element(value)
    if not isinstance(kind, PointerType):
        raise mistake(
            f"tl.{name} takes a pointer or a tile of pointers, got {show(value)}",
            remedy=f"add offsets to a pointer argument: tl.{name}(x_ptr + offsets, …)",
        )
    bits = _MEMORY_TYPES.get(kind.pointee)
    if bits is not None:
        value, kind = bitcast(emit, value, PointerType(bits)), PointerType(bits)
    return value, kind.pointee


_MEMORY_TYPES = {I1: I8, FP8E4B15: U8}
"""Types of elements in memory, where they differ from the type in a kernel."""


def _to_memory_format(
    emit: Emitter, pointer: Operand, operand: Operand, extents: Shape, expected: str
) -> Operand:
    """Convert a value to its memory format, if the pointee has another one."""
    pointee = _pointee(pointer)
    if pointee is None or pointee not in _MEMORY_TYPES:
        return operand
    value = converted(emit, operand, pointee, extents, expected)
    return value if pointee == I1 else bitcast(emit, value, U8)


def _from_memory_format(emit: Emitter, pointer: Operand, value: Value) -> Value:
    """Convert a loaded value from its memory format to the pointee."""
    pointee = _pointee(pointer)
    if pointee == FP8E4B15:
        return bitcast(emit, value, FP8E4B15)
    return cast(emit, value, I1) if pointee == I1 else value


def _pointee(pointer: Operand) -> ScalarType | None:
    kind = element(pointer) if isinstance(pointer, Value) else None
    return kind.pointee if isinstance(kind, PointerType) else None


def _cache(operand: Operand, choices: tuple[str, ...]) -> str:
    if operand is None:
        return ""
    return static_str(operand, "cache_modifier", choices).removeprefix(".")


def _eviction(operand: Operand) -> str:
    if operand is None:
        return ""
    policy = static_str(operand, "eviction_policy", _EVICTIONS)
    return "" if policy == "evict_normal" else policy


def aligned_with(emit: Emitter, pointer: Value, operand: Operand, role: str, name: str) -> Value:
    """Broadcast a value or mask to its pointer's shape. Raises: CompileError if larger."""
    value = to_value(emit, operand, role)
    if not shape(pointer):
        if shape(value):
            raise mistake(
                f"{role} of tl.{name} is a tile, {show(value)}, but the pointer is a scalar",
                remedy="add offsets to the pointer to make it a tile of pointers",
            )
        return value
    return spread(emit, value, shape(pointer))


def mask_argument(emit: Emitter, pointer: Value, operand: Operand, name: str) -> Value:
    """Return a mask operand of tl.NAME in the pointer's shape. Raises: CompileError."""
    mask = aligned_with(emit, pointer, operand, "the mask", name)
    if element(mask) != I1:
        raise mistake(
            f"the mask of tl.{name} must be of truth values, got {show(mask)}",
            remedy="compare: `mask != 0`",
        )
    return mask


def _broadcast_pointers(emit: Emitter, pointer: Value, *others: Operand) -> Value:
    """Broadcast a tile of pointers to the common shape with its mask or value."""
    extents = shape(pointer)
    if not extents:
        return pointer
    for other in others:
        if isinstance(other, Value):
            extents = common_shape(extents, shape(other))
    return spread(emit, pointer, extents)


def check_width(name: str, pointer: Value, *others: Operand) -> None:
    """Refuse a store of a tile larger than its pointers: several lanes would write to one address.

    Raises: CompileError.
    """
    extents = shape(pointer)
    for other in others if extents else ():
        if isinstance(other, Value) and common_shape(extents, shape(other)) != extents:
            raise mistake(
                f"tl.{name} takes pointers of the value's shape, got {extents} for {shape(other)}",
                remedy="give each element its own address",
            )


def load(
    emit: Emitter,
    pointer: Operand,
    mask: Operand = None,
    other: Operand = None,
    *,
    boundary_check: Operand = (),
    padding_option: Operand = "",
    cache_modifier: Operand = "",
    eviction_policy: Operand = "",
    volatile: Operand = False,
) -> Value:
    """Load through pointers; where the mask is false, `other` or an undefined value."""
    hints = (
        _cache(cache_modifier, _LOAD_CACHES),
        _eviction(eviction_policy),
        static_bool(volatile, "volatile"),
    )
    if isinstance(pointer, BlockPointer):
        _check_unmasked("load", mask, other)
        access, inside = block_pointers.access(emit, pointer, boundary_check, "load")
        source = block_pointers.as_bytes(emit, access)
        fill = block_pointers.padding(emit, source, inside, padding_option)
        out = emit(tile.Load(source, inside, fill, *hints)).out
        return _from_memory_format(emit, access, out)
    _check_no_block("load", boundary_check, padding_option)
    if mask is None and other is not None:
        raise mistake(
            "`other` without a mask has no meaning", remedy="give a mask, or leave `other` out"
        )
    source, kind = pointer_argument(emit, pointer, "load")
    source = _broadcast_pointers(emit, source, mask, other)
    masked = None if mask is None else mask_argument(emit, source, mask, "load")
    filler = None
    if other is not None:
        if _pointee(pointer) == FP8E4B15:
            other = _to_memory_format(emit, pointer, other, shape(source), "`other`")
        scalar = converted(emit, other, kind, shape(source), "`other`")
        filler = aligned_with(emit, source, scalar, "`other`", "load")
    out = emit(tile.Load(source, masked, filler, *hints)).out
    return _from_memory_format(emit, pointer, out)


def _check_unmasked(name: str, mask: Operand, other: Operand = None) -> None:
    if mask is not None or other is not None:
        raise mistake(
            f"tl.{name} takes no mask for a block pointer",
            remedy="name the axes whose ends count: boundary_check=(0, 1)",
        )


def _check_no_block(name: str, boundary_check: Operand, padding_option: Operand = "") -> None:
    if boundary_check not in ((), None) or padding_option not in ("", None):
        raise mistake(
            f"boundary_check and padding_option of tl.{name} are for block pointers",
            remedy="give a mask and `other`",
        )


def store(
    emit: Emitter,
    pointer: Operand,
    value: Operand,
    mask: Operand = None,
    *,
    boundary_check: Operand = (),
    cache_modifier: Operand = "",
    eviction_policy: Operand = "",
) -> None:
    """Store a value, cast to the pointee, where the mask is true."""
    if isinstance(pointer, BlockPointer):
        _check_unmasked("store", mask)
        pointer, mask = block_pointers.access(emit, pointer, boundary_check, "store")
    else:
        _check_no_block("store", boundary_check)
    target, kind = pointer_argument(emit, pointer, "store")
    check_width("store", target, value, mask)
    role = "a value to store"
    value = _to_memory_format(emit, pointer, value, shape(target), role)
    content = converted(emit, value, kind, shape(target), role)
    content = aligned_with(emit, target, content, "the value", "store")
    masked = None if mask is None else mask_argument(emit, target, mask, "store")
    emit(
        tile.Store(
            target,
            content,
            masked,
            _cache(cache_modifier, _STORE_CACHES),
            _eviction(eviction_policy),
        )
    )


FUNCTIONS: dict[str, Callable[..., Operand]] = {"load": load, "store": store}
