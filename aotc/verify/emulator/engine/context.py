"""What an executing instruction sees: the lanes that execute it and the machine they run on.

Many warps of many CTAs run in step, so every read is an array over lanes. Lanes are numbered
through the batch of resident CTAs: lane `l` is thread `l % threads` (linear) of CTA
`l // threads`, and belongs to warp `l // 32`; CTAs are padded to whole warps.

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
    """The state shared by all warps of the CTAs that are resident together."""

    num_ctas: int  # resident in this batch
    warps_per_cta: (
        int  # those that a CTA lacks to whole warpgroups among them: none of their lanes runs
    )
    launched_warps: int  # of a CTA
    cluster_size: int  # CTAs of a cluster are neighbours in the batch
    global_memory: GlobalMemory
    global_shadow: GlobalShadow
    shared: SharedMemory
    local: LocalMemory
    params: npt.NDArray[np.uint8]  # of each launch its parameters as bytes; an address is an index
    launch_of_lane: npt.NDArray[np.int64]  # of those that run at a time
    constants: npt.NDArray[np.uint8]  # `.const` variables, likewise
    scopes: tuple[int, ...]  # among which accesses are strong in this kernel, ascending
    order: Order  # who has synchronised with whom; see vector_clocks.py
    registers: RegisterFile  # for what is read and written later than it is issued
    is_shuffled: bool  # whether the schedule is a random one, not in step
    random: np.random.Generator  # the schedule's seed; draws nothing when running in step

    def defer(
        self,
        lanes: npt.NDArray[np.int64],
        action: Callable[[], None],
        *,
        ready: Callable[[], bool] | None = None,
        is_silent: bool = False,
        is_awaited: bool = False,
    ) -> Pending:
        """Queue an asynchronous operation of lanes (n,), ascending, which happens later.

        Where it `is_silent`, a warp that waits cannot tell that it has happened, but for events
        that the operation notes itself. One that `is_awaited` lets nobody go on but who forces it.

        The scheduler picks the moment; it is at latest when somebody forces it (`Pending.force`) or
        when no warp can go on.
        """
        ...

    def part(self, kind: Callable[[Machine], Part]) -> Part:
        """Return this batch's own `kind(machine)`, made when it is first asked for.

        State that only some instructions need, such as the mbarriers, is kept this way.
        """
        ...

    def note_event(self) -> None:
        """Say that something happened which a waiting warp may be waiting for.

        When every warp waits and no event happens any more, the scheduler reports a deadlock.
        """
        ...


class Pending(Protocol):
    """An asynchronous operation that has been issued."""

    done: bool

    def force(self) -> None:
        """Let it happen now, if it has not happened yet."""
        ...

    def settle(self) -> None:
        """Take it for done: somebody else has let it happen."""
        ...


class Context(Protocol):
    """The lanes that execute one instruction, in one step."""

    instruction: Instruction
    lanes: slice | npt.NDArray[np.int64]  # active lanes of the batch, ascending
    count: int  # how many they are

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
        """Return the address that `[base + offset]` names, over the active lanes: (count,)."""
        ...

    def lane_indices(self) -> npt.NDArray[np.int64]:
        """Return the active lanes' numbers in the batch: (count,)."""
        ...

    def cta_indices(self) -> npt.NDArray[np.int64]:
        """Return the CTA (in the batch) of each active lane: (count,)."""
        ...

    # ---- instructions of whole warps --------------------------------------------------------

    def warps(self) -> npt.NDArray[np.int64]:
        """Return the warps of the batch that have an active lane, ascending: (n,)."""
        ...

    def active(self) -> npt.NDArray[np.bool_]:
        """Return which lanes of `warps()` are active: (n, 32)."""
        ...

    def alive(self) -> npt.NDArray[np.bool_]:
        """Return which lanes of `warps()` exist and have not exited: (n, 32)."""
        ...

    def read_warps(self, operand: Operand, bits: int) -> npt.NDArray[Any]:
        """Return an operand over all lanes of `warps()`, the inactive ones too: (n, 32)."""
        ...

    def write_warps(self, operand: Operand, value: npt.NDArray[Any]) -> None:
        """Write a register from an (n, 32) array; only active lanes take it."""
        ...

    def read_each(self, operands: Sequence[Operand], bits: int) -> npt.NDArray[Any]:
        """Return operands as `read_warps` does each of them: (n, operands, 32)."""
        ...

    def write_each(self, operands: Sequence[Operand], values: npt.NDArray[Any]) -> None:
        """Write registers as `write_warps` does each, from (n, operands, 32)."""
        ...

    def require_whole_warps(self) -> None:
        """Raise a Fault unless every lane of `warps()` is active, as `.aligned` demands."""
        ...

    # ---- waiting ----------------------------------------------------------------------------

    def mark_waiting(
        self, lanes: npt.NDArray[np.bool_], why: Callable[[int], str] | None = None
    ) -> None:
        """Say which active lanes poll for something that has not happened, such as `try_wait`.

        The scheduler lets others go first, and reports a deadlock if all wait for ever. The report
        asks `why` what a lane of the batch is waiting for: "waits for …".
        """
        ...

    def fault(self, message: str, lane: int | None = None) -> Fault:
        """Return the error that this instruction did what it may not, in `lane` of the batch."""
        ...
