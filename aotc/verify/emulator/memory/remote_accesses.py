"""Accesses to shared memory of other CTAs of a cluster, which a CTA must outlive.

Shared memory is another CTA's once the last thread of its CTA has exited. An access that comes
later is found when it happens, but which of the two comes first is a matter of luck; so an exit is
refused unless the CTA has seen every such access, whatever the order in this run. Asynchronous
writes are seen by who waits for them at their mbarrier; one that is still under way at the exit is
refused by `shared_memory.py`.

Invariant: for each CTA, each warp of its cluster and the asynchronous agent the last access alone
is kept, since who has seen that has seen the earlier ones.
"""

from __future__ import annotations

import numpy as np

from aotc.verify.arrays import listed
from aotc.verify.emulator.errors import Misuse
from aotc.verify.emulator.memory.shared_shadow import Shadow
from aotc.verify.emulator.memory.vector_clocks import Ints, Order
from aotc.verify.emulator.syntax import Instruction


class RemoteAccesses:
    """Hold when each warp, and the agent for it, last accessed each other CTA of its cluster."""

    def __init__(self, num_ctas: int, order: Order, shadow: Shadow) -> None:
        self._order = order
        self._shadow = shadow
        # Stamps, 0 for none; the agent's are last.
        self._last = np.zeros((num_ctas, order.cluster_warps + 1), np.int64)

    def record(
        self, lanes: Ints, ctas: Ints, instruction: Instruction, *, asynchronous: bool = False
    ) -> None:
        """Record that lanes (n,) access shared memory of CTAs (n,) of their cluster.

        What is `asynchronous` the agent does now, whom the lanes asked.
        """
        is_remote = ctas != (lanes >> 5) // self._order.warps_per_cta
        lanes, ctas = lanes[is_remote], ctas[is_remote]
        number = self._shadow.number(instruction)
        if asynchronous:
            self._last[ctas, -1] = self._order.async_stamp(number)
        else:
            self._last[ctas, self._order.planes_of(lanes)] = self._order.stamps(lanes, number)

    def check_seen(self, ctas: Ints) -> None:
        """Check that CTAs (n,), whose threads have all exited, have seen all accesses.

        Raises: Misuse where no warp of one has.
        """
        warps_per_cta, cluster_warps = self._order.warps_per_cta, self._order.cluster_warps
        for cta in listed(ctas[self._last[ctas].any(axis=1)]):
            first = cta * warps_per_cta
            own = np.arange(first, first + warps_per_cta)
            others = first // cluster_warps * cluster_warps + np.arange(cluster_warps)
            columns = np.append(self._order.columns_of_warps(others), self._order.async_column)
            last = self._last[cta]
            shape = (warps_per_cta, cluster_warps + 1)
            seen = self._order.have_seen(
                own, np.broadcast_to(columns, shape), np.broadcast_to(last, shape)
            )
            unseen = np.flatnonzero((last > 0) & ~seen.any(axis=0))
            if len(unseen):
                stamp = int(last[unseen[0]])
                raise Misuse(
                    "ended",
                    f"ends {self._shadow.cta_name(cta)}, though nothing orders an access of "
                    f"{self._shadow.who(stamp)} to its shared memory before its last thread has exited",
                    lane=(first + warps_per_cta) * 32 - 1,
                    notes=self._shadow.where(stamp),
                )
