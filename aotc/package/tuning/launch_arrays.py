"""Expressions over many launches at a time, as arrays of integers.

Axis 0 counts launches, axis 1 the program instances that stand for all of a launch. What cannot be
computed, such as a quotient by zero, is 0: estimates go on where the launcher would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from aotc.ir import expression
from aotc.ir.expression import Binary, Expression, Extent, Integer, Name, Unary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Integers: TypeAlias = "NDArray[np.int64]"

UNKNOWN_EXTENT = 4096
"""What stands for a number that no launch gives, such as a loaded one."""


class LaunchArrays:
    """The values of expressions for some launches, each computed once."""

    def __init__(self, values: Mapping[str, Integers]) -> None:
        self._values = values
        self._texts: dict[str, Integers] = {}

    def of(self, text: str) -> Integers:
        """Return the value of an expression's text."""
        if text not in self._texts:
            self._texts[text] = self.value(_parsed(text))
        return self._texts[text]

    def value(self, root: Expression) -> Integers:
        """Return the value of an expression, as an array that broadcasts to all launches."""
        import numpy as np  # noqa: PLC0415 - start-up time

        match root:
            case Integer(value):
                return np.full((1, 1), value, np.int64)
            case Name() | Extent():
                unknown = np.full((1, 1), UNKNOWN_EXTENT, np.int64)
                return self._values.get(expression.to_text(root), unknown)
            case Unary("not", operand):
                return (self.value(operand) == 0).astype(np.int64)
            case Unary(_, operand):
                return -self.value(operand)
            case Binary(op, lhs, rhs):
                return _operators()[op](self.value(lhs), self.value(rhs))


@cache
def _parsed(text: str) -> Expression:
    return expression.parse(text)


@cache
def _operators() -> dict[str, Callable[[Integers, Integers], Integers]]:
    import numpy as np  # noqa: PLC0415 - start-up time

    def divisor(values: Integers) -> Integers:
        return np.where(values == 0, 1, values)

    def truth(compare: Callable[[Integers, Integers], NDArray[np.bool_]]) -> Callable[[Integers, Integers], Integers]:
        return lambda a, b: compare(a, b).astype(np.int64)

    return {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "//": lambda a, b: a // divisor(b) * (b != 0),
        "%": lambda a, b: a % divisor(b) * (b != 0),
        "cdiv": lambda a, b: -(-a // divisor(b)) * (b != 0),
        "min": np.minimum,
        "max": np.maximum,
        "and": truth(lambda a, b: (a != 0) & (b != 0)),
        "or": truth(lambda a, b: (a != 0) | (b != 0)),
        "==": truth(lambda a, b: a == b),
        "!=": truth(lambda a, b: a != b),
        "<": truth(lambda a, b: a < b),
        "<=": truth(lambda a, b: a <= b),
        ">": truth(lambda a, b: a > b),
        ">=": truth(lambda a, b: a >= b),
    }
