"""Accesses to shared memory of other CTAs of a cluster, which a CTA must outlive.

Shared memory is another CTA's once the last thread of its CTA has exited. An access that comes later is
found when it happens, but which of the two comes first is a matter of luck; so an exit is refused unless
the CTA has seen every such access, whatever the order in this run. Asynchronous writes are seen by who waits for them.

Invariant: for each CTA and each warp of its cluster the last access alone is kept, since who has seen a warp's
last access has seen the earlier ones.
"""

from __future__ import annotations

import numpy as np

from aotc.verify.arrays import listed
from aotc.verify.emulator.errors import Misuse
from aotc.verify.emulator.memory.shared_shadow import Shadow
from aotc.verify.emulator.memory.vector_clocks import Ints, Order
from aotc.verify.emulator.syntax import Instruction


class RemoteAccesses:
    """Hold when each warp last accessed each CTA of its cluster other than its own."""

    def __init__(self, num_blocks: int, order: Order, shadow: Shadow) -> None:
        self._order = order
        self._shadow = shadow
        self._last = np.zeros((num_blocks, order.cluster_warps), np.int64)  # stamps; 0 for none

    def record(self, lanes: Ints, blocks: Ints, instruction: Instruction) -> None:
        """Record that lanes (n,) access shared memory of CTAs (n,) of their cluster."""
        is_remote = blocks != (lanes >> 5) // self._order.warps_per_block
        lanes, blocks = lanes[is_remote], blocks[is_remote]
        stamps = self._order.stamps(lanes, self._shadow.number(instruction))
        self._last[blocks, self._order.planes_of(lanes)] = stamps

    def check_seen(self, blocks: Ints) -> None:
        """Check that CTAs (n,), whose threads have all exited, have seen all accesses.

        Raises: Misuse where no warp of one has.
        """
        warps_per_block, cluster_warps = self._order.warps_per_block, self._order.cluster_warps
        for block in listed(blocks[self._last[blocks].any(axis=1)]):
            first = block * warps_per_block
            own = np.arange(first, first + warps_per_block)
            others = first // cluster_warps * cluster_warps + np.arange(cluster_warps)
            last = self._last[block]
            shape = (warps_per_block, cluster_warps)
            seen = self._order.have_seen(
                own, np.broadcast_to(others, shape), np.broadcast_to(last, shape)
            )
            unseen = np.flatnonzero((last > 0) & ~seen.any(axis=0))
            if len(unseen):
                stamp = int(last[unseen[0]])
                raise Misuse(
                    "ended",
                    f"ends {self._shadow.block_name(block)}, though nothing orders an access of "
                    f"{self._shadow.who(stamp)} to its shared memory before its last thread has exited",
                    lane=(first + warps_per_block) * 32 - 1,
                    notes=self._shadow.where(stamp),
                )
