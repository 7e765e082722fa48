"""Chains of `wgmma`: successive multiplications into the same registers of a warpgroup.

Invariant: until a warp has waited for all multiplications of a chain, its result registers hold the
chain's name and are marked as in flight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import Array, reshape
from aotc.verify.emulator.engine.registers import (
    DEFINED,
    FENCED,
    READ_IN_FLIGHT,
    UNDEFINED,
    WRITE_IN_FLIGHT,
    RegisterFile,
)
from aotc.verify.emulator.errors import Misuse
from aotc.verify.emulator.memory.vector_clocks import Ints
from aotc.verify.emulator.mma.fragments import WARP_LANES
from aotc.verify.emulator.mma.wgmma_form import WARP_ROWS, Form
from aotc.verify.emulator.syntax import Register

WARPS = 4  # per warpgroup
ROWS = WARPS * WARP_ROWS
GROUP_LANES = WARPS * WARP_LANES
_INDEX_BITS = 8  # of a name: index of the result register, below the chain's number


@dataclass(eq=False)
class Chain:
    """Hold a warpgroup's sums, (64, n) bits, or None before a first job without accumulation.

    `open` counts each warp's jobs not yet waited for.
    """

    number: int
    form: Form
    sums: Array | None
    copies: int  # copies of in-flight registers at the last check of its names
    open: list[int] = field(default_factory=lambda: [0] * WARPS)

    def continues(self, form: Form) -> bool:
        """Return whether the chain is open for all warps, and `form` has its shape."""
        return all(self.open) and (self.form.n, self.form.result) == (form.n, form.result)

    @property
    def available_sums(self) -> Array:
        """Sums of a chain with at least one result."""
        assert self.sums is not None, "a chain starts with sums or with a job that ignores them"
        return self.sums


class WarpRegisters:
    """View the register file by warps: arrays of (warps, 32), to read and write."""

    def __init__(self, registers: RegisterFile) -> None:
        self._registers = registers
        self._rows: dict[tuple[int, ...], tuple[Ints, Ints]] = {}  # by result registers

    @property
    def copies(self) -> int:
        """Number of copies of registers in flight."""
        return self._registers.flight_copies

    def rows_of(self, form: Form) -> tuple[Ints, Ints]:
        """Return the result's rows in `all_words` and in `all_states`, as columns."""
        table_rows = self._rows.get(form.d_rows)
        if table_rows is None:
            rows: list[int] = []
            states: list[int] = []
            for register in form.d_registers:
                bits, row = self._registers.table_row(register)
                state = self._registers.state_row(register)
                assert bits == 32, f"{register.name} holds a result of wgmma in {bits} bits"
                assert state is not None, f"{register.name} is used by wgmma and has no states"
                rows.append(row)
                states.append(state)
            table_rows = np.array(rows)[:, None], np.array(states)[:, None]
            self._rows[form.d_rows] = table_rows
        return table_rows

    def states(self, register: Register) -> npt.NDArray[np.uint8]:
        """Return a register's states."""
        states = self._registers.states(register)
        assert states is not None, f"{register.name} is used by wgmma and has no states"
        return reshape(states, -1, WARP_LANES)

    def all_words(self, lanes: int) -> Array:
        """Return all 32-bit registers, grouped by `lanes`: (rows, n, lanes)."""
        table = self._registers.table(32)
        return reshape(table, len(table), -1, lanes)

    def all_states(self, lanes: int) -> npt.NDArray[np.uint8]:
        """Return all states, grouped by `lanes`: (rows, n, lanes)."""
        table = self._registers.state_table
        return reshape(table, len(table), -1, lanes)

    def tracked(self) -> list[tuple[Array, npt.NDArray[np.uint8]]]:
        """Return the values and states of all tracked 32-bit registers."""
        return [
            (reshape(row, -1, WARP_LANES), reshape(states, -1, WARP_LANES))
            for row, states in self._registers.tracked_words()
        ]


class Chains:
    """Hold the chains of all warpgroups of a batch."""

    def __init__(self, file: WarpRegisters) -> None:
        self._file = file
        self._by_registers: dict[tuple[int, tuple[int, ...]], Chain] = {}  # by warpgroup, registers
        self._by_number: dict[int, Chain] = {}
        self._next_number = 1

    def continued(self, form: Form, groups: Ints, accumulate: npt.NDArray[np.bool_]) -> list[Chain]:
        """Return the chain of each warpgroup for the result registers, opening missing ones."""
        copies = self._file.copies
        previous = [self._by_registers.get((group, form.d_rows)) for group in groups.tolist()]
        chains = [
            chain
            for chain in previous
            if chain is not None and chain.continues(form) and chain.copies == copies
        ]
        if len(chains) == len(previous):
            return chains
        _, marks = self._file.rows_of(form)
        states = self._file.all_states(GROUP_LANES)[marks, groups]
        flying = states == WRITE_IN_FLIGHT  # (registers, groups, lanes)
        any_flying, all_flying = flying.any((0, 2)), flying.all((0, 2))
        if (any_flying & ~all_flying).any():
            group = int(groups[any_flying & ~all_flying][0])
            refuse(group * WARPS, "some registers of its result are in flight, not all")
        fresh = ~all_flying
        opened = iter(list[Chain]())
        if fresh.any():
            self._check_fresh(form, groups[fresh], states[:, fresh], accumulate[fresh])
            opened = iter(self._begin(form, groups[fresh], accumulate[fresh]))
        return [
            next(opened) if new else self._named(form, group)
            for group, new in zip(groups.tolist(), fresh.tolist(), strict=True)
        ]

    def _check_fresh(
        self, form: Form, groups: Ints, states: Array, accumulate: npt.NDArray[np.bool_]
    ) -> None:
        unfenced = states == DEFINED
        if unfenced.any():
            index, group, _ = (int(i) for i in np.argwhere(unfenced)[0])
            refuse_unfenced(form.d_registers[index], groups * WARPS, unfenced[index])
        read = states == READ_IN_FLIGHT
        if read.any():
            index, group, _ = (int(i) for i in np.argwhere(read)[0])
            name = form.d_registers[index].name
            refuse(int(groups[group]) * WARPS, f"{name} is still read by another wgmma")
        undefined = (states == UNDEFINED) & accumulate[None, :, None]
        if undefined.any():
            index, group, lane = (int(i) for i in np.argwhere(undefined)[0])
            raise Misuse(
                "undefined",
                f"{form.d_registers[index].name} is added to and was never written",
                lane=int(groups[group]) * GROUP_LANES + lane,
            )

    def _begin(self, form: Form, groups: Ints, accumulate: npt.NDArray[np.bool_]) -> list[Chain]:
        """Open a chain for each warpgroup; its registers get its name."""
        numbers = np.arange(self._next_number, self._next_number + len(groups), dtype=np.uint32)
        self._next_number += len(groups)
        rows, marks = self._file.rows_of(form)
        table = self._file.all_words(GROUP_LANES)
        words = reshape(table[rows, groups], len(rows), -1, WARP_LANES)
        sums = form.d_fragment.gather(np.swapaxes(words, 0, 1))
        sums = reshape(sums, -1, ROWS, form.n)
        copies = self._file.copies
        chains = [
            Chain(number, form, sums[index] if keep else None, copies)
            for index, (number, keep) in enumerate(zip(numbers.tolist(), accumulate, strict=True))
        ]
        indices = np.arange(len(rows), dtype=np.uint32)[:, None]
        table[rows, groups] = (numbers << np.uint32(_INDEX_BITS) | indices)[:, :, None]
        self._file.all_states(GROUP_LANES)[marks, groups] = WRITE_IN_FLIGHT
        for group, chain in zip(groups.tolist(), chains, strict=True):
            self._by_number[chain.number] = chain
            self._by_registers[group, form.d_rows] = chain
        return chains

    def _named(self, form: Form, group: int) -> Chain:
        """Return the chain named by a warpgroup's in-flight registers.

        Raises: Misuse if they name several, in another order, or of another shape.
        """
        rows, _ = self._file.rows_of(form)
        names = self._file.all_words(GROUP_LANES)[rows[:, 0], group]
        number, indices = int(names[0, 0]) >> _INDEX_BITS, np.arange(len(names), dtype=np.uint32)
        chain = self._by_number.get(number)
        expected: Array = np.bitwise_or(np.uint32(number << _INDEX_BITS), indices)
        if chain is None or (names != expected[:, None]).any():
            refuse(group * WARPS, "the registers of its result are in flight in another order")
        if not chain.continues(form):
            refuse(group * WARPS, "the registers of its result are in flight in another shape")
        chain.copies = self._file.copies
        self._by_registers[group, form.d_rows] = chain
        return chain

    def write_back(self, closed: Sequence[tuple[int, Chain]]) -> None:
        """Write the sums of chains to the warps' registers that hold their names."""
        by_registers: dict[tuple[int, ...], list[tuple[int, Chain]]] = defaultdict(list)
        for number, chain in closed:
            by_registers[chain.form.d_rows].append((number, chain))
            if not any(chain.open):
                self._by_number.pop(chain.number, None)
        for members in by_registers.values():
            form = members[0][1].form
            warps = np.array([number for number, _ in members])
            chains = {chain.number: chain for _, chain in members}
            chain_index = {number: index for index, number in enumerate(chains)}
            sums = np.stack([chain.available_sums for chain in chains.values()])
            parts = reshape(sums, len(chains), WARPS, WARP_ROWS, -1)
            of_warp = np.array([chain_index[chain.number] for _, chain in members])
            words = form.d_fragment.scatter(parts[of_warp, warps % WARPS])
            words = np.swapaxes(words, 0, 1)
            if self._file.copies:
                names = np.array([chain.number for _, chain in members])
                self._write_named(warps, names, words)
                continue
            rows, marks = self._file.rows_of(form)
            self._file.all_words(WARP_LANES)[rows, warps] = words
            self._file.all_states(WARP_LANES)[marks, warps] = FENCED

    def _write_named(self, warps: Ints, names: Ints, words: Array) -> None:
        """Write words (indices, warps, lanes) to all registers that hold their names."""
        warp_index = np.arange(len(warps))[:, None]
        lane = np.arange(WARP_LANES)
        for row, states in self._file.tracked():
            values = row[warps]
            marks = states[warps]
            hit = (marks == WRITE_IN_FLIGHT) & (values >> _INDEX_BITS == names[:, None])
            if hit.any():
                index = np.where(hit, values & (1 << _INDEX_BITS) - 1, 0)
                row[warps] = np.where(hit, words[index, warp_index, lane], values)
                states[warps] = np.where(hit, np.uint8(FENCED), marks)


def refuse(warp: int, message: str) -> NoReturn:
    """Raise Misuse for a warp's use of wgmma."""
    raise Misuse("wgmma", message, lane=warp * WARP_LANES)


def refuse_unfenced(register: Register, warps: Ints, mask: Array) -> NoReturn:
    """Raise Misuse for an unfenced register of the first of warps (n,) in `mask` (n, …)."""
    warp_index = int(np.argwhere(mask)[0][0])
    refuse(int(warps[warp_index]), f"{register.name} was written with no wgmma.fence between")
