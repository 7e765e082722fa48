"""Estimate how long launches take from what the compiler counted: the order of configs without a measurement.

A launch is a number of CTAs on SMs that hold a few each. An SM is done with those it holds when the
slowest of them is, by its chain of latencies, and when its busiest unit is, by the work of all of them.
Waves of CTAs follow each other, the last one with fewer. Memory that all SMs share bounds the whole.

Estimates rank the configs of a kernel; their absolute size matters little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from aotc.package import index
from aotc.package.tuning.device import Device
from aotc.package.tuning.launch_arrays import Integers, LaunchArrays
from aotc.target import Target
from aotc.work import Segment, Transfer, Work

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Times: TypeAlias = "NDArray[np.float64]"

NUM_PROGRAMS = 16
"""Program instances that stand for all of a launch."""

NUM_NEIGHBOURS = 256
"""Program instances among which equal loads are counted, next to each other and anywhere."""

_SYSTEM_SHARED_BYTES = 1024
_GOLDEN_RATIO = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Constants:
    """What is fitted to measured times.

    Of things that overlap, the exponents say how well: infinite ones would make the longest hide all
    others. Latencies are in cycles.
    """

    unit_exponent: float = 4.0
    latency_exponent: float = 2.5
    memory_exponent: float = 4.0
    load_latency: float = 900.0
    cta_latency: float = 800.0
    launch_seconds: float = 5e-6
    l2_share: float = 0.6
    blur: float = 4.0
    stall: float = 1.0


CONSTANTS = Constants()


def estimate(
    variant: index.Variant,
    work: Work,
    target: Target,
    device: Device,
    launches: Mapping[str, Integers],
    constants: Constants = CONSTANTS,
) -> Times:
    """Return the seconds of each launch; `launches` has an array of each integer argument and extent.

    Requires: the variant has a grid.
    """
    return _Estimate(variant, work, target, device, launches, constants).seconds()


def resident_ctas(variant: index.Variant, target: Target) -> int:
    """Return how many CTAs of a variant an SM holds."""
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
        launches: Mapping[str, Integers],
        constants: Constants,
    ) -> None:
        import numpy as np  # noqa: PLC0415 - start-up time

        self._variant = variant
        self._work = work
        self._device = device
        self._constants = constants
        self._held = resident_ctas(variant, target)
        columns = {name: values.astype(np.int64)[:, None] for name, values in launches.items()}
        plain = LaunchArrays(columns)
        axes = [np.maximum(plain.value(axis), 0) for axis in variant.grid]
        one = np.ones((1, 1), np.int64)
        self._grid = [*axes, one, one][:3]
        self._num_programs = self._grid[0] * self._grid[1] * self._grid[2]
        cluster = variant.cluster[0] * variant.cluster[1] * variant.cluster[2]
        self._num_ctas = self._num_programs * cluster
        self._slots = max(1, device.num_sms * self._held // cluster * cluster)
        self._columns = columns

    def seconds(self) -> Times:
        """Return the time of each launch."""
        import numpy as np  # noqa: PLC0415 - start-up time

        constants, device = self._constants, self._device
        arrays = self._programs(self._spread())
        often = self._times(arrays)
        busy = self._busy_cycles(often, arrays)
        stall = self._stall_cycles(often)
        ctas = self._num_ctas[:, 0].astype(np.float64)
        held = np.minimum(self._held, np.ceil(ctas / device.num_sms))
        if self._variant.is_persistent:
            rounds = np.ceil(ctas / self._slots)
            cycles = rounds * self._round(stall, busy, held)
            cycles += constants.cta_latency + constants.load_latency
        else:
            stall = stall + constants.cta_latency
            cycles = self._waves(ctas, stall, busy)
        dram, l2 = self._memory_bytes(often, arrays)
        on_sms = cycles / device.clock_hz
        shared = [dram / device.dram_bytes_per_second, l2 / device.l2_bytes_per_second]
        return _norm([on_sms, *shared], constants.memory_exponent) + constants.launch_seconds

    def _spread(self) -> Integers:
        """Return the linear indices of program instances that are spread evenly over each axis.

        They follow no period, since kernels take indices modulo something.
        """
        import numpy as np  # noqa: PLC0415 - start-up time

        number = np.arange(NUM_PROGRAMS)[None, :]
        x, y, z = self._grid
        first = (number + number * _GOLDEN_RATIO % 1) / NUM_PROGRAMS
        second, third = number * _GOLDEN_RATIO % 1, number * _GOLDEN_RATIO**2 % 1
        along = [(f * e).astype(np.int64) for f, e in ((first, x), (second, y), (third, z))]
        return along[0] + x * (along[1] + y * along[2])

    # -- SMs ---------------------------------------------------------------------

    def _waves(self, ctas: Times, stall: Times, busy: Times) -> Times:
        """Return the cycles of CTAs that SMs take one after the other.

        The ends of waves blur with their number.
        """
        import numpy as np  # noqa: PLC0415 - start-up time

        full = np.floor(ctas / self._slots)
        rest = ctas - full * self._slots
        last = np.ceil(rest / self._device.num_sms)
        whole = self._round(stall, busy, np.full_like(ctas, self._held))
        tail = np.where(rest > 0, self._round(stall, busy, np.maximum(last, 1)), 0.0)
        in_steps = full * whole + tail
        evenly = ctas / self._slots * whole + 0.5 * whole
        step = self._constants.blur / (self._constants.blur + full)
        return np.where(full > 0, step * in_steps + (1 - step) * evenly, tail)

    def _round(self, stall: Times, busy: Times, held: Times) -> Times:
        """Return the cycles in which an SM runs the CTAs that it holds."""
        return _norm([stall, busy * held], self._constants.latency_exponent)

    def _times(self, arrays: LaunchArrays) -> list[Times]:
        """Return how often each segment runs in a program instance."""
        import numpy as np  # noqa: PLC0415 - start-up time

        often: list[Times] = []
        for segment in self._work.segments:
            times = np.maximum(arrays.of(segment.times), 0).astype(np.float64)
            often.append(times if segment.parent < 0 else times * often[segment.parent])
        return often

    def _busy_cycles(self, often: list[Times], arrays: LaunchArrays) -> Times:
        """Return the cycles for which a program instance keeps the busiest unit of an SM."""
        device = self._device
        units: dict[str, Times | float] = {}

        def use(unit: str, cycles: Times | float) -> None:
            units[unit] = cycles + units.get(unit, 0.0)

        for segment, times in zip(self._work.segments, often, strict=True):
            use("instructions", times * (segment.instructions / device.instructions))
            use("special", times * (segment.special / device.special))
            use("wavefronts", times * (segment.wavefronts / device.wavefronts))
            for kind, macs in segment.dots:
                use("dots", times * (macs / _mac_rate(kind, device)))
            for transfer in segment.transfers:
                moved = times * transfer.size_bytes * _share(transfer, times, arrays)
                use("bytes", moved / device.sm_bytes)
        return _mean(_norm(list(units.values()), self._constants.unit_exponent), self._columns)

    def _stall_cycles(self, often: list[Times]) -> Times:
        """Return the cycles of a program instance that runs alone, of the slower role."""
        constants = self._constants
        roles: dict[bool, Times | float] = {False: 0.0, True: 0.0}
        copies: Times | float = 0.0
        for segment, times in zip(self._work.segments, often, strict=True):
            chain = times * (segment.stall * constants.stall)
            roles[segment.is_producer] = roles[segment.is_producer] + chain
            copies = copies + times * self._copy_cycles(segment)
        chain = _norm([roles[False], roles[True], copies], 8.0)
        return _mean(chain, self._columns)

    def _copy_cycles(self, segment: Segment) -> float:
        """Return how long asynchronous copies of an iteration take, for as many as are in flight."""
        loads = [t for t in segment.transfers if t.stages and not t.is_store]
        if not loads:
            return 0.0
        return self._constants.load_latency / min(transfer.stages for transfer in loads)

    # -- memory --------------------------------------------------------------------

    def _memory_bytes(self, often: list[Times], arrays: LaunchArrays) -> tuple[Times, Times]:
        """Return the bytes of all CTAs from DRAM and from the L2 cache."""
        import numpy as np  # noqa: PLC0415 - start-up time

        programs = self._num_programs.astype(np.float64)
        first = np.arange(NUM_NEIGHBOURS)[None, :]
        count = np.minimum(self._num_programs, NUM_NEIGHBOURS)
        anywhere = (first * _GOLDEN_RATIO % 1.0 * self._num_programs).astype(np.int64)
        near = self._programs(np.minimum(first, self._num_programs - 1))
        far = self._programs(anywhere)
        dram = l2 = np.zeros((1, 1))
        footprint = np.zeros((1, 1))
        loads: list[tuple[Times, Times, Times]] = []
        for key, (transfer, moved) in self._moved(often, arrays).items():
            del key
            total = moved * programs * self._variant.cluster[0]
            l2 = l2 + total
            if transfer.is_store or not transfer.origins:
                dram = dram + total
                continue
            unique = _distinct_of_all(_distinct(transfer, far), NUM_NEIGHBOURS, programs)
            nearby = _distinct(transfer, near) / np.maximum(count, 1)
            footprint = footprint + moved * unique
            loads.append((moved * unique, total * nearby, total))
        cached = np.clip(self._device.l2_bytes * self._constants.l2_share / np.maximum(footprint, 1), 0, 1)
        for once, by_wave, _ in loads:
            dram = dram + cached * once + (1 - cached) * np.maximum(once, by_wave)
        shape = np.broadcast_shapes(dram.shape, l2.shape, self._num_programs.shape)
        return np.broadcast_to(dram, shape)[:, 0], np.broadcast_to(l2, shape)[:, 0]

    def _moved(
        self, often: list[Times], arrays: LaunchArrays
    ) -> dict[tuple[object, ...], tuple[Transfer, Times]]:
        """Return what a program instance moves, loads of the same bytes once."""
        import numpy as np  # noqa: PLC0415 - start-up time

        moved: dict[tuple[object, ...], tuple[Transfer, Times]] = {}
        for number, (segment, times) in enumerate(zip(self._work.segments, often, strict=True)):
            for at, transfer in enumerate(segment.transfers):
                own = times * transfer.size_bytes * _share(transfer, times, arrays)
                size = own.mean(axis=1, keepdims=True)
                key: tuple[object, ...] = (transfer.argument, transfer.is_store, transfer.origins)
                if not transfer.origins or transfer.is_store:
                    key = (number, at)
                earlier = moved.get(key)
                moved[key] = transfer, size if earlier is None else np.maximum(earlier[1], size)
        return moved

    def _programs(self, linear: Integers) -> LaunchArrays:
        """Return the values of expressions for program instances, given by their linear index."""
        x, y, _ = self._grid
        values = {
            **self._columns,
            "grid0": self._grid[0],
            "grid1": self._grid[1],
            "grid2": self._grid[2],
            "ctas": _least(self._num_ctas, self._slots),
            "program": linear,
            "pid0": linear % _at_least_1(x),
            "pid1": linear // _at_least_1(x) % _at_least_1(y),
            "pid2": linear // _at_least_1(x * y),
        }
        return LaunchArrays(values)


def _least(values: Integers, bound: int) -> Integers:
    import numpy as np  # noqa: PLC0415 - start-up time

    return np.clip(values, 1, bound)


def _at_least_1(values: Integers) -> Integers:
    import numpy as np  # noqa: PLC0415 - start-up time

    return np.maximum(values, 1)


def _mac_rate(kind: str, device: Device) -> float:
    """Return the multiply-adds a cycle of a kind of dot, such as "wgmma.bf16"."""
    instruction, _, dtype = kind.partition(".")
    if dtype == "fp64":
        return device.double_macs
    bits = 8 * index.DTYPE_BYTES.get(dtype, 2)
    rate = device.wgmma_macs if instruction == "wgmma" else device.mma_macs
    return (rate or device.mma_macs) * 16 / max(bits, 8)


def _share(transfer: Transfer, times: Times, arrays: LaunchArrays) -> Times:
    """Return which share of a transfer's bytes lies inside of its tensor."""
    import numpy as np  # noqa: PLC0415 - start-up time

    share = np.ones((1, 1))
    for part in transfer.parts:
        extent = part.extent * (np.maximum(times, 1) if part.of_loop else 1)
        share = share * np.clip(arrays.of(part.inside) / extent, 0, 1)
    return share


def _distinct(transfer: Transfer, arrays: LaunchArrays) -> Times:
    """Return at how many different places programs begin to load."""
    import numpy as np  # noqa: PLC0415 - start-up time

    place = np.zeros((1, 1), np.int64)
    for origin in transfer.origins:
        place = place * 1_000_003 + arrays.of(origin)
    ordered = np.sort(place, axis=1)
    return 1.0 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1, keepdims=True)


def _distinct_of_all(seen: Times, count: int, programs: Times) -> Times:
    """Return how many places there are, of which so many programs from anywhere have seen `seen`.

    They have seen u * (1 - exp(-count / u)) of u places, which is solved for u.
    """
    import numpy as np  # noqa: PLC0415 - start-up time

    places = seen
    for _ in range(20):
        places = seen / (1 - np.exp(-count / np.maximum(places, 1)))
    return np.minimum(np.where(programs <= count, seen, places), programs)


def _norm(parts: list[Times | float], exponent: float) -> Times:
    """Return how long things take that overlap, the better the greater the exponent."""
    import numpy as np  # noqa: PLC0415 - start-up time

    most = np.maximum(np.asarray(parts[0]), 1e-30)
    for part in parts[1:]:
        most = np.maximum(most, part)
    total = sum((np.asarray(part) / most) ** exponent for part in parts)
    return most * total ** (1 / exponent)


def _mean(values: Times, columns: Mapping[str, Integers]) -> Times:
    """Return the mean over the program instances of each launch."""
    import numpy as np  # noqa: PLC0415 - start-up time

    num_launches = max((len(column) for column in columns.values()), default=1)
    return np.broadcast_to(values.mean(axis=1), (num_launches,))
