"""The CTAs of a cluster in the source: ranks, barriers and exchanges of tiles.

Triton has no such functions, so only `aotc.language` has them. A kernel with one of them is written
for a single CTA: with `num_ctas` above 1 all CTAs of a cluster run it on their own tiles, and the grid
counts clusters. With one CTA each function is trivial, so the same source runs without clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language.convert import cast, splat, static_int, to_scalar, to_value
from aotc.frontend.language.memory import pointer_argument
from aotc.frontend.values import Operand, is_tuple, shape, show
from aotc.ir.core import Value
from aotc.ir.dialects import cluster, grid, tile
from aotc.ir.types import I32, U32, ScalarType


def cluster_size(emit: Emitter) -> int:
    """Return the number of CTAs in a cluster: `num_ctas` of the configuration."""
    emit.runs_by_cta = True
    return emit.num_ctas


def cluster_rank(emit: Emitter) -> Value:
    """Return the rank of this CTA in its cluster."""
    if cluster_size(emit) == 1:
        return to_value(emit, 0)
    return emit(grid.CtaRank()).out


def cluster_barrier(emit: Emitter) -> None:
    """Wait for all threads of the cluster."""
    emit(tile.Barrier() if cluster_size(emit) == 1 else grid.ClusterBarrier())


def cluster_permute(emit: Emitter, value: Operand, to: Operand) -> Value:
    """Send a value to the CTA `to[rank]`; return the received one."""
    if not is_tuple(to):
        raise mistake(
            f"cluster_permute takes one rank for each CTA, a tuple, got {show(to)}",
            remedy="cluster_shift passes values on by a distance",
        )
    ranks = tuple(
        cluster.NOBODY if rank is None else static_int(rank, "each rank of cluster_permute")
        for rank in to
    )
    size, senders = cluster_size(emit), [rank for rank in ranks if rank != cluster.NOBODY]
    if (
        len(ranks) != size
        or not senders
        or not {*senders} <= {*range(size)}
        or len({*senders}) < len(senders)
    ):
        shown = tuple(None if rank == cluster.NOBODY else rank for rank in ranks)
        raise mistake(
            f"cluster_permute takes each rank from 0 to {size - 1} once, got {shown}",
            remedy="a CTA that gives its value to nobody has None",
        )
    return _permute(emit, value, ranks, "cluster_permute")


def cluster_shift(emit: Emitter, value: Operand, distance: Operand = 1) -> Value:
    """Send a value to the CTA `distance` ranks further; return the received one."""
    by, size = static_int(distance, "the distance of cluster_shift"), cluster_size(emit)
    ranks = [(rank + by) % size for rank in range(size)]
    return _permute(emit, value, ranks, "cluster_shift")


def cluster_read(emit: Emitter, value: Operand, rank: Operand) -> Value:
    """Return this value as held by the CTA of a rank."""
    operand = to_value(emit, value, "a value for cluster_read")
    number = to_value(emit, rank, "a rank")
    if not isinstance(number.type, ScalarType) or not number.type.is_int:
        raise mistake(f"the rank of cluster_read is an integer, got {show(number)}")
    if cluster_size(emit) == 1:
        return operand
    owner = cast(emit, number, I32)
    return _as_tile(emit, operand, lambda part: emit(cluster.ClusterRead(part, owner)).out)


def cluster_transpose(emit: Emitter, value: Operand) -> Value:
    """Send each CTA its part of a tile; return the received parts."""
    operand, size = to_value(emit, value, "a tile for cluster_transpose"), cluster_size(emit)
    extents = shape(operand)
    if not extents or extents[0] != size:
        raise mistake(
            f"the first axis of what cluster_transpose takes has an element for each of the {size} CTAs, "
            f"got {show(operand)}",
            remedy="reshape the tile, its first axis of cluster_size() elements",
        )
    return operand if size == 1 else emit(cluster.ClusterTranspose(operand)).out


def grid_barrier(emit: Emitter, counter: Operand) -> None:
    """Wait for all programs of the grid, with an arrival counter in memory."""
    pointer, kind = pointer_argument(emit, counter, "grid_barrier")
    if shape(pointer) or kind not in (I32, U32):
        raise mistake(
            f"grid_barrier counts in one int32, got {show(pointer)}",
            remedy="pass a pointer to an int32 that is 0 before the first launch",
        )
    emit(grid.GridBarrier(pointer))


def _permute(emit: Emitter, operand: Operand, to: Sequence[int], name: str) -> Value:
    value = to_value(emit, operand, f"a value for {name}")
    if list(to) == list(range(len(to))):
        return value
    return _as_tile(emit, value, lambda part: emit(cluster.ClusterPermute(part, tuple(to))).out)


def _as_tile(emit: Emitter, value: Value, exchange: Callable[[Value], Value]) -> Value:
    """Exchange a tile, or a scalar as a tile of one element."""
    if shape(value):
        return exchange(value)
    return to_scalar(emit, exchange(splat(emit, value, (1,))))


FUNCTIONS: dict[str, Callable[..., Operand]] = {
    "cluster_size": cluster_size,
    "cluster_rank": cluster_rank,
    "cluster_barrier": cluster_barrier,
    "cluster_permute": cluster_permute,
    "cluster_shift": cluster_shift,
    "cluster_read": cluster_read,
    "cluster_transpose": cluster_transpose,
    "grid_barrier": grid_barrier,
}
"""Functions of `aotc.language` for clusters and grids."""
