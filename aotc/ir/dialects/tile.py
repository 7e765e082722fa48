"""Tiles: making them, reshaping them, reducing them, moving them to and from memory.

The frontend produces these ops. The shape ops are also gpu IR: on a tile with a layout each of them
only renames elements, so its result layout follows from the operand's and nothing moves. Memory
ops, reductions and scans are turned into their explicit counterparts in `gpu`.

Invariant: result layouts are inferred by the layout algebra; an op that would have to move data
cannot be built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Literal, get_args

from aotc.ir.core import Block, Op, Value, attribute, block, operand, operands, result, results
from aotc.ir.effects import Resource, Trait, orders, reads, writes
from aotc.ir.layout import LinearLayout
from aotc.ir.types import (
    BF16,
    FP8E4NV,
    FP8E5,
    FP16,
    FP32,
    FP64,
    I1,
    I8,
    I32,
    I64,
    U8,
    U32,
    U64,
    ElementType,
    PointerType,
    ScalarType,
    TileType,
    Type,
    element_of,
)

Axis = int


def tile_type(op: Op, value: Value) -> TileType:
    """Return the type of a tile. Raises: IRError for any other value."""
    if not isinstance(value.type, TileType):
        op.error(f"expected a tile, got {value.type}")
    return value.type


# ---- sources ----------------------------------------------------------------------------------


class ProgramId(Op, opcode="tile.program_id", pure=True, traits=(Trait.SOURCE,)):
    """The index of this program along a grid axis."""

    axis: Axis = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        self.expect(self.axis in (0, 1, 2), f"axis {self.axis} is not 0, 1 or 2")
        return (I32,)


class NumPrograms(Op, opcode="tile.num_programs", pure=True, traits=(Trait.SOURCE,)):
    """The extent of the grid along an axis."""

    axis: Axis = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        self.expect(self.axis in (0, 1, 2), f"axis {self.axis} is not 0, 1 or 2")
        return (I32,)


class Arange(Op, opcode="tile.arange", pure=True, traits=(Trait.SOURCE,)):
    """The i32 tile (start, start+1, …, end-1)."""

    start: int = attribute()
    end: int = attribute()
    layout: LinearLayout | None = attribute(default=None)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        extent = self.end - self.start
        self.expect(extent > 0 and extent & (extent - 1) == 0, f"extent {extent} is no power of 2")
        return (TileType(I32, (extent,), self.layout),)


class Splat(Op, opcode="tile.splat", pure=True, traits=(Trait.SHAPE_ONLY, Trait.BROADCAST)):
    """A scalar in every element of a tile."""

    value: Value = operand()
    shape: tuple[int, ...] = attribute()
    layout: LinearLayout | None = attribute(default=None)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        kind = self.value.type
        if not isinstance(kind, ScalarType | PointerType):
            self.error(f"expected a scalar, got {kind}")
        return (TileType(kind, self.shape, self.layout),)


# ---- shapes -----------------------------------------------------------------------------------


class Broadcast(Op, opcode="tile.broadcast", pure=True, traits=(Trait.SHAPE_ONLY, Trait.BROADCAST)):
    """A tile repeated along its axes of extent 1.

    `layout` is the result's. The operand's must be the same with the repeated axes dropped, so that
    every thread already holds the elements it repeats.
    """

    value: Value = operand()
    shape: tuple[int, ...] = attribute()
    layout: LinearLayout | None = attribute(default=None)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        source = tile_type(self, self.value)
        fits = len(source.shape) == len(self.shape) and all(
            have in (1, want) for have, want in zip(source.shape, self.shape, strict=True)
        )
        self.expect(fits, f"{source.shape} does not broadcast to {self.shape}")
        if self.layout is not None and source.layout is not None:
            layout = self.layout.broadcast_source(source.shape)
            if source.layout != layout:
                self.error(f"operand has {source.layout}, needs {layout}")
        return (TileType(source.element, self.shape, self.layout),)


class ExpandDims(Op, opcode="tile.expand_dims", pure=True, traits=(Trait.VIEW, Trait.SHAPE_ONLY)):
    """A tile with a new axis of extent 1 at `axis`."""

    value: Value = operand()
    axis: Axis = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        source = tile_type(self, self.value)
        self.expect(0 <= self.axis <= len(source.shape), f"axis {self.axis} is out of range")
        shape = (*source.shape[: self.axis], 1, *source.shape[self.axis :])
        layout = None if source.layout is None else source.layout.expand_dims(self.axis)
        return (TileType(source.element, shape, layout),)


class Reshape(Op, opcode="tile.reshape", pure=True, traits=(Trait.VIEW, Trait.SHAPE_ONLY)):
    """The same elements in row-major order under another shape."""

    value: Value = operand()
    shape: tuple[int, ...] = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        source = tile_type(self, self.value)
        self.expect(
            prod(source.shape) == prod(self.shape), f"{source.shape} does not fill {self.shape}"
        )
        layout = None if source.layout is None else source.layout.reshape(self.shape)
        return (TileType(source.element, self.shape, layout),)


class Trans(Op, opcode="tile.trans", pure=True, traits=(Trait.VIEW, Trait.SHAPE_ONLY)):
    """The tile with its axes in another order: result axis `i` is operand axis `order[i]`."""

    value: Value = operand()
    order: tuple[int, ...] = attribute()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        source = tile_type(self, self.value)
        self.expect(
            sorted(self.order) == list(range(len(source.shape))),
            f"{self.order} does not permute {len(source.shape)} axes",
        )
        layout = None if source.layout is None else source.layout.transpose(self.order)
        shape = tuple(source.shape[axis] for axis in self.order)
        return (TileType(source.element, shape, layout),)


class Join(Op, opcode="tile.join", pure=True, traits=(Trait.SHAPE_ONLY,)):
    """Two tiles joined along a new last axis of extent 2."""

    lhs: Value = operand()
    rhs: Value = operand()
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        source = tile_type(self, self.lhs)
        if self.rhs.type != source:
            self.error(f"operands are {source} and {self.rhs.type}")
        layout = None if source.layout is None else source.layout.join()
        return (TileType(source.element, (*source.shape, 2), layout),)


class Split(Op, opcode="tile.split", pure=True, traits=(Trait.SHAPE_ONLY,)):
    """The two halves of a tile along its last axis of extent 2.

    With a layout, one thread must hold both halves of a pair in its registers.
    """

    value: Value = operand()
    lhs: Value = result()
    rhs: Value = result()

    def infer(self) -> Sequence[Type]:
        source = tile_type(self, self.value)
        self.expect(source.shape[-1:] == (2,), f"the last axis of {source.shape} is not 2")
        layout = None if source.layout is None else source.layout.split()
        half = TileType(source.element, source.shape[:-1], layout)
        return (half, half)


# ---- memory -----------------------------------------------------------------------------------


def check_access(
    op: Op, pointer: Value, mask: Value | None, value: Value | None
) -> TileType | Type:
    """Check a memory access and return the type of the data."""
    pointee = element_of(pointer.type)
    if not isinstance(pointee, PointerType):
        op.error(f"{pointer.type} is not a pointer")
    content: Type = pointee.pointee
    if isinstance(pointer.type, TileType):
        content = replace(pointer.type, element=pointee.pointee)
    masked = replace(content, element=I1) if isinstance(content, TileType) else I1
    if mask is not None and mask.type != masked:
        op.error(f"the mask is {mask.type}, expected {masked}")
    if value is not None and value.type != content:
        op.error(f"the value is {value.type}, expected {content}")
    return content


class Load(Op, opcode="tile.load", effects=(reads(Resource.GLOBAL, of="pointer"),)):
    """Load through pointers; where the mask is false the result is `other`, or undefined.

    `cache` is a cache operator of PTX without its dot, such as "cg", `eviction` a priority such as
    "evict_first"; an empty one leaves the choice to the hardware.
    """

    pointer: Value = operand()
    mask: Value | None = operand(default=None)
    other: Value | None = operand(default=None)
    cache: str = attribute(default="")
    eviction: str = attribute(default="")
    volatile: bool = attribute(default=False)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        return (check_access(self, self.pointer, self.mask, self.other),)


class Store(Op, opcode="tile.store", effects=(writes(Resource.GLOBAL, of="pointer"),)):
    """Write the value where the mask is true; `cache` and `eviction` as for a load."""

    pointer: Value = operand()
    value: Value = operand()
    mask: Value | None = operand(default=None)
    cache: str = attribute(default="")
    eviction: str = attribute(default="")

    def infer(self) -> Sequence[Type]:
        check_access(self, self.pointer, self.mask, self.value)
        return ()


# ---- atomics ----------------------------------------------------------------------------------

AtomicKind = Literal["add", "max", "min", "and", "or", "xor", "xchg"]
AtomicSem = Literal["relaxed", "acquire", "release", "acq_rel"]
AtomicScope = Literal["cta", "gpu", "sys"]


def supports_atomic(kind: AtomicKind | Literal["cas"], element: ScalarType) -> bool:
    """Return whether there is an atomic `kind` on memory of `element`.

    Adding, minimum and maximum are for integers of 32 and 64 bits and every float of 16 bits or
    more; exchange for all of 32 and 64 bits; logic for such integers only; compare-and-swap, which
    compares bits, for all of 16 bits or more.
    """
    if element.bits == 16:
        return kind == "cas" or (kind in ("add", "min", "max") and element.is_float)
    return element.bits in (32, 64) and (element.is_int or kind not in ("and", "or", "xor"))


def check_atomic(op: Op, kind: AtomicKind | Literal["cas"], content: Type, scope: str) -> None:
    """Check for an atomic `kind` on `content`, among the threads of `scope`."""
    element = element_of(content)
    is_kind = kind in (*get_args(AtomicKind), "cas")
    fits = is_kind and isinstance(element, ScalarType) and supports_atomic(kind, element)
    op.expect(fits, f"there is no atomic {kind} of {element}")
    check_scope(op, scope)


def check_scope(op: Op, scope: str) -> None:
    """Check the scope of a memory order."""
    op.expect(scope in get_args(AtomicScope), f"unknown scope {scope!r}")


def check_sem(op: Op, sem: str) -> None:
    """Check the order of an atomic to other accesses."""
    op.expect(sem in get_args(AtomicSem), f"unknown memory order {sem!r}")


class AtomicRmw(
    Op,
    opcode="tile.atomic_rmw",
    effects=(
        reads(Resource.GLOBAL, of="pointer"),
        writes(Resource.GLOBAL, of="pointer"),
        orders(Resource.GLOBAL),
    ),
    traits=(Trait.ATOMIC,),
):
    """Combine each value with the memory at its pointer atomically; return the old contents.

    Elements with the same address are combined one at a time, in any order. Floats are compared by
    sign and magnitude of their bits, so -0 is less than 0 and a NaN is beyond the infinity of its
    sign. Where the mask is false, memory is left alone and the result is undefined.
    """

    pointer: Value = operand()
    value: Value = operand()
    kind: AtomicKind = attribute()
    mask: Value | None = operand(default=None)
    sem: AtomicSem = attribute(default="acq_rel")
    scope: AtomicScope = attribute(default="gpu")
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        content = check_access(self, self.pointer, self.mask, self.value)
        check_atomic(self, self.kind, content, self.scope)
        check_sem(self, self.sem)
        return (content,)


class AtomicCas(
    Op,
    opcode="tile.atomic_cas",
    effects=(
        reads(Resource.GLOBAL, of="pointer"),
        writes(Resource.GLOBAL, of="pointer"),
        orders(Resource.GLOBAL),
    ),
    traits=(Trait.ATOMIC,),
):
    """Replace the memory at each pointer by the value where it equals `compare`, bit for bit.

    The result is the old contents, replaced or not.
    """

    pointer: Value = operand()
    compare: Value = operand()
    value: Value = operand()
    sem: AtomicSem = attribute(default="acq_rel")
    scope: AtomicScope = attribute(default="gpu")
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        content = check_access(self, self.pointer, None, self.value)
        check_atomic(self, "cas", content, self.scope)
        check_sem(self, self.sem)
        self.expect(self.compare.type == content, f"compares {self.compare.type} with {content}")
        return (content,)


# ---- dots -------------------------------------------------------------------------------------

InputPrecision = Literal["tf32", "tf32x3", "bf16x3", "bf16x6", "ieee"]

_FP8 = (FP8E4NV, FP8E5)
_DOT_RESULTS: dict[ElementType, tuple[ScalarType, ...]] = {
    I8: (I32,),
    U8: (I32,),
    FP8E4NV: (FP32, FP16),
    FP8E5: (FP32, FP16),
    FP16: (FP32, FP16),
    BF16: (FP32,),
    FP32: (FP32,),
    FP64: (FP64,),
}


def dot_results(a: ElementType, b: ElementType) -> tuple[ScalarType, ...]:
    """Return the accumulator types of a dot of `a` and `b`, the usual one first.

    Operands have one type, but the two fp8 formats may mix.
    """
    return _DOT_RESULTS.get(a, ()) if a == b or (a in _FP8 and b in _FP8) else ()


def check_dot(op: Op, a: Value, b: Value, acc: Value, input_precision: str) -> TileType:
    """Check the operands of a dot; return the type of its result."""
    left, right, out = (tile_type(op, value) for value in (a, b, acc))
    op.expect(len(left.shape) in (2, 3), f"operands of {len(left.shape)} axes")
    fits = left.shape[-1:] == right.shape[-2:-1] and left.shape[:-2] == right.shape[:-2]
    fits &= out.shape == (*left.shape[:-1], right.shape[-1])
    op.expect(fits, f"{left.shape} x {right.shape} + {out.shape} do not fit")
    is_supported = out.element in dot_results(left.element, right.element)
    op.expect(is_supported, f"no dot of {left.element} and {right.element} in {out.element}")
    is_supported = input_precision in get_args(InputPrecision)
    op.expect(is_supported, f"unknown input precision {input_precision!r}")
    return out


class Dot(Op, opcode="tile.dot", pure=True, traits=(Trait.DOT,)):
    """Return `acc + dot(a, b)`: (M, N) + (M, K) x (K, N).

    All three may have one leading axis, a batch. Products of float elements are exact and are
    accumulated in the type of `acc` in any order; integers wrap.

    `input_precision` is for fp32 operands only. "ieee" multiplies them as they are; "tf32" keeps
    the first 10 bits of their mantissas, as tensor cores do. "tf32x3" adds two more dots, each of
    one operand with the dropped bits of the other, for about 21 bits. "bf16x3" and "bf16x6"
    multiply sums of two and three bf16 numbers, without the smallest products: about 16 and 24
    bits.

    For fp8 operands at least every `max_num_imprecise_acc` elements of K are promoted to a full
    fp32 accumulator; 0 leaves it to the hardware. With `num_columns`, only the first so many
    columns of N are used, and the others of the result are undefined.
    """

    a: Value = operand()
    b: Value = operand()
    acc: Value = operand()
    input_precision: InputPrecision = attribute(default="tf32")
    max_num_imprecise_acc: int = attribute(default=0)
    num_columns: int = attribute(default=0)
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        return (check_dot(self, self.a, self.b, self.acc, self.input_precision),)


# ---- reductions -------------------------------------------------------------------------------


def check_combine(op: Op, combine: Block, inputs: Sequence[Value]) -> list[TileType]:
    """Check the combine block of a reduction or scan over `inputs`; return their types.

    The block takes the accumulated elements, then the next ones, and yields the combined ones.
    """
    types = [tile_type(op, value) for value in inputs]
    op.expect(bool(types), "needs at least one operand")
    op.expect(
        len({(kind.shape, kind.layout) for kind in types}) == 1,
        "operands differ in shape or layout",
    )
    elements = [kind.element for kind in types]
    op.expect([arg.type for arg in combine.args] == elements * 2, "wrong combine arguments")
    yielded = [value.type for value in combine.terminator.operands]
    op.expect(yielded == elements, "combine yields the wrong types")
    return types


class Reduce(Op, opcode="tile.reduce", pure=True):
    """Tiles reduced along an axis; `combine` is associative and commutative."""

    inputs: Sequence[Value] = operands()
    axis: Axis = attribute()
    combine: Block = block()
    outs: Sequence[Value] = results()

    def infer(self) -> Sequence[Type]:
        types = check_combine(self, self.combine, self.inputs)
        self.expect(0 <= self.axis < len(types[0].shape), f"axis {self.axis} is out of range")
        return [reduced(kind, self.axis) for kind in types]


def reduced(kind: TileType, axis: int) -> Type:
    """Return the type of `kind` without `axis`: a scalar when no axis is left.

    Registers that differ only along the axis become one register of the result.
    """
    shape = kind.shape[:axis] + kind.shape[axis + 1 :]
    if not shape:
        return kind.element
    layout = None if kind.layout is None else kind.layout.reduce(axis).remove_zero_bases()
    return TileType(kind.element, shape, layout)


class Scan(Op, opcode="tile.scan", pure=True):
    """Running combination along an axis, in order, or from the end if `reverse`."""

    inputs: Sequence[Value] = operands()
    axis: Axis = attribute()
    combine: Block = block()
    reverse: bool = attribute(default=False)
    outs: Sequence[Value] = results()

    def infer(self) -> Sequence[Type]:
        types = check_combine(self, self.combine, self.inputs)
        self.expect(0 <= self.axis < len(types[0].shape), f"axis {self.axis} is out of range")
        return types


# ---- facts and checks -------------------------------------------------------------------------


class Hint(Op, opcode="tile.hint", pure=True, traits=(Trait.ELEMENTWISE, Trait.SAME_VALUES)):
    """The operand, with the user's promises about it, one number for each axis.

    `divisibility` of the first element of a run, `contiguity` the length of runs of consecutive
    values, `constancy` of runs of equal values; an empty tuple promises nothing.
    """

    value: Value = operand()
    divisibility: tuple[int, ...] = attribute(default=())
    contiguity: tuple[int, ...] = attribute(default=())
    constancy: tuple[int, ...] = attribute(default=())
    out: Value = result()

    def infer(self) -> Sequence[Type]:
        return (self.value.type,)


class Assume(
    Op, opcode="tile.assume", effects=(writes(Resource.CONTROL),), traits=(Trait.NO_INSTRUCTION,)
):
    """The user's promise of a true condition."""

    condition: Value = operand()


class Assert(
    Op,
    opcode="tile.assert",
    effects=(
        writes(Resource.CONTROL),
        orders(Resource.GLOBAL),
    ),
    traits=(Trait.MAY_TRAP,),
):
    """Trap with a message unless the condition holds in every element."""

    condition: Value = operand()
    message: str = attribute(default="")


_PRINTED = (I32, U32, I64, U64, FP32, FP64)
_WIDE_BITS = 64


class Print(Op, opcode="tile.print", effects=(writes(Resource.OUTPUT),)):
    """Print each element once, after the program ids (x, y, z) and the element's index.

    Without a value, the prefix alone. `hex` is for the digits of base 16.
    """

    x: Value = operand()
    y: Value = operand()
    z: Value = operand()
    value: Value | None = operand(default=None)
    prefix: str = attribute(default="")
    hex: bool = attribute(default=False)

    def infer(self) -> Sequence[Type]:
        are_numbers = all(operand.type == I32 for operand in (self.x, self.y, self.z))
        self.expect(are_numbers, "takes the numbers of a program as i32")
        if self.value is not None:
            element = element_of(self.value.type)
            self.expect(element in _PRINTED, f"prints numbers of 32 or 64 bits, not {element}")
        return ()

    @property
    def text(self) -> str:
        """Format for C's `printf`: three program ids, the indices, the value."""
        extents = (
            self.value.type.shape if self.value and isinstance(self.value.type, TileType) else ()
        )
        indices = ", ".join(f"%{len(str(extent - 1))}u" for extent in extents)
        text = "pid (%u, %u, %u)" + (f" idx ({indices})" if indices else "")
        text += self.prefix.replace("%", "%%")
        if self.value is not None:
            element = element_of(self.value.type)
            assert isinstance(element, ScalarType)
            wide = "ll" if element.bits == _WIDE_BITS else ""
            if element.is_float:
                text += "%a" if self.hex else "%f"
            elif self.hex:
                text += f"0x%0{element.bits // 4}{wide}x"
            else:
                text += f"%{wide}{'d' if element.is_signed else 'u'}"
        return f"{text}\n"


class Barrier(
    Op,
    opcode="tile.barrier",
    effects=(
        orders(Resource.GLOBAL),
        orders(Resource.SHARED),
    ),
    traits=(Trait.BARRIER,),
):
    """Wait for all threads of the program; memory accesses do not cross it."""
