"""Vector clocks of warps: the happens-before order of all resident warps.

Time is one counter that grows with every synchronisation. A memory access is stamped with the time
and its thread. `seen[view, column]` is a time: accesses of another warp (a column) up to it happen
before anything a warp (a view) does now. Two accesses race if neither side has seen the other's
stamp.

Columns are the warps of a cluster plus the asynchronous agent, which performs bulk copies: the
mbarrier it completes makes its writes seen. In a kernel whose CTAs synchronise through global
memory, columns are the warps of the whole batch; otherwise clusters are never ordered. Two more
sets of clocks, of kinds `PROXY` and `GLOBAL_PROXY`, hold the times up to which accesses to shared
and to global memory have also been fenced ("handed") to the asynchronous proxy, by a
`fence.proxy.async` of that space. They travel with the first through every barrier.

Lanes of one warp are ordered by `bar.warp.sync` and barriers alone. Acts of some lanes, such as an elected lane's arrival or wait, are kept apart from acts of all:
- a warp has two views: all lanes have seen the first, and the lanes in `ahead` also the second;
- beside `seen`, `lane_seen` is the time up to which accesses of the lanes `lane_mask` are seen;
- a handover to the asynchronous proxy by some lanes holds for them alone, until the warp meets.

Where several such sets would be needed they are merged: that may hide a race but never invents one.

Invariant: `seen` never falls; a stamp is greater than every `seen` recorded before it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import any_in_rows, reduce_or, reshape
from aotc.verify.emulator.errors import Misuse

Ints: TypeAlias = npt.NDArray[np.int64]
Lanes: TypeAlias = "slice | Ints"

GENERIC, PROXY, GLOBAL_PROXY = range(3)
PROXIES = (PROXY, GLOBAL_PROXY)
_KINDS = (GENERIC, *PROXIES)

# A stamp, from the top bit: asynchronous, time, column, scope, lane, instruction number. Stamps of
# the asynchronous agent exceed all times, so they never count as seen by mistake.
NUMBER_BITS = 20
_LANE_SHIFT = NUMBER_BITS
_SCOPE_SHIFT = _LANE_SHIFT + 5
_SCOPE_MASK = 3
_COLUMN_SHIFT = _SCOPE_SHIFT + 2
_COLUMN_MASK = (1 << 10) - 1
_TIME_SHIFT = _COLUMN_SHIFT + 10
_WHO = _COLUMN_MASK << _COLUMN_SHIFT | 31 << _LANE_SHIFT
_BELOW_TIME = (1 << _TIME_SHIFT) - 1
_ASYNC = 1 << 62
_TIME_END = (_ASYNC >> _TIME_SHIFT) - 1

_ALL_LANES = 0xFFFFFFFF
_LANES = np.arange(32, dtype=np.uint32)

WEAK, CTA, CLUSTER, GPU = range(4)
"""Strength of an access: weak, or strong within a scope; GPU stands for the system, too."""


class Clocks:
    """Hold the clocks of many views or tokens: arrays of (kinds, rows, columns)."""

    def __init__(self, rows: int, columns: int) -> None:
        shape = (len(_KINDS), rows, columns)
        self.seen = np.full(shape, _BELOW_TIME, np.int64)  # unwritten bytes, stamp 0, count as seen
        self.lane_mask = np.zeros(shape, np.uint32)
        self.lane_seen = np.zeros(shape, np.int64)

    def add_rows(self, count: int) -> Ints:
        """Append empty rows; return their numbers."""
        _, old, columns = self.seen.shape
        more = Clocks(count, columns)
        self.seen = np.concatenate((self.seen, more.seen), axis=1)
        self.lane_mask = np.concatenate((self.lane_mask, more.lane_mask), axis=1)
        self.lane_seen = np.concatenate((self.lane_seen, more.lane_seen), axis=1)
        return np.arange(old, old + count)

    def clear(self, rows: Ints) -> None:
        """Reset some rows."""
        self.seen[:, rows] = _BELOW_TIME
        self.lane_mask[:, rows] = 0
        self.lane_seen[:, rows] = 0

    def copy(self, rows: Ints, source: Clocks, source_rows: Ints) -> None:
        """Copy rows of `source` over `rows`."""
        self.seen[:, rows] = source.seen[:, source_rows]
        self.lane_mask[:, rows] = source.lane_mask[:, source_rows]
        self.lane_seen[:, rows] = source.lane_seen[:, source_rows]

    def merge(self, rows: Ints, source: Clocks, source_rows: Ints) -> None:
        """Merge rows of `source` into `rows`, which may repeat."""
        lane_mask = source.lane_mask[:, source_rows]
        has_lanes = bool(lane_mask.any())
        if bool((rows[1:] > rows[:-1]).all()):
            self.seen[:, rows] = np.maximum(self.seen[:, rows], source.seen[:, source_rows])
            if has_lanes:
                lane_seen = np.maximum(self.lane_seen[:, rows], source.lane_seen[:, source_rows])
                self.lane_seen[:, rows] = lane_seen
                self.lane_mask[:, rows] |= lane_mask
        else:
            for kind in _KINDS:
                np.maximum.at(self.seen[kind], rows, source.seen[kind, source_rows])
                if has_lanes:
                    lane_seen = source.lane_seen[kind, source_rows]
                    np.maximum.at(self.lane_seen[kind], rows, lane_seen)
                    np.bitwise_or.at(self.lane_mask[kind], rows, lane_mask[kind])
        if has_lanes:
            self.drop_surpassed(rows)

    def drop_surpassed(self, rows: Ints) -> None:
        """Drop single lanes seen no further than their whole warp."""
        self.lane_mask[:, rows] *= self.lane_seen[:, rows] > self.seen[:, rows]


class Order:
    """Hold the clocks of the warps of a batch.

    Warps and lanes are numbered across the batch. With `whole`, each warp has clocks for the warps
    of all clusters, not only of its own.
    """

    def __init__(
        self,
        num_ctas: int,
        warps_per_cta: int,
        cluster_size: int = 1,
        *,
        whole: bool = False,
    ) -> None:
        num_warps = num_ctas * warps_per_cta
        self.cluster_warps = cluster_size * warps_per_cta
        self.warps_per_cta = warps_per_cta
        self.whole = whole and num_warps > self.cluster_warps
        self.async_column = num_warps if self.whole else self.cluster_warps
        self.columns = self.async_column + 1
        self.now = 1
        self.views = Clocks(2 * num_warps, self.columns)  # rows 2 w and 2 w + 1 belong to warp w
        self.ahead = np.zeros(num_warps, np.uint32)  # lanes using row 2 w + 1
        # The time up to which a view has seen its whole cluster: a cheap first test.
        self.floor = np.full(2 * num_warps, _BELOW_TIME, np.int64)
        self.lowest_floor = _BELOW_TIME
        # Handovers to the asynchronous proxy by lanes since their warp last met: the limit of their
        # own accesses (0: none), and the clocks they had seen, valid for lanes in `handed`.
        self._handed_at = np.zeros((len(_KINDS), num_warps * 32), np.int64)
        self.handed = np.zeros(num_warps, np.uint32)
        self._handed_clocks = Clocks(num_warps, self.columns)
        self._has_handed = False
        self._fenced = False  # whether proxies' clocks are in use
        self._has_lane_clocks = False  # whether single lanes are distinguished
        self._has_ahead = False
        lanes = np.arange(num_warps * 32, dtype=np.int64)
        warps = np.arange(num_warps, dtype=np.int64)
        self._warp_column = warps % self.async_column
        self._column = self._warp_column[lanes >> 5]
        self._plane = (lanes >> 5) % self.cluster_warps
        # The columns of each view's cluster.
        first = (warps // self.cluster_warps * self.cluster_warps).repeat(2)
        self._own_columns = first[:, None] + np.arange(self.cluster_warps)
        self._signature = self._column << _COLUMN_SHIFT | (lanes & 31) << _LANE_SHIFT
        self._view_of_lane = (lanes >> 5) * 2

    # ---- stamps -----------------------------------------------------------------------------

    def stamps(self, lanes: Lanes, number: int | Ints, scope: int = WEAK) -> Ints:
        """Return stamps of lanes' accesses now, by instruction numbers: (n,)."""
        return self._signature[lanes] | (
            self.now << _TIME_SHIFT | number & (1 << NUMBER_BITS) - 1 | scope << _SCOPE_SHIFT
        )

    def async_stamp(self, number: int, scope: int = WEAK) -> int:
        """Return the stamp of an access by the asynchronous agent now."""
        column = self.async_column << _COLUMN_SHIFT | scope << _SCOPE_SHIFT
        return _ASYNC | self.now << _TIME_SHIFT | column | number & (1 << NUMBER_BITS) - 1

    def limit(self) -> int:
        """Return the greatest stamp of threads possible now."""
        return self.now << _TIME_SHIFT | _BELOW_TIME

    def columns_of(self, lanes: Lanes) -> Ints:
        """Return the columns of lanes' warps: (n,)."""
        return self._column[lanes]

    def columns_of_warps(self, warps: Ints) -> Ints:
        """Return the columns of warps, in the same shape."""
        return self._warp_column[warps]

    def planes_of(self, lanes: Lanes) -> Ints:
        """Return the ranks of lanes' warps in their clusters: (n,)."""
        return self._plane[lanes]

    def views_of(self, lanes: Lanes) -> Ints:
        """Return the views of lanes, rows of `views`: (n,)."""
        views = self._view_of_lane[lanes]
        if not self._has_ahead:
            return views
        numbers = lanes_array(lanes, len(self._view_of_lane))
        return views + (self.ahead[views >> 1] >> (numbers & 31).astype(np.uint32) & 1)

    def unseen(self, lanes: Lanes, stamps: Ints) -> tuple[Ints, Ints] | None:
        """Return rows and columns of stamps (n, k) unseen by lanes (n,), or None.

        Same as `unordered` for accesses of their own clusters, but quick when barriers or the lane
        itself order everything.
        """
        highest = int(stamps.max()) if stamps.size else 0
        if highest <= self.lowest_floor:
            return None
        views = self.views_of(lanes)
        agent = self.views.seen[GENERIC, views, self.async_column] if highest >= _ASYNC else None
        if agent is not None and highest <= int(agent.min()) and int(stamps.min()) >= _ASYNC:
            return None
        late = stamps > self.floor[views][:, None]
        if agent is not None:
            late &= (stamps < _ASYNC) | (stamps > agent[:, None])
        if not late.any():
            return None
        late &= (stamps ^ self._signature[lanes][:, None]) & _WHO != 0
        suspect = np.flatnonzero(any_in_rows(late))
        if not suspect.size:
            return None
        numbers = lanes_array(lanes, len(self._view_of_lane))[suspect]
        rows, columns = np.nonzero(self.unordered(numbers, stamps[suspect]))
        return (suspect[rows], columns) if rows.size else None

    def have_met(self, lanes: Lanes, limits: Ints) -> bool:
        """Return whether lanes (n,) have seen their whole clusters up to limits (n,)."""
        return bool((limits <= self.floor[self._view_of_lane[lanes]]).all())

    def have_seen_all(self, lanes: Ints, stamps: Ints) -> bool:
        """Return whether all lanes of lanes' warps (n,) have seen stamps (n, k).

        Conservative: it ignores the lanes' own accesses, and clocks of single lanes.
        """
        views = self._view_of_lane[lanes]
        agent = self.views.seen[GENERIC, views, self.async_column][:, None]
        late = stamps > self.floor[views][:, None]
        return not (late & ((stamps < _ASYNC) | (stamps > agent))).any()

    def unordered(self, lanes: Ints, stamps: Ints, kind: int = GENERIC) -> npt.NDArray[np.bool_]:
        """Return a mask of stamps (n, k) not seen by lanes (n,).

        For PROXY or GLOBAL_PROXY, of stamps not handed to the asynchronous proxy either; writes of
        the agent need no handover.
        """
        if kind != GENERIC and stamps.size and int(stamps.min()) >= _ASYNC:
            return np.zeros(stamps.shape, np.bool_)
        columns = stamps >> _COLUMN_SHIFT & _COLUMN_MASK
        cells = self.views_of(lanes)[:, None] * self.columns + columns
        views = self.views
        late = stamps > reshape(views.seen[kind], -1).take(cells)
        if kind == GENERIC:
            late &= (stamps ^ self._signature[lanes][:, None]) & _WHO != 0
        else:
            late &= columns != self.async_column
        if self._has_lane_clocks or (kind != GENERIC and self._has_handed):
            rows, stamp_index = np.nonzero(late)
            if rows.size:
                late[rows, stamp_index] = self._are_late(
                    lanes[rows], stamps[rows, stamp_index], cells[rows, stamp_index], kind
                )
        return late

    def _are_late(self, lanes: Ints, stamps: Ints, cells: Ints, kind: int) -> npt.NDArray[np.bool_]:
        """Return a mask of stamps (n,) unseen by lanes (n,) even in clocks of single lanes.

        `cells` (n,) index the lanes' views at the stamps' columns.
        """
        bit = (stamps >> _LANE_SHIFT & 31).astype(np.uint32)
        seen = np.zeros(len(stamps), np.bool_)
        if self._has_lane_clocks:
            shown = reshape(self.views.lane_mask[kind], -1)[cells] >> bit & 1 != 0
            seen = shown & (stamps <= reshape(self.views.lane_seen[kind], -1)[cells])
        if kind != GENERIC and self._has_handed:
            seen |= self._are_handed(lanes, stamps, bit, kind)
        return ~seen

    def have_seen(self, warps: Ints, columns: Ints, limits: Ints) -> npt.NDArray[np.bool_]:
        """Return whether a lane of each warp (n,) has seen columns (n, k) up to limits.

        One seen lane of a column's warp suffices: whole warps are ordered.
        """
        views = (2 * warps + (self.ahead[warps] != 0))[:, None]
        seen = self.views.seen[GENERIC, views, columns] >= limits
        if self._has_lane_clocks:
            has_lanes = self.views.lane_mask[GENERIC, views, columns] != 0
            seen |= has_lanes & (self.views.lane_seen[GENERIC, views, columns] >= limits)
        return seen

    def _are_handed(
        self, lanes: Ints, stamps: Ints, bit: npt.NDArray[np.uint32], kind: int
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of stamps (n,) that lanes (n,) handed over themselves.

        `bit` is the lane of each stamp within its warp.
        """
        warps, columns, clocks = lanes >> 5, columns_in(stamps), self._handed_clocks
        itself = (stamps ^ self._signature[lanes]) & _WHO == 0
        itself &= stamps <= self._handed_at[kind, lanes]
        is_handed = self.handed[warps] >> (lanes & 31).astype(np.uint32) & 1 != 0
        shown = clocks.lane_mask[kind, warps, columns] >> bit & 1 != 0
        shown &= stamps <= clocks.lane_seen[kind, warps, columns]
        shown |= stamps <= clocks.seen[kind, warps, columns]
        return itself | is_handed & shown

    # ---- acts of synchronisation ------------------------------------------------------------

    def join(self, warps: Ints) -> None:
        """Order all warps of each row (barriers, participants) after one another's past."""
        everyone = reshape(warps, -1)
        self._catch_up(everyone)
        self._share_handed(everyone)
        views, rows = self.views, 2 * warps
        for kind in _KINDS if self._fenced else (GENERIC,):
            met = views.seen[kind, rows].max(axis=1)  # (barriers, columns)
            if kind == GENERIC:
                met[np.arange(len(warps))[:, None], self._warp_column[warps]] = self.limit()
            views.seen[kind, rows] = met[:, None]
        if self._has_lane_clocks:
            mask = reduce_or(views.lane_mask[:, rows], axis=2)
            views.lane_mask[:, rows] = mask[:, :, None]
            views.lane_seen[:, rows] = views.lane_seen[:, rows].max(axis=2)[:, :, None]
            views.drop_surpassed(2 * everyone)
        self._update_floor(2 * everyone)
        self._tick()

    def warp_sync(self, warps: Ints) -> None:
        """Order all lanes of each warp (n,) after one another's past."""
        self._catch_up(warps)
        self._share_handed(warps)
        self.views.seen[GENERIC, 2 * warps, self._warp_column[warps]] = self.limit()
        self._tick()

    def release(self, lanes: Lanes, tokens: Clocks, rows: Ints) -> None:
        """Release: merge each lane's (n,) past into its row (n,) of `tokens`."""
        warps, rows, masks = self._group_by_warp(lanes, rows)
        knows_more = (self.ahead[warps] & masks) != 0
        views = 2 * warps + knows_more
        limit = self.limit()
        index, column = np.arange(len(warps)), self._warp_column[warps]
        released = Clocks(len(warps), self.columns)
        released.copy(index, self.views, views)
        if self._has_handed:
            handing = np.flatnonzero(self.handed[warps] & masks)
            released.merge(handing, self._handed_clocks, warps[handing])
            self._merge_own_handed(released, index, warps, masks)
        whole = masks == _ALL_LANES
        released.seen[GENERIC, index[whole], column[whole]] = limit
        if not whole.all():
            self._has_lane_clocks = True
            released.lane_mask[GENERIC, index[~whole], column[~whole]] |= masks[~whole]
            released.lane_seen[GENERIC, index[~whole], column[~whole]] = limit
        tokens.merge(rows, released, index)
        self._tick()

    def acquire(self, lanes: Lanes, tokens: Clocks, rows: Ints) -> None:
        """Acquire: merge rows (n,) of `tokens` into lanes' (n,) views."""
        warps, rows, masks = self._group_by_warp(lanes, rows)
        whole = masks == _ALL_LANES
        part = warps[~whole]
        if part.size:
            fresh = np.unique(part[self.ahead[part] == 0])
            self.views.copy(2 * fresh + 1, self.views, 2 * fresh)
            np.bitwise_or.at(self.ahead, part, masks[~whole])
            self._has_ahead = True
            self.views.merge(2 * part + 1, tokens, rows[~whole])
            self._update_floor(2 * part + 1)
        if whole.any():
            self.views.merge(2 * warps[whole], tokens, rows[whole])
            self._update_floor(2 * warps[whole])
            has_two_views = whole & (self.ahead[warps] != 0)
            self.views.merge(2 * warps[has_two_views] + 1, tokens, rows[has_two_views])
            self._update_floor(2 * warps[has_two_views] + 1)
        self._catch_up(np.unique(warps[self.ahead[warps] == _ALL_LANES]))

    def snapshot(self, lanes: Lanes, rows: Clocks, planes: int) -> int:
        """Copy the views of lanes (n,) into the first `planes` planes of `rows`.

        A plane has a row for each warp. Returns the limit of the lanes' own accesses.
        """
        warps, _, masks = self._group_by_warp(lanes, None)
        views = 2 * warps + ((self.ahead[warps] & masks) != 0)
        for plane in range(planes):
            rows.copy(plane * len(self.ahead) + warps, self.views, views)
        return self.close()

    def release_snapshot(
        self, lanes: Ints, snapshots: Clocks, plane: int, limits: Ints, tokens: Clocks, rows: Ints
    ) -> None:
        """Release each lane's (n,) last snapshot into its row (n,) of `tokens`.

        `limits` (n,) bound the lanes' own accesses at that time.
        """
        limit = np.maximum.reduceat(limits, _starts(lanes >> 5, rows))
        warps, rows, masks = self._group_by_warp(lanes, rows)
        released = Clocks(len(warps), self.columns)
        index, column = np.arange(len(warps)), self._warp_column[warps]
        released.copy(index, snapshots, plane * len(self.ahead) + warps)
        self._has_lane_clocks = True
        released.lane_mask[GENERIC, index, column] |= masks
        own_cells = (GENERIC, index, column)
        released.lane_seen[own_cells] = np.maximum(released.lane_seen[own_cells], limit)
        tokens.merge(rows, released, index)

    def see_pending(
        self, lanes: Lanes, tokens: Clocks, rows: Ints, into: Clocks, first_row: int
    ) -> None:
        """Merge rows (n,) of `tokens` into pending rows of the warps of lanes (n,).

        The rows start at `first_row` of `into`, one per warp, until they are acquired.
        """
        warps, rows, _ = self._group_by_warp(lanes, rows)
        into.merge(first_row + warps, tokens, rows)

    def release_async(self, tokens: Clocks, rows: Ints) -> None:
        """Release the asynchronous agent's past into rows (n,) of `tokens`."""
        tokens.seen[GENERIC, rows, self.async_column] = _ASYNC | self.limit()
        self._tick()

    def close(self) -> int:
        """Return the greatest stamp so far; later ones are greater."""
        limit = self.limit()
        self._tick()
        return limit

    def see_lanes(self, warps: Ints, lanes: Ints, limits: Ints) -> None:
        """Order warps (n,) after the accesses of one lane (n,) each, up to a limit (n,)."""
        self._has_lane_clocks = True
        columns = self.columns_of(lanes)
        bits = np.left_shift(np.uint32(1), (lanes & 31).astype(np.uint32))
        for offset in (0, 1):
            has_view = np.ones(len(warps), bool) if offset == 0 else self.ahead[warps] != 0
            views = 2 * warps[has_view] + offset
            cells = (np.full(len(views), GENERIC), views, columns[has_view])
            np.bitwise_or.at(self.views.lane_mask, cells, bits[has_view])
            np.maximum.at(self.views.lane_seen, cells, limits[has_view])
            self.views.drop_surpassed(views)

    def fence_proxy(self, lanes: Lanes, kinds: Sequence[int] = PROXIES) -> None:
        """Hand everything lanes (n,) wrote or saw to the asynchronous proxy, for some spaces."""
        warps, _, masks = self._group_by_warp(lanes, None)
        self._fenced = self._has_handed = True
        whole = masks == _ALL_LANES
        if len(kinds) == len(PROXIES):
            self.handed[warps[whole]] = 0
        partial = warps[~whole]
        self._handed_clocks.clear(partial[self.handed[partial] == 0])
        for kind in kinds:
            self._handed_at[kind, lanes] = self.limit()
            self._hand_over_warps(warps[whole], kind)
            self._hand_over_lanes(partial, masks[~whole], kind)
        self._tick()

    def _hand_over_warps(self, warps: Ints, kind: int) -> None:
        """Hand over everything that whole warps (n,) have seen."""
        seen, lane_mask, lane_seen = self.views.seen, self.views.lane_mask, self.views.lane_seen
        for offset in (0, 1):
            with_view = warps if offset == 0 else warps[self.ahead[warps] != 0]
            view = 2 * with_view + offset
            seen[kind, view] = np.maximum(seen[kind, view], seen[GENERIC, view])
            lane_mask[kind, view] |= lane_mask[GENERIC, view]
            lane_seen[kind, view] = np.maximum(lane_seen[kind, view], lane_seen[GENERIC, view])

    def _hand_over_lanes(self, warps: Ints, masks: npt.NDArray[np.uint32], kind: int) -> None:
        """Hand over everything that some lanes of warps (n,) have seen, for them alone."""
        clocks = self._handed_clocks
        views = 2 * warps + ((self.ahead[warps] & masks) != 0)
        for mine, theirs in (
            (clocks.seen, self.views.seen),
            (clocks.lane_seen, self.views.lane_seen),
        ):
            mine[kind, warps] = np.maximum(mine[kind, warps], theirs[GENERIC, views])
        clocks.lane_mask[kind, warps] |= self.views.lane_mask[GENERIC, views]
        self.handed[warps] |= masks

    def _merge_own_handed(
        self, rows: Clocks, row_index: Ints, warps: Ints, masks: npt.NDArray[np.uint32]
    ) -> None:
        """Merge handovers of own accesses, by the lanes in `masks` of warps (n,), into rows."""
        is_member = masks[:, None] >> _LANES & 1 != 0
        for kind in PROXIES:
            limits = np.where(is_member, reshape(self._handed_at[kind], -1, 32)[warps], 0)
            own_cells = (kind, row_index, self._warp_column[warps])
            rows.seen[own_cells] = np.maximum(rows.seen[own_cells], limits.min(axis=1))
            bits = ((limits > 0) << _LANES).sum(axis=1, dtype=np.uint32)
            rows.lane_mask[own_cells] |= bits
            rows.lane_seen[own_cells] = np.maximum(rows.lane_seen[own_cells], limits.max(axis=1))
        self._has_lane_clocks = True

    def _share_handed(self, warps: Ints) -> None:
        """Extend handovers by some lanes to all lanes of warps (n,), which meet."""
        if not self._has_handed:
            return
        handed_at = reshape(self._handed_at, len(_KINDS), -1, 32)
        handing = warps[handed_at[:, warps].any(axis=(0, 2))]
        if not handing.size:
            return
        partial = handing[self.handed[handing] != 0]
        everyone = np.full(len(handing), _ALL_LANES, np.uint32)
        for offset in (0, 1):
            self.views.merge(2 * partial + offset, self._handed_clocks, partial)
            self._merge_own_handed(self.views, 2 * handing + offset, handing, everyone)
            self.views.drop_surpassed(2 * handing + offset)
        self.handed[handing] = 0
        handed_at[:, handing] = 0
        self._has_handed = bool(self._handed_at.any())

    # ---- inside -----------------------------------------------------------------------------

    def _tick(self) -> None:
        self.now += 1
        if self.now >= _TIME_END:
            raise Misuse("steps", f"the program synchronised more than {_TIME_END:,} times")

    def _group_by_warp(
        self, lanes: Lanes, rows: Ints | None
    ) -> tuple[Ints, Ints, npt.NDArray[np.uint32]]:
        """Group ascending lanes: return the warps, the row of each and a mask of its lanes."""
        numbers = lanes_array(lanes, len(self._view_of_lane))
        rows = np.zeros(len(numbers), np.int64) if rows is None else rows
        warps = numbers >> 5
        starts = _starts(warps, rows)
        bits = np.left_shift(np.uint32(1), (numbers & 31).astype(np.uint32))
        return warps[starts], rows[starts], np.bitwise_or.reduceat(bits, starts)

    def _catch_up(self, warps: Ints) -> None:
        """Extend acquisitions by some lanes of warps to all their lanes."""
        if not self._has_ahead:
            return
        split = warps[self.ahead[warps] != 0]
        if not split.size:
            return
        self.views.merge(2 * split, self.views, 2 * split + 1)
        self._update_floor(2 * split)
        self.ahead[split] = 0
        self._has_ahead = bool(self.ahead.any())

    def _update_floor(self, views: Ints) -> None:
        seen = self.views.seen[GENERIC]
        if self.whole:
            floor = seen[views[:, None], self._own_columns[views]].min(axis=1)
        else:
            floor = seen[views, : self.async_column].min(axis=1)
        self.floor[views | 1] = floor  # lanes ahead have seen at least their warp's view
        self.floor[views] = floor
        self.lowest_floor = int(self.floor.min())


def _starts(warps: Ints, rows: Ints) -> Ints:
    """Return the starts of runs with one warp and one row."""
    new = (warps[1:] != warps[:-1]) | (rows[1:] != rows[:-1])
    return np.concatenate((np.zeros(1, np.int64), np.flatnonzero(new) + 1))


def columns_in(stamps: Ints) -> Ints:
    """Return the columns of stamps."""
    return stamps >> _COLUMN_SHIFT & _COLUMN_MASK


def lanes_in(stamps: Ints) -> Ints:
    """Return the lanes (in their warps) of stamps."""
    return stamps >> _LANE_SHIFT & 31


def numbers_in(stamps: Ints) -> Ints:
    """Return the numbers of the instructions of stamps."""
    return stamps & (1 << NUMBER_BITS) - 1


def lane_of(stamp: int) -> int:
    """Return the lane (in its warp) of a stamp."""
    return stamp >> _LANE_SHIFT & 31


def column_of(stamp: int) -> int:
    """Return the column of a stamp: the warp in its cluster, or the asynchronous agent."""
    return stamp >> _COLUMN_SHIFT & _COLUMN_MASK


def number_of(stamp: int) -> int:
    """Return the number of the instruction of a stamp."""
    return stamp & (1 << NUMBER_BITS) - 1


def scope_of(stamps: Ints) -> Ints:
    """Return the strength of stamps' accesses; strong ones do not race within their scopes."""
    return stamps >> _SCOPE_SHIFT & _SCOPE_MASK


def lanes_array(lanes: Lanes, total: int) -> Ints:
    """Return lanes as an array of their numbers in the batch."""
    if isinstance(lanes, slice):
        return np.arange(*lanes.indices(total), dtype=np.int64)
    return lanes
