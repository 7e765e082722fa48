"""Elementwise ops of every kind, with operands that keep results defined.

Divisors are small and not zero, shift amounts are below the width, and a float becomes an integer
only where it fits. Arguments of approximate functions lie where their error bound is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from aotc.ir.core import Value
from aotc.ir.dialects import arith, assembly
from aotc.ir.types import FP32, FP64, I1, ScalarType, element_of
from tests.fuzz.elements import ELEMENTS, FLOATS, INTEGERS, NUMBERS
from tests.fuzz.facts import (
    PRODUCT,
    RAGGED,
    Facts,
    fits,
    full,
    joined,
    multiplied,
    settled,
    summed,
)
from tests.fuzz.generator import Generator, Item, exact

PREDICATES: tuple[arith.Predicate, ...] = ("lt", "eq", "ne", "le", "gt", "ge")


def _is_number(item: Item) -> bool:
    element = item.element
    return not element.is_bool and (element.is_int or element.bits > 8)


def _is_integer(item: Item) -> bool:
    return item.element.is_int and not item.element.is_bool


def make_sum(g: Generator) -> None:
    """Add a sum, difference or product; of truth values it is one modulo 2."""
    left = g.any_item(
        lambda i: (_is_number(i) or i.element.is_bool) and i.facts.is_known, [*NUMBERS, (1, I1)]
    )
    right = g.operand(left.element, left.shape)
    cls = g.choices.pick([arith.Add, arith.Sub, arith.Mul])
    keep_sum(g, cls, left, right)


def keep_sum(g: Generator, cls: type[arith.Binary], left: Item, right: Item) -> None:
    """Add `cls` of two known values, unless its float result might not be one known value."""
    element = left.element
    facts: Facts | None
    if left.facts.is_exact and right.facts.is_exact:
        operand_facts = left.facts, right.facts
        facts = settled(
            element, multiplied(*operand_facts) if cls is arith.Mul else summed(operand_facts)
        )
        if element.is_int and not element.is_signed and cls is arith.Sub:
            facts = full(element)
    else:
        products = "product" in (left.facts.kind, right.facts.kind)
        facts = PRODUCT if cls is arith.Mul else None if products else RAGGED
    if element.is_float and facts is not None and cls is not arith.Mul:
        accumulates = all(operand.facts.accumulates(facts) for operand in (left, right))
        facts = facts if accumulates else None
    if facts is not None:
        g.keep(g.add(cls(left.value, right.value)).out, facts)


def make_fma(g: Generator) -> None:
    """Add a product and sum in one op."""
    left = g.any_item(lambda i: _is_number(i) and i.facts.is_exact, NUMBERS)
    if not left.facts.is_exact:  # nothing fits, and a load of anything was added
        return
    right, addend = (g.operand(left.element, left.shape, exact) for _ in range(2))
    element = left.element
    facts = settled(element, summed((multiplied(left.facts, right.facts), addend.facts)))
    if facts is not None:
        g.keep(g.add(arith.Fma(left.value, right.value, addend.value)).out, facts)


def make_bits(g: Generator) -> None:
    """Add a bitwise op, also on truth values."""
    elements = [*INTEGERS, (4, I1)]
    left = g.any_item(lambda item: item.element.is_int, elements)
    right = g.operand(left.element, left.shape)
    cls = g.choices.pick([arith.And, arith.Or, arith.Xor])
    is_small = not left.element.is_signed and left.facts.lo >= 0
    facts = joined(left.facts, right.facts) if is_small else full(left.element)
    g.keep(g.add(cls(left.value, right.value)).out, _rounded_up(left.element, facts))


def _rounded_up(element: ScalarType, facts: Facts) -> Facts:
    """Return facts of bits set in any of two unsigned numbers up to 2**hi."""
    wider = Facts(hi=facts.hi + 1)
    return wider if fits(element, wider) else full(element)


def make_division(g: Generator) -> None:
    """Add an integer quotient, remainder or high half of a product."""
    left = g.any_item(_is_integer, INTEGERS)
    cls = g.choices.pick([arith.Div, arith.Rem, arith.MulHi])
    right = g.operand(left.element, left.shape).value
    if cls is not arith.MulHi:
        kind = right.type
        if g.choices.chance(1, 3):
            right = g.constant(g.choices.pick([1, 2, 3, 5, 7, 8, 16, 100]), kind)
        else:
            mask = g.constant(g.choices.pick([7, 1, 31, 63]), kind)
            right = g.add(arith.And(right, mask)).out
            right = g.add(arith.Or(right, g.constant(1, kind))).out
    facts = full(left.element) if cls is arith.MulHi else left.facts
    g.keep(g.add(cls(left.value, right)).out, replace(facts, lo=0))


def make_shift(g: Generator) -> None:
    """Add a shift by less than the width."""
    left = g.any_item(_is_integer, INTEGERS)
    cls = g.choices.pick([arith.Shl, arith.Shr])
    amount = g.operand(left.element, left.shape).value
    most = g.constant(left.element.bits - 1, amount.type)
    amount = most if g.choices.chance(1, 8) else g.add(arith.And(amount, most)).out
    facts = full(left.element) if cls is arith.Shl else left.facts
    g.keep(g.add(cls(left.value, amount)).out, facts)


def make_extreme(g: Generator) -> None:
    """Add a minimum or maximum."""
    left = g.any_item(_is_number, NUMBERS)
    right = g.operand(left.element, left.shape)
    cls = g.choices.pick([arith.Min, arith.Max])
    wins = g.choices.chance(1, 2) and left.element.is_float
    g.keep(g.add(cls(left.value, right.value, wins)).out, joined(left.facts, right.facts))


def make_unary(g: Generator) -> None:
    """Add a negation, absolute value, floor or ceiling."""
    item = g.any_item(_is_number, NUMBERS)
    element = item.element
    options: list[type[arith.Unary]] = [arith.Neg, arith.Abs]
    if element.is_float and item.facts.is_exact:
        options += [arith.Floor, arith.Ceil]
    cls = g.choices.pick(options)
    facts = item.facts
    if element.is_int and (cls is arith.Neg or facts.hi >= element.bits - 1):
        facts = settled(element, facts) if element.is_signed else full(element)
    elif cls in (arith.Floor, arith.Ceil):
        facts = Facts(lo=max(facts.lo, 0), hi=max(facts.hi, 0))
    if facts is not None and (element.is_int or not facts.is_exact or fits(element, facts)):
        g.keep(g.add(cls(item.value)).out, facts)


def make_libdevice(g: Generator) -> None:
    """Add an exact libdevice function."""
    item = g.any_item(lambda i: i.element in (FP32, FP64) and i.facts.is_exact, [(1, FP32)])
    if item.element not in (FP32, FP64) or not item.facts.is_exact:
        return
    name, count = g.choices.pick([("trunc", 1), ("rint", 1), ("fmax", 2), ("fabs", 1), ("fmin", 2)])
    operands = [item, *(g.operand(item.element, item.shape, exact) for _ in range(count - 1))]
    facts = joined(*(operand.facts for operand in operands))
    facts = Facts(lo=facts.lo if count == 2 else min(facts.lo, 0), hi=max(facts.hi, 0))
    if fits(item.element, facts):
        symbol = f"__nv_{name}{'f' if item.element == FP32 else ''}"
        arguments = [operand.value for operand in operands]
        g.keep(g.add(arith.Libdevice(symbol, item.element, arguments)).out, facts)


def make_assembly(g: Generator) -> None:
    """Add assembly on bits with one or two results, removable or not."""
    left = g.any_item(_is_integer, INTEGERS)
    right = g.operand(left.element, left.shape)
    bits = left.element.bits
    if not _is_integer(left):
        return
    cls = g.choices.pick([assembly.InlineAsm, assembly.VolatileAsm])
    letter, width = ("l", 64) if bits == 64 else ("r", 32)
    pack = max(1, 32 // bits) if g.choices.chance(2, 3) else 1
    has_two_inputs = g.choices.chance(1, 3)
    inputs = ("$2", "$3") if has_two_inputs else ("$1", "$2")
    text = f"xor.b{width} $0, {', '.join(inputs)};"
    if has_two_inputs:
        text += f" {{ .reg .b{width} t; or.b{width} t, {', '.join(inputs)}; not.b{width} $1, t; }}"
    constraints = ",".join([f"=&{letter}"] * (1 + has_two_inputs) + [letter] * 2)
    dtypes = (left.element,) * (1 + has_two_inputs)
    op = g.add(cls(text, constraints, dtypes, pack, [left.value, right.value]))
    for out in op.outs:
        g.keep(out, full(left.element))


def make_compare(g: Generator) -> None:
    """Add a comparison."""
    left = g.any_item(lambda i: not i.element.is_bool and i.facts.is_known, ELEMENTS[:3] + FLOATS)
    if left.element.is_bool:
        return
    right = g.operand(left.element, left.shape)
    predicate = g.choices.pick(PREDICATES)
    g.keep(g.add(arith.Compare(left.value, right.value, predicate)).out, Facts())


def make_select(g: Generator) -> None:
    """Add a choice between two values."""
    left = g.any_item(lambda _: True, ELEMENTS)
    right = g.operand(left.element, left.shape)
    condition = g.operand(I1, left.shape)
    op = g.add(arith.Select(condition.value, left.value, right.value))
    g.keep(op.out, joined(left.facts, right.facts))


def make_cast(g: Generator) -> None:
    """Add a conversion to another type, or the same bits in another."""
    item = g.any_item(lambda i: i.facts.is_known, ELEMENTS)
    target = g.choices.weighted(ELEMENTS)
    if _is_bitcast_defined(item, target) and g.choices.chance(1, 3):
        value = g.add(arith.Bitcast(item.value, target)).out
        g.keep(value, full(target))
        return
    facts = cast_facts(item, target)
    if facts is None:
        return
    rounding: arith.Rounding = "rtne"
    source = item.element
    if source.is_float and target.is_float and target.bits < source.bits and target.bits > 8:
        rounding = g.choices.pick(["rtne", "rtz"])
    g.keep(g.add(arith.Cast(item.value, target, rounding)).out, facts)


def _is_bitcast_defined(item: Item, target: ScalarType) -> bool:
    # The bits of a NaN, and the sign of a zero, are not known once there was arithmetic.
    source = item.element
    return source.bits == target.bits > 1 and source.is_int and source != target


def cast_facts(item: Item, target: ScalarType) -> Facts | None:
    """Return the facts of a value converted to `target`; None if undefined."""
    source, facts = item.element, item.facts
    if target.is_bool:
        return Facts()
    if source.is_float and target.is_int:
        whole = Facts(lo=max(facts.lo, 0), hi=max(facts.hi, 0))
        return whole if facts.is_exact and target.is_signed and fits(target, whole) else None
    if source.is_float and target.is_float:
        if facts.is_exact and fits(target, facts):
            return facts
        return facts if facts.kind == "product" else RAGGED
    if target.is_float:
        return facts if facts.hi < source.bits - 1 and fits(target, facts) else RAGGED
    # A negative number becomes a large one where there is no sign.
    keeps = fits(target, facts) and (target.is_signed or not source.is_signed)
    return facts if keeps and fits(source, facts) else full(target)


# ---- approximate functions --------------------------------------------------------------------

Positive = Callable[[Generator, Item], Value]


def make_function(g: Generator) -> None:
    """Add an elementary function of arguments up to 8 in magnitude, or a quotient.

    Error bounds are those of the CUDA C++ Programming Guide ("Mathematical Functions") and the PTX
    ISA, doubled: 2 for libdevice and the approximations. An exponential adds 1 for each unit of its
    argument, because the product with log2(e) is rounded before `ex2`.
    """
    element = g.choices.weighted(FLOATS)
    candidates = g.candidates(
        lambda i: i.element == element and i.facts.is_exact and i.facts.hi <= 3 and bool(i.shape)
    )
    item = g.recent(candidates) if candidates else None
    if item is None:
        item = g.load(g, element, g.some_shape(), True)
        if item.facts.hi > 3:
            return
    name = g.choices.pick(list(_FUNCTIONS))
    cls, needs_positive, steps = _FUNCTIONS[name]
    value = item.value
    if needs_positive:
        unit = g.constant(1, value.type)
        value = g.add(arith.Max(g.add(arith.Abs(value)).out, unit)).out
    if element != FP32:
        # Half precision is computed in fp32 and rounded; fp64 is libdevice's, off by 2 at most.
        steps = min(steps, 1.0 if element.bits < 32 else 4.0)
    facts = RAGGED if steps == 0.0 else Facts("approximate", steps=steps)
    g.keep(g.add(cls(value)).out, facts)


def make_quotient(g: Generator) -> None:
    """Add a float quotient, rounded correctly or not."""
    left = g.any_item(lambda i: i.element.is_float and _is_number(i) and i.facts.is_exact, FLOATS)
    if left.element.is_int or not left.facts.is_exact:
        return
    right = g.operand(left.element, left.shape, exact).value
    unit = g.constant(1, right.type)
    right = g.add(arith.Max(g.add(arith.Abs(right)).out, unit)).out
    if g.choices.chance(1, 2):
        g.keep(g.add(arith.DivRn(left.value, right)).out, RAGGED)
        return
    is_approximate = element_of(right.type) != FP64
    facts = Facts("approximate", steps=4.0) if is_approximate else RAGGED
    g.keep(g.add(arith.Div(left.value, right)).out, facts)


# Name -> (op, whether it is for positive arguments only, steps it may be off).
_FUNCTIONS: dict[str, tuple[type[arith.Unary], bool, float]] = {
    "exp2": (arith.Exp2, False, 4.0),
    "exp": (arith.Exp, False, 12.0),
    "sqrt": (arith.Sqrt, True, 4.0),
    "sqrt_rn": (arith.SqrtRn, True, 0.0),
    "rsqrt": (arith.Rsqrt, True, 4.0),
    "log2": (arith.Log2, True, 8.0),
    "log": (arith.Log, True, 8.0),
    "erf": (arith.Erf, False, 8.0),
}

ELEMENTWISE: list[tuple[int, Callable[[Generator], None]]] = [
    (6, make_sum),
    (2, make_fma),
    (3, make_bits),
    (2, make_division),
    (2, make_shift),
    (3, make_extreme),
    (2, make_unary),
    (3, make_compare),
    (4, make_select),
    (4, make_cast),
    (1, make_libdevice),
    (1, make_assembly),
    (1, make_function),
    (1, make_quotient),
]
