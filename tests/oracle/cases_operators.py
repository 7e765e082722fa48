"""Operators on all pairs of types, with run-time scalars and with literals; conversions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.oracle.cases import Case, Input, scalar, tile
from tests.oracle.values import (
    FLOATS,
    FP8,
    NUMPY,
    TYPES,
    Array,
    is_float,
    plain,
    shifts,
    special,
)

_MIXED = ("int1", "int8", "uint8", "int32", "uint32", "int64", "float16", "bfloat16", "float32")
_BESIDE_FP8 = ("int32", "float16", "bfloat16", "float32", *FP8)
_ARITHMETIC = "r = a + b\ns = a - b\nt = a * b"
_COMPARE = "r = a == b\ns = a != b\nt = a < b\nu = a <= b\nv = a > b\nw = a >= b"
_BITS = "r = a & b\ns = a | b\nt = a ^ b"
_EXTREMES = """r = tl.minimum(a, b)
s = tl.maximum(a, b)
t = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
u = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
v = tl.where(a < b, a, b)"""


def _pairs(left: str, right: str) -> tuple[Array, Array]:
    """Return pairs of special values: all within one type, some across two."""
    left_values, right_values = special(left), special(right)
    count = 16 if left == right else 2
    rows = [np.roll(right_values, 3 * shift) for shift in range(count)]
    return np.tile(left_values, count), np.concatenate(rows)


def _divisible(left: str, right: str) -> tuple[Array, Array]:
    """Return pairs of integers with a defined quotient."""
    dividend, divisor = _pairs(left, right)
    if not is_float(right):
        divisor = np.where(divisor == 0, np.ones(1, divisor.dtype), divisor)
    if not is_float(left) and NUMPY[left].kind == "i":
        dividend = np.where(
            dividend == np.iinfo(dividend.dtype).min, dividend.dtype.type(7), dividend
        )
    return dividend, divisor


def _both(left: str, right: str, values: tuple[Array, Array]) -> tuple[Input, Input]:
    return tile(left, values[0]), tile(right, values[1])


def _binary() -> Iterator[Case]:
    for left in TYPES:
        for right in TYPES:
            if not _has_cases(left, right):
                continue
            pair, name = _both(left, right, _pairs(left, right)), f"{left},{right}"
            yield Case(f"arithmetic/{name}", _ARITHMETIC, pair, 3)
            yield Case(f"compare/{name}", _COMPARE, pair, 6)
            yield Case(f"bits/{name}", _BITS, pair, 3)
            divisible = _both(left, right, _divisible(left, right))
            yield Case(f"divide/{name}", "r = a / b", divisible)
            yield Case(f"floordiv/{name}", "r = a // b", divisible)
            yield Case(f"remainder/{name}", "r = a % b", divisible)
            amounts = np.tile(shifts(right, _width(left)), 2)
            values = np.concatenate([special(left), np.roll(special(left), 5)])
            yield Case(
                f"shift/{name}",
                "r = a << b\ns = a >> b",
                _both(left, right, (values, amounts)),
                2,
            )
            if left == right or (left in _MIXED and right in _MIXED):
                yield Case(f"extremes/{name}", _EXTREMES, pair, 5)


def _has_cases(left: str, right: str) -> bool:
    """Return whether a pair of types has cases; fp8 meets only the types of `_BESIDE_FP8`."""
    return (left not in FP8 or right in _BESIDE_FP8) and (right not in FP8 or left in _BESIDE_FP8)


def _width(name: str) -> int:
    return 1 if name == "int1" else 8 * NUMPY[name].itemsize


def _scalars() -> Iterator[Case]:
    for left in _MIXED:
        for right in _MIXED:
            left_value, right_value = (
                scalar(left, plain(left, 2, 1)),
                tile(right, plain(right, 16, 2)),
            )
            yield Case(
                f"scalar/{left},{right}",
                "r = a + b\ns = b - a\nt = a < b",
                (left_value, right_value),
                3,
            )
        yield Case(f"scalar/{left}", "r = a + 1\ns = a < 2", (scalar(left, plain(left, 2)),), 2)


_LITERALS = (
    *("0", "1", "-1", "True", "127", "128", "255", "256", "-129", "65535", "65536"),
    *("2147483647", "2147483648", "4294967295", "4294967296", "-2147483648", "-2147483649"),
    *("9223372036854775807", "9223372036854775808", "18446744073709551615"),
    *("0.0", "0.1", "-2.5", "1e-40", "1e39", "65520.0", 'float("inf")', 'float("nan")'),
)


def _literals() -> Iterator[Case]:
    for name in TYPES:
        values = tile(name, special(name))
        for text in _LITERALS:
            where = f"{name},{text}"
            body = f"r = a + ({text})\ns = ({text}) * a\nt = a < ({text})"
            yield Case(f"literal/{where}", body, (values,), 3)
        for text in ("3", "-3", "2.5", "255", "4294967295"):
            divisible = tile(name, _divisible(name, name)[0][:16])
            where = f"{name},{text}"
            yield Case(f"literal divide/{where}", f"r = a / ({text})", (divisible,))
            yield Case(f"literal floordiv/{where}", f"r = a // ({text})", (divisible,))
            yield Case(f"literal remainder/{where}", f"r = a % ({text})", (divisible,))
            yield Case(f"literal bits/{where}", f"r = a & ({text})\ns = ({text}) ^ a", (values,), 2)
            yield Case(f"literal maximum/{where}", f"r = tl.maximum(a, {text})", (values,))
            yield Case(f"literal where/{where}", f"r = tl.where(a != 0, a, {text})", (values,))
        amounts = tile(name, shifts(name, _width(name)))
        yield Case(f"literal shift/{name}", "r = a << 0\ns = a >> 0\nt = 1 << a", (amounts,), 3)
        yield Case(f"literal shift right/{name}", "r = 100 >> a", (amounts,))
        yield Case(f"literal shift right/-{name}", "r = -100 >> a", (amounts,))


def _unary() -> Iterator[Case]:
    for name in TYPES:
        values = (tile(name, special(name)),)
        for label, body in (
            ("minus", "r = -a"),
            ("plus", "r = +a"),
            ("invert", "r = ~a"),
            ("abs", "r = tl.abs(a)"),
        ):
            yield Case(f"unary/{label},{name}", body, values)
    yield Case("unary/not,int1", "r = not a", (scalar("int1", special("int1")),))


# ---- conversions ------------------------------------------------------------------------------


def _convertible(source: str, target: str) -> Array:
    """Return special values of `source`, but in the range of an integer `target`."""
    values = special(source)
    if not is_float(source) or is_float(target) or target == "int1":
        return values
    small = np.array(
        [0.0, -0.0, 0.5, -0.5, 1.0, 1.5, 2.5, 3.75, 7.0, 100.0, 112.0, 0.25] + [1.0] * 4
    )
    if not target.startswith("uint"):
        small[12:] = [-1.0, -1.5, -7.0, -100.0]
    return small.astype(values.dtype)


def _ties(source: str, target: str) -> Array:
    """Return numbers of `source` near ties of `target`, and beyond its range."""
    import ml_dtypes

    info = ml_dtypes.finfo(NUMPY[target])
    step = 2.0**-info.nmant
    halves = np.array([1 + step / 2, 1 + 1.5 * step, 2 - step / 2, 1 + step / 4, 1 + 0.75 * step])
    least, largest = float(info.smallest_subnormal), float(info.max)
    edges = [least / 2, least * 0.75, least * 1.5, least * 0.49, largest * (1 + step / 4)]
    more = [largest * (1 + step / 2), largest * 1.01, largest * 2, float(info.smallest_normal), 0.0]
    with np.errstate(all="ignore"):
        return np.concatenate([halves, -halves, edges, [-edge for edge in edges], more]).astype(
            NUMPY[source]
        )[:16]


def _casts() -> Iterator[Case]:
    for source in TYPES:
        for target in TYPES:
            values = tile(source, _convertible(source, target))
            yield Case(f"cast/{source},{target}", f"r = a.to(tl.{target})", (values,))
            if _width(source) == _width(target) and source != target:
                body = f"r = a.to(tl.{target}, bitcast=True)"
                yield Case(f"bitcast/{source},{target}", body, (tile(source, special(source)),))
    floats = (*FLOATS, *FP8)
    for source in floats:
        for target in floats:
            for rounding in ("rtne", "rtz"):
                body = f'r = a.to(tl.{target}, fp_downcast_rounding="{rounding}")'
                values = np.concatenate([special(source), _ties(source, target)])
                yield Case(f"rounding/{rounding},{source},{target}", body, (tile(source, values),))


def operators() -> Iterator[Case]:
    """Yield the cases of operators and conversions."""
    yield from _binary()
    yield from _scalars()
    yield from _literals()
    yield from _unary()
    yield from _casts()
