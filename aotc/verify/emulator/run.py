"""Run a kernel's PTX over NumPy arrays: the emulator's public API.

CTAs run in batches, large enough to keep NumPy's lanes busy and small enough for the memory limit.

Invariant: the caller's arrays change as the kernel writes them, and in no other way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from aotc.verify.emulator import instructions as _rules  # registers the instruction rules
from aotc.verify.emulator.arguments import Argument, Masks, ParameterBlock, make_image
from aotc.verify.emulator.engine.decode import Decoder
from aotc.verify.emulator.engine.machine import Batch, Current, Image
from aotc.verify.emulator.engine.registers import Allocation, RegisterFile
from aotc.verify.emulator.engine.scheduler import Scheduler
from aotc.verify.emulator.engine.segments import Code
from aotc.verify.emulator.errors import EmulationError
from aotc.verify.emulator.memory.bank_conflicts import BankConflicts, BankCount
from aotc.verify.emulator.memory.global_memory import GlobalMemory
from aotc.verify.emulator.memory.global_shadow import GlobalShadow
from aotc.verify.emulator.memory.shared_memory import SharedMemory
from aotc.verify.emulator.memory.stale_loads import StaleLoads
from aotc.verify.emulator.memory_access.granules import (
    global_granule_bytes,
    granule_bytes,
    orders_ctas,
    scopes_of,
)
from aotc.verify.emulator.text.cfg import Cfg, analyse, build_cfg
from aotc.verify.emulator.text.parse import parse_module
from aotc.verify.emulator.text.program import Extents, Kernel, Module
from aotc.verify.emulator.text.special_registers import WARP, Clusters, Launch

DEFAULT_MAX_STEPS = 10_000_000
DEFAULT_MAX_MEMORY_BYTES = 4 << 30
_BATCH_LANES = 1 << 14
_LEAST_CAPACITY = 1 << 12  # of a register file; few sizes, to reuse decoded steps
_MAX_CTA_THREADS = 1024
_MAX_GRID = (2**31 - 1, 65535, 65535)
# Per lane, besides registers: numbers, clocks, barrier states.
_LANE_BYTES = 128
_MAX_IDLE = 4

Dimensions: TypeAlias = "int | Sequence[int]"


@dataclass(frozen=True, slots=True)
class Statistics:
    """Count executed work: instructions per lane and per warp, and `steps` per group.

    `conflicts` counts the bank conflicts of one CTA by PTX line, if requested. `printed` holds the
    output of `vprintf`, in call order.
    """

    lane_instructions: int
    warp_instructions: int
    steps: int
    batches: int
    conflicts: Mapping[int, BankCount] = field(default_factory=dict[int, BankCount])
    printed: tuple[str, ...] = ()


def emulate(
    ptx: str | Module,
    grid: Dimensions,
    args: Sequence[Argument] | ParameterBlock,
    *,
    kernel: str | None = None,
    cta_threads: Dimensions | None = None,
    cluster: Dimensions | None = None,
    shared_bytes: int = 0,
    seed: int = 0,
    max_steps: int = DEFAULT_MAX_STEPS,
    max_memory_bytes: int = DEFAULT_MAX_MEMORY_BYTES,
    readable: Masks | None = None,
    writable: Masks | None = None,
    reads_unwritten: bool = False,
    approximate: bool = False,
    count_conflicts: bool = False,
    clusters: Sequence[int] = (),
    together: bool = False,
    stale: StaleLoads | None = None,
    more_grids: Sequence[Dimensions] = (),
) -> Statistics:
    """Run a kernel on a grid of CTAs, or only the `clusters` with these numbers.

    `ptx` is text or a module from `parse_module`. `kernel` may be omitted if the text has a single
    one; `cta_threads` and `cluster` may be omitted where the text fixes them. `shared_bytes` is the
    size of dynamic shared memory.

    `args` are the kernel's arguments in order: an array for a pointer (changed in place), a number,
    or the parameter's bytes. A `ParameterBlock` holds all of them at once. `readable` and
    `writable` map an argument's index to a mask of its elements.

    With `more_grids`, further launches run beside the first, each with its own parameters. With
    `together`, all CTAs are resident at once, as kernels with waits between CTAs need; else as many
    as run fastest.

    A `seed` of 0 runs warps in step; any other orders them at random. `max_steps` bounds the
    instructions of a batch.

    Reading shared memory or registers never written is a fault. With `reads_unwritten` they hold
    noise instead, since a compiler may prefetch or compute values it then ignores. With
    `approximate`, approximate instructions err as on hardware; without it, they round correctly.
    With `count_conflicts`, the statistics include bank conflicts. With `stale`, loads that race
    with stores of their own cluster are recorded there, and return random bits once recorded.

    Raises: EmulationError for an unsupported program or launch, Fault for an illegal act of the
    program.
    """
    program = _prepare(ptx if isinstance(ptx, Module) else _parsed(ptx), kernel)
    entry = program.kernel
    image, memory = make_image(program.module, entry, args, readable or {}, writable or {})
    static_bytes = image.static_shared_bytes
    launch = Launch(
        cta_threads=_cta_threads(entry, cta_threads),
        cluster=_cluster(entry, cluster),
        dynamic_shared_bytes=shared_bytes,
        shared_bytes=static_bytes + shared_bytes,
    )
    grids = [_extents("the grid", extents) for extents in (grid, *more_grids)]
    _check(launch, grids)
    runner = _Runner(
        program,
        launch,
        _clusters(launch, grids, clusters),
        image,
        memory,
        seed,
        reads_unwritten=reads_unwritten,
        approximate=approximate,
        stale=stale,
    )
    with np.errstate(all="ignore"):
        return runner.run(
            max_steps, max_memory_bytes, count_conflicts=count_conflicts, together=together
        )


@dataclass(frozen=True, slots=True)
class _Size:
    """Key of decoded steps: lane capacity, and whether approximations err as on hardware."""

    capacity: int
    approximate: bool


@dataclass(frozen=True, slots=True)
class _Program:
    """Hold the analysis of a kernel before its launch."""

    module: Module
    kernel: Kernel
    cfg: Cfg
    allocation: Allocation
    granule_bytes: int
    global_granule_bytes: int
    orders_ctas: bool
    scopes: tuple[int, ...]
    idle: dict[_Size, _Decoded] = field(default_factory=dict["_Size", "_Decoded"])


@dataclass(frozen=True, slots=True)
class _Decoded:
    """Hold a kernel's decoded steps and their registers, for reuse by similar launches."""

    addresses: Mapping[str, int]
    current: Current
    registers: RegisterFile
    decoder: Decoder
    codes: dict[bool, Code]  # by whether groups may be preempted


# A kernel often runs at many shapes, so the analysis of a text is cached. Registers and steps of a
# program take some 50 MB, and hundreds of thousands of objects slow the garbage collector.
_MAX_PROGRAMS = 2
_parsed = lru_cache(maxsize=_MAX_PROGRAMS)(parse_module)


@lru_cache(maxsize=_MAX_PROGRAMS)
def _prepare(module: Module, name: str | None) -> _Program:
    """Parse out and analyse one kernel of a module."""
    kernel = _find_kernel(module, name)
    cfg = build_cfg(kernel.instructions)
    allocation = Allocation(kernel.instructions, cfg, analyse(kernel.instructions, cfg))
    return _Program(
        module,
        kernel,
        cfg,
        allocation,
        granule_bytes(kernel),
        global_granule_bytes(kernel),
        orders_ctas(kernel),
        scopes_of(kernel),
    )


class _Runner:
    def __init__(
        self,
        program: _Program,
        launch: Launch,
        clusters: Clusters,
        image: Image,
        memory: GlobalMemory,
        seed: int,
        *,
        reads_unwritten: bool,
        approximate: bool,
        stale: StaleLoads | None,
    ) -> None:
        self._clusters = clusters
        self._stale = stale
        self._program = program
        self._reads_unwritten = reads_unwritten
        self._approximate = approximate
        self._launch = launch
        self._image = image
        self._memory = memory
        self._seed = seed

    def run(
        self, max_steps: int, max_memory_bytes: int, *, count_conflicts: bool, together: bool
    ) -> Statistics:
        launch = self._launch
        clusters = len(self._clusters.number)
        at_once = self._clusters_at_once(max_memory_bytes)
        size = clusters if together else min(at_once, clusters)
        lanes = size * launch.cluster_size * launch.warp_slots * WARP
        decoded = self._decode(lanes)
        current, registers = decoded.current, decoded.registers
        code = self._code(decoded)
        counts = np.zeros(3, np.int64)
        printed: list[str] = []
        conflicts = BankConflicts(launch.warp_slots * WARP)
        starts = range(0, clusters, max(size, 1))
        random = np.random.default_rng(self._seed)
        shadow = GlobalShadow(
            self._memory,
            self._program.global_granule_bytes,
            whole=self._program.orders_ctas,
            stale=self._stale,
        )
        for number, start in enumerate(starts):
            registers.reset(random if self._reads_unwritten else None)
            current.batch = batch = Batch(
                launch,
                self._clusters.part(start, start + size),
                self._reported_number(start),
                self._image,
                shadow,
                registers,
                random,
                self._program.granule_bytes,
                self._program.scopes,
                is_shuffled=self._seed != 0,
                reads_unwritten=self._reads_unwritten,
            )
            if count_conflicts and number == 0:
                batch.shared.conflicts = conflicts
            seed = self._seed and self._seed * len(starts) + number
            scheduler = Scheduler(batch, code, seed, max_steps)
            scheduler.run()
            printed += batch.printed
            counts += (scheduler.lane_instructions, scheduler.warp_instructions, batch.steps)
            scheduler.close()
        if starts:
            del current.batch  # it may be large
        if len(self._program.idle) == _MAX_IDLE:
            self._program.idle.clear()
        self._program.idle[self._size_class(lanes)] = decoded
        lane, warp, steps = counts.tolist()
        return Statistics(lane, warp, steps, len(starts), conflicts.lines, tuple(printed))

    def _reported_number(self, start: int) -> int:
        """Return a cluster's reported number: its number in the grid, if there is one grid."""
        clusters = self._clusters
        return int(clusters.number[start]) if len(clusters.grids) == 1 else start

    def _size_class(self, lanes: int) -> _Size:
        """Return the size class of registers and steps for this many lanes."""
        capacity = max(1 << max(lanes - 1, WARP).bit_length(), _LEAST_CAPACITY)
        return _Size(capacity, approximate=self._approximate)

    def _decode(self, lanes: int) -> _Decoded:
        """Return decoded steps, reusing a former launch's if symbol addresses agree."""
        program = self._program
        size = self._size_class(lanes)
        idle = program.idle.pop(size, None)
        if idle is not None and idle.addresses == self._image.addresses:
            return idle
        registers = RegisterFile(program.allocation, size.capacity)
        current = Current(self._image)
        decoder = Decoder(current, registers, approximate=size.approximate)
        return _Decoded(self._image.addresses, current, registers, decoder, {})

    def _code(self, decoded: _Decoded) -> Code:
        """Return the kernel's segments, preemptible or not as the seed asks."""
        preempt = self._seed != 0
        if preempt not in decoded.codes:
            program = self._program
            decoded.codes[preempt] = Code(
                program.kernel.instructions, program.cfg, decoded.decoder, preempt=preempt
            )
        return decoded.codes[preempt]

    def _clusters_at_once(self, max_memory_bytes: int) -> int:
        launch = self._launch
        lanes = launch.warp_slots * WARP
        cluster_warps = launch.cluster_size * launch.warp_slots
        cta_bytes = (
            lanes * (self._program.allocation.lane_bytes + self._image.local_bytes + _LANE_BYTES)
            + launch.warp_slots * (cluster_warps + 1) * 80
            + SharedMemory.bytes_per_cta(
                launch.shared_bytes, cluster_warps, self._program.granule_bytes
            )
        )
        cluster_bytes = cta_bytes * launch.cluster_size
        if cluster_bytes > max_memory_bytes:
            unit = "a CTA" if launch.cluster_size == 1 else "a cluster"
            raise EmulationError(
                f"{unit} needs {cluster_bytes:,} bytes to emulate, of at most "
                f"{max_memory_bytes:,}: raise max_memory_bytes"
            )
        full_batch = max(_BATCH_LANES // (lanes * launch.cluster_size), 1)
        return min(full_batch, max_memory_bytes // cluster_bytes)


def _find_kernel(module: Module, name: str | None) -> Kernel:
    names = ", ".join(module.kernels) or "none"
    if name is None:
        if len(module.kernels) != 1:
            raise EmulationError(f"which kernel is to run? The text has {names}")
        (name,) = module.kernels
    if name not in module.kernels:
        raise EmulationError(f"there is no kernel {name}; the text has {names}")
    return module.kernels[name]


def _extents(name: str, dimensions: Dimensions) -> Extents:
    extents = [dimensions] if isinstance(dimensions, int) else list(dimensions)
    if not 1 <= len(extents) <= 3 or any(extent < 0 for extent in extents):
        raise EmulationError(f"{name} must be one to three whole numbers, got {dimensions}")
    x, y, z = [*extents, 1, 1][:3]
    return x, y, z


def _cta_threads(kernel: Kernel, threads: Dimensions | None) -> Extents:
    required = kernel.cta_threads
    if threads is None:
        if not required[0]:
            raise EmulationError(
                f"{kernel.name} does not say how many threads a CTA has: give `cta_threads`"
            )
        return required
    extents = _extents("the threads of a CTA", threads)
    if required[0] and extents != required:
        raise EmulationError(f"{kernel.name} requires CTAs of {required} threads, got {extents}")
    return extents


def _cluster(kernel: Kernel, cluster: Dimensions | None) -> Extents:
    required = kernel.cluster_ctas
    if cluster is None:
        return required if required[0] else (1, 1, 1)
    extents = _extents("the cluster", cluster)
    if required[0] and extents != required:
        raise EmulationError(f"{kernel.name} requires clusters of {required} CTAs, got {extents}")
    return extents


def _clusters(launch: Launch, grids: Sequence[Extents], chosen: Sequence[int]) -> Clusters:
    """Return the clusters of all launches, or the selected ones of a single launch."""
    numbers = [np.array(chosen)] if chosen else []
    if not numbers:
        numbers = [np.arange(math.prod(grid) // launch.cluster_size) for grid in grids]
    of_launch = [
        np.full(len(cluster_numbers), launch_index)
        for launch_index, cluster_numbers in enumerate(numbers)
    ]
    return Clusters(np.array(grids), np.concatenate(of_launch), np.concatenate(numbers))


def _check(launch: Launch, grids: Sequence[Extents]) -> None:
    if not 0 < launch.threads <= _MAX_CTA_THREADS:
        raise EmulationError(f"a CTA has 1 to {_MAX_CTA_THREADS} threads, got {launch.threads}")
    for grid in grids:
        if any(extent > limit for extent, limit in zip(grid, _MAX_GRID, strict=True)):
            raise EmulationError(f"the grid may have up to {_MAX_GRID} CTAs, got {grid}")
        if not launch.cluster_size or any(
            extent % ctas for extent, ctas in zip(grid, launch.cluster, strict=True)
        ):
            raise EmulationError(
                f"a grid of {grid} CTAs is no multiple of clusters of {launch.cluster}"
            )


del _rules
