"""Block accesses to tensors of one to five axes: inside, across an end, or beyond it.

Every access has its own tensor. Elements of a block outside it read as zero or NaN, and are not
written. The last coordinate is a multiple of 16 bytes, and no store begins at a negative one; both
are hardware's conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from aotc.ir.core import Value
from aotc.ir.dialects import arith, descriptor
from aotc.ir.types import BF16, FP16, FP32, FP64, I32, I64, ScalarType
from tests.fuzz.arguments import Buffer, Fill, Tensor
from tests.fuzz.elements import ELEMENTS, FLOATS, INTEGERS
from tests.fuzz.facts import RAGGED, Facts, fits, full, joined, of_count
from tests.fuzz.generator import Generator, Item, Shape
from tests.fuzz.memory import MAX_SPAN_ELEMS, some_facts

_MAX_BLOCK_EXTENT = 256
_RANKS = (2, 2, 2, 1, 3, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class _Axis:
    """The start of a block along an axis: `value`, from `low` to `high`."""

    value: Value
    low: int
    high: int


def is_block(item: Item) -> bool:
    """Return whether a value is a block that a tensor may have."""
    shape = item.shape
    row_bytes = shape[-1] * item.element.size_bytes if shape else 0
    is_wide = row_bytes >= descriptor.MIN_ROW_BYTES
    return is_wide and len(shape) <= descriptor.MAX_RANK and max(shape) <= _MAX_BLOCK_EXTENT


def make_load(g: Generator) -> None:
    """Add a load of a block of anything."""
    element = g.choices.weighted(ELEMENTS)
    block = _some_block(g, element)
    axes = _somewhere(g, element, block, first=(0, 0, 0, 1, 5, -1, -3))
    shape = _extents(g, block, axes)
    is_exact = g.choices.chance(3, 4)
    facts = some_facts(g, element) if is_exact else full(element)
    fill_nan = element in (FP16, BF16, FP32, FP64) and g.choices.chance(1, 8)
    tensor = _tensor(g, element, shape, "exact" if is_exact else "any", facts)
    described = describe(g, tensor, block, fill_nan=fill_nan)
    value = g.add(descriptor.DescriptorLoad(described, [axis.value for axis in axes])).out
    if fill_nan:
        # The NaN's payload is unspecified, and the comparison is of bits.
        unit = g.constant(1.0, value.type)
        is_number = g.add(arith.Compare(value, value, "eq")).out
        value = g.add(arith.Select(is_number, value, unit)).out
        facts = joined(facts, Facts()) if is_exact else RAGGED
    g.keep(value, facts)
    if g.choices.chance(1, 6):
        _keep_size(g, described, shape)


def make_rows(g: Generator) -> None:
    """Add rows of a tensor gathered by loaded indices, some beyond its last row."""
    element = g.choices.weighted(ELEMENTS)
    rows = g.some_shape(ranks=(1,))
    room = max(g.limits.elems // prod(rows), 1)
    width = max(_unit(element), min(1 << g.choices.between(0, 7), room))
    bits = g.choices.between(0, 5)
    index = g.operand(I32, rows).value
    index = g.add(arith.And(index, g.constant((1 << bits) - 1, index.type))).out
    start = _unit(element) * g.choices.pick([0, 0, 0, 1, -1])
    extents = (g.choices.between(1, 1 << bits), g.choices.between(1, max(start + width, 1) + 8))
    facts = some_facts(g, element)
    described = describe(g, _tensor(g, element, extents, "exact", facts), (1, width))
    column = g.known_or_given(start)
    g.keep(g.add(descriptor.DescriptorGather(described, index, column)).out, facts)


def _keep_size(g: Generator, described: Value, shape: Shape) -> None:
    """Add an extent or a stride to the pool."""
    axis = g.choices.below(len(shape))
    if g.choices.chance(1, 2):
        g.keep(g.add(descriptor.DescriptorStride(described, axis)).out, full(I64))
    else:
        extent = g.add(descriptor.DescriptorExtent(described, axis)).out
        most = shape[axis] + descriptor.MIN_ROW_BYTES  # rows may have been made whole pieces
        g.keep(extent, Facts(hi=most.bit_length()))


def store(g: Generator, item: Item) -> None:
    """Store a value as a block of this program and iteration alone."""
    block, facts = item.shape, item.facts
    axes = _apart(g, item.element, block)
    tensor = _tensor(g, item.element, _extents(g, block, axes), "poison", facts, facts.steps)
    described = describe(g, tensor, block)
    g.add(descriptor.DescriptorStore(described, item.value, [axis.value for axis in axes]))


_KINDS: tuple[descriptor.ReduceKind, ...] = ("add", "min", "max", "and", "or", "xor")
_REDUCED = [
    (weight, element)
    for weight, element in (*INTEGERS, *FLOATS)
    if any(descriptor.supports_reduce(kind, element) for kind in _KINDS)
]


def make_reduction(g: Generator) -> None:
    """Combine a block with a tensor, where programs and iterations may meet."""
    element = g.choices.weighted(_REDUCED)
    kind: descriptor.ReduceKind = g.choices.pick(
        [candidate for candidate in _KINDS if descriptor.supports_reduce(candidate, element)]
    )
    candidates = g.candidates(lambda i: i.element == element and i.facts.is_exact and is_block(i))
    block = g.recent(candidates).shape if candidates else _some_block(g, element)
    value = g.operand(element, block, lambda facts: facts.is_exact)
    turns = prod(max(counter.extent, 1) for counter in g.scopes[-1].counters)
    total = of_count(joined(value.facts, Facts()), turns + 1)
    if element.is_float and kind == "add" and not fits(element, total):
        return
    axes = _somewhere(g, element, block, first=(0, 0, 0, 1, 5))
    described = describe(g, _tensor(g, element, _extents(g, block, axes), "exact", Facts()), block)
    coords = [axis.value for axis in axes]
    g.add(descriptor.DescriptorReduce(described, value.value, coords, kind))


# ---- descriptors ------------------------------------------------------------------------------


def describe(
    g: Generator, tensor: Callable[[str], Tensor], block: Shape, *, fill_nan: bool = False
) -> Value:
    """Return a descriptor of a tensor: a parameter, or one made of a pointer and sizes."""
    if not g.choices.chance(1, 3):
        return g.tensor(lambda name: _with_whole_rows(tensor(name)), block, fill_nan=fill_nan)
    example = tensor("")
    # Misaligned rows can have no map, so another variant is launched then.
    row = example.row_elems if g.choices.chance(5, 6) else example.shape[-1]
    strides = [1]
    for extent in reversed((*example.shape[1:-1], row)):
        strides.insert(0, strides[0] * extent)
    strides = strides[len(strides) - len(example.shape) :]
    pairs = zip(example.shape, strides, strict=True)
    size = 1 + sum((extent - 1) * stride for extent, stride in pairs)
    counters = [counter for counter in g.scopes[-1].counters if counter.extent]
    moving_counter = g.choices.pick(counters) if counters and g.choices.chance(1, 3) else None
    step = size + (-size % 16 if g.choices.chance(5, 6) else g.choices.below(4))
    total = size if moving_counter is None else size + step * (moving_counter.extent - 1)
    pointer = g.pointer(
        lambda name: Buffer(
            *(name, example.dtype, total, example.fill, example.lo, example.hi, example.seed),
            steps=example.steps,
        ),
        16 if g.choices.chance(3, 4) else 1,
    )
    if moving_counter is not None:
        offset = g.add(arith.Mul(moving_counter.value, g.known_or_given(step))).out
        pointer = g.add(arith.AddPtr(pointer, offset)).out
    extents = [g.known_or_given(extent) for extent in example.shape]
    steps = [_long(g, stride) for stride in strides[:-1]]
    return g.add(descriptor.DescriptorOf(pointer, [*extents, *steps], block, fill_nan)).out


def _with_whole_rows(tensor: Tensor) -> Tensor:
    """Return the tensor with rows of whole pieces of 16 bytes, as launchers want them."""
    unit = _unit(tensor.element)
    return replace(tensor, shape=(*tensor.shape[:-1], -(-tensor.shape[-1] // unit) * unit))


def _long(g: Generator, value: int) -> Value:
    if g.choices.chance(1, 3):
        return g.constant(value, I64)
    promised = 16 if value % 16 == 0 and g.choices.chance(3, 4) else 1
    return g.add(arith.Cast(g.number(value, I32, promised), I64)).out


# ---- places -----------------------------------------------------------------------------------


def _some_block(g: Generator, element: ScalarType) -> Shape:
    """Choose the shape of a block with long enough rows."""
    shape = [min(extent, _MAX_BLOCK_EXTENT) for extent in g.some_shape(ranks=_RANKS)]
    shape[-1] = max(shape[-1], _unit(element))
    return tuple(shape)


def _somewhere(
    g: Generator, element: ScalarType, block: Shape, first: Sequence[int]
) -> list[_Axis]:
    """Choose where a block begins: at one of `first`, or further on with a counter."""
    counters = [counter for counter in g.scopes[-1].counters if counter.extent]
    axes: list[_Axis] = []
    for axis, extent in enumerate(block):
        unit = _unit(element) if axis == len(block) - 1 else 1
        start = unit * g.choices.pick(first)
        if counters and g.choices.chance(1, 2):
            counter = g.choices.pick(counters)
            step = unit * g.choices.pick([extent // unit, extent // unit, 1, 3])
            axes.append(_further(g, counter.value, step, start, counter.extent))
        else:
            axes.append(_Axis(g.known_or_given(start), start, start))
    return axes


def _unit(element: ScalarType) -> int:
    return descriptor.MIN_ROW_BYTES // element.size_bytes


def _further(g: Generator, count: Value, step: int, first: int, extent: int) -> _Axis:
    """Return `count * step + first`, where `count` is below `extent`."""
    value = count
    if step != 1:
        value = g.add(arith.Mul(value, g.known_or_given(step))).out
    if first:
        value = g.add(arith.Add(value, g.known_or_given(first))).out
    return _Axis(value, first, first + step * max(extent - 1, 0))


def _apart(g: Generator, element: ScalarType, block: Shape) -> list[_Axis]:
    """Choose a block's start so that no two counts of the counters share an element."""
    index, extent = g.linear(g.scopes[-1].counters)
    axis = g.choices.below(len(block))
    axes = [_Axis(g.known_or_given(0), 0, 0) for _ in block]
    if index is None:
        return axes
    first = g.choices.pick([0, 0, 0, 3]) * (_unit(element) if axis == len(block) - 1 else 1)
    axes[axis] = _further(g, index, block[axis], first, extent)
    return axes


def _extents(g: Generator, block: Shape, axes: list[_Axis]) -> Shape:
    """Choose the extents of a tensor: to the end of the last block, or shorter, or longer."""
    extents = [max(axis.high + extent, 1) for extent, axis in zip(block, axes, strict=True)]
    for axis, extent in enumerate(extents):
        how = g.choices.below(6)
        if how == 5:
            extents[axis] = g.choices.between(1, extent)
        elif how == 4:
            extents[axis] = extent + g.choices.pick([1, 2, 8])
    while prod(extents) > 2 * MAX_SPAN_ELEMS:
        longest = max(range(len(extents)), key=extents.__getitem__)
        extents[longest] = extents[longest] // 2
    return tuple(extents)


def _tensor(
    g: Generator, element: ScalarType, shape: Shape, fill: Fill, facts: Facts, steps: float = 0.0
) -> Callable[[str], Tensor]:
    """Return a function that makes the argument for a name."""
    seed, padding = g.choices.below(1 << 16), g.choices.pick([0, 0, 1, 2])

    def make(name: str) -> Tensor:
        form = (element.name, shape, fill, facts.lo, facts.hi, seed, padding)
        return Tensor(name, *form, steps=steps)

    return make
