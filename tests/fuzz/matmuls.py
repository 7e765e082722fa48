"""Matrix products as kernels write them: a block of the result a program, a loop over K.

The left operand may be of another type in memory, and scaled or masked on its way to the dot. Operands are
addressed as real kernels do it, by pointers with masks or by blocks of tensors, so that
what the schedule has for such loops comes about: maps that the launcher makes of pointers, warps
that load, CTAs that run one program after the other, tiles in loops of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aotc.ir.core import Block, Value
from aotc.ir.dialects import arith, descriptor, scf, tile
from aotc.ir.dialects.descriptor import TENSOR_ALIGNMENT_BYTES
from aotc.ir.types import (
    BF16,
    FP8E4NV,
    FP16,
    FP32,
    I8,
    I32,
    PointerType,
    ScalarType,
    TileType,
    element_of,
)
from tests.fuzz.arguments import Buffer, Fill, Tensor
from tests.fuzz.facts import Facts, fits, multiplied, of_count
from tests.fuzz.generator import Counter, Generator, Item
from tests.fuzz.products import FP8_SUM_BITS
from tests.fuzz.tensors import describe

_KINDS: list[tuple[int, tuple[ScalarType, ScalarType]]] = [
    (4, (FP16, FP32)),
    (3, (BF16, FP32)),
    (2, (FP8E4NV, FP32)),
    (1, (I8, I32)),
    (1, (FP32, FP32)),
]
_DATA = Facts(hi=1)
_WEIGHT = Facts(hi=1)
_MAX_BLOCK_ELEMS = 1 << 13
_MAX_MATRIX_ELEMS = 1 << 16
_MIN_PART = 16  # columns; a part of a block that is stored has as many


def make_matmul(g: Generator) -> None:
    """Add a product of matrices, perhaps of one block after the other in a loop."""
    if g.depth + 1 >= g.limits.nesting:
        return
    if g.choices.chance(1, 3):
        _make_tile_loop(g)
    else:
        _multiply(g, g.scopes[-1].counters)


def _make_tile_loop(g: Generator) -> None:
    """Add a loop over blocks of the result, which the programs along an axis share."""
    others = list(g.scopes[-1].counters)
    programs = [counter for counter in others if counter.is_program]
    lower, step = g.constant(0, I32), g.constant(1, I32)
    if programs:
        shared = g.choices.pick(programs)
        others.remove(shared)
        lower = shared.value
        step = g.add(tile.NumPrograms(programs.index(shared))).out
    num_tiles = g.choices.pick([2, 3, 1, 4, 6])
    body = Block([I32])
    with g.scope(body, [], []) as scope:
        scope.counters[:] = [*others, Counter(body.args[0], num_tiles, is_program=True)]
        _multiply(g, scope.counters)
        if g.choices.chance(1, 4):
            g.grow(1)
        g.add(scf.Yield([]))
    g.add(
        scf.For(
            *(lower, g.number(num_tiles), step, [], body),
            num_stages=g.choices.pick([0, 0, 2, 3]),
            flatten=g.choices.chance(1, 2),
            warp_specialize=g.choices.chance(1, 2),
        )
    )


def _multiply(g: Generator, counters: Sequence[Counter]) -> None:
    """Add the product of the blocks that `counters` number, and store it."""
    element, result = g.choices.weighted(_KINDS)
    bm, bn = g.choices.pick([64, 128, 16, 32]), g.choices.pick([64, 32, 16, 128])
    bk = 2 * g.choices.pick([64, 32, 16, 128]) // element.size_bytes
    bm = min(bm, _MAX_BLOCK_ELEMS // bn)
    k = g.choices.pick([2 * bk, 3 * bk, bk, 2 * bk + 16, bk + 8, 5, 0])
    # Tensors may have a little more than that, since their rows are whole pieces of 16 bytes.
    conversion = _conversion(g, element, bk)
    facts = of_count(multiplied(conversion.facts, _DATA), k + 16)
    weighs = g.choices.chance(1, 4)
    if weighs:
        facts = multiplied(facts, _WEIGHT)
    if element == FP8E4NV:
        facts = replace(facts, acc_bits=FP8_SUM_BITS)
    rows, columns, batch = _divide(g, counters, bm, bn)
    if (rows.extent + columns.extent) * max(k, 128) > _MAX_MATRIX_ELEMS:
        return
    depth = _Axis(bk, k, g.number(k, I32, _promise(g, k)))
    given = batch if g.choices.chance(3, 4) else _Batch()
    a = _operand(g, conversion.loaded, rows, depth, given)
    b = _operand(g, element, depth, columns, given)
    acc = _loop(g, depth, (a, b), TileType(result, (bm, bn)), conversion, weighs=weighs)
    if bn > _MIN_PART and g.choices.chance(1, 4):
        acc, columns = _first_columns(g, acc, columns)
    _store(g, g.keep(acc, facts), rows, columns, batch)


@dataclass(frozen=True, slots=True)
class _Conversion:
    """How threads compute the left operand: from which type to which, doubled if it is scaled.

    Where it `is_masked`, they leave out some of it besides what a load does.
    """

    loaded: ScalarType
    multiplied: ScalarType
    is_scaled: bool = False
    is_masked: bool = False

    @property
    def facts(self) -> Facts:
        return replace(_DATA, hi=_DATA.hi + self.is_scaled)


def _conversion(g: Generator, element: ScalarType, bk: int) -> _Conversion:
    """Choose what is loaded for the left operand; mostly what is multiplied."""
    if g.choices.chance(2, 3):
        return _Conversion(element, element)
    types = dict.fromkeys(operand for _, (operand, _) in _KINDS)
    wide = [each for each in types if bk * each.size_bytes >= TENSOR_ALIGNMENT_BYTES]
    scaled, masked = g.choices.chance(1, 2), g.choices.chance(1, 2)
    return _Conversion(g.choices.pick(wide), element, scaled, masked)


def _converted(g: Generator, value: Value, conversion: _Conversion) -> Value:
    """Return the left operand of a dot as threads compute it, each element in registers."""
    if conversion.is_masked:
        kind = value.type
        assert isinstance(kind, TileType)
        columns = g.on_axis(g.add(tile.Arange(0, kind.shape[1])).out, 1, 2)
        bound = g.spread(g.known_or_given(kind.shape[1]), _shape(columns))
        inside = g.stretched(g.add(arith.Compare(columns, bound, "lt")).out, kind.shape)
        value = g.add(arith.Select(inside, value, g.constant(0, kind))).out
    types = conversion.loaded, conversion.multiplied
    is_direct = types[0] == types[1] or any(each.bits > 8 for each in types)
    if conversion.is_scaled or not is_direct:
        value = value if types[0] == FP32 else g.add(arith.Cast(value, FP32)).out
    if conversion.is_scaled:
        value = g.add(arith.Add(value, value)).out
    element = element_of(value.type)
    return value if element == types[1] else g.add(arith.Cast(value, types[1])).out


def _first_columns(g: Generator, acc: Value, columns: _Axis) -> tuple[Value, _Axis]:
    """Return the first half of a block, or a quarter: nobody looks at its other columns."""
    for _ in range(g.choices.pick([1, 2])):
        rows, width = _shape(acc)
        if width == _MIN_PART:
            break
        paired = g.add(tile.Reshape(acc, (rows, 2, width // 2))).out
        acc = g.add(tile.Split(g.add(tile.Trans(paired, (0, 2, 1))).out)).lhs
    return acc, replace(columns, block=_shape(acc)[1])


# ---- the problem ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Axis:
    """Name an axis of the problem: `extent` elements, also as a value, in blocks of `block`.

    This program's block begins at `start`; along K that is another one in every iteration.
    """

    block: int
    extent: int
    bound: Value
    start: Value | None = None


@dataclass(frozen=True, slots=True)
class _Batch:
    """Say which of `count` problems this program's is; without an index there is one."""

    index: Value | None = None
    count: int = 1


def _divide(
    g: Generator, counters: Sequence[Counter], bm: int, bn: int
) -> tuple[_Axis, _Axis, _Batch]:
    """Decide which counters number blocks of rows, of columns, or problems."""
    rows: list[Counter] = []
    columns: list[Counter] = []
    problems: list[Counter] = []
    left = list(counters)
    if left and g.choices.chance(1, 2):
        # One counter for both, as grids of one axis have it.
        counter, num_columns = left.pop(), g.choices.pick([2, 1])
        divisor = g.known_or_given(num_columns)
        m = g.add(arith.Div(counter.value, divisor)).out
        n = g.add(arith.Rem(counter.value, divisor)).out
        rows.append(Counter(m, -(-counter.extent // num_columns)))
        columns.append(Counter(n, num_columns))
    for counter in left:
        g.choices.pick([rows, columns, problems]).append(counter)
    return _axis(g, bm, rows), _axis(g, bn, columns), _Batch(*g.linear(problems))


def _axis(g: Generator, block: int, counters: Sequence[Counter]) -> _Axis:
    index, count = g.linear(counters)
    start = g.constant(0, I32)
    if index is not None:
        start = g.add(arith.Mul(index, g.known_or_given(block))).out
    last = block if g.choices.chance(1, 2) else g.choices.between(1, block)
    extent = block * (count - 1) + last
    return _Axis(block, extent, g.number(extent, I32, _promise(g, extent)), start)


def _promise(g: Generator, value: int) -> int:
    return 16 if value % 16 == 0 and g.choices.chance(1, 2) else 1


# ---- matrices in memory -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Say where a matrix lies: one of a batch behind `base`, or in a tensor.

    If it `is_turned`, its columns come first in memory; of what comes first, `stride` elements lie
    between one and the next. `carries` says that pointers are moved on in every iteration, and
    `wraps` that rows and columns beyond the end are others again.
    """

    rows: _Axis
    columns: _Axis
    batch: _Batch
    is_turned: bool
    base: Value
    stride: Value | None = None
    carries: bool = False
    wraps: bool = False

    @property
    def axes(self) -> tuple[_Axis, _Axis]:
        return self.rows, self.columns

    @property
    def in_memory(self) -> tuple[_Axis, _Axis]:
        """The axes, outermost first."""
        return (self.columns, self.rows) if self.is_turned else (self.rows, self.columns)

    @property
    def is_tensor(self) -> bool:
        return self.stride is None


def _operand(
    g: Generator, element: ScalarType, rows: _Axis, columns: _Axis, batch: _Batch
) -> _Matrix:
    batched = batch if g.choices.chance(2, 3) else _Batch()
    return _matrix(g, element, (rows, columns), batched, "exact", is_turned=g.choices.chance(1, 3))


def _matrix(
    g: Generator,
    element: ScalarType,
    axes: tuple[_Axis, _Axis],
    batch: _Batch,
    fill: Fill,
    *,
    is_turned: bool,
) -> _Matrix:
    """Choose where a matrix lies."""
    outer, inner = reversed(axes) if is_turned else axes
    seed, hi = g.choices.below(1 << 16), _DATA.hi
    if g.choices.chance(1, 2):
        shape = (max(outer.extent, 1), max(inner.extent, 1))
        block = (outer.block, inner.block)
        if batch.index is not None:
            shape, block = (batch.count, *shape), (1, *block)
        padding = g.choices.pick([0, 1])
        base = describe(
            g, lambda name: Tensor(name, element.name, shape, fill, 0, hi, seed, padding), block
        )
        return _Matrix(*axes, batch, is_turned, base)
    stride = -(-max(inner.extent, 1) // 16) * 16 + g.choices.pick([0, 0, 16, 32, 8])
    if g.choices.chance(1, 12):
        stride = max(inner.extent, 1)
    span = max(outer.extent - 1, 0) * stride + max(inner.extent, 1)
    behind = -(-span // 16) * 16
    size = (batch.count - 1) * behind + span
    base = g.pointer(
        lambda name: Buffer(name, element.name, size, fill, 0, hi, seed),
        16 if g.choices.chance(11, 12) else 1,
    )
    if batch.index is not None:
        offset = g.add(arith.Mul(batch.index, g.known_or_given(behind))).out
        base = g.add(arith.AddPtr(base, offset)).out
    promised = 16 if stride % 16 == 0 and g.choices.chance(7, 8) else 1
    return _Matrix(
        *(*axes, batch, is_turned, base, g.number(stride, I32, promised)),
        carries=g.choices.chance(1, 2),
        wraps=g.choices.chance(1, 6),
    )


def _indices(g: Generator, axis: _Axis, place: int, start: Value | None) -> Value:
    """Return the indices of a block along an axis, as a tile whose axis `place` they lie along."""
    index = g.add(tile.Arange(0, axis.block)).out
    if start is not None:
        index = g.add(arith.Add(g.spread(start, (axis.block,)), index)).out
    return g.on_axis(index, place, 2)


def _pointers(g: Generator, matrix: _Matrix, k_start: Value | None) -> Value:
    """Return the pointers to this program's block, along K from `k_start` or the beginning on."""
    assert matrix.stride is not None
    shape = matrix.rows.block, matrix.columns.block
    pointer = g.spread(matrix.base, shape)
    for place, axis in enumerate(matrix.axes):
        index = _indices(g, axis, place, axis.start or k_start)
        if matrix.wraps and axis.start is not None:
            bound = g.spread(axis.bound, _shape(index))
            index = g.add(arith.Rem(index, bound)).out
        if axis is matrix.in_memory[0]:
            index = g.add(arith.Mul(index, g.spread(matrix.stride, _shape(index)))).out
        pointer = g.add(arith.AddPtr(pointer, g.stretched(index, shape))).out
    return pointer


def _mask(g: Generator, matrix: _Matrix, k_start: Value | None) -> Value | None:
    """Return where a block is inside the matrix; None if it is everywhere, and this is known."""
    mask: Value | None = None
    for place, axis in enumerate(matrix.axes):
        wraps = matrix.wraps and axis.start is not None
        if wraps or (axis.extent % axis.block == 0 and g.choices.chance(1, 2)):
            continue
        start, bound = axis.start or k_start, axis.bound
        if axis.start is None and k_start is not None and g.choices.chance(1, 2):
            start, bound = None, g.add(arith.Sub(bound, k_start)).out
        index = _indices(g, axis, place, start)
        inside = g.add(arith.Compare(index, g.spread(bound, _shape(index)), "lt")).out
        shape = matrix.rows.block, matrix.columns.block
        inside = g.stretched(inside, shape)
        mask = inside if mask is None else g.add(arith.And(mask, inside)).out
    return mask


def _shape(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, TileType)
    return value.type.shape


def _coords(matrix: _Matrix, k_start: Value | None) -> list[Value]:
    """Return where in its tensor this program's block begins."""
    starts = [axis.start or k_start for axis in matrix.in_memory]
    return [start for start in (matrix.batch.index, *starts) if start is not None]


# ---- the loop and its result ------------------------------------------------------------------


def _loop(
    g: Generator,
    depth: _Axis,
    operands: tuple[_Matrix, _Matrix],
    result: TileType,
    conversion: _Conversion,
    *,
    weighs: bool,
) -> Value:
    """Add the loop over K; return the sum, of products or of products with a weight each."""
    carried = [_pointers(g, each, None) for each in operands if each.carries]
    by_blocks = g.choices.chance(1, 2)
    upper = g.number(-(-depth.extent // depth.block)) if by_blocks else depth.bound
    step = g.constant(1 if by_blocks else depth.block, I32)
    init = [g.constant(0, result), *carried]
    body = Block([I32, *(value.type for value in init)])
    with g.scope(body, [], []):
        k_start = body.args[0]
        if by_blocks:
            k_start = g.add(arith.Mul(k_start, g.constant(depth.block, I32))).out
        pointers = list(body.args[2:])
        moved: list[Value] = []
        loaded: list[Value] = []
        for each in operands:
            pointer = pointers.pop(0) if each.carries else None
            loaded.append(_load(g, each, k_start, pointer))
            if pointer is not None:
                moved.append(_moved(g, each, depth, pointer))
        loaded[0] = _converted(g, loaded[0], conversion)
        if weighs:
            part = g.add(tile.Dot(loaded[0], loaded[1], g.constant(0, result))).out
            part = g.add(arith.Mul(part, _weight(g, body.args[0], result))).out
            acc = g.add(arith.Add(body.args[1], part)).out
        else:
            acc = g.add(tile.Dot(loaded[0], loaded[1], body.args[1])).out
        g.add(scf.Yield([acc, *moved]))
    op = scf.For(
        *(g.constant(0, I32), upper, step, init, body),
        num_stages=g.choices.pick([0, 0, 2, 3, 4]),
        warp_specialize=g.choices.chance(1, 6),
    )
    return g.add(op).outs[0]


def _weight(g: Generator, index: Value, result: TileType) -> Value:
    """Return a block of 1 in one iteration, of 2 in another."""
    odd = g.add(arith.Rem(index, g.constant(2, I32))).out
    weight = g.add(arith.Add(odd, g.constant(1, I32))).out
    element = result.element
    if isinstance(element, ScalarType) and element != I32:
        weight = g.add(arith.Cast(weight, element)).out
    return g.spread(weight, result.shape)


def _load(g: Generator, matrix: _Matrix, k_start: Value, pointer: Value | None) -> Value:
    """Add the load of an operand's block."""
    if matrix.is_tensor:
        value = g.add(descriptor.DescriptorLoad(matrix.base, _coords(matrix, k_start))).out
        value = g.add(tile.Reshape(value, _shape(value)[-2:])).out
        return g.add(tile.Trans(value, (1, 0))).out if matrix.is_turned else value
    if pointer is None:
        pointer = _pointers(g, matrix, k_start)
    mask = _mask(g, matrix, k_start)
    other = None
    if mask is not None:
        kind = element_of(pointer.type)
        assert isinstance(kind, PointerType)
        other = g.constant(0, TileType(kind.pointee, _shape(pointer)))
    return g.add(tile.Load(pointer, mask, other)).out


def _moved(g: Generator, matrix: _Matrix, depth: _Axis, pointer: Value) -> Value:
    """Return pointers a block further along K."""
    assert matrix.stride is not None
    step = g.constant(depth.block, I32)
    if matrix.in_memory[0] is depth:
        step = g.add(arith.Mul(step, matrix.stride)).out
    return g.add(arith.AddPtr(pointer, g.spread(step, _shape(pointer)))).out


def _store(g: Generator, item: Item, rows: _Axis, columns: _Axis, batch: _Batch) -> None:
    """Store the product, perhaps in fewer bits."""
    value, element = item.value, item.element
    narrow = g.choices.pick([element, FP16, BF16])
    if element.is_float and narrow != element and fits(narrow, item.facts):
        value, element = g.add(arith.Cast(value, narrow)).out, narrow
    is_turned = g.choices.chance(1, 6)
    matrix = _matrix(g, element, (rows, columns), batch, "poison", is_turned=is_turned)
    if not matrix.is_tensor:
        # Two rows of a block must not be one, so nothing wraps.
        matrix = replace(matrix, wraps=False)
        g.add(tile.Store(_pointers(g, matrix, None), value, _mask(g, matrix, None)))
        return
    if is_turned:
        value = g.add(tile.Trans(value, (1, 0))).out
    if batch.index is not None:
        value = g.add(tile.Reshape(value, (1, *_shape(value)))).out
    g.add(descriptor.DescriptorStore(matrix.base, value, _coords(matrix, None)))
