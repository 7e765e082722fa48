"""The lanes executing one instruction: the `Context` that rules read and write through.

Invariant: a context belongs to one step and is never changed, so a deferred action may hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import reshape, view
from aotc.verify.emulator.compute.registry import bits_dtype
from aotc.verify.emulator.engine.divergence import Poll
from aotc.verify.emulator.engine.machine import Batch
from aotc.verify.emulator.engine.registers import (
    DEFINED,
    READ_IN_FLIGHT,
    UNDEFINED,
    RegisterFile,
    Row,
)
from aotc.verify.emulator.errors import Fault
from aotc.verify.emulator.syntax import (
    Address,
    Immediate,
    Instruction,
    Operand,
    Register,
    Sink,
    SpecialRegister,
    Symbol,
    TensorAddress,
)
from aotc.verify.emulator.text.special_registers import CLOCKS, WARP

Ints = npt.NDArray[np.int64]


class LaneContext:
    """Implement `Context` for the lanes of one group."""

    __slots__ = ("_warps", "count", "instruction", "lanes", "machine", "registers")

    def __init__(self, machine: Batch, instruction: Instruction, lanes: slice | Ints) -> None:
        self.machine = machine
        self.registers: RegisterFile = machine.registers
        self.instruction = instruction
        self.lanes = lanes
        self.count: int = lanes.stop - lanes.start if isinstance(lanes, slice) else len(lanes)
        self._warps: Ints | None = None

    # ---- operands -----------------------------------------------------------

    def read(self, operand: Operand, bits: int) -> npt.NDArray[Any]:
        """Return the low `bits` of an operand over the active lanes: unsigned, (count,)."""
        if isinstance(operand, Register):
            return self._fit(self._read_register(operand, self.lanes), bits)
        if isinstance(operand, SpecialRegister) and operand.name not in CLOCKS:
            return self._fit(self.machine.special(operand.name)[self.lanes], bits)
        if isinstance(operand, Symbol):
            cta_addresses = self.machine.own_address(operand)
            if cta_addresses is not None:
                return cta_addresses[self.lanes].astype(bits_dtype(bits))
        value = self.machine.constant(operand, bits)
        return np.broadcast_to(value, (self.count,))

    def write(self, operand: Operand, value: npt.NDArray[Any]) -> None:
        """Write a register of the active lanes; `value` broadcasts to (count,)."""
        if isinstance(operand, Sink):
            return
        if not isinstance(operand, Register):
            raise TypeError(f"{operand} cannot be written")
        self._write_states(operand)
        self.registers.row(operand)[self.lanes] = value

    def address(self, operand: Operand) -> Ints:
        """Return the address `[base + offset]` over the active lanes: (count,)."""
        offset = 0
        if isinstance(operand, Address):
            operand, offset = operand.base, operand.offset
        elif isinstance(operand, TensorAddress):
            operand = operand.base
        if isinstance(operand, Register):
            base = self._read_register(operand, self.lanes).astype(np.int64)
            if offset:
                base += offset
            return base
        if not isinstance(operand, Symbol | Immediate):
            raise TypeError(f"{operand} is no address")
        cta_addresses = self.machine.own_address(operand) if isinstance(operand, Symbol) else None
        if cta_addresses is not None:
            return cta_addresses[self.lanes] + offset
        start = int(view(self.machine.constant(operand, 64), np.int64))
        return np.full(self.count, start + offset, np.int64)

    def _read_register(self, register: Register, lanes: Any) -> Row:
        states = self.registers.states(register)
        if states is not None:
            self.require_readable(register.name, states)
        value = self.registers.row(register)[lanes]
        return ~value if register.negated else value

    def _fit(self, value: Row, bits: int) -> Row:
        dtype = bits_dtype(bits)
        if value.dtype == dtype:
            return value
        return value & 1 != 0 if bits == 1 else value.astype(dtype)

    def require_readable(self, name: str, states: npt.NDArray[np.uint8]) -> None:
        """Raise a Fault if a register is undefined, or has a write in flight, in an active lane."""
        bad = states[self.lanes] & 1 == 0  # readable states are odd
        if bad.any():
            lane = int(self.lane_indices()[int(np.argmax(bad))])
            if states[lane] == UNDEFINED:
                raise self._fault("undefined", f"{name} is read and was never written", lane)
            raise self._fault("wgmma", f"{name} is read while a wgmma is yet to write it", lane)

    def _write_states(self, register: Register) -> None:
        states = self.registers.states(register)
        if states is not None:
            self.require_writable(register.name, states)
            states[self.lanes] = DEFINED

    def require_writable(self, name: str, states: npt.NDArray[np.uint8]) -> None:
        """Raise a Fault if a register is in flight in an active lane."""
        bad = states[self.lanes] > DEFINED
        if bad.any():
            lane = int(self.lane_indices()[int(np.argmax(bad))])
            verb = "read" if states[lane] == READ_IN_FLIGHT else "write"
            raise self._fault("wgmma", f"{name} is written while a wgmma is yet to {verb} it", lane)

    # ---- lanes, CTAs, warps -----------------------------------------------

    def lane_indices(self) -> Ints:
        """Return the active lanes' numbers in the batch: (count,)."""
        return self.machine.lane_numbers[self.lanes]

    def cta_indices(self) -> Ints:
        """Return the CTA (in the batch) of each active lane: (count,)."""
        return self.machine.cta_of_lane[self.lanes]

    def warps(self) -> Ints:
        """Return the warps of the batch with an active lane, ascending: (n,)."""
        if self._warps is None:
            warps = self.machine.warp_of_lane[self.lanes]
            first = np.empty(len(warps), bool)
            first[0] = True
            np.not_equal(warps[1:], warps[:-1], out=first[1:])
            self._warps = warps[first]
        return self._warps

    def active(self) -> npt.NDArray[np.bool_]:
        """Return the active mask of `warps()`: (n, 32)."""
        mask = np.zeros(self.machine.num_lanes, bool)
        mask[self.lanes] = True
        return reshape(mask, -1, WARP)[self.warps()]

    def alive(self) -> npt.NDArray[np.bool_]:
        """Return the mask of existing, unexited lanes of `warps()`: (n, 32)."""
        return reshape(self.machine.alive, -1, WARP)[self.warps()]

    def read_warps(self, operand: Operand, bits: int) -> npt.NDArray[Any]:
        """Return an operand over all lanes of `warps()`, inactive ones included: (n, 32)."""
        warps = self.warps()
        if isinstance(operand, Register):
            states = self.registers.states(operand)
            if states is not None:
                self.require_readable(operand.name, states)
            values = reshape(self.registers.row(operand), -1, WARP)[warps]
            return self._fit(~values if operand.negated else values, bits)
        if isinstance(operand, SpecialRegister) and operand.name not in CLOCKS:
            return self._fit(reshape(self.machine.special(operand.name), -1, WARP)[warps], bits)
        if isinstance(operand, Symbol):
            cta_addresses = self.machine.own_address(operand)
            if cta_addresses is not None:
                return reshape(cta_addresses, -1, WARP)[warps].astype(bits_dtype(bits))
        return np.broadcast_to(self.machine.constant(operand, bits), (len(warps), WARP))

    def write_warps(self, operand: Operand, value: npt.NDArray[Any]) -> None:
        """Write a register from an (n, 32) array; only active lanes take it."""
        if self.count == len(value) * WARP:
            self.write(operand, reshape(value, -1))
        else:
            self.write(operand, value[self.active()])

    def read_each(self, operands: Sequence[Operand], bits: int) -> npt.NDArray[Any]:
        """Return operands like `read_warps`: (n, operands, 32)."""
        registers = self._plain(operands, bits)
        if not registers:
            return np.stack([self.read_warps(operand, bits) for operand in operands], axis=1)
        for register in registers:
            states = self.registers.states(register)
            if states is not None:
                self.require_readable(register.name, states)
        values = self.registers.table(bits)[self._rows(registers), self.lanes]
        return np.swapaxes(reshape(values, len(registers), -1, WARP), 0, 1)

    def write_each(self, operands: Sequence[Operand], values: npt.NDArray[Any]) -> None:
        """Write registers like `write_warps`, from (n, operands, 32)."""
        registers = self._plain(operands, 8 * values.itemsize)
        if not registers:
            for index, operand in enumerate(operands):
                self.write_warps(operand, values[:, index])
            return
        for register in registers:
            self._write_states(register)
        table = self.registers.table(registers[0].bits)
        words = reshape(np.swapaxes(values, 0, 1), len(registers), -1)
        table[self._rows(registers), self.lanes] = words

    def _plain(self, operands: Sequence[Operand], bits: int) -> list[Register]:
        """Return the operands if all are registers accessed by whole warps, else an empty list."""
        registers = [
            operand
            for operand in operands
            if isinstance(operand, Register) and operand.bits == bits and not operand.negated
        ]
        is_whole = self.count == len(self.warps()) * WARP
        return registers if is_whole and len(registers) == len(operands) else []

    def _rows(self, registers: Sequence[Register]) -> Ints:
        """Return the registers' rows, shaped to index their table beside `lanes`."""
        rows = np.array([self.registers.table_row(register)[1] for register in registers])
        return rows if isinstance(self.lanes, slice) else rows[:, None]

    def require_whole_warps(self) -> None:
        """Raise a Fault unless every lane of `warps()` is active, as `.aligned` demands.

        Exited lanes are exempt.
        """
        if self.count == self.machine.num_alive:
            return
        missing = reshape(self.machine.alive, -1, WARP)[self.warps()] & ~self.active()
        if missing.any():
            warp, lane = np.argwhere(missing)[0]
            absent = int(self.warps()[warp]) * WARP + int(lane)
            raise self._fault(
                "convergence",
                f"{self.instruction.mnemonic} is executed by part of a warp only",
                absent,
                "this thread of the warp is elsewhere",
            )

    # ---- waiting and faults -------------------------------------------------

    def mark_waiting(
        self, lanes: npt.NDArray[np.bool_], why: Callable[[int], str] | None = None
    ) -> None:
        """Mark active lanes as polling without success."""
        batch = self.machine
        batch.polling[self.lanes] = lanes
        batch.poll = Poll(self.instruction, why)

    def fault(self, message: str, lane: int | None = None) -> Fault:
        """Return the fault of an illegal act of this instruction, in `lane` of the batch.

        The default is the first active lane.
        """
        lane = int(self.lane_indices()[0]) if lane is None else lane
        return self._fault("misuse", message, lane)

    def _fault(self, kind: str, message: str, lane: int | None, *notes: str) -> Fault:
        return self.machine.fault(kind, message, self.instruction, lane, notes)
