"""Tensor maps in memory: reads, edits, and the fences that publish edits.

An edited map in global memory must be published by a `release` of the tensor-map proxy. Each warp
that uses it must then acquire the edit, or be ordered after a warp of its CTA that did. Both fences
need scope `gpu` or `sys`, even within a CTA: the TMA unit is no thread of the CTA, and NVIDIA's
code uses no narrower scope. A map written by the host is acquired from the system, by any thread of
the CTA.

Source: PTX ISA, "tensormap.replace", "tensormap.cp_fenceproxy", "membar/fence":
fence.proxy.tensormap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aotc.verify.emulator.async_copies.tensor_map import (
    ALIGNMENT_BYTES,
    FIELDS,
    ORDERED_FIELDS,
    SIZE_BYTES,
    TensorMap,
    TensorMapError,
)
from aotc.verify.emulator.async_copies.transfers import CHUNK_BYTES, chunks_of
from aotc.verify.emulator.engine.context import Context, Machine, Pending
from aotc.verify.emulator.engine.registry import Execute, executes
from aotc.verify.emulator.errors import Misuse, Unsupported
from aotc.verify.emulator.memory.global_memory import PARAM_WINDOW
from aotc.verify.emulator.memory.vector_clocks import CLUSTER, CTA, GPU, WEAK, Ints
from aotc.verify.emulator.memory_access.release_acquire import MemoryOrder
from aotc.verify.emulator.memory_access.spaces import SPACES, read_bytes, write_bytes
from aotc.verify.emulator.synchronization.mbarrier import window_removed
from aotc.verify.emulator.syntax import Immediate, Instruction

_SHARED_OR_GLOBAL = ("shared::cta", "global")


_PIECE_BYTES = 16
_SYSTEM = GPU + 1
_SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU, "sys": _SYSTEM}


@dataclass(frozen=True, slots=True)
class _Release:
    """A published edit: the edit count, and the releasing lane, its stamp and its scope."""

    edits: int
    lane: int
    stamp: int
    scope: int


class TensorMaps:
    """Track the edits of maps in global memory, and the edits that warps have acquired."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._edits: dict[int, int] = {}  # by address: number of edits
        self._published: dict[int, _Release] = {}
        # By CTA and address: the edit count, and the stamp of each acquiring lane.
        self._acquired: dict[tuple[int, int], tuple[int, dict[int, int]]] = {}
        self._from_host: set[tuple[int, int]] = set()  # acquired: CTA and address
        self._edited: dict[int, tuple[int, int]] = {}  # by address: the last editor, and its stamp
        self._copies: dict[int, list[Pending]] = {}  # by address: copies that may read the map

    def read(self, lane: int, address: int) -> TensorMap:
        """Return the map at a generic address, as seen by a copy that `lane` issues.

        Raises: Misuse for an address without a map, and for an edit not acquired.
        """
        if address % ALIGNMENT_BYTES:
            raise Misuse(
                "tensor-map", f"a tensor map at {address:#x}, no multiple of 64 bytes", lane=lane
            )
        machine = self._machine
        params = machine.params[machine.launch_of_lane[lane]]
        start = address - PARAM_WINDOW if address >= PARAM_WINDOW else address
        if start + SIZE_BYTES <= len(params):
            data = params[start : start + SIZE_BYTES].tobytes()
        else:
            chunks = chunks_of(address, SIZE_BYTES)
            owners = np.full(len(chunks), lane)
            data = machine.global_memory.read(chunks, CHUNK_BYTES, owners).tobytes()
        try:
            tensor = TensorMap.from_bytes(data)
        except TensorMapError as error:
            raise Misuse("tensor-map", str(error), lane=lane) from None
        if start + SIZE_BYTES > len(params):
            self._check_acquired(lane, address)
        return tensor

    def edit(self, lane: int, address: int) -> None:
        """Record an edit by `lane` of a map in global memory.

        Raises: Misuse if the edit races with another thread's edit, or with a copy in flight.
        """
        order, editor = self._machine.order, np.array([lane])
        before = self._edited.get(address)
        if before is not None and self._is_unordered(lane, *before):
            message = "edits a tensor map that another thread edits, too: nothing orders the two"
            raise Misuse("race", message, lane=lane)
        self._edited[address] = lane, int(order.stamps(editor, 0)[0])
        if not all(copy.is_done for copy in self._copies.pop(address, ())):
            message = "edits a tensor map that a copy in flight may still read"
            raise Misuse("race", message, lane=lane)
        self._edits[address] = self._edits.get(address, 0) + 1

    def _is_unordered(self, lane: int, other: int, stamp: int) -> bool:
        """Return whether `other`'s edit does not happen before `lane`'s current instruction."""
        order = self._machine.order
        lanes = 32 * order.cluster_warps
        if lane // lanes != other // lanes and not order.whole:
            return True
        return bool(order.unordered(np.array([lane]), np.array([[stamp]]))[0, 0])

    def check_store(self, lane: int, tensor: TensorMap) -> None:
        """Refuse a store to a tensor whose rows are not multiples of 16 bytes.

        Hardware stores whole 16-byte pieces, and so would overwrite the bytes after a row.
        Launchers make no such map for stores; kernels might.

        Raises: Misuse.
        """
        row_bytes = tensor.dims[0] * tensor.element_bytes
        if row_bytes % _PIECE_BYTES:
            message = f"stores rows of {row_bytes} bytes; hardware stores pieces of {_PIECE_BYTES}"
            remedy = (
                "if no caller passes such sizes, the manifest can say so: where = 'M % 32 == 0'"
            )
            raise Misuse("tensor-map", f"{message} ({remedy})", lane=lane)

    def use(self, address: int, copy: Pending) -> None:
        """Record a copy that reads the map; maps never edited need no record."""
        if address in self._edits:
            in_flight = [
                pending for pending in self._copies.get(address, ()) if not pending.is_done
            ]
            self._copies[address] = [*in_flight, copy]

    def release(self, lane: int, scope: int) -> None:
        """Publish to a scope all edits that `lane` made or observed."""
        for address, (editor, stamp) in self._edited.items():
            if editor == lane or not self._is_unordered(lane, editor, stamp):
                self.publish(lane, address, scope)

    def publish(self, lane: int, address: int, scope: int) -> None:
        """Publish the last edit of a map to a scope."""
        stamp = int(self._machine.order.stamps(np.array([lane]), 0)[0])
        self._published[address] = _Release(self._edits[address], lane, stamp, scope)

    def acquire(self, lanes: Ints, addresses: Ints, scope: int) -> None:
        """Let the warps of lanes (n,) use the published maps at addresses (n,)."""
        stamps = self._machine.order.stamps(lanes, 0).tolist()
        for lane, address, stamp in zip(lanes.tolist(), addresses.tolist(), stamps, strict=True):
            if scope == _SYSTEM:
                self._from_host.add((self._cta(lane), address))
            release = self._published.get(address)
            if release is None or min(scope, release.scope) < GPU:
                continue
            if lane == release.lane or not self._is_unordered(lane, release.lane, release.stamp):
                edits, acquirers = self._acquired.get((self._cta(lane), address), (-1, {}))
                acquirers = acquirers if edits == release.edits else {}
                acquirers[lane] = int(stamp)
                self._acquired[self._cta(lane), address] = release.edits, acquirers

    def _has_acquired(self, lane: int, address: int, edits: int) -> bool:
        """Return whether a lane's warp acquired the last edit, or is ordered after a warp that did."""
        acquired, acquirers = self._acquired.get((self._cta(lane), address), (0, {}))
        return acquired == edits and any(
            lane >> 5 == other >> 5 or not self._is_unordered(lane, other, stamp)
            for other, stamp in acquirers.items()
        )

    def _cta(self, lane: int) -> int:
        return lane // (32 * self._machine.warps_per_cta)

    def _check_acquired(self, lane: int, address: int) -> None:
        edits = self._edits.get(address, 0)
        if not edits:
            if (self._cta(lane), address) in self._from_host:
                return
            message = "uses a tensor map in global memory with no "
            message += "fence.proxy.tensormap::generic.acquire.sys before"
            raise Misuse("proxy", message, lane=lane)
        release = self._published.get(address)
        if release is None or release.edits != edits:
            raise Misuse(
                "proxy",
                "uses a tensor map that was edited with no "
                "fence.proxy.tensormap::generic.release between",
                lane=lane,
            )
        if edits and not self._has_acquired(lane, address, edits):
            raise Misuse(
                "proxy",
                "uses a tensor map that was edited with no "
                "fence.proxy.tensormap::generic.acquire between, both of scope gpu or sys",
                lane=lane,
            )


@executes("tensormap.replace")
def replace(instruction: Instruction) -> Execute:
    """Set a field of the map in shared or global memory."""
    words = instruction.modifiers[1:]
    if len(words) < 4 or words[0] != "tile" or words[1] not in FIELDS:
        raise Unsupported(f"the field .{'.'.join(words[:2])}")
    field, space = words[1], words[2]
    if (
        space not in _SHARED_OR_GLOBAL
        or words[3] != "b1024"
        or words[4:] not in (("b32",), ("b64",))
    ):
        raise Unsupported(f"modifiers {'.'.join(words[2:])}")
    bits = int(words[4][1:])
    target, *rest = instruction.operands
    ordinal = rest.pop(0) if field in ORDERED_FIELDS else Immediate(0)
    if not isinstance(ordinal, Immediate) or len(rest) != 1:
        raise Unsupported("a dimension that is no constant")
    (value,) = rest

    def execute(ctx: Context) -> None:
        address, lanes = ctx.address(target), ctx.lane_indices()
        data = _read(ctx, SPACES[space], address)
        values = ctx.read(value, bits).tolist()
        for index, new in enumerate(values):
            try:
                edited = TensorMap.from_template(data[index].tobytes())
                packed = edited.with_field(field, new, ordinal.value).pack()
            except TensorMapError as error:
                raise Misuse("tensor-map", str(error), lane=int(lanes[index])) from None
            data[index] = np.frombuffer(packed, np.uint8)
        _write(ctx, SPACES[space], address, data)
        if space == "global":
            for lane, map_address in zip(lanes.tolist(), address.tolist(), strict=True):
                ctx.machine.part(TensorMaps).edit(lane, map_address)

    return execute


def _read(
    ctx: Context, space: str, address: Ints
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return the 128 bytes at each active lane's address: (n, 128)."""
    parts = [
        read_bytes(ctx, space, address + step, CHUNK_BYTES, WEAK)
        for step in range(0, SIZE_BYTES, CHUNK_BYTES)
    ]
    return np.concatenate(parts, axis=1)


def _write(
    ctx: Context, space: str, address: Ints, data: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
) -> None:
    for step in range(0, SIZE_BYTES, CHUNK_BYTES):
        chunk = np.ascontiguousarray(data[:, step : step + CHUNK_BYTES])
        write_bytes(ctx, space, address + step, chunk, WEAK)


@executes("tensormap.cp_fenceproxy")
def copy_and_publish(instruction: Instruction) -> Execute:
    """Copy a map from shared to global memory and publish it: one copy for a whole warp."""
    expected = ("global", "shared::cta", "tensormap::generic", "release")
    words = instruction.modifiers[1:]
    if words[:4] != expected or words[5:] != ("sync", "aligned") or words[4] not in _SCOPES:
        raise Unsupported(f"modifiers {'.'.join(words)}")
    scope = _SCOPES[words[4]]
    target, source, size = instruction.operands
    if size != Immediate(SIZE_BYTES):
        raise Unsupported(f"a size other than {SIZE_BYTES}")

    def execute(ctx: Context) -> None:
        ctx.require_whole_warps()
        lanes = ctx.lane_indices()
        first = np.flatnonzero(np.diff(lanes >> 5, prepend=-1))
        targets = ctx.address(target)[first]
        sources = window_removed(ctx.address(source))[first]
        memory, shared = ctx.machine.global_memory, ctx.machine.shared
        for step in range(0, SIZE_BYTES, CHUNK_BYTES):
            data = shared.load(lanes[first], sources + step, CHUNK_BYTES, ctx.instruction)
            memory.write(targets + step, data, lanes[first])
        for lane, address in zip(lanes[first].tolist(), targets.tolist(), strict=True):
            maps = ctx.machine.part(TensorMaps)
            maps.edit(lane, address)
            maps.publish(lane, address, scope)

    return execute


@executes("fence.proxy.tensormap::generic")
def fence(instruction: Instruction) -> Execute:
    """Publish edits of maps, or let the warp use a published one."""
    kind = instruction.modifiers[2] if len(instruction.modifiers) > 2 else ""
    if kind not in ("release", "acquire"):
        raise Unsupported("modifiers other than .release and .acquire")
    words = instruction.modifiers[3:]
    if len(words) != 1 or words[0] not in _SCOPES:
        raise Unsupported(f"modifiers {'.'.join(words)}")
    scope = _SCOPES[words[0]]
    if kind == "acquire" and instruction.operands[1:] != (Immediate(SIZE_BYTES),):
        raise Unsupported(f"a size other than {SIZE_BYTES}")

    def execute(ctx: Context) -> None:
        maps, order = ctx.machine.part(TensorMaps), ctx.machine.part(MemoryOrder)
        if kind == "release":
            for lane in ctx.lane_indices().tolist():
                maps.release(lane, scope)
            order.release_everywhere(ctx.lanes, min(scope, GPU))
            return
        order.acquire_everything(ctx.lanes, min(scope, GPU))
        maps.acquire(ctx.lane_indices(), ctx.address(ctx.instruction.operands[0]), scope)

    return execute
