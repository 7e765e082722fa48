"""Protocols for an executing instruction: its lanes and the machine.

Many warps of many CTAs run in step, so every read is an array over lanes. Lanes are numbered across
the batch of resident CTAs. Lane `l` is thread `l % threads` (linear) of CTA `l // threads`, and
belongs to warp `l // 32`. CTAs are padded to whole warps.

Invariant: an instruction's function changes state only for its active lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from aotc.verify.emulator.engine.registers import RegisterFile
from aotc.verify.emulator.errors import Fault
from aotc.verify.emulator.memory.global_memory import GlobalMemory
from aotc.verify.emulator.memory.global_shadow import GlobalShadow
from aotc.verify.emulator.memory.local_memory import LocalMemory
from aotc.verify.emulator.memory.shared_memory import SharedMemory
from aotc.verify.emulator.memory.vector_clocks import Order
from aotc.verify.emulator.syntax import Instruction, Operand

Part = TypeVar("Part")


class Machine(Protocol):
    """The state shared by all resident CTAs."""

    num_ctas: int  # resident in this batch
    warps_per_cta: int  # padded to whole warpgroups; padding lanes never run
    launched_warps: int  # of a CTA
    cluster_size: int  # CTAs of a cluster are neighbours in the batch
    global_memory: GlobalMemory
    global_shadow: GlobalShadow
    shared: SharedMemory
    local: LocalMemory
    params: npt.NDArray[np.uint8]  # parameter bytes of each launch; an address is an index
    launch_of_lane: npt.NDArray[np.int64]  # by lane, among concurrent launches
    constants: npt.NDArray[np.uint8]  # `.const` variables, likewise
    scopes: tuple[int, ...]  # of this kernel's strong accesses, ascending
    order: Order  # happens-before between warps; see vector_clocks.py
    registers: RegisterFile  # for registers accessed after issue
    is_shuffled: bool  # whether the schedule is random, not in step
    random: np.random.Generator  # seeded by the schedule; unused in step

    def defer(
        self,
        lanes: npt.NDArray[np.int64],
        action: Callable[[], None],
        *,
        ready: Callable[[], bool] | None = None,
        is_silent: bool = False,
        is_awaited: bool = False,
    ) -> Pending:
        """Queue an asynchronous operation of lanes (n,), ascending.

        The scheduler picks its moment: at the latest when it is forced (`Pending.force`), or when
        no warp can continue.

        `is_silent`: it wakes no polling warp, except by events it notes itself. `is_awaited`: it
        unblocks only a warp that forces it.
        """
        ...

    def part(self, kind: Callable[[Machine], Part]) -> Part:
        """Return this batch's instance of `kind`, created on first use.

        It holds state that only some instructions need, such as the mbarriers.
        """
        ...

    def note_event(self) -> None:
        """Record an event that a polling warp may be waiting for.

        When every warp waits and no more events occur, the scheduler reports a deadlock.
        """
        ...


class Pending(Protocol):
    """An issued asynchronous operation."""

    is_done: bool

    def force(self) -> None:
        """Run it now, unless it is done."""
        ...

    def settle(self) -> None:
        """Mark it done: its effect was produced otherwise."""
        ...


class Context(Protocol):
    """The lanes executing one instruction, in one step."""

    instruction: Instruction
    lanes: slice | npt.NDArray[np.int64]  # active lanes of the batch, ascending
    count: int  # number of lanes

    @property
    def machine(self) -> Machine:
        """The state shared by all warps."""
        ...

    def read(self, operand: Operand, bits: int) -> npt.NDArray[Any]:
        """Return the low `bits` of an operand over the active lanes: unsigned, (count,).

        The array must not be written to. Constants are broadcast to (count,).
        """
        ...

    def write(self, operand: Operand, value: npt.NDArray[Any]) -> None:
        """Write a register of the active lanes; `value` broadcasts to (count,).

        A wider register is filled up with zeros, as for `ld.b8` into a 16-bit register; signed
        loads extend their value themselves.
        """
        ...

    def address(self, operand: Operand) -> npt.NDArray[np.int64]:
        """Return the address `[base + offset]` over the active lanes: (count,)."""
        ...

    def lane_indices(self) -> npt.NDArray[np.int64]:
        """Return the active lanes' numbers in the batch: (count,)."""
        ...

    def cta_indices(self) -> npt.NDArray[np.int64]:
        """Return the CTA (in the batch) of each active lane: (count,)."""
        ...

    # ---- instructions of whole warps --------------------------------------------------------

    def warps(self) -> npt.NDArray[np.int64]:
        """Return the warps of the batch with an active lane, ascending: (n,)."""
        ...

    def active(self) -> npt.NDArray[np.bool_]:
        """Return the active mask of `warps()`: (n, 32)."""
        ...

    def alive(self) -> npt.NDArray[np.bool_]:
        """Return the mask of existing, unexited lanes of `warps()`: (n, 32)."""
        ...

    def read_warps(self, operand: Operand, bits: int) -> npt.NDArray[Any]:
        """Return an operand over all lanes of `warps()`, inactive ones included: (n, 32)."""
        ...

    def write_warps(self, operand: Operand, value: npt.NDArray[Any]) -> None:
        """Write a register from an (n, 32) array; only active lanes take it."""
        ...

    def read_each(self, operands: Sequence[Operand], bits: int) -> npt.NDArray[Any]:
        """Return operands like `read_warps`: (n, operands, 32)."""
        ...

    def write_each(self, operands: Sequence[Operand], values: npt.NDArray[Any]) -> None:
        """Write registers like `write_warps`, from (n, operands, 32)."""
        ...

    def require_whole_warps(self) -> None:
        """Raise a Fault unless every lane of `warps()` is active, as `.aligned` demands."""
        ...

    # ---- waiting ----------------------------------------------------------------------------

    def mark_waiting(
        self, lanes: npt.NDArray[np.bool_], why: Callable[[int], str] | None = None
    ) -> None:
        """Mark active lanes as polling without success, as `try_wait` does.

        The scheduler lets others go first, and reports a deadlock if all poll forever. The report
        calls `why` with a lane of the batch, to explain its wait: "waits for …".
        """
        ...

    def fault(self, message: str, lane: int | None = None) -> Fault:
        """Return the fault of an illegal act of this instruction, in `lane` of the batch."""
        ...
