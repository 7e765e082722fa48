"""Plan the conversion of a tile from one distributed layout to another.

The plan comes from one linear map, the *movement*: for each place (register, lane, warp) of the
destination, a place of its element in the source. Of several copies the nearest is taken: in the
same thread if there is one, else in the same warp. So the kind of plan follows exactly from the
possible movements:

    Identity          the layouts are the same
    RegisterPermute   every thread holds its elements: registers are renamed
    WarpShuffle       every warp holds its elements: values go from lane to lane
    SharedExchange    through shared memory, also instead of a more expensive shuffle

Plans are plain numbers, to be lowered literally, without thinking about layouts again. Bits over
threads are written as masks; a *column* is the contribution of one set bit, and contributions XOR.

Invariant: executing a plan puts the destination layout's element into every register of every
thread. Nothing is moved between the CTAs of a cluster.

Source: "Linear Layouts: Robust Code Generation of Efficient Tensor Computation Using F2" (2025),
the sections on warp shuffles and on optimal swizzling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from aotc.ir import gf2
from aotc.ir.diagnostics import IRError
from aotc.ir.layout import LinearLayout, log2_exact
from aotc.ir.layout_access import distinct_register_bits, representatives
from aotc.schedule.analysis.costs import PACK_COST, SELECT_COST, SHUFFLE_COST, SHUFFLE_LATENCY
from aotc.schedule.layout.shared_exchange import SharedExchange, plan_trip

_DISTRIBUTED = ("register", "lane", "warp", "block")
_LANE_BITS = 5
_SHUFFLE_BITS = 32


@dataclass(frozen=True, slots=True)
class Identity:
    """The layouts are equal."""

    cost: int = 0


@dataclass(frozen=True, slots=True)
class RegisterPermute:
    """Destination register `d` is source register `registers[d]` of the same thread."""

    registers: tuple[int, ...]
    cost: int = 0


@dataclass(frozen=True, slots=True)
class ConditionalSwap:
    """In some threads, let every register `r` have the value of `r ^ register_xor`.

    These are the threads with `popcount(lane & lane_mask) + popcount(warp & warp_mask)` odd.
    """

    lane_mask: int
    warp_mask: int
    register_xor: int


@dataclass(frozen=True, slots=True)
class ShuffleRound:
    """One exchange: every thread offers a word and takes one from the same warp.

    The offered word is source registers `send_register ^ x` for `x` in `send_pack`, after the send
    swaps. It is taken from lane `lane_xor`, XOR the columns of the taker's own lane and warp. Its
    parts become destination registers `receive_register ^ x` for `x` in `receive_pack`, before the
    receive swaps; but only in lanes whose acceptance value is `accept`.
    """

    send_register: int
    receive_register: int
    lane_xor: int
    accept: int


@dataclass(frozen=True, slots=True)
class WarpShuffle:
    """Values go between the lanes of each warp.

    Execute `send_swaps` in order on a copy of the source registers, then the rounds, then
    `receive_swaps` on the received registers. Then destination register `d` is received register
    `representative[d]` (copies of a register are received once).

    `source_lane_columns[i]` and `source_warp_columns[i]` are the contributions of bit `i` of the
    taker's lane and warp to its source lane. If every lane is its own source (`is_butterfly`), a
    round is a shuffle by XOR, and one with `lane_xor == 0` is a plain move.

    Bit `j` of a lane's acceptance value is the parity of `lane & accept_masks[j]`; usually there
    are none and every lane accepts every round. Swapped registers that no round sends are dead.
    """

    send_pack: tuple[int, ...]
    receive_pack: tuple[int, ...]
    send_swaps: tuple[ConditionalSwap, ...]
    rounds: tuple[ShuffleRound, ...]
    source_lane_columns: tuple[int, ...]
    source_warp_columns: tuple[int, ...]
    accept_masks: tuple[int, ...]
    receive_swaps: tuple[ConditionalSwap, ...]
    representative: tuple[int, ...]
    cost: int

    @property
    def is_butterfly(self) -> bool:
        """True if each round takes from the own lane XOR a constant."""
        identity = tuple(1 << bit for bit in range(len(self.source_lane_columns)))
        return self.source_lane_columns == identity and not any(self.source_warp_columns)


Conversion: TypeAlias = Identity | RegisterPermute | WarpShuffle | SharedExchange


@lru_cache(maxsize=4096)
def plan_conversion(
    source: LinearLayout,
    destination: LinearLayout,
    element_bits: int,
    max_scratch_bytes: int | None = None,
    *,
    stmatrix: bool = False,
    run_elems: int = 1,
) -> Conversion:
    """Return the cheapest plan from `source` to `destination`, layouts of one tile shape.

    `element_bits` is the width in registers; booleans count as 8. `max_scratch_bytes` cuts an
    exchange through shared memory into repetitions of at most this size where the layouts allow it;
    the plan has its need in `scratch_bytes`. `stmatrix` is a property of the target. `run_elems` of
    the lowest registers of `source` come from a run of memory. An exchange keeps them together
    where it can, so they may be copied without passing registers.

    Raises: IRError when the layouts are not of one tile and CTA, or when the source does not hold
    all elements of the destination in the same CTA of the cluster.
    """
    _check(source, destination)
    if source == destination:
        return Identity()
    move = _Movement(source, destination)
    if move.stays_in_thread:
        return RegisterPermute(tuple(gf2.span_table(move.registers)))
    element_bits = max(8, element_bits)
    shared = _plan_shared(move, element_bits, max_scratch_bytes, stmatrix, run_elems)
    if not move.stays_in_warp:
        return shared
    shuffle = _plan_shuffle(move, element_bits)
    return shuffle if shuffle.cost <= shared.cost else shared


def plan_shared_exchange(
    source: LinearLayout,
    destination: LinearLayout,
    element_bits: int,
    max_scratch_bytes: int | None = None,
    *,
    stmatrix: bool = False,
    run_elems: int = 1,
) -> SharedExchange:
    """Return the plan through shared memory, whether or not there is a better way."""
    _check(source, destination)
    move = _Movement(source, destination)
    return _plan_shared(move, max(8, element_bits), max_scratch_bytes, stmatrix, run_elems)


def _plan_shared(
    move: _Movement,
    element_bits: int,
    max_scratch_bytes: int | None,
    stmatrix: bool,  # noqa: FBT001 - handed on
    run_elems: int,
) -> SharedExchange:
    return plan_trip(
        move.source,
        move.destination,
        element_bits,
        max_scratch_bytes,
        within_warp=move.stays_in_warp,
        stmatrix=stmatrix,
        run_elems=run_elems,
    )


def plan_warp_shuffle(
    source: LinearLayout, destination: LinearLayout, element_bits: int
) -> WarpShuffle | None:
    """Return the plan of shuffles, or None when values must cross warps."""
    _check(source, destination)
    move = _Movement(source, destination)
    return _plan_shuffle(move, max(8, element_bits)) if move.stays_in_warp else None


def _check(source: LinearLayout, destination: LinearLayout) -> None:
    if source.outs != destination.outs:
        raise IRError(f"no conversion between tiles of {source.shape} and {destination.shape}")
    for layout in (source, destination):
        if layout.in_dims != tuple(name for name in _DISTRIBUTED if name in layout.in_dims):
            raise IRError(
                f"the inputs of {layout} are not {', '.join(_DISTRIBUTED)}, in this order"
            )
    for name in ("lane", "warp"):
        if source.in_bits(name) != destination.in_bits(name):
            raise IRError(f"{source} and {destination} differ in the number of {name}s")
    if source.columns("block") != destination.columns("block"):
        raise IRError(f"{source} to {destination} moves data between blocks")


# ---- movement ---------------------------------------------------------------------------------


class _Movement:
    """The linear map from destination places to source places, nearest source first.

    A source place is packed: register bits lowest, then lanes, then warps. `registers`, `lanes`
    and `warps` hold one source place for each destination bit.
    """

    def __init__(self, source: LinearLayout, destination: LinearLayout) -> None:
        self.source = source
        self.destination = destination
        self.register_bits = source.in_bits("register")
        self.warp_shift = self.register_bits + source.in_bits("lane")
        self.elements = gf2.independent(
            [*source.columns("register"), *source.columns("lane"), *source.columns("warp")]
        )
        thread = gf2.Span(source.columns("register"))
        warp = gf2.Span([*source.columns("register"), *source.columns("lane")])
        block = gf2.Span(
            [*source.columns("register"), *source.columns("lane"), *source.columns("warp")]
        )
        self.registers = [
            self._nearest(column, 0, 0, (thread, warp, block))
            for column in destination.columns("register")
        ]
        self.lanes = [
            self._nearest(
                column, own_column, 1 << (self.register_bits + bit), (thread,), (warp, block)
            )
            for bit, (column, own_column) in enumerate(
                zip(destination.columns("lane"), source.columns("lane"), strict=True)
            )
        ]
        self.warps = [
            self._nearest(
                column, own_column, 1 << (self.warp_shift + bit), (thread, warp), (block,)
            )
            for bit, (column, own_column) in enumerate(
                zip(destination.columns("warp"), source.columns("warp"), strict=True)
            )
        ]
        stays = [position >> self.warp_shift == 0 for position in (*self.registers, *self.lanes)]
        stays += [
            position >> self.warp_shift == 1 << bit for bit, position in enumerate(self.warps)
        ]
        self.stays_in_warp = all(stays)
        own_lanes = [
            position == 1 << (self.register_bits + i) for i, position in enumerate(self.lanes)
        ]
        own_warps = [
            position == 1 << (self.warp_shift + i) for i, position in enumerate(self.warps)
        ]
        self.stays_in_thread = (
            all(position >> self.register_bits == 0 for position in self.registers)
            and all(own_lanes)
            and all(own_warps)
        )

    def _nearest(
        self,
        column: int,
        own_column: int,
        own_position: int,
        staying: Sequence[gf2.Span],
        leaving: Sequence[gf2.Span] = (),
    ) -> int:
        """Return the source place of the element `column` at a destination bit.

        `own_column` is the element of the same bit of the source. The rest of the way from there is
        looked up in the spans of `staying`, else the whole way in the spans of `leaving`.
        """
        for span in staying:
            position = span.solve(column ^ own_column)
            if position is not None:
                return position ^ own_position
        for span in leaving:
            position = span.solve(column)
            if position is not None:
                return position
        raise IRError(f"{self.source} does not hold all of {self.destination} in one block")

    def split(self, position: int) -> tuple[int, int]:
        """Return the register and the lane of a packed source place."""
        register = position & ((1 << self.register_bits) - 1)
        lane = position >> self.register_bits & ((1 << (self.warp_shift - self.register_bits)) - 1)
        return register, lane


# ---- shuffles ---------------------------------------------------------------------------------

# Where one destination bit comes from: (register, lane) of the source.
_Origin: TypeAlias = tuple[int, int]


def _plan_shuffle(move: _Movement, element_bits: int) -> WarpShuffle:
    """Plan rounds in which every lane gives one word and every lane takes one.

    A round serves destination register `d0 ^ D(lane)` for some `d0`, with one linear `D` for all
    rounds. `D` makes the source lanes differ as much as possible: then each lane gives one word
    only. Where the data forbid it, a round is repeated for each requested word, and each lane
    accepts its own.
    """
    distinct_bits = distinct_register_bits(move.destination)
    registers = {bit: move.split(move.registers[bit]) for bit in distinct_bits}
    send_basis, receive_basis = _pack_words(registers, element_bits)
    lanes, shifted = _spread_lanes(move, registers)
    warps = [move.split(position) for position in move.warps]
    offers, requests = _offers(lanes)
    accept_basis = gf2.independent(requests)
    accept_span = gf2.Span(accept_basis)
    accept_values = [accept_span.solve(value) or 0 for value in requests]

    rounds: list[ShuffleRound] = []
    cosets = gf2.independent([1 << bit for bit in distinct_bits], receive_basis)
    for start in gf2.span_table(cosets):
        register, lane = _move_register((0, 0), start, registers)
        register ^= gf2.combine(offers, lane)
        rounds += [
            ShuffleRound(register ^ extra, start, lane, accept)
            for accept, extra in enumerate(gf2.span_table(accept_basis))
        ]
    plan = WarpShuffle(
        send_pack=tuple(gf2.span_table(send_basis)),
        receive_pack=tuple(gf2.span_table(receive_basis)),
        send_swaps=_swaps(offers, [gf2.combine(offers, m) ^ r for r, m in warps]),
        rounds=tuple(rounds),
        source_lane_columns=tuple(lane for _, lane in lanes),
        source_warp_columns=tuple(lane for _, lane in warps),
        accept_masks=tuple(gf2.transpose(accept_values, len(accept_basis))),
        receive_swaps=_swaps(shifted, [0] * len(warps)),
        representative=representatives(move.destination),
        cost=0,
    )
    return replace(plan, cost=_shuffle_cost(plan, move, element_bits))


def _move_register(origin: _Origin, mask: int, registers: dict[int, _Origin]) -> _Origin:
    """Return where the element comes from when destination register bits `mask` are flipped."""
    register, lane = origin
    for bit, (r, m) in registers.items():
        if mask >> bit & 1:
            register, lane = register ^ r, lane ^ m
    return register, lane


def _pack_words(registers: dict[int, _Origin], element_bits: int) -> tuple[list[int], list[int]]:
    """Return bases of the source and destination registers of one exchanged word.

    These registers stay in their lane, as many as fit 32 bits.
    """
    bits = list(registers)
    room = log2_exact(max(1, _SHUFFLE_BITS // element_bits))
    together = gf2.kernel([registers[bit][1] for bit in bits])[:room]
    receive = [sum(1 << bits[i] for i in range(len(bits)) if mask >> i & 1) for mask in together]
    return [_move_register((0, 0), mask, registers)[0] for mask in receive], receive


def _spread_lanes(
    move: _Movement, registers: dict[int, _Origin]
) -> tuple[list[_Origin], list[int]]:
    """Choose `D`: for each lane bit, the destination register bits to flip along with it.

    Returns the resulting source of each lane bit, and `D` itself. Lane bits with a source lane of
    their own are left alone. Another one that requests the same word as earlier lanes shares their
    exchange. One that requests a different word from the same lane is moved to an unused lane, if
    there is one: preferably its own.
    """
    origins = [move.split(position) for position in move.lanes]
    shifted = [0] * len(origins)
    source_lanes, source_registers = gf2.Span(), list[int]()
    shared: list[int] = []
    for bit in sorted(range(len(origins)), key=lambda bit: origins[bit][1] != 1 << bit):
        register, lane = origins[bit]
        if lane in source_lanes:
            shared.append(bit)
        else:
            source_lanes.add(lane)
            source_registers.append(register)
    for bit in shared:
        register, lane = origins[bit]
        if gf2.combine(source_registers, source_lanes.solve(lane) or 0) == register:
            continue
        shifted[bit] = _free_lane_bits(lane, 1 << bit, source_lanes, registers)
        if shifted[bit]:
            origins[bit] = register, lane = _move_register(origins[bit], shifted[bit], registers)
            source_lanes.add(lane)
            source_registers.append(register)
    return origins, shifted


def _free_lane_bits(
    lane: int, own_lane: int, source_lanes: gf2.Span, registers: dict[int, _Origin]
) -> int:
    """Return register bits to move `lane` out of `source_lanes`, to `own_lane` if possible."""
    bits = list(registers)
    if own_lane not in source_lanes:
        mask = gf2.Span(registers[bit][1] for bit in bits).solve(lane ^ own_lane)
        if mask is not None:
            return sum(1 << bits[i] for i in range(len(bits)) if mask >> i & 1)
    return next((1 << bit for bit in bits if lane ^ registers[bit][1] not in source_lanes), 0)


def _offers(lanes: Sequence[_Origin]) -> tuple[list[int], list[int]]:
    """Rewrite the takers' requests as the givers' offers.

    Returns, for each bit of the giver's lane, the register bits it flips in the offer; and for each
    bit of the taker's lane, its request beyond the source lane's offer.
    """
    registers = [register for register, _ in lanes]
    basis = gf2.Span(lane for _, lane in lanes)
    offers: list[int] = []
    for unit in (1 << bit for bit in range(len(lanes))):
        # An unused lane may offer anything; complete the basis with it.
        if unit not in basis:
            basis.add(unit)
            registers.append(0)
    offers = [gf2.combine(registers, basis.solve(1 << bit) or 0) for bit in range(len(lanes))]
    return offers, [register ^ gf2.combine(offers, lane) for register, lane in lanes]


def _swaps(lane_columns: Sequence[int], warp_columns: Sequence[int]) -> tuple[ConditionalSwap, ...]:
    """Return the fewest swaps to XOR registers by the contributions of the thread's bits."""
    columns = [*lane_columns, *warp_columns]
    basis = gf2.independent(columns)
    span = gf2.Span(basis)
    masks = gf2.transpose([span.solve(column) or 0 for column in columns], len(basis))
    lane_bits = len(lane_columns)
    return tuple(
        ConditionalSwap(mask & ((1 << lane_bits) - 1), mask >> lane_bits, column)
        for mask, column in zip(masks, basis, strict=True)
    )


def _shuffle_cost(plan: WarpShuffle, move: _Movement, element_bits: int) -> int:
    words = max(1, element_bits // _SHUFFLE_BITS)
    moves = sum(plan.is_butterfly and not entry.lane_xor for entry in plan.rounds)
    shuffles = (len(plan.rounds) - moves) * words
    received = len(plan.receive_pack) * len(plan.rounds)
    sent = {entry.send_register ^ part for entry in plan.rounds for part in plan.send_pack}
    selects = _num_selects(plan.send_swaps, sent)
    selects += _num_selects(plan.receive_swaps, set(plan.representative))
    selects += received if plan.accept_masks else 0
    packs = 2 * received if len(plan.send_pack) > 1 else 0
    per_warp = SHUFFLE_COST * shuffles + SELECT_COST * selects * words + PACK_COST * packs
    return (SHUFFLE_LATENCY if shuffles else 0) + (per_warp << len(move.warps))


def _num_selects(swaps: Sequence[ConditionalSwap], needed_registers: set[int]) -> int:
    """Return how many selects it takes to know the `needed_registers` registers after the swaps."""
    count = 0
    for swap in reversed(swaps):
        count += len(needed_registers)
        needed_registers = needed_registers | {
            register ^ swap.register_xor for register in needed_registers
        }
    return count
