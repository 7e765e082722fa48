"""Generator state: the program's ops so far, and the pool of usable values.

Each new value joins the *pool* of its scope with its facts. A maker asks for an operand of some
type. It gets a value of the pool, perhaps cast, reshaped or broadcast, or else a new load or
constant. So every request can be met, programs are connected, and a shrunk Hypothesis choice
leaves a valid program.

Invariant: every choice gives valid tile IR without undefined behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

from aotc.ir.core import Block, Value
from aotc.ir.dialects import arith, tile
from aotc.ir.params import ParamInfo
from aotc.ir.rewrite import Builder
from aotc.ir.types import (
    FP32,
    I1,
    I32,
    I64,
    DescriptorType,
    PointerType,
    ScalarType,
    TileType,
    Type,
    element_of,
    shape_of,
)
from tests.fuzz.arguments import Argument, Buffer, Scalar, Tensor
from tests.fuzz.choices import Choices
from tests.fuzz.facts import Facts, fits, full

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """A value and its facts."""

    value: Value
    facts: Facts

    @property
    def element(self) -> ScalarType:
        element = element_of(self.value.type)
        assert isinstance(element, ScalarType)
        return element

    @property
    def shape(self) -> Shape:
        return shape_of(self.value.type)


@dataclass(frozen=True, slots=True)
class Counter:
    """A scalar for addresses: `value`, an i32 from 0 up to `extent`."""

    value: Value
    extent: int
    is_program: bool = False


@dataclass
class Scope:
    """Hold the place ops go to, the values seen there, and the counters of its loops."""

    add: Builder
    pool: list[Item]
    counters: list[Counter]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bound the size of a program."""

    ops: int = 14
    elems: int = 1024
    nesting: int = 2
    outputs: int = 4


# A kernel's parameters take 4096 bytes at most, a tensor's 128 and its sizes.
_PARAM_BYTES: dict[type[Argument], int] = {Scalar: 4, Buffer: 8, Tensor: 192}
_MAX_PARAM_BYTES, _MAX_BYTES_WITH_NUMBERS = 3400, 1200

Maker = Callable[["Generator"], None]
Load = Callable[["Generator", ScalarType, Shape, bool], Item]
Store = Callable[["Generator", Item], None]
Accepts = Callable[[Facts], bool]


def anything(facts: Facts) -> bool:
    """Accept every value."""
    del facts
    return True


def known(facts: Facts) -> bool:
    """Accept values with every bit certain."""
    return facts.is_known


def exact(facts: Facts) -> bool:
    """Accept exact values."""
    return facts.is_exact


@dataclass
class Generator:
    """Grow a program; see the module docstring."""

    choices: Choices
    limits: Limits
    grid: tuple[int, ...]
    makers: Sequence[tuple[int, Maker]]
    load: Load
    store: Store
    body: Block = field(default_factory=Block)
    params: list[ParamInfo] = field(default_factory=list[ParamInfo])
    arguments: list[Argument] = field(default_factory=list[Argument])
    scopes: list[Scope] = field(default_factory=list[Scope])
    tidy: bool = False
    """Whether places in memory are to have all that vectors and asynchronous copies need."""

    def __post_init__(self) -> None:
        self.scopes.append(Scope(Builder(self.body), [], []))
        self.left = self.limits.ops
        self._param_bytes = 0

    # ---- places --------------------------------------------------------------------------

    @property
    def add(self) -> Builder:
        """Insert an op where the program grows now."""
        return self.scopes[-1].add

    @property
    def depth(self) -> int:
        return len(self.scopes) - 1

    @contextmanager
    def scope(
        self, block: Block, items: Sequence[Item], counters: Sequence[Counter]
    ) -> Iterator[Scope]:
        """Grow the program inside `block`, where outer values are known as well."""
        outer = self.scopes[-1]
        scope = Scope(Builder(block), [*outer.pool, *items], [*outer.counters, *counters])
        self.scopes.append(scope)
        try:
            yield scope
        finally:
            self.scopes.pop()

    def grow(self, count: int) -> None:
        """Let makers add to the program, about `count` times."""
        for _ in range(count):
            if self.left <= 0:
                return
            self.left -= 1
            self.choices.weighted(self.makers)(self)

    def keep(self, value: Value, facts: Facts) -> Item:
        """Add a new value to the pool."""
        item = Item(value, facts)
        self.scopes[-1].pool.append(item)
        return item

    # ---- parameters ----------------------------------------------------------------------

    def pointer(self, buffer: Callable[[str], Buffer], divisibility: int) -> Value:
        """Add a parameter that points to a buffer."""
        argument = buffer(f"p{len(self.params)}")
        return self._param(PointerType(argument.element), argument, divisibility)

    def tensor(
        self, tensor: Callable[[str], Tensor], block: Shape, *, fill_nan: bool = False
    ) -> Value:
        """Add a tensor parameter, accessed by blocks of a shape."""
        argument = tensor(f"p{len(self.params)}")
        return self._param(DescriptorType(argument.element, block, fill_nan), argument, 1)

    @property
    def has_room(self) -> bool:
        """Return whether a kernel may have many more parameters."""
        return self._param_bytes < _MAX_PARAM_BYTES

    def number(self, value: int, element: ScalarType = I32, divisibility: int = 1) -> Value:
        """Return a numeric parameter, or a constant once there are many parameters."""
        if self._param_bytes >= _MAX_BYTES_WITH_NUMBERS:
            return self.constant(value, element)
        return self._param(element, Scalar(f"p{len(self.params)}", value), divisibility)

    def _param(self, type_: Type, argument: Argument, divisibility: int) -> Value:
        self.params.append(ParamInfo(argument.name, divisibility))
        self.arguments.append(argument)
        self._param_bytes += _PARAM_BYTES[type(argument)]
        return self.body.add_arg(type_, argument.name)

    def known_or_given(self, value: int, element: ScalarType = I32) -> Value:
        """Return a number as a constant or a parameter."""
        is_known = self.choices.chance(1, 2)
        return self.constant(value, element) if is_known else self.number(value, element)

    def linear(self, counters: Sequence[Counter]) -> tuple[Value | None, int]:
        """Return one index of all counters, None without any, and how many it counts."""
        index: Value | None = None
        extent = 1
        for counter in counters:
            term = counter.value
            if index is not None:
                scaled = self.add(arith.Mul(term, self.known_or_given(extent))).out
                term = self.add(arith.Add(index, scaled)).out
            index = term
            extent *= max(counter.extent, 1)
        return index, extent

    # ---- small values --------------------------------------------------------------------

    def constant(self, value: float, type_: Type) -> Value:
        """Return a constant."""
        element = element_of(type_)
        is_float = isinstance(element, ScalarType) and element.is_float
        typed = float(value) if is_float else bool(value) if element == I1 else int(value)
        return self.add(arith.Constant(typed, type_)).out

    def spread(self, value: Value, shape: Shape) -> Value:
        """Return a scalar in every element of a tile; itself for the shape of a scalar."""
        return self.add(tile.Splat(value, shape)).out if shape else value

    def along(self, axis: int, shape: Shape) -> Value:
        """Return the index along an axis as an i32 tile of `shape`'s rank, 1 long elsewhere."""
        index = self.add(tile.Arange(0, shape[axis])).out
        return self.on_axis(index, axis, len(shape))

    def on_axis(self, value: Value, axis: int, rank: int) -> Value:
        """Return a tile of one axis with others of extent 1 around it."""
        for other in range(rank):
            if other != axis:
                value = self.add(tile.ExpandDims(value, other)).out
        return value

    def stretched(self, value: Value, shape: Shape) -> Value:
        """Return a tile repeated along its axes of extent 1."""
        same = shape_of(value.type) == shape
        return value if same else self.add(tile.Broadcast(value, shape)).out

    # ---- choices of types and operands ---------------------------------------------------

    def some_shape(
        self, max_elems: int | None = None, *, ranks: Sequence[int] = (1, 2, 2, 3)
    ) -> Shape:
        """Choose the shape of a tile."""
        bits = (max_elems or self.limits.elems).bit_length() - 1
        rank = self.choices.pick(ranks)
        exponents: list[int] = []
        for _ in range(rank):
            exponents.append(self.choices.below(min(bits, 9) + 1))
            bits -= exponents[-1]
        return tuple(1 << exponent for exponent in self._shuffled(exponents))

    def _shuffled(self, values: Sequence[int]) -> list[int]:
        order = list(values)
        for index in range(len(order) - 1, 0, -1):
            other = index - self.choices.below(index + 1)
            order[index], order[other] = order[other], order[index]
        return order

    def permutation(self, count: int) -> tuple[int, ...]:
        """Choose an order of so many axes."""
        return tuple(self._shuffled(range(count)))

    def candidates(self, accept: Callable[[Item], bool]) -> list[Item]:
        """Return accepted values of the pool, the newest first."""
        return [item for item in reversed(self.scopes[-1].pool) if accept(item)]

    def recent(self, items: Sequence[Item]) -> Item:
        """Choose one of `items`, one of the first few more often."""
        near = items[: 4 if self.choices.chance(2, 3) else len(items)]
        return self.choices.pick(near)

    def any_item(
        self, accept: Callable[[Item], bool], elements: Sequence[tuple[int, ScalarType]]
    ) -> Item:
        """Choose an accepted tile, or make one of `elements`."""
        candidates = self.candidates(lambda item: bool(item.shape) and accept(item))
        if candidates and not self.choices.chance(1, 6):
            return self.recent(candidates)
        return self.fresh(self.choices.weighted(elements), self.some_shape())

    def operand(self, element: ScalarType, shape: Shape, accept: Accepts = known) -> Item:
        """Return a value of a type: one of the pool, one made from it, or a new one."""
        same = self.candidates(lambda i: i.element == element and accept(i.facts))
        if self.choices.chance(1, 4):
            same = [item for item in same if item.shape != shape]
        candidates = [i for i in same if i.shape == shape] or [
            i for i in same if reaches(i.shape, shape)
        ]
        if candidates and not self.choices.chance(1, 8):
            return self.conform(self.recent(candidates), shape)
        return self.fresh(element, shape, is_exact=not accept(full(element)))

    def conform(self, item: Item, shape: Shape) -> Item:
        """Return a value under another shape that it `reaches`."""
        value, have = item.value, item.shape
        if have == shape:
            return item
        if not have:
            return self.keep(self.spread(value, shape), item.facts)
        if prod(have) == prod(shape):
            return self.keep(self.add(tile.Reshape(value, shape)).out, item.facts)
        if len(have) < len(shape):
            axis = next(axis for axis in range(len(shape)) if shape[axis] == have[0])
            value = self.on_axis(value, axis, len(shape))
        return self.keep(self.stretched(value, shape), item.facts)

    def fresh(self, element: ScalarType, shape: Shape, *, is_exact: bool | None = None) -> Item:
        """Return a new value: loaded, constant, or an index."""
        exactly = self.choices.chance(3, 4) if is_exact is None else is_exact
        how = self.choices.weighted([(1, "constant"), (6, "load"), (1, "index")])
        if how == "index" and len(shape) and element in (I32, I64, FP32):
            return self._index(element, shape)
        if how == "constant":
            return self.some_constant(element, shape)
        return self.load(self, element, shape, exactly)

    def _index(self, element: ScalarType, shape: Shape) -> Item:
        axis = self.choices.below(len(shape))
        value = self.stretched(self.along(axis, shape), shape)
        if element != I32:
            value = self.add(arith.Cast(value, element)).out
        return self.keep(value, Facts(hi=max(shape[axis] - 1, 0).bit_length()))

    def some_constant(self, element: ScalarType, shape: Shape, *, is_zero: bool = False) -> Item:
        """Choose a small constant."""
        low = -2 if element.is_float or element.is_signed else 0
        value = 0 if is_zero else self.choices.between(low, 1 if element.is_bool else 4)
        type_ = TileType(element, shape) if shape else element
        facts = Facts(hi=abs(value).bit_length())
        assert fits(element, facts) or element.is_bool or element.bits == 8
        return self.keep(self.constant(value, type_), facts)


def reaches(have: Shape, shape: Shape) -> bool:
    """Return whether a value of shape `have` can be given `shape` by reshaping or repeating."""
    if not have or prod(have) == prod(shape):
        return bool(shape)
    if len(have) == len(shape):
        return all(old in (1, new) for old, new in zip(have, shape, strict=True))
    return len(have) == 1 and have[0] in shape
