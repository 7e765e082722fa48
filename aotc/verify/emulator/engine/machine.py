"""A batch: the CTAs that are resident together, and all the state that belongs to them.

Invariant: what is here is of one batch; global memory and the register file's storage, which is
only reused, outlive it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import reshape, view
from aotc.verify.emulator.compute.registry import bits_dtype
from aotc.verify.emulator.engine.divergence import Poll
from aotc.verify.emulator.engine.registers import RegisterFile
from aotc.verify.emulator.errors import Fault, Misuse
from aotc.verify.emulator.memory.global_shadow import GlobalShadow
from aotc.verify.emulator.memory.local_memory import LocalMemory
from aotc.verify.emulator.memory.shared_memory import RANK_SHIFT, SharedMemory
from aotc.verify.emulator.memory.vector_clocks import Order
from aotc.verify.emulator.syntax import Immediate, Instruction, Operand, SpecialRegister, Symbol
from aotc.verify.emulator.text.special_registers import CLOCKS, WARP, Clusters, Launch, Positions

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Image:
    """Hold what the launch fixed in memory: where symbols are, parameters, constants, sizes."""

    addresses: Mapping[str, int]
    shared: frozenset[str]  # the names of those in shared memory
    params: npt.NDArray[np.uint8]  # (launches, bytes)
    constants: npt.NDArray[np.uint8]
    local_bytes: int
    static_shared_bytes: int

    def constant(self, operand: Operand, bits: int) -> npt.NDArray[Any]:
        """Return the value of a constant or the address of a variable: (), unsigned."""
        if isinstance(operand, Immediate):
            value = operand.value
            if operand.float_bits == 64 and bits == 32:  # PTX rounds a literal to the type
                value = int(
                    view(view(np.array(value, np.uint64), np.float64).astype("f4"), np.uint32)
                )
        elif isinstance(operand, Symbol):
            value = self.addresses[operand.name] + operand.offset
        else:
            raise TypeError(f"{operand} has no value")
        wrapped = bool(value) if bits == 1 else value & ((1 << bits) - 1)
        return np.array(wrapped, bits_dtype(bits))


class Deferred:
    """Implement `Pending`: an operation that has been issued and happens later."""

    def __init__(
        self,
        batch: Batch,
        clusters: range,
        action: Callable[[], None],
        ready: Callable[[], bool] | None,
    ) -> None:
        self.is_silent = self.is_awaited = False
        self.clusters = clusters  # of the batch, from the first that issued it to the last
        self._batch = batch
        self._issuer = batch.executing
        self._action: Callable[[], None] | None = action
        self._ready = ready
        self.done = False

    @property
    def ready(self) -> bool:
        """Whether it may happen now."""
        return self._ready is None or self._ready()

    def force(self) -> None:
        """Let it happen now, if it has not happened yet."""
        action = self._action
        if action is not None:
            self.settle()
            try:
                action()
            except Misuse as misuse:
                raise self._batch.fault_of(misuse, self._issuer) from None

    def settle(self) -> None:
        """Take it for done. What was to happen is forgotten, and with it all that it held."""
        self.done = True
        self._action = self._ready = None


class Batch:
    """Implement `Machine` for the CTAs of some clusters.

    The first of them is number `first_cluster` of all that run.
    """

    def __init__(
        self,
        launch: Launch,
        clusters: Clusters,
        first_cluster: int,
        image: Image,
        global_shadow: GlobalShadow,
        registers: RegisterFile,
        random: np.random.Generator,
        granule_bytes: int,
        scopes: tuple[int, ...],
        *,
        is_shuffled: bool,
        reads_unwritten: bool = False,
    ) -> None:
        self.launch = launch
        self.is_shuffled = is_shuffled
        self.scopes = scopes
        self.positions = Positions(launch, clusters)
        self.num_ctas = len(self.positions.ctas)
        self.warps_per_cta = launch.warp_slots
        self.launched_warps = launch.warps
        self.cluster_size = launch.cluster_size
        self.num_warps = self.num_ctas * self.warps_per_cta
        self.num_lanes = self.num_warps * WARP
        self.image = image
        self.params = image.params
        self.constants = image.constants
        self.global_memory = global_shadow.memory
        self.global_shadow = global_shadow
        self.registers = registers
        self.random = random
        self.order = Order(
            self.num_ctas, self.warps_per_cta, self.cluster_size, whole=global_shadow.whole
        )
        global_shadow.begin(self.order, first_cluster, self.num_lanes)
        self.shared = SharedMemory(
            self.num_ctas,
            launch.shared_bytes,
            self.order,
            granule_bytes=granule_bytes,
            noise=random if reads_unwritten else None,
        )
        self.local = LocalMemory(self.num_lanes, image.local_bytes)
        self.call_params: dict[str, npt.NDArray[np.uint64]] = {}  # of the call being prepared
        self.printed: list[str] = []
        self.lane_numbers = np.arange(self.num_lanes, dtype=np.int64)
        self.warp_of_lane = self.lane_numbers // WARP
        self.cta_of_lane = self.warp_of_lane // self.warps_per_cta
        self.launch_of_lane = clusters.launch[self.cta_of_lane // self.cluster_size]
        self._rank_bits = (self.cta_of_lane % self.cluster_size + 1) << RANK_SHIFT
        thread = self.lane_numbers % (self.warps_per_cta * WARP)
        self.alive = thread < launch.threads
        self.num_threads = self.num_alive = int(self.alive.sum())
        self.polling = np.zeros(self.num_lanes, bool)
        self.poll: Poll | None = None  # the last one that the running group did
        self.executing: Instruction | None = None
        self.events = 0
        self.steps = 0
        self.pending: list[Deferred] = []
        self._special: dict[str, npt.NDArray[Any]] = {}
        self._constants: dict[tuple[Operand, int], npt.NDArray[Any]] = {}
        self._parts: dict[object, Any] = {}

    # ---- Machine ------------------------------------------------------------

    def defer(
        self,
        lanes: npt.NDArray[np.int64],
        action: Callable[[], None],
        *,
        ready: Callable[[], bool] | None = None,
        is_silent: bool = False,
        is_awaited: bool = False,
    ) -> Deferred:
        """Queue an asynchronous operation of lanes (n,), ascending, which happens later."""
        cluster_lanes = self.cluster_size * self.warps_per_cta * WARP
        first = int(lanes[0]) // cluster_lanes
        last = first if len(lanes) == 1 else int(lanes[-1]) // cluster_lanes
        pending = Deferred(self, range(first, last + 1), action, ready)
        pending.is_silent, pending.is_awaited = is_silent or is_awaited, is_awaited
        self.pending.append(pending)
        return pending

    def exit(self, lanes: npt.NDArray[np.int64]) -> None:
        """Let lanes exit; a CTA whose lanes all have gives its shared memory back."""
        self.alive[lanes] = False
        self.num_alive -= len(lanes)
        ctas = np.unique(self.cta_of_lane[lanes])
        alive = reshape(self.alive, self.num_ctas, -1)[ctas].any(axis=1)
        self.shared.end(ctas[~alive])

    def part(self, kind: Callable[[Batch], Part]) -> Part:
        """Return this batch's own `kind(machine)`, made when it is first asked for."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        return self._parts[kind]

    def note_event(self) -> None:
        """Say that something happened which a waiting warp may be waiting for."""
        self.events += 1

    def close(self) -> None:
        """Let go of what knows this batch: else its arrays, which are large, outlive it."""
        self._parts.clear()
        self.pending.clear()
        self.poll = None

    # ---- values that are no registers ---------------------------------------

    def special(self, name: str) -> npt.NDArray[Any]:
        """Return a special register of every lane, clocks excepted: (num_lanes,)."""
        if name not in self._special:
            self._special[name] = self.positions.read(name)
        return self._special[name]

    def own_address(self, symbol: Symbol) -> npt.NDArray[np.int64] | None:
        """Return where a variable in shared memory is for every lane, or None: for all the same.

        In a cluster an address says whose it is, also that of the CTA itself.
        """
        if self.cluster_size == 1 or symbol.name not in self.image.shared:
            return None
        return self._rank_bits + (self.image.addresses[symbol.name] + symbol.offset)

    def is_clock(self, operand: SpecialRegister) -> bool:
        """Say whether a special register is a clock, which all lanes read the same of."""
        return operand.name in CLOCKS

    def constant(self, operand: Operand, bits: int) -> npt.NDArray[Any]:
        """Return what is the same for all lanes: a constant, an address or a clock: (), unsigned."""
        if isinstance(operand, SpecialRegister) and operand.name in CLOCKS:
            return np.array(self.steps, bits_dtype(bits))
        key = (operand, bits)
        if key not in self._constants:
            self._constants[key] = self.image.constant(operand, bits)
        return self._constants[key]

    # ---- faults -------------------------------------------------------------

    def fault(
        self,
        kind: str,
        message: str,
        instruction: Instruction,
        lane: int | None = None,
        notes: Sequence[str] = (),
    ) -> Fault:
        """Return the error that an instruction did what it may not, in a lane of the batch."""
        cta: Sequence[int] = ()
        thread = None
        if lane is not None:
            cta = [int(axis) for axis in self.positions.ctas[self.cta_of_lane[lane]]]
            thread = lane % (self.warps_per_cta * WARP)
        return Fault(
            kind,
            message,
            line=instruction.line,
            text=instruction.text,
            place=instruction.place,
            cta=cta,
            thread=thread,
            notes=notes,
        )

    def fault_of(self, misuse: Misuse, instruction: Instruction | None) -> Fault:
        """Return the fault for a misuse, blamed on `instruction` unless it names another one."""
        blamed = misuse.instruction or instruction
        assert blamed is not None
        return self.fault(misuse.kind, misuse.message, blamed, misuse.lane, misuse.notes)

    def take_pending(self) -> list[Deferred]:
        """Return the operations that have yet to happen, oldest first."""
        self.pending = [pending for pending in self.pending if not pending.done]
        return self.pending


class Current:
    """Hold the batch that runs now, and what all batches share: steps outlive batches."""

    batch: Batch

    def __init__(self, image: Image) -> None:
        self.image = image
