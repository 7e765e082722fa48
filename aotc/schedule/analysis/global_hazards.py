"""Find accesses to global memory within a program instance with a barrier needed between them.

Threads of a CTA see stores of its other threads only after a barrier. The layouts of the two tiles
tell whether one thread stores an element and another loads it. Two accesses, one of them a write,
are a hazard, unless they provably touch different elements (see `tile_distance`), or each thread
touches only its own.

Different parameters do not alias, or a kernel runs in place: an element loaded through one is
stored at the same index through the other, and no order of other indices is promised. Pointers of
unknown origin may all alias. Nothing orders the program instances run by a persistent kernel one
after the other, so nothing needs to order their accesses.

Invariant: two accesses with a false `meet` are ordered by program order alone. Results hold as long
as no access changes, whatever barriers are inserted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from aotc.ir import gf2
from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, grid, roles, scf, tile
from aotc.ir.effects import Resource, Trait
from aotc.ir.parameter_access import pointer_roots
from aotc.ir.types import PointerType, TensorMapType, TileType, element_of, shape_of
from aotc.schedule.analysis.affine import Affine, AffineAnalysis
from aotc.schedule.analysis.global_order import (
    accessed,
    accessed_pointer,
    is_promised_apart,
)
from aotc.schedule.analysis.polynomial import ZERO, Polynomial
from aotc.schedule.analysis.signs import Signs
from aotc.schedule.analysis.tile_distance import Distance, Tile, Touch, is_no_axis

_MAX_NEAR = 4
"""Accesses on either side that are looked at to tell one from the rest of a row."""

_ANYWHERE = ""
"""Stands for all memory that no parameter points at."""


@dataclass(eq=False)
class _Row:
    """Accesses of a block, alike but for where their tiles begin, each no nearer than the one before.

    `direction` is 1 if they go up, -1 if they go down, and 0 while all begin at one place.
    """

    in_tile: Polynomial
    last: Polynomial
    mask: tuple[Polynomial, ...]
    direction: int = 0
    ops: list[Op] = field(default_factory=list[Op])
    has_one_mask: bool = True

    def is_along(self, step: Polynomial, signs: Signs) -> bool:
        """Return whether a step does not lead back."""
        return (self.direction >= 0 and signs.never_negative(step)) or (
            self.direction <= 0 and signs.never_negative(ZERO - step)
        )

    def goes_on(self, step: Polynomial, signs: Signs) -> bool:
        """Return whether the row goes on by a step, and update its direction."""
        if not self.is_along(step, signs):
            return False
        if step != ZERO and not self.direction:
            self.direction = 1 if signs.never_negative(step) else -1
        return True


@dataclass(eq=False)
class _Accesses:
    """The accesses of a block: in rows, in none, and all of them by their index."""

    rows: list[_Row] = field(default_factory=list[_Row])
    alone: list[Op] = field(default_factory=list[Op])
    by_index: dict[Polynomial | None, list[Op]] = field(
        default_factory=dict["Polynomial | None", "list[Op]"]
    )


class GlobalHazards:
    """The accesses of a kernel with possible conflicts; see the module docstring."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.num_ctas = 1 if kernel.runs_by_cta else kernel.num_ctas
        """CTAs whose accesses are those of one program: what it does has an order."""
        self._affine: AffineAnalysis | None = None
        self._met: dict[tuple[Touch, Op], bool] = {}
        self._indices: dict[Op, Polynomial | None] = {}
        self._blocks: dict[Block, _Accesses] = {}
        self._near: dict[Op, dict[Op, None]] = {}
        accesses = [op for op in kernel.walk() if accessed(op) is not None]
        self._memory: dict[Op, frozenset[str]] = {
            op: frozenset(_memory_of(kernel, op)) for op in accesses
        }
        self._writes = {op for op in accesses if op.writes(Resource.GLOBAL)}
        by_memory: dict[str, list[Op]] = {}
        for op in accesses:
            for memory in sorted(self._memory[op]):
                by_memory.setdefault(memory, []).append(op)
        written = [memory for memory, ops in by_memory.items() if _may_meet(ops)]
        stored = {_pointee(op) for op in accesses if _is_store(op)}
        loaded = {_pointee(op) for op in accesses if _is_load(op)}
        self.accesses = {
            op: None
            for op in accesses
            if not self._memory[op].isdisjoint(written)
            or (_is_load(op) and _pointee(op) in stored)
            or (_is_store(op) and _pointee(op) in loaded)
        }
        """Accesses that may conflict with another one, and so have to be checked."""

    def is_over_programs(self, loop: Op) -> bool:
        """Return whether each iteration of a loop is a program instance of its own."""
        return (
            self._kernel.is_persistent
            and isinstance(loop, scf.For)
            and isinstance(loop.lower.op, tile.ProgramId)
            and isinstance(loop.step.op, tile.NumPrograms)
        )

    def needs_all_ctas(self, op: Op) -> bool:
        """Return whether a barrier ahead of `op` must span all CTAs of the program.

        Warp roles have none of these: there it spans the CTA.
        """
        in_role = any(isinstance(ancestor, roles.Specialize) for ancestor in op.ancestors())
        return self.num_ctas > 1 and not in_role

    @staticmethod
    def branch_of_cta(op: Op) -> scf.If | None:
        """Return the outermost branch around `op` not taken by all CTAs of a program."""
        branch = None
        for outer in op.ancestors():
            if isinstance(outer, scf.If) and _is_of_rank(outer.condition):
                branch = outer
        return branch

    @staticmethod
    def is_generic_write(op: Op) -> bool:
        """Return whether `op` writes by the generic proxy, so async accesses need a fence."""
        return any(effect.proxy == "generic" for effect in op.effects_on(Resource.GLOBAL, "write"))

    @staticmethod
    def is_async(op: Op) -> bool:
        """Return whether an op accesses memory through the async proxy."""
        return bool(op.effects_on(Resource.GLOBAL, "read", "write", proxy="async"))

    def any_writes(self, touched: Iterable[Touch]) -> bool:
        """Return whether any of some accesses writes."""
        return any(touch.op in self._writes for touch in touched)

    def meet(self, earlier: Touch, later: Op) -> bool:
        """Return whether the threads of a program need a barrier between two accesses.

        Fixpoint walks of a loop query the same pairs again: results are cached.
        """
        answer = self._met.get((earlier, later))
        if answer is None:
            answer = self._met[earlier, later] = self._meet(earlier, later)
        return answer

    def meet_any(self, touched: Iterable[Touch], later: Op) -> bool:
        """Return whether any of some accesses and `later` need a barrier in between.

        In a row of accesses, each farther than the last, the two around `later` decide for all.
        """
        near: dict[Op, None] | None = None
        is_read = not later.writes(Resource.GLOBAL)
        for touch in touched:
            if is_read and touch.op not in self._writes:
                continue
            if touch.op.block is later.block and not touch.carried:
                near = self._near_to(later) if near is None else near
                if touch.op not in near:
                    continue
            if self.meet(touch, later):
                return True
        return False

    def _near_to(self, later: Op) -> dict[Op, None]:
        """Return the accesses of a block that may meet `later`, without a loop between them.

        Of a row, these are its neighbours; of other memory, the accesses at its index.
        """
        if later not in self._near:
            assert later.block is not None
            accesses = self._accesses_of(later.block)
            alike = accesses.by_index.get(self._index_of(later), ())
            near = {
                op: None for op in (*accesses.alone, *alike) if not self._is_elsewhere(op, later)
            }
            for row in accesses.rows:
                if not self._memory[row.ops[0]].isdisjoint(self._memory[later]):
                    near_range = self._positions_near(row, later)
                    near.update(dict.fromkeys(row.ops[near_range.start : near_range.stop]))
            self._near[later] = near
        return self._near[later]

    def _is_elsewhere(self, op: Op, later: Op) -> bool:
        """Return whether two accesses of a block are at other indices of other memory."""
        is_other = self._memory[op].isdisjoint(self._memory[later])
        return is_other and self._index_of(op) != self._index_of(later)

    def _index_of(self, op: Op) -> Polynomial | None:
        """Return the index of an access through a parameter's pointers, None of any other."""
        if op not in self._indices:
            pointer = accessed_pointer(op)
            affine = None if pointer is None else self._affine_of_kernel()[pointer]
            is_known = affine is not None and affine.base in self._kernel.body.args
            self._indices[op] = affine.offset if affine is not None and is_known else None
        return self._indices[op]

    def _positions_near(self, row: _Row, later: Op) -> range:
        """Return the positions of a row not separated from a later access by nearer ones."""
        low, high = 0, len(row.ops)
        while low < high:
            middle = (low + high) // 2
            is_further = self._is_further(row, row.ops[middle], later)
            if is_further is None:
                return range(len(row.ops))
            if is_further:
                low = middle + 1
            else:
                high = middle
        first, last = low, low
        while (
            first > 0
            and first > low - _MAX_NEAR
            and not self._separates_beyond(row, first - 1, later, 1)
        ):
            first -= 1
        end = min(len(row.ops), low + _MAX_NEAR)
        while last < end and not self._separates_beyond(row, last, later, -1):
            last += 1
        is_told_before = first > low - _MAX_NEAR
        is_told_after = last < end or end == len(row.ops)
        return range(first if is_told_before else 0, last if is_told_after else len(row.ops))

    def _separates_beyond(self, row: _Row, index: int, later: Op, way: int) -> bool:
        """Return whether a proof for a row's access and a later one holds for all beyond."""
        earlier = row.ops[index]
        is_further = self._is_further(row, earlier, later, way)
        return bool(is_further) and self._is_apart(row, earlier, later)

    def _accesses_of(self, block: Block) -> _Accesses:
        """Return the accesses of a block, in rows as far as they form any."""
        if block in self._blocks:
            return self._blocks[block]
        accesses = self._blocks[block] = _Accesses()
        affine = self._affine_of_kernel()
        signs = Signs(affine)
        rows: dict[Hashable, _Row] = {}
        for op in block:
            if op not in self.accesses:
                continue
            accesses.by_index.setdefault(self._index_of(op), []).append(op)
            pointer = accessed_pointer(op)
            address = None if pointer is None else affine[pointer]
            if pointer is None or address is None or address.base not in self._kernel.body.args:
                accesses.alone.append(op)
                continue
            start, in_tile = address.offset.split(is_no_axis)
            key = type(op), self._memory[op], address.base, pointer.type, in_tile
            mask = _tile(affine, op, address).below_zero
            row = rows.get(key)
            step = ZERO if row is None else start - row.last
            if row is None or not row.goes_on(step, signs):
                row = rows[key] = _Row(in_tile, start, mask)
                accesses.rows.append(row)
            row.last = start
            row.has_one_mask &= mask == row.mask
            row.ops.append(op)
        return accesses

    def _is_further(self, row: _Row, earlier: Op, later: Op, way: int = 1) -> bool | None:
        """Return whether a later access is further along a row, or against it; None if unknown."""
        affine = self._affine_of_kernel()
        pointer = accessed_pointer(later)
        if pointer is None:
            return None
        first, second = affine[_pointer(earlier)], affine[pointer]
        start, in_tile = second.offset.split(is_no_axis)
        step = start - first.offset.split(is_no_axis)[0]
        is_alike = in_tile == row.in_tile and second.base in self._kernel.body.args
        if not is_alike or shape_of(pointer.type) != shape_of(_pointer(earlier).type):
            return None
        step = step if way > 0 else ZERO - step
        return step != ZERO and row.is_along(step, Signs(affine))

    def _is_apart(self, row: _Row, earlier: Op, later: Op) -> bool:
        """Return whether two accesses are told apart by where they begin, or by the mask of all the row."""
        if self.meet(Touch(earlier), later):
            return False
        if self._memory[earlier].isdisjoint(self._memory[later]) or row.has_one_mask:
            return True
        affine = self._affine_of_kernel()
        mine, theirs = (_tile(affine, op, affine[_pointer(op)]) for op in (earlier, later))
        bare = (replace(tile, below_zero=()) for tile in (mine, theirs))
        return Distance(affine, Touch(earlier), later).separates(*bare)

    def _meet(self, earlier: Touch, later: Op) -> bool:
        first = earlier.op
        if not first.writes(Resource.GLOBAL) and not later.writes(Resource.GLOBAL):
            return False
        if first.has(Trait.ATOMIC) and later.has(Trait.ATOMIC):
            return False  # each is atomic, and threads that need an order request it
        if self._memory[first].isdisjoint(self._memory[later]):
            return self._meet_in_place(earlier, later) and not is_promised_apart(
                accessed(first), accessed(later)
            )
        left, right = accessed_pointer(first), accessed_pointer(later)
        if left is None or right is None:
            # Tensor stores are of one thread, which does its own waiting.
            return not (_starts_store(first) and _starts_store(later))
        affine = self._affine_of_kernel()
        earlier_address, later_address = affine[left], affine[right]
        distance = Distance(affine, earlier, later)
        if (
            earlier_address.base is not later_address.base
            or _is_tile(earlier_address.base)
            or distance.moves(earlier_address.base)
        ):
            return (
                left is not right or bool(earlier.carried) or not self._same_threads(first, later)
            )
        if earlier_address.offset == later_address.offset and not any(
            map(distance.is_moved, earlier_address.offset.symbols)
        ):
            return not self._same_threads(first, later)
        tiles = _tile(affine, first, earlier_address), _tile(affine, later, later_address)
        return not distance.separates(*tiles)

    def _meet_in_place(self, earlier: Touch, later: Op) -> bool:
        """Return whether threads conflict where two parameters alias, at equal indices."""
        first = earlier.op
        if not (_is_load(first) and _is_store(later)) and not (
            _is_store(first) and _is_load(later)
        ):
            return False
        if _pointee(first) != _pointee(later):
            return False
        affine = self._affine_of_kernel()
        first_address, later_address = (affine[_pointer(op)] for op in (first, later))
        params = self._kernel.body.args
        distance = Distance(affine, earlier, later)
        return (
            first_address.base in params
            and later_address.base in params
            and distance.may_be_none(first_address.offset, later_address.offset)
            and not self._same_threads(first, later)
        )

    def _same_threads(self, first: Op, later: Op) -> bool:
        """Return whether each thread touches only its own elements in both accesses.

        If several threads hold an element one writes it, and always the same one.
        """
        if not _is_by_threads(first) or not _is_by_threads(later):
            return False
        kinds = _pointer(first).type, _pointer(later).type
        layouts = [kind.layout if isinstance(kind, TileType) else None for kind in kinds]
        if layouts[0] != layouts[1]:
            return False
        if _is_store(first) and _is_store(later):
            return True
        if layouts[0] is None:
            return False
        if self.num_ctas > 1 and not self._is_divided(_pointer(first)):
            return False
        columns = (*layouts[0].columns("lane"), *layouts[0].columns("warp"))
        span = gf2.Span(layouts[0].columns("register"))
        return all(span.add(column) for column in columns)

    def _is_divided(self, pointer: Value) -> bool:
        """Return whether each CTA of a program has elements of its own: its rank is in the index."""
        affine = self._affine_of_kernel()
        return any(
            isinstance(source, Value) and isinstance(source.op, grid.CtaRank)
            for source in (affine.sources[s] for s in affine[pointer].offset.symbols if s >= 0)
        )

    def _affine_of_kernel(self) -> AffineAnalysis:
        if self._affine is None:
            self._affine = AffineAnalysis(self._kernel)
        return self._affine


def _may_meet(ops: Sequence[Op]) -> bool:
    """Return whether any two of some accesses to one memory may meet, whatever their elements."""
    return (
        any(op.writes(Resource.GLOBAL) for op in ops)
        and not all(map(_starts_store, ops))
        and not all(op.has(Trait.ATOMIC) for op in ops)
    )


def _is_of_rank(condition: Value) -> bool:
    """Return whether a condition compares the rank of a CTA in its cluster."""
    compare = condition.op
    return isinstance(compare, arith.Compare) and isinstance(compare.lhs.op, grid.CtaRank)


def _is_by_threads(op: Op) -> bool:
    """Return whether each thread makes its own accesses, complete when it continues."""
    is_started = bool(op.effects_on(None, "start"))
    return not is_started and not GlobalHazards.is_async(op) and accessed_pointer(op) is not None


def _is_load(op: Op) -> bool:
    return _is_by_threads(op) and not op.writes(Resource.GLOBAL)


def _is_store(op: Op) -> bool:
    return _is_by_threads(op) and not op.reads(Resource.GLOBAL)


def _starts_store(op: Op) -> bool:
    return bool(op.effects_on(Resource.STORES, "start"))


def _pointer(op: Op) -> Value:
    pointer = accessed_pointer(op)
    assert pointer is not None
    return pointer


def _pointee(op: Op) -> object:
    """Return the element type of a load or store."""
    kind = element_of(_pointer(op).type)
    assert isinstance(kind, PointerType)
    return kind.pointee


def _memory_of(kernel: Kernel, op: Op) -> Iterator[str]:
    """Yield the parameters with memory an access may touch."""
    location = accessed(op)
    assert location is not None
    roots = [location]
    if location.op is not None and location.op.reads(Resource.TENSOR_MAP):
        roots = []
        yield _ANYWHERE  # the map is in memory, and says where the tensor is
    elif not isinstance(location.type, TensorMapType):
        roots = pointer_roots(location)
    for root in roots:
        is_parameter = root.owner is kernel.body
        yield kernel.params[root.index].argument if is_parameter else _ANYWHERE


def _tile(affine: AffineAnalysis, op: Op, address: Affine) -> Tile:
    mask, pointer = getattr(op, "mask", None), _pointer(op)
    bounds = affine.bounds(mask) if isinstance(mask, Value) else ()
    return Tile(address.offset, shape_of(pointer.type), bounds or ())


def _is_tile(value: Value | None) -> bool:
    return value is not None and isinstance(value.type, TileType)
