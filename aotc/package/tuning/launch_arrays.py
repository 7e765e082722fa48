"""Evaluate expressions over many launches at a time, as arrays of integers.

Axis 0 counts launches, axis 1 the sampled program instances of a launch. Values without a result,
such as a quotient by zero, are 0: estimates go on where the launcher would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, TypeAlias

from aotc.ir import expression
from aotc.ir.expression import Binary, Expression, Extent, Integer, Name, Unary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Integers: TypeAlias = "NDArray[np.int64]"
Reals: TypeAlias = "NDArray[np.float64]"

UNKNOWN_EXTENT = 4096
"""Assumed value of a number unknown at launch, such as a loaded one."""

NUM_PROGRAMS = 16
"""Number of program instances sampled from a launch."""

NUM_NEIGHBOURS = 128
"""Number of program instances, adjacent or scattered, among which equal loads are counted."""

_CTAS = 132
"""CTAs of a persistent kernel, as far as they decide on the order of programs."""

_BISECTIONS = 24
_MAX_PARSED = 4096
_GOLDEN_RATIO = 0.6180339887498949


class Launches:
    """Values of the integer arguments and extents of some launches, a column each."""

    def __init__(self, columns: Mapping[str, Integers]) -> None:
        import numpy as np  # noqa: PLC0415 - start-up time

        self.count = max((len(column) for column in columns.values()), default=1)
        self.columns = {name: values.astype(np.int64)[:, None] for name, values in columns.items()}
        self._grids: dict[tuple[Expression, ...], GridArrays] = {}

    def grid(self, axes: tuple[Expression, ...]) -> GridArrays:
        """Return the program instances of the launches under a grid; variants share them."""
        if axes not in self._grids:
            self._grids[axes] = GridArrays(self.columns, axes)
        return self._grids[axes]


class GridArrays:
    """Sampled program instances of some launches, and how many of them load the same bytes.

    `named` are the `Work.values` of all variants.
    """

    def __init__(self, columns: Mapping[str, Integers], axes: tuple[Expression, ...]) -> None:
        import numpy as np  # noqa: PLC0415 - start-up time

        self.named: dict[str, str] = {}
        plain = LaunchArrays(columns)
        unit = np.ones((1, 1), np.int64)
        extents = [np.maximum(plain.value(axis), 0) for axis in axes]
        self._columns = columns
        self._extents = [*extents, unit, unit][:3]
        self.num_programs = self._extents[0] * self._extents[1] * self._extents[2]
        self.spread = self._programs(self._spread())
        self.first = self._programs(np.zeros((1, 1), np.int64))
        number = np.arange(NUM_NEIGHBOURS)[None, :]
        anywhere = np.fmod(number * _GOLDEN_RATIO, 1.0) * self.num_programs
        self._far = self._programs(anywhere.astype(np.int64))
        self._near = self._programs(np.minimum(number, self.num_programs - 1))
        self._distinct: dict[tuple[str, ...], tuple[Reals, Reals]] = {}

    def distinct(self, origins: tuple[str, ...]) -> tuple[Reals, Reals]:
        """Return the number of distinct load origins of all programs, and their share among neighbours."""
        import numpy as np  # noqa: PLC0415 - start-up time

        if origins not in self._distinct:
            programs = self.num_programs.astype(np.float64)
            near = _count_distinct(origins, self._near)
            share = near / np.maximum(np.minimum(programs, NUM_NEIGHBOURS), 1)
            num_origins = _extrapolate(_count_distinct(origins, self._far), programs)
            self._distinct[origins] = num_origins, share
        return self._distinct[origins]

    def _spread(self) -> Integers:
        """Return linear indices of program instances spread evenly over each axis.

        They have no period, since kernels take indices modulo constants.
        """
        import numpy as np  # noqa: PLC0415 - start-up time

        number = np.arange(NUM_PROGRAMS)[None, :]
        x, y, z = self._extents
        second, third = (
            np.fmod(number * _GOLDEN_RATIO, 1.0),
            np.fmod(number * _GOLDEN_RATIO**2, 1.0),
        )
        first = (number + second) / NUM_PROGRAMS
        along = [(f * e).astype(np.int64) for f, e in ((first, x), (second, y), (third, z))]
        return along[0] + x * (along[1] + y * along[2])

    def _programs(self, linear: Integers) -> LaunchArrays:
        """Return the values of expressions for program instances, given by their linear index."""
        import numpy as np  # noqa: PLC0415 - start-up time

        x, y, z = self._extents
        width, height = np.maximum(x, 1), np.maximum(y, 1)
        values = {
            **self._columns,
            "__n0": x,
            "__n1": y,
            "__n2": z,
            "__n": np.full((1, 1), _CTAS, np.int64),
            "__p": linear,
            "__p0": linear % width,
            "__p1": linear // width % height,
            "__p2": linear // (width * height),
        }
        return LaunchArrays(values, self.named)


def _count_distinct(origins: tuple[str, ...], arrays: LaunchArrays) -> Reals:
    """Return the number of distinct origins of the programs' loads."""
    import numpy as np  # noqa: PLC0415 - start-up time

    origin_hash = np.zeros((1, 1), np.int64)
    for origin in origins:
        origin_hash = origin_hash * 1_000_003 + arrays.of(origin)
    ordered = np.sort(origin_hash, axis=1)
    return 1.0 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1, keepdims=True)


def _extrapolate(seen: Reals, programs: Reals) -> Reals:
    """Extrapolate from the `seen` distinct origins of scattered programs to all origins.

    They have seen u * (1 - exp(-count / u)) of u origins; solve for u.
    """
    import numpy as np  # noqa: PLC0415 - start-up time

    low, high = np.log(seen), np.log(np.maximum(programs, seen))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        num_origins = np.exp(middle)
        is_above = num_origins * (1 - np.exp(-NUM_NEIGHBOURS / num_origins)) > seen
        low, high = np.where(is_above, low, middle), np.where(is_above, middle, high)
    return np.where(programs <= NUM_NEIGHBOURS, seen, np.exp(high))


class LaunchArrays:
    """The values of expressions for some launches, each computed once."""

    def __init__(
        self, values: Mapping[str, Integers], named: Mapping[str, str] | None = None
    ) -> None:
        self._values = values
        self._named: Mapping[str, str] = {} if named is None else named
        self._texts: dict[str, Integers] = {}
        self._nodes: dict[Expression, Integers] = {}

    def of(self, text: str) -> Integers:
        """Return the value of an expression's text."""
        if text not in self._texts:
            self._texts[text] = self.value(parsed(text))
        return self._texts[text]

    def value(self, root: Expression) -> Integers:
        """Return the value of an expression, as an array that broadcasts to all launches."""
        import numpy as np  # noqa: PLC0415 - start-up time

        match root:
            case Integer(value):
                return np.full((1, 1), value, np.int64)
            case Name(name) if name in self._named:
                return self.of(self._named[name])
            case Name() | Extent():
                unknown = np.full((1, 1), UNKNOWN_EXTENT, np.int64)
                return self._values.get(expression.to_text(root), unknown)
            case Unary("not", operand):
                return (self.value(operand) == 0).astype(np.int64)
            case Unary(_, operand):
                return -self.value(operand)
            case Binary(op, lhs, rhs):
                if root not in self._nodes:
                    self._nodes[root] = _operators()[op](self.value(lhs), self.value(rhs))
                return self._nodes[root]


@lru_cache(_MAX_PARSED)
def parsed(text: str) -> Expression:
    """Parse a text; configs have many expressions in common."""
    return expression.parse(text)


@cache
def _operators() -> dict[str, Callable[[Integers, Integers], Integers]]:
    import numpy as np  # noqa: PLC0415 - start-up time

    def divisor(values: Integers) -> Integers:
        return np.where(values == 0, 1, values)

    def truth(
        compare: Callable[[Integers, Integers], NDArray[np.bool_]],
    ) -> Callable[[Integers, Integers], Integers]:
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
