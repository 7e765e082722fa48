"""Register pressure: the registers of a thread for live tiles, by tile.

It explains why registers do not suffice: before code is generated for a hopeless kernel, and after
ptxas has spilled. A tile is live from its definition to its last use. A use inside a loop keeps a
tile from outside live for the whole loop. Elements narrower than a register share one. Values
rematerialized by ptxas are not counted: addresses, masks, index arithmetic.

Between two fences (stores, barriers, ends of loops) ptxas interleaves: a tile loaded there and
reduced there is never in registers as a whole. So live registers are counted at fences alone.

It is an estimate: for messages and refusals, and for decisions to reorder dots.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import PurePath

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.diagnostics import Loc
from aotc.ir.dialects import scf, wgmma
from aotc.ir.effects import Trait
from aotc.ir.order import enclosing_in, number_ops
from aotc.ir.rewrite import is_pure
from aotc.ir.types import PointerType, TileType
from aotc.schedule.analysis.register_budget import tile_registers

_LISTED = 3


@dataclass(frozen=True)
class LiveTiles:
    """The tiles of a kernel defined at one place of the source and live at its peak."""

    type: str
    loc: Loc
    registers: int

    def __str__(self) -> str:
        return f"{self.type} at {place_text(self.loc)} ({self.registers} registers)"


def place_text(loc: Loc) -> str:
    """Return a place without its folder: messages about an archive's kernels have no paths."""
    return f"{PurePath(loc.file).name}:{loc.line}"


@dataclass(frozen=True)
class Peak:
    """The point with the most live registers, their number, and the tiles, largest first."""

    loc: Loc
    registers: int
    tiles: tuple[LiveTiles, ...]

    def __str__(self) -> str:
        listed = ", ".join(map(str, self.tiles[:_LISTED]))
        more = len(self.tiles) - _LISTED
        tail = f" and {more} more" if more > 0 else ""
        summary = f"tiles take {self.registers} registers of a thread at {place_text(self.loc)}"
        return f"{summary}: {listed}{tail}" if listed else summary


@dataclass(frozen=True)
class _Life:
    """The live range of a value: numbers of its defining op and of its last user."""

    start: int
    end: int
    value: Value
    loc: Loc
    registers: int


def is_fence(op: Op) -> bool:
    """Return whether ptxas reorders nothing across an op."""
    return op.terminator or (
        op.has_side_effects and not op.has(Trait.NO_INSTRUCTION) and not op.blocks
    )


def find_peak(kernel: Kernel, is_place: Callable[[Op], bool] = is_fence) -> Peak:
    """Return the point with the most tile registers of a thread in a kernel of gpu IR."""
    numbers = number_ops(kernel)
    fences = [first for op, (first, _) in numbers.items() if is_place(op)]
    rematerialized: dict[Value, bool] = {}
    lives = [
        _Life(*_life(value, op, numbers), value, op.loc, tile_registers(value.type))
        for op in numbers
        for value in _defined_values(op)
        if isinstance(value.type, TileType) and not is_made_again(value, rematerialized)
    ]
    fullest, registers = _peak_fence(fences, lives)
    by_place: dict[tuple[str, Loc], int] = {}
    for life in lives:
        if fences and life.start < fences[fullest] <= life.end:
            tile_key = (_text(life.value), life.loc)
            by_place[tile_key] = by_place.get(tile_key, 0) + life.registers
    tiles = sorted((LiveTiles(*tile_key, count) for tile_key, count in by_place.items()), key=_size)
    firsts = {first: op for op, (first, _) in numbers.items()}
    loc = firsts[fences[fullest]].loc if fences else kernel.loc
    return Peak(loc, registers, tuple(tiles))


def most_registers(loop: scf.For, order: Sequence[Op]) -> int:
    """Return how many registers live tiles take at most, if the ops of a loop run in some order.

    Pure ops are where their results are first needed, as ptxas has them where registers are few. A dot in
    flight reads an operand in registers until it is waited for.
    """
    end = len(order)
    last_use: dict[Op, int] = {}
    users_of: dict[Value, list[Op]] = {}
    for number, op in reversed(list(enumerate(order))):
        for value in op.results:
            users_of[value] = [enclosing_in(user, loop.body) for user in _users(value)]
        users = [user for value in op.results for user in users_of[value]]
        last_use[op] = (
            min((last_use.get(user, end) for user in users), default=end) if is_pure(op) else number
        )
    for value in loop.carried:
        users_of[value] = [enclosing_in(user, loop.body) for user in _users(value)]
    rematerialized: dict[Value, bool] = {}
    lives: list[_Life] = []
    for value, users in users_of.items():
        if isinstance(value.type, TileType) and not is_made_again(value, rematerialized):
            dots = [user for user in users if isinstance(user, wgmma.Wgmma) and user.a is value]
            waits = [wait for dot in dots for wait in dot.out.users]
            start = -1 if value.op is None else last_use[value.op]
            last = max((last_use.get(user, end) for user in (*users, *waits)), default=start)
            registers = tile_registers(value.type)
            lives.append(_Life(start, last, value, loop.loc, registers))
    fences = [number for number, op in enumerate(order) if is_fence(op)]
    return _peak_fence(fences, lives)[1]


def _size(tiles: LiveTiles) -> int:
    return -tiles.registers


def _text(value: Value) -> str:
    type_ = value.type
    assert isinstance(type_, TileType)
    return "x".join([*map(str, type_.shape), str(type_.element)])


def _peak_fence(fences: list[int], lives: list[_Life]) -> tuple[int, int]:
    """Return the fence with the most live registers, and their number."""
    changes = [0] * (len(fences) + 1)
    for life in lives:
        changes[bisect_left(fences, life.start + 1)] += life.registers
        changes[bisect_left(fences, life.end + 1)] -= life.registers
    live = list(accumulate(changes))[:-1] or [0]
    most = max(live)
    return live.index(most), most


def _defined_values(op: Op) -> Iterator[Value]:
    """Yield the arguments of an op's blocks, and its results."""
    for block in op.blocks:
        yield from block.args
    yield from op.results


def _life(value: Value, op: Op, numbers: Mapping[Op, tuple[int, int]]) -> tuple[int, int]:
    first, last = numbers[op]
    block = value.owner if isinstance(value.owner, Block) else op.block
    start = first if isinstance(value.owner, Block) else last
    end = start
    for user in _users(value):
        outer = enclosing_in(user, block)
        # A loop's initial values are the loop's own from there on.
        end = max(end, numbers[outer][0 if outer is user else 1])
    return start, end


def _users(value: Value) -> Iterator[Op]:
    """Yield the users of a value, through ops that only rename its registers."""
    waiting = [value]
    while waiting:
        for user in waiting.pop().users:
            yield user
            if user.has(Trait.SHAPE_ONLY):
                waiting += user.results


def is_made_again(value: Value, cache: dict[Value, bool], *, renames: bool = True) -> bool:
    """Return whether ptxas rematerializes a value: an address, a condition, index arithmetic.

    An op that `renames` a tile counts too: its registers are the tile's. Chains may be as long as
    the kernel, so they are followed without recursion.
    """
    waiting = [value]
    while waiting:
        current = waiting[-1]
        if current not in cache:
            op = current.op
            if _is_free(current, renames=renames):
                cache[current] = True
            elif op is None or op.blocks or not op.pure:
                cache[current] = False
            else:
                unknown = [operand for operand in op.operands if operand not in cache]
                if unknown:
                    waiting += unknown
                    continue
                cache[current] = all(cache[operand] for operand in op.operands)
        waiting.pop()
    return cache[value]


def _is_free(value: Value, *, renames: bool) -> bool:
    """Return whether a value takes no registers of a tile by its type or its op."""
    if not isinstance(value.type, TileType):
        return True
    if renames and value.op is not None and value.op.has(Trait.SHAPE_ONLY):
        return True
    return isinstance(value.type.element, PointerType) or value.type.element.is_bool
