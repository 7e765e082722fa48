"""Accesses to shared memory of other CTAs of a cluster, which a CTA must outlive.

Shared memory may go to another CTA once the last thread of its CTA has exited. A later access is
found when it happens, but its timing is a matter of luck. So an exit is refused unless every such
access happens before it, in any schedule. A wait at its mbarrier orders an asynchronous write;
`shared_memory.py` refuses an exit with one still in flight.

Invariant: only the last access is kept, for each CTA and each warp of its cluster or the
asynchronous agent; it implies the earlier ones.
"""

from __future__ import annotations

import numpy as np

from aotc.verify.arrays import listed
from aotc.verify.emulator.errors import Misuse
from aotc.verify.emulator.memory.shared_shadow import Shadow
from aotc.verify.emulator.memory.vector_clocks import Ints, Order
from aotc.verify.emulator.syntax import Instruction


class RemoteAccesses:
    """Hold the last remote access of each warp, and of the agent, to each CTA."""

    def __init__(self, num_ctas: int, order: Order, shadow: Shadow) -> None:
        self._order = order
        self._shadow = shadow
        # Stamps, 0 for none; the agent's column is the last.
        self._last = np.zeros((num_ctas, order.cluster_warps + 1), np.int64)

    def record(
        self, lanes: Ints, ctas: Ints, instruction: Instruction, *, asynchronous: bool = False
    ) -> None:
        """Record accesses of lanes (n,) to shared memory of CTAs (n,) of their cluster.

        An `asynchronous` access is performed now by the agent, on behalf of the lanes.
        """
        is_remote = ctas != (lanes >> 5) // self._order.warps_per_cta
        lanes, ctas = lanes[is_remote], ctas[is_remote]
        number = self._shadow.number(instruction)
        if asynchronous:
            self._last[ctas, -1] = self._order.async_stamp(number)
        else:
            self._last[ctas, self._order.planes_of(lanes)] = self._order.stamps(lanes, number)

    def check_seen(self, ctas: Ints) -> None:
        """Check that all remote accesses happen before the exit of CTAs (n,).

        Raises: Misuse where no warp of a CTA is ordered after one.
        """
        warps_per_cta, cluster_warps = self._order.warps_per_cta, self._order.cluster_warps
        for cta in listed(ctas[self._last[ctas].any(axis=1)]):
            first = cta * warps_per_cta
            cta_range = np.arange(first, first + warps_per_cta)
            cluster_range = first // cluster_warps * cluster_warps + np.arange(cluster_warps)
            columns = np.append(
                self._order.columns_of_warps(cluster_range), self._order.async_column
            )
            last = self._last[cta]
            shape = (warps_per_cta, cluster_warps + 1)
            seen = self._order.have_seen(
                cta_range, np.broadcast_to(columns, shape), np.broadcast_to(last, shape)
            )
            unseen = np.flatnonzero((last > 0) & ~seen.any(axis=0))
            if len(unseen):
                stamp = int(last[unseen[0]])
                raise Misuse(
                    "ended",
                    f"ends {self._shadow.cta_name(cta)}, though nothing orders an access of "
                    f"{self._shadow.thread_name(stamp)} to its shared memory before its last thread has exited",
                    lane=(first + warps_per_cta) * 32 - 1,
                    notes=self._shadow.note_on(stamp),
                )
