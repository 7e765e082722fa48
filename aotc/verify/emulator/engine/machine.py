"""A batch: resident CTAs and all their state.

Invariant: all state here belongs to one batch. Global memory and the register file's storage, which
is reused, outlive it.
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
    """Hold the memory contents fixed at launch: symbol addresses, parameters, constants, sizes."""

    addresses: Mapping[str, int]
    shared: frozenset[str]  # names of variables in shared memory
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
    """Implement `Pending`: an issued operation, executed later."""

    def __init__(
        self,
        batch: Batch,
        clusters: range,
        action: Callable[[], None],
        ready: Callable[[], bool] | None,
    ) -> None:
        self.is_silent = self.is_awaited = False
        self.clusters = clusters  # range of the issuing clusters in the batch
        self._batch = batch
        self._issuer = batch.executing
        self._action: Callable[[], None] | None = action
        self._ready = ready
        self.is_done = False

    @property
    def ready(self) -> bool:
        """Whether it may run now."""
        return self._ready is None or self._ready()

    def force(self) -> None:
        """Run it now, unless it is done."""
        action = self._action
        if action is not None:
            self.settle()
            try:
                action()
            except Misuse as misuse:
                raise self._batch.fault_of(misuse, self._issuer) from None

    def settle(self) -> None:
        """Mark it done, and drop its action with everything the action references."""
        self.is_done = True
        self._action = self._ready = None


class Batch:
    """Implement `Machine` for the CTAs of some clusters.

    `first_cluster` is the number of the first, among all clusters of the run.
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
        self.call_params: dict[str, npt.NDArray[np.uint64]] = {}  # of the next call
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
        self.poll: Poll | None = None  # latest poll of the running group
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
        """Queue an asynchronous operation of lanes (n,), ascending."""
        cluster_lanes = self.cluster_size * self.warps_per_cta * WARP
        first = int(lanes[0]) // cluster_lanes
        last = first if len(lanes) == 1 else int(lanes[-1]) // cluster_lanes
        pending = Deferred(self, range(first, last + 1), action, ready)
        pending.is_silent, pending.is_awaited = is_silent or is_awaited, is_awaited
        self.pending.append(pending)
        return pending

    def exit(self, lanes: npt.NDArray[np.int64]) -> None:
        """Let lanes exit; release the shared memory of CTAs with no lane left."""
        self.alive[lanes] = False
        self.num_alive -= len(lanes)
        ctas = np.unique(self.cta_of_lane[lanes])
        alive = reshape(self.alive, self.num_ctas, -1)[ctas].any(axis=1)
        self.shared.end(ctas[~alive])

    def part(self, kind: Callable[[Batch], Part]) -> Part:
        """Return this batch's instance of `kind`, created on first use."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        return self._parts[kind]

    def note_event(self) -> None:
        """Record an event that a polling warp may be waiting for."""
        self.events += 1

    def close(self) -> None:
        """Drop references to this batch, so that its large arrays are freed."""
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
        """Return a shared variable's address for every lane, or None if all lanes agree.

        In a cluster, an address names its CTA, even the lane's own.
        """
        if self.cluster_size == 1 or symbol.name not in self.image.shared:
            return None
        return self._rank_bits + (self.image.addresses[symbol.name] + symbol.offset)

    def is_clock(self, operand: SpecialRegister) -> bool:
        """Return whether a special register is a clock, equal for all lanes."""
        return operand.name in CLOCKS

    def constant(self, operand: Operand, bits: int) -> npt.NDArray[Any]:
        """Return a value common to all lanes: a constant, address or clock: (), unsigned."""
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
        """Return the fault of an illegal act of an instruction, in a lane of the batch."""
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
            location=instruction.location,
            cta=cta,
            thread=thread,
            notes=notes,
        )

    def fault_of(self, misuse: Misuse, instruction: Instruction | None) -> Fault:
        """Return the fault of a misuse, blamed on `instruction` unless it names another."""
        blamed = misuse.instruction or instruction
        assert blamed is not None
        return self.fault(misuse.kind, misuse.message, blamed, misuse.lane, misuse.notes)

    def take_pending(self) -> list[Deferred]:
        """Return the unfinished operations, oldest first."""
        self.pending = [pending for pending in self.pending if not pending.is_done]
        return self.pending


class Current:
    """Hold the running batch, and the image shared by all batches: steps outlive batches."""

    batch: Batch

    def __init__(self, image: Image) -> None:
        self.image = image
