"""Estimate the time of launches from the compiler's counts, to rank configs without measurements.

A launch is a number of CTAs on SMs that hold a few each. An SM finishes its CTAs when the slowest
one's chain of latencies ends, and its busiest unit has done the work of all. Waves of CTAs follow
each other, the last one with fewer. Memory shared by all SMs bounds the whole.

Estimates rank the configs of a kernel; their absolute size matters little.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotc.package.archive import index
from aotc.package.tuning.device import Device
from aotc.package.tuning.launch_arrays import Integers, LaunchArrays, Launches, Reals
from aotc.target import Target
from aotc.work import Segment, Transfer, Work

_SYSTEM_SHARED_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Constants:
    """Constants missing from data sheets, fitted to measured times.

    An exponent tells how well costs overlap: at infinity the longest hides all others. Latencies
    are in cycles.

    Source: `benchmarks/cost_model.py --fit`, half of the launches of an NVIDIA H200, 28 November
    2026.
    """

    unit_exponent: float = 4.8
    latency_exponent: float = 1.5
    memory_exponent: float = 4.8
    balance_exponent: float = 8.0
    load_latency: float = 1500.0
    cta_latency: float = 800.0
    launch_seconds: float = 5e-6
    l2_share: float = 1.0
    blur: float = 4.0


CONSTANTS = Constants()


def estimate(
    variant: index.Variant,
    work: Work,
    target: Target,
    device: Device,
    launches: Launches,
    constants: Constants = CONSTANTS,
) -> Reals:
    """Return the seconds of each launch; `launches` has an array of each integer argument and extent.

    Requires: the variant has a grid.
    """
    return _Estimate(variant, work, target, device, launches, constants).seconds()


def resident_ctas(variant: index.Variant, target: Target) -> int:
    """Return the number of CTAs of a variant resident on an SM."""
    shared = variant.dynamic_shared_bytes + variant.static_shared_bytes + _SYSTEM_SHARED_BYTES
    return max(
        1,
        min(
            target.max_ctas_per_sm,
            target.max_threads_per_sm // variant.num_threads,
            target.shared_bytes_per_sm // shared,
            target.ctas_by_registers(variant.num_threads // 32, variant.registers),
        ),
    )


class _Estimate:
    """The estimate of one variant for some launches."""

    def __init__(
        self,
        variant: index.Variant,
        work: Work,
        target: Target,
        device: Device,
        launches: Launches,
        constants: Constants,
    ) -> None:

        self._variant = variant
        self._work = work
        self._device = device
        self._constants = constants
        self._held = resident_ctas(variant, target)
        self._count = launches.count
        self._grid = launches.grid(variant.grid)
        self._grid.named.update(work.values)
        self._cluster = variant.cluster[0] * variant.cluster[1] * variant.cluster[2]
        self._num_ctas = self._grid.num_programs * self._cluster
        self._slots = max(1, device.num_sms * self._held // self._cluster * self._cluster)

    def seconds(self) -> Reals:
        """Return the time of each launch."""
        import numpy as np  # noqa: PLC0415 - start-up time

        constants, device = self._constants, self._device
        arrays = self._grid.spread
        often = self._times(arrays)
        of_programs = self._busy_cycles(often, arrays), self._stall_cycles(often)
        busy, stall = (self._of_launches(cycles.mean(axis=1)) for cycles in of_programs)
        longest = self._of_launches(self._round(*of_programs, 1.0).max(axis=1))
        ctas = self._num_ctas[:, 0].astype(np.float64)
        if self._variant.is_persistent:
            num_held = np.minimum(self._held, np.ceil(ctas / device.num_sms))
            cycles = np.ceil(ctas / self._slots) * self._round(busy, stall, num_held)
        else:
            cycles = self._waves(ctas, busy, stall + self._prologue_cycles())
        # No order of CTAs is faster than the longest of them.
        cycles = _norm([cycles, longest], constants.balance_exponent) + self._prologue_cycles()
        dram, l2 = self._memory_bytes(often, arrays)
        on_sms = cycles / device.clock_hz
        shared = [dram / device.dram_bytes_per_second, l2 / device.l2_bytes_per_second]
        return _norm([on_sms, *shared], constants.memory_exponent) + constants.launch_seconds

    def _waves(self, ctas: Reals, busy: Reals, stall: Reals) -> Reals:
        """Return the cycles of CTAs run by SMs one after the other.

        The ends of waves blur with their number.
        """
        import numpy as np  # noqa: PLC0415 - start-up time

        full = np.floor(ctas / self._slots)
        rest = ctas - full * self._slots
        last = np.ceil(rest / self._device.num_sms)
        whole = self._round(busy, stall, np.full_like(ctas, self._held))
        tail = np.where(rest > 0, self._round(busy, stall, np.maximum(last, 1)), 0.0)
        in_steps = full * whole + tail
        evenly = ctas / self._slots * whole + 0.5 * whole
        step = self._constants.blur / (self._constants.blur + full)
        return np.where(full > 0, step * in_steps + (1 - step) * evenly, tail)

    def _round(self, busy: Reals, stall: Reals, num_held: Reals | float) -> Reals:
        """Return the cycles of an SM for its resident CTAs."""
        return _norm([stall, busy * num_held], self._constants.latency_exponent)

    def _times(self, arrays: LaunchArrays) -> list[Reals]:
        """Return the executions of each segment in a program instance."""
        import numpy as np  # noqa: PLC0415 - start-up time

        often: list[Reals] = []
        for segment in self._work.segments:
            times = np.maximum(arrays.of(segment.times), 0).astype(np.float64)
            often.append(times if segment.parent < 0 else times * often[segment.parent])
        return often

    def _busy_cycles(self, often: list[Reals], arrays: LaunchArrays) -> Reals:
        """Return the cycles of a program instance on the busiest unit of an SM."""
        device = self._device
        units: dict[str, Reals | float] = {}

        def use(unit: str, cycles: Reals | float) -> None:
            units[unit] = cycles + units.get(unit, 0.0)

        for segment, times in zip(self._work.segments, often, strict=True):
            use("instructions", times * (segment.instructions / device.instructions))
            use("special", times * (segment.special / device.special))
            use("wavefronts", times * (segment.wavefronts / device.wavefronts))
            for kind, macs in segment.dots:
                use("dots", times * (macs / _mac_rate(kind, device)))
            for transfer in segment.transfers:
                num_bytes = times * transfer.size_bytes * _share(transfer, times, arrays)
                use("bytes", num_bytes / device.sm_bytes)
        return _norm(list(units.values()), self._constants.unit_exponent)

    def _stall_cycles(self, often: list[Reals]) -> Reals:
        """Return the latency of a program instance running alone, by its slower role."""
        roles: dict[bool, Reals | float] = {False: 0.0, True: 0.0}
        copies: Reals | float = 0.0
        for segment, times in zip(self._work.segments, often, strict=True):
            chain = times * (segment.stall)
            roles[segment.is_producer] = roles[segment.is_producer] + chain
            copies = copies + times * self._copy_cycles(segment)
        return _norm([roles[False], roles[True], copies], 8.0)

    def _prologue_cycles(self) -> float:
        """Return the cycles for a CTA to start and to fill its pipelines."""
        copies = max(map(self._copy_cycles, self._work.segments), default=0.0)
        return self._constants.cta_latency + (self._constants.load_latency if copies else 0.0)

    def _copy_cycles(self, segment: Segment) -> float:
        """Return the latency of an iteration's asynchronous copies, divided by the copies in flight."""
        loads = [t for t in segment.transfers if t.stages and not t.is_store]
        if not loads:
            return 0.0
        return self._constants.load_latency / min(transfer.stages for transfer in loads)

    def _of_launches(self, values: Reals) -> Reals:
        """Return a number for each launch, also if all are equal."""
        import numpy as np  # noqa: PLC0415 - start-up time

        return np.broadcast_to(values, (self._count,))

    def _memory_bytes(self, often: list[Reals], arrays: LaunchArrays) -> tuple[Reals, Reals]:
        """Return the bytes of all CTAs from DRAM and from the L2 cache."""
        import numpy as np  # noqa: PLC0415 - start-up time

        programs = self._grid.num_programs.astype(np.float64) * self._cluster
        groups = self._loads_and_stores(often, arrays)
        of_program = sum((group.once for group in groups), np.zeros((1, 1)))
        footprint, dram, l2 = (np.zeros((1, 1)) for _ in range(3))
        loads: list[tuple[Reals, Reals]] = []
        in_flight = of_program * np.minimum(self._num_ctas, self._slots)
        again = 1 - self._cached(in_flight)
        for group in groups:
            l2 = l2 + group.total * programs
            whole = group.once * programs
            if group.is_store or not group.origins:
                dram = dram + whole
                continue
            unique, nearby = self._grid.distinct(group.origins)
            footprint = footprint + group.once * unique
            loads.append((group.once * unique, whole * nearby))
            dram = dram + again * nearby * (group.total - group.once) * programs
        cached = self._cached(footprint)
        for once, by_wave in loads:
            dram = dram + cached * once + (1 - cached) * np.maximum(once, by_wave)
        shape = np.broadcast_shapes(dram.shape, l2.shape, programs.shape)
        return np.broadcast_to(dram, shape)[:, 0], np.broadcast_to(l2, shape)[:, 0]

    def _cached(self, size: Reals) -> Reals:
        """Return the share of `size` bytes held by the L2 cache."""
        import numpy as np  # noqa: PLC0415 - start-up time

        capacity = self._device.l2_bytes * self._constants.l2_share
        return np.minimum(capacity / np.maximum(size, 1), 1)

    def _loads_and_stores(self, often: list[Reals], arrays: LaunchArrays) -> list[_Group]:
        """Return the transfers of a program instance; loads of the same bytes are joined."""
        first = self._grid.first
        groups: dict[tuple[object, ...], _Group] = {}
        for number, (segment, times) in enumerate(zip(self._work.segments, often, strict=True)):
            for position, transfer in enumerate(segment.transfers):
                num_bytes = times * transfer.size_bytes * _share(transfer, times, arrays)
                size = num_bytes.mean(axis=1, keepdims=True)
                is_box = len(transfer.origins) != 1
                key: tuple[object, ...] = (transfer.argument, *(transfer.origins if is_box else ()))
                if not transfer.origins or transfer.is_store:
                    key = (number, position)
                begin = first.of(transfer.origins[0]) if key == (transfer.argument,) else 0
                group = _Group(transfer.origins, transfer.is_store, size, begin, begin + size)
                groups[key] = group.joined(groups[key]) if key in groups else group
        return list(groups.values())


@dataclass(frozen=True, slots=True)
class _Group:
    """Bytes moved by a program instance, `total`, from or to a range of addresses."""

    origins: tuple[str, ...]
    is_store: bool
    total: Reals
    begin: Reals | Integers | int
    end: Reals

    @property
    def once(self) -> Reals:
        """The bytes without repeated loads."""
        import numpy as np  # noqa: PLC0415 - start-up time

        return np.minimum(self.total, self.end - self.begin)

    def joined(self, other: _Group) -> _Group:
        """Join two groups."""
        import numpy as np  # noqa: PLC0415 - start-up time

        begin = np.minimum(self.begin, other.begin)
        end = np.maximum(self.end, other.end)
        return _Group(self.origins, self.is_store, self.total + other.total, begin, end)


def _mac_rate(kind: str, device: Device) -> float:
    """Return the multiply-adds per cycle for a kind of dot, such as "wgmma.bf16"."""
    instruction, _, dtype = kind.partition(".")
    if dtype == "fp64":
        return device.double_macs
    bits = 8 * index.DTYPE_BYTES.get(dtype, 2)
    rate = device.wgmma_macs if instruction == "wgmma" else device.mma_macs
    return (rate or device.mma_macs) * 16 / max(bits, 8)


def _share(transfer: Transfer, times: Reals, arrays: LaunchArrays) -> Reals:
    """Return the share of a transfer's bytes inside its tensor."""
    import numpy as np  # noqa: PLC0415 - start-up time

    share = np.ones((1, 1))
    for part in transfer.parts:
        extent = part.extent * (np.maximum(times, 1) if part.of_loop else 1)
        share = share * np.minimum(np.maximum(arrays.of(part.inside) / extent, 0), 1)
    return share


def _norm(parts: list[Reals | float], exponent: float) -> Reals:
    """Return the total of overlapping costs: the greater the exponent, the better they overlap."""
    import numpy as np  # noqa: PLC0415 - start-up time

    most = np.maximum(np.asarray(parts[0]), 1e-30)
    for part in parts[1:]:
        most = np.maximum(most, part)
    total = sum((np.asarray(part) / most) ** exponent for part in parts)
    return most * total ** (1 / exponent)
