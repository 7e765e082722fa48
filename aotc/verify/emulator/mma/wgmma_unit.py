"""In-flight `wgmma`: multiplications ("jobs") and the groups to wait for.

See `wgmma.py` for the model.

Invariant: a warpgroup's jobs run in the order in which they were started.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from aotc.verify.arrays import Array, listed, reshape
from aotc.verify.emulator.engine.context import Context, Machine, Pending
from aotc.verify.emulator.engine.registers import DEFINED, FENCED, READ_IN_FLIGHT
from aotc.verify.emulator.memory.shared_memory import Flight
from aotc.verify.emulator.memory.vector_clocks import Ints
from aotc.verify.emulator.mma.formats import FORMATS, encode
from aotc.verify.emulator.mma.fragments import WARP_LANES
from aotc.verify.emulator.mma.mma_sync import multiply
from aotc.verify.emulator.mma.wgmma_chains import (
    GROUP_LANES,
    ROWS,
    WARPS,
    Chain,
    Chains,
    WarpRegisters,
    refuse,
    refuse_unfenced,
)
from aotc.verify.emulator.mma.wgmma_form import Form
from aotc.verify.emulator.mma.wgmma_operand import (
    CHUNK_BYTES,
    DescriptorError,
    elements,
    operand_addresses,
)
from aotc.verify.emulator.syntax import Operand
from aotc.verify.fp8_sums import fp8_step


@dataclass(eq=False)
class _Job:
    """Hold one multiplication by a warpgroup; `a` (64, k) is A's bits, if from registers.

    After the first wait, `reader` is the lane on record for the operand reads, and `read` their
    limit.
    """

    form: Form
    group: int
    chain: Chain
    accumulate: bool
    a: Array | None
    flight: Flight
    pending: Pending | None = None
    reader: int = -1
    read: int = 0


class _Warp:
    """Hold one warp's jobs not yet waited for."""

    def __init__(self) -> None:
        self.uncommitted: list[_Job] = []
        self.groups: deque[list[_Job]] = deque()


class WgmmaUnit:
    """Hold the jobs of all warpgroups of a batch."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._registers = machine.registers
        num_warps = machine.num_ctas * machine.warps_per_cta
        self._warps = [_Warp() for _ in range(num_warps)]
        self._fenced = np.zeros(num_warps, bool)
        # By a register's row: the number of jobs of each warp that read it.
        self._reads: dict[int, Ints] = defaultdict(lambda: np.zeros(num_warps, np.int64))
        self._job_queues: dict[int, deque[_Job]] = defaultdict(deque)  # by warpgroup
        self._file = WarpRegisters(machine.registers)
        self._chains = Chains(self._file)

    # ---- instructions ---------------------------------------------------------------------------

    def fence(self, ctx: Context) -> None:
        """Order warps' register writes before their next jobs."""
        self._fenced[ctx.warps()] = True
        self._registers.fence(ctx.lanes)

    def start(self, ctx: Context, form: Form) -> None:
        """Start one multiplication per warpgroup; all its warps are active.

        Raises: Misuse for unfenced registers or registers in flight, for operands that differ
        within a warpgroup, and as `SharedMemory.begin`.
        """
        warps = ctx.warps()
        if not self._fenced[warps].all():
            refuse(int(warps[~self._fenced[warps]][0]), "no wgmma.fence came before it")
        groups = warps[::WARPS] // WARPS
        accumulate = self._uniform(ctx, form.scale_d, 1, "values of scale-d")
        a_bits = None
        if form.a_descriptor is not None:
            a_bits = self._uniform(ctx, form.a_descriptor, 64, "descriptors of A")
        b_bits = self._uniform(ctx, form.b_descriptor, 64, "descriptors of B")
        a = self._read_a(ctx, form, warps) if form.a_registers else None
        chains = self._chains.continued(form, groups, accumulate)
        flights = self._begin(ctx, form, groups, a_bits, b_bits)
        for index, (group, flight) in enumerate(zip(groups.tolist(), flights, strict=True)):
            job = _Job(
                form,
                group,
                chains[index],
                bool(accumulate[index]),
                None if a is None else a[index],
                flight,
            )
            self._enqueue(job)

    def commit(self, warps: Ints) -> None:
        """Close each warp's open group of jobs."""
        for number in listed(warps):
            warp = self._warps[number]
            warp.groups.append(warp.uncommitted)
            warp.uncommitted = []

    def wait(self, warps: Ints, allowed: int) -> None:
        """Run all but each warp's latest `allowed` groups, and release their operands."""
        closed: list[tuple[int, Chain]] = []
        seen: dict[tuple[int, int], int] = {}
        waited: list[tuple[int, _Job]] = []
        for number in listed(warps):
            warp = self._warps[number]
            while len(warp.groups) > allowed:
                waited += [(number, job) for job in warp.groups.popleft()]
        self._finish(waited)
        self._release(waited)
        for number, job in waited:
            seen[number, job.reader] = max(job.read, seen.get((number, job.reader), 0))
            chain = job.chain
            chain.open[number % WARPS] -= 1
            if not chain.open[number % WARPS]:
                closed.append((number, chain))
        if seen:
            pairs = np.array(list(seen), np.int64)
            limits = np.array(list(seen.values()), np.int64)
            self._machine.order.see_lanes(pairs[:, 0], pairs[:, 1], limits)
        self._chains.write_back(closed)

    # ---- starting -------------------------------------------------------------------------------

    def _uniform(self, ctx: Context, operand: Operand, bits: int, label: str) -> Array:
        """Return the value common to all lanes of each warpgroup: (groups,)."""
        values = reshape(ctx.read_warps(operand, bits), -1, GROUP_LANES)
        odd = values != values[:, :1]
        if odd.any():
            group = int(np.argmax(odd.any(axis=1)))
            refuse(int(ctx.warps()[group * WARPS]), f"its warpgroup gives different {label}")
        return values[:, 0]

    def _read_a(self, ctx: Context, form: Form, warps: Ints) -> Array:
        """Return A's bits (groups, 64, k) from registers, and mark these as being read."""
        words = ctx.read_each(form.a_registers, 32)
        for register in form.a_registers:
            states = self._file.states(register)
            if (states[warps] == DEFINED).any():
                refuse_unfenced(register, warps, states[warps] == DEFINED)
            states[warps] = READ_IN_FLIGHT
            self._reads[register.row][warps] += 1
        return reshape(form.a_fragment.gather(words), -1, ROWS, form.k)

    def _begin(
        self, ctx: Context, form: Form, groups: Ints, a_bits: Array | None, b_bits: Array
    ) -> list[Flight]:
        """Mark each warpgroup's operand bytes as being read: A's chunks, then B's.

        All its warps read them, but each chunk is checked for one warp only, in rotation.
        """
        addresses: list[Ints] = []
        index = 0
        try:
            for index in range(len(groups)):
                if a_bits is not None:
                    bits = int(a_bits[index])
                    addresses.append(operand_addresses(bits, ROWS, transposed=form.a_transposed))
                bits = int(b_bits[index])
                addresses.append(operand_addresses(bits, form.n, transposed=form.b_transposed))
        except DescriptorError as error:
            refuse(int(groups[index]) * WARPS, str(error))
        address = np.concatenate(addresses)
        chunks_per_group = len(address) // len(groups)
        warps = np.arange(chunks_per_group) % WARPS * WARP_LANES
        lanes = reshape(groups[:, None] * GROUP_LANES + warps, -1)
        shared = self._machine.shared
        flight = shared.begin(lanes, address, CHUNK_BYTES, ctx.instruction, writes=False)
        return shared.shadow.split(flight, len(groups))

    def _enqueue(self, job: _Job) -> None:
        self._job_queues[job.group].append(job)
        for index in range(WARPS):
            job.chain.open[index] += 1
            self._warps[job.group * WARPS + index].uncommitted.append(job)
        job.pending = self._machine.defer(
            np.array([job.group * GROUP_LANES]), lambda: self._run_job(job), is_awaited=True
        )

    # ---- happening ------------------------------------------------------------------------------

    def _run_jobs(self, jobs: Sequence[_Job]) -> None:
        """Run jobs, a warpgroup's in order; equal ones of several warpgroups at once."""
        queues: dict[int, list[_Job]] = defaultdict(list)
        for job in jobs:
            queues[job.group].append(job)
        for row in zip_longest(*queues.values()):
            alike: dict[int, list[_Job]] = defaultdict(list)
            for job in row:
                if job is not None and job.pending is not None and not job.pending.is_done:
                    alike[id(job.form)].append(job)
            for members in alike.values():
                pendings = [job.pending for job in members if job.pending is not None]
                if all(self._job_queues[job.group][0] is job for job in members):
                    for job, pending in zip(members, pendings, strict=True):
                        pending.settle()
                        self._job_queues[job.group].popleft()
                    self._multiply(members)
                for pending in pendings:
                    pending.force()

    def _run_job(self, job: _Job) -> None:
        """Multiply, after all earlier jobs of the warpgroup."""
        queue = self._job_queues[job.group]
        while queue[0] is not job:
            pending = queue[0].pending
            assert pending is not None
            pending.force()
        queue.popleft()
        self._multiply([job])

    def _multiply(self, jobs: Sequence[_Job]) -> None:
        """Compute the multiplications of one form by several warpgroups."""
        form = jobs[0].form
        a_bits, b_bits = self._operands(jobs)
        a, b = form.a_format.decode(a_bits), np.swapaxes(form.b_format.decode(b_bits), 1, 2)
        if form.negate_a != form.negate_b:
            a = -a
        accumulators = np.zeros((len(jobs), ROWS, form.n))
        adding = [index for index, job in enumerate(jobs) if job.accumulate]
        if adding:
            words = np.stack([jobs[index].chain.available_sums for index in adding])
            accumulators[adding] = FORMATS[form.result].decode(words)
        if form.is_narrow:
            sums = fp8_step(a, b, accumulators, (form.a_format.name, form.b_format.name))
        else:
            sums = multiply(a, b)
            with np.errstate(invalid="ignore"):
                sums[adding] += accumulators[adding]
        bits = encode(form.result, sums, saturate=form.saturate)
        for job, job_bits in zip(jobs, bits, strict=True):
            job.chain.sums = job_bits

    def _operands(self, jobs: Sequence[_Job]) -> tuple[Array, Array]:
        """Return the bits of A (jobs, 64, k) and of B (jobs, n, k) of jobs of one form."""
        form, bits = jobs[0].form, jobs[0].form.a_format.bits
        data = self._machine.shared.peek_each([job.flight for job in jobs])
        register_a = [job.a for job in jobs if job.a is not None]
        if register_a:
            a = np.stack(register_a)
        else:
            count = ROWS * 2  # chunks of A
            a = elements(data[:, :count], ROWS, bits, transposed=form.a_transposed)
            data = data[:, count:]
        return a, elements(data, form.n, bits, transposed=form.b_transposed)

    # ---- ending ---------------------------------------------------------------------------------

    def _finish(self, waited: Sequence[tuple[int, _Job]]) -> None:
        """Run jobs; record their operand reads for the first waiting warp.

        The reads are for all warps: a wait orders a warp after that lane's reads, and no more of
        it.
        """
        fresh: list[_Job] = []
        for number, job in waited:
            if job.reader >= 0:
                continue
            # The last lane, since it is seldom elected for other work.
            job.reader = number * WARP_LANES + WARP_LANES - 1
            job.flight.lanes = np.full_like(job.flight.lanes, job.reader)
            fresh.append(job)
        if fresh:
            self._run_jobs(fresh)
            self._machine.shared.shadow.finish_reads([job.flight for job in fresh])
            read = self._machine.order.close()
            for job in fresh:
                job.read = read

    def _release(self, waited: Sequence[tuple[int, _Job]]) -> None:
        """Release the registers read by warps' parts of jobs."""
        by_form: dict[int, tuple[Form, list[int]]] = {}
        for number, job in waited:
            if job.form.a_registers:
                by_form.setdefault(id(job.form), (job.form, []))[1].append(number)
        for form, numbers in by_form.values():
            warps = np.array(numbers)
            for register in form.a_registers:
                reads = self._reads[register.row]
                np.subtract.at(reads, warps, 1)
                self._file.states(register)[warps[reads[warps] == 0]] = FENCED
