"""What is in flight of `wgmma`: jobs, the groups they are waited for in, and chains of sums.

See `wgmma.py` for the model.

Invariant: while a warp has not waited for all jobs of a chain, its registers of the chain's result
hold the chain's name and are marked as in flight.
"""

# NumPy's own stubs leave overloads of ndarray's methods partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from aotc.verify.emulator.context import Context, Machine, Misuse, Pending
from aotc.verify.emulator.formats import FORMATS, Array, encode
from aotc.verify.emulator.fragments import WARP_LANES
from aotc.verify.emulator.matrix import multiply
from aotc.verify.emulator.order import Ints
from aotc.verify.emulator.registers import (
    DEFINED,
    FENCED,
    READ_IN_FLIGHT,
    UNDEFINED,
    WRITE_IN_FLIGHT,
)
from aotc.verify.emulator.shared import Flight
from aotc.verify.emulator.syntax import Operand, Register
from aotc.verify.emulator.wgmma_form import WARP_ROWS, Form
from aotc.verify.emulator.wgmma_operand import (
    CHUNK_BYTES,
    DescriptorError,
    chunk_addresses,
    decode_descriptor,
    elements,
)

_WARPS = 4  # of a warpgroup
_ROWS = _WARPS * WARP_ROWS
_GROUP_LANES = _WARPS * WARP_LANES
_SLOT_BITS = 8  # of a result's name; the chain's number is above


@dataclass(eq=False)
class _Chain:
    """Hold a warpgroup's sums, (64, n) bits, or None before the first job that ignores them.

    `open` counts for each warp the jobs that it has not waited for.
    """

    number: int
    form: Form
    sums: Array | None
    copies: int  # of registers in flight, when its own were last seen to hold its name
    open: list[int] = field(default_factory=lambda: [0] * _WARPS)


@dataclass(eq=False)
class _Job:
    """Hold one multiplication by a warpgroup; `a` (64, k) is A's bits, if they were in registers.

    Once waited for, `reader` is the lane in whose name operands were read, and `read` until when.
    """

    form: Form
    group: int
    chain: _Chain
    accumulate: bool
    a: Array | None
    flight: Flight
    pending: Pending | None = None
    reader: int = -1
    read: int = 0


class _Warp:
    """Hold what one warp has started and not waited for."""

    def __init__(self) -> None:
        self.uncommitted: list[_Job] = []
        self.groups: deque[list[_Job]] = deque()
        self.reads: dict[Register, int] = defaultdict(int)  # jobs that read a register


class WgmmaUnit:
    """Hold what all warpgroups of a batch have started."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._registers = machine.registers
        num_warps = machine.num_blocks * machine.warps_per_block
        self._warps = [_Warp() for _ in range(num_warps)]
        self._fenced = np.zeros(num_warps, bool)
        self._to_do: dict[int, deque[_Job]] = defaultdict(deque)  # by warpgroup, in order
        self._by_registers: dict[tuple[int, tuple[Register, ...]], _Chain] = {}
        self._by_number: dict[int, _Chain] = {}
        self._next_number = 1

    # ---- instructions ---------------------------------------------------------------------------

    def fence(self, ctx: Context) -> None:
        """Order what warps have written to registers before the jobs that they start next."""
        self._fenced[ctx.warps()] = True
        self._registers.fence(ctx.lanes)

    def start(self, ctx: Context, form: Form) -> None:
        """Start one multiplication for each warpgroup; all their warps are there.

        Raises: Misuse for registers that are not ordered by a fence or in flight otherwise, for
        operands that differ within a warpgroup, and as `SharedMemory.begin`.
        """
        warps = ctx.warps()
        if not self._fenced[warps].all():
            self._refuse(int(warps[~self._fenced[warps]][0]), "no wgmma.fence came before it")
        groups = warps[::_WARPS] // _WARPS
        accumulate = self._uniform(ctx, form.scale_d, 1, "values of scale-d")
        a_bits = None
        if form.a_descriptor is not None:
            a_bits = self._uniform(ctx, form.a_descriptor, 64, "descriptors of A")
        b_bits = self._uniform(ctx, form.b_descriptor, 64, "descriptors of B")
        a = self._take_a(ctx, form, warps) if form.a_registers else None
        chains = self._chains_of(form, groups, accumulate)
        for index, group in enumerate(groups.tolist()):
            a_own = None if a_bits is None else int(a_bits[index])
            flight = self._begin(ctx, form, group, a_own, int(b_bits[index]))
            job = _Job(
                form,
                group,
                chains[index],
                bool(accumulate[index]),
                None if a is None else a[index],
                flight,
            )
            self._enqueue(job)

    def commit(self, warps: Ints) -> None:
        """Make a group of what each warp has started since the last one."""
        for number in warps.tolist():
            warp = self._warps[number]
            warp.groups.append(warp.uncommitted)
            warp.uncommitted = []

    def wait(self, warps: Ints, allowed: int) -> None:
        """Let all but each warp's latest `allowed` groups happen, and release what they used."""
        closed: list[tuple[int, _Chain]] = []
        seen: dict[tuple[int, int], int] = {}
        for number in warps.tolist():
            warp = self._warps[number]
            while len(warp.groups) > allowed:
                for job in warp.groups.popleft():
                    self._finish(job, number)
                    seen[number, job.reader] = max(job.read, seen.get((number, job.reader), 0))
                    self._release(job, number, closed)
        if seen:
            pairs = np.array(list(seen), np.int64)
            limits = np.array(list(seen.values()), np.int64)
            self._machine.order.see_lanes(pairs[:, 0], pairs[:, 1], limits)
        self._write_back(closed)

    # ---- starting -------------------------------------------------------------------------------

    def _uniform(self, ctx: Context, operand: Operand, bits: int, what: str) -> Array:
        """Return the value that all lanes of each warpgroup give: (groups,)."""
        values = ctx.read_warps(operand, bits).reshape(-1, _GROUP_LANES)
        odd = values != values[:, :1]
        if odd.any():
            group = int(np.argmax(odd.any(axis=1)))
            self._refuse(int(ctx.warps()[group * _WARPS]), f"its warpgroup gives different {what}")
        return values[:, 0]

    def _take_a(self, ctx: Context, form: Form, warps: Ints) -> Array:
        """Return A's bits (groups, 64, k) from registers, and mark these as being read."""
        words = [ctx.read_warps(register, 32) for register in form.a_registers]
        for register in form.a_registers:
            states = self._states(register)
            if (states[warps] == DEFINED).any():
                self._refuse_unfenced(register, warps, states[warps] == DEFINED)
            states[warps] = READ_IN_FLIGHT
        for number in warps.tolist():
            for register in form.a_registers:
                self._warps[number].reads[register] += 1
        return form.a_fragment.gather(words).reshape(-1, _ROWS, form.k)

    def _chains_of(
        self, form: Form, groups: Ints, accumulate: npt.NDArray[np.bool_]
    ) -> list[_Chain]:
        """Return each warpgroup's chain that the result continues, new ones where there is none."""
        copies = self._registers.flight_copies
        known = [self._by_registers.get((group, form.d_registers)) for group in groups.tolist()]
        chains = [
            chain
            for chain in known
            if chain is not None and all(chain.open) and chain.copies == copies
        ]
        if len(chains) == len(known):
            return chains
        states = np.stack(
            [self._of_groups(self._states(register), groups) for register in form.d_registers]
        )
        flying = states == WRITE_IN_FLIGHT  # (registers, groups, lanes)
        some, every = flying.any((0, 2)), flying.all((0, 2))
        if (some & ~every).any():
            group = int(groups[some & ~every][0])
            self._refuse(group * _WARPS, "some registers of its result are in flight, not all")
        fresh = ~every
        opened = iter(list[_Chain]())
        if fresh.any():
            self._check_fresh(form, groups[fresh], states[:, fresh], accumulate[fresh])
            opened = iter(self._open(form, groups[fresh], accumulate[fresh]))
        return [
            next(opened) if new else self._named(form, group)
            for group, new in zip(groups.tolist(), fresh.tolist(), strict=True)
        ]

    def _check_fresh(
        self, form: Form, groups: Ints, states: Array, accumulate: npt.NDArray[np.bool_]
    ) -> None:
        unfenced = states == DEFINED
        if unfenced.any():
            at, group, _ = (int(i) for i in np.argwhere(unfenced)[0])
            self._refuse_unfenced(form.d_registers[at], groups * _WARPS, unfenced[at])
        undefined = (states == UNDEFINED) & accumulate[None, :, None]
        if undefined.any():
            at, group, lane = (int(i) for i in np.argwhere(undefined)[0])
            raise Misuse(
                "undefined",
                f"{form.d_registers[at].name} is added to and was never written",
                lane=int(groups[group]) * _GROUP_LANES + lane,
            )

    def _open(self, form: Form, groups: Ints, accumulate: npt.NDArray[np.bool_]) -> list[_Chain]:
        """Open a chain for each warpgroup; its registers get its name."""
        numbers = np.arange(self._next_number, self._next_number + len(groups), dtype=np.uint32)
        self._next_number += len(groups)
        rows = [self._row(register).reshape(-1, _GROUP_LANES) for register in form.d_registers]
        words = [row[groups].reshape(-1, WARP_LANES) for row in rows]
        sums = form.d_fragment.gather(words).reshape(-1, _ROWS, form.n)
        copies = self._registers.flight_copies
        chains = [
            _Chain(number, form, sums[index] if keep else None, copies)
            for index, (number, keep) in enumerate(zip(numbers.tolist(), accumulate, strict=True))
        ]
        for slot, (row, register) in enumerate(zip(rows, form.d_registers, strict=True)):
            row[groups] = (numbers << np.uint32(_SLOT_BITS) | np.uint32(slot))[:, None]
            self._states(register).reshape(-1, _GROUP_LANES)[groups] = WRITE_IN_FLIGHT
        for group, chain in zip(groups.tolist(), chains, strict=True):
            self._by_number[chain.number] = chain
            self._by_registers[group, form.d_registers] = chain
        return chains

    def _named(self, form: Form, group: int) -> _Chain:
        """Return the chain that a warpgroup's registers in flight name, slot by slot.

        Raises: Misuse if they are several, or of another shape.
        """
        names = np.stack(
            [self._row(register).reshape(-1, _GROUP_LANES)[group] for register in form.d_registers]
        )
        number, slots = int(names[0, 0]) >> _SLOT_BITS, np.arange(len(names), dtype=np.uint32)
        chain = self._by_number.get(number)
        expected = np.uint32(number << _SLOT_BITS) | slots
        if chain is None or (names != expected[:, None]).any():
            self._refuse(
                group * _WARPS, "the registers of its result are in flight in another order"
            )
        if (chain.form.n, chain.form.result) != (form.n, form.result):
            self._refuse(
                group * _WARPS, "the registers of its result are in flight in another shape"
            )
        chain.copies = self._registers.flight_copies
        self._by_registers[group, form.d_registers] = chain
        return chain

    def _begin(
        self, ctx: Context, form: Form, group: int, a_bits: int | None, b_bits: int
    ) -> Flight:
        """Mark the bytes that a warpgroup reads: A's chunks, then B's.

        All its warps read them, but each chunk is checked for one, in turn.
        """
        try:
            b = decode_descriptor(b_bits)
            places = [chunk_addresses(b, form.n, transposed=form.b_transposed)]
            if a_bits is not None:
                a = decode_descriptor(a_bits)
                places.insert(0, chunk_addresses(a, _ROWS, transposed=form.a_transposed))
        except DescriptorError as error:
            self._refuse(group * _WARPS, str(error))
        address = np.concatenate(places)
        lanes = group * _GROUP_LANES + np.arange(len(address)) % _WARPS * WARP_LANES
        return self._machine.shared.begin(
            lanes, address, CHUNK_BYTES, ctx.instruction, writes=False
        )

    def _enqueue(self, job: _Job) -> None:
        self._to_do[job.group].append(job)
        for index in range(_WARPS):
            job.chain.open[index] += 1
            self._warps[job.group * _WARPS + index].uncommitted.append(job)
        job.pending = self._machine.defer(lambda: self._do(job))

    # ---- happening ------------------------------------------------------------------------------

    def _do(self, job: _Job) -> None:
        """Multiply, once all that the warpgroup has started before is done."""
        to_do = self._to_do[job.group]
        while to_do[0] is not job:
            pending = to_do[0].pending
            assert pending is not None
            pending.force()
        to_do.popleft()
        form, chain = job.form, job.chain
        a, b = self._operands(job)
        sums = multiply(form.a_format.decode(a), form.b_format.decode(b).T)
        if form.negate_a != form.negate_b:
            sums = -sums
        if job.accumulate:
            with np.errstate(invalid="ignore"):
                sums = sums + FORMATS[form.result].decode(_known(chain))
        chain.sums = encode(form.result, sums, saturate=form.saturate)

    def _operands(self, job: _Job) -> tuple[Array, Array]:
        """Return the bits of A (64, k) and of B (n, k)."""
        form, bits = job.form, job.form.a_format.bits
        data, a = self._machine.shared.peek(job.flight), job.a
        if a is None:
            count = _ROWS * 2  # chunks of A
            a = elements(data[:count], _ROWS, bits, transposed=form.a_transposed)
            data = data[count:]
        return a, elements(data, form.n, bits, transposed=form.b_transposed)

    # ---- ending ---------------------------------------------------------------------------------

    def _finish(self, job: _Job, number: int) -> None:
        """Let a job have happened, and its operands have been read by the warp that waits first.

        They were read for all warps: those that wait see what that lane did, and no more of it.
        """
        assert job.pending is not None
        job.pending.force()
        if job.reader < 0:
            # The last lane: one that is seldom elected to do something else besides.
            job.reader = number * WARP_LANES + WARP_LANES - 1
            job.flight.lanes = np.full_like(job.flight.lanes, job.reader)
            self._machine.shared.finish(job.flight)
            job.read = self._machine.order.close()

    def _release(self, job: _Job, number: int, closed: list[tuple[int, _Chain]]) -> None:
        """Give back the registers that a warp's part of a job used."""
        warp, chain = self._warps[number], job.chain
        for register in job.form.a_registers:
            warp.reads[register] -= 1
            if not warp.reads[register]:
                self._states(register)[number] = FENCED
        chain.open[number % _WARPS] -= 1
        if not chain.open[number % _WARPS]:
            closed.append((number, chain))

    def _write_back(self, closed: Sequence[tuple[int, _Chain]]) -> None:
        """Put the sums of chains into the registers of warps that hold their names."""
        by_registers: dict[tuple[Register, ...], list[tuple[int, _Chain]]] = defaultdict(list)
        for number, chain in closed:
            by_registers[chain.form.d_registers].append((number, chain))
            if not any(chain.open):
                self._by_number.pop(chain.number, None)
        for registers, members in by_registers.items():
            warps = np.array([number for number, _ in members])
            rows = [
                _known(chain).reshape(_WARPS, WARP_ROWS, -1)[number % _WARPS]
                for number, chain in members
            ]
            words = members[0][1].form.d_fragment.scatter(np.stack(rows))
            if self._registers.flight_copies:
                names = np.array([chain.number for _, chain in members])
                self._write_named(warps, names, np.stack(words))
                continue
            for register, word in zip(registers, words, strict=True):
                self._row(register)[warps] = word
                self._states(register)[warps] = FENCED

    def _write_named(self, warps: Ints, names: Ints, words: Array) -> None:
        """Write words (slots, warps, lanes) to whatever registers hold their names."""
        each = np.arange(len(warps))[:, None]
        lane = np.arange(WARP_LANES)
        for row, states in self._registers.tracked_words():
            held = row.reshape(-1, WARP_LANES)[warps]
            marks = states.reshape(-1, WARP_LANES)[warps]
            hit = (marks == WRITE_IN_FLIGHT) & (held >> _SLOT_BITS == names[:, None])
            if hit.any():
                slot = np.where(hit, held & (1 << _SLOT_BITS) - 1, 0)
                row.reshape(-1, WARP_LANES)[warps] = np.where(hit, words[slot, each, lane], held)
                states.reshape(-1, WARP_LANES)[warps] = np.where(hit, np.uint8(FENCED), marks)

    # ---- registers and messages -----------------------------------------------------------------

    def _row(self, register: Register) -> Array:
        """Return a register of all warps: (warps, 32)."""
        return self._registers.row(register).reshape(-1, WARP_LANES)

    def _states(self, register: Register) -> npt.NDArray[np.uint8]:
        """Return the states of a register of all warps: (warps, 32)."""
        states = self._registers.states(register)
        assert states is not None, f"{register.name} is used by wgmma and has no states"
        return states.reshape(-1, WARP_LANES)

    def _of_groups(self, of_warps: Array, groups: Ints) -> Array:
        """Return what warpgroups have of an array (warps, 32): (groups, 128)."""
        return of_warps.reshape(-1, _GROUP_LANES)[groups]

    def _refuse_unfenced(self, register: Register, warps: Ints, which: Array) -> NoReturn:
        at = int(np.argwhere(which)[0][0])
        self._refuse(int(warps[at]), f"{register.name} was written with no wgmma.fence between")

    def _refuse(self, warp: int, message: str) -> NoReturn:
        raise Misuse("wgmma", message, lane=warp * WARP_LANES)


def _known(chain: _Chain) -> Array:
    assert chain.sums is not None, "a chain starts with sums or with a job that ignores them"
    return chain.sums
