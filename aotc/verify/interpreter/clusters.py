"""Interpret the CTAs of a cluster in turn, with their exchanges of values.

Each runs, in order of rank, until it waits for the cluster or for a peer's data; when all wait
for the cluster, they proceed. Without exchanges, CTAs run to completion one after the other.

Invariant: the schedule depends on the program alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import cluster, gpu, grid
from aotc.ir.tiles import tile_shape
from aotc.ir.types import U32, TileType
from aotc.verify.arrays import Array, reshape
from aotc.verify.interpreter import mbarriers
from aotc.verify.interpreter.atomics import update
from aotc.verify.interpreter.memory import Memory
from aotc.verify.interpreter.numerics import dtype_of
from aotc.verify.interpreter.program import Program, Rule, scalar
from aotc.verify.interpreter.shared_memory import check_shared_vectors
from aotc.verify.interpreter.warp_roles import (
    COLLECTIVES,
    ClusterWait,
    GridWait,
    Steps,
    Wait,
    steps_of,
)

_EXCHANGES = (grid.ClusterReduce, grid.ClusterStore, grid.ClusterSend)


def exchanges(kernel: Kernel) -> bool:
    """Return whether the kernel's CTAs exchange values within a cluster."""
    return kernel.runs_by_cta or any(isinstance(op, _EXCHANGES) for op in kernel.walk())


def meets_grid(kernel: Kernel) -> bool:
    """Return whether programs of the kernel wait for each other."""
    return any(isinstance(op, grid.GridBarrier) for op in kernel.walk())


def run_cluster(programs: Sequence[Program], kernel: Kernel, args: Sequence[Array]) -> None:
    """Run all CTAs of a cluster.

    Raises: InterpretError, also if some wait and others have ended.
    """
    _advance(_start(programs, kernel, args))


def run_grid(
    clusters: Sequence[Sequence[Program]], kernel: Kernel, args: Sequence[Array], memory: Memory
) -> None:
    """Run all clusters of a grid, from one grid barrier to the next.

    Raises: InterpretError, also if some programs wait for the grid and others have ended.
    """
    groups = [_start(programs, kernel, args) for programs in clusters]
    while True:
        for group in groups:
            memory.begin_program()
            _advance(group)
        ctas = [cta for group in groups for cta in group]
        waiting = [cta for cta in ctas if cta.wait is not None]
        if len(waiting) < len(ctas) or not ctas:
            for cta in waiting:
                assert cta.wait is not None
                raise cta.program.error(cta.wait.op, "waits for ever: not all programs come to it")
            return
        memory.meet_programs()
        for cta in ctas:
            cta.program.shared.barrier()


def _start(programs: Sequence[Program], kernel: Kernel, args: Sequence[Array]) -> list[_Cta]:
    for program in programs:
        program.peers = list(programs) if len(programs) > 1 else []
        program.shared.join(programs[0].shared)
    return [_Cta(program, steps_of(program, kernel.body, args)) for program in programs]


def _advance(ctas: Sequence[_Cta]) -> None:
    """Run the CTAs of a cluster until each has ended or waits for the grid."""
    for cta in ctas:
        cta.run()
    while any(cta.wait is not None and not isinstance(cta.wait, GridWait) for cta in ctas):
        ready = [cta for cta in ctas if cta.may_run]
        if not ready:
            ready = _pass_barrier(ctas)
        for cta in ready:
            cta.run()


@dataclass
class _Cta:
    """A CTA of a cluster, with its pending wait, None at its end."""

    program: Program
    steps: Steps
    wait: Wait | ClusterWait | GridWait | None = None

    @property
    def may_run(self) -> bool:
        return isinstance(self.wait, Wait) and self.wait.is_over

    def run(self) -> None:
        self.wait = next(self.steps, None)


def _pass_barrier(ctas: Sequence[_Cta]) -> Sequence[_Cta]:
    """Let all CTAs pass the cluster's barrier. Raises: InterpretError if some are elsewhere."""
    for cta in ctas:
        if not isinstance(cta.wait, ClusterWait) or _differ(cta.wait, ctas[0].wait):
            waiting = next(other for other in ctas if other.wait is not None)
            assert waiting.wait is not None
            raise waiting.program.error(waiting.wait.op, "waits for ever: not all CTAs come to it")
        if not isinstance(cta.wait.op, grid.ClusterWait):
            cta.program.shared.barrier()
            cta.program.told = {peer.rank: peer.shared.mark() for peer in cta.program.peers}
    return ctas


def _differ(wait: ClusterWait, other: Wait | ClusterWait | GridWait | None) -> bool:
    """Return whether two CTAs wait at different exchanges, or one at none."""
    ops = wait.op, None if other is None else other.op
    return ops[0] is not ops[1] and any(isinstance(op, COLLECTIVES) for op in ops)


def _permute(program: Program, op: cluster.ClusterPermute, value: Array) -> Array:
    """Return the posted value of this CTA's sender, or zeros."""
    if program.rank not in op.to:
        return np.zeros_like(value)
    return program.peers[op.to.index(program.rank)].posted[0]


def _read(program: Program, op: cluster.ClusterRead, value: Array, rank: Array) -> Array:
    """Return a CTA's posted value."""
    del value
    return _peer(program, op, rank).posted[0]


def _transpose(program: Program, op: cluster.ClusterTranspose, value: Array) -> Array:
    """Return this CTA's part of each posted value."""
    del op, value
    return np.stack([peer.posted[0][program.rank] for peer in program.peers])


def _peer(program: Program, op: Op, rank: Array) -> Program:
    number = int(scalar(rank))
    if not 0 <= number < len(program.peers):
        raise program.error(op, f"is of CTA {number} of {len(program.peers)}")
    return program.peers[number]


def _reduce(program: Program, op: grid.ClusterReduce, *inputs: Array) -> list[Array]:
    """Combine the posted values of all CTAs, halves with halves."""
    del inputs
    posted = zip(*(peer.posted for peer in program.peers), strict=True)
    values = [np.stack(contributions) for contributions in posted]
    while len(values[0]) > 1:
        half = len(values[0]) // 2
        values = program.run_block(
            op.combine, [*(v[:half] for v in values), *(v[half:] for v in values)]
        )
    return [np.asarray(value[0]) for value in values]


def _store(program: Program, op: grid.ClusterStore, value: Array, buffer: Array) -> None:
    """Write a scalar to the buffer of each CTA, as a thread of its first warp would."""
    shape = gpu.shared_type(op, op.buffer).shape
    address = int(reshape(buffer, *shape)[program.rank])
    for peer in program.peers:
        peer.shared.store_remote(address, value)


def _send(
    program: Program, op: grid.ClusterSend, value: Array, buffer: Array, barrier: Array
) -> None:
    """Send a scalar to the buffer of each CTA; it lands at the CTA's wait for it."""
    shape = gpu.shared_type(op, op.buffer).shape
    address = int(reshape(buffer, *shape)[program.rank])
    for peer in program.peers:
        mbarriers.send(peer, op, barrier, address, value)


def _check_vectors(op: cluster.SendTile | cluster.SendParts, buffer: Array, value: Array) -> None:
    kind = op.value.type
    assert isinstance(kind, TileType)
    assert kind.layout is not None
    check_shared_vectors(buffer, kind.layout, op.vector, value.dtype.itemsize)


def _send_tile(
    program: Program,
    op: cluster.SendTile,
    value: Array,
    buffer: Array,
    barrier: Array,
    cta: Array,
) -> None:
    _check_vectors(op, buffer, value)
    sides = {"gives": op.gives, "takes": op.takes}
    mbarriers.send_tile(program, op, barrier, buffer, value, _peer(program, op, cta), **sides)


def _send_parts(
    program: Program,
    op: cluster.SendParts,
    value: Array,
    buffer: Array,
    barrier: Array,
    rank: Array,
) -> None:
    _check_vectors(op, buffer, value)
    addresses = reshape(buffer, tile_shape(op.value))[int(scalar(rank))]
    mbarriers.send_parts(program, op, barrier, reshape(addresses, -1), value)


def _arrive_at(program: Program, op: cluster.RemoteArrive, barrier: Array, cta: Array) -> None:
    mbarriers.tell(program, op, barrier, op.count, _peer(program, op, cta))


def _load_remote(program: Program, op: cluster.RemoteLoad, buffer: Array, cta: Array) -> Array:
    kind = op.out.type
    assert isinstance(kind, TileType)
    dtype = dtype_of(kind.element)
    check_shared_vectors(buffer, op.layout, op.vector, dtype.itemsize)
    return reshape(_peer(program, op, cta).shared.load_remote(buffer, dtype), kind.shape)


def _count_in(program: Program, op: grid.GridBarrier, pointer: Array) -> None:
    del op
    num_ctas = math.prod(program.grid) * max(1, len(program.peers))
    is_first = not any(program.place) and program.rank == 0
    number = np.array([grid.arrivals(num_ctas, is_first=is_first)], np.uint32)
    update(program.memory, reshape(pointer, 1), U32, number, np.add)


def _nothing(program: Program, op: Op) -> None:
    del program, op


CLUSTER_RULES: dict[type[Op], Rule] = {
    grid.ClusterReduce: _reduce,
    grid.GridBarrier: _count_in,
    grid.ClusterStore: _store,
    grid.ClusterSend: _send,
    cluster.ClusterPermute: _permute,
    cluster.ClusterRead: _read,
    cluster.ClusterTranspose: _transpose,
    cluster.SendParts: _send_parts,
    cluster.SendTile: _send_tile,
    cluster.RemoteLoad: _load_remote,
    cluster.RemoteArrive: _arrive_at,
    grid.ClusterArrive: _nothing,
    grid.ClusterWait: _nothing,
}
