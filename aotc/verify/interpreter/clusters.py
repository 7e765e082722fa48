"""CTAs of a cluster that exchange values, while a kernel is interpreted: they take turns.

Each runs, in order of rank, until it waits for the cluster; when all do, they go on. Where nothing is
exchanged, CTAs run one after the other, whole.

Invariant: what they do depends on the program alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotc.ir.core import Kernel, Op
from aotc.ir.dialects import gpu, grid
from aotc.verify.arrays import Array, reshape
from aotc.verify.interpreter.program import Program, Rule
from aotc.verify.interpreter.warp_roles import ClusterWait, steps_of


def exchanges(kernel: Kernel) -> bool:
    """Return whether CTAs of the kernel's clusters give each other values."""
    return any(isinstance(op, grid.ClusterReduce | grid.ClusterStore) for op in kernel.walk())


def run_cluster(programs: Sequence[Program], kernel: Kernel, args: Sequence[Array]) -> None:
    """Run all CTAs of a cluster. Raises: InterpretError, also if some wait and others have ended."""
    for program in programs:
        program.peers = list(programs)
    running = [steps_of(program, kernel.body, args) for program in programs]
    while True:
        waits = [next(steps, None) for steps in running]
        ahead = [wait for wait in waits if wait is not None]
        if not ahead:
            return
        for program, wait in zip(programs, waits, strict=True):
            if not isinstance(wait, ClusterWait):
                raise program.error(ahead[0].op, "waits for ever: not all CTAs come to it")
            program.shared.barrier()


def _reduce(program: Program, op: grid.ClusterReduce, *inputs: Array) -> list[Array]:
    """Combine what all CTAs have posted, halves with halves."""
    del inputs
    posted = zip(*(peer.posted for peer in program.peers), strict=True)
    values = [np.stack(each) for each in posted]
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


CLUSTER_RULES: dict[type[Op], Rule] = {
    grid.ClusterReduce: _reduce,
    grid.ClusterStore: _store,
}
