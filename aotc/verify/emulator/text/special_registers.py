"""Special registers: the values of `%tid.x` and its kin for each lane of a batch.

Invariant: an array has one entry per lane, of the register's width. Clocks have no array, since
they change while a batch runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aotc.verify.emulator.text.program import Extents

Lanes = npt.NDArray[Any]
WARP = 32
WARPGROUP = 4  # warps
CLOCKS = {"%clock": 32, "%clock_hi": 32, "%clock64": 64, "%globaltimer": 64, "%globaltimer_lo": 32}


@dataclass(frozen=True, slots=True)
class Launch:
    """Describe a launch: threads per CTA, CTAs per cluster, bytes of shared memory."""

    cta_threads: Extents
    cluster: Extents
    dynamic_shared_bytes: int
    shared_bytes: int

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.cta_threads[0] * self.cta_threads[1] * self.cta_threads[2]

    @property
    def warps(self) -> int:
        """Warps of a CTA; the last one may have fewer than 32 threads."""
        return -(-self.threads // WARP)

    @property
    def warp_slots(self) -> int:
        """Warps that a CTA takes here: rounded up to whole warpgroups."""
        return self.warps if self.warps < WARPGROUP else -(-self.warps // WARPGROUP) * WARPGROUP

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]


def split(linear: Any, extents: Any) -> tuple[Any, Any, Any]:
    """Split linear indices into x, y and z."""
    x, y, _ = extents
    return linear % x, linear // x % y, linear // (x * y)


@dataclass(frozen=True, slots=True)
class Clusters:
    """List the clusters to run: each one's launch, and its linear number in that grid.

    `grids` (launches, 3) are in CTAs; `launch` and `number` are (n,).
    """

    grids: npt.NDArray[np.int64]
    launch: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]

    def part(self, start: int, stop: int) -> Clusters:
        """Return the clusters from `start` to `stop`, exclusive."""
        return Clusters(self.grids, self.launch[start:stop], self.number[start:stop])


class Positions:
    """Locate each lane of a batch: its thread in the CTA, and its CTA in the grid.

    CTAs of a cluster are neighbours. All launches equal `launch` except for the grid.
    """

    def __init__(self, launch: Launch, clusters: Clusters) -> None:
        self.launch = launch
        lanes_per_cta = launch.warp_slots * WARP
        size = launch.cluster_size
        rank = np.tile(np.arange(size), clusters.number.size)
        grid = np.repeat(clusters.grids[clusters.launch], size, axis=0)
        in_clusters = np.swapaxes(grid // np.array(launch.cluster), 0, 1)
        cluster_id = split(np.repeat(clusters.number, size), in_clusters)
        in_cluster = split(rank, launch.cluster)
        cta_id = [
            cluster * extent + inner
            for cluster, extent, inner in zip(cluster_id, launch.cluster, in_cluster, strict=True)
        ]
        self.ctas = np.stack(cta_id, axis=-1)  # (num_ctas, 3)
        self._cta_values = {
            **_triple("%ctaid", cta_id),
            **_triple("%clusterid", cluster_id),
            **_triple("%nctaid", np.swapaxes(grid, 0, 1)),
            **_triple("%nclusterid", in_clusters),
            **_triple("%cluster_ctaid", in_cluster),
            "%cluster_ctarank": rank,
        }
        self._thread = np.arange(lanes_per_cta)
        self._lanes_per_cta = lanes_per_cta

    def read(self, name: str) -> Lanes:
        """Return a special register of every lane."""
        ctas = self.ctas.shape[0]
        if name in self._cta_values:
            return np.repeat(self._cta_values[name].astype(np.uint32), self._lanes_per_cta)
        value = _OF_THREAD[name](self.launch, self._thread)
        dtype = np.uint64 if name in WIDE else np.uint32
        return np.tile(np.broadcast_to(np.asarray(value), self._thread.shape).astype(dtype), ctas)


def _triple(name: str, values: Any) -> dict[str, Any]:
    return {f"{name}.{axis}": value for axis, value in zip("xyz", values, strict=True)}


def _axis(index: int, of: Callable[[Launch], Extents]) -> Callable[[Launch, Any], Any]:
    return lambda launch, _: of(launch)[index]


_EXTENTS: dict[str, Callable[[Launch], Extents]] = {
    "%ntid": lambda launch: launch.cta_threads,
    "%cluster_nctaid": lambda launch: launch.cluster,
}
_OF_THREAD: dict[str, Callable[[Launch, Any], Any]] = {
    **{
        f"{name}.{axis}": _axis(index, of)
        for name, of in _EXTENTS.items()
        for index, axis in enumerate("xyz")
    },
    "%tid.x": lambda launch, thread: split(thread, launch.cta_threads)[0],
    "%tid.y": lambda launch, thread: split(thread, launch.cta_threads)[1],
    "%tid.z": lambda launch, thread: split(thread, launch.cta_threads)[2],
    "%laneid": lambda _, thread: thread % WARP,
    "%warpid": lambda _, thread: thread // WARP,
    "%nwarpid": lambda launch, _: launch.warps,
    "%cluster_nctarank": lambda launch, _: launch.cluster_size,
    "%is_explicit_cluster": lambda launch, _: int(launch.cluster_size > 1),
    "%lanemask_eq": lambda _, thread: 1 << thread % WARP,
    "%lanemask_lt": lambda _, thread: (1 << thread % WARP) - 1,
    "%lanemask_le": lambda _, thread: (2 << thread % WARP) - 1,
    "%lanemask_ge": lambda _, thread: (1 << 32) - (1 << thread % WARP),
    "%lanemask_gt": lambda _, thread: (1 << 32) - (2 << thread % WARP),
    "%smid": lambda _launch, _: 0,
    "%nsmid": lambda _launch, _: 132,
    "%gridid": lambda _launch, _: 1,
    "%dynamic_smem_size": lambda launch, _: launch.dynamic_shared_bytes,
    "%total_smem_size": lambda launch, _: launch.shared_bytes,
    "%aggr_smem_size": lambda launch, _: launch.shared_bytes,
}
WIDE = ("%gridid",)
_IN_GRID = ("%ctaid", "%nctaid", "%clusterid", "%nclusterid", "%cluster_ctaid")
_OF_BLOCK = tuple(f"{name}.{axis}" for name in _IN_GRID for axis in "xyz")
SPECIAL_REGISTERS = frozenset((*_OF_THREAD, *_OF_BLOCK, "%cluster_ctarank", *CLOCKS))
"""Names of all readable special registers."""
