"""Write addresses as sums of a pointer, scalars times scalars, and positions times scalars.

Every integer and pointer of a kernel becomes `base + offset`: `offset` is a polynomial over
symbols, `base` an opaque pointer, or None for an integer. A symbol is a scalar of the kernel, the
position along an axis of the tile (`axis_symbol`), or the remainder of a scalar by some divisor
(`Wrapped`). A loop-carried value is its first value plus the number of iterations times its step,
and this number follows from the induction variable. So a pointer that walks along, and one
recomputed from the induction variable, are the same polynomial.

Signed index arithmetic is taken not to overflow where an element is accessed, as in C.

Invariant: where a tile accesses memory, `base + offset` is the value of each of its elements, for
every launch that keeps the `conditions` of the `Wrapped` symbols in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, scf, tile
from aotc.ir.effects import Trait
from aotc.ir.rewrite import is_inside
from aotc.ir.types import I1, I32, I64, PointerType, ScalarType, TileType, element_of, shape_of
from aotc.ir.walks import Steps, reached, run
from aotc.schedule.analysis.polynomial import ONE, ZERO, Polynomial

_MAX_TERMS = 64
_RENAMINGS = (Trait.BROADCAST, Trait.SAME_VALUES, Trait.VIEW)


@dataclass(frozen=True, slots=True)
class Affine:
    """The sum `base + offset`, in elements of the pointee."""

    base: Value | None
    offset: Polynomial


@dataclass(frozen=True, slots=True)
class Wrapped:
    """The remainder of `dividend` by `divisor`, both multiples of `extent`, a constant.

    So a tile of `extent` consecutive indices from the dividend on is consecutive modulo the
    divisor, too. The launch checks the divisor.
    """

    dividend: Polynomial
    divisor: Polynomial
    extent: int


def axis_symbol(axis: int) -> int:
    """Return the symbol for the position along an axis of the tile."""
    return -1 - axis


class AffineAnalysis:
    """The polynomials of all values of a kernel; see the module docstring.

    If it `drops_clamps`, an index that is 0 from an end on is the index, and `clamps` has a
    polynomial that is below 0 exactly before the end.
    """

    def __init__(self, kernel: Kernel, *, drops_clamps: bool = False) -> None:
        self.drops_clamps = drops_clamps
        self.clamps: dict[Value, Polynomial] = {}
        self.sources: list[Value | Wrapped] = []
        """The source of each symbol from 0 on."""
        self._numbers: dict[Value | Wrapped, int] = {}
        self._parameters = kernel.body
        self._known: dict[Value, Affine] = {}
        self._scalars: dict[Polynomial, list[Value]] = {}
        self._visit(kernel.body)

    def __getitem__(self, value: Value) -> Affine:
        """Return the polynomial of a value; if nothing is known, it is itself."""
        affine = self._known.get(value)
        return self._opaque(value) if affine is None else affine

    def symbol(self, source: Value | Wrapped) -> Polynomial:
        """Return the symbol of a scalar or a remainder."""
        number = self._numbers.setdefault(source, len(self.sources))
        if number == len(self.sources):
            self.sources.append(source)
        return Polynomial.symbol(number)

    def is_launch(self, symbol: int) -> bool:
        """Return whether a symbol is an argument of the launch."""
        source = self.sources[symbol] if symbol >= 0 else None
        return isinstance(source, Value) and source.owner is self._parameters

    def scalars(self, polynomial: Polynomial) -> list[Value]:
        """Return the i32 scalars of the kernel with the value of `polynomial`."""
        if not self._scalars:
            for value, affine in self._known.items():
                if value.type == I32 and affine.base is None:
                    self._scalars.setdefault(affine.offset, []).append(value)
        return self._scalars.get(polynomial, [])

    def bounds(self, mask: Value) -> tuple[Polynomial, ...] | None:
        """Return polynomials, all below 0 exactly where `mask` is true, or None."""
        return run(self._bounds(mask))

    def _bounds(self, mask: Value) -> Steps[tuple[Polynomial, ...] | None]:
        op = mask.op
        if isinstance(op, arith.Constant):
            return () if op.value else None
        if isinstance(op, arith.And):
            left = yield self._bounds(op.lhs)
            right = None if left is None else (yield self._bounds(op.rhs))
            return None if left is None or right is None else (*left, *right)
        if isinstance(op, arith.Compare):
            return self._bound_of(op)
        names = None if op is None else axis_names(op)
        bounds = None if op is None or names is None else (yield self._bounds(op.operands[0]))
        return None if bounds is None or names is None else tuple(p.renamed(names) for p in bounds)

    def _bound_of(self, op: arith.Compare) -> tuple[Polynomial, ...] | None:
        left, right = self[op.lhs], self[op.rhs]
        if left.base is not None or right.base is not None:
            return None
        below, above = left.offset - right.offset, right.offset - left.offset
        limits = {"lt": below, "le": below - ONE, "gt": above, "ge": above - ONE}
        return (limits[op.predicate],) if op.predicate in limits else None

    # -- control flow ----------------------------------------------------------

    def _visit(self, block: Block) -> None:
        for op in block:
            if isinstance(op, scf.For):
                self._visit_loop(op)
                continue
            for nested in op.blocks:
                self._visit(nested)
            self._visit_op(op)

    def _visit_op(self, op: Op) -> None:
        rule = _RULES.get(type(op)) or (_renaming if op.has(*_RENAMINGS) else None)
        if rule is not None and _is_index(op.results[0]):
            affine = rule(self, op, [self[operand] for operand in op.operands])
            self._known.pop(op.results[0], None)  # stale: from before a loop was understood
            if affine is not None and len(affine.offset.terms) <= _MAX_TERMS:
                self._known[op.results[0]] = affine

    def _visit_loop(self, loop: scf.For) -> None:
        """Derive the steps of carried values from the loop's own ops, and visit the body.

        Carried values without a step stay opaque, and scalars among them are symbols. Nested blocks
        are visited once: their results are opaque.
        """
        carried = [arg for arg in loop.carried if _is_index(arg)]
        if carried:
            self._known.update((arg, Affine(arg, ZERO)) for arg in carried)
            for op in loop.body:
                self._visit_op(op)
            induced = {arg: self._induced(loop, arg) for arg in carried}
            for arg in carried:
                del self._known[arg]
            self._known.update((arg, value) for arg, value in induced.items() if value is not None)
        self._visit(loop.body)

    def _induced(self, loop: scf.For, arg: Value) -> Affine | None:
        """Return a carried value as a function of the induction variable, or None."""
        step = self[loop.body.terminator.operands[arg.index - 1]]
        if step.base is not arg or not self.is_invariant(step.offset, loop):
            return None
        per_index = step.offset.divided_by(self[loop.step].offset)
        if per_index is None:
            return None
        distance = self[loop.induction].offset - self[loop.lower].offset
        start = self[loop.init[arg.index - 1]]
        return Affine(start.base, start.offset + distance * per_index)

    def is_invariant(self, polynomial: Polynomial, loop: scf.For) -> bool:
        """Return whether a polynomial has one value in all iterations of a loop."""
        symbols = reached(polynomial.symbols, self.symbols_of)
        sources = (self.sources[symbol] for symbol in symbols if symbol >= 0)
        return not any(
            isinstance(source, Value) and is_inside(source.owner, loop) for source in sources
        )

    def symbols_of(self, symbol: int) -> Iterable[int]:
        """Return the symbols in a remainder's dividend and divisor."""
        source = self.sources[symbol] if symbol >= 0 else None
        return (source.dividend + source.divisor).symbols if isinstance(source, Wrapped) else ()

    def _opaque(self, value: Value) -> Affine:
        if isinstance(value.type, ScalarType) and value.type.is_int:
            return Affine(None, self.symbol(value))
        return Affine(value, ZERO)


def _is_index(value: Value) -> bool:
    return element_of(value.type) in (I32, I64) or isinstance(element_of(value.type), PointerType)


def axis_names(op: Op) -> Mapping[int, int] | None:
    """Return the result's axis for each axis of an op's operand; None if it is no renaming."""
    shape = shape_of(op.operands[0].type) if op.operands else ()
    axes: Sequence[int | None]
    if op.has(Trait.BROADCAST, Trait.SAME_VALUES):
        axes = range(len(shape))
    elif isinstance(op, tile.ExpandDims):
        axes = [axis + (axis >= op.axis) for axis in range(len(shape))]
    elif isinstance(op, tile.Trans):
        axes = [op.order.index(axis) for axis in range(len(shape))]
    elif isinstance(op, tile.Reshape):
        before = [axis for axis, extent in enumerate(shape) if extent > 1]
        after = [axis for axis, extent in enumerate(op.shape) if extent > 1]
        if [shape[axis] for axis in before] != [op.shape[axis] for axis in after]:
            return None
        new_axes = dict(zip(before, after, strict=True))
        axes = [new_axes.get(axis) for axis in range(len(shape))]
    else:
        return None
    return {axis_symbol(old): axis_symbol(new) for old, new in enumerate(axes) if new is not None}


# ---- rules: one function an op, None for a value outside of this form -------------------------


def _constant(_: AffineAnalysis, op: Op, __: list[Affine]) -> Affine | None:
    assert isinstance(op, arith.Constant)
    return Affine(None, Polynomial.constant(int(op.value)))


def _arange(_: AffineAnalysis, op: Op, __: list[Affine]) -> Affine | None:
    assert isinstance(op, tile.Arange)
    start = Polynomial.constant(op.start)
    counts = op.end - op.start > 1
    return Affine(None, start + Polynomial.symbol(axis_symbol(0)) if counts else start)


def _add(_: AffineAnalysis, __: Op, operands: list[Affine]) -> Affine | None:
    left, right = operands
    if left.base is not None and right.base is not None:
        return None
    return Affine(left.base or right.base, left.offset + right.offset)


def _sub(_: AffineAnalysis, __: Op, operands: list[Affine]) -> Affine | None:
    left, right = operands
    return Affine(left.base, left.offset - right.offset) if right.base is None else None


def _mul(_: AffineAnalysis, __: Op, operands: list[Affine]) -> Affine | None:
    left, right = operands
    if left.base is not None or right.base is not None:
        return None
    return Affine(None, left.offset * right.offset)


def _div(_: AffineAnalysis, __: Op, operands: list[Affine]) -> Affine | None:
    """Divide a multiple of the divisor, so nothing is rounded."""
    left, right = operands
    if left.base is not None or right.base is not None or not right.offset.value:
        return None
    quotient = left.offset.divided_by(right.offset)
    return None if quotient is None else Affine(None, quotient)


def _shl(_: AffineAnalysis, __: Op, operands: list[Affine]) -> Affine | None:
    left, right = operands
    bits = right.offset.value
    if left.base is not None or right.base is not None or bits is None or not 0 <= bits < 31:
        return None
    return Affine(None, left.offset * Polynomial.constant(1 << bits))


def _neg(_: AffineAnalysis, __: Op, operands: list[Affine]) -> Affine | None:
    return Affine(None, -operands[0].offset) if operands[0].base is None else None


def _cast(_: AffineAnalysis, op: Op, operands: list[Affine]) -> Affine | None:
    """Pass on values exact in a wider type, and indices in either type."""
    assert isinstance(op, arith.Cast)
    source = element_of(op.value.type)
    if not isinstance(source, ScalarType) or not source.is_int or source == I1:
        return None
    exact = op.dtype.bits > source.bits or source in (I32, I64)
    return operands[0] if exact and operands[0].base is None else None


def _rem(analysis: AffineAnalysis, op: Op, operands: list[Affine]) -> Affine | None:
    """Keep indices consecutive if they start, and wrap around, at multiples of a tile."""
    left, right = operands
    axes = [symbol for symbol in left.offset.symbols if symbol < 0]
    if left.base is not None or right.base is not None or len(axes) != 1:
        return None
    along = Polynomial.symbol(axes[0])
    start = left.offset - along
    extent = shape_of(op.results[0].type)[-1 - axes[0]]
    is_start = not any(symbol < 0 for symbol in start.symbols)
    if not is_start or any(factor % extent for _, factor in start.terms):
        return None
    divisor = right.offset
    if not divisor or not all(map(analysis.is_launch, divisor.symbols)):
        return None
    if divisor.value is not None and (divisor.value < 0 or divisor.value % extent):
        return None
    return Affine(None, analysis.symbol(Wrapped(start, divisor, extent)) + along)


def _select(analysis: AffineAnalysis, op: Op, operands: list[Affine]) -> Affine | None:
    assert isinstance(op, arith.Select)
    _, index, zero = operands
    if not analysis.drops_clamps or index.base is not None or zero != Affine(None, ZERO):
        return None
    (limit, *more) = analysis.bounds(op.condition) or (ZERO,)
    axes = [symbol for symbol in index.offset.symbols if symbol < 0]
    end = index.offset - limit
    if more or len(axes) != 1 or not end or not all(map(analysis.is_launch, end.symbols)):
        return None
    analysis.clamps[op.out] = limit
    return index


def _renaming(_: AffineAnalysis, op: Op, operands: list[Affine]) -> Affine | None:
    names = axis_names(op)
    base = operands[0].base
    if names is None or (base is not None and isinstance(base.type, TileType)):
        return None
    return Affine(base, operands[0].offset.renamed(names))


Rule = Callable[[AffineAnalysis, Op, list[Affine]], Affine | None]
_RULES: dict[type[Op], Rule] = {
    arith.Constant: _constant,
    tile.Arange: _arange,
    arith.Add: _add,
    arith.AddPtr: _add,
    arith.Sub: _sub,
    arith.Mul: _mul,
    arith.Div: _div,
    arith.Shl: _shl,
    arith.Neg: _neg,
    arith.Cast: _cast,
    arith.Rem: _rem,
    arith.Select: _select,
}
